"""Nodes that die or stall while they hold state: the others stay well, and the ids are those of an unbroken run."""

import http.client
import json
import os
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from cluster import (
    Cluster,
    forward,
    ids_of,
    misses,
    sessions,
    sse_events,
    state_bytes,
    wait_until,
)
from proxy import Proxy, behind_proxy
from tiny import HIDDEN, LONG, PAIR, PROMPT, TOKENS, TRIO, complete

QUICK = {"timeouts": {"decode_ms": 500, "prefill_ms_per_token": 1}, "limits": {"prefill_chunk": 64}}
STEP_LIMIT = 0.565  # seconds: of a decode over one hop, a chunk of others before it


def open_stream(cluster, tokens=TOKENS):
    """The connection, and the response whose first event has not been read yet."""
    connection = http.client.HTTPConnection(cluster.url("head").removeprefix("http://"), timeout=60)
    body = {"prompt": PROMPT, "stream": True, "max_tokens": tokens, "temperature": 0}
    body["return_token_ids"] = True
    connection.request("POST", "/v1/completions", json.dumps(body), {"Connection": "close"})
    return connection, connection.getresponse()


def streamed_ids(events):
    choices = [json.loads(event)["choices"][0] for event in events if event != "[DONE]"]
    return [token_id for choice in choices for token_id in choice.get("token_ids") or []]


class SlowProxy(Proxy):
    """A hop that takes its time: for every token, and more on its way to or from one position."""

    def __init__(self, port, target_port):
        self.seconds_per_token = 0.0
        self.stall = {}  # tokens held before the step → (seconds before, seconds after), once
        self.always_stalled_from = None
        super().__init__(port, target_port)

    def send(self, method, path, body=None, headers=None):
        if path != "/forward":
            return super().send(method, path, body, headers)
        past = int(headers.get("X-Meshnet-Past-Len", 0))
        decodes = headers.get("X-Meshnet-Cache") == "decode"
        before, after = self.stall.pop(past, (0, 0)) if decodes or past == 0 else (0, 0)
        if decodes and self.always_stalled_from and past >= self.always_stalled_from:
            before = 2 * STEP_LIMIT
        tokens = int(headers.get("X-Meshnet-Shape", "1,1").split(",")[1])
        time.sleep(self.seconds_per_token * tokens + before)
        answer = super().send(method, path, body, headers)
        time.sleep(after)
        return answer


def slowly(tiny, directory, name, nodes, **top):
    return behind_proxy(tiny, directory, name, nodes, SlowProxy, **top)


def cpu_seconds(pid):
    with open(f"/proc/{pid}/stat") as file:
        fields = file.read().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def assert_idle(cluster, *names):
    before = {name: cpu_seconds(cluster.pid(name)) for name in names}
    time.sleep(1)
    for name in names:
        assert cluster.alive(name)
        assert cpu_seconds(cluster.pid(name)) - before[name] < 0.1, f"{name} is busy"


def test_a_head_killed_in_mid_stream(tiny, tmp_path):
    """B46: the nodes it leaves behind rest, and its session ends by its TTL."""
    with Cluster(tmp_path, tiny, TRIO, dtype="float32", cache={"ttl_seconds": 1}) as cluster:
        cluster.start().wait_ready()
        expected = ids_of(complete(cluster))
        connection, response = open_stream(cluster, 240)
        assert response.readline().startswith(b"data: ")
        cluster.kill("head")
        (left,) = sessions(cluster, "tail")
        assert [session["id"] for session in sessions(cluster, "middle")] == [left["id"]]
        connection.close()

        assert_idle(cluster, "middle", "tail")
        for name in ("middle", "tail"):
            wait_until(lambda name=name: not sessions(cluster, name), seconds=3)
            assert state_bytes(cluster, name) == 0
        late = forward(
            cluster.url("tail"),
            bytes(4 * HIDDEN),
            Session=left["id"],
            Cache="decode",
            Past_Len=left["tokens"],
        )
        assert (late.status, late.json()["reason"]) == (409, "evicted_ttl")

        cluster.start("head").wait_ready("head")
        assert ids_of(complete(cluster)) == expected


def test_a_middle_node_killed_in_mid_stream(tiny, tmp_path):
    """B46: head and tail stay up and rest, also while the head looks for the node."""
    timeouts = {"timeouts": {"decode_ms": 1500}}
    with Cluster(tmp_path, tiny, TRIO, dtype="float32", **timeouts) as cluster:
        cluster.start().wait_ready()
        expected = ids_of(complete(cluster))
        connection, response = open_stream(cluster, 240)
        first = response.readline()
        cluster.kill("middle")
        assert sessions(cluster, "head"), "the answer was there before the node was gone"
        assert_idle(cluster, "head", "tail")
        events = list(sse_events(first + response.read()))
        connection.close()
        assert "middle" in json.loads(events[-1])["error"]["message"]
        assert not any('"stop"' in event for event in events)
        for name in ("head", "tail"):
            wait_until(lambda name=name: state_bytes(cluster, name) == 0, seconds=2)
        assert_idle(cluster, "head", "tail")

        cluster.start("middle").wait_ready("middle")
        assert ids_of(complete(cluster)) == expected


