"""Steps that a node cannot serve from its state: they say why, cost a prefill, and never give wrong text."""

import resource
import shutil
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from actions import (
    evict_by_another,
    outlive_ttl,
    restart_tail,
    send_twice,
    start_elsewhere,
)
from cluster import (
    Cluster,
    call,
    forward,
    ids_of,
    misses,
    sessions,
    status,
    steps,
    wait_until,
)
from proxy import behind_proxy
from tiny import HIDDEN, PAIR, PROMPT, complete

STEPS = (1, 7, 40)  # decodes, counted over the whole answer


def proxied_pair(tiny, directory, **tail):
    return behind_proxy(tiny, directory, "tail", {**PAIR, "tail": {"layers": "2-3", **tail}})


@pytest.mark.parametrize(
    "reason, action, tail",
    [
        ("evicted_lru", evict_by_another, {"cache": {"max_sessions": 1}}),
        ("evicted_ttl", outlive_ttl, {"cache": {"ttl_seconds": 1}}),
        ("seq_len_mismatch", send_twice, {}),
        ("start_layer_mismatch", start_elsewhere, {"layers": "1-3"}),
    ],
)
def test_a_miss_costs_a_prefill_and_nothing_else(tiny, tmp_path, expected, reason, action, tail):
    with proxied_pair(tiny, tmp_path, **tail) as (cluster, proxy):
        for n, step in enumerate(STEPS):
            # Each miss adds a prefill whose token the decode that missed would have made.
            proxy.before_decode[step + n] = action(proxy)
        assert ids_of(complete(cluster)) == expected
        assert misses(cluster, "tail") == {reason: 3}
        assert misses(cluster, "head") == {reason: 3}
        assert f"tail missed ({reason})" in cluster.log("head")
        assert f"missed ({reason})" in cluster.log("tail")
        assert proxy.modes().count("prefill") == 4
        assert len({headers["X-Meshnet-Session"] for headers, _ in proxy.received}) == 1
        assert {headers["X-Meshnet-Epoch"] for headers, _ in proxy.received} == {"1"}


def test_a_node_restarted_in_mid_answer(tiny, tmp_path, expected):
    with proxied_pair(tiny, tmp_path) as (cluster, proxy):
        for n, step in enumerate(STEPS):
            proxy.before_decode[step + n] = restart_tail(cluster)
        assert ids_of(complete(cluster)) == expected
        assert misses(cluster, "head") == {"unknown_session": 3}


def test_a_node_that_comes_back_within_its_time(tiny, tmp_path, reference):
    """The hop is really gone for a while: the head waits for it, and the client sees one answer."""
    expected = reference(PROMPT, 240)
    with Cluster(tmp_path, tiny, PAIR, dtype="float32") as cluster:
        cluster.start().wait_ready()
        assert complete(cluster, tokens=3).status == 200
        with ThreadPoolExecutor(1) as pool:
            for _ in range(3):
                before = steps(cluster, "head")
                answer = pool.submit(complete, cluster, tokens=240)
                wait_until(
                    lambda before=before: steps(cluster, "head")["decode"] > before["decode"] + 2
                )
                cluster.kill("tail")
                assert not answer.done()
                time.sleep(0.3)
                cluster.start("tail").wait_ready("tail")
                assert ids_of(answer.result()) == expected
                assert steps(cluster, "head")["prefill"] > before["prefill"] + 1, (
                    "it was whole before"
                )


@pytest.mark.parametrize("step", STEPS)
def test_a_released_session_stays_released(tiny, tmp_path, step):
    """DELETE means no more of this session: the generation ends with an error, never with wrong text."""
    with proxied_pair(tiny, tmp_path) as (cluster, proxy):
        proxy.before_decode[step] = lambda headers, _: proxy.send(
            "DELETE", "/sessions/" + headers["X-Meshnet-Session"]
        )
        answer = complete(cluster)
        assert answer.status == 502 and "was released" in answer.json()["error"]["message"]
        assert misses(cluster, "head") == misses(cluster, "tail") == {"released": 1}
        assert proxy.modes() == ["prefill"] + ["decode"] * step
        assert complete(cluster, tokens=3).status == 200


@pytest.mark.parametrize(
    "spare", ["1-2", "0-2", "1-3"], ids=["duplicate", "overlapping before", "overlapping after"]
)
def test_another_route_when_a_hop_is_gone(tiny, tmp_path, expected, spare):
    nodes = {"head": "0", "middle": "1-2", "spare": spare, "tail": "3"}
    gone = "spare" if spare == "1-3" else "middle"  # the one in the route with the fewest hops
    with behind_proxy(tiny, tmp_path, gone, nodes) as (cluster, proxy):
        # Both must be known to the head, or there is nothing to choose from.
        wait_until(lambda: all(peer["usable"] for peer in status(cluster, "head")["peers"]))
        proxy.before_decode[7] = lambda *_: cluster.kill(gone)
        assert ids_of(complete(cluster)) == expected
        assert gone not in cluster.processes
        assert "goes on over" in cluster.log("head") and "with epoch 2" in cluster.log("head")


