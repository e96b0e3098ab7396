"""Calls that are cancelled at any moment."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Coroutine
    from random import Random


T = TypeVar("T")

SOON_S = (0.0, 2e-5, 2e-4, 0.002, 0.05, 1.0)
"""How long after its beginning a call is cancelled, at most."""


class Cancelled(Exception):
    """A call was cancelled, and its caller goes on."""


async def perhaps_cancelled(random: Random, call: Coroutine[Any, Any, T], likely: float = 0.15) -> T:
    """Await ``call``; at times it is cancelled within. Raises Cancelled."""
    if random.random() >= likely:
        return await call
    task = asyncio.ensure_future(call)
    alarm = asyncio.get_running_loop().call_later(random.random() * random.choice(SOON_S), task.cancel)
    try:
        return await task
    except asyncio.CancelledError:
        me = asyncio.current_task()
        assert me is not None
        if me.cancelling():
            raise
        raise Cancelled from None
    finally:
        alarm.cancel()
