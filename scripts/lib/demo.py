"""Starts the nodes of configs/smollm2_two_nodes.yaml, talks to the head, and stops them again.

usage: demo.py [--serve | --chat]          (scripts/demo calls it once everything is built)
"""

import contextlib
import ctypes
import http.client
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import yaml

ROOT = Path(__file__).resolve().parents[2]
CONFIG = ROOT / "configs" / "smollm2_two_nodes.yaml"
BINARY = ROOT / "build" / "release" / "meshnet"
QUESTION = "What is the capital of France?"
START_SECONDS = 60
STOP_SECONDS = 10


class Failure(Exception):
    """Said to the user as it is, without a traceback."""


class Node:
    """One `meshnet serve` process of the topology file, and its log."""

    def __init__(self, name: str, entry: dict):
        self.name = name
        self.layers = entry["layers"]
        url = urlsplit(entry["url"])
        self.host, self.port = url.hostname, url.port
        self.log = Path(os.environ["MESHNET_HOME"]) / "log" / f"demo-{name}.log"
        self.process: subprocess.Popen | None = None

    def check_port(self) -> None:
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((self.host, self.port))
            except OSError as error:
                raise Failure(
                    f"Node {self.name} cannot listen on {self.host}:{self.port}: {error.strerror}.\n"
                    f"Stop what uses the port (ss -ltnp 'sport = :{self.port}' shows it), or change "
                    f"it in {CONFIG.relative_to(ROOT)}."
                ) from None

    def start(self) -> None:
        command = [BINARY, "serve", "--config", CONFIG, "--node", self.name]
        with self.log.open("wb") as log:
            # A session of its own, so that Ctrl-C reaches only this script, which then stops the
            # nodes in order; and a signal from the kernel should this script be killed.
            self.process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                preexec_fn=lambda: ctypes.CDLL(None).prctl(1, signal.SIGTERM),
            )

    def check_alive(self) -> None:
        status = self.process.poll()
        if status is not None:
            tail = "".join(self.log.read_text(errors="replace").splitlines(keepends=True)[-8:])
            raise Failure(f"Node {self.name} ended with status {status}. It said:\n{tail}")

    def stop(self) -> None:
        if self.process is None:
            return
        self.process.terminate()
        try:
            self.process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()

    def get(self, path: str) -> tuple[int, str]:
        connection = http.client.HTTPConnection(self.host, self.port, timeout=5)
        with contextlib.closing(connection):
            connection.request("GET", path)
            response = connection.getresponse()
            return response.status, response.read().decode()


def wait_until_ready(head: Node, nodes: list[Node]) -> None:
    started = time.monotonic()
    said = "no answer yet"
    while True:
        for node in nodes:
            node.check_alive()
        with contextlib.suppress(OSError, http.client.HTTPException):
            status, said = head.get("/health")
            if status == 200:
                break
        waited = time.monotonic() - started
        if waited > START_SECONDS:
            raise Failure(f"Not ready after {START_SECONDS} s. The head's /health says: {said}")
        if sys.stdout.isatty():
            print(f"\rStarting the nodes .. {waited:.0f} s", end="", flush=True)
        time.sleep(0.1)
    start = "\r" if sys.stdout.isatty() else ""
    print(f"{start}Starting the nodes .. ready after {time.monotonic() - started:.1f} s")


def ask(head: Node, messages: list[dict], **sampling) -> Iterator[str]:
    """Pieces of the answer, as they come."""
    body = json.dumps({"model": "smollm2", "messages": messages, "stream": True} | sampling)
    connection = http.client.HTTPConnection(head.host, head.port, timeout=120)
    with contextlib.closing(connection):
        connection.request(
            "POST", "/v1/chat/completions", body, {"Content-Type": "application/json"}
        )
        response = connection.getresponse()
        if response.status != 200:
            raise Failure(f"The head answered {response.status}: {response.read().decode()}")
        for line in response:
            data = line.decode().strip().removeprefix("data:").strip()
            if data == "[DONE]":
                return
            if not data:
                continue
            event = json.loads(data)
            if "error" in event:
                raise Failure(f"The answer broke off: {event['error']}")
            for choice in event["choices"]:
                if text := choice["delta"].get("content"):
                    yield text
        raise Failure("The answer broke off without [DONE].")