def test_an_empty_replacement_is_prefilled_from_the_first_position(tiny, tmp_path):
    """B07: history and position never part."""
    with slowly(tiny, tmp_path, "middle", TRIO) as (cluster, proxy):
        expected = ids_of(complete(cluster))
        proxy.forget()

        def replace(*_):
            cluster.kill("middle")
            cluster.start("middle").wait_ready("middle")

        proxy.before_decode[10] = replace
        connection, response = open_stream(cluster)
        events = list(sse_events(response.read()))
        connection.close()
        assert streamed_ids(events) == expected and events[-1] == "[DONE]"

        assert misses(cluster, "head") == misses(cluster, "middle") == {"unknown_session": 1}
        assert misses(cluster, "tail") == {}
        modes = proxy.modes()
        assert modes == ["prefill"] + ["decode"] * 10 + ["prefill"] + ["decode"] * (TOKENS - 11)
        again, _ = proxy.received[11]
        assert again.get("X-Meshnet-Past-Len", "0") == "0"
        assert again["X-Meshnet-Shape"] == f"1,{len(PROMPT) + 10},{HIDDEN}"
        assert {headers["X-Meshnet-Epoch"] for headers, _ in proxy.received} == {"1"}
        assert len({headers["X-Meshnet-Session"] for headers, _ in proxy.received}) == 1


def test_a_step_may_take_longer_the_more_tokens_it_has(tiny, tmp_path):
    """B47: 200 tokens take longer than a decode may."""
    timeouts = {"timeouts": {"decode_ms": 500, "prefill_ms_per_token": 8}}
    limits = {"limits": {"prefill_chunk": len(LONG)}}  # a decode: 2.1 s
    with slowly(tiny, tmp_path, "tail", PAIR, **timeouts, **limits) as (cluster, proxy):
        for prompt in ([9], LONG):
            proxy.seconds_per_token = 0.0
            expected = ids_of(complete(cluster, prompt, tokens=4))
            proxy.forget()
            proxy.seconds_per_token = 0.0125
            started = time.monotonic()
            assert ids_of(complete(cluster, prompt, tokens=4)) == expected
            assert time.monotonic() - started > 0.0125 * len(prompt)
            assert proxy.modes() == ["prefill", "decode", "decode", "decode"], "none was repeated"


def test_a_prefill_that_is_too_late_is_given_up(tiny, tmp_path):
    """B47: 504 names the node, within the limit; what arrives later finds the session released."""
    with slowly(tiny, tmp_path, "tail", PAIR, **QUICK) as (cluster, proxy):
        proxy.stall[0] = (1.6, 0)
        started = time.monotonic()
        answer = complete(cluster)
        took = time.monotonic() - started
        assert answer.status == 504 and "tail" in answer.json()["error"]["message"]
        assert 0.5 < took < 1.5
        wait_until(lambda: misses(cluster, "tail") == {"released": 1})
        assert state_bytes(cluster, "head") == state_bytes(cluster, "tail") == 0
        assert complete(cluster).status == 200


@pytest.mark.parametrize("before, after", [(1.1, 0), (0, 1.1)], ids=["request", "answer"])
def test_a_decode_that_is_too_late_is_never_applied_twice(tiny, tmp_path, before, after):
    """B47: after the 504 the head prefills; the late step, if it still comes, is a miss."""
    with slowly(tiny, tmp_path, "tail", PAIR, **QUICK) as (cluster, proxy):
        expected = ids_of(complete(cluster))
        proxy.forget()
        # At 0.5 s the head gives up, at 0.8 s its prefill arrives, at 1.7 s the answer ends.
        proxy.seconds_per_token = 0.02
        proxy.stall[len(PROMPT) + 7] = (before, after)
        assert ids_of(complete(cluster)) == expected
        assert not proxy.stall
        modes = proxy.modes()
        assert modes == ["prefill"] + ["decode"] * 8 + ["prefill"] + ["decode"] * (TOKENS - 9)
        assert misses(cluster, "tail") == ({"seq_len_mismatch": 1} if before else {})
        assert misses(cluster, "head") == {}, "it has heard of no miss"


def test_a_node_that_stalls_at_every_decode_ends_the_answer(tiny, tmp_path):
    with slowly(tiny, tmp_path, "tail", PAIR, **QUICK) as (cluster, proxy):
        proxy.always_stalled_from = len(PROMPT) + 3
        started = time.monotonic()
        answer = complete(cluster)
        took = time.monotonic() - started
        assert answer.status == 504 and "tail" in answer.json()["error"]["message"]
        assert 3 * STEP_LIMIT - 0.05 < took < 3 * STEP_LIMIT + 2
        assert proxy.modes().count("prefill") == 3
        for name in ("head", "tail"):
            wait_until(lambda name=name: state_bytes(cluster, name) == 0)


