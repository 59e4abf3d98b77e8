"""Nodes that die, come back, or are started in any order; clients that leave."""

import http.client
import json
import os
import secrets
import socket
import subprocess
import time

import pytest
from cluster import BINARY, Cluster, call, sse_events, steps, wait_until


def test_a_killed_tail_is_named_and_found_again(tiny, tmp_path):
    with Cluster(tmp_path, tiny, {"head": "0-1", "tail": "2-3"}) as cluster:
        cluster.start().wait_ready()
        before = cluster.complete("head", "Hello", max_tokens=5).json()["choices"][0]["token_ids"]

        cluster.kill("tail")
        started = time.monotonic()
        answer = cluster.complete("head", "Hello", max_tokens=5)
        assert time.monotonic() - started < 2
        assert answer.status == 502
        assert "tail" in answer.json()["error"]["message"]
        assert cluster.alive("head")

        health = cluster.url("head") + "/health"
        wait_until(lambda: call(health).status == 503)
        assert "tail" in call(health).json()["reason"]

        cluster.start("tail").wait_ready("tail")
        after = cluster.complete("head", "Hello", max_tokens=5)
        assert after.status == 200, after.body
        assert after.json()["choices"][0]["token_ids"] == before
        wait_until(lambda: call(health).status == 200)


@pytest.mark.parametrize("order", [("tail", "middle", "head"), ("middle", "head", "tail")])
def test_nodes_start_in_any_order(tiny, tmp_path, order):
    with Cluster(tmp_path, tiny, {"head": "0", "middle": "1-2", "tail": "3"}) as cluster:
        for name in order[:-1]:
            cluster.start(name)
            if name == "head":
                wait_until(lambda: _answers(cluster.url("head")))
                assert call(cluster.url("head") + "/health").status == 503
            else:
                cluster.wait_ready(name)
        cluster.start(order[-1]).wait_ready()
        assert cluster.complete("head", "Hello", max_tokens=3).status == 200


def _answers(url):
    try:
        call(url + "/health", timeout=2)
        return True
    except OSError:
        return False


def test_a_tail_killed_in_mid_stream_ends_it_with_an_error(tiny, tmp_path):
    with Cluster(tmp_path, tiny, {"head": "0-1", "tail": "2-3"}) as cluster:
        cluster.start().wait_ready()
        connection = _post(
            cluster.url("head"),
            "/v1/completions",
            {"prompt": "Hi", "stream": True, "max_tokens": 240, "temperature": 0},
        )
        response = connection.getresponse()
        assert response.status == 200
        first = response.readline()
        assert first.startswith(b"data: ")
        cluster.kill("tail")
        events = list(sse_events(first + response.read()))
        assert "error" in json.loads(events[-1]), "one error event ends the stream"
        assert "tail" in json.loads(events[-1])["error"]["message"]
        assert not any(event == "[DONE]" or '"finish_reason":"stop"' in event for event in events)
        connection.close()
        assert cluster.alive("head")


def _post(url, path, body):
    connection = http.client.HTTPConnection(url.removeprefix("http://"), timeout=60)
    connection.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
    return connection


@pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole answer"])
def test_a_generation_ends_when_its_client_leaves(tiny, tmp_path, stream):
    body = {"prompt": "Hi", "max_tokens": 240, "temperature": 0}
    with Cluster(tmp_path, tiny, {"head": "0-1", "tail": "2-3"}) as cluster:
        cluster.start().wait_ready()
        uncut = call(cluster.url("head") + "/v1/completions", body).json()
        assert uncut["usage"]["completion_tokens"] == 240, "else there is nothing to cut short"
        before = all_steps(cluster, "tail")
        assert before >= 240

        connection = _post(cluster.url("head"), "/v1/completions", {**body, "stream": stream})
        if stream:
            connection.getresponse().readline()
        wait_until(lambda: all_steps(cluster, "tail") > before + 3)
        connection.close()
        made = settled_steps(cluster, "tail") - before
        assert 3 < made < 160, "the generation went on without its client"

        assert cluster.complete("head", "Hello", max_tokens=3).status == 200
        assert call(cluster.url("head") + "/status").json()["queue_length"] == 0


def all_steps(cluster, name):
    return sum(steps(cluster, name).values())


