"""Our nodes as the benchmarks run them, and the clock on their API."""

import contextlib
import http.client
import json
import tempfile
import time
from pathlib import Path
from urllib.parse import urlsplit

import common
from cluster import Cluster


def start_nodes(stack: contextlib.ExitStack, model: Path, cut: int | None, threads: int) -> str:
    """The URL of the head of two nodes, or of one that has all layers where there is no cut."""
    last = common.num_layers(model) - 1
    nodes = {"head": f"0-{cut - 1}", "tail": f"{cut}-{last}"} if cut else {"head": f"0-{last}"}
    directory = stack.enter_context(tempfile.TemporaryDirectory())
    cluster = Cluster(directory, model, nodes, dtype="bfloat16", threads=threads)
    stack.enter_context(cluster).start().wait_ready()
    return cluster.url("head")


def stream(url: str, prompt_ids: list[int], max_tokens: int) -> list[float]:
    """When each token arrived, in seconds after the request was sent."""
    address = urlsplit(url)
    connection = http.client.HTTPConnection(address.hostname, address.port, timeout=3600)
    body = {"prompt": prompt_ids, "max_tokens": max_tokens, "temperature": 0}
    body |= {"stream": True, "return_token_ids": True}
    with contextlib.closing(connection):
        started = time.perf_counter()
        connection.request("POST", "/v1/completions", json.dumps(body))
        response = connection.getresponse()
        if response.status != 200:
            raise RuntimeError(f"{url}: {response.status}: {response.read()[:500]!r}")
        times = []
        before = 0.0
        while line := response.readline():
            now = time.perf_counter() - started
            if not line.startswith(b"data: {"):
                continue
            event = json.loads(line[len(b"data: ") :])
            if "error" in event:
                raise RuntimeError(f"{url}: {event['error']}")
            ids = event["choices"][0].get("token_ids") or [] if event["choices"] else []
            # An event has more than one where the first of them ends within a character.
            times += [before + (now - before) * part / len(ids) for part in range(1, len(ids) + 1)]
            before = now if ids else before
    if len(times) != max_tokens:
        raise RuntimeError(f"{url}: asked for {max_tokens} tokens, got {len(times)}")
    return times
