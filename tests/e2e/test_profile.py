"""The ranges that a profiler sees, through a library that NVTX loads instead of one: no GPU needed."""

import collections
import json
import re
import threading
import urllib.request

import pytest
from cluster import BINARY, Cluster

INJECTION = BINARY.parent / "libnvtx_injection.so"
UUID = r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}"

Range = collections.namedtuple("Range", "kind message payload thread begun ended parents")


@pytest.fixture(scope="module", autouse=True)
def built_with_nvtx():
    cache = (BINARY.parent / "CMakeCache.txt").read_text()
    if re.search(r"^MESHNET_NVTX_INCLUDE:PATH=(.*-NOTFOUND)?$", cache, re.M):
        pytest.skip("built without the nvtx3 headers")
    assert INJECTION.exists(), "run scripts/build"


@pytest.fixture
def profiled(tiny, tmp_path):
    """Runs `use(cluster)` over head and tail, and returns the ranges of both after their end."""

    def run(use, **top):
        with Cluster(tmp_path, tiny, {"head": "0-1", "tail": "2-3"}, **top) as cluster:
            for name in ("head", "tail"):
                env = {
                    "NVTX_INJECTION64_PATH": str(INJECTION),
                    "NVTX_EVENTS": str(tmp_path / f"{name}.events"),
                }
                cluster.start(name, env=env)
            use(cluster.wait_ready())
        return [read_ranges(tmp_path / f"{name}.events") for name in ("head", "tail")]

    return run


def read_ranges(path):
    """Every range, in the order of their ends; all must have ended, and where they should."""
    ranges, started, stacks = [], {}, collections.defaultdict(list)
    for line_number, line in enumerate(path.read_text().splitlines()):
        what, thread, domain, range_id, payload, message = line.split("\t")
        assert domain == "meshnet"
        begun = (message, int(payload), thread, line_number)
        if what == "push":
            stacks[thread].append(begun)
            continue
        if what == "start":
            started[range_id] = begun
            continue
        assert what in ("pop", "end")
        begun = stacks[thread].pop() if what == "pop" else started.pop(range_id)
        parents = [parent[0] for parent in stacks[thread]] if what == "pop" else None
        message, payload, thread, first_line = begun
        ranges.append(
            Range(message.split()[0], message, payload, thread, first_line, line_number, parents)
        )
    assert not started and not any(stacks.values()), "left open"
    return ranges


def of_kind(ranges, kind):
    return [r for r in ranges if r.kind == kind]


def only(ranges, kind):
    (found,) = of_kind(ranges, kind)
    return found


def covers(outer, inner):
    return outer.begun < inner.begun and inner.ended < outer.ended


def check_layers(ranges, layers):
    """One after the other in every step, and nowhere else."""
    steps = of_kind(ranges, "prefill") + of_kind(ranges, "decode")
    for step in steps:
        assert step.parents == []
        inside = [r for r in of_kind(ranges, "layer") if r.thread == step.thread]
        inside = [r for r in inside if covers(step, r)]
        assert [r.message for r in inside] == [f"layer {layer}" for layer in layers]
        assert [r.payload for r in inside] == layers
        assert all(r.parents == [step.message] for r in inside)
    assert len(of_kind(ranges, "layer")) == len(layers) * len(steps)
    assert len({step.thread for step in steps}) == 1  # the compute thread


def test_completion_on_the_timeline(profiled):
    answers = []
    head, tail = profiled(
        lambda c: answers.append(c.complete("head", "One two three", max_tokens=4))
    )
    (choice,) = answers[0].json()["choices"]
    prompt = len(choice["prompt_token_ids"])
    assert len(choice["token_ids"]) == 4
    positions = [0, prompt, prompt + 1, prompt + 2]

    request, session = only(head, "request"), only(head, "session")
    trace = answers[0].json()["id"]
    assert request.message == f"request {trace}"
    session_id = re.fullmatch(f"session {re.escape(trace)} ({UUID})", session.message)[1]
    assert covers(request, only(head, "admission")) and covers(request, session)
    assert [r.message for r in of_kind(tail, "request")] == [f"request {trace} {session_id}"] * 4
    assert [r.payload for r in of_kind(tail, "request")] == [2] * 4

    for ranges, layers in ((head, [0, 1]), (tail, [2, 3])):
        queue = of_kind(ranges, "queue")
        steps = of_kind(ranges, "prefill") + of_kind(ranges, "decode")
        assert [r.message for r in queue] == [f"queue {session_id}"] * 4
        assert [r.message for r in steps] == [
            f"{kind} {session_id}" for kind in ("prefill", "decode", "decode", "decode")
        ]
        assert [r.payload for r in queue] == [r.payload for r in steps] == positions
        assert all(wait.ended < step.begun for wait, step in zip(queue, steps, strict=True))
        check_layers(ranges, layers)
        owners = of_kind(ranges, "session") or of_kind(ranges, "request")
        assert all(any(covers(owner, step) for owner in owners) for step in steps)

    hops = of_kind(head, "hop")
    assert [(r.message, r.payload) for r in hops] == [(f"hop tail {session_id}", 2)] * 4
    steps = of_kind(head, "prefill") + of_kind(head, "decode")
    assert all(step.ended < hop.begun for step, hop in zip(steps, hops, strict=True))
    assert not of_kind(tail, "hop")


def test_sessions_side_by_side(profiled):
    """Steps of several sessions run as one: the range names all of them."""

    def use(cluster):
        threads = [
            threading.Thread(
                target=cluster.complete,
                args=("head", f"Number {i}", 120),
                kwargs={"max_tokens": 12},
            )
            for i in range(6)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    head, tail = profiled(use)
    sessions = {r.message.split()[-1] for r in of_kind(head, "session")}
    assert len(sessions) == 6 == len(of_kind(head, "request"))
    for ranges, layers in ((head, [0, 1]), (tail, [2, 3])):
        check_layers(ranges, layers)
        steps = of_kind(ranges, "prefill") + of_kind(ranges, "decode")
        named = collections.Counter(name for r in steps for name in r.message.split()[1:])
        assert named == {session: 12 for session in sessions}
        assert len(of_kind(ranges, "queue")) == 6 * 12


def test_requests_that_do_not_end_well_leave_nothing_open(profiled):
    def use(cluster):
        assert cluster.complete("head", "x", max_tokens=0).status == 400
        assert cluster.complete("head", "x " * 300).status == 400
        body = json.dumps({"prompt": "x", "max_tokens": 200, "stream": True}).encode()
        with urllib.request.urlopen(cluster.url("head") + "/v1/completions", body) as stream:
            stream.readline()  # and away
        cluster.stop("tail")
        assert cluster.complete("head", "x", max_tokens=2).status in (502, 503)

    head, tail = profiled(use)
    assert len(of_kind(head, "request")) == 4
    assert of_kind(tail, "request")


def test_a_library_that_is_not_there_is_no_profiler(tiny, tmp_path):
    with Cluster(tmp_path, tiny, {"single": "0-3"}) as cluster:
        cluster.start(env={"NVTX_INJECTION64_PATH": str(tmp_path / "nothing.so")}).wait_ready()
        assert cluster.complete("single", "One", max_tokens=2).status == 200
