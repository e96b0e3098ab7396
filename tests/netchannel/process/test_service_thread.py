"""Calls to the thread of the process-wide services, which are cancelled."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import suppress

import pytest

from netchannel.process.services import ServiceThread


@pytest.fixture
def thread() -> Iterator[ServiceThread]:
    made = ServiceThread()
    yield made
    made.stop()


async def test_a_call_that_is_cancelled_before_it_begins_does_nothing(thread: ServiceThread) -> None:
    """Else it takes the last message, and the next call finds the end before the message is back."""
    begun, blocked, freed = list[str](), threading.Event(), threading.Event()

    def block() -> None:
        blocked.set()
        assert freed.wait(60)

    async def begin(name: str) -> None:
        begun.append(name)

    thread.tell(block)
    assert await asyncio.to_thread(blocked.wait, 60)
    cancelled = asyncio.ensure_future(thread.run(begin("cancelled")))
    await asyncio.sleep(0)
    cancelled.cancel()
    with suppress(asyncio.CancelledError):
        await cancelled
    call = asyncio.ensure_future(thread.run(begin("second")))
    await asyncio.sleep(0)
    freed.set()
    await call
    assert begun == ["second"]
