"""Golden values of the gated delta rule, its convolution and its layer, from the pinned transformers.

    make_delta_golden.py OUT

Made at test time through a ctest fixture, as by make_golden.py. OUT holds

rule.safetensors, for each NAME of rule_cases():
    NAME.query NAME.key [130, k heads, k dim], NAME.value [130, v heads, v dim], NAME.g, NAME.beta
    [130, v heads], NAME.state [v heads, k dim, v dim] before the first token; what transformers'
    two functions make of them: NAME.recurrent, NAME.recurrent_state, NAME.chunk, NAME.chunk_state.
conv.safetensors, for each DTYPE, float32 and bfloat16:
    DTYPE.x [9, channels], DTYPE.weight [channels, 1, 4] (as checkpoints store it), DTYPE.state
    [channels, 3] before the first token; DTYPE.y [9, channels]; DTYPE.fresh [9, channels], from
    nothing.
FAMILY/model.safetensors, qwen3_next and qwen3_5: the parameters of one layer, named linear_attn.*.
FAMILY.safetensors: x [130, hidden], and for each DTYPE
    DTYPE.out [130, hidden] of one forward without a cache; DTYPE.state [v heads, k dim, v dim] and
    DTYPE.conv_state [channels, 3] after it; DTYPE.cached.N [N + 5, hidden] for N in 1, 2, 3, 4: N
    rows at once, then 5 one by one.
"""

from pathlib import Path

from make_golden import make_from_arguments

TOKENS = 130  # neither a multiple of 64 nor of 32
CONV_TOKENS = 9
DECODES = 5


def rule_cases() -> dict:
    """name: (k heads, v heads, k dim, v dim, dtype, how strong decays are)"""
    import torch

    return {
        "odd": (2, 6, 24, 40, torch.float32, 1.0),
        "real": (2, 4, 128, 128, torch.float32, 0.1),
        "strong": (3, 3, 32, 64, torch.float32, 60.0),
        "bfloat16": (2, 4, 128, 128, torch.bfloat16, 0.3),
    }


def make_rule(out: Path) -> None:
    import torch
    from safetensors.torch import save_file
    from transformers.models.qwen3_5 import modeling_qwen3_5 as reference

    functions = {
        "recurrent": reference.torch_recurrent_gated_delta_rule,
        "chunk": reference.torch_chunk_gated_delta_rule,
    }
    goldens = {}
    for name, (k_heads, v_heads, k_dim, v_dim, dtype, decay) in rule_cases().items():
        inputs = {
            "query": torch.randn(TOKENS, k_heads, k_dim).to(dtype),
            "key": torch.randn(TOKENS, k_heads, k_dim).to(dtype),
            "value": torch.randn(TOKENS, v_heads, v_dim).to(dtype),
            "g": -decay * torch.rand(TOKENS, v_heads),
            "beta": torch.rand(TOKENS, v_heads),
        }
        state = torch.randn(v_heads, k_dim, v_dim)
        goldens |= {f"{name}.{key}": value for key, value in inputs.items()}
        goldens[f"{name}.state"] = state
        for function, run in functions.items():
            result, last = run(
                **{key: value[None] for key, value in inputs.items()},
                initial_state=state[None].clone(),
                output_final_state=True,
                use_qk_l2norm_in_kernel=True,
            )
            goldens[f"{name}.{function}"] = result[0]
            goldens[f"{name}.{function}_state"] = last[0]
        agree(goldens[f"{name}.chunk_state"], goldens[f"{name}.recurrent_state"], 1e-4)
    save_file({key: value.contiguous() for key, value in goldens.items()}, out / "rule.safetensors")


def agree(one, other, tolerance: float) -> None:
    """The reference's own ways must agree before one of them is golden."""
    difference = float((one.float() - other.float()).abs().max() / other.float().abs().max())
    assert difference < tolerance, difference


