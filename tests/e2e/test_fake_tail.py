"""A real head and a scripted tail: answers that no node of ours gives, and those that are rare."""

import json
import time

import pytest
from cluster import Cluster, call, ids_of, wait_until
from fake_tail import HIDDEN, LAYERS, NAME, TENSOR, Tail, answer, error, miss, token

PROMPT = [1000, 2000, 3000]
FIXED_HEADERS = {
    "x-meshnet-session",
    "x-meshnet-cache",
    "x-meshnet-past-len",
    "x-meshnet-hop-index",
    "x-meshnet-start-layer",
}


@pytest.fixture(scope="module")
def cluster(tiny, tmp_path_factory):
    directory = tmp_path_factory.mktemp("fake-tail")
    with Cluster(directory, tiny, {"head": "0-1", NAME: LAYERS}) as cluster:
        yield cluster.start("head")


@pytest.fixture(scope="module")
def shared_tail(cluster):
    def head_status():
        try:
            return call(cluster.url("head") + "/status", timeout=2).json()
        except OSError:
            return {}

    wait_until(lambda: head_status().get("state") == "ready", seconds=60)
    status = {
        "protocol": 1,
        "state": "ready",
        "model_fingerprint": head_status()["model_fingerprint"],
    }
    tail = Tail(int(cluster.url(NAME).rsplit(":", 1)[1]), answer(200, status))
    yield tail
    tail.close()


@pytest.fixture
def tail(cluster, shared_tail):
    """Ready, with protocol 1; and after the test the head must answer as if nothing had been."""
    wait_for_protocol(cluster, 1)
    shared_tail.play()
    yield shared_tail
    shared_tail.status = shared_tail.ready
    wait_for_protocol(cluster, 1)
    shared_tail.play(token(1000), token(2000))
    assert ids_of(generate(cluster, 2)) == [1000, 2000]
    assert cluster.alive("head")


def peer(cluster):
    return call(cluster.url("head") + "/status").json()["peers"][0]


def wait_for_protocol(cluster, protocol):
    wait_until(lambda: peer(cluster)["usable"] and peer(cluster)["protocol"] == protocol)


def generate(cluster, max_tokens, **fields):
    return cluster.complete("head", PROMPT, max_tokens=max_tokens, **fields)


def check_error(answer, status):
    """An error in OpenAI's shape, whose message says which node."""
    assert answer.status == status, answer.body
    error = answer.json()["error"]
    assert error["type"] and error["code"]
    assert NAME in error["message"], error
    return error


@pytest.mark.parametrize(
    "bad",
    [
        token(10**9),
        token(49152),
        token(-1),
        answer(200, b'{"text": "x", "tok', X_Meshnet_Protocol="1"),
        answer(200, b"", X_Meshnet_Protocol="1"),
        TENSOR,
        answer(200, {"text": "x"}, X_Meshnet_Protocol="1"),
        token(None),
        token("7"),
    ],
    ids=[
        "id far out of range",
        "id one out of range",
        "id below zero",
        "broken JSON",
        "no body",
        "a tensor",
        "no token_id",
        "null token_id",
        "token_id as text",
    ],
)
@pytest.mark.parametrize("before", [0, 1], ids=["at once", "after a token"])
def test_an_answer_that_is_no_token(cluster, tail, bad, before):
    tail.play(*[token(1000)] * before, bad)
    check_error(generate(cluster, 4), 502)


def test_three_misses_in_a_row_end_a_generation(cluster, tail):
    tail.play(token(1000), miss(), miss(), miss(), token(2000))
    check_error(generate(cluster, 8), 502)
    assert len(tail.received) == 4


@pytest.mark.parametrize(
    "script, ids",
    [
        ([token(1000), miss(), token(2000), token(3000)], [1000, 2000, 3000]),
        ([token(1000), miss(), miss(), token(2000), token(3000)], [1000, 2000, 3000]),
        ([token(1000), *[miss(), token(2000), token(3000)] * 4], [1000, *[2000, 3000] * 4]),
    ],
    ids=["once", "twice in a row", "four times, with served steps between them"],
)
def test_fewer_misses_leave_the_answer_unharmed(cluster, tail, script, ids):
    tail.play(*script)
    assert ids_of(generate(cluster, len(ids))) == ids
    assert tail.script == []


