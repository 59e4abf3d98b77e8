"""Golden values from the pinned transformers, for the tests of models/ and of whole nodes.

    make_golden.py tiny OUT               tiny random models, and what transformers makes of them
    make_golden.py smollm2 MODEL_DIR OUT  what transformers makes of 8 prompts with the real SmolLM2

Made at test time through a ctest fixture: nothing binary is committed. OUT/stamp holds what the
values depend on (this script, versions, model); while it is current the script does nothing.

OUT of `tiny`: a model directory NAME and NAME.golden.safetensors for each model, which holds
    input_ids [130]; logits.N [N, vocab] for the first N ids; logits_bfloat16 [130, vocab];
    hidden_states.embed and hidden_states.LAYER [130, hidden], each layer's own output, no final norm;
    greedy_ids [40] after the first 5 ids, and the logits [40, vocab] that chose them.
OUT of `smollm2`: golden.safetensors, for each prompt I
    prompt_ids.I; greedy_ids.I in float32, 64 or up to the eos id, which is included;
    logits_float32.I and logits_bfloat16.I [vocab] of the first step. Its metadata has the prompts.
"""

import argparse
import hashlib
import importlib.metadata
import json
import os
import shutil
import sys
from pathlib import Path

VERSIONED = ("torch", "transformers", "safetensors", "tokenizers")
TINY_LENGTHS = (1, 2, 3, 5, 63, 64, 65, 130)
TINY_PROMPT = 5
TINY_GREEDY = 40
SMOLLM2_GREEDY = 64
# Between the two best logits of a greedy step: above what the order of float32 sums can change.
LEAST_MARGIN = 5e-3


def stamp_of(*files: Path) -> str:
    digest = hashlib.sha256()
    for path in (Path(__file__), *files):
        with path.open("rb") as file:
            digest.update(hashlib.file_digest(file, "sha256").digest())
    versions = " ".join(f"{name}={importlib.metadata.version(name)}" for name in VERSIONED)
    return f"{digest.hexdigest()} {versions}\n"