def test_a_position_repeated_after_a_504_is_a_miss(tiny, tmp_path):
    """B47 on the wire: the middle node has taken the step, the tail takes it late, and each once."""
    with slowly(tiny, tmp_path, "tail", TRIO, **QUICK) as (cluster, proxy):
        url = cluster.url("middle")
        row = torch.full((1, HIDDEN), 0.1).numpy().tobytes()
        kept = dict(Session="kept", Route="middle,tail", Start_Layer=1, Protocol=1, Hop_Index=1)
        assert forward(url, row * 3, Cache="prefill", **kept).status == 200
        proxy.stall[3] = (1.2, 0)
        started = time.monotonic()
        late = forward(url, row, Cache="decode", Past_Len=3, **kept)
        assert time.monotonic() - started < 1.1
        assert (late.status, late.json()["node"]) == (504, "tail")

        again = forward(url, row, Cache="decode", Past_Len=3, **kept)
        assert (again.status, again.json()["node"]) == (409, "middle")
        assert again.json()["reason"] == "seq_len_mismatch"
        wait_until(lambda: sessions(cluster, "tail")[0]["tokens"] == 4)
        kept = dict(Session="kept", Start_Layer=3)
        again = forward(cluster.url("tail"), row, Cache="decode", Past_Len=3, **kept)
        assert (again.status, again.json()["reason"]) == (409, "seq_len_mismatch")
        assert [sessions(cluster, name)[0]["tokens"] for name in ("middle", "tail")] == [4, 4]


def test_a_chained_hop_carries_the_bytes_that_a_driven_one_answers(tiny, tmp_path):
    """B44 with whole nodes, whatever the values are."""
    with slowly(tiny, tmp_path, "tail", TRIO, dtype="bfloat16") as (cluster, proxy):
        torch.manual_seed(0)
        step = dict(Session="bytes", Start_Layer=1, Protocol=1, Hop_Index=1)
        for odd in (-0.0, float("inf"), float("nan")):
            proxy.forget()
            rows = torch.randn(5, HIDDEN).bfloat16()
            rows[-1, :4] = odd
            body = rows.view(torch.uint8).numpy().tobytes()
            driven = forward(cluster.url("middle"), body, **step)
            assert driven.status == 200 and driven.headers["X-Meshnet-Dtype"] == "bfloat16"
            seam = torch.frombuffer(bytearray(driven.body), dtype=torch.bfloat16)
            assert bool(seam.isfinite().all()) == (odd == 0)

            chained = forward(cluster.url("middle"), body, Route="middle,tail", **step)
            assert chained.status == (200 if odd == 0 else 500), chained.body
            if odd != 0:
                assert chained.json()["error"] == "non_finite_logits"
            ((headers, received),) = proxy.received
            assert received == driven.body
            assert headers["X-Meshnet-Dtype"] == "bfloat16"
            assert headers["X-Meshnet-Shape"] == f"1,5,{HIDDEN}"


def test_a_stream_without_its_node_ends_with_one_error_and_is_closed(tiny, tmp_path):
    """B50: a failure never looks like an end."""
    with slowly(tiny, tmp_path, "tail", PAIR, **QUICK) as (cluster, proxy):
        expected = ids_of(complete(cluster))
        proxy.forget()
        proxy.before_decode[5] = lambda *_: cluster.kill("tail")
        connection, response = open_stream(cluster)
        started = time.monotonic()
        events = list(sse_events(response.read()))
        assert response.isclosed() and time.monotonic() - started < 2
        connection.close()
        assert streamed_ids(events[:-1]) == expected[:5]
        assert [event for event in events if "error" in event] == events[-1:]
        assert json.loads(events[-1])["error"]["code"]
        assert not any(json.loads(event)["choices"][0]["finish_reason"] for event in events[:-1])

        cluster.start("tail").wait_ready("tail")
        proxy.forget()
        proxy.before_decode[5] = lambda *_: cluster.kill("tail")
        answer = complete(cluster)
        assert answer.status == 502 and "tail" in answer.json()["error"]["message"]
        assert answer.headers.get_content_type() == "application/json"
        assert cluster.alive("head")


def test_stalls_of_one_session_leave_the_others_alone(tiny, tmp_path):
    """B47 beside company: while one answer waits for its step, another goes on, and both are right."""
    with slowly(tiny, tmp_path, "tail", PAIR, **QUICK) as (cluster, proxy):
        expected = [ids_of(complete(cluster, prompt)) for prompt in (PROMPT, [9])]
        proxy.forget()
        proxy.stall[len(PROMPT) + 30] = (0.8, 0)  # reached by the first answer only
        proxy.seconds_per_token = 0.005
        with ThreadPoolExecutor(2) as pool:
            got = pool.map(lambda prompt: ids_of(complete(cluster, prompt)), (PROMPT, [9]))
            assert list(got) == expected