def test_a_miss_is_answered_by_one_prefill_of_everything(cluster, tail):
    tail.play(token(1000), token(2000), miss(), token(3000), token(4000))
    assert ids_of(generate(cluster, 4)) == [1000, 2000, 3000, 4000]
    assert tail.modes() == ["prefill", "decode", "decode", "prefill", "decode"]
    rows = (3, 1, 1, 5, 1)
    shapes = [headers["x-meshnet-shape"] for headers, _ in tail.received]
    assert shapes == [f"1,{tokens},{HIDDEN}" for tokens in rows]
    assert [headers["x-meshnet-past-len"] for headers, _ in tail.received] == list("03405")
    assert [len(body) for _, body in tail.received] == [
        int(headers["x-meshnet-meta-length"]) + tokens * HIDDEN * 2
        for (headers, _), tokens in zip(tail.received, rows, strict=True)
    ]
    assert len({headers["x-meshnet-session"] for headers, _ in tail.received}) == 1


def test_without_state_every_step_carries_the_whole_sequence(cluster, tail):
    off = miss("caching_disabled")
    tail.play(token(1000), off, token(2000), token(3000), token(4000))
    assert ids_of(generate(cluster, 4)) == [1000, 2000, 3000, 4000]
    assert tail.modes() == ["prefill", "decode", "prefill", "prefill", "prefill"]
    shapes = [headers["x-meshnet-shape"] for headers, _ in tail.received]
    assert shapes == [f"1,{tokens},{HIDDEN}" for tokens in (3, 1, 4, 5, 6)]


@pytest.mark.parametrize("body", ["ours", "a proxy's", "an old node's"])
@pytest.mark.parametrize("status", [409, 502, 503, 504])
def test_a_decode_lost_on_the_way_is_made_good_by_a_prefill(cluster, tail, status, body):
    """Old nodes and proxies have bodies of their own: there the status says it."""
    lost = miss() if status == 409 else error(status, "lost")
    if body == "a proxy's":
        lost = answer(status, b"<html>a proxy's page</html>", "text/html")
    elif body == "an old node's":
        lost = answer(status, {"error": "unknown session"})
    tail.play(token(1000), lost, token(2000), token(3000))
    assert ids_of(generate(cluster, 3)) == [1000, 2000, 3000]
    assert tail.modes() == ["prefill", "decode", "prefill", "decode"]
    assert {headers["x-meshnet-epoch"] for headers, _ in tail.received} == {"1"}


def test_a_node_without_memory_for_a_step_is_not_given_up(cluster, tail):
    """Its session is gone, but it lives, and stays in the route."""
    was_ready = cluster.log("head").count(f"node {NAME} ")
    tail.play(token(1000), error(503, "out_of_memory"), token(2000), token(3000))
    assert ids_of(generate(cluster, 3)) == [1000, 2000, 3000]
    assert tail.modes() == ["prefill", "decode", "prefill", "decode"]
    assert {headers["x-meshnet-epoch"] for headers, _ in tail.received} == {"1"}
    assert cluster.log("head").count(f"node {NAME} ") == was_ready, "neither gone nor back"


@pytest.mark.parametrize(
    "failure, status",
    [
        (error(412, "stale_route_epoch"), 502),
        (error(507, "session_exceeds_budget"), 507),
        (miss("released"), 502),
    ],
    ids=["stale epoch", "exceeds the budget", "released"],
)
def test_what_no_prefill_can_mend_ends_a_generation_at_once(cluster, tail, failure, status):
    tail.play(token(1000), failure, token(2000))
    said = check_error(generate(cluster, 4), status)
    assert said["code"] == json.loads(failure[2])["error"]
    assert len(tail.received) == 2


def test_a_finished_generation_is_released_at_its_hop(cluster, tail):
    tail.play(token(1000), token(2000))
    tail.released.clear()
    assert ids_of(generate(cluster, 2)) == [1000, 2000]
    session = tail.received[0][0]["x-meshnet-session"]
    wait_until(lambda: tail.released == ["/sessions/" + session])


def test_logits_that_are_not_finite_end_a_generation_at_once(cluster, tail):
    tail.play(token(1000), error(500, "non_finite_logits"), token(2000))
    said = check_error(generate(cluster, 4), 500)
    assert said["code"] == "non_finite_logits"
    assert LAYERS in said["message"]
    assert len(tail.received) == 2


def test_a_full_queue_at_the_first_step_is_told_to_the_client(cluster, tail):
    tail.play(error(429, "queue_full"))
    refused = generate(cluster, 4)
    check_error(refused, 429)
    assert int(refused.headers["Retry-After"]) >= 1
    assert len(tail.received) == 1


