"""What a test needs that a machine may not have: a developer's then leaves the test out, and the build server fails.

All skips are made here (`tests/development/test_needs.py` sees to that), so that none of them hides on the build
server, which says who it is by ``CI=true``.
"""

from __future__ import annotations

import importlib.util
import os
from typing import NoReturn

import pytest

from tests.support.programs import program, why_not


def leave_out(why: str, how: str) -> NoReturn:
    """Leave this test out, or this module: why it cannot be run here, and what to do about that."""
    said = f"{why}: {how}"
    if os.environ.get("CI") == "true":
        pytest.fail(f"{said} (CI is true: nothing is left out)", pytrace=False)
    pytest.skip(said, allow_module_level=True)


def need_module(*names: str) -> None:
    """What follows imports these."""
    for name in names:
        if not _can_be_found(name):
            leave_out(f"there is no Python module {name}", "make setup")


def need_program(name: str) -> None:
    """What follows runs it."""
    wanted = program(name)
    why = why_not(wanted)
    if why is not None:
        leave_out(why, wanted.how)


def _can_be_found(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:  # of what it is in
        return False
