"""Rotary frequencies from the pinned transformers, for tests/models/rope_test.cpp.

    make_rope_golden.py OUT

OUT/rope.json is a list of {"name", "config", "inv_freq", "attention_scaling"}, in Gemma's form with
"sliding_inv_freq" as well. `config` is as a config.json has it, before transformers reads it.
Frequencies are those of a sequence that fills max_position_embeddings.
"""

import copy
import json
from pathlib import Path

from make_golden import make_from_arguments

BASE = {
    "model_type": "llama",
    "hidden_size": 64,
    "num_attention_heads": 4,
    "head_dim": 32,
    "max_position_embeddings": 128,
}
QWEN3_NEXT = {"model_type": "qwen3_next", "head_dim": 64}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 500000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
DYNAMIC = {"rope_type": "dynamic", "factor": 2.7}


def longrope(frequencies: int, **changes) -> dict:
    return {
        "rope_type": "longrope",
        "short_factor": [1.0 + 0.01 * i for i in range(frequencies)],
        "long_factor": [1.1 + 0.7 * i for i in range(frequencies)],
        "original_max_position_embeddings": 32,
        **changes,
    }


def flat_cases() -> dict:
    """rope_parameters of Llama, by name."""
    wide = {"rope_theta": 5e6, "factor": 2.5, "original_max_position_embeddings": 4096}
    return {
        "default": {"rope_type": "default", "rope_theta": 1000000},
        "linear": {"rope_type": "linear", "rope_theta": 10000.0, "factor": 2.5},
        "dynamic": DYNAMIC,
        "llama3": LLAMA3,
        "llama3_other": {**LLAMA3, "factor": 3, "low_freq_factor": 1.5, "high_freq_factor": 7},
        "llama3_without_original": {
            key: LLAMA3[key] for key in LLAMA3 if not key.startswith("original")
        },
        "yarn": YARN,
        "yarn_attention_factor": {**YARN, "attention_factor": 1.0},
        "yarn_other_attention_factor": {**YARN, "attention_factor": 0.7, "mscale": 2.0},
        "yarn_mscale": {**YARN, "mscale": 1.3, "mscale_all_dim": 0.4},
        "yarn_mscale_alone": {**YARN, "mscale": 1.3},
        "yarn_betas": {**YARN, "beta_fast": 4, "beta_slow": 2.5},
        "yarn_equal_betas": {**YARN, "beta_fast": 1, "beta_slow": 1},
        "yarn_not_truncated": {**YARN, "truncate": False},
        "yarn_wide": {**YARN, **wide},
        "yarn_without_factor": {**YARN, "factor": None},
        "yarn_small_factor": {**YARN, "factor": 0.5},
        "yarn_without_original": {"rope_type": "yarn", "factor": 4.0},
        "longrope": longrope(16),
        "longrope_short": longrope(16, original_max_position_embeddings=128, factor=4.0),
        "longrope_factor": longrope(16, factor=32),
        "longrope_attention_factor": longrope(16, attention_factor=1.19),
    }


def configs() -> dict:
    """Whole configurations, by name."""
    cases = {name: BASE | {"rope_parameters": rope} for name, rope in flat_cases().items()}
    for name, rope in (("yarn", YARN), ("llama3", LLAMA3), ("linear", flat_cases()["linear"])):
        old = {key: value for key, value in rope.items() if key not in ("rope_type", "rope_theta")}
        for key in ("type", "rope_type"):
            cases[f"{name}_old_form_{key}"] = BASE | {
                "rope_theta": 20000.0,
                "rope_scaling": old | {key: name},
            }
    cases["nothing"] = BASE
    cases["yarn_original_at_top_level"] = BASE | {
        "rope_parameters": YARN,
        "original_max_position_embeddings": 64,
    }

    partial = BASE | QWEN3_NEXT
    cases["partial_of_the_family"] = partial
    cases["partial_inside"] = partial | {
        "partial_rotary_factor": 0.25,
        "rope_parameters": {"rope_theta": 1e7, "partial_rotary_factor": 0.5},
    }
    cases["partial_at_top_level"] = partial | {
        "partial_rotary_factor": 0.42,
        "head_dim": 40,  # 16.8 of them
        "rope_parameters": {"rope_type": "default", "rope_theta": 1e7},
    }
    cases["partial_mrope"] = partial | {
        "rope_parameters": {
            "rope_type": "default",
            "mrope_section": [3, 3, 2],
            "mrope_interleaved": True,
        }
    }
    cases["partial_whole"] = partial | {"partial_rotary_factor": 1.0}
    for name, rope in (("linear", {"rope_type": "linear", "factor": 2}), ("dynamic", DYNAMIC)):
        cases[f"partial_{name}"] = partial | {"rope_parameters": rope}
    for name, rope in (("llama3", LLAMA3), ("yarn", YARN), ("longrope", longrope(8))):
        cases[f"partial_{name}"] = partial | {"rope_parameters": rope}

    gemma3 = BASE | {"model_type": "gemma3_text", "num_hidden_layers": 6}
    sliding = {"rope_type": "default", "rope_theta": 20000.0}
    cases["gemma3"] = gemma3
    cases["gemma3_new_form"] = gemma3 | {
        "rope_parameters": {"full_attention": LLAMA3, "sliding_attention": sliding}
    }
    cases["gemma3_full_alone"] = gemma3 | {"rope_parameters": {"full_attention": YARN}}
    cases["gemma3_old_form"] = gemma3 | {
        "rope_theta": 2e6,
        "rope_local_base_freq": 5e3,
        "rope_scaling": {"rope_type": "linear", "factor": 8.0},
    }
    return cases


def frequencies(config, layer_type=None):
    """inv_freq and attention_scaling as the modelling files have them."""
    import torch
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
    from transformers.models.gemma3.modeling_gemma3 import Gemma3RotaryEmbedding
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding
    from transformers.models.qwen3_next.modeling_qwen3_next import Qwen3NextRotaryEmbedding

    rope = config.rope_parameters[layer_type] if layer_type else config.rope_parameters
    layer = {"layer_type": layer_type} if layer_type else {}
    if rope["rope_type"] == "default":
        embeddings = {
            "llama": LlamaRotaryEmbedding,
            "qwen3_next": Qwen3NextRotaryEmbedding,
            "gemma3_text": Gemma3RotaryEmbedding,
        }
        return embeddings[config.model_type].compute_default_rope_parameters(config, **layer)
    compute = ROPE_INIT_FUNCTIONS[rope["rope_type"]]
    whole = compute(config, seq_len=config.max_position_embeddings, **layer)
    if rope["rope_type"] != "longrope":  # the one type whose frequencies depend on the length
        assert torch.equal(whole[0], compute(config, seq_len=1, **layer)[0]), rope
    return whole


def make(out: Path) -> None:
    from transformers import AutoConfig

    results = []
    for name, raw in configs().items():
        values = {key: copy.deepcopy(value) for key, value in raw.items() if key != "model_type"}
        config = AutoConfig.for_model(raw["model_type"], **values)
        per_layer_type = raw["model_type"] == "gemma3_text"
        inv_freq, attention_scaling = frequencies(
            config, "full_attention" if per_layer_type else None
        )
        result = {
            "name": name,
            "config": raw,
            "inv_freq": inv_freq.tolist(),
            "attention_scaling": attention_scaling,
        }
        if per_layer_type:
            result["sliding_inv_freq"] = frequencies(config, "sliding_attention")[0].tolist()
        results.append(result)
    (out / "rope.json").write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    make_from_arguments(__file__, __doc__, make)
