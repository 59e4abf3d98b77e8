"""A hybrid model as its context grows: a token must not cost more at 16,384 than at 1,024.

A small Qwen3.6 shape over two nodes (0-5 / 6-11), through the API: the prefill of the whole prompt, then a decode
after it. The delta-net layers cost the same at any length (delta.py has them alone), but every fourth layer is one
of full attention: a token there looks at all before it, which shows in the prefill.
"""

import argparse
import contextlib
import os
import statistics
from pathlib import Path

import common
import nodes

CUT = 6
CONTEXTS = (1024, 2048, 4096, 8192, 16384)
DECODED = 64


def measure(url: str, context: int) -> dict:
    """Milliseconds per token, once."""
    times = nodes.stream(url, common.prompt_of(context), DECODED + 1)
    return {
        "prefill": 1000 * times[0] / context,
        "decode": 1000 * (times[-1] - times[0]) / DECODED,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--out", type=Path, default=common.ROOT / "build/bench")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    where = common.machine()
    print(f"bfloat16, {options.threads} threads, medians of {options.rounds} rounds")
    print(common.describe(where), flush=True)

    runs = {context: [] for context in CONTEXTS}
    with contextlib.ExitStack() as stack:
        url = nodes.start_nodes(stack, common.qwen3_6_shape(), CUT, options.threads)
        measure(url, CONTEXTS[0])  # warms up
        for _ in range(options.rounds):
            for context in CONTEXTS:
                runs[context].append(measure(url, context))
    medians = {
        context: {what: statistics.median(one[what] for one in ones) for what in ones[0]}
        for context, ones in runs.items()
    }
    first = medians[CONTEXTS[0]]
    print(f"\nmilliseconds per token, and how many times those at {CONTEXTS[0]}")
    header = ["context", "prefill", "", "decode", ""]
    rows = [
        [
            context,
            ms["prefill"],
            ms["prefill"] / first["prefill"],
            ms["decode"],
            ms["decode"] / first["decode"],
        ]
        for context, ms in medians.items()
    ]
    common.print_table(header, rows)
    file = options.out / "long.json"
    common.write_json(file, {"machine": where, "threads": options.threads, "rounds": runs})
    print(f"\nnumbers: {file}")


if __name__ == "__main__":
    main()
