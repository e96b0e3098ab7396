"""A store's blocking work, off its event loop: in order, once, and to its end."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from functools import partial

import pytest

from nebuli.store.errors import StoreClosed
from nebuli.store.store_threads import StoreThreads
from tests.support.waiting import until_async


@pytest.fixture
async def work() -> AsyncIterator[StoreThreads]:
    made = StoreThreads()
    yield made
    await made.close(lambda: None)


async def test_calls_are_made_one_after_the_other_and_off_the_loop(work: StoreThreads) -> None:
    made: list[tuple[int, int]] = []

    def call(number: int) -> int:
        made.append((number, threading.get_ident()))
        return number

    assert await asyncio.gather(*(work.in_order(call, n) for n in range(100))) == list(range(100))
    assert [number for number, _ in made] == list(range(100))
    (thread,) = {thread for _, thread in made}
    assert thread != threading.get_ident()


async def test_whoever_asked_gets_the_error(work: StoreThreads) -> None:
    with pytest.raises(ZeroDivisionError):
        await work.in_order(lambda: 1 // 0)
    assert await work.in_order(lambda: 1) == 1


async def test_a_call_that_is_cancelled_goes_on_and_one_that_has_not_begun_is_not_made(
    work: StoreThreads,
) -> None:
    made: list[str] = []
    failed: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: failed.append(context))
    began, go_on = threading.Event(), threading.Event()

    def slow() -> None:
        began.set()
        go_on.wait()
        made.append("slow")

    asked = [asyncio.create_task(work.in_order(call)) for call in (slow, partial(made.append, "never"))]
    await asyncio.to_thread(began.wait)
    for each in asked:
        each.cancel()
    await asyncio.gather(*asked, return_exceptions=True)
    go_on.set()
    await work.in_order(made.append, "next")
    assert made == ["slow", "next"]
    assert not failed


async def test_what_was_asked_for_is_done_before_it_is_closed_and_nothing_is_after() -> None:
    made: list[str] = []
    work = StoreThreads()
    before = {each.name for each in threading.enumerate()}
    assert "nebuli-store" in before
    asked = asyncio.create_task(work.in_order(made.append, "asked"))
    await asyncio.sleep(0)
    await work.close(partial(made.append, "last"))
    await asked
    assert made == ["asked", "last"]
    with pytest.raises(StoreClosed):
        await work.in_order(made.append, "after")


def test_a_loop_that_is_closed_meanwhile_is_told_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    failed: list[object] = []
    monkeypatch.setattr(threading, "excepthook", failed.append)
    began, go_on = threading.Event(), threading.Event()

    def slow() -> threading.Thread:
        began.set()
        go_on.wait()
        return threading.current_thread()

    async def leave() -> StoreThreads:
        work = StoreThreads()
        asked = asyncio.create_task(work.in_order(slow))
        await asyncio.to_thread(began.wait)
        asked.cancel()
        return work

    ordered = asyncio.run(leave())._ordered
    ordered._asked.put(None)
    go_on.set()
    ordered._thread.join(30)
    assert not ordered._thread.is_alive()
    assert not failed


@pytest.mark.parametrize("waits_for", ["blobs", "what has an order"])
async def test_an_end_that_is_cancelled_ends_all_the_same(waits_for: str) -> None:
    threads = StoreThreads()
    goes_on, ended = threading.Event(), threading.Event()
    if waits_for == "blobs":
        working = asyncio.ensure_future(threads.on_blobs(goes_on.wait, 30))
    else:
        working = asyncio.ensure_future(threads.in_order(goes_on.wait, 30))
    await asyncio.sleep(0)
    ending = asyncio.create_task(threads.close(ended.set))

    async def waits() -> bool:
        return threads._closed and (waits_for == "blobs" or not threads._ordered._asked.empty())

    await until_async(waits, "it waits for its turn")
    ending.cancel()
    await asyncio.wait([ending])
    assert ending.cancelled()
    goes_on.set()
    assert await asyncio.to_thread(ended.wait, 30)
    assert await working
