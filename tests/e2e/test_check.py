"""What `meshnet check` says about session state and about the bodies between nodes, and what happens without it."""

import subprocess

import pytest
from cluster import BINARY, Cluster

PAIR = {"head": "0-1", "tail": "2-3"}
STATE_BYTES = 2 * 2 * 2 * 32 * 2  # K and V of 2 layers, 2 heads of 32 values, in bfloat16
CONTEXT = 256


def check(tmp_path, model, nodes, *arguments, **top):
    cluster = Cluster(tmp_path, model, nodes, **top)
    return subprocess.run(
        [BINARY, "check", "--config", cluster.config, *arguments],
        capture_output=True,
        text=True,
        timeout=60,
    )


def lines(result, *words):
    return [line for line in result.stdout.splitlines() if all(word in line for word in words)]


@pytest.mark.parametrize(
    "budget, mark, fits",
    [("384KiB", "ok", 3), ("1GiB", "ok", 8), ("127KiB", "note", 0)],
)
def test_session_state_is_priced(tiny, tmp_path, budget, mark, fits):
    result = check(tmp_path, tiny, PAIR, cache={"max_bytes": budget})
    assert result.returncode == 0, result.stdout
    (line,) = lines(result, "tail: session state")
    assert line.startswith(mark)
    assert f"takes {STATE_BYTES} bytes a token, 0.1 MiB for {CONTEXT} tokens" in line
    assert f"holds {fits} of 8 sessions" in line


def test_no_session_state_is_said(tiny, tmp_path):
    result = check(tmp_path, tiny, PAIR, cache={"enabled": False})
    assert result.returncode == 0
    assert len(lines(result, "note", "no session state, since the configuration says")) == 2


def test_a_chunk_that_does_not_fit_is_wrong(tiny, tmp_path):
    result = check(tmp_path, tiny, PAIR, limits={"prefill_chunk": 64, "max_body": "4KiB"})
    assert result.returncode == 1
    (line,) = lines(result, "limits.max_body")
    assert line.startswith("WRONG") and "tail" in line
    assert "64 tokens of 128 bytes each, got 4096" in line


def test_a_prompt_that_does_not_fit_is_a_note(tiny, tmp_path):
    result = check(tmp_path, tiny, PAIR, limits={"prefill_chunk": 64, "max_body": "16KiB"})
    assert result.returncode == 0, result.stdout
    (line,) = lines(result, "limits.max_body")
    assert line.startswith("note") and "tail" in line
    assert f"holds 120 of max_context's {CONTEXT} tokens" in line


@pytest.mark.parametrize(
    "nodes, limits",
    [
        ({"head": "0-1", "tail": "2-3"}, {}),
        (
            {"solo": "0-3", "twin": "0-3"},
            {"max_body": "4KiB"},
        ),  # nobody sends to another
        (
            {"head": "0-1", "tail": "2-3"},
            {"prefill_chunk": 10_000, "max_body": "40KiB"},
        ),
    ],
    ids=["defaults", "no hops", "a chunk is no longer than the context"],
)
def test_bodies_that_fit_are_no_matter(tiny, tmp_path, nodes, limits):
    result = check(tmp_path, tiny, nodes, limits=limits)
    assert result.returncode == 0, result.stdout
    assert not lines(result, "limits.max_body")


def test_the_senders_dtype_counts(tiny, tmp_path):
    nodes = {"head": {"layers": "0-1", "dtype": "float32"}, "tail": "2-3"}
    limits = {"prefill_chunk": 64, "max_body": "10KiB"}
    result = check(tmp_path, tiny, nodes, "--node", "tail", limits=limits)
    assert result.returncode == 1
    assert lines(result, "WRONG", "64 tokens of 256 bytes each")


def test_what_check_warns_of_is_named_when_it_happens(tiny, tmp_path):
    nodes = {"head": "0-1", "tail": {"layers": "2-3", "limits": {"max_body": "4KiB"}}}
    with Cluster(tmp_path, tiny, nodes) as cluster:
        cluster.start().wait_ready()
        answer = cluster.complete("head", list(range(100, 150)), max_tokens=1)
        assert answer.status == 502
        message = answer.json()["error"]["message"]
        assert "node tail" in message and "4096 bytes (limits.max_body)" in message
        assert cluster.complete("head", list(range(100, 120)), max_tokens=1).status == 200
