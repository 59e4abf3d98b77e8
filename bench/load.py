"""How long a whole model takes to load from the page cache, beside `cat` of its files to /dev/null.

tests/models/load_peak.cpp loads; the two take turns, and each turn gives a ratio. Memory that the
machine has not used before costs extra: the first turn, which warms both, is dropped.
"""

import argparse
import os
import statistics
import subprocess
import time
from pathlib import Path

import common

LOAD_PEAK = common.ROOT / "build/release/load_peak"


def cat_seconds(files: list[Path]) -> float:
    started = time.perf_counter()
    subprocess.run(["cat", *files], stdout=subprocess.DEVNULL, check=True)
    return time.perf_counter() - started


def load(model: Path, dtype: str) -> tuple[int, int, float]:
    """Bytes of the slice, bytes by which the peak of memory rose, seconds."""
    command = [LOAD_PEAK, model, "0", str(common.num_layers(model)), dtype]
    environment = os.environ | {"GOMP_SPINCOUNT": "1000"}  # as a node has it
    run = subprocess.run(command, capture_output=True, text=True, env=environment)
    if run.returncode != 0:
        raise SystemExit(f"load_peak: {run.stderr}")
    nbytes, growth, seconds = run.stdout.splitlines()[-1].split()
    return int(nbytes), int(growth), float(seconds)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path, help="default: the 0.5B shape in bfloat16")
    parser.add_argument("--dtype", choices=["bfloat16", "float32"], default="bfloat16")
    parser.add_argument("--repetitions", type=int, default=9)
    parser.add_argument("--out", type=Path, default=common.ROOT / "build/bench")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    where = common.machine()
    model = options.model or common.qwen2_shape()
    files = sorted(model.glob("model*.safetensors"))
    if not files:
        raise SystemExit(f"{model}: no model*.safetensors")

    turns = []
    for _ in range(options.repetitions + 1):
        cat = cat_seconds(files)
        nbytes, growth, seconds = load(model, options.dtype)
        turns.append({"cat": cat, "load": seconds, "ratio": seconds / cat})
    medians = {key: statistics.median(turn[key] for turn in turns[1:]) for key in turns[0]}

    stored = sum(file.stat().st_size for file in files)
    print(f"{model}: {stored / 1e6:.0f} MB in {len(files)} file(s), {options.dtype}")
    print(common.describe(where))
    print()
    rows = [
        ["cat to /dev/null", medians["cat"], stored / 1e9 / medians["cat"]],
        ["every layer in place", medians["load"], nbytes / 1e9 / medians["load"]],
    ]
    common.print_table([f"median of {options.repetitions}", "seconds", "GB/s"], rows)
    print(f"\nratio, median of the turns: {medians['ratio']:.2f}")
    print(f"held beside the weights at most: {(growth - nbytes) / (1 << 20):.1f} MiB")
    numbers = {"machine": where, "model": str(model), "dtype": options.dtype, "turns": turns[1:]}
    common.write_json(options.out / "load.json", numbers)
    print(f"\nnumbers: {options.out / 'load.json'}")


if __name__ == "__main__":
    main()
