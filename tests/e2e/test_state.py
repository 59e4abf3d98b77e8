"""Session state over HTTP: the same ids whatever happens to it, misses with their reasons, and nothing left behind."""

import json
import random
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from cluster import Cluster, call, free_port
from proxy import Proxy

PROMPT = [5, 17, 300, 2000, 41, 7]
TOKENS = 48
STEPS = (1, 7, 40)  # decodes, counted over the whole answer
HIDDEN = 64


def wait_until(condition, seconds=20):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "timed out"
        time.sleep(0.02)


def ids_of(answer):
    assert answer.status == 200, answer.body
    return answer.json()["choices"][0]["token_ids"]


def complete(cluster, prompt=None, name="head", tokens=TOKENS, **fields):
    return cluster.complete(name, prompt or PROMPT, max_tokens=tokens, **fields)


def status(cluster, name):
    return call(cluster.url(name) + "/status").json()


def misses(cluster, name):
    """Reason → count, from the metrics."""
    lines = call(cluster.url(name) + "/metrics").body.decode().splitlines()
    prefix = 'meshnet_cache_misses_total{reason="'
    return {
        line.removeprefix(prefix).split('"')[0]: int(float(line.split()[-1]))
        for line in lines
        if line.startswith(prefix)
    }


@pytest.fixture(scope="module")
def reference(tiny):
    """The greedy ids of transformers in float32."""
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(tiny, dtype=torch.float32)

    def generate(prompt, tokens=TOKENS):
        out = model.generate(
            torch.tensor([prompt]), do_sample=False, max_new_tokens=tokens, eos_token_id=None
        )
        return out[0, len(prompt) :].tolist()

    return generate


@pytest.fixture(scope="module")
def expected(reference):
    ids = reference(PROMPT)
    assert 2 not in ids, "the eos token would end the answer early"
    return ids


@pytest.fixture(scope="module")
def layouts(tiny, tmp_path_factory):
    tail = {"layers": "2-3", "cache": {"max_sessions": 6}}
    nodes = {"head": "0-1", "tail": tail, "whole": "0-3"}  # the head prefers the first of two
    directory = tmp_path_factory.mktemp("state")
    with Cluster(directory, tiny, nodes, dtype="float32") as cluster:
        yield cluster.start().wait_ready()


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
    nodes = {"head": "0", "middle": "1-2", "tail": "3"}
    limits = {"limits": {"prefill_chunk": chunk}}
    with Cluster(tmp_path, tiny, nodes, dtype="float32", **limits) as cluster:
        cluster.start().wait_ready()
        assert ids_of(complete(cluster, prompt, tokens=8)) == reference(prompt, 8)
        steps = call(cluster.url("tail") + "/metrics").body.decode()
        assert f'meshnet_steps_total{{mode="prefill"}} {-(-70 // chunk)}' in steps


class proxied_pair:
    """A head, and a tail behind a proxy that a test can act in."""

    def __init__(self, tiny, directory, tail=None, layers=("0-1", "2-3"), **top):
        port = free_port()
        tail = {"layers": layers[1], "listen": f"127.0.0.1:{port}", **(tail or {})}
        self.cluster = Cluster(
            directory, tiny, {"head": layers[0], "tail": tail}, dtype="float32", **top
        )
        self.port = port

    def __enter__(self):
        self.cluster.start()
        front = int(self.cluster.url("tail").rsplit(":", 1)[1])
        self.proxy = Proxy(front, self.port)
        self.cluster.wait_ready("tail", "head")
        return self.cluster, self.proxy

    def __exit__(self, *exc):
        self.cluster.__exit__(*exc)
        self.proxy.close()


def session_headers(headers, **changes):
    kept = {
        name: value
        for name, value in headers.items()
        if name.startswith("X-Meshnet-") and name not in ("X-Meshnet-Meta-Length",)
    }
    return {**kept, **{"X-Meshnet-" + key.replace("_", "-"): str(v) for key, v in changes.items()}}


def evict_by_another(proxy):
    def action(headers, _):
        body = torch.zeros(1, HIDDEN).numpy().tobytes()
        other = session_headers(
            headers, Session="another", Cache="prefill", Past_Len=0, Shape=f"1,1,{HIDDEN}"
        )
        assert proxy.send("POST", "/forward", body, other)[0] == 200

    return action


