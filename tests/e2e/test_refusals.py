"""Requests that are refused by their header alone, at a real node."""

import secrets
import socket
import time

import pytest
from cluster import Cluster, call


@pytest.fixture(scope="module")
def guarded(tiny, tmp_path_factory):
    token = secrets.token_hex(16)
    with Cluster(tmp_path_factory.mktemp("guarded"), tiny, {"solo": "0-3"}) as cluster:
        cluster.start(env={"MESHNET_CLUSTER_TOKEN": token}).wait_ready()
        yield cluster, {"Authorization": f"Bearer {token}"}


def first_answer(cluster, head):
    """What a node says to a header alone, and how long that took."""
    host, port = cluster.url("solo").removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=10) as connection:
        started = time.monotonic()
        connection.sendall(head.encode() + b"\r\n\r\n")
        return connection.recv(4096).decode(), time.monotonic() - started


@pytest.mark.parametrize(
    "line",
    [
        "POST /forward",
        "POST /forward?x=1",
        "POST http://solo/forward",
        "GET /forward",
        "DELETE /sessions/x",
        "GET /status",
        "GET http://solo/status?x",
        "PUT /status",
    ],
)
@pytest.mark.parametrize("token", ["", "Authorization: Bearer wrong\r\n"], ids=["none", "wrong"])
def test_without_the_token_no_body_is_read(guarded, line, token):
    cluster, _ = guarded
    head = f"{line} HTTP/1.1\r\nHost: solo\r\n{token}Expect: 100-continue\r\nContent-Length: {20 << 20}"
    answer, seconds = first_answer(cluster, head)
    assert answer.startswith("HTTP/1.1 401 "), answer
    assert '"unauthorized"' in answer and "WWW-Authenticate: Bearer" in answer
    assert seconds < 2


def test_clients_need_no_token(guarded):
    cluster, right = guarded
    url = cluster.url("solo")
    assert cluster.complete("solo", "Hello", max_tokens=1).status == 200
    assert call(url + "/health").status == call(url + "/metrics").status == 200
    assert call(url + "/status", headers=right).status == 200
    released = call(url + "/sessions/x?y=z", headers=right, method="DELETE")
    assert released.status == 200 and released.json() == {"released": False}
    assert call(url + "/forward", b"", headers=right, method="POST").status == 400


def test_other_transfer_codings_are_refused_in_words(guarded):
    cluster, _ = guarded
    head = "POST /v1/completions HTTP/1.1\r\nHost: solo\r\nTransfer-Encoding: gzip, chunked"
    answer, _ = first_answer(cluster, head)
    assert answer.startswith("HTTP/1.1 501 "), answer
    assert "expected chunked and nothing else" in answer and '"error"' in answer
