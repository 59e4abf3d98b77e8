"""Whole nodes against transformers on the shape of Qwen2.5 0.5B: greedy ids in float32, cached, at three cuts and unsplit.

The weights are random (bench/common.py makes them once); the prompt is one whose greedy steps leave no doubt. With
MESHNET_REAL_MODEL_TESTS=1 and MESHNET_MODEL_DIR the same runs on a real model directory.
"""

import os
import random
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from cluster import ROOT, Cluster
from golden.make_golden import LEAST_MARGIN

TOKENS = 64
PROMPT = random.Random(47).choices(range(1000, 40000), k=12)  # least margin 0.0097
TEXT = "The three largest cities of France are"
CUTS = {"one node": 0, "cut at 1": 1, "cut at 12": 12, "cut at 21": 21}


@dataclass
class Reference:
    """What transformers makes of a prompt."""

    num_layers: int
    prompt_ids: list[int]
    greedy_ids: list[int]  # up to the eos id, which is included
    margins: list[float]  # of each step, between the two best logits


def reference(model_dir, tokenize) -> Reference:
    from transformers import AutoModelForCausalLM

    prompt_ids = tokenize(model_dir)
    model = AutoModelForCausalLM.from_pretrained(model_dir, dtype=torch.float32).eval()
    out = model.generate(
        torch.tensor([prompt_ids]),
        do_sample=False,
        repetition_penalty=1.0,
        max_new_tokens=TOKENS,
        output_logits=True,
        return_dict_in_generate=True,
    )
    best_two = [step[0].topk(2).values for step in out.logits]
    return Reference(
        model.config.num_hidden_layers,
        prompt_ids,
        out.sequences[0, len(prompt_ids) :].tolist(),
        [float(best - second) for best, second in best_two],
    )


def generate(model_dir, directory, cut, golden):
    """Our greedy ids: of one node, or of two where the second starts at layer `cut`."""
    last = golden.num_layers - 1
    nodes = {"head": f"0-{cut - 1}", "tail": f"{cut}-{last}"} if cut else {"head": f"0-{last}"}
    with Cluster(directory, model_dir, nodes, dtype="float32") as cluster:
        cluster.start().wait_ready()
        answer = cluster.complete("head", golden.prompt_ids, max_tokens=TOKENS, timeout=1200)
        assert answer.status == 200, answer.body
        for name in nodes:
            assert "missed" not in cluster.log(name)
        return answer.json()["choices"][0]["token_ids"]


@pytest.fixture(scope="module")
def qwen2_shape(smollm2):  # whose tokenizer it takes
    sys.path.append(str(ROOT / "bench"))
    import common

    return common.qwen2_shape()


@pytest.fixture(scope="module")
def golden(qwen2_shape):
    made = reference(qwen2_shape, lambda _: PROMPT)
    assert len(made.greedy_ids) == TOKENS and len(set(made.greedy_ids)) >= 12, made.greedy_ids
    assert min(made.margins) > LEAST_MARGIN
    return made


@pytest.mark.parametrize("cut", CUTS.values(), ids=CUTS)
def test_cached_ids_equal_transformers(qwen2_shape, golden, tmp_path, cut):
    assert generate(qwen2_shape, tmp_path, cut, golden) == golden.greedy_ids


@pytest.fixture(scope="module")
def real_model():
    if os.environ.get("MESHNET_REAL_MODEL_TESTS") != "1":
        pytest.skip("real models are opt-in: MESHNET_REAL_MODEL_TESTS=1 MESHNET_MODEL_DIR=DIR")
    directory = Path(os.environ.get("MESHNET_MODEL_DIR", ""))
    assert (directory / "config.json").is_file(), "MESHNET_MODEL_DIR: not a model directory"
    return directory


def encode(model_dir):
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(model_dir).encode(TEXT)


@pytest.fixture(scope="module")
def real_golden(real_model):
    return reference(real_model, encode)


@pytest.mark.parametrize("part", [0, 1 / 24, 1 / 2, 7 / 8], ids=["one node", "1/24", "1/2", "7/8"])
def test_a_real_model_equals_transformers(real_model, real_golden, tmp_path, part):
    cut = round(part * real_golden.num_layers)
    ids = generate(real_model, tmp_path, cut, real_golden)
    # Nobody chose its prompt: after a step that rounding may decide, both are right.
    doubtful = [at for at, margin in enumerate(real_golden.margins) if margin <= LEAST_MARGIN]
    certain = doubtful[0] if doubtful else len(real_golden.greedy_ids)
    assert certain >= 8 or not doubtful, "no comparison: the first steps are too close"
    assert ids[:certain] == real_golden.greedy_ids[:certain]
    assert doubtful or len(ids) == len(real_golden.greedy_ids)
