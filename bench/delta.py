"""The gated delta rule on a CPU: ours beside the functions of transformers, prefill beside decode.

8 key and 16 value heads of 128 in bfloat16, as a small Qwen3.6 has. Ours is an operation of torch here
(tests/gpu/model_ops.cpp), so all run in this process, on the same threads, and take turns. A step is timed twice: with
its state still in the caches from the step before, and with a state that comes from memory, as when the other
layers of a model have had their turn in between. A short and a long prefill show that a token costs the same at any
length.
"""

import argparse
import os
import statistics
import time
from pathlib import Path

import common

K_HEADS, V_HEADS, DIM = 8, 16, 128
SHORT, LONG = 1024, 16384
STEPS = 512  # of ours in a round
STATES = 96  # of 1 MiB: more than the caches hold
THEIR_STEPS = 32


def inputs(tokens: int) -> dict:
    import torch

    rows = torch.randn(tokens, (2 * K_HEADS + V_HEADS) * DIM).bfloat16()
    query, key, value = rows.split([K_HEADS * DIM, K_HEADS * DIM, V_HEADS * DIM], dim=1)
    return {
        "query": query.view(tokens, K_HEADS, DIM),
        "key": key.view(tokens, K_HEADS, DIM),
        "value": value.view(tokens, V_HEADS, DIM),
        "g": -torch.rand(tokens, V_HEADS),
        "beta": torch.rand(tokens, V_HEADS),
    }


def runs(tokens: int) -> dict:
    """What a round times: name → how many tokens at once, how often, and the call."""
    import torch
    from transformers.models.qwen3_5 import modeling_qwen3_5 as reference

    ours = torch.ops.meshnet.gated_delta_rule
    whole, short, long = inputs(tokens), inputs(SHORT), inputs(LONG)
    steps = [{key: x[t : t + 1] for key, x in whole.items()} for t in range(STEPS)]
    states = [torch.zeros(V_HEADS, DIM, DIM) for _ in range(STATES)]

    def theirs(function, arguments, state):
        batch = {key: x[None] for key, x in arguments.items()}
        options = {"output_final_state": True, "use_qk_l2norm_in_kernel": True}
        return function(**batch, initial_state=state, **options)[1]

    def their_steps():
        state = states[0][None]
        for step in steps[:THEIR_STEPS]:
            state = theirs(reference.torch_recurrent_gated_delta_rule, step, state)

    def our_steps(count, state_of):
        for t in range(count):
            ours(**steps[t], state=state_of(t))

    chunk = reference.torch_chunk_gated_delta_rule
    return {
        "prefill": (1, lambda: ours(**whole, state=states[0])),
        "prefill, transformers": (1, lambda: theirs(chunk, whole, states[0][None])),
        f"prefill of {SHORT}": (1, lambda: ours(**short, state=states[0])),
        f"prefill of {LONG}": (1, lambda: ours(**long, state=states[0])),
        "step": (STEPS, lambda: our_steps(STEPS, lambda _: states[0])),
        "step, state from memory": (STATES, lambda: our_steps(STATES, lambda t: states[t])),
        "step, transformers": (THEIR_STEPS, their_steps),
    }


def measure(tokens: int, rounds: int) -> list[dict]:
    """Milliseconds of one call in each round; the first round warms up and is dropped."""
    import torch

    result = []
    with torch.inference_mode():
        timed = runs(tokens)
        for number in range(rounds + 1):
            order = list(timed) if number % 2 == 0 else list(reversed(timed))
            one = {}
            for name in order:
                count, call = timed[name]
                started = time.perf_counter()
                call()
                one[name] = (time.perf_counter() - started) * 1000 / count
            result.append(one)
    return result[1:]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tokens", type=int, default=4096, help=f"of the prompt, at least {STEPS}")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--out", type=Path, default=common.ROOT / "build/bench")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    where = common.machine()
    print(f"{options.tokens} tokens, bfloat16, {options.threads} threads, {options.rounds} rounds")
    print(common.describe(where), flush=True)

    import torch

    torch.ops.load_library(common.ROOT / "build/release/libmodel_ops.so")
    torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    rounds = measure(options.tokens, options.rounds)
    median = {name: statistics.median(one[name] for one in rounds) for name in rounds[0]}
    print("\nmilliseconds of a call, medians")
    common.print_table(["", "ms"], [[name, f"{ms:.3f}"] for name, ms in median.items()])

    def ratio(name, of, times=1):
        values = [times * one[of] / one[name] for one in rounds]
        return [statistics.median(values), min(values), max(values)]

    ratios = {
        "prefill beside transformers'": ratio("prefill", "prefill, transformers"),
        "prefill beside so many steps": ratio("prefill", "step", options.tokens),
        "prefill beside so many steps from memory": ratio(
            "prefill", "step, state from memory", options.tokens
        ),
        "step beside transformers'": ratio("step", "step, transformers"),
        f"token of {LONG} beside one of {SHORT}": ratio(
            f"prefill of {LONG}", f"prefill of {SHORT}", LONG / SHORT
        ),
    }
    print("\ntimes as fast, of each round")
    common.print_table(
        ["", "median", "lowest", "highest"], [[name, *values] for name, values in ratios.items()]
    )
    file = options.out / "delta.json"
    common.write_json(file, {"machine": where, "ratios": ratios, "rounds": rounds})
    print(f"\nnumbers: {file}")


if __name__ == "__main__":
    main()