def send_twice(proxy):
    def action(headers, body):
        assert proxy.send("POST", "/forward", body, headers)[0] == 200

    return action


def start_elsewhere(proxy):
    def action(headers, _):
        body = torch.zeros(1, HIDDEN).numpy().tobytes()
        other = session_headers(
            headers, Cache="prefill", Past_Len=0, Start_Layer=1, Shape=f"1,1,{HIDDEN}"
        )
        assert proxy.send("POST", "/forward", body, other)[0] == 200

    return action


def outlive_ttl(proxy):
    return lambda *_: time.sleep(1.3)


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
    with proxied_pair(tiny, tmp_path, tail) as (cluster, proxy):
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

        def restart(*_):
            cluster.kill("tail")
            cluster.start("tail").wait_ready("tail")

        for n, step in enumerate(STEPS):
            proxy.before_decode[step + n] = restart
        assert ids_of(complete(cluster)) == expected
        assert misses(cluster, "head") == {"unknown_session": 3}


def test_a_node_that_comes_back_within_its_time(tiny, tmp_path, expected):
    """The hop is really gone for a while: the head waits for it, and the client sees one answer."""
    with Cluster(tmp_path, tiny, {"head": "0-1", "tail": "2-3"}, dtype="float32") as cluster:
        cluster.start().wait_ready()
        with ThreadPoolExecutor(1) as pool:
            for _ in range(3):
                answer = pool.submit(complete, cluster)
                wait_until(lambda answer=answer: sessions(cluster, "tail") or answer.done())
                cluster.kill("tail")
                time.sleep(0.3)
                cluster.start("tail").wait_ready("tail")
                assert ids_of(answer.result()) == expected


def sessions(cluster, name):
    return status(cluster, name)["sessions"]


def test_a_released_session_stays_released(tiny, tmp_path):
    """DELETE means no more of this session: the generation ends with an error, never with wrong text."""
    with proxied_pair(tiny, tmp_path) as (cluster, proxy):
        proxy.before_decode[7] = lambda headers, _: proxy.send(
            "DELETE", "/sessions/" + headers["X-Meshnet-Session"]
        )
        answer = complete(cluster)
        assert answer.status == 502 and "released" in misses(cluster, "head")
        assert complete(cluster, tokens=3).status == 200


@pytest.mark.parametrize(
    "spare", ["1-2", "0-2", "1-3"], ids=["duplicate", "overlapping before", "overlapping after"]
)
def test_another_route_when_a_hop_is_gone(tiny, tmp_path, expected, spare):
    front, real = free_port(), free_port()
    nodes = {
        "head": "0",
        "middle": {
            "layers": "1-2",
            "listen": f"127.0.0.1:{real}",
            "url": f"http://127.0.0.1:{front}",
        },
        "spare": spare,
        "tail": "3",
    }
    if spare == "1-3":  # from the start the route with fewer hops
        nodes = {**nodes, "spare": {**nodes["middle"], "layers": "1-3"}, "middle": "1-2"}
    gone = "spare" if spare == "1-3" else "middle"
    with Cluster(tmp_path, tiny, nodes, dtype="float32") as cluster:
        cluster.start()
        proxy = Proxy(front, real)
        cluster.wait_ready()
        # Both must be known to the head, or there is nothing to choose from.
        wait_until(lambda: all(peer["usable"] for peer in status(cluster, "head")["peers"]))
        killed = threading.Event()

        def kill(*_):
            if not killed.is_set():
                killed.set()
                cluster.kill(gone)

        proxy.before_decode[7] = kill
        assert ids_of(complete(cluster)) == expected
        assert killed.is_set()
        assert "goes on over" in cluster.log("head") and "with epoch 2" in cluster.log("head")
        proxy.close()


def test_a_stale_epoch_is_refused(layouts):
    body = torch.zeros(1, HIDDEN).numpy().tobytes()

    def forward(epoch, **more):
        headers = {"X-Meshnet-Session": "epochs", "X-Meshnet-Protocol": "1"}
        headers |= {"X-Meshnet-Cache": "prefill", "X-Meshnet-Epoch": str(epoch), **more}
        return call(layouts.url("tail") + "/forward", body, headers, method="POST")

    decode = {"X-Meshnet-Cache": "decode", "X-Meshnet-Past-Len": "1"}
    assert forward(2).status == 200
    assert forward(3).status == 200
    for answer in (forward(2), forward(1), forward(2, **decode)):
        assert answer.status == 412 and answer.json()["error"] == "stale_route_epoch"
    assert forward(3, **decode).status == 200, "the state is unharmed"
    call(layouts.url("tail") + "/sessions/epochs", method="DELETE")


