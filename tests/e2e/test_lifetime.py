"""How session state ends: with its client, with its generation, by DELETE; and nothing is left behind."""

import http.client
import json
import time
import urllib.parse
from concurrent.futures import ThreadPoolExecutor

import pytest
from cluster import Cluster, call, forward, sessions, state_bytes, steps, wait_until
from tiny import HIDDEN, PAIR, PROMPT, TRIO, complete


@pytest.mark.parametrize("nodes", [PAIR, TRIO], ids=["two nodes", "three"])
def test_a_client_that_leaves_frees_every_node(tiny, tmp_path, nodes):
    with Cluster(tmp_path, tiny, nodes, dtype="float32") as cluster:
        cluster.start().wait_ready()
        for _ in range(5):
            before = steps(cluster, "tail").get("decode", 0)
            leave_in_mid_answer(cluster)
            left = time.monotonic()
            for name in nodes:
                wait_until(lambda name=name: not sessions(cluster, name), seconds=5)
            assert time.monotonic() - left < 1
            for name in nodes:
                assert state_bytes(cluster, name) == 0
            assert steps(cluster, "tail")["decode"] - before < 160, "the answer came to its end"


def leave_in_mid_answer(cluster):
    connection = http.client.HTTPConnection(cluster.url("head").removeprefix("http://"), timeout=60)
    body = {"prompt": PROMPT, "stream": True, "max_tokens": 240, "temperature": 0}
    connection.request("POST", "/v1/completions", json.dumps(body))
    response = connection.getresponse()
    for _ in range(3):
        response.readline()
    wait_until(lambda: sessions(cluster, "tail"))
    connection.close()


def test_chunks_not_started_are_dropped_when_the_client_leaves(tiny, tmp_path):
    limits = {"limits": {"prefill_chunk": 1}}
    with Cluster(tmp_path, tiny, PAIR, **limits) as cluster:
        cluster.start().wait_ready()
        connection = http.client.HTTPConnection(
            cluster.url("head").removeprefix("http://"), timeout=60
        )
        prompt = [(i * 7) % 1000 + 3 for i in range(240)]
        connection.request("POST", "/v1/completions", json.dumps({"prompt": prompt}))
        wait_until(lambda: sessions(cluster, "tail"))
        connection.close()
        wait_until(lambda: not sessions(cluster, "head") and not sessions(cluster, "tail"))
        assert steps(cluster, "tail")["prefill"] < 240


def test_memory_stays_where_it_was(tiny, tmp_path):
    """200 generations with 8 sessions of budget."""

    def resident(name):
        for line in open(f"/proc/{cluster.pid(name)}/status"):
            if line.startswith("VmRSS:"):
                return int(line.split()[1])

    with Cluster(tmp_path, tiny, PAIR) as cluster:
        cluster.start().wait_ready()

        def run(count):
            with ThreadPoolExecutor(8) as pool:
                for answer in pool.map(lambda _: complete(cluster, tokens=16), range(count)):
                    assert answer.status == 200

        run(20)
        before = {name: resident(name) for name in ("head", "tail")}
        run(180)
        for name in ("head", "tail"):
            assert resident(name) < before[name] * 1.03, name
            assert state_bytes(cluster, name) == 0


@pytest.mark.parametrize("session", ["a/b", "a?b", "a%2Fb", "50%"])
def test_any_session_id_can_be_released(pair, session):
    """DELETE names it percent-encoded."""
    url = pair.url("tail")
    body = bytes(4 * HIDDEN)
    kept = dict(Session=session, Dtype="float32", Shape=f"1,1,{HIDDEN}")
    assert forward(url, body, Cache="prefill", **kept).status == 200
    path = "/sessions/" + urllib.parse.quote(session, safe="")
    assert call(url + path, method="DELETE").json() == {"released": True}
    assert forward(url, body, Cache="decode", Past_Len=1, **kept).json()["reason"] == "released"


def test_a_path_that_is_not_percent_encoded_is_refused(pair):
    answer = call(pair.url("tail") + "/sessions/a%zz", method="DELETE")
    assert answer.status == 400 and "%zz" in answer.json()["message"]
