"""Waiting for what will be true, with a deadline.

It is there for what never comes true, and costs nothing where it does: so long that no busy machine reaches it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

T = TypeVar("T")

_STEP_S = 0.01


def wait_for(condition: Callable[[], T | None], what: str, timeout_s: float = 60.0) -> T:
    """The first true value of ``condition``; an ``AssertionError`` says for what there was no time left."""
    deadline = time.monotonic() + timeout_s
    while not (value := condition()):
        assert time.monotonic() < deadline, f"not within {timeout_s} s: {what}"
        time.sleep(_STEP_S)
    return value


async def until_async(condition: Callable[[], Awaitable[T | None]], what: str, timeout_s: float = 60.0) -> T:
    """The same of a coroutine, on its event loop."""
    deadline = time.monotonic() + timeout_s
    while not (value := await condition()):
        assert time.monotonic() < deadline, f"not within {timeout_s} s: {what}"
        await asyncio.sleep(_STEP_S)
    return value