def test_a_hop_of_an_earlier_route_is_told_of_the_end(tiny, tmp_path, expected):
    """It lives, and only one connection to it was lost: its state must not wait for the TTL."""
    nodes = {"head": "0", "middle": "1-2", "spare": "1-2", "tail": "3"}
    with behind_proxy(tiny, tmp_path, "middle", nodes) as (cluster, proxy):
        wait_until(lambda: all(peer["usable"] for peer in status(cluster, "head")["peers"]))
        held = []

        def lose(*_):
            held.extend(sessions(cluster, "middle"))
            raise ConnectionResetError

        proxy.before_decode = {7: lose, 8: lose}  # one on a connection kept alive is sent again
        assert ids_of(complete(cluster)) == expected
        assert [session["epoch"] for session in held] == [1, 1]
        assert "goes on over spare" in cluster.log("head")
        for name in nodes:
            wait_until(lambda name=name: not sessions(cluster, name), seconds=2)


@pytest.fixture(scope="module")
def pair32(tiny, tmp_path_factory):
    with Cluster(tmp_path_factory.mktemp("pair32"), tiny, PAIR, dtype="float32") as cluster:
        yield cluster.start().wait_ready()


def test_a_stale_epoch_is_refused(pair32):
    def step(epoch, cache="prefill", **more):
        fields = dict(Session="epochs", Protocol=1, Cache=cache, Epoch=epoch, **more)
        return forward(pair32.url("tail"), bytes(4 * HIDDEN), **fields)

    decode = dict(cache="decode", Past_Len=1)
    assert step(2).status == 200
    assert step(3).status == 200
    for answer in (step(2), step(1), step(2, **decode)):
        assert answer.status == 412 and answer.json()["error"] == "stale_route_epoch"
    assert step(3, **decode).status == 200, "the state is unharmed"


def test_bad_steps_change_no_state(pair32):
    """B04 and B47 at the wire: past length and start layer are checked before state is touched."""
    url = pair32.url("tail")

    def step(tokens, cache, past, **more):
        body = torch.full((tokens, HIDDEN), 0.1).numpy().tobytes()
        return forward(url, body, Session="kept", Cache=cache, Past_Len=past, **more)

    assert step(5, "prefill", 0).status == 200
    for past, start, reason in (
        (4, 2, "seq_len_mismatch"),
        (5, 3, "start_layer_mismatch"),
        (5, 1, "start_layer_mismatch"),
    ):
        answer = step(1, "decode", past, Start_Layer=start)
        assert (answer.status, answer.json()["reason"]) == (409, reason)
    assert forward(url, b"123", Session="kept").status == 400
    assert step(1, "decode", 5).status == 200
    again = step(1, "decode", 5)
    assert (again.status, again.json()["reason"]) == (409, "seq_len_mismatch"), "a repeated step"
    assert step(1, "decode", 6).status == 200
    assert call(url + "/sessions/kept", method="DELETE").json()["released"]
    late = step(5, "prefill", 0)
    assert (late.status, late.json()["reason"]) == (409, "released"), "not revived"


@pytest.fixture(scope="module")
def wide(tmp_path_factory, tiny):
    """A model of 2 layers whose MLP takes 128 KiB of memory a token and more."""
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig.from_pretrained(
        tiny, num_hidden_layers=2, intermediate_size=32768, max_position_embeddings=4096
    )
    directory = tmp_path_factory.mktemp("wide") / "model"
    shutil.copytree(tiny, directory)
    LlamaForCausalLM(config).to(torch.bfloat16).save_pretrained(directory)
    return directory


def test_memory_that_is_not_there_ends_the_session_of_that_step_only(wide, tmp_path):
    with Cluster(tmp_path, wide, {"head": "0", "tail": "1"}, dtype="float32") as cluster:
        cluster.start().wait_ready()
        url, row = cluster.url("tail"), bytes(4 * HIDDEN)
        for session in ("small", "large"):
            assert forward(url, row * 3, Session=session, Cache="prefill").status == 200

        limit = virtual_bytes(cluster.pid("tail")) + (64 << 20)
        hard = resource.prlimit(cluster.pid("tail"), resource.RLIMIT_AS)[1]
        resource.prlimit(cluster.pid("tail"), resource.RLIMIT_AS, (limit, hard))
        refused = forward(url, row * 2000, Session="large", Cache="prefill", Past_Len=3)
        assert (refused.status, refused.json()["error"]) == (503, "out_of_memory"), refused.body
        assert refused.json()["node"] == "tail" and refused.json()["layers"] == "1"
        assert [session["id"] for session in sessions(cluster, "tail")] == ["small"]
        assert forward(url, row, Session="small", Cache="decode", Past_Len=3).status == 200

        resource.prlimit(cluster.pid("tail"), resource.RLIMIT_AS, (hard, hard))
        gone = forward(url, row, Session="large", Cache="decode", Past_Len=3)
        assert (gone.status, gone.json()["reason"]) == (409, "unknown_session")
        assert forward(url, row * 2000, Session="large", Cache="prefill").status == 200


def virtual_bytes(pid):
    with open(f"/proc/{pid}/statm") as file:
        return int(file.read().split()[0]) * resource.getpagesize()
