"""Decode and prefill in bfloat16 beside transformers, on this machine's GPU, or without one on its CPU.

Three shapes with random weights, each as one slice in this process; every token's id is fetched, as a node must.
Medians of rounds in which the two take turns.
"""

import argparse
import statistics
import sys
import tempfile
import time
from pathlib import Path

import torch

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[2] / "bench")]

import common  # noqa: E402
import shapes  # noqa: E402
from slices import Route  # noqa: E402

PREFILL = 512
CONTEXTS = (64, 512)


class Ours:
    def __init__(self, model: Path, device: str):
        self.route = Route(model, torch.bfloat16, [device])
        self.device = device

    def start(self):
        return self.route.open()

    def next_id(self, ids, session):
        return self.route.next_id(ids, session)


class Transformers:
    def __init__(self, model: Path, device: str):
        from transformers import AutoModelForCausalLM

        loaded = AutoModelForCausalLM.from_pretrained(model, dtype=torch.bfloat16)
        self.model = loaded.to(device).eval()
        self.device = device

    def start(self):
        from transformers import DynamicCache

        return DynamicCache(config=self.model.config)

    def next_id(self, ids, cache):
        output = self.model(ids[None], past_key_values=cache, use_cache=True, logits_to_keep=1)
        return output.logits[0, -1:].argmax(-1)


def times(engine, prompt: list[int], tokens: int) -> list[float]:
    """When each token was there, in seconds."""
    session = engine.start()
    ids = torch.tensor(prompt).to(engine.device)
    result = []
    started = time.perf_counter()
    for _ in range(tokens):
        ids = engine.next_id(ids, session)
        ids.item()
        result.append(time.perf_counter() - started)
    return result


def measure(engine, decoded: int) -> dict:
    """Tokens per second, once."""
    result = {f"prefill {PREFILL}": PREFILL / times(engine, common.prompt_of(PREFILL), 1)[0]}
    for context in CONTEXTS:
        at = times(engine, common.prompt_of(context), decoded + 1)
        result[f"decode at {context}"] = decoded / (at[-1] - at[0])
    return result


def compare(model: Path, options) -> dict:
    engines = {"meshnet": Ours(model, options.device)}
    engines["transformers"] = Transformers(model, options.device)
    runs = {name: [] for name in engines}
    for number in range(options.rounds + 1):
        for name, engine in engines.items():
            result = measure(engine, options.decoded)
            if number > 0:  # the first warms up
                runs[name].append(result)
    return {
        name: {what: statistics.median(one[what] for one in rounds) for what in rounds[0]}
        for name, rounds in runs.items()
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    cuda = torch.cuda.is_available()
    parser.add_argument("--device", default="cuda:0" if cuda else "cpu")
    parser.add_argument("--rounds", type=int, default=5 if cuda else 1)
    parser.add_argument("--decoded", type=int, default=64 if cuda else 8)
    options = parser.parse_args()
    print(
        torch.cuda.get_device_name() if cuda else "no GPU: on the CPU", f"torch {torch.__version__}"
    )
    with torch.inference_mode():
        for name in ("smollm2", "qwen2", "qwen3_6"):
            with tempfile.TemporaryDirectory() as folder:
                shapes.save_random(getattr(shapes, name)(), folder)
                speeds = compare(Path(folder), options)
            whats = list(speeds["meshnet"])
            rows = [[each, *(speed[what] for what in whats)] for each, speed in speeds.items()]
            ratios = (speeds["meshnet"][what] / speeds["transformers"][what] for what in whats)
            print(f"\n{name}, tokens per second, medians of {options.rounds}")
            common.print_table(["", *whats], [*rows, ["meshnet / transformers", *ratios]])


if __name__ == "__main__":
    main()