def read_metrics(head: Node) -> dict[str, float]:
    """Sample name with labels → value, of the head's Prometheus text."""
    _, text = head.get("/metrics")
    lines = [line.rsplit(" ", 1) for line in text.splitlines() if line and line[0] != "#"]
    return {name: float(value) for name, value in lines}


def hop_times(metrics: dict[str, float]) -> dict[str, dict[str, float]]:
    """Hop → part → mean seconds per step."""
    times: dict[str, dict[str, float]] = {}
    for name, total in metrics.items():
        if not name.startswith("meshnet_hop_seconds_sum{"):
            continue
        labels = dict(re.findall(r'(\w+)="([^"]*)"', name))
        count = metrics[name.replace("_sum{", "_count{")]
        times.setdefault(labels["hop"], {})[labels["part"]] = total / count
    return times


def show_cost(head: Node, nodes: list[Node], first: float, total: float) -> None:
    metrics = read_metrics(head)
    tokens = int(metrics.get('meshnet_tokens_total{kind="completion"}', 0))
    print(
        f"\n{tokens} tokens in {total:.2f} s: {tokens / total:.1f} tokens per second, "
        f"the first after {first:.2f} s"
    )
    print("Time per hop (mean of a step):")
    times = hop_times(metrics)
    for node in nodes:
        parts = sorted(times.get(node.name, {}).items())
        spent = "  ".join(f"{part} {1000 * seconds:.1f} ms" for part, seconds in parts)
        print(f"  {node.name:6} layers {node.layers:6}  {spent}")


def demo(head: Node, nodes: list[Node]) -> None:
    print(f"\nyou:     {QUESTION}\nSmolLM2: ", end="", flush=True)
    started = time.monotonic()
    first = None
    messages = [{"role": "user", "content": QUESTION}]
    for piece in ask(head, messages, temperature=0, max_tokens=64):
        first = first or time.monotonic() - started
        print(piece, end="", flush=True)
    total = time.monotonic() - started
    if first is None:
        raise Failure("The answer was empty.")
    print()
    show_cost(head, nodes, first, total)
    print(
        "\nNext:\n"
        "  scripts/demo --chat     talk to it\n"
        "  scripts/demo --serve    keep it up, for curl or the openai client\n"
        "  configs/                topology files to start from; README.md walks through two machines"
    )


def serve(head: Node, nodes: list[Node]) -> None:
    print(
        f"""
Up until Ctrl-C. In another terminal:

  curl -N http://{head.host}:{head.port}/v1/chat/completions -H 'Content-Type: application/json' -d '{{
    "model": "smollm2", "stream": true,
    "messages": [{{"role": "user", "content": "{QUESTION}"}}]}}'

Logs: {", ".join(str(node.log) for node in nodes)}""",
        flush=True,
    )
    while True:
        for node in nodes:
            node.check_alive()
        time.sleep(0.5)


def chat(head: Node, nodes: list[Node]) -> None:
    print("\nAn empty line or Ctrl-D ends the chat; Ctrl-C cuts an answer short.")
    messages: list[dict] = []
    while True:
        try:
            text = input("\nyou:     ").strip()
        except EOFError:
            text = ""
        if not text:
            return
        messages.append({"role": "user", "content": text})
        print("SmolLM2: ", end="", flush=True)
        answer = ""
        with contextlib.suppress(KeyboardInterrupt):
            for piece in ask(head, messages, temperature=0.2, top_p=0.9, max_tokens=512):
                answer += piece
                print(piece, end="", flush=True)
        print()
        messages.append({"role": "assistant", "content": answer})
        for node in nodes:
            node.check_alive()


def main() -> int:
    mode = {"--serve": serve, "--chat": chat}.get(sys.argv[1] if sys.argv[1:] else "", demo)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    entries = yaml.safe_load(CONFIG.read_text())["nodes"]
    nodes = [Node(name, entry) for name, entry in entries.items()]
    head = nodes[0]
    try:
        for node in nodes:
            node.check_port()
        for node in nodes:
            node.start()
        wait_until_ready(head, nodes)
        mode(head, nodes)
    except (Failure, OSError, http.client.HTTPException) as error:
        print(f"\n{error or type(error).__name__}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\nStopping.")
        return 0 if mode is serve or mode is chat else 130
    finally:
        for node in nodes:
            node.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main())
