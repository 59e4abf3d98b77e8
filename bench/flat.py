"""Tokens per second over position: a split model must not get slower as its answer grows.

A model of the shape of Qwen2 0.5B over two nodes (0-20 / 21-23) on this machine: our nodes with and
without session state, the same two shards in Python (tests/golden/reference_*.py), and unsplit
transformers. Each process may use all cores in its turn.
"""

import argparse
import concurrent.futures
import itertools
import multiprocessing
import os
import tempfile
import time
from pathlib import Path

import common
import nodes
from cluster import Cluster
from golden.reference_head import PythonNode, generate
from golden.reference_node import Shard

PROMPT = common.prompt_of(32)
WARM_UP = 8
WINDOW = 100  # tokens at each end that are compared
SMOOTHED = 20  # tokens that one point of the picture is the mean of


def ours(options, cached: bool) -> list[float]:
    """When each token arrived."""
    last = common.num_layers(options.model) - 1
    layers = {"head": f"0-{options.cut - 1}", "tail": f"{options.cut}-{last}"}
    top = {"dtype": "bfloat16", "threads": options.threads, "cache": {"enabled": cached}}
    with (
        tempfile.TemporaryDirectory() as directory,
        Cluster(directory, options.model, layers, **top) as cluster,
    ):
        cluster.start().wait_ready()
        nodes.stream(cluster.url("head"), PROMPT, WARM_UP)
        return nodes.stream(cluster.url("head"), PROMPT, options.tokens)


def python_pipeline(options, cached: bool) -> list[float]:
    import torch

    torch.set_num_threads(options.threads)
    last = common.num_layers(options.model) - 1
    flags = ["--dtype", "bfloat16", "--threads", str(options.threads)]
    with tempfile.TemporaryDirectory() as directory:
        log = Path(directory) / "tail.log"
        tail = PythonNode(log, options.model, f"{options.cut}-{last}", *flags)
        try:
            shard = Shard(options.model, 0, options.cut - 1, torch.bfloat16)
            tail.wait_ready()
            hops = [(tail.url, options.cut)]
            generate(shard, hops, PROMPT, WARM_UP, cached=cached)
            result = generate(shard, hops, PROMPT, options.tokens, cached=cached)
            return list(itertools.accumulate(result.seconds))
        finally:
            tail.stop()


class Clock:
    """A streamer for generate(), which gives it the prompt and then every token."""

    def __init__(self):
        self.times = []

    def put(self, _):
        self.times.append(time.perf_counter())

    def end(self):
        pass


def unsplit(options) -> list[float]:
    import torch
    from transformers import AutoModelForCausalLM

    torch.set_num_threads(options.threads)
    model = AutoModelForCausalLM.from_pretrained(options.model, dtype=torch.bfloat16).eval()
    ids = torch.tensor([PROMPT])
    for tokens in (WARM_UP, options.tokens):
        clock = Clock()
        model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=tokens,
            do_sample=False,
            streamer=clock,
        )
    started, *times = clock.times
    return [now - started for now in times]


def alone(function, *arguments, **environment) -> list[float]:
    """In a fresh process, which libgomp's settings need: it reads them once."""
    os.environ.update(environment)
    try:
        context = multiprocessing.get_context("spawn")
        with concurrent.futures.ProcessPoolExecutor(1, mp_context=context) as pool:
            return pool.submit(function, *arguments).result()
    finally:
        for name in environment:
            del os.environ[name]


# Our nodes set GOMP_SPINCOUNT for themselves: idle threads of one process would otherwise steal the
# cores of the other. The split Python gets it too, so that the picture shows state and nothing else.
SPIN = {"GOMP_SPINCOUNT": "1000"}
RUNS = {
    "meshnet, cached": lambda options: ours(options, True),
    "meshnet, stateless": lambda options: ours(options, False),
    "Python pipeline, cached": lambda options: alone(python_pipeline, options, True, **SPIN),
    "Python pipeline, stateless": lambda options: alone(python_pipeline, options, False, **SPIN),
    "transformers, unsplit": lambda options: alone(unsplit, options),
}


def summary(times: list[float]) -> dict:
    """Speeds at both ends; the first token, which has the prefill, is left out."""
    window = min(WINDOW, (len(times) - 1) // 2)
    first = window / (times[window] - times[0])
    last = window / (times[-1] - times[-1 - window])
    return {"window": window, "first": first, "last": last, "ratio": last / first}


def draw(results: dict, file: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(9, 5), layout="constrained")
    for name, result in results.items():
        times = result["seconds"]
        positions = range(SMOOTHED, len(times))
        speeds = [SMOOTHED / (times[at] - times[at - SMOOTHED]) for at in positions]
        axes.plot(positions, speeds, label=name)
    axes.set_xlabel("generated tokens")
    axes.set_ylabel(f"tokens per second (mean of {SMOOTHED})")
    axes.set_ylim(bottom=0)
    axes.grid(alpha=0.3)
    axes.legend()
    figure.savefig(file, dpi=120)
    print(f"picture: {file}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tokens", type=int, default=450)
    parser.add_argument("--out", type=Path, default=common.ROOT / "build/bench")
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--model", type=Path, help="another model directory, without an eos")
    parser.add_argument("--cut", type=int, default=21, help="first layer of the second node")
    parser.add_argument("--runs", default="", help="only those whose name has this in it")
    options = parser.parse_args()
    options.model = options.model or common.qwen2_shape()
    options.out.mkdir(parents=True, exist_ok=True)

    where = common.machine()
    print(f"{options.model.name}, {options.tokens} tokens, bfloat16, {options.threads} threads")
    print(common.describe(where), flush=True)
    results, rows = {}, []
    for name, run in RUNS.items():
        if options.runs not in name:
            continue
        times = run(options)
        results[name] = {**summary(times), "seconds": times}
        print(f"{name}: {times[-1]:.1f} s", flush=True)
        rows.append([name, *(results[name][key] for key in ("first", "last", "ratio"))])

    window = next(iter(results.values()))["window"]
    print(f"\ntokens per second, mean of the first and of the last {window} tokens")
    common.print_table(["", "first", "last", "last/first"], rows)
    settings = {"tokens": options.tokens, "threads": options.threads, "model": str(options.model)}
    file = options.out / "flat.json"
    common.write_json(file, {"machine": where, **settings, "runs": results})
    print(f"numbers: {file}")
    draw(results, options.out / "flat.png")


if __name__ == "__main__":
    main()
