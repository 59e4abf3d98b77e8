"""What the benchmarks share: models, and how results are written down."""

import fcntl
import importlib.metadata
import json
import os
import platform
import random
import shutil
import subprocess
import sys
from pathlib import Path

import shapes

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
os.environ.setdefault("TQDM_DISABLE", "1")
ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests"))  # cluster.py and golden/
HOME = Path(os.environ.get("MESHNET_HOME") or Path.home() / ".cache/meshnet")
SMOLLM2 = HOME / "models/smollm2"


def make_once(name: str, make) -> Path:
    """HOME/models/NAME, made by make(folder) the first time; it appears whole or not at all."""
    folder = HOME / "models" / name
    (HOME / "lock").mkdir(parents=True, exist_ok=True)
    with open(HOME / "lock" / name, "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.exists():
            print(f"making {folder}", flush=True)
            partial = folder.with_name(name + ".partial")
            shutil.rmtree(partial, ignore_errors=True)
            partial.mkdir()
            make(partial)
            partial.rename(folder)
    return folder


def write_json(file: Path, value) -> None:
    file.write_text(json.dumps(value, indent=1, ensure_ascii=False) + "\n")


def tokenizer_of_size(size: int) -> dict:
    """SmolLM2's tokenizer with words added up to `size`, so that every id has a text."""
    tokenizer = json.loads((SMOLLM2 / "tokenizer.json").read_text())
    vocab = tokenizer["model"]["vocab"]
    vocab |= {f"Ġword{number}": number for number in range(len(vocab), size)}
    return tokenizer


def random_model(name: str, config) -> Path:
    """With a tokenizer."""

    def make(folder: Path):
        shapes.save_random(config(), folder)
        vocab_size = json.loads((folder / "config.json").read_text())["vocab_size"]
        write_json(folder / "tokenizer.json", tokenizer_of_size(vocab_size))

    return make_once(name, make)


def qwen2_shape() -> Path:
    return random_model("bench-qwen2-0.5b", shapes.qwen2)


def qwen3_6_shape() -> Path:
    return random_model("bench-qwen3.6", shapes.qwen3_6)


def smollm2_without_eos() -> Path:
    """SmolLM2 that goes on until max_tokens."""

    def make(folder: Path):
        for name in ("model.safetensors", "tokenizer.json"):
            (folder / name).symlink_to(SMOLLM2 / name)
        config = json.loads((SMOLLM2 / "config.json").read_text())
        write_json(folder / "config.json", config | {"eos_token_id": None, "pad_token_id": None})
        write_json(folder / "generation_config.json", {})

    return make_once("bench-smollm2", make)


def read_config(model: Path) -> dict:
    config = json.loads((model / "config.json").read_text())
    return config.get("text_config", config)


def num_layers(model: Path) -> int:
    return read_config(model)["num_hidden_layers"]


def prompt_of(tokens: int) -> list[int]:
    """Ids that every model here has, and that are no special token."""
    return random.Random(tokens).choices(range(1000, 40000), k=tokens)


def machine() -> dict:
    """Where it was measured."""
    info = Path("/proc/cpuinfo").read_text()
    cpu = next((line for line in info.splitlines() if line.startswith("model name")), "?: ?")
    commit = subprocess.run(
        ["git", "-C", ROOT, "describe", "--always", "--dirty"], capture_output=True, text=True
    )
    return {
        "cpu": cpu.split(":")[1].strip(),
        "bf16 instructions": "avx512_bf16" in info,
        "cores": os.cpu_count(),
        "load before": round(os.getloadavg()[0], 1),
        "python": platform.python_version(),
        **{name: importlib.metadata.version(name) for name in ("torch", "transformers")},
        "commit": commit.stdout.strip() or "?",
    }


def describe(where: dict) -> str:
    text = ", ".join(f"{name} {value}" for name, value in where.items())
    busy = where["load before"] > 0.5
    return text + ("\nSomething else is running here: do not trust the numbers." if busy else "")


def print_table(header: list[str], rows: list[list]) -> None:
    """The first column to the left, numbers to the right."""
    cells = [header] + [
        [f"{cell:.2f}" if isinstance(cell, float) else str(cell) for cell in row] for row in rows
    ]
    widths = [max(len(row[column]) for row in cells) for column in range(len(header))]
    for row in cells:
        first, *rest = zip(row, widths, strict=True)
        print(first[0].ljust(first[1]), *(cell.rjust(width) for cell, width in rest), sep="  ")
