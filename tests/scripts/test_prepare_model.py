"""scripts/prepare-model, and that the model it makes is SmolLM2 to the letter."""

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest
from safetensors import safe_open
from transformers import AutoTokenizer

ROOT = Path(__file__).resolve().parents[2]


def prepare(*arguments, root=ROOT):
    command = [root / "scripts" / "prepare-model", *arguments]
    return subprocess.run(command, capture_output=True, text=True)


@pytest.fixture(scope="module")
def model():
    """The default directory."""
    result = prepare("smollm2")
    assert result.returncode == 0, result.stderr
    return Path(result.stdout.splitlines()[-1].split(": ", 1)[1].split(" (licence")[0])


@pytest.fixture(scope="module")
def tokenizer(model):
    return AutoTokenizer.from_pretrained(model)


def test_unknown_model_is_a_usage_error():
    result = prepare("gpt5")
    assert result.returncode == 1
    assert "usage: scripts/prepare-model smollm2 [DIR]" in result.stderr


def test_second_run_needs_neither_python_nor_network(model, tmp_path):
    shutil.copytree(ROOT / "scripts", tmp_path / "scripts")  # a clone that was never set up
    result = prepare("smollm2", model, root=tmp_path)
    assert result.returncode == 0
    assert result.stdout == f"SmolLM2-135M-Instruct is ready: {model}\n"
    assert not (tmp_path / ".venv").exists()


def test_foreign_files_are_not_touched(model, tmp_path):
    (tmp_path / "my notes.txt").write_text("mine")
    (tmp_path / "config.json").write_text("{}")
    result = prepare("smollm2", tmp_path)
    assert result.returncode == 1
    assert f"{tmp_path} holds files that are not this model's" in result.stderr
    assert sorted(os.listdir(tmp_path)) == ["config.json", "my notes.txt"]


def test_damaged_model_is_made_anew(model, tmp_path):
    damaged = tmp_path / "model"
    damaged.mkdir()
    (damaged / "config.json").write_text("{}")
    result = prepare("smollm2", damaged)
    assert result.returncode == 0, result.stderr
    assert [line[:5] for line in result.stdout.splitlines()[:3]] == ["[1/3]", "[2/3]", "[3/3]"]
    assert "licence: Apache-2.0" in result.stdout
    assert sorted(os.listdir(damaged)) == sorted(os.listdir(model))
    assert (damaged / "config.json").read_bytes() == (model / "config.json").read_bytes()
    assert os.listdir(tmp_path) == ["model"]


def test_licence_lies_beside(model):
    assert "Apache License" in (model / "LICENSE").read_text()
    assert "HuggingFaceTB" in (model / "README.md").read_text()


def test_config(model):
    config = json.loads((model / "config.json").read_text())
    wanted = {
        "model_type": "llama",
        "architectures": ["LlamaForCausalLM"],
        "dtype": "bfloat16",
        "hidden_size": 576,
        "intermediate_size": 1536,
        "num_hidden_layers": 30,
        "num_attention_heads": 9,
        "num_key_value_heads": 3,
        "head_dim": 64,
        "vocab_size": 49152,
        "max_position_embeddings": 8192,
        "rms_norm_eps": 1e-5,
        "rope_parameters": {"rope_theta": 100000.0, "rope_type": "default"},
        "tie_word_embeddings": True,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "pad_token_id": 2,
    }
    assert {key: config.get(key) for key in wanted} == wanted
    generation = json.loads((model / "generation_config.json").read_text())
    assert [generation[f"{name}_token_id"] for name in ("bos", "eos", "pad")] == [1, 2, 2]


def test_weights_are_bfloat16_with_tied_embeddings(model):
    with safe_open(model / "model.safetensors", "pt") as file:
        names = set(file.keys())
        assert len(names) == 30 * 9 + 2
        assert "model.embed_tokens.weight" in names and "lm_head.weight" not in names
        assert {file.get_slice(name).get_dtype() for name in names} == {"BF16"}


@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        ("<|im_start|>user\nhi<|im_end|>", ["<|im_start|>", "user", "Ċ", "hi", "<|im_end|>"]),
        # Every digit is cut out before anything else, so the spaces before it stay together.
        ("in 1234", ["in", "Ġ", "1", "2", "3", "4"]),
        ("a  5", ["a", "ĠĠ", "5"]),
        ("x\n\n  y", ["x", "ĊĊĠ", "Ġy"]),
        ("don't I'll", ["don", "'t", "ĠI", "'ll"]),
    ],
)
def test_text_is_cut_as_smollm_cuts_it(tokenizer, text, tokens):
    ids = tokenizer(text)["input_ids"]
    assert tokenizer.convert_ids_to_tokens(ids) == tokens
    assert tokenizer.decode(ids) == text


def test_special_tokens(tokenizer):
    assert tokenizer.convert_tokens_to_ids(["<|endoftext|>", "<|im_start|>", "<|im_end|>"]) == [
        0,
        1,
        2,
    ]
    assert (tokenizer.bos_token_id, tokenizer.eos_token_id, tokenizer.pad_token_id) == (1, 2, 2)
    assert tokenizer("hello")["input_ids"] == [28120]  # nothing is added in front


def test_chat_template_has_the_default_system_prompt(tokenizer):
    question = {"role": "user", "content": "What is the capital of France?"}
    assert tokenizer.apply_chat_template(
        [question], tokenize=False, add_generation_prompt=True
    ) == (
        "<|im_start|>system\n"
        "You are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
        "<|im_start|>user\nWhat is the capital of France?<|im_end|>\n"
        "<|im_start|>assistant\n"
    )
    own = [{"role": "system", "content": "Be brief."}, question]
    assert tokenizer.apply_chat_template(own, tokenize=False).startswith(
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\n"
    )
