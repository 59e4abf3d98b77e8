"""Whole nodes against transformers, one tiny random model of every family: greedy ids in float32, over HTTP.

The models and their golden ids are those of make_golden.py; most cuts are compared in one process, by tests/models.
"""

import json
import shutil

import pytest
import torch
from cluster import ROOT, Cluster, forward, ids_of, misses
from golden import make_golden
from safetensors import safe_open

LAYERS = {  # family → the layers of its nodes
    "mistral_window": ["0-1", "2-3"],
    "qwen2_window": ["0-2", "3-3"],
    "qwen3": ["0-0", "1-3"],
    "gemma3": ["0-1", "2-2", "3-6"],
    "qwen3_moe": ["0-2", "3-3"],
    "qwen3_next": ["0-3", "4-6", "7-7"],  # the middle one holds recurrent layers only
    "qwen3_5": ["0-2", "3-7"],
    "qwen3_5_moe": ["0-2", "3-3", "4-7"],
}


@pytest.fixture(scope="session")
def tiny_models():
    out = ROOT / "build/release/golden/tiny"  # where ctest has it made, too
    out.parent.mkdir(parents=True, exist_ok=True)
    make_golden.make_once(out, make_golden.stamp_of(), make_golden.make_tiny)
    return out


def prepared(tiny_models, name, smollm2, directory):
    """The model with a tokenizer, which a node does not start without; its prompt and golden ids."""
    model = directory / name
    shutil.copytree(tiny_models / name, model)
    shutil.copy(smollm2 / "tokenizer.json", model / "tokenizer.json")
    (model / "generation_config.json").write_text(json.dumps({"eos_token_id": []}))
    config = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps(config | {"eos_token_id": None}))
    with safe_open(tiny_models / f"{name}.golden.safetensors", "pt") as golden:
        prompt = golden.get_tensor("input_ids")[: make_golden.TINY_PROMPT].tolist()
        return model, prompt, golden.get_tensor("greedy_ids").tolist()


@pytest.mark.parametrize("name", LAYERS)
def test_cached_and_stateless_ids_equal_transformers(tiny_models, smollm2, tmp_path, name):
    model, prompt, expected = prepared(tiny_models, name, smollm2, tmp_path)
    nodes = {f"node{index}": layers for index, layers in enumerate(LAYERS[name])}
    for enabled in (True, False):
        cache = {"enabled": enabled}
        with Cluster(tmp_path, model, nodes, dtype="float32", threads=1, cache=cache) as cluster:
            cluster.start().wait_ready()
            answer = cluster.complete("node0", prompt, max_tokens=len(expected))
            assert answer.status == 200, answer.body
            assert answer.json()["choices"][0]["token_ids"] == expected, f"cache {enabled}"
            assert not enabled or "missed" not in cluster.log("node1")


HYBRID = [name for name in LAYERS if name in ("qwen3_next", "qwen3_5", "qwen3_5_moe")]


@pytest.mark.parametrize("name", HYBRID)
def test_a_shared_prefix_leaves_no_trace(tiny_models, smollm2, tmp_path, name):
    """B02: state of a prompt is never taken for that of another which begins alike."""
    model, prompt, _ = prepared(tiny_models, name, smollm2, tmp_path)
    first, second = [*prompt, 7, 11, 13], [*prompt, 19, 23]
    nodes = {f"node{index}": layers for index, layers in enumerate(LAYERS[name])}
    with Cluster(tmp_path, model, nodes, dtype="float32", threads=1) as cluster:
        cluster.start().wait_ready()
        answers = [
            ids_of(cluster.complete("node0", ids, max_tokens=24)) for ids in (first, second, first)
        ]
    assert answers[2] == answers[0] != answers[1]


@pytest.mark.parametrize("name", HYBRID)
def test_a_step_within_what_is_held_is_a_miss(tiny_models, smollm2, tmp_path, name):
    """B02 on the wire: a node never rolls its K/V back to a place where its recurrent state is not."""
    model, _, _ = prepared(tiny_models, name, smollm2, tmp_path)
    nodes = {f"node{index}": layers for index, layers in enumerate(LAYERS[name])}
    tail, start = list(nodes)[-1], int(LAYERS[name][-1].split("-")[0])
    torch.manual_seed(0)
    rows = torch.randn(12, 64)

    def step(session, first, last, mode):
        body = rows[first:last].numpy().tobytes()
        headers = {"Session": session, "Cache": mode, "Past_Len": first, "Start_Layer": start}
        return forward(cluster.url(tail), body, **headers)

    with Cluster(tmp_path, model, nodes, dtype="float32", threads=1) as cluster:
        cluster.start(tail).wait_ready(tail)
        assert step("disturbed", 0, 9, "prefill").status == 200
        for first, last, mode in ((6, 9, "prefill"), (8, 9, "decode"), (10, 11, "decode")):
            answer = step("disturbed", first, last, mode)
            assert answer.status == 409, answer.body
            assert answer.json()["reason"] == "seq_len_mismatch"
        assert misses(cluster, tail)["seq_len_mismatch"] == 3
        assert step("alone", 0, 9, "prefill").status == 200
        for first in (9, 10, 11):
            tokens = [
                step(session, first, first + 1, "decode") for session in ("disturbed", "alone")
            ]
            assert [answer.status for answer in tokens] == [200, 200]
            assert tokens[0].json()["token_id"] == tokens[1].json()["token_id"]
