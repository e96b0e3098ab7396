"""Members run on uvloop, as in production, and nothing is left behind by any test."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator

import pytest

from nebuli.forking.own_template import has_template
from tests.support.loops import new_uvloop
from tests.support.sockets import sockets


def pytest_asyncio_loop_factories(item: pytest.Item) -> dict[str, Callable[[], asyncio.AbstractEventLoop]]:
    return {"uvloop": new_uvloop}


@pytest.fixture(autouse=True)
def nothing_left_behind() -> Iterator[None]:
    """No socket outlives its test."""
    before, had_template = len(sockets()), has_template()
    yield
    assert len(sockets()) <= before + (has_template() and not had_template)
