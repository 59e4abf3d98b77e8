"""docker/ without an engine: everything its files name exists in the repository."""

import json
import os
import re
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
BINARY = ROOT / "build" / "release" / "meshnet"
COMPOSE = yaml.safe_load((ROOT / "docker" / "compose.yaml").read_text())


def instructions() -> list[tuple[str, str]]:
    """(instruction, arguments) of the Dockerfile, continued lines joined, comments dropped."""
    text = (ROOT / "docker" / "Dockerfile").read_text()
    lines = [line for line in text.splitlines() if not line.lstrip().startswith("#")]
    joined = re.sub(r"\\\n\s*", " ", "\n".join(lines))
    return [tuple(line.split(maxsplit=1)) for line in joined.splitlines() if line.strip()]


def arguments_of(name: str) -> list[str]:
    return [arguments for instruction, arguments in instructions() if instruction == name]


def test_dockerfile_has_a_build_and_a_run_stage_on_a_cuda_base():
    assert arguments_of("FROM") == ["${CUDA_IMAGE} AS build", "${CUDA_IMAGE}"]
    (image,) = arguments_of("ARG")
    cuda = re.fullmatch(r"CUDA_IMAGE=nvidia/cuda:(\d+\.\d+)\.\d+-base-ubuntu24\.04", image)
    assert f"cuda-toolkit[nvcc]=={cuda[1]}.*" in (ROOT / "scripts" / "requirements.in").read_text()


def test_dockerfile_copies_only_what_exists():
    produced = [step.split()[-1] for step in arguments_of("RUN") if "collect-libraries" in step]
    for arguments in arguments_of("COPY"):
        *sources, _ = [word for word in arguments.split() if not word.startswith("--")]
        for source in sources:
            if "--from=build" in arguments:
                assert source in produced
            else:
                assert (ROOT / source).exists(), source


def test_dockerfile_runs_only_scripts_that_exist():
    commands = [
        shlex.split(part) for step in arguments_of("RUN") for part in re.split("&&", step.strip())
    ]
    ours = [command for command in commands if (ROOT / command[0]).exists()]
    assert [command[0] for command in ours] == [
        "scripts/setup",
        "scripts/build",
        "docker/collect-libraries",
    ]
    for command in ours:
        assert os.access(ROOT / command[0], os.X_OK), command[0]
    others = {command[0] for command in commands if command not in ours}
    assert others == {"apt-get", "rustup", "useradd"}


def test_dockerfile_builds_a_preset_and_a_target_that_exist():
    (arguments,) = [
        step.split()[1:] for step in arguments_of("RUN") if step.startswith("scripts/build")
    ]
    presets = json.loads((ROOT / "CMakePresets.json").read_text())["configurePresets"]
    assert arguments[0] in [preset["name"] for preset in presets]
    declared = (ROOT / "runtime" / "CMakeLists.txt").read_text()
    assert f"add_executable({arguments[1]} " in declared


def test_setup_needs_only_what_was_copied_before_it():
    """The early layer holds scripts/ alone."""
    steps = instructions()
    before = steps[: steps.index(("RUN", "scripts/setup"))]
    assert [arguments for name, arguments in before if name == "COPY"] == ["scripts scripts"]
    setup = (ROOT / "scripts" / "setup").read_text()
    assert set(re.findall(r"\$ROOT/([\w./-]+)", setup)) <= {".venv", "scripts/requirements.txt"}


@pytest.mark.parametrize("name", COMPOSE["services"])
def test_compose_service_runs_a_node_of_an_existing_config(name):
    service = COMPOSE["services"][name]
    context = (ROOT / "docker" / service["build"]["context"]).resolve()
    assert context == ROOT
    assert (context / service["build"]["dockerfile"]).is_file()
    subcommand, *options = service["command"]
    assert (subcommand, options[0::2]) == ("serve", ["--config", "--node"])
    config, node = options[1::2]
    topology = yaml.safe_load((ROOT / config).read_text())
    assert node == name
    # Containers reach each other by service name, at the port the other listens on.
    port = topology["nodes"][node]["listen"].rsplit(":", 1)[1]
    assert topology["nodes"][node]["url"] == f"http://{name}:{port}"
    assert f"/dev/tcp/127.0.0.1/{port}" in service["healthcheck"]["test"][-1]
    mounts = [volume.split(":")[-2] for volume in service["volumes"]]
    assert topology["model"] in mounts


def test_compose_publishes_the_head_where_it_listens():
    head = COMPOSE["services"]["head"]
    topology = yaml.safe_load((ROOT / head["command"][2]).read_text())
    port = topology["nodes"]["head"]["listen"].rsplit(":", 1)[1]
    assert [mapping.split(":")[1] for mapping in head["ports"]] == [port]


def test_every_node_of_the_config_is_a_service():
    topology = yaml.safe_load((ROOT / "configs" / "docker_two_nodes.yaml").read_text())
    assert set(topology["nodes"]) == set(COMPOSE["services"])


def test_the_binary_knows_the_options_of_compose():
    said = subprocess.run([BINARY, "serve", "--help"], capture_output=True, text=True, check=True)
    for service in COMPOSE["services"].values():
        for option in [word for word in service["command"] if word.startswith("--")]:
            assert option in said.stdout


@pytest.fixture
def run_stage(tmp_path):
    """What the run stage of the image holds; removed at once, for it is large."""
    yield tmp_path / "run"
    shutil.rmtree(tmp_path / "run", ignore_errors=True)


def test_collected_libraries_are_enough_to_run_the_binary(run_stage):
    """The binary finds nothing outside the folder but the C library."""
    out = run_stage
    subprocess.run([ROOT / "docker" / "collect-libraries", BINARY, out], check=True)
    environment = {"LD_LIBRARY_PATH": str(out / "lib")}
    linked = subprocess.run(
        ["/usr/bin/ldd", out / "bin" / "meshnet"],
        capture_output=True,
        text=True,
        check=True,
        env=environment,
    )
    paths = re.findall(r"=> (\S+)", linked.stdout)
    foreign = [path for path in paths if not path.startswith(str(out))]
    allowed = r".*/(libc|libm|libdl|librt|libpthread)\.so\.\d+"
    assert [path for path in foreign if not re.fullmatch(allowed, path)] == []
    subprocess.run([out / "bin" / "meshnet", "--version"], check=True, env=environment)
