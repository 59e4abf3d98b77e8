"""What `meshnet plan` proposes, compared with what nodes then hold."""

import json
import subprocess

import pytest
from cluster import BINARY, Cluster, call


def plan(model, *arguments):
    return subprocess.run(
        [BINARY, "plan", "--model", model, *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=60,
    )


def rows(result):
    """(layers, weights in MiB, state of a session in MiB, total in MiB) of each node."""
    table = result.stdout.split("memory\n", 1)[1].splitlines()
    numbers = []
    for line in table:
        fields = line.split()
        if not fields:
            break
        assert fields[3] == fields[5] == fields[7] == "MiB", line
        numbers.append((fields[1], *(float(fields[at]) for at in (2, 4, 6))))
    return numbers


def test_a_plan_is_what_the_nodes_hold(tiny, tmp_path):
    result = plan(tiny, "--nodes", 2, "--tokens", 256, "--sessions", 10)
    assert result.returncode == 0, result.stderr
    planned = rows(result)
    assert len(planned) == 2
    nodes = {name: row[0] for name, row in zip(("head", "tail"), planned, strict=True)}
    with Cluster(tmp_path, tiny, nodes) as cluster:
        cluster.start().wait_ready()
        assert cluster.complete("head", [5] * 250, max_tokens=4).status == 200
        for name, (_, weights, session, total) in zip(nodes, planned, strict=True):
            status = json.loads(call(cluster.url(name) + "/status").body)
            assert weights == pytest.approx(status["shard"]["weight_bytes"] / 2**20, abs=0.051)
            assert total == pytest.approx(weights + 10 * session, abs=0.6)


def test_more_memory_takes_more_layers(smollm2):
    even = rows(plan(smollm2, "--nodes", 2))
    uneven = rows(plan(smollm2, "--nodes", 2, "--memory", "3GiB,1GiB"))
    assert even[0][0].startswith("0-") and even[1][0].endswith("-29")
    assert int(uneven[0][0].split("-")[1]) > int(even[0][0].split("-")[1])


def test_too_little_memory_is_said(smollm2):
    result = plan(smollm2, "--nodes", 2, "--memory", "64MiB")
    assert result.returncode == 1
    assert "Not every node has the memory for its total." in result.stdout


@pytest.mark.parametrize(
    "arguments, words",
    [
        (["--nodes", 5], "5 nodes are more than the model's 4 layers"),
        (["--nodes", 2, "--memory", "1GiB,1GiB,1GiB"], "expected one size or 2"),
        (["--nodes", 0], "--nodes"),
        (["--nodes", 2, "--memory", "lots"], "--memory"),
    ],
)
def test_what_cannot_be_planned_is_named(tiny, arguments, words):
    result = plan(tiny, *arguments)
    assert result.returncode != 0
    assert words in result.stderr


def test_a_directory_without_a_model_is_named(tmp_path):
    result = plan(tmp_path, "--nodes", 2)
    assert result.returncode == 1
    assert f"{tmp_path}/config.json: cannot be read" in result.stderr
