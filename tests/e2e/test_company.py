"""Many sessions at once: each gives the answer that it gives alone, and none is refused or given up for another."""

import random
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from cluster import (
    Cluster,
    forward,
    ids_of,
    misses,
    sessions,
    state_bytes,
    status,
    steps,
    wait_until,
)
from tiny import HIDDEN, PAIR, complete

VERY_LONG = [(i * 37) % 4000 + 3 for i in range(8000)]
ROW = bytes(4 * HIDDEN)


@pytest.fixture(scope="module")
def layouts(tiny, tmp_path_factory):
    tail = {"layers": "2-3", "cache": {"max_sessions": 6}}
    nodes = {"head": "0-1", "tail": tail, "whole": "0-3"}  # the head prefers the first of two
    directory = tmp_path_factory.mktemp("company")
    with Cluster(directory, tiny, nodes, dtype="float32") as cluster:
        yield cluster.start().wait_ready()


def test_sixteen_sessions_each_give_their_serial_answer(layouts, reference):
    """The head runs 8 at once, the tail keeps 6: some are evicted in mid-answer and prefilled again."""
    rng = random.Random(7)
    prompts = [[rng.randrange(3, 40000) for _ in range(rng.randrange(1, 40))] for _ in range(16)]
    expected = [reference(prompt, 24) for prompt in prompts]
    names = [rng.choice(["head", "head", "whole"]) for _ in prompts]

    def run(i):
        time.sleep(rng.random() * 0.2)
        return ids_of(complete(layouts, prompts[i], name=names[i], tokens=24))

    with ThreadPoolExecutor(16) as pool:
        got = list(pool.map(run, range(16)))
    for ids, whole in zip(got, expected, strict=True):
        assert ids == whole[: len(ids)] and (len(ids) == 24 or ids[-1] == 2)
    assert misses(layouts, "tail").get("evicted_lru", 0) > 0
    for name in ("head", "tail", "whole"):
        wait_until(lambda name=name: state_bytes(layouts, name) == 0)


def test_no_more_run_than_the_heads_bytes_hold(tiny, tmp_path, reference):
    """Its budget has room for two sessions: the others wait in line, and none evicts another."""
    prompts = [[(i * 37 + n) % 4000 + 3 for i in range(200)] for n in range(8)]
    expected = [reference(prompt, 16) for prompt in prompts]
    # 2 layers x 2 (k, v) x 2 heads x 32 x 4 bytes = 1 KiB a token, 256 tokens at a time
    nodes = {**PAIR, "head": {"layers": "0-1", "cache": {"max_bytes": "600KiB"}}}
    limits = {"limits": {"prefill_chunk": 64}}
    with Cluster(tmp_path, tiny, nodes, dtype="float32", **limits) as cluster:
        cluster.start().wait_ready()
        with ThreadPoolExecutor(8) as pool:
            answers = pool.map(lambda prompt: complete(cluster, prompt, tokens=16), prompts)
            assert [ids_of(answer) for answer in answers] == expected
        assert misses(cluster, "head") == misses(cluster, "tail") == {}
        wait_until(lambda: state_bytes(cluster, "head") == 0)


def test_a_decode_beside_a_long_prefill(roomy, tmp_path):
    """A node is at work on another's chunk for longer than a decode takes: it is well, and waited for."""
    timeouts = {"timeouts": {"decode_ms": 100, "prefill_ms_per_token": 5}}
    limits = {"limits": {"prefill_chunk": len(VERY_LONG)}}
    with Cluster(tmp_path, roomy, PAIR, dtype="float32", **timeouts, **limits) as cluster:
        cluster.start().wait_ready()
        alone = ids_of(complete(cluster, tokens=240))
        before = steps(cluster, "tail")["prefill"]
        started = len(cluster.log("head"))  # a tail that starts later is missed until it is there
        with ThreadPoolExecutor(1) as pool:
            beside = pool.submit(complete, cluster, tokens=240)
            wait_until(lambda: sessions(cluster, "tail"))
            assert not beside.done()
            assert complete(cluster, VERY_LONG, tokens=1).status == 200
            assert ids_of(beside.result()) == alone
        assert steps(cluster, "tail")["prefill"] - before == 2, "none was repeated"
        assert "does not answer" not in cluster.log("head")[started:]


