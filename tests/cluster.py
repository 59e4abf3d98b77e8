"""Starts and stops real nodes on free loopback ports, for the Python tests."""

import json
import os
import pathlib
import re
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request

import yaml

ROOT = pathlib.Path(__file__).resolve().parent.parent
BINARY = pathlib.Path(os.environ.get("MESHNET_BINARY", ROOT / "build/release/meshnet"))
HOME = pathlib.Path(os.environ.get("MESHNET_HOME") or pathlib.Path.home() / ".cache/meshnet")
START_SECONDS = 60


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Answer:
    """A whole HTTP answer, whatever its status."""

    def __init__(self, status, headers, body):
        self.status, self.headers, self.body = status, headers, body

    def json(self):
        return json.loads(self.body)


def call(url, body=None, headers=None, method=None, timeout=120) -> Answer:
    data = json.dumps(body).encode() if isinstance(body, (dict, list)) else body
    request = urllib.request.Request(url, data=data, headers=headers or {}, method=method)
    try:
        with urllib.request.urlopen(request, timeout=timeout) as response:
            return Answer(response.status, response.headers, response.read())
    except urllib.error.HTTPError as error:
        return Answer(error.code, error.headers, error.read())


class Cluster:
    """A topology file and the processes that run its nodes.

    `nodes` maps names to layers ("0-14") or to a mapping with "layers" and overrides.
    """

    def __init__(self, directory, model, nodes, **top):
        self.directory = pathlib.Path(directory)
        self.processes = {}
        topology = {"model": str(model), "served_name": "test-model", **top, "nodes": {}}
        for name, node in nodes.items():
            node = {"layers": node} if isinstance(node, str) else dict(node)
            port = free_port()
            node.setdefault("listen", f"127.0.0.1:{port}")
            node.setdefault("url", f"http://127.0.0.1:{port}")
            topology["nodes"][name] = node
        self.topology = topology
        self.config = self.directory / "topology.yaml"
        self.config.write_text(yaml.safe_dump(topology))

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        for name in list(self.processes):
            self.stop(name)

    def start(self, *names, env=None):
        for name in names or self.topology["nodes"]:
            with open(self.log_file(name), "ab") as log:
                self.processes[name] = subprocess.Popen(
                    [BINARY, "serve", "--config", self.config, "--node", name],
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    env={**os.environ, **(env or {})},
                )
        return self

    def wait_ready(self, *names):
        deadline = time.monotonic() + START_SECONDS
        for name in names or self.topology["nodes"]:
            while True:
                if self.processes[name].poll() is not None:
                    raise AssertionError(f"{name} ended while starting:\n{self.log(name)}")
                try:
                    if call(self.url(name) + "/health", timeout=5).status == 200:
                        break
                except OSError:
                    pass
                if time.monotonic() > deadline:
                    raise AssertionError(f"{name} is not ready:\n{self.log(name)}")
                time.sleep(0.05)
        return self

    def stop(self, name) -> int:
        """SIGTERM, as an init system would; returns the exit status."""
        process = self.processes.pop(name)
        process.terminate()
        try:
            return process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            raise AssertionError(f"{name} did not stop within 20 s:\n{self.log(name)}") from None

    def kill(self, name):
        process = self.processes.pop(name)
        process.send_signal(signal.SIGKILL)
        process.wait()

    def alive(self, name) -> bool:
        return self.processes[name].poll() is None

    def pid(self, name) -> int:
        return self.processes[name].pid

    def url(self, name) -> str:
        return self.topology["nodes"][name]["url"]

    def log_file(self, name) -> pathlib.Path:
        return self.directory / f"{name}.log"

    def log(self, name) -> str:
        return self.log_file(name).read_text(errors="replace")

    def chat(self, name, content, **fields) -> Answer:
        body = {"messages": [{"role": "user", "content": content}], "temperature": 0, **fields}
        return call(self.url(name) + "/v1/chat/completions", body)

    def complete(self, name, prompt, timeout=120, **fields) -> Answer:
        body = {"prompt": prompt, "temperature": 0, "return_token_ids": True, **fields}
        return call(self.url(name) + "/v1/completions", body, timeout=timeout)


def wait_until(condition, seconds=20):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "timed out"
        time.sleep(0.02)


def ids_of(answer: Answer) -> list[int]:
    assert answer.status == 200, answer.body
    return answer.json()["choices"][0]["token_ids"]


def status(cluster: Cluster, name):
    return call(cluster.url(name) + "/status").json()


def sessions(cluster: Cluster, name):
    return status(cluster, name)["sessions"]


def state_bytes(cluster: Cluster, name) -> int:
    return status(cluster, name)["cache"]["total_bytes"]


def counts(cluster: Cluster, name, metric, label) -> dict[str, int]:
    """Of a counter in /metrics: its value for each of the label's."""
    text = call(cluster.url(name) + "/metrics").body.decode()
    found = re.findall(rf'^{metric}{{{label}="(.*)"}} (\S+)$', text, re.MULTILINE)
    return {value: int(float(count)) for value, count in found}


def misses(cluster: Cluster, name) -> dict[str, int]:
    return counts(cluster, name, "meshnet_cache_misses_total", "reason")


def steps(cluster: Cluster, name) -> dict[str, int]:
    return counts(cluster, name, "meshnet_steps_total", "mode")


def forward(url, body, **headers) -> Answer:
    """POST /forward, with Past_Len=3 for X-Meshnet-Past-Len: 3."""
    headers = {"X-Meshnet-" + key.replace("_", "-"): str(value) for key, value in headers.items()}
    return call(url + "/forward", body, headers, method="POST")


def sse_events(body: bytes):
    """The payloads of a text/event-stream, "[DONE]" included."""
    for block in body.decode().split("\n\n"):
        if block:
            assert block.startswith("data: "), block
            yield block[len("data: ") :]
