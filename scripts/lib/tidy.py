"""Runs clang-tidy over some of our files, in parallel, with the flags of the release build.

usage: tidy.py FILE...

A header is checked through one source file that includes it: its own .cpp, else the first found.
"""

import json
import os
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
BUILD = ROOT / "build" / "release"
TIDY = ROOT / "build" / "tidy"


def clang_command(command: str) -> str:
    """GCC's command without what Clang does not know: the compiler cache, the precompiled header
    (sources include what they use without it), OpenMP, whose header it lacks, and GCC's own warnings."""
    command = re.sub(r"^.*?(?=/\S*(c\+\+|g\+\+)\S* )", "", command)
    command = re.sub(r" -include \S*cmake_pch\S*", "", command)
    return re.sub(
        r" (-W[^,\s]+(?=\s)|-fpch-preprocess|-fopenmp|-fmodules-ts|-fdeps-format\S*)", "", command
    )


def write_database() -> set[str]:
    entries = json.loads((BUILD / "compile_commands.json").read_text())
    # Each file once, though two test binaries may share it.
    entries = list({e["file"]: e for e in entries if e["file"].endswith(".cpp")}.values())
    for entry in entries:
        entry["command"] = clang_command(entry["command"])
    TIDY.mkdir(parents=True, exist_ok=True)
    (TIDY / "compile_commands.json").write_text(json.dumps(entries, indent=1))
    return {str(Path(entry["file"]).relative_to(ROOT)) for entry in entries}


def source_of(path: str, sources: set[str]) -> str | None:
    if path in sources:
        return path
    own = str(Path(path).with_suffix(".cpp"))
    if own in sources:
        return own
    include = f'#include "{path}"'
    return next((s for s in sorted(sources) if include in (ROOT / s).read_text()), None)


def main() -> int:
    known = write_database()
    sources = sorted({s for path in sys.argv[1:] if (s := source_of(path, known))})
    tidy = ROOT / ".venv" / "bin" / "clang-tidy"

    def run(source: str) -> tuple[str, subprocess.CompletedProcess]:
        command = [tidy, "-p", TIDY, "--quiet", ROOT / source]
        return source, subprocess.run(command, capture_output=True, text=True)

    failed = []
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for done, (source, result) in enumerate(pool.map(run, sources), 1):
            print(f"    [{done}/{len(sources)}] {source}", flush=True)
            if result.returncode != 0:
                failed.append(source)
                print(result.stdout, result.stderr, sep="", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
