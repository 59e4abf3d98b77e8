"""scripts/setup: quick when all is there, and in words when something is missing."""

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
LOCK = (ROOT / "scripts" / "requirements.txt").read_text()


@pytest.fixture
def clone(tmp_path):
    """Another clone of the project, as far as setup looks at it."""
    shutil.copytree(ROOT / "scripts", tmp_path / "clone" / "scripts")
    return tmp_path / "clone"


def setup(clone, user=None, **environment):
    command = [clone / "scripts" / "setup"]
    return subprocess.run(
        command, user=user, env=os.environ | environment, capture_output=True, text=True
    )


def stub(folder, name, script):
    folder.mkdir(exist_ok=True)
    path = folder / name
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return f"{folder}:{os.environ['PATH']}"


def test_lock_pins_everything_by_hash_and_names_no_host():
    pins = re.findall(r"^([a-z0-9.-]+)==\S+.*\\\n    --hash=sha256:[0-9a-f]{64}", LOCK, re.M)
    assert len(pins) == len(re.findall(r"^[a-zA-Z0-9]", LOCK, re.M)) > 50
    assert "://" not in LOCK and "index-url" not in LOCK and "find-links" not in LOCK
    wanted = re.findall(r"^[a-z0-9-]+", (ROOT / "scripts" / "requirements.in").read_text(), re.M)
    assert len(wanted) > 10 and set(wanted) <= set(pins)


def test_second_clone_is_ready_at_once(clone):
    result = setup(clone)
    assert result.returncode == 0, result.stderr
    lines = result.stdout.splitlines()
    assert [line[:5] for line in lines] == ["[1/4]", "[2/4]", "[3/4]", "[4/4]"]
    assert all(line.endswith(".. ready") for line in lines)
    assert (clone / ".venv").resolve() == (ROOT / ".venv").resolve()


def test_link_is_moved_to_the_environment_of_the_lock(clone):
    (clone / ".venv").symlink_to("/nonexistent/environment-of-an-older-lock")
    assert setup(clone).returncode == 0
    assert (clone / ".venv").resolve() == (ROOT / ".venv").resolve()


def test_own_environment_is_not_overwritten(clone):
    (clone / ".venv").mkdir()
    result = setup(clone)
    assert result.returncode == 1
    assert "is not a link made by this script" in result.stderr
    assert (clone / ".venv").is_dir() and not (clone / ".venv").is_symlink()


def test_without_root_missing_packages_are_named_with_the_command(clone, tmp_path):
    path = stub(
        tmp_path / "bin",
        "dpkg-query",
        'case "$*" in *ccache|*libyaml-cpp-dev) exit 1;; esac; echo "install ok installed"',
    )
    for folder in [tmp_path, *tmp_path.parents]:
        if folder.owner() == tmp_path.owner() and folder.stat().st_mode & 0o055 != 0o055:
            folder.chmod(0o755)
    user = 65534 if os.geteuid() == 0 else None
    (tmp_path / "home").mkdir()
    (tmp_path / "home").chmod(0o777)
    result = setup(clone, user=user, PATH=path, MESHNET_HOME=str(tmp_path / "home"))
    assert result.returncode == 1
    assert "missing: ccache libyaml-cpp-dev" in result.stderr
    assert (
        "sudo apt-get update && sudo apt-get install -y --no-install-recommends ccache libyaml-cpp-dev"
        in result.stderr
    )


def test_without_cargo_it_says_how_to_get_it(clone):
    folders = os.environ["PATH"].split(":")
    path = ":".join(folder for folder in folders if not (Path(folder) / "cargo").exists())
    result = setup(clone, PATH=path)
    assert result.returncode == 1
    assert "cargo is not in PATH" in result.stderr and "rustup" in result.stderr


def test_without_a_recent_python_it_says_how_to_get_it(clone, tmp_path):
    for name in ["python3", *(f"python3.{minor}" for minor in range(11, 15))]:
        path = stub(tmp_path / "bin", name, "exit 1")
    result = setup(clone, PATH=path)
    assert result.returncode == 1
    assert "3.11 or newer" in result.stderr and "python3-venv" in result.stderr


def test_failed_installation_shows_the_log_and_is_redone(clone, tmp_path):
    """A pin that does not exist: no half environment is taken for a whole one later."""
    home = tmp_path / "home"
    offline = {
        "MESHNET_HOME": str(home),
        "PIP_NO_INDEX": "1",
        "PIP_FIND_LINKS": "",
        "PIP_RETRIES": "0",
    }
    for _ in range(2):
        result = setup(clone, **offline)
        assert result.returncode == 1
        assert "[3/4] Python environment" in result.stdout and "failed (exit 1)" in result.stdout
        assert "No matching distribution found" in result.stderr
        assert "Check network and disk space" in result.stderr
        assert not (clone / ".venv").exists()
    log = Path(re.search(r"The whole output: (\S+)", result.stderr)[1])
    assert "No matching distribution" in log.read_text()