def occupied(cluster, pool, steps_waiting):
    """The tail is busy for a while, and so many steps wait there."""
    busy = []
    for queued in range(1 + steps_waiting):
        body = bytes(4 * HIDDEN * len(VERY_LONG))
        busy.append(pool.submit(forward, cluster.url("tail"), body))
        wait_until(lambda queued=queued: status(cluster, "tail")["queue_length"] == queued + 1)
    return busy


def test_a_full_queue_refuses_the_new_and_serves_the_admitted(roomy, tmp_path):
    with Cluster(tmp_path, roomy, PAIR, dtype="float32", limits={"max_queue": 1}) as cluster:
        cluster.start().wait_ready()
        url, kept = cluster.url("tail"), {"Session": "kept"}
        assert forward(url, ROW * 3, Cache="prefill", **kept).status == 200
        with ThreadPoolExecutor(3) as pool:
            busy = occupied(cluster, pool, steps_waiting=1)
            for refused in (
                forward(url, ROW, Session="new", Cache="prefill"),
                forward(url, ROW),
                complete(cluster, tokens=1),
            ):
                assert refused.status == 429, refused.body
                assert int(refused.headers["Retry-After"]) >= 1
                assert b"queue_full" in refused.body
            assert forward(url, ROW, Cache="decode", Past_Len=3, **kept).status == 200
            more = forward(url, ROW * 2, Cache="prefill", Past_Len=4, **kept)
            assert more.status == 200
            assert all(answer.result().status == 200 for answer in busy)


def test_a_full_line_at_the_head_is_told_to_the_client(roomy, tmp_path):
    head = {"layers": "0-1", "cache": {"max_sessions": 1}, "limits": {"max_queue": 1}}
    with Cluster(tmp_path, roomy, {**PAIR, "head": head}, dtype="float32") as cluster:
        cluster.start().wait_ready()
        with ThreadPoolExecutor(4) as pool:
            first = pool.submit(complete, cluster, tokens=1000)
            wait_until(lambda: sessions(cluster, "head"))
            others = [pool.submit(complete, cluster, tokens=1) for _ in range(3)]
            wait_until(lambda: sum(other.done() for other in others) == 2)
            assert not first.done()
            refused = [other.result() for other in others if other.done()]
            assert [answer.status for answer in refused] == [429, 429]
            for answer in refused:
                assert int(answer.headers["Retry-After"]) >= 1
                assert answer.json()["error"]["code"] == "queue_full"
            assert first.result().status == 200


def test_a_step_that_waits_is_superseded_by_the_next_epoch(roomy, tmp_path):
    with Cluster(tmp_path, roomy, PAIR, dtype="float32") as cluster:
        cluster.start().wait_ready()
        url = cluster.url("tail")
        assert forward(url, ROW * 3, Session="s", Cache="prefill").status == 200
        with ThreadPoolExecutor(3) as pool:
            occupied(cluster, pool, steps_waiting=0)
            old = pool.submit(forward, url, ROW, Session="s", Cache="decode", Past_Len=3)
            wait_until(lambda: status(cluster, "tail")["queue_length"] == 2)
            new = forward(url, ROW * 4, Session="s", Cache="prefill", Epoch=2, Protocol=1)
            assert new.status == 200, new.body
            assert (old.result().status, old.result().json()["reason"]) == (409, "superseded_epoch")
        assert misses(cluster, "tail") == {"superseded_epoch": 1}
        (held,) = sessions(cluster, "tail")
        assert (held["epoch"], held["tokens"]) == (2, 4)


@pytest.mark.parametrize("deterministic", [True, False])
def test_an_answer_does_not_depend_on_its_company(tiny, tmp_path, deterministic):
    """B55, in bfloat16: exactly when deterministic; else logits may round otherwise, and steps run packed."""
    with Cluster(tmp_path, tiny, PAIR, deterministic=deterministic) as cluster:
        cluster.start().wait_ready()
        alone = ids_of(complete(cluster))
        for round_ in range(20 if deterministic else 1):
            with ThreadPoolExecutor(8) as pool:
                others = [
                    pool.submit(complete, cluster, [round_ + 3] * (2 + 5 * i), tokens=24)
                    for i in range(7)
                ]
                beside = ids_of(complete(cluster))
                for other in others:
                    assert other.result().status == 200
            if deterministic:
                assert beside == alone