def test_a_full_queue_in_mid_generation_is_waited_for(cluster, tail):
    busy = error(429, "queue_full")
    tail.play(token(1000), miss("caching_disabled"), busy, token(2000), busy, busy, token(3000))
    started = time.monotonic()
    assert ids_of(generate(cluster, 3)) == [1000, 2000, 3000]
    assert 1.5 < time.monotonic() - started < 30, "it waits before each new try"
    assert tail.script == []


def test_a_proxy_that_answers_for_a_dead_tail(cluster, tail):
    health = cluster.url("head") + "/health"
    tail.status = answer(502, b"<html>Bad Gateway</html>", "text/html")
    wait_until(lambda: call(health).status == 503)
    reason = call(health).json()["reason"]
    assert NAME in reason and "answered" in reason and "502" in reason
    check_error(generate(cluster, 1), 502)
    assert tail.received == [], "no step goes to a node that is not usable"


@pytest.fixture
def old_tail(cluster, tail):
    """It has no /status, as nodes that speak protocol 0."""
    tail.status = answer(404, b"not here", "text/plain")
    wait_for_protocol(cluster, 0)
    return tail


def old_token(token_id):
    return answer(200, {"text": "x", "token_id": token_id})


def test_an_old_tail_gets_the_five_headers_and_the_tensor(cluster, old_tail):
    old_tail.play(old_token(1000), old_token(2000), miss(), old_token(3000))
    assert ids_of(generate(cluster, 3)) == [1000, 2000, 3000]
    for headers, _ in old_tail.received:
        assert {name for name in headers if name.startswith("x-meshnet-")} == FIXED_HEADERS
    assert [len(body) // (HIDDEN * 2) for _, body in old_tail.received] == [3, 1, 1, 5]
    assert all(len(body) % (HIDDEN * 2) == 0 for _, body in old_tail.received)
    first, _ = old_tail.received[0]
    assert first["x-meshnet-hop-index"] == "1" and first["x-meshnet-start-layer"] == "2"


def test_an_old_tail_that_keeps_no_state_is_never_sent_a_decode(cluster, tail):
    """It would run the one row as a whole sequence, and answer with a token all the same."""
    tail.status, tail.probe = answer(404, b"not here", "text/plain"), old_token(7)
    wait_for_protocol(cluster, 0)
    tail.play(old_token(1000), old_token(2000), old_token(3000))
    assert ids_of(generate(cluster, 3)) == [1000, 2000, 3000]
    assert tail.modes() == ["prefill"] * 3
    assert [len(body) // (HIDDEN * 2) for _, body in tail.received] == [3, 4, 5]
    tail.probe = miss()


def test_an_old_tail_that_tells_no_ids_gets_a_prefill_a_step(cluster, old_tail, tiny):
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(tiny)
    words = [" fox", " jumps", " over"]
    ids = [tokenizer.encode(word)[0] for word in words]
    old_tail.play(*[answer(200, {"text": word}) for word in words])
    answered = generate(cluster, 3)
    assert ids_of(answered) == ids
    assert answered.json()["choices"][0]["text"] == "".join(words)
    assert old_tail.modes() == ["prefill"] * 3
    assert [len(body) // (HIDDEN * 2) for _, body in old_tail.received] == [3, 4, 5]


def test_a_tail_that_no_longer_tells_ids_goes_on_after_those_it_told(cluster, old_tail, tiny):
    from transformers import AutoTokenizer

    fox = AutoTokenizer.from_pretrained(tiny).encode(" fox")
    old_tail.play(old_token(1000), answer(200, {"text": " fox"}), old_token(2000))
    assert ids_of(generate(cluster, 3)) == [1000, *fox, 2000]
    rows = [len(body) // (HIDDEN * 2) for _, body in old_tail.received]
    assert rows == [3, 1, 5], "the last prefill has the prompt, the id that was told, and the text"


def test_an_old_tail_without_ids_ends_with_the_eos_token(cluster, old_tail):
    old_tail.play(answer(200, {"text": " fox"}), answer(200, {"text": "<|im_end|>"}))
    answered = generate(cluster, 8)
    assert answered.json()["choices"][0]["text"] == " fox"
    assert answered.json()["choices"][0]["finish_reason"] == "stop"


def test_an_old_tail_without_ids_never_ends_with_no_text(cluster, old_tail):
    """It is in the middle of a character perhaps: the token is lost, and the answer is not at its end."""
    old_tail.play(answer(200, {"text": " fox"}), answer(200, {"text": ""}))
    check_error(generate(cluster, 8), 502)


def test_an_old_tail_is_not_asked_to_sample(cluster, old_tail):
    said = check_error(generate(cluster, 3, temperature=1), 400)
    assert "temperature" in said["message"]
    assert old_tail.received == []
