"""Whole nodes against transformers on the shape of Qwen2.5 0.5B: greedy ids in float32, cached, at three cuts and unsplit.

The weights are random (bench/common.py makes them once); the prompt is one whose greedy steps leave no doubt. With
MESHNET_REAL_MODEL_TESTS=1 and MESHNET_MODEL_DIR the same runs on a real model directory.
"""

import os
import random
import sys
from pathlib import Path

import pytest
from cluster import ROOT
from golden.greedy import TOKENS, generate, load_reference, reference
from golden.make_golden import LEAST_MARGIN

PROMPT = random.Random(47).choices(range(1000, 40000), k=12)  # least margin 0.0097
TEXT = "The three largest cities of France are"
CUTS = {"one node": 0, "cut at 1": 1, "cut at 12": 12, "cut at 21": 21}


@pytest.fixture(scope="module")
def qwen2_shape(smollm2):  # whose tokenizer it takes
    sys.path.append(str(ROOT / "bench"))
    import common

    return common.qwen2_shape()


@pytest.fixture(scope="module")
def golden(qwen2_shape):
    made = reference(load_reference(qwen2_shape), PROMPT)
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
    return reference(load_reference(real_model), encode(real_model))


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