def make_conv(out: Path) -> None:
    import torch
    from safetensors.torch import save_file
    from transformers.models.qwen3_5 import modeling_qwen3_5 as reference

    goldens = {}
    channels, kernel = 37, 4
    for name, dtype in (("float32", torch.float32), ("bfloat16", torch.bfloat16)):
        x = torch.randn(CONV_TOKENS, channels).to(dtype)
        weight = torch.randn(channels, 1, kernel).to(dtype)
        state = torch.randn(channels, kernel - 1).to(dtype)
        goldens |= {f"{name}.x": x, f"{name}.weight": weight, f"{name}.state": state}
        whole = torch.cat([state, x.T], dim=1)[None]
        taps = weight.squeeze(1)
        y = reference.causal_conv1d_fn(whole, taps, activation="silu")[0, :, kernel - 1 :].T
        # Token by token, with a state that is as wide as the kernel, as their cache's is.
        rolling = torch.nn.functional.pad(state, (1, 0))[None].clone()
        for t in range(CONV_TOKENS):
            step = x[t][None, :, None]
            one = reference.causal_conv1d_update(step, rolling, taps, activation="silu")
            agree(one[0, :, 0], y[t], 1e-2)
        fresh = reference.causal_conv1d_fn(x.T[None], taps, activation="silu")[0].T
        goldens |= {f"{name}.y": y, f"{name}.fresh": fresh}
    save_file({key: value.contiguous() for key, value in goldens.items()}, out / "conv.safetensors")


def make_layer(family: str, config, kind, out: Path) -> None:
    import copy

    import torch
    from safetensors.torch import save_file
    from transformers import DynamicCache

    layer = kind(config, 0).eval()
    for name, parameter in layer.named_parameters():
        if name == "norm.weight":
            parameter.uniform_(0.5, 1.5)
        elif name == "A_log":
            parameter.uniform_(-3.0, 2.0)
        elif name == "conv1d.weight":
            parameter.normal_(std=0.5)
        else:
            parameter.normal_(std=0.3)
    (out / family).mkdir()
    parameters = {f"linear_attn.{key}": value for key, value in layer.state_dict().items()}
    save_file(parameters, out / family / "model.safetensors")

    x = torch.randn(TOKENS, config.hidden_size)
    goldens = {"x": x}
    for name, dtype in (("float32", torch.float32), ("bfloat16", torch.bfloat16)):
        model = copy.deepcopy(layer).to(dtype)
        rows = x.to(dtype)[None]
        cache = DynamicCache(config=config)
        whole = model(rows)[0]
        agree(model(rows, cache_params=cache)[0], whole, 1e-6)
        goldens[f"{name}.out"] = whole
        goldens[f"{name}.state"] = cache.layers[0].recurrent_states[0][0]
        goldens[f"{name}.conv_state"] = cache.layers[0].conv_states[0][0, :, 1:]
        for first in range(1, 5):
            cache = DynamicCache(config=config)
            parts = [model(rows[:, :first], cache_params=cache)]
            for t in range(first, first + DECODES):
                parts.append(model(rows[:, t : t + 1], cache_params=cache))
            cached = torch.cat(parts, dim=1)[0]
            agree(cached, whole[: first + DECODES], 1e-5 if dtype == torch.float32 else 2e-2)
            goldens[f"{name}.cached.{first}"] = cached
    save_file(
        {key: value.clone().contiguous() for key, value in goldens.items()},
        out / f"{family}.safetensors",
    )


def make(out: Path) -> None:
    import torch
    from transformers import Qwen3_5TextConfig, Qwen3NextConfig
    from transformers.models.qwen3_5.modeling_qwen3_5 import Qwen3_5GatedDeltaNet
    from transformers.models.qwen3_next.modeling_qwen3_next import Qwen3NextGatedDeltaNet

    shape = {
        "hidden_size": 96,
        "num_hidden_layers": 1,
        "layer_types": ["linear_attention"],
        "linear_num_key_heads": 2,
        "linear_num_value_heads": 6,
        "linear_key_head_dim": 24,
        "linear_value_head_dim": 48,
        "linear_conv_kernel_dim": 4,
        "rms_norm_eps": 1e-5,
    }
    torch.manual_seed(0)
    with torch.inference_mode():
        make_rule(out)
        make_conv(out)
        make_layer("qwen3_next", Qwen3NextConfig(**shape), Qwen3NextGatedDeltaNet, out)
        make_layer("qwen3_5", Qwen3_5TextConfig(**shape), Qwen3_5GatedDeltaNet, out)


if __name__ == "__main__":
    make_from_arguments(__file__, __doc__, make)