def settled_steps(cluster, name):
    """The step count once it has stood still for a second."""
    deadline = time.monotonic() + 30
    count, since = all_steps(cluster, name), time.monotonic()
    while time.monotonic() - since < 1:
        assert time.monotonic() < deadline, "steps go on and on"
        time.sleep(0.05)
        if (now := all_steps(cluster, name)) != count:
            count, since = now, time.monotonic()
    return count


def test_sigterm_lets_a_request_end(tiny, tmp_path):
    with Cluster(tmp_path, tiny, {"solo": "0-3"}) as cluster:
        cluster.start().wait_ready()
        connection = _post(
            cluster.url("solo"),
            "/v1/completions",
            {"prompt": "Hi", "stream": True, "max_tokens": 60, "temperature": 0},
        )
        response = connection.getresponse()
        first = response.readline()
        assert cluster.stop("solo") == 0
        events = list(sse_events(first + response.read()))
        assert events[-1] == "[DONE]"


def test_the_cluster_token_opens_forward_and_status(tiny, tmp_path):
    token = secrets.token_hex(16)
    environment = {"MESHNET_CLUSTER_TOKEN": token}
    with Cluster(tmp_path, tiny, {"head": "0-1", "tail": "2-3"}, log_level="trace") as cluster:
        cluster.start(env=environment).wait_ready()
        assert cluster.chat("head", "Hello", max_tokens=3).status == 200, "clients need no token"
        assert all_steps(cluster, "tail") >= 3
        for name in ("head", "tail"):
            status = cluster.url(name) + "/status"
            assert call(status).status == 401
            assert call(status, headers={"Authorization": f"Bearer {token}"}).status == 200
            assert token not in cluster.log(name)


def test_wrong_cluster_token_is_refused(tiny, tmp_path):
    ours, theirs = secrets.token_hex(16), secrets.token_hex(16)
    with Cluster(tmp_path, tiny, {"head": "0-1", "tail": "2-3"}, log_level="trace") as cluster:
        cluster.start("head", env={"MESHNET_CLUSTER_TOKEN": ours})
        cluster.start("tail", env={"MESHNET_CLUSTER_TOKEN": theirs}).wait_ready("tail")
        wait_until(lambda: _answers(cluster.url("head")))
        for path, method in [("/forward", "POST"), ("/status", "GET"), ("/sessions/x", "DELETE")]:
            body = b"" if method == "POST" else None
            assert call(cluster.url("tail") + path, body, method=method).status == 401
        right = {"Authorization": f"Bearer {theirs}"}
        assert call(cluster.url("tail") + "/status", headers=right).status == 200
        assert call(cluster.url("tail") + "/health").status == 200, "health needs no token"
        answer = cluster.complete("head", "Hello", max_tokens=1)
        assert answer.status == 502
        assert "cluster token" in answer.json()["error"]["message"]
        for token in (ours, theirs):
            assert token not in cluster.log("head") + cluster.log("tail")
            assert token not in answer.body.decode()


def test_ipv6_listen_and_peer(tiny, tmp_path):
    with socket.socket(socket.AF_INET6) as probe:
        try:
            probe.bind(("::1", 0))
        except OSError:
            pytest.fail("this machine has no IPv6 loopback")
        port = probe.getsockname()[1]
    nodes = {
        "head": "0-1",
        "tail": {"layers": "2-3", "listen": f"[::]:{port}", "url": f"http://[::1]:{port}"},
    }
    with Cluster(tmp_path, tiny, nodes) as cluster:
        cluster.start().wait_ready()
        assert cluster.complete("head", "Hello", max_tokens=2).status == 200
        assert f"[::]:{port}" in cluster.log("tail")


def test_the_log_reader_may_go(tiny, tmp_path):
    with Cluster(tmp_path, tiny, {"head": "0-1", "tail": "2-3"}, log_level="debug") as cluster:
        cluster.start("tail").wait_ready("tail")
        reader, writer = os.pipe()
        head = subprocess.Popen(
            [BINARY, "serve", "--config", cluster.config, "--node", "head"],
            stdin=subprocess.DEVNULL,
            stdout=writer,
            stderr=writer,
        )
        os.close(writer)
        cluster.processes["head"] = head
        wait_until(lambda: _answers(cluster.url("head")))
        os.close(reader)
        cluster.stop("tail")  # which the head logs
        wait_until(lambda: call(cluster.url("head") + "/health").status == 503)
        assert cluster.alive("head")