def make_once(out: Path, stamp: str, make) -> None:
    """Runs make(folder) unless OUT is current; OUT appears whole or not at all."""
    stamp_file = out / "stamp"
    if stamp_file.is_file() and stamp_file.read_text() == stamp:
        return
    print(f"making {out}", flush=True)
    partial = out.with_name(out.name + ".partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    make(partial)
    (partial / "stamp").write_text(stamp)
    shutil.rmtree(out, ignore_errors=True)
    partial.rename(out)


def make_from_arguments(script: str, doc: str, make) -> None:
    """The main() of a script that makes one folder: SCRIPT OUT."""
    parser = argparse.ArgumentParser(
        description=doc, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("out", type=Path)
    out = parser.parse_args().out
    os.environ["TRANSFORMERS_VERBOSITY"] = "error"
    os.environ["TQDM_DISABLE"] = "1"
    make_once(out, stamp_of(Path(script)), make)


def tiny_configs() -> dict:
    from transformers import (
        Gemma3TextConfig,
        LlamaConfig,
        MistralConfig,
        Qwen2Config,
        Qwen3_5MoeTextConfig,
        Qwen3_5TextConfig,
        Qwen3Config,
        Qwen3MoeConfig,
        Qwen3NextConfig,
    )

    def config(kind=LlamaConfig, **changes):
        return kind(
            **{
                "vocab_size": 199,
                "hidden_size": 64,
                "intermediate_size": 88,
                "num_hidden_layers": 4,
                "num_attention_heads": 4,
                "num_key_value_heads": 2,
                "head_dim": 32,  # 4 x 32 is not 64
                "max_position_embeddings": 256,
                "rms_norm_eps": 1e-5,
                "tie_word_embeddings": False,
                "eos_token_id": 2,
                "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
                **changes,
            }
        )

    llama3 = {
        "rope_type": "llama3",
        "rope_theta": 500000.0,
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 64,  # wavelengths fall below, between and above
    }
    linear = {"rope_type": "linear", "rope_theta": 10000.0, "factor": 4.0}
    two_bases = {
        "full_attention": {"rope_type": "linear", "rope_theta": 50000.0, "factor": 2.0},
        "sliding_attention": {"rope_type": "default", "rope_theta": 1000.0},
    }
    yarn = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32}
    long_factor = [1.0 + 0.5 * i for i in range(16)]
    longrope = {
        "rope_type": "longrope",
        "short_factor": long_factor,  # see set_short_factor()
        "long_factor": long_factor,
        "original_max_position_embeddings": 32,
    }
    dynamic = {"rope_type": "dynamic", "factor": 4.0}
    experts = {"num_experts": 8, "num_experts_per_tok": 3, "moe_intermediate_size": 40}
    shared = {"shared_expert_intermediate_size": 24}
    hybrid = {
        "num_hidden_layers": 8,  # every fourth has full attention
        "linear_num_key_heads": 2,
        "linear_num_value_heads": 4,
        "linear_key_head_dim": 24,
        "linear_value_head_dim": 16,
        "linear_conv_kernel_dim": 4,
        "rope_parameters": {
            "rope_type": "default",
            "rope_theta": 10000.0,
            "partial_rotary_factor": 0.25,
        },
    }
    return {
        "dense": config(),
        "tied": config(tie_word_embeddings=True),
        "llama3": config(rope_parameters=llama3),
        "linear": config(rope_parameters=linear),
        "biases": config(attention_bias=True, mlp_bias=True, num_key_value_heads=4),
        "mistral": config(MistralConfig, sliding_window=None),
        "mistral_window": config(MistralConfig, sliding_window=8),
        "qwen2": config(Qwen2Config, tie_word_embeddings=True),
        "qwen2_window": config(
            Qwen2Config, use_sliding_window=True, sliding_window=7, max_window_layers=2
        ),
        "qwen3": config(Qwen3Config, attention_bias=True),
        "gemma3": config(
            Gemma3TextConfig,
            num_hidden_layers=7,
            sliding_window=8,
            query_pre_attn_scalar=24,
            rope_parameters=two_bases,
            layer_types=["sliding_attention", "sliding_attention", "full_attention"] * 2
            + ["sliding_attention"],
        ),
        "qwen3_moe": config(Qwen3MoeConfig, **experts, norm_topk_prob=True, mlp_only_layers=[1]),
        "qwen3_moe_unnormed": config(Qwen3MoeConfig, **experts, norm_topk_prob=False),
        "qwen3_next": config(Qwen3NextConfig, **hybrid, **experts, **shared, mlp_only_layers=[2]),
        "qwen3_5": config(Qwen3_5TextConfig, **hybrid),
        "qwen3_5_moe": config(
            Qwen3_5MoeTextConfig, **hybrid, **experts, **shared, intermediate_size=None
        ),
        "yarn": config(rope_parameters=yarn),
        "longrope": config(rope_parameters=longrope),
        "dynamic": config(rope_parameters=dynamic),
    }


# Those whose norms multiply by 1 + weight (but the gated norm of a delta-net layer, which does not).
ZERO_CENTRED = ("gemma3_text", "qwen3_next", "qwen3_5_text", "qwen3_5_moe_text")


def make_tiny_model(config, seed: int):
    """Weights wide enough that greedy output varies, norms away from 1, biases away from 0."""
    import torch
    from transformers import AutoModelForCausalLM

    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_config(config).eval()
    zero_centred = config.model_type in ZERO_CENTRED
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norm" in name and zero_centred and "linear_attn" not in name:
                parameter.uniform_(-0.5, 0.5)
            elif "norm" in name:
                parameter.uniform_(0.5, 1.5)
            elif "A_log" in name:
                parameter.uniform_(-1.0, 2.0)
            else:
                parameter.normal_(std=0.3)
    return model


def greedy_ids(model, prompt_ids, new_tokens: int, **options):
    """The new ids, the logits [new_tokens, vocab] that chose them, and the smallest margin between
    the two best of any step."""
    result = model.generate(
        prompt_ids[None],
        do_sample=False,
        max_new_tokens=new_tokens,
        output_logits=True,
        return_dict_in_generate=True,
        **options,
    )
    import torch

    best_two = [step[0].topk(2).values for step in result.logits]
    margin = min(float(best - second) for best, second in best_two)
    logits = torch.cat(result.logits).float()
    return result.sequences[0, len(prompt_ids) :], logits, margin


def tiny_greedy(model, input_ids) -> dict | None:
    """What greedy decoding makes of the first ids; None where two tokens are too close to call."""
    import torch

    ids, logits, margin = greedy_ids(model, input_ids[:TINY_PROMPT], TINY_GREEDY, eos_token_id=None)
    if margin < LEAST_MARGIN or len(set(ids[:24].tolist())) < 12:
        return None
    # generate() keeps state: its way and one pass over everything must agree before they are golden.
    whole = model(torch.cat([input_ids[:TINY_PROMPT], ids])[None]).logits[0, TINY_PROMPT - 1 : -1]
    difference = float((whole - logits).abs().max() / whole.abs().max())
    assert difference < 1e-4, difference
    return {"greedy_ids": ids, "greedy_logits": logits}


def tiny_model_and_goldens(config) -> tuple:
    """The first seed's model whose greedy ids vary and do not hang on the order of float32 sums."""
    import torch

    for seed in range(20):
        model = make_tiny_model(config, seed)
        input_ids = torch.randint(0, config.vocab_size, (max(TINY_LENGTHS),))
        goldens = tiny_greedy(model, input_ids)
        if goldens is not None:
            return model, {"input_ids": input_ids, **goldens, **tiny_forward(model, input_ids)}
    raise AssertionError(f"{config.model_type}: no seed gives clear and varied greedy ids")


def tiny_forward(model, input_ids) -> dict:
    """Logits of prefixes, and every layer's output."""
    goldens = {
        f"logits.{length}": model(input_ids[None, :length]).logits[0] for length in TINY_LENGTHS
    }

    def keep(name):
        def hook(_module, _inputs, output):
            goldens[f"hidden_states.{name}"] = output[0].clone()

        return hook

    hooks = [model.model.embed_tokens.register_forward_hook(keep("embed"))]
    for index, layer in enumerate(model.model.layers):
        hooks.append(layer.register_forward_hook(keep(index)))
    model(input_ids[None])
    for hook in hooks:
        hook.remove()
    return goldens


def set_short_factor(config_json: Path) -> None:
    """Another short_factor in a saved longrope model.

    transformers takes short_factor while a sequence is within the original length and long_factor
    for all of it from then on, so that keys it cached before were rotated by the other one: beyond
    that length its cached run is not its stateless run. A node that keeps state takes long_factor
    from the first token on; the model that makes the golden values has long_factor in both places.
    """
    config = json.loads(config_json.read_text())
    config["rope_parameters"]["short_factor"] = [1.0] * 16
    config_json.write_text(json.dumps(config, indent=2) + "\n")


def multimodal(model):
    """The model as the text part of its multimodal class, as that class saves it; None where there is none."""
    import torch
    from transformers import (
        Gemma3Config,
        Gemma3ForConditionalGeneration,
        Qwen3_5MoeConfig,
        Qwen3_5MoeForConditionalGeneration,
    )

    eyes = {"hidden_size": 32, "intermediate_size": 48}
    if model.config.model_type == "gemma3_text":
        eyes |= {
            "num_hidden_layers": 1,
            "num_attention_heads": 2,
            "image_size": 28,
            "patch_size": 14,
        }
        config_class, whole_class = Gemma3Config, Gemma3ForConditionalGeneration
        more = {"mm_tokens_per_image": 4}
    elif model.config.model_type == "qwen3_5_moe_text":
        eyes |= {"depth": 1, "num_heads": 2, "out_hidden_size": model.config.hidden_size}
        config_class, whole_class = Qwen3_5MoeConfig, Qwen3_5MoeForConditionalGeneration
        more = {}
    else:
        return None
    torch.manual_seed(0)
    text_config = model.config.to_dict()
    tied = model.config.tie_word_embeddings
    whole = whole_class(
        config_class(text_config=text_config, vision_config=eyes, tie_word_embeddings=tied, **more)
    ).eval()
    whole.model.language_model.load_state_dict(model.model.state_dict())
    whole.lm_head.load_state_dict(model.lm_head.state_dict())
    return whole


def make_tiny(out: Path) -> None:
    import torch
    from safetensors.torch import save_file
    from transformers import AutoModelForCausalLM

    with torch.inference_mode():
        for name, config in tiny_configs().items():
            model, goldens = tiny_model_and_goldens(config)
            model.save_pretrained(out / name)
            if name == "dense":
                model.save_pretrained(out / "dense_sharded", max_shard_size="150KB")
            # Loaded anew: model.to() would round the rotary frequencies as well, which nobody serves.
            rounded = AutoModelForCausalLM.from_pretrained(out / name, dtype=torch.bfloat16)
            goldens["logits_bfloat16"] = rounded(goldens["input_ids"][None]).logits[0]
            golden_file = out / f"{name}.golden.safetensors"
            save_file({key: value.contiguous() for key, value in goldens.items()}, golden_file)
            whole = multimodal(model)
            if whole is not None:
                whole.save_pretrained(out / f"{name}_multimodal")
                shutil.copy(golden_file, out / f"{name}_multimodal.golden.safetensors")
        set_short_factor(out / "longrope" / "config.json")


def smollm2_prompts(tokenizer) -> list[tuple[str, list[int]]]:
    long_text = " ".join(
        f"Rule {n}: the keeper of lamp {n} walks {n * 7 % 31} steps along the wall, then waits."
        for n in range(1, 60)
    )
    chat = tokenizer.apply_chat_template(
        [{"role": "user", "content": "What is the capital of France?"}],
        add_generation_prompt=True,
        tokenize=False,
    )
    texts = [
        "Hello",
        "The capital of France is",
        chat,
        "👍🏽 naïve 日本語のテキスト and 你好，世界 🎉 are",
        "def fibonacci(n):\n",
        long_text,
        "Photosynthesis is the process by which",
        "A prime number is",
    ]
    prompts = [(text, tokenizer.encode(text)) for text in texts]
    prompts[5] = (long_text, prompts[5][1][:700])
    assert len(prompts[0][1]) == 1 and len(prompts[5][1]) == 700, [len(ids) for _, ids in prompts]
    return prompts


def make_smollm2(model_dir: Path, out: Path) -> None:
    import torch
    from safetensors.torch import save_file
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(model_dir)
    goldens, texts = {}, {}
    with torch.inference_mode():
        for name, dtype in (("float32", torch.float32), ("bfloat16", torch.bfloat16)):
            model = AutoModelForCausalLM.from_pretrained(model_dir, dtype=dtype).eval()
            for index, (text, ids) in enumerate(smollm2_prompts(tokenizer)):
                prompt_ids = torch.tensor(ids)
                logits = model(prompt_ids[None], logits_to_keep=1).logits[0, -1].float()
                goldens[f"logits_{name}.{index}"] = logits.contiguous()
                if dtype != torch.float32:
                    continue
                texts[f"prompt.{index}"] = text
                goldens[f"prompt_ids.{index}"] = prompt_ids
                new_ids, _, margin = greedy_ids(model, prompt_ids, SMOLLM2_GREEDY)
                goldens[f"greedy_ids.{index}"] = new_ids.contiguous()
                print(
                    f"prompt {index}: {len(ids)} ids, {len(new_ids)} new, margin {margin:.4f}: "
                    f"{tokenizer.decode(new_ids[:16])!r}",
                    flush=True,
                )
                assert margin > LEAST_MARGIN, (index, margin)
    save_file(goldens, out / "golden.safetensors", metadata=texts)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True)
    tiny = commands.add_parser("tiny")
    tiny.add_argument("out", type=Path)
    smollm2 = commands.add_parser("smollm2")
    smollm2.add_argument("model_dir", type=Path)
    smollm2.add_argument("out", type=Path)
    arguments = parser.parse_args()

    os.environ["TRANSFORMERS_VERBOSITY"] = "error"
    os.environ["TQDM_DISABLE"] = "1"
    if arguments.command == "tiny":
        make_once(arguments.out, stamp_of(), make_tiny)
        return
    weights = arguments.model_dir / "model.safetensors"
    if not weights.is_file():
        sys.exit(f"{weights}: missing: run scripts/prepare-model smollm2")
    make_once(
        arguments.out,
        stamp_of(
            weights, arguments.model_dir / "config.json", arguments.model_dir / "tokenizer.json"
        ),
        lambda out: make_smollm2(arguments.model_dir, out),
    )


if __name__ == "__main__":
    main()
