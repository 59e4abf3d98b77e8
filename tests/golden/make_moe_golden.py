"""Golden values of transformers' mixtures of experts, for tests/models/moe_golden_test.cpp.

    make_moe_golden.py OUT

OUT/NAME is a random one-layer model as transformers saves it, and OUT/NAME_fused the same one with
the experts in two tensors, as Qwen publishes Qwen3.5-MoE. OUT/NAME.golden.safetensors is what its
sparse MoE block makes of x [64, hidden]:
    router_logits [64, num_experts], index and weights [64, top_k], output [64, hidden] in float32;
    index_bfloat16 and output_bfloat16 of the same in bfloat16.
The rows of x are such that the experts are no matter of rounding, not even in bfloat16.
"""

from pathlib import Path

from make_golden import make_from_arguments

ROWS = 64
# Between the last logit that is chosen and the first that is not, as a part of the largest: several
# roundings of bfloat16. And between neighbours in a token's list, so that their order is known.
LEAST_MARGIN = 0.03
LEAST_STEP = 1e-4


def moe_configs() -> dict:
    from transformers import Qwen3MoeConfig, Qwen3NextConfig
    from transformers.models.qwen3_5_moe import Qwen3_5MoeTextConfig

    def config(kind, hidden_size, num_experts, top_k, moe_size, **changes):
        return kind(
            vocab_size=32,
            hidden_size=hidden_size,
            intermediate_size=88,
            num_hidden_layers=1,
            num_attention_heads=2,
            num_key_value_heads=1,
            head_dim=32,
            num_experts=num_experts,
            num_experts_per_tok=top_k,
            moe_intermediate_size=moe_size,
            **changes,
        )

    return {
        "qwen3_moe": config(Qwen3MoeConfig, 64, 8, 2, 40, norm_topk_prob=False),
        "qwen3_moe_norm": config(Qwen3MoeConfig, 96, 9, 4, 64, norm_topk_prob=True),
        "qwen3_next": config(
            Qwen3NextConfig, 64, 16, 5, 32, norm_topk_prob=True, shared_expert_intermediate_size=96
        ),
        "qwen3_5_moe": config(
            Qwen3_5MoeTextConfig, 128, 12, 3, 64, shared_expert_intermediate_size=32
        ),
    }


def clear_rows(block, hidden_size: int):
    """Rows of noise whose experts are clear."""
    import torch

    x = torch.randn(64 * ROWS, hidden_size)
    logits = block.gate(x)[0]
    top = logits.sort(dim=-1, descending=True).values[:, : block.gate.top_k + 1]
    steps = top[:, :-1] - top[:, 1:]
    largest = logits.abs().amax(dim=-1)
    clear = (steps[:, -1] > LEAST_MARGIN * largest) & (steps.amin(dim=-1) > LEAST_STEP)
    assert clear.sum() >= ROWS, clear.sum()
    return x[clear][:ROWS].contiguous()


def goldens_of(block, hidden_size: int) -> dict:
    import torch

    x = clear_rows(block, hidden_size)
    logits, weights, index = block.gate(x)
    goldens = {"x": x, "router_logits": logits, "weights": weights, "index": index}
    goldens["output"] = block(x[None])[0]
    rounded = block.to(torch.bfloat16)
    x = x.to(torch.bfloat16)
    goldens["index_bfloat16"] = rounded.gate(x)[2]
    goldens["output_bfloat16"] = rounded(x[None])[0]
    return goldens


def make(out: Path) -> None:
    import torch
    from safetensors.torch import save_file
    from transformers import AutoModelForCausalLM

    with torch.inference_mode():
        for seed, (name, config) in enumerate(moe_configs().items()):
            torch.manual_seed(seed)
            model = AutoModelForCausalLM.from_config(config).eval()
            for parameter in model.parameters():
                parameter.normal_(std=0.3)
            model.save_pretrained(out / name)
            (out / f"{name}_fused").mkdir()
            save_file(
                {key: value.contiguous() for key, value in model.state_dict().items()},
                out / f"{name}_fused" / "model.safetensors",
            )
            save_file(
                goldens_of(model.model.layers[0].mlp, config.hidden_size),
                out / f"{name}.golden.safetensors",
            )


if __name__ == "__main__":
    make_from_arguments(__file__, __doc__, make)
