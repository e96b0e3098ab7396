"""Waiting in tests: for conditions, and never without end."""

from __future__ import annotations

import asyncio
import functools
import math
import time
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine


T = TypeVar("T")

_STEP_S = 0.005
_STEADY_S = 0.15
_TRIES = 10
_CANCELS = 5
"""A cancelled task may wait again while it cleans up, e.g. for a transport that never reports its end."""


class Limited(Protocol):
    """A suite whose tests may take so many seconds."""

    @property
    def time_limit_s(self) -> float:
        """Seconds that each test may take."""


async def eventually(condition: Callable[[], object], *, within_s: float = 15.0) -> None:
    """Wait until ``condition()`` holds. Raises TimeoutError."""
    async with asyncio.timeout(within_s):
        while not condition():  # noqa: ASYNC110 - of what has no event to wait for
            await asyncio.sleep(_STEP_S)


async def least_s(limit_s: float, attempt: Callable[[], Coroutine[Any, Any, None]]) -> float:
    """How long ``attempt`` takes in the best of ten tries, or in the first that is within ``limit_s``.

    A machine that is busy with other things takes its time from some of them, and seldom from all.
    """
    best = math.inf
    for _ in range(_TRIES):
        began = time.perf_counter()
        await attempt()
        best = min(best, time.perf_counter() - began)
        if best <= limit_s:
            break
    return best


async def settled(value: Callable[[], T]) -> T:
    """Wait until ``value()`` has not changed for a while."""
    last, since = value(), 0.0
    while since < _STEADY_S:
        await asyncio.sleep(_STEP_S)
        now = value()
        last, since = now, since + _STEP_S if now == last else 0.0
    return last


async def within(limit_s: float, coroutine: Coroutine[Any, Any, T]) -> T:
    """Run ``coroutine``; raises AssertionError, naming the line where it waits, if it takes longer."""
    task = asyncio.ensure_future(coroutine)
    try:
        done, _ = await asyncio.wait([task], timeout=limit_s)
        if done:
            return task.result()
        (frame,) = task.get_stack(limit=1)
        place = f"{frame.f_code.co_filename}:{frame.f_lineno}"
        for _ in range(_CANCELS):
            task.cancel()
            await asyncio.wait([task], timeout=_STEADY_S)
        raise AssertionError(f"not done within {limit_s} s; it waited at {place}")
    finally:
        task.cancel()


def limited(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., Coroutine[Any, Any, None]]:
    """``test``, a method of a `Suite`, within the suite's limit."""

    @functools.wraps(test)
    async def run(self: Limited, *args: Any, **fixtures: Any) -> None:
        await within(self.time_limit_s, test(self, *args, **fixtures))

    return run
