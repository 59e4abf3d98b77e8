import shutil

import pytest
from cluster import HOME, Cluster

TOKENIZER_FILES = [
    "tokenizer.json",
    "tokenizer_config.json",
    "chat_template.jinja",
    "generation_config.json",
]


@pytest.fixture(scope="session")
def smollm2():
    directory = HOME / "models/smollm2"
    assert (directory / "config.json").exists(), "run scripts/prepare-model smollm2"
    return directory


@pytest.fixture(scope="session")
def tiny(smollm2, tmp_path_factory):
    """A random Llama of 4 layers with SmolLM2's tokenizer: quick to load and to run."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=49152,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        max_position_embeddings=256,
        initializer_range=0.3,
        tie_word_embeddings=True,
        bos_token_id=1,
        eos_token_id=2,
    )
    directory = tmp_path_factory.mktemp("tiny")
    LlamaForCausalLM(config).to(torch.bfloat16).save_pretrained(directory)
    for name in TOKENIZER_FILES:
        shutil.copy(smollm2 / name, directory / name)
    return directory


@pytest.fixture(scope="module")
def pair(tiny, tmp_path_factory):
    """Two nodes that hold the tiny model, ready; shared by the tests of a module that do not stop them."""
    with Cluster(tmp_path_factory.mktemp("pair"), tiny, {"head": "0-1", "tail": "2-3"}) as cluster:
        yield cluster.start().wait_ready()
