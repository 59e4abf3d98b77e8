"""What splitting costs: decode speed of two nodes on loopback as a part of one node's.

The bandwidth of a machine's memory may jump between levels from one minute to the next, so the two take
turns in short rounds, the order changing, and the figure is the median of the rounds' ratios. All nodes run
all the time; those that wait do nothing. Each may use all cores in its turn.
"""

import argparse
import contextlib
import os
import statistics
from pathlib import Path

import common
import nodes

WARM_UP = 8
ONE, TWO = "one node", "two nodes"


def decode_speed(url: str, context: int, tokens: int) -> float:
    """Tokens per second of those after the first, which has the prefill."""
    times = nodes.stream(url, common.prompt_of(context), tokens + 1)
    return tokens / (times[-1] - times[0])


def measure(model: Path, cut: int, options) -> list[dict]:
    with contextlib.ExitStack() as stack:
        urls = {
            name: nodes.start_nodes(stack, model, at, options.threads)
            for name, at in {ONE: None, TWO: cut}.items()
        }
        for url in urls.values():
            decode_speed(url, options.context, WARM_UP)
        rounds = []
        for number in range(options.rounds):
            order = list(urls) if number % 2 == 0 else list(reversed(urls))
            speeds = {
                name: decode_speed(urls[name], options.context, options.tokens) for name in order
            }
            rounds.append({**speeds, "ratio": speeds[TWO] / speeds[ONE]})
    return rounds


def summary(rounds: list[dict]) -> dict:
    ratios = [one["ratio"] for one in rounds]
    return {
        **{name: statistics.median(one[name] for one in rounds) for name in (ONE, TWO)},
        "ratio": statistics.median(ratios),
        "lowest": min(ratios),
        "highest": max(ratios),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--tokens", type=int, default=48, help="decoded in each round by each")
    parser.add_argument("--context", type=int, default=64, help="tokens of the prompt")
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--model", type=Path, help="only this model directory, without an eos")
    parser.add_argument(
        "--cut", type=int, help="its second node's first layer (default: the middle)"
    )
    parser.add_argument("--out", type=Path, default=common.ROOT / "build/bench")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    where = common.machine()
    print(
        f"bfloat16, {options.threads} threads, decode at {options.context}, medians of "
        f"{options.rounds} rounds of {options.tokens} tokens; tokens/s"
    )
    print(common.describe(where), flush=True)

    if options.model:
        models = {options.model: options.cut or common.num_layers(options.model) // 2}
    else:
        models = {common.smollm2_without_eos(): 15, common.qwen2_shape(): 21}
    results, rows = {}, []
    for model, cut in models.items():
        rounds = measure(model, cut, options)
        numbers = summary(rounds)
        results[model.name] = {"cut": cut, **numbers, "rounds": rounds}
        print(f"{model.name}: done", flush=True)
        rows.append([f"{model.name}, cut at {cut}", *numbers.values()])
    print("\nratio: two nodes / one node, of the pairs of each round")
    common.print_table(["", ONE, TWO, "ratio", "lowest", "highest"], rows)
    file = options.out / "split.json"
    settings = {key: getattr(options, key) for key in ("threads", "context", "tokens")}
    common.write_json(file, {"machine": where, **settings, "models": results})
    print(f"\nnumbers: {file}")


if __name__ == "__main__":
    main()
