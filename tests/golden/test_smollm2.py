"""Whole nodes against transformers: the greedy ids of the real SmolLM2 in float32, on every layout, to the token.

The goldens are those of make_golden.py: 8 prompts, among them one of a single token, one of 700 tokens and one with
emoji and CJK, 64 tokens each. Chained: the head's API, nodes pass hidden states on themselves. Driven: this file embeds
the ids and carries the tensors from node to node, as a head of protocol 0 would, with the five fixed headers only. Both
decode from session state; on one layout nodes keep none, and every step is a whole prefill.
"""

import json
import subprocess
import sys
import urllib.request
from concurrent.futures import ThreadPoolExecutor

import pytest
from cluster import ROOT, Cluster
from safetensors import safe_open

PROMPTS = 8
TOKENS = 64
LAYOUTS = {
    "one node": {"solo": "0-29"},
    "cut at 1": {"head": "0", "tail": "1-29"},
    "cut at 15": {"head": "0-14", "tail": "15-29"},
    "cut at 29": {"head": "0-28", "tail": "29"},
    "three nodes": {"head": "0-9", "middle": "10-19", "tail": "20-29"},
}


@pytest.fixture(scope="session")
def goldens(smollm2):
    out = ROOT / "build/release/golden/smollm2"
    subprocess.run(
        [sys.executable, ROOT / "tests/golden/make_golden.py", "smollm2", smollm2, out], check=True
    )
    with safe_open(out / "golden.safetensors", "pt") as file:
        cases = [
            (
                file.get_tensor(f"prompt_ids.{i}").tolist(),
                file.get_tensor(f"greedy_ids.{i}").tolist(),
            )
            for i in range(PROMPTS)
        ]
    lengths = [len(prompt) for prompt, _ in cases]
    assert 1 in lengths and 700 in lengths
    return cases


@pytest.fixture(scope="session")
def embed_tokens(smollm2):
    with safe_open(smollm2 / "model.safetensors", "pt") as file:
        return file.get_tensor("model.embed_tokens.weight").float()


def start(layout, smollm2, directory, **top):
    # Prompts run side by side: nodes with about as many layers keep two cores busy with a thread each.
    threads = 1 if layout in ("cut at 15", "three nodes") else 2
    return Cluster(directory, smollm2, LAYOUTS[layout], dtype="float32", threads=threads, **top)


@pytest.fixture(scope="module", params=LAYOUTS)
def layout(request, smollm2, tmp_path_factory):
    with start(request.param, smollm2, tmp_path_factory.mktemp("layout")) as cluster:
        yield cluster.start().wait_ready()


def generate_chained(cluster, prompt_ids):
    head = next(iter(cluster.topology["nodes"]))
    answer = cluster.complete(head, prompt_ids, max_tokens=TOKENS, timeout=1200)
    assert answer.status == 200, answer.body
    return answer.json()["choices"][0]["token_ids"]


def generate_driven(cluster, prompt_ids, embed_tokens, count, session):
    tokens, held = list(prompt_ids), 0
    for _ in range(count):
        body = embed_tokens[tokens[held:]].numpy().tobytes()
        start_layer = 0
        for index, (name, node) in enumerate(cluster.topology["nodes"].items()):
            headers = {
                "X-Meshnet-Session": session,
                "X-Meshnet-Cache": "decode" if held else "prefill",
                "X-Meshnet-Past-Len": str(held),
                "X-Meshnet-Hop-Index": str(index),
                "X-Meshnet-Start-Layer": str(start_layer),
            }
            request = urllib.request.Request(cluster.url(name) + "/forward", body, headers)
            with urllib.request.urlopen(request, timeout=1200) as response:
                body = response.read()
            start_layer = int(node["layers"].split("-")[-1]) + 1
        held = len(tokens)
        tokens.append(json.loads(body)["token_id"])
    return tokens[len(prompt_ids) :]


def for_all(goldens, generate):
    with ThreadPoolExecutor(len(goldens)) as pool:
        got = list(pool.map(generate, range(len(goldens)), goldens))
    for (prompt_ids, expected), ids in zip(goldens, got, strict=True):
        assert ids == expected, f"prompt of {len(prompt_ids)} tokens"


def test_chained_equals_transformers(layout, goldens):
    for_all(goldens, lambda _, case: generate_chained(layout, case[0]))


@pytest.mark.parametrize(
    "layout", [name for name, nodes in LAYOUTS.items() if len(nodes) > 1], indirect=True
)
def test_driven_equals_transformers(layout, goldens, embed_tokens):
    for_all(
        goldens,
        lambda i, case: generate_driven(layout, case[0], embed_tokens, len(case[1]), f"driven-{i}"),
    )


def test_stateless_equals_transformers(smollm2, goldens, tmp_path):
    with start("cut at 15", smollm2, tmp_path, cache={"enabled": False}) as cluster:
        cluster.start().wait_ready()
        for_all(goldens, lambda _, case: generate_chained(cluster, case[0]))
