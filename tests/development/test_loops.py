"""A test that waits for ever ends at its limit, whichever loop it runs on."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.development.test_needs import pytest_on

TESTS = """
import asyncio

import pytest

from tests.support.loops import new_uvloop

@pytest.mark.timeout(1)
@pytest.mark.parametrize("loop_factory", [asyncio.SelectorEventLoop, new_uvloop])
def test_that_waits_for_ever(loop_factory):
    with asyncio.Runner(loop_factory=loop_factory) as runner:
        runner.run(asyncio.Event().wait())

def test_that_follows():
    pass
"""


@pytest.mark.processes
def test_a_test_has_its_time_and_no_more(tmp_path: Path) -> None:
    code, said = pytest_on(tmp_path, TESTS)
    assert code == pytest.ExitCode.TESTS_FAILED
    assert "2 failed, 1 passed" in said
    assert said.count("Timeout (>1.0s) from pytest-timeout") >= 2
