"""scripts/profile, with a script in the place of nsys: its options, refusals, and its end."""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "scripts" / "profile"
CONFIG = ROOT / "configs" / "smollm2_two_nodes.yaml"


@pytest.fixture
def environment(tmp_path):
    """A fake nsys that writes down its arguments, and a stand-in for the node's binary."""
    tools = tmp_path / "bin"
    tools.mkdir()
    write_script(
        tools / "nsys",
        'printf "%s\\n" "$@" >"$NSYS_ARGUMENTS"; echo "spin $GOMP_SPINCOUNT"; exit ${NSYS_STATUS:-0}',
    )
    write_script(tmp_path / "meshnet", "exit 99")
    unset = {"GOMP_SPINCOUNT", "OMP_WAIT_POLICY"}
    return {name: value for name, value in os.environ.items() if name not in unset} | {
        "PATH": f"{tools}:{os.environ['PATH']}",
        "MESHNET_HOME": str(tmp_path),
        "MESHNET_BINARY": str(tmp_path / "meshnet"),
        "NSYS_ARGUMENTS": str(tmp_path / "arguments"),
    }


def write_script(path, body):
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)


def profile(environment, *options):
    options = options or ("--config", CONFIG, "--node", "head")
    return subprocess.run([SCRIPT, *options], env=environment, capture_output=True, text=True)


def arguments(environment):
    return Path(environment["NSYS_ARGUMENTS"]).read_text().splitlines()


def test_node_runs_under_nsys_with_our_flags(environment):
    result = profile(environment)
    assert result.returncode == 0, result.stderr
    given = arguments(environment)
    assert given[0] == "profile" and "--trace=cuda,nvtx,cublas,osrt" in given
    assert f"--output={ROOT}/build/profile/head" in given and "--force-overwrite=true" in given
    command = given[given.index(environment["MESHNET_BINARY"]) :]
    assert command[1:] == ["serve", "--config", str(CONFIG), "--node", "head"]
    assert "spin 1000" in result.stdout  # the node does not start itself again


def test_it_says_where_the_report_is_and_what_to_look_at(environment):
    out = profile(environment).stdout
    assert f"Report: {ROOT}/build/profile/head.nsys-rep" in out
    assert "nsys stats" in out and "gaps between decode steps" in out and "layer ranges" in out


@pytest.mark.parametrize("output", [("--output=mine",), ("-o", "mine")])
def test_options_of_nsys_replace_ours(environment, output):
    options = ["--duration=5", *output, "--trace=nvtx"]
    result = profile(environment, "--node", "tail", *options, "--config", CONFIG)
    assert result.returncode == 0, result.stderr
    given = arguments(environment)
    place = given.index("--duration=5")
    assert given[place : place + len(options)] == options
    assert [option for option in given if "trace" in option] == ["--trace=nvtx"]
    assert not any("build/profile" in option for option in given)
    assert given[-5:] == ["serve", "--config", str(CONFIG), "--node", "tail"]


def test_own_openmp_settings_stay(environment):
    assert "spin 7\n" in profile(environment | {"GOMP_SPINCOUNT": "7"}).stdout
    assert "spin \n" in profile(environment | {"OMP_WAIT_POLICY": "passive"}).stdout


def test_status_of_nsys_is_passed_on(environment):
    assert profile(environment | {"NSYS_STATUS": "3"}).returncode == 3


def test_without_nsys_it_says_where_to_get_it_and_what_else_works(environment, tmp_path):
    tools = [folder for folder in environment["PATH"].split(":") if folder != str(tmp_path / "bin")]
    result = profile(environment | {"PATH": ":".join(tools)})
    assert result.returncode == 1
    assert "nsys (NVIDIA Nsight Systems) is not in PATH" in result.stderr
    assert "nsight-systems-cli" in result.stderr and "meshnet_hop_seconds" in result.stderr


@pytest.mark.parametrize(
    "options, message",
    [
        (["--node", "head"], "usage: "),
        (["--config", CONFIG], "usage: "),
        (["--config", CONFIG, "--node"], "usage: "),
        (["--config", "/nothing.yaml", "--node", "head"], "There is no file '/nothing.yaml'."),
    ],
)
def test_refusals(environment, options, message):
    result = profile(environment, *options)
    assert result.returncode == 1 and message in result.stderr
    assert not Path(environment["NSYS_ARGUMENTS"]).exists()


def test_without_a_build_it_says_so(environment):
    result = profile(environment | {"MESHNET_BINARY": "/nothing/meshnet"})
    assert result.returncode == 1 and "run scripts/build" in result.stderr


def test_ctrl_c_ends_nsys_once_and_still_tells_what_to_look_at(environment, tmp_path):
    """The terminal sends SIGINT to the whole foreground group; the node must not get it from there."""
    (tmp_path / "meshnet").write_text(
        f"#!{sys.executable}\n"
        "import signal\n"
        "signal.signal(signal.SIGINT, lambda *_: print('node interrupted', flush=True))\n"
        "print('running', flush=True)\n"
        "while True: signal.pause()\n"
    )
    write_script(
        tmp_path / "bin" / "nsys",
        """trap 'echo nsys interrupted; kill "$node"; sleep 0.3; echo report written; exit 0' INT
        "$MESHNET_BINARY" & node=$!
        while :; do sleep 0.05; done""",
    )
    script = subprocess.Popen(
        [SCRIPT, "--config", CONFIG, "--node", "head"],
        env=environment,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    for line in script.stdout:
        if line == "running\n":
            break
    os.killpg(script.pid, signal.SIGINT)
    out, _ = script.communicate(timeout=20)
    assert out.count("nsys interrupted") == 1 and "node interrupted" not in out
    assert re.search(r"report written\n.*Report: ", out, re.S)
    assert script.returncode == 0
