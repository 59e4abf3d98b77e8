"""A head in Python, as users had: it embeds ids, runs its own first layers, and drives the hops.

It carries every tensor itself and sends the five fixed headers only. A list of hops is a list of
(url, start layer), in the order of the route. PythonNode starts the nodes of reference_node.py.
"""

import contextlib
import http.client
import json
import subprocess
import sys
import time
import uuid
from dataclasses import dataclass, field
from urllib.parse import urlsplit

import torch
from cluster import ROOT, call, free_port
from golden.reference_node import Shard


@dataclass
class Generated:
    token_ids: list[int] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)  # of each token; the first has the prefill
    misses: list[str] = field(default_factory=list)  # reasons


class Miss(Exception):
    pass


class Hop:
    def __init__(self, url: str, index: int, start_layer: int):
        self.url, self.index, self.start_layer = url, index, start_layer
        address = urlsplit(url)
        # http.client sets TCP_NODELAY, and keeps the connection between requests.
        self.connection = http.client.HTTPConnection(address.hostname, address.port, timeout=600)

    def forward(self, body: bytes, session: str, mode: str | None, past: int):
        """The answer's bytes, or its token."""
        headers = {
            "Content-Type": "application/octet-stream",
            "X-Meshnet-Session": session,
            "X-Meshnet-Past-Len": str(past),
            "X-Meshnet-Hop-Index": str(self.index),
            "X-Meshnet-Start-Layer": str(self.start_layer),
        }
        if mode is not None:
            headers["X-Meshnet-Cache"] = mode
        self.connection.request("POST", "/forward", body, headers)
        response = self.connection.getresponse()
        answer = response.read()
        if response.status == 409:
            raise Miss(json.loads(answer)["reason"])
        if response.status != 200:
            raise RuntimeError(f"{self.url} answered {response.status}: {answer[:500]!r}")
        is_json = response.headers.get_content_type() == "application/json"
        return json.loads(answer) if is_json else answer


def to_bytes(hidden: torch.Tensor) -> bytes:
    return hidden.contiguous().view(torch.uint8).numpy().tobytes()


@torch.inference_mode()
def generate(
    shard: Shard,
    hops: list[tuple[str, int]],
    prompt_ids: list[int],
    max_tokens: int,
    *,
    cached: bool = True,
    eos_ids: tuple[int, ...] = (),
) -> Generated:
    """Greedy ids. `shard` holds layer 0; without `cached` every step is stateless."""
    route = [Hop(url, index, start) for index, (url, start) in enumerate(hops, 1)]
    session = str(uuid.uuid4())
    result = Generated()
    ids = list(prompt_ids)
    cache = None

    def step(mode: str | None) -> int:
        nonlocal cache
        past = len(ids) - 1 if mode == "decode" else 0
        if mode == "prefill":
            cache = shard.new_cache()
        answer = shard.forward(shard.embed(ids[past:]), 0, past, cache)
        if not route:
            return shard.greedy(answer)
        answer = to_bytes(answer)
        for hop in route:
            answer = hop.forward(answer, session, mode, past)
        return answer["token_id"]

    def next_token() -> int:
        if not cached:
            return step(None)
        if not result.token_ids:
            return step("prefill")
        try:
            return step("decode")
        except Miss as miss:
            result.misses.append(str(miss))
            return step("prefill")  # once; another miss ends the generation

    try:
        while len(result.token_ids) < max_tokens:
            started = time.perf_counter()
            token_id = next_token()
            result.seconds.append(time.perf_counter() - started)
            result.token_ids.append(token_id)
            ids.append(token_id)
            if token_id in eos_ids:
                break
    finally:
        for hop in route:
            hop.connection.close()
    return result


class PythonNode:
    """An old node; `topology` is what a cluster must say of it."""

    def __init__(self, log, model, layers, *flags):
        port = free_port()
        self.url, self.log, self.seen = f"http://127.0.0.1:{port}", log, 0
        self.topology = {"layers": layers, "url": self.url, "listen": f"127.0.0.1:{port}"}
        command = [sys.executable, ROOT / "tests/golden/reference_node.py", "--model", model]
        with log.open("wb") as out:
            self.process = subprocess.Popen(
                [*command, "--layers", layers, "--port", str(port), *flags], stdout=out, stderr=out
            )

    def wait_ready(self):
        deadline = time.monotonic() + 180
        while True:
            with contextlib.suppress(OSError):
                if call(self.url + "/health", timeout=5).status == 200:
                    return
            assert self.process.poll() is None and time.monotonic() < deadline, self.log.read_text()
            time.sleep(0.1)

    def stop(self):
        self.process.terminate()
        self.process.wait()

    def headers(self):
        return call(self.url + "/counts").json()["headers"]

    def new_steps(self):
        """(mode, tokens) of every request since the last call; all were served."""
        every = call(self.url + "/counts").json()["steps"]
        new, self.seen = every[self.seen :], len(every)
        assert all(step["status"] == 200 for step in new), new
        return [(step["mode"], step["tokens"]) for step in new]
