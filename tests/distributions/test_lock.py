"""The locked versions can be had, as wheels, for every Python that the projects say they take."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

from tests.distributions.conftest import uv
from tests.docs.markdown import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
PYTHONS = [each for line in PROJECT["classifiers"] for each in re.findall(r"Python :: (3\.\d+)$", line)]
WITHOUT_A_WHEEL = "pyspark"  # its source distribution is all in Python


@pytest.mark.processes
@pytest.mark.parametrize("python", PYTHONS)
def test_the_lock_resolves(python: str, tmp_path: Path) -> None:
    uv(
        *("pip", "install", "--dry-run", "--quiet", "--target", tmp_path, "--python-version", python),
        *("--only-binary", ":all:", "--no-binary", WITHOUT_A_WHEEL),
        *("--requirements", ROOT / "requirements.lock"),
    )


def test_the_lock_is_without_the_benchmarks_peers() -> None:
    locked = {
        line.partition("==")[0] for line in (ROOT / "requirements.lock").read_text("utf-8").splitlines()
    }
    peers = {
        line.partition("==")[0]
        for line in (ROOT / "benchmarks" / "requirements.lock").read_text("utf-8").splitlines()
    }
    assert {"eclipse-zenoh", "pyzmq"} <= peers - locked
    assert len(PYTHONS) == 4
