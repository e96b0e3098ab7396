"""Both distributions, built, and environments that have what a user installs."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.docs.markdown import ROOT

UV = Path(sys.executable).with_name("uv")


def uv(*arguments: str | Path) -> str:
    """What uv says; its failure fails the test."""
    done = subprocess.run([UV, *arguments], capture_output=True, encoding="utf-8", timeout=240, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="session")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with the wheels, each made from its source distribution, and these."""
    made = tmp_path_factory.mktemp("dist")
    for project in (ROOT, ROOT / "distributions" / "nebuli"):
        uv("build", "--quiet", "--out-dir", made, project)
    return made


@pytest.fixture(scope="session")
def installed(dist: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Installs into an environment that was empty, in the versions of the lock; the directory of its commands."""

    def install(*wanted: str) -> Path:
        environment = tmp_path_factory.mktemp("environment")
        uv("venv", "--quiet", "--clear", "--python", sys.executable, environment)
        lock = ROOT / "requirements.lock"
        uv(
            *("pip", "install", "--quiet", "--python", environment / "bin" / "python"),
            *("--constraint", lock, "--find-links", dist, *wanted),
        )
        return environment / "bin"

    return install
