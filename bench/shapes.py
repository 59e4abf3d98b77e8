"""The shapes of models whose weights are random: configurations of transformers. No token ends an answer."""

NO_SPECIAL_TOKENS = {"bos_token_id": None, "eos_token_id": None, "pad_token_id": None}


def smollm2():
    """SmolLM2 135M."""
    from transformers import LlamaConfig

    return LlamaConfig(
        vocab_size=49152,
        hidden_size=576,
        intermediate_size=1536,
        num_hidden_layers=30,
        num_attention_heads=9,
        num_key_value_heads=3,
        max_position_embeddings=8192,
        rms_norm_eps=1e-5,
        rope_parameters={"rope_type": "default", "rope_theta": 100000.0},
        tie_word_embeddings=True,
        **NO_SPECIAL_TOKENS,
    )


def qwen2():
    """Qwen2 0.5B."""
    from transformers import Qwen2Config

    return Qwen2Config(
        vocab_size=151936,
        hidden_size=896,
        intermediate_size=4864,
        num_hidden_layers=24,
        num_attention_heads=14,
        num_key_value_heads=2,
        max_position_embeddings=4096,
        rms_norm_eps=1e-6,
        rope_parameters={"rope_type": "default", "rope_theta": 1000000.0},
        tie_word_embeddings=True,
        **NO_SPECIAL_TOKENS,
    )


def qwen3_6():
    """Qwen3.6 made small: gated delta-net layers, full attention every fourth, experts in each."""
    from transformers import Qwen3_5MoeTextConfig

    return Qwen3_5MoeTextConfig(
        vocab_size=151936,
        hidden_size=1024,
        num_hidden_layers=12,
        num_attention_heads=8,
        num_key_value_heads=2,
        head_dim=128,
        linear_num_key_heads=8,
        linear_num_value_heads=16,
        linear_key_head_dim=128,
        linear_value_head_dim=128,
        num_experts=64,
        num_experts_per_tok=8,
        moe_intermediate_size=256,
        shared_expert_intermediate_size=256,
        max_position_embeddings=32768,
        tie_word_embeddings=True,
        **NO_SPECIAL_TOKENS,
    )


def save_random(config, folder) -> None:
    """Weights in bfloat16."""
    import torch
    from transformers import AutoModelForCausalLM, GenerationConfig

    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    model.generation_config = GenerationConfig()
    model.save_pretrained(folder)
