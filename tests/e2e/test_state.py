"""Session state over HTTP: the same ids whatever keeps it, what travels, and what is held where."""

from concurrent.futures import ThreadPoolExecutor

import pytest
from actions import restart_tail, send_twice
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
from proxy import behind_proxy
from tiny import HIDDEN, PAIR, PROMPT, TOKENS, TRIO, complete


@pytest.fixture(scope="module")
def layouts(tiny, tmp_path_factory):
    nodes = {**PAIR, "whole": "0-3"}  # the head prefers the first of two
    directory = tmp_path_factory.mktemp("state")
    with Cluster(directory, tiny, nodes, dtype="float32") as cluster:
        yield cluster.start().wait_ready()


def proxied_pair(tiny, directory, **tail):
    return behind_proxy(tiny, directory, "tail", {**PAIR, "tail": {"layers": "2-3", **tail}})


def test_one_node_and_two_have_the_ids_of_transformers(layouts, expected):
    assert ids_of(complete(layouts, name="whole")) == expected
    assert ids_of(complete(layouts, name="head")) == expected


def test_decodes_are_what_travels(tiny, tmp_path, expected):
    with proxied_pair(tiny, tmp_path) as (cluster, proxy):
        assert ids_of(complete(cluster)) == expected
        assert proxy.modes() == ["prefill"] + ["decode"] * (TOKENS - 1)
        for n, (headers, body) in enumerate(proxy.received[1:]):
            assert headers["X-Meshnet-Past-Len"] == str(len(PROMPT) + n)
            meta = int(headers["X-Meshnet-Meta-Length"])
            assert len(body) - meta == HIDDEN * 4
            head = sum(len(name) + len(value) + 4 for name, value in headers.items())
            assert head + meta + len("POST /forward HTTP/1.1\r\n\r\n") < 1024
        assert len({headers["X-Meshnet-Session"] for headers, _ in proxy.received}) == 1


@pytest.mark.parametrize("chunk", [1, 3, 64])
def test_prefill_in_chunks(tiny, tmp_path, reference, chunk):
    prompt = [(i * 37) % 4000 + 3 for i in range(70)]
    limits = {"limits": {"prefill_chunk": chunk}}
    with Cluster(tmp_path, tiny, TRIO, dtype="float32", **limits) as cluster:
        cluster.start().wait_ready()
        assert ids_of(complete(cluster, prompt, tokens=8)) == reference(prompt, 8)
        assert steps(cluster, "tail")["prefill"] == -(-70 // chunk)


def test_caching_that_is_off_costs_a_prefill_a_step(tiny, tmp_path, expected):
    with proxied_pair(tiny, tmp_path, cache={"enabled": False}) as (cluster, proxy):
        assert ids_of(complete(cluster)) == expected
        modes = proxy.modes()
        assert modes == ["prefill", "decode"] + ["prefill"] * (TOKENS - 1)
        shown = status(cluster, "tail")
        assert shown["cache"]["enabled"] is False and shown["cache"]["reason"] == "caching_disabled"
        assert "cache.enabled" in shown["cache"]["message"]
        assert "keeps no session state" in cluster.log("tail")


def test_seeded_sampling_is_the_same_whatever_happens(layouts, tiny, tmp_path):
    """On one node, on two, without state, and after misses of two kinds."""
    sampled = dict(temperature=1.0, seed=11)
    whole = ids_of(complete(layouts, name="whole", **sampled))
    assert whole != ids_of(complete(layouts, name="whole", temperature=1.0, seed=12))
    assert ids_of(complete(layouts, **sampled)) == whole
    with proxied_pair(tiny, tmp_path) as (cluster, proxy):
        proxy.before_decode = {3: send_twice(proxy), 20: restart_tail(cluster)}
        assert ids_of(complete(cluster, **sampled)) == whole
        assert misses(cluster, "head") == {"seq_len_mismatch": 1, "unknown_session": 1}
    (tmp_path / "off").mkdir()
    with proxied_pair(tiny, tmp_path / "off", cache={"enabled": False}) as (cluster, _):
        assert ids_of(complete(cluster, **sampled)) == whole


def test_another_recipe_is_refused(layouts):
    ours = status(layouts, "tail")["recipe_fingerprint"]
    for recipe, answered in ((ours, 200), ("0123456789abcdef", 412)):
        answer = forward(layouts.url("tail"), bytes(4 * HIDDEN), Recipe=recipe)
        assert answer.status == answered
    assert answer.json()["error"] == "incompatible_recipe"


def test_one_token_first_chunk_is_no_decode(layouts, reference):
    """B04: state of a deleted session is never read by the next."""
    long = [(i * 13) % 3000 + 5 for i in range(50)]
    for _ in range(3):
        assert ids_of(complete(layouts, long, tokens=4)) == reference(long, 4)
        assert ids_of(complete(layouts, [9], tokens=6)) == reference([9], 6)


def test_a_session_larger_than_the_budget(tiny, tmp_path):
    # 2 layers x 2 (k, v) x 2 heads x 32 x 4 bytes = 1 KiB a token, 256 tokens at a time
    with proxied_pair(tiny, tmp_path, cache={"max_bytes": "300KiB"}) as (cluster, _):
        assert complete(cluster, tokens=8).status == 200
    (tmp_path / "small").mkdir()
    with proxied_pair(tiny, tmp_path / "small", cache={"max_bytes": "100KiB"}) as (cluster, _):
        answer = complete(cluster, tokens=8)
        assert answer.status == 507, answer.body
        assert answer.json()["error"]["code"] == "session_exceeds_budget"
        assert status(cluster, "tail")["cache"]["total_bytes"] == 0
        wait_until(lambda: state_bytes(cluster, "head") == 0)


def test_every_node_holds_its_own_layers_only(tiny, tmp_path):
    nodes = {"head": "0", "middle": "1-2", "spare": "0-2", "tail": "1-3"}
    with Cluster(tmp_path, tiny, nodes, dtype="float32") as cluster:
        cluster.start().wait_ready()
        wait_until(lambda: all(peer["usable"] for peer in status(cluster, "head")["peers"]))
        seen = {}

        def look():
            for name in nodes:
                for session in sessions(cluster, name):
                    seen[name] = session, status(cluster, name)["cache"]

        with ThreadPoolExecutor(1) as pool:
            answer = pool.submit(complete, cluster, tokens=200)
            while not answer.done():
                look()
            assert len(ids_of(answer.result())) == 200
        assert {name: session["layers"] for name, (session, _) in seen.items()} == {
            "head": "0",
            "tail": "1-3",
        }
        for session, cache in seen.values():
            capacity = -(-session["tokens"] // 256) * 256
            assert session["bytes"] == cache["bytes_per_token"] * capacity
            assert cache["bytes_per_token"] == (1 if session["layers"] == "0" else 3) * 512
        for name in nodes:
            wait_until(lambda name=name: state_bytes(cluster, name) == 0)
