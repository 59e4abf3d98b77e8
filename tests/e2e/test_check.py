"""What the command line says of configurations: mistakes, session state, bodies between nodes; and what happens without."""

import json
import socket
import subprocess

import pytest
from cluster import BINARY, Cluster

PAIR = {"head": "0-1", "tail": "2-3"}
STATE_BYTES = 2 * 2 * 2 * 32 * 2  # K and V of 2 layers, 2 heads of 32 values, in bfloat16
CONTEXT = 256


def run(*arguments):
    return subprocess.run([BINARY, *arguments], capture_output=True, text=True, timeout=60)


def check(tmp_path, model, nodes, *arguments, **top):
    return run("check", "--config", Cluster(tmp_path, model, nodes, **top).config, *arguments)


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


def test_a_port_in_use_is_said(tiny, tmp_path):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        listen = f"127.0.0.1:{taken.getsockname()[1]}"
        cluster = Cluster(tmp_path, tiny, {"solo": {"layers": "0-3", "listen": listen}})
        result = run("serve", "--config", cluster.config, "--node", "solo")
    assert result.returncode == 1
    assert listen in result.stderr and "in use" in result.stderr


@pytest.mark.parametrize(
    "change, words",
    [
        ({"model": "/nowhere/model"}, ["/nowhere/model"]),
        ({"device": "cuda:0"}, ["cuda:0 is not there"]),
        ({"nodes": {"a": "0-1", "b": "3-3"}}, ["no node holds layers 2"]),
        ({"nodes": {"a": "0-4"}}, ["nodes.a.layers", "0-3"]),
    ],
)
def test_common_mistakes_get_a_sentence(tiny, tmp_path, change, words):
    change = dict(change)
    nodes = change.pop("nodes", {"a": "0-3"})
    model = change.pop("model", tiny)
    cluster = Cluster(tmp_path, model, nodes, **change)
    for result in (
        run("serve", "--config", cluster.config, "--node", "a"),
        run("check", "--config", cluster.config, "--node", "a"),
    ):
        assert result.returncode == 1
        for word in words:
            assert word in result.stdout + result.stderr


def test_unknown_architecture_names_those_supported(tiny, tmp_path):
    model = tmp_path / "model"
    model.mkdir()
    config = json.loads((tiny / "config.json").read_text())
    (model / "config.json").write_text(json.dumps({**config, "model_type": "mamba9"}))
    cluster = Cluster(tmp_path, model, {"a": "0-3"})
    result = run("serve", "--config", cluster.config, "--node", "a")
    assert result.returncode == 1
    assert "mamba9" in result.stderr and "llama" in result.stderr


def test_check_says_that_all_is_well(tiny, tmp_path):
    cluster = Cluster(tmp_path, tiny, {"head": "0-1", "tail": "2-3"})
    result = run("check", "--config", cluster.config)
    assert result.returncode == 0, result.stdout
    assert "route from head: head from layer 0, then tail from layer 2" in result.stdout
    assert "WRONG" not in result.stdout


def copy_with(tiny, directory, change):
    """The tiny model with other tensors: `change` edits the mapping from names to tensors."""
    from safetensors.torch import load_file, save_file

    directory.mkdir()
    for file in tiny.iterdir():
        if file.suffix != ".safetensors":
            (directory / file.name).write_bytes(file.read_bytes())
    tensors = load_file(tiny / "model.safetensors")
    change(tensors)
    save_file(tensors, directory / "model.safetensors", metadata={"format": "pt"})
    return directory


def drop(tensors):
    del tensors["model.layers.3.mlp.up_proj.weight"]


def add(tensors):
    weight = tensors["model.layers.3.self_attn.o_proj.weight"]
    tensors["model.layers.3.self_attn.extra.weight"] = weight.clone()


@pytest.mark.parametrize(
    "change, name",
    [
        (drop, "model.layers.3.mlp.up_proj.weight"),
        (add, "model.layers.3.self_attn.extra.weight"),
    ],
    ids=["missing", "extra"],
)
def test_a_wrong_tensor_of_an_owned_layer_is_named(tiny, tmp_path, change, name):
    model = copy_with(tiny, tmp_path / "model", change)
    cluster = Cluster(tmp_path, model, {"head": "0-1", "tail": "2-3"})
    served = run("serve", "--config", cluster.config, "--node", "tail")
    assert served.returncode == 1
    assert name in served.stderr
    checked = run("check", "--config", cluster.config)
    assert checked.returncode == 1
    assert name in checked.stdout
    assert run("check", "--config", cluster.config, "--node", "head").returncode == 0


def test_help_and_version():
    assert "serve" in run("--help").stdout
    assert run("--version").stdout.strip()
    assert run().returncode != 0
