"""scripts/demo, from where everything is built: the answer, the numbers, and an end without leftovers."""

import importlib.util
import os
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "scripts" / "lib" / "demo.py"
HOME = Path(os.environ.get("MESHNET_HOME") or Path.home() / ".cache" / "meshnet")
NODES = yaml.safe_load((ROOT / "configs" / "smollm2_two_nodes.yaml").read_text())["nodes"]
PORTS = [int(node["listen"].rsplit(":", 1)[1]) for node in NODES.values()]


def load_demo():
    spec = importlib.util.spec_from_file_location("demo", SCRIPT)
    demo = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(demo)
    return demo


@pytest.fixture
def start():
    """Starts demo.py; whatever the test does, it and its nodes are gone afterwards."""
    running = []

    def run(*options, home=HOME):
        (home / "log").mkdir(parents=True, exist_ok=True)
        demo = subprocess.Popen(
            [sys.executable, "-u", SCRIPT, *options],
            env=os.environ | {"MESHNET_HOME": str(home)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            # As from a terminal, whatever ignores Ctrl-C around these tests.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        )
        running.append(demo)
        return demo

    yield run
    for demo in running:
        demo.kill()
        demo.communicate()
    wait_until_nothing_listens()


def nothing_listens():
    def refused(port):
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", port)) != 0

    return all(refused(port) for port in PORTS)


def wait_until_nothing_listens():
    """Only a killed demo does not wait for its nodes itself."""
    deadline = time.monotonic() + 30
    while not nothing_listens():
        assert time.monotonic() < deadline, "a node outlives the demo"
        time.sleep(0.05)


def test_demo_answers_says_what_it_took_and_leaves_nothing(start):
    demo = start()
    out, err = demo.communicate(timeout=300)
    assert demo.returncode == 0, out + err
    assert "SmolLM2: The capital of France is Paris.\n" in out
    assert re.search(r"\d+ tokens in [\d.]+ s: [\d.]+ tokens per second", out)
    assert re.search(r"^  head +layers 0-14 .*compute [\d.]+ ms", out, re.M)
    assert re.search(r"^  tail +layers 15-29 .*wire [\d.]+ ms", out, re.M)
    assert "scripts/demo --chat" in out
    assert nothing_listens()


def test_chat_answers_and_ends_with_its_input(start):
    demo = start("--chat")
    out, err = demo.communicate("What is the capital of France?\n", timeout=300)
    assert demo.returncode == 0, out + err
    # The model's defaults draw each token by chance: any words will do, where the demo asks for Paris.
    assert re.search(r"SmolLM2: \S", out)
    assert nothing_listens()


def test_chat_keeps_the_history(monkeypatch):
    lines = iter(["hello", "and then?", ""])
    seen = []

    def ask(head, messages, **sampling):
        seen.append([message["content"] for message in messages])
        yield from ["answer ", str(len(seen))]

    demo = load_demo()
    monkeypatch.setattr(demo, "ask", ask)
    monkeypatch.setattr("builtins.input", lambda prompt: next(lines))
    demo.chat(head=None, nodes=[])
    assert seen == [["hello"], ["hello", "answer 1", "and then?"]]


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_served_nodes_go_when_the_demo_goes(start, how):
    demo = start("--serve")
    for line in demo.stdout:
        if "curl -N" in line:
            break
    assert not nothing_listens()
    demo.send_signal(how)
    demo.communicate(timeout=60)
    if how == signal.SIGINT:
        assert demo.returncode == 0
    wait_until_nothing_listens()


def test_port_in_use_is_said_before_anything_starts(start):
    with socket.create_server(("127.0.0.1", PORTS[1])):
        demo = start()
        _, err = demo.communicate(timeout=60)
    assert demo.returncode == 1
    assert f"Node tail cannot listen on 127.0.0.1:{PORTS[1]}: Address already in use" in err
    assert "configs/smollm2_two_nodes.yaml" in err


def test_a_node_that_ends_is_quoted(start, tmp_path):
    demo = start(home=tmp_path)  # holds no model
    _, err = demo.communicate(timeout=60)
    assert demo.returncode == 1
    assert re.search(r"Node (head|tail) ended with status 1\. It said:\n.*smollm2", err, re.S)
    assert nothing_listens()


def test_hop_times_are_means_per_step():
    metrics = {
        'meshnet_hop_seconds_sum{hop="tail",part="wire"}': 0.5,
        'meshnet_hop_seconds_count{hop="tail",part="wire"}': 10,
        'meshnet_hop_seconds_sum{hop="tail",part="compute"}': 2,
        'meshnet_hop_seconds_count{hop="tail",part="compute"}': 4,
        'meshnet_tokens_total{kind="completion"}': 4,
    }
    assert load_demo().hop_times(metrics) == {"tail": {"wire": 0.05, "compute": 0.5}}
