"""Our prefill and decode, through the API, beside transformers and llama.cpp.

Same weights (bfloat16), same prompts, same threads; the engines take turns, and medians are kept. The dense
models run on one node here, and the hybrid one on two: the others are whole all the same.
"""

import argparse
import contextlib
import os
import statistics
import time
from pathlib import Path

import common
import nodes
import torch
from transformers import AutoModelForCausalLM, DynamicCache

PREFILL = 512
CONTEXTS = (64, 512)
DECODED = 32


class Ours:
    name = "meshnet"

    def __init__(self, model: Path, cut: int | None, threads: int, stack: contextlib.ExitStack):
        self.url = nodes.start_nodes(stack, model, cut, threads)

    def times(self, prompt_ids: list[int], tokens: int) -> list[float]:
        return nodes.stream(self.url, prompt_ids, tokens)


class Transformers:
    name = "transformers"

    def __init__(self, model: Path, _cut, threads: int, _stack):
        torch.set_num_threads(threads)
        self.model = AutoModelForCausalLM.from_pretrained(model, dtype=torch.bfloat16).eval()

    @torch.inference_mode()
    def times(self, prompt_ids: list[int], tokens: int) -> list[float]:
        started = time.perf_counter()
        cache = DynamicCache(config=self.model.config)
        ids = torch.tensor([prompt_ids])
        times = []
        for _ in range(tokens):
            output = self.model(ids, past_key_values=cache, use_cache=True, logits_to_keep=1)
            ids = output.logits[:, -1:].argmax(-1)
            ids.item()
            times.append(time.perf_counter() - started)
        return times


def measure(engine) -> dict:
    """Tokens per second, once. A decode's speed is that of the tokens after the first."""
    result = {"prefill 512": PREFILL / engine.times(common.prompt_of(PREFILL), 1)[0]}
    for context in CONTEXTS:
        times = engine.times(common.prompt_of(context), DECODED + 1)
        result[f"decode at {context}"] = DECODED / (times[-1] - times[0])
    return result


def engines(model: Path) -> list:
    kinds = [Ours, Transformers]
    try:
        from llama import ARCHITECTURES, LlamaCpp

        if common.read_config(model)["model_type"] in ARCHITECTURES:
            kinds.append(LlamaCpp)
    except ImportError as error:
        print(f"without llama.cpp: llama-cpp-python is not installed ({error})")
    return kinds


def compare(model: Path, cut: int | None, options) -> dict:
    with contextlib.ExitStack() as stack:
        running = [kind(model, cut, options.threads, stack) for kind in engines(model)]
        runs = {engine.name: [] for engine in running}
        for round_number in range(options.rounds + 1):
            for engine in running:
                result = measure(engine)
                if round_number > 0:  # the first warms up
                    runs[engine.name].append(result)
    return {
        name: {what: statistics.median(run[what] for run in rounds) for what in rounds[0]}
        for name, rounds in runs.items()
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--model", type=Path, help="only this model directory, without an eos")
    parser.add_argument("--cut", type=int, help="its second node's first layer (default: one node)")
    parser.add_argument("--out", type=Path, default=common.ROOT / "build/bench")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    where = common.machine()
    print(f"bfloat16, {options.threads} threads, medians of {options.rounds} rounds; tokens/s")
    print(common.describe(where), flush=True)

    if options.model:
        models = {options.model: options.cut}
    else:
        models = {
            common.smollm2_without_eos(): None,
            common.qwen2_shape(): None,
            common.qwen3_6_shape(): 6,
        }
    results = {}
    for model, cut in models.items():
        speeds = results[model.name] = compare(model, cut, options)
        reference = speeds[Transformers.name]
        whats = list(reference)
        rows = [[name, *(speed[what] for what in whats)] for name, speed in speeds.items()]
        rows.append(
            [
                "meshnet / transformers",
                *(speeds[Ours.name][what] / reference[what] for what in whats),
            ]
        )
        print(f"\n{model.name}, " + (f"two nodes cut at {cut}" if cut else "one node"))
        common.print_table(["", *whats], rows)
    file = options.out / "peers.json"
    numbers = {"machine": where, "threads": options.threads, "rounds": options.rounds}
    common.write_json(file, {**numbers, "tokens_per_second": results})
    print(f"\nnumbers: {file}")


if __name__ == "__main__":
    main()
