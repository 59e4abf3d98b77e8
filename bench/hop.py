"""What one hop of a decode step costs: a [1,1,896] bfloat16 hidden state over loopback.

ping_pong.cpp sends the same bytes to one of our nodes (a middle one with one narrow layer, driven),
and to a bare echo of as many bytes each way; the node's Server-Timing says what of it was not the
way. Then the same node within a chain, as our own head sees it.
"""

import argparse
import re
import statistics
import subprocess
import tempfile
from pathlib import Path

import common
from cluster import Cluster, call

HIDDEN = 896
NODES = {"head": "0", "hop": "1", "tail": "2"}
CHAINED_TOKENS = 200


def narrow_model() -> Path:
    """Three layers whose arithmetic takes next to no time."""

    def make(folder: Path):
        import torch
        from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM

        torch.manual_seed(0)
        config = LlamaConfig(
            vocab_size=49152,
            hidden_size=HIDDEN,
            intermediate_size=64,
            num_hidden_layers=3,
            num_attention_heads=2,
            num_key_value_heads=1,
            head_dim=64,
            max_position_embeddings=1024,
            tie_word_embeddings=True,
            bos_token_id=None,
            eos_token_id=None,
        )
        model = LlamaForCausalLM(config)
        model.generation_config = GenerationConfig()
        model.to(torch.bfloat16).save_pretrained(folder)
        common.write_json(folder / "tokenizer.json", common.tokenizer_of_size(config.vocab_size))

    return common.make_once("bench-narrow", make)


def build_ping_pong(out: Path) -> Path:
    source, binary = common.ROOT / "bench/ping_pong.cpp", out / "ping_pong"
    if not binary.exists() or binary.stat().st_mtime < source.stat().st_mtime:
        subprocess.run(["g++", "-std=c++20", "-O2", source, "-o", binary], check=True)
    return binary


def ping_pong(binary: Path, request: bytes, *arguments) -> list[tuple[float, str]]:
    """Microseconds and Server-Timing of each repetition; the first tenth, warming up, is dropped."""
    command = [binary, *map(str, arguments)]
    run = subprocess.run(command, input=request, capture_output=True)
    if run.returncode != 0:
        raise SystemExit(f"ping_pong: {run.stderr.decode()}")
    lines = [line.partition(" ") for line in run.stdout.decode().splitlines()]
    times = [(float(microseconds), timing) for microseconds, _, timing in lines]
    return times[len(times) // 10 :]


def http_request(url: str, session: str) -> tuple[dict, bytes, bytes]:
    """Headers, body and all bytes of a stateless step of one token, as an old head sends it."""
    body = b"\x3c\x3d" * HIDDEN
    headers = {
        "X-Meshnet-Session": session,
        "X-Meshnet-Past-Len": "0",
        "X-Meshnet-Hop-Index": "1",
        "X-Meshnet-Start-Layer": "1",
    }
    lines = {"Host": url.partition("//")[2], **headers, "Content-Length": str(len(body))}
    head = "POST /forward HTTP/1.1\r\n" + "".join(f"{k}: {v}\r\n" for k, v in lines.items())
    return headers, body, head.encode() + b"\r\n" + body


def milliseconds(timing: str, part: str, node: str) -> float:
    found = re.search(rf'{part};desc="{node}";dur=([0-9.]+)', timing)
    return float(found[1]) if found else 0.0


def spread(values: list[float]) -> list[float]:
    return [statistics.median(values), statistics.quantiles(values, n=100)[98]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repetitions", type=int, default=4000)
    parser.add_argument("--threads", type=int, default=1, help="compute threads of each node")
    parser.add_argument("--out", type=Path, default=common.ROOT / "build/bench")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    where = common.machine()
    binary, model = build_ping_pong(options.out), narrow_model()

    with (
        tempfile.TemporaryDirectory() as directory,
        Cluster(directory, model, NODES, dtype="bfloat16", threads=options.threads) as cluster,
    ):
        cluster.start().wait_ready()
        url = cluster.url("hop")
        headers, body, request = http_request(url, "bench-hop")
        answer = call(url + "/forward", body, headers)
        assert answer.status == 200 and len(answer.body) == len(body), answer.body
        head_bytes = sum(len(k) + len(v) + 4 for k, v in answer.headers.items()) + 19
        answer_bytes = head_bytes + len(answer.body)
        hop = ping_pong(binary, request, options.repetitions, "http", url.rpartition(":")[2])
        bare = ping_pong(binary, request, options.repetitions, answer_bytes)

        prompt = common.prompt_of(16)
        chained = cluster.complete("head", prompt, max_tokens=CHAINED_TOKENS)
        assert chained.status == 200, chained.body
        chain = chained.headers["Server-Timing"]

    total = [microseconds for microseconds, _ in hop]
    queue, compute = (
        [1000 * milliseconds(timing, part, "hop") for _, timing in hop]
        for part in ("queue", "compute")
    )
    rest = [t - q - c for t, q, c in zip(total, queue, compute, strict=True)]
    bare_times = [microseconds for microseconds, _ in bare]
    over = statistics.median(rest) - statistics.median(bare_times)

    print(
        f"{len(request)} bytes there, {answer_bytes} back, {len(total)} repetitions; microseconds"
    )
    print(common.describe(where))
    print()
    rows = [
        ["bare TCP ping-pong", *spread(bare_times)],
        ["a hop, whole", *spread(total)],
        ["  waiting for the compute thread (queue)", *spread(queue)],
        ["  compute", *spread(compute)],
        ["  the way: total - queue - compute", *spread(rest)],
    ]
    common.print_table(["", "median", "p99"], rows)
    print(
        f"\nHTTP, checks and threads take {over:.0f} microseconds above the bare ping-pong (medians)."
    )

    per_step = {
        f"{part} {node}": 1000 * milliseconds(chain, part, node) / CHAINED_TOKENS
        for node in NODES
        for part in ("wire", "queue", "compute")
        if not (node == "head" and part == "wire")
    }
    print(f"\nchained from our head, mean of {CHAINED_TOKENS} steps (the first is the prefill)")
    common.print_table(["", "microseconds"], [[name, value] for name, value in per_step.items()])
    numbers = {
        "machine": where,
        "request_bytes": len(request),
        "answer_bytes": answer_bytes,
        "microseconds": {name.strip(): {"median": m, "p99": p} for name, m, p in rows},
        "chained_microseconds_per_step": per_step,
    }
    common.write_json(options.out / "hop.json", numbers)
    print(f"\nnumbers: {options.out / 'hop.json'}")


if __name__ == "__main__":
    main()