def test_another_recipe_is_refused(layouts):
    body = torch.zeros(1, HIDDEN).numpy().tobytes()
    ours = status(layouts, "tail")["recipe_fingerprint"]
    for recipe, expected_status in ((ours, 200), ("0123456789abcdef", 412)):
        answer = call(
            layouts.url("tail") + "/forward", body, {"X-Meshnet-Recipe": recipe}, method="POST"
        )
        assert answer.status == expected_status
    assert answer.json()["error"] == "incompatible_recipe"


def test_bad_steps_change_no_state(layouts):
    """B04 and B47 at the wire: past length and start layer are checked before state is touched."""
    url = layouts.url("tail") + "/forward"

    def forward(tokens, cache, past, **more):
        body = torch.full((tokens, HIDDEN), 0.1).numpy().tobytes()
        headers = {"X-Meshnet-Session": "kept", "X-Meshnet-Cache": cache}
        headers |= {"X-Meshnet-Past-Len": str(past), **more}
        return call(url, body, headers, method="POST")

    assert forward(5, "prefill", 0).status == 200
    for past, start, reason in ((4, 2, "seq_len_mismatch"), (5, 3, "start_layer_mismatch")):
        answer = forward(1, "decode", past, **{"X-Meshnet-Start-Layer": str(start)})
        assert (answer.status, answer.json()["reason"]) == (409, reason)
    answer = forward(1, "decode", 5, **{"X-Meshnet-Start-Layer": "1"})
    assert (answer.status, answer.json()["reason"]) == (409, "start_layer_mismatch")
    assert call(url, b"123", {"X-Meshnet-Session": "kept"}, method="POST").status == 400
    first = forward(1, "decode", 5)
    assert first.status == 200
    again = forward(1, "decode", 5)
    assert (again.status, again.json()["reason"]) == (409, "seq_len_mismatch"), "a repeated step"
    assert forward(1, "decode", 6).status == 200
    assert call(layouts.url("tail") + "/sessions/kept", method="DELETE").json()["released"]
    late = forward(5, "prefill", 0)
    assert (late.status, late.json()["reason"]) == (409, "released"), "not revived"


def test_one_token_first_chunk_is_no_decode(layouts, reference):
    """B04: state of a deleted session is never read by the next."""
    long = [(i * 13) % 3000 + 5 for i in range(50)]
    for _ in range(3):
        assert ids_of(complete(layouts, long, tokens=4)) == reference(long, 4)
        assert ids_of(complete(layouts, [9], tokens=6)) == reference([9], 6)


def test_a_session_larger_than_the_budget(tiny, tmp_path):
    # 2 layers x 2 (k, v) x 2 heads x 32 x 4 bytes = 1 KiB a token, 256 tokens at a time
    tail = {"cache": {"max_bytes": "300KiB"}}
    with proxied_pair(tiny, tmp_path, {**tail, "max_context": 256}) as (cluster, _):
        assert complete(cluster, tokens=8).status == 200
    (tmp_path / "small").mkdir()
    tail = {"cache": {"max_bytes": "100KiB"}}
    with proxied_pair(tiny, tmp_path / "small", tail) as (cluster, _):
        answer = complete(cluster, tokens=8)
        assert answer.status == 507, answer.body
        assert answer.json()["error"]["code"] == "session_exceeds_budget"
        assert status(cluster, "tail")["cache"]["total_bytes"] == 0
        wait_until(lambda: status(cluster, "head")["cache"]["total_bytes"] == 0)


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
            wait_until(lambda name=name: status(cluster, name)["cache"]["total_bytes"] == 0)


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
        wait_until(lambda name=name: status(layouts, name)["cache"]["total_bytes"] == 0)


