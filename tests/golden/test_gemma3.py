"""Gemma 3 270M, a real model with sliding-window layers, against transformers: greedy ids in float32, one node and two."""

import pytest
from cluster import HOME, Cluster
from golden.greedy import TOKENS, load_reference, reference
from golden.make_golden import LEAST_MARGIN

PROMPTS = [  # of those tried, ones whose 64 greedy steps leave no doubt
    "The capital of France is",
    "def fibonacci(n):\n",
    "Once upon a time, in a small village by the sea,",
    "The three largest cities of Germany are",
    "Water boils at",
]
WINDOW = 512
LAYOUTS = {
    "one node": {"head": "0-17"},
    "two nodes": {"head": "0-6", "tail": "7-17"},
}


@pytest.fixture(scope="module")
def gemma3():
    directory = HOME / "models/gemma3-270m"
    assert (directory / "config.json").exists(), "run scripts/prepare-model gemma3-270m"
    return directory


@pytest.fixture(scope="module")
def goldens(gemma3):
    from transformers import AutoTokenizer

    encode = AutoTokenizer.from_pretrained(gemma3).encode
    model = load_reference(gemma3)
    short = [encode(text) for text in PROMPTS]
    # Past the window: the last prompt behind so much text that its start is out of sight.
    numbers = ", ".join(f"{n} x {n} = {n * n}" for n in range(10, 110))
    long = encode(numbers)[: WINDOW + 90]
    made = [reference(model, ids) for ids in (*short, long)]
    assert len(long) == WINDOW + 90
    for case in made:
        assert len(case.greedy_ids) == TOKENS and min(case.margins) > LEAST_MARGIN, case
    return made


@pytest.mark.parametrize("nodes", LAYOUTS.values(), ids=LAYOUTS)
def test_continues_as_transformers(gemma3, goldens, tmp_path, nodes):
    with Cluster(
        tmp_path, gemma3, nodes, dtype="float32", limits={"prefill_chunk": 200}
    ) as cluster:
        cluster.start().wait_ready()
        for case in goldens:
            answer = cluster.complete("head", case.prompt_ids, max_tokens=TOKENS, timeout=1200)
            assert answer.status == 200, answer.body
            assert answer.json()["choices"][0]["token_ids"] == case.greedy_ids
        for name in nodes:
            assert "missed" not in cluster.log(name)
