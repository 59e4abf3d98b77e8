"""Old and new nodes in one fleet: whoever holds which layers, the greedy ids are those of transformers.

The old ones are tests/golden/reference_node.py (protocol 0) and the head loop of reference_head.py.
"""

import contextlib
import re

import pytest
from cluster import Cluster, call
from golden.reference_head import PythonNode, generate
from golden.reference_node import Shard

PROMPTS = [[1000, 2000, 3000, 4000], [7, 11, 13, 17, 19, 23, 29], [40000]]
TOKENS = 24
LAYERS = {"head": "0", "middle": "1-2", "tail": "3"}
START_LAYERS = {"middle": 1, "tail": 3}
FIXED_HEADERS = [
    "x-meshnet-cache",
    "x-meshnet-hop-index",
    "x-meshnet-past-len",
    "x-meshnet-session",
    "x-meshnet-start-layer",
]
WITHOUT_CACHE = {"cache": {"enabled": False}}

# What one hop is asked over all prompts, as (mode, tokens).
CACHED = [
    step
    for prompt in PROMPTS
    for step in [("prefill", len(prompt)), *[("decode", 1)] * (TOKENS - 1)]
]
STATELESS = [("stateless", len(prompt) + done) for prompt in PROMPTS for done in range(TOKENS)]

# Answers that go through text unharmed: cut anywhere, decoded and encoded again they are the same ids.
TEXT_PROMPTS = ["Photosynthesis is the process by which", "Water boils at a temperature of"]
TEXT_TOKENS = 16


def transformers_ids(model, prompt, tokens):
    import torch

    ids = torch.tensor([prompt])
    mask = torch.ones_like(ids)
    made = model.generate(ids, attention_mask=mask, max_new_tokens=tokens, do_sample=False)
    new = made[0, len(prompt) :].tolist()
    assert len(new) == tokens and len(set(new)) > 3, "choose another prompt"
    return new


@pytest.fixture(scope="module")
def expected(tiny):
    """What transformers generates, unsplit, for each of PROMPTS."""
    import torch
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(tiny, dtype=torch.float32).eval()
    return [transformers_ids(model, prompt, TOKENS) for prompt in PROMPTS]


@pytest.fixture(scope="module")
def old(tiny, tmp_path_factory):
    """The old middle and the old tail, for all tests of this module."""
    directory = tmp_path_factory.mktemp("old")
    nodes = {}
    try:
        for name in START_LAYERS:
            nodes[name] = PythonNode(directory / f"{name}.log", tiny, LAYERS[name])
        for node in nodes.values():
            node.wait_ready()
        yield nodes
    finally:
        for node in nodes.values():
            node.stop()


@contextlib.contextmanager
def fleet(directory, model, **nodes):
    """A cluster of LAYERS with what is said of some nodes: a PythonNode, or overrides."""
    old = [name for name, node in nodes.items() if isinstance(node, PythonNode)]
    said = {name: nodes[name].topology if name in old else nodes[name] for name in nodes}
    layers = {name: {"layers": LAYERS[name], **said.get(name, {})} for name in LAYERS}
    new = [name for name in LAYERS if name not in old]
    with Cluster(directory, model, layers, dtype="float32", threads=1) as cluster:
        yield cluster.start(*new).wait_ready(*new)


@pytest.fixture(scope="module")
def new_nodes(tiny, tmp_path_factory):
    with fleet(tmp_path_factory.mktemp("new"), tiny) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def old_head(tiny):
    import torch

    torch.set_num_threads(1)
    return Shard(tiny, 0, 0, torch.float32)


def metric(cluster, node, name, **labels):
    """Of Prometheus text; 0 while nothing was counted."""
    wanted = ",".join(f'{key}="{value}"' for key, value in labels.items())
    text = call(cluster.url(node) + "/metrics").body.decode()
    found = re.search(rf"^{name}{{{re.escape(wanted)}}} (\S+)$", text, re.MULTILINE)
    return float(found[1]) if found else 0


def steps(cluster, node):
    """How many prefills, decodes and stateless steps the shard of a new node has run."""
    modes = ("prefill", "decode", "stateless")
    return [metric(cluster, node, "meshnet_steps_total", mode=mode) for mode in modes]


def difference(now, before):
    return [a - b for a, b in zip(now, before, strict=True)]


def complete(cluster, prompt, tokens=TOKENS):
    answer = cluster.complete("head", prompt, max_tokens=tokens)
    assert answer.status == 200, answer.body
    return answer.json()["choices"][0]


def complete_all(cluster):
    return [complete(cluster, prompt)["token_ids"] for prompt in PROMPTS]


def drive_all(shard, urls, **options):
    """Token ids and misses of each prompt, with an old head."""
    hops = [(urls[name], start) for name, start in START_LAYERS.items()]
    made = [generate(shard, hops, prompt, TOKENS, **options) for prompt in PROMPTS]
    return [result.token_ids for result in made], [result.misses for result in made]


@pytest.mark.parametrize("python", [["middle", "tail"], ["middle"], ["tail"]], ids="+".join)
def test_a_new_head_with_old_nodes(tiny, expected, old, tmp_path, python):
    for node in old.values():
        node.new_steps()
    with fleet(tmp_path, tiny, **{name: old[name] for name in python}) as cluster:
        peers = call(cluster.url("head") + "/status").json()["peers"]
        protocols = {peer["name"]: peer["protocol"] for peer in peers}
        assert protocols == {name: int(name not in python) for name in START_LAYERS}
        assert complete_all(cluster) == expected
        for name in python:
            assert old[name].headers() == FIXED_HEADERS
            assert old[name].new_steps() == CACHED


