"""Iterators over sources that wait: whatever calls are cancelled, each item is given once, and nothing stays."""

from __future__ import annotations

import asyncio
import gc
import logging
from collections.abc import AsyncGenerator, Iterable, Iterator
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from netchannel.resumable import Resumable
from tests.support.waiting import until_async

RUNS = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), max_size=8)
"""How often the source waits before each run of items, and how many there are in it."""


async def counted(runs: list[tuple[int, int]]) -> AsyncGenerator[Iterable[int], None]:
    last = 0
    for waits, count in runs:
        for _ in range(waits):
            await asyncio.sleep(0)
        yield range(last, last + count)
        last += count


class Held:
    """A source that waits until it is released, and notes how it ends."""

    def __init__(self) -> None:
        self.released = asyncio.Event()
        self.is_closed = False

    async def items(self) -> AsyncGenerator[Iterable[int], None]:
        try:
            yield [0]
            await self.released.wait()
            yield [1]
        finally:
            self.is_closed = True


@given(RUNS, st.lists(st.integers(0, 5), max_size=30))
def test_each_item_is_given_once_whatever_calls_are_cancelled(
    runs: list[tuple[int, int]], turns: list[int]
) -> None:
    """Each call is cancelled after some turns of the loop; the last ones are not."""

    async def read() -> list[int]:
        found, iterator = [], Resumable(counted(runs))
        for count in turns:
            call = asyncio.ensure_future(anext(iterator, None))
            for _ in range(count):
                await asyncio.sleep(0)
            call.cancel()
            with suppress(asyncio.CancelledError):
                if (item := await call) is not None:
                    found.append(item)
        return found + [item async for item in iterator]

    assert asyncio.run(read()) == list(range(sum(count for _, count in runs)))


@given(RUNS, st.integers(1, 4))
def test_several_tasks_share_the_items(runs: list[tuple[int, int]], tasks: int) -> None:
    async def read() -> list[list[int]]:
        iterator = Resumable(counted(runs))

        async def all_of_it() -> list[int]:
            return [item async for item in iterator]

        return await asyncio.gather(*(all_of_it() for _ in range(tasks)))

    found = asyncio.run(read())
    assert sorted(item for each in found for item in each) == list(range(sum(count for _, count in runs)))
    assert all(each == sorted(each) for each in found)


async def test_an_error_is_raised_by_every_call_from_then_on() -> None:
    """Of the source, and of a run as it is read, whose source is closed: neither looks like an end."""

    async def failing() -> AsyncGenerator[Iterable[int], None]:
        yield [1]
        raise ValueError("of the source")

    def broken() -> Iterator[int]:
        yield 1
        raise ValueError("of a run")

    was_closed = []

    async def with_broken_run() -> AsyncGenerator[Iterable[int], None]:
        try:
            yield broken()
            yield [2]
        finally:
            was_closed.append(True)

    for source, said in ((failing(), "of the source"), (with_broken_run(), "of a run")):
        iterator = Resumable(source)
        assert await anext(iterator) == 1
        for _ in range(3):
            with pytest.raises(ValueError, match=said):
                await anext(iterator)
    assert was_closed == [True]


async def _cancelled_call(iterator: Resumable[int]) -> None:
    call = asyncio.ensure_future(anext(iterator))
    for _ in range(3):
        await asyncio.sleep(0)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call


async def test_closing_ends_the_source_and_calls_that_wait() -> None:
    held = Held()
    iterator = Resumable(held.items())
    assert await anext(iterator) == 0
    await _cancelled_call(iterator)
    waiting = asyncio.ensure_future(anext(iterator, "the end"))
    await asyncio.sleep(0)
    await iterator.aclose()
    assert held.is_closed
    assert await waiting == "the end"
    assert await anext(iterator, "the end") == "the end"
    await iterator.aclose()


async def test_dropping_it_ends_what_a_cancelled_call_has_left() -> None:
    held = Held()
    iterator = Resumable(held.items())
    assert await anext(iterator) == 0
    await _cancelled_call(iterator)
    assert len(asyncio.all_tasks()) == 2
    del iterator
    gc.collect()

    async def is_alone() -> bool:
        return len(asyncio.all_tasks()) == 1

    await until_async(is_alone, "the task ended")
    assert held.is_closed


async def test_an_error_that_no_call_asks_for_is_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    begun = asyncio.Event()

    async def failing() -> AsyncGenerator[Iterable[int], None]:
        await begun.wait()
        raise ValueError("of the source")
        yield [0]

    iterator = Resumable(failing())
    await _cancelled_call(iterator)
    begun.set()
    for _ in range(3):
        await asyncio.sleep(0)
    del iterator
    gc.collect()
    assert caplog.records == []


async def test_a_source_that_is_cancelled_from_elsewhere_has_not_ended() -> None:
    held = Held()
    iterator = Resumable(held.items())
    assert await anext(iterator) == 0
    await _cancelled_call(iterator)
    (step,) = asyncio.all_tasks() - {asyncio.current_task()}
    step.cancel()
    for _ in range(2):
        with pytest.raises(RuntimeError, match="cancelled by other code"):
            await anext(iterator)


@pytest.mark.parametrize("is_dropped_first", [True, False])
def test_the_end_of_its_loop_leaves_nothing_to_be_said(
    is_dropped_first: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """Warnings are errors here, also of what is collected."""
    iterators = []

    async def begin() -> None:
        iterators.append(Resumable(Held().items()))
        assert await anext(iterators[0]) == 0
        await _cancelled_call(iterators[0])

    loop = asyncio.new_event_loop()
    with caplog.at_level(logging.DEBUG, "asyncio"):
        loop.run_until_complete(begin())
        if is_dropped_first:
            iterators.clear()
            gc.collect()
        loop.close()
        iterators.clear()
        gc.collect()
    del loop
    gc.collect()
    assert [each for each in caplog.records if each.levelno > logging.DEBUG] == []


@pytest.mark.parametrize("turns", range(6))
async def test_a_close_that_is_cancelled_can_be_repeated(turns: int) -> None:
    """As two signals to one process do. The source takes some turns of the loop to close."""
    begun, ended = asyncio.Event(), []

    async def slow() -> AsyncGenerator[Iterable[int], None]:
        try:
            begun.set()
            await asyncio.Event().wait()
            yield [0]
        finally:
            for _ in range(20):
                await asyncio.sleep(0)
            ended.append(True)

    iterator = Resumable(slow())
    reading = asyncio.ensure_future(anext(iterator, None))
    await begun.wait()
    for _ in range(2):
        closing = asyncio.ensure_future(iterator.aclose())
        for _ in range(turns):
            await asyncio.sleep(0)
        closing.cancel()
        await asyncio.wait((closing,))
        assert closing.cancelled() or closing.result() is None
    await iterator.aclose()
    assert ended == [True]
    assert await reading is None
