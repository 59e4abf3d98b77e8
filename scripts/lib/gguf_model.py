"""GGUF → an ordinary Hugging Face directory in bfloat16: what scripts/MODEL/convert.py share.

transformers reads weights, configuration and tokenizer. It leaves traces of where it read them and of
how GGUF holds numbers; these are put right here, what is particular to a model in its own convert.py.
"""

import hashlib
import json
import sys
from collections.abc import Callable
from pathlib import Path


def check_sha256(file: Path, expected: str) -> None:
    with file.open("rb") as opened:
        got = hashlib.file_digest(opened, "sha256").hexdigest()
    if got != expected:
        sys.exit(f"{file.name}: sha256 expected {expected}, got {got}")


def write_json(path: Path, data: dict) -> None:
    path.write_text(json.dumps(data, indent=2, ensure_ascii=False) + "\n")


def edit_json(path: Path, drop: tuple[str, ...], **values) -> None:
    data = json.loads(path.read_text())
    write_json(path, {key: value for key, value in data.items() if key not in drop} | values)


def save_model(gguf: Path, out: Path, rms_norm_eps: float):
    """Weights, config.json and generation_config.json. Returns the configuration."""
    import torch
    from transformers import AutoModelForCausalLM, GenerationConfig, GgufConfig

    model = AutoModelForCausalLM.from_pretrained(
        gguf.parent,
        gguf_file=gguf.name,
        quantization_config=GgufConfig(dequantize=True),
        dtype=torch.bfloat16,
    )
    config = model.config
    if not config.tie_word_embeddings:
        sys.exit(f"{gguf.name}: expected tied embeddings")
    # GGUF holds this as float32, so that 1e-5 reads as 9.999999747378752e-06.
    if abs(config.rms_norm_eps - rms_norm_eps) > 1e-6 * rms_norm_eps:
        sys.exit(f"{gguf.name}: rms_norm_eps expected {rms_norm_eps}, got {config.rms_norm_eps}")
    config.rms_norm_eps = rms_norm_eps
    model.generation_config = GenerationConfig(
        bos_token_id=config.bos_token_id,
        eos_token_id=config.eos_token_id,
        pad_token_id=config.pad_token_id,
    )
    model.save_pretrained(out)
    edit_json(out / "config.json", drop=("_model_name_or_path", "unk_token_id"))
    return config


def save_tokenizer(
    gguf: Path, out: Path, max_length: int, change: Callable = lambda tokenizer: None
) -> None:
    """tokenizer.json and tokenizer_config.json, after `change`."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
    change(tokenizer)
    tokenizer.save_pretrained(out)
    edit_json(
        out / "tokenizer_config.json",
        drop=("is_local", "local_files_only", "backend"),
        tokenizer_class="PreTrainedTokenizerFast",  # the name that every version knows
        clean_up_tokenization_spaces=False,
        model_max_length=max_length,
    )


def finish(out: Path, about: str) -> None:
    (out / "README.md").write_text(about)
    for path in out.iterdir():
        path.chmod(0o644)