def test_seeded_sampling_is_the_same_whatever_happens(tiny, tmp_path):
    with proxied_pair(tiny, tmp_path) as (cluster, proxy):
        sampled = dict(temperature=1.0, seed=11)
        whole = ids_of(complete(cluster, **sampled))
        assert whole != ids_of(complete(cluster, temperature=1.0, seed=12))
        proxy.forget()
        proxy.before_decode = {3: send_twice(proxy), 20: send_twice(proxy)}
        assert ids_of(complete(cluster, **sampled)) == whole
        assert misses(cluster, "head") == {"seq_len_mismatch": 2}


@pytest.mark.parametrize("nodes", [2, 3])
def test_a_client_that_leaves_frees_every_node(tiny, tmp_path, nodes):
    layers = {2: {"head": "0-1", "tail": "2-3"}, 3: {"head": "0", "middle": "1-2", "tail": "3"}}
    with Cluster(tmp_path, tiny, layers[nodes], dtype="float32") as cluster:
        cluster.start().wait_ready()
        for _ in range(5):
            leave_in_mid_answer(cluster)
            left = time.monotonic()
            for name in layers[nodes]:
                wait_until(lambda name=name: not sessions(cluster, name), seconds=5)
            assert time.monotonic() - left < 1
            for name in layers[nodes]:
                assert status(cluster, name)["cache"]["total_bytes"] == 0


def leave_in_mid_answer(cluster):
    import http.client

    connection = http.client.HTTPConnection(cluster.url("head").removeprefix("http://"), timeout=60)
    body = {"prompt": PROMPT, "stream": True, "max_tokens": 240, "temperature": 0}
    connection.request("POST", "/v1/completions", json.dumps(body))
    response = connection.getresponse()
    for _ in range(3):
        response.readline()
    wait_until(lambda: sessions(cluster, "tail"))
    connection.close()


def test_chunks_not_started_are_dropped_when_the_client_leaves(tiny, tmp_path):
    import http.client

    limits = {"limits": {"prefill_chunk": 1}}
    with Cluster(tmp_path, tiny, {"head": "0-1", "tail": "2-3"}, **limits) as cluster:
        cluster.start().wait_ready()
        connection = http.client.HTTPConnection(
            cluster.url("head").removeprefix("http://"), timeout=60
        )
        prompt = [(i * 7) % 1000 + 3 for i in range(240)]
        connection.request("POST", "/v1/completions", json.dumps({"prompt": prompt}))
        wait_until(lambda: sessions(cluster, "tail"))
        connection.close()
        wait_until(lambda: not sessions(cluster, "head") and not sessions(cluster, "tail"))
        steps = call(cluster.url("tail") + "/metrics").body.decode()
        done = int(float(steps.split('meshnet_steps_total{mode="prefill"} ')[1].split()[0]))
        assert done < 240


def test_memory_stays_where_it_was(tiny, tmp_path):
    """200 generations with 8 sessions of budget."""

    def resident(name):
        for line in open(f"/proc/{cluster.pid(name)}/status"):
            if line.startswith("VmRSS:"):
                return int(line.split()[1])

    with Cluster(tmp_path, tiny, {"head": "0-1", "tail": "2-3"}) as cluster:
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
            assert status(cluster, name)["cache"]["total_bytes"] == 0


def test_caching_that_is_off_costs_a_prefill_a_step(tiny, tmp_path, expected):
    with proxied_pair(tiny, tmp_path, {"cache": {"enabled": False}}) as (cluster, proxy):
        assert ids_of(complete(cluster)) == expected
        modes = proxy.modes()
        assert modes == ["prefill", "decode"] + ["prefill"] * (TOKENS - 1)
        shown = status(cluster, "tail")
        assert shown["cache"]["enabled"] is False and shown["cache"]["reason"] == "caching_disabled"
        assert "cache.enabled" in shown["cache"]["message"]
        assert "keeps no session state" in cluster.log("tail")


@pytest.mark.parametrize("deterministic", [True, False])
def test_an_answer_does_not_depend_on_its_company(tiny, tmp_path, deterministic):
    """B55, in bfloat16: exactly when deterministic; else logits may round otherwise, and steps run packed."""
    nodes = {"head": "0-1", "tail": "2-3"}
    with Cluster(tmp_path, tiny, nodes, deterministic=deterministic) as cluster:
        cluster.start().wait_ready()
        alone = ids_of(complete(cluster))
        for round_ in range(5 if deterministic else 1):
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