def test_new_nodes_alone(new_nodes, expected):
    """Chained, what the other layouts are measured by."""
    before = steps(new_nodes, "middle")
    assert complete_all(new_nodes) == expected
    made = difference(steps(new_nodes, "middle"), before)
    assert made == [len(PROMPTS), len(PROMPTS) * (TOKENS - 1), 0]


def test_an_old_head_drives_new_nodes(new_nodes, old_head, expected):
    urls = {name: new_nodes.url(name) for name in START_LAYERS}
    before = {name: steps(new_nodes, name) for name in urls}
    assert drive_all(old_head, urls) == (expected, [[]] * len(PROMPTS))
    for name in urls:
        made = difference(steps(new_nodes, name), before[name])
        assert made == [len(PROMPTS), len(PROMPTS) * (TOKENS - 1), 0]


def test_an_old_head_drives_new_nodes_statelessly(new_nodes, old_head, expected):
    urls = {name: new_nodes.url(name) for name in START_LAYERS}
    before = {name: steps(new_nodes, name) for name in urls}
    assert drive_all(old_head, urls, cached=False) == (expected, [[]] * len(PROMPTS))
    for name in urls:
        assert difference(steps(new_nodes, name), before[name]) == [0, 0, len(STATELESS)]


@pytest.mark.parametrize("cached", [True, False], ids=["cached", "stateless"])
def test_old_nodes_alone(old, old_head, expected, cached):
    """As it was before: the reference itself gives what transformers gives."""
    old["tail"].new_steps()
    urls = {name: node.url for name, node in old.items()}
    assert drive_all(old_head, urls, cached=cached) == (expected, [[]] * len(PROMPTS))
    assert old["tail"].new_steps() == (CACHED if cached else STATELESS)


def test_an_old_head_with_a_middle_node_without_caching(tiny, old, old_head, expected, tmp_path):
    """Each decode is refused, never computed from one token alone; an old head then starts over."""
    with fleet(tmp_path, tiny, middle=WITHOUT_CACHE, tail=old["tail"]) as cluster:
        urls = {name: cluster.url(name) for name in START_LAYERS}
        misses = [["caching_disabled"] * (TOKENS - 1)] * len(PROMPTS)
        assert drive_all(old_head, urls) == (expected, misses)
        assert steps(cluster, "middle") == [len(PROMPTS) * TOKENS, 0, 0]


def test_a_middle_node_without_caching(tiny, expected, tmp_path):
    """One decode of each generation finds it out; every step after it is a whole prefill."""
    with fleet(tmp_path, tiny, middle=WITHOUT_CACHE) as cluster:
        assert complete_all(cluster) == expected
        for name in START_LAYERS:
            assert steps(cluster, name) == [len(PROMPTS) * TOKENS, 0, 0]
        reason = {"reason": "caching_disabled"}
        assert metric(cluster, "head", "meshnet_cache_misses_total", **reason) == len(PROMPTS)


def test_an_old_middle_node_that_knows_no_state(tiny, expected, tmp_path):
    """It would run a decode's one row as a whole sequence: it is sent whole sequences only."""
    middle = PythonNode(tmp_path / "old-middle.log", tiny, LAYERS["middle"], "--stateless-only")
    try:
        middle.wait_ready()
        with fleet(tmp_path, tiny, middle=middle) as cluster:
            assert complete_all(cluster) == expected
            lengths = [len(prompt) + done for prompt in PROMPTS for done in range(TOKENS)]
            assert middle.new_steps() == [("prefill", length) for length in lengths]
    finally:
        middle.stop()


def test_a_tail_without_token_id(smollm2, tmp_path):
    """It costs a whole prefill at every step and nothing else."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(smollm2)
    model = AutoModelForCausalLM.from_pretrained(smollm2, dtype=torch.float32).eval()
    prompts = [tokenizer.encode(text) for text in TEXT_PROMPTS]
    expected = [transformers_ids(model, prompt, TEXT_TOKENS) for prompt in prompts]
    del model
    for ids in expected:
        for end in range(1, TEXT_TOKENS + 1):
            assert tokenizer.encode(tokenizer.decode(ids[:end])) == ids[:end], "not such a prompt"

    tail = PythonNode(tmp_path / "old-tail.log", smollm2, "20-29", "--stateless-only")
    try:
        tail.wait_ready()
        layers = {"head": {"layers": "0-9"}, "middle": {"layers": "10-19"}}
        with fleet(tmp_path, smollm2, **layers, tail=tail) as cluster:
            choices = [complete(cluster, prompt, TEXT_TOKENS) for prompt in prompts]
            assert [choice["token_ids"] for choice in choices] == expected
            assert [choice["text"] for choice in choices] == tokenizer.batch_decode(expected)
            lengths = [len(prompt) + done for prompt in prompts for done in range(TEXT_TOKENS)]
            assert tail.new_steps() == [("prefill", length) for length in lengths]
            assert tail.headers() == FIXED_HEADERS
            for name in ("head", "middle"):
                assert steps(cluster, name) == [len(lengths), 0, 0]
    finally:
        tail.stop()
