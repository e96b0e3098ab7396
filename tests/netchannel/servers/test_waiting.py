"""Tasks that wait for a channel, and when they go on."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextvars import ContextVar

import pytest

from netchannel.core.link import Core
from netchannel.policies import Timing
from netchannel.servers.waiting import Changes
from netchannel.transports.runner import Runner

NAME = ContextVar("name", default="nobody")


class Waiting:
    """A core whose visits are made by hand, and tasks that wait for its changes and note that they went on."""

    def __init__(self) -> None:
        self.core = Core("a test", Timing(), lambda: 0, bytes)
        self.runner = Runner(self.core)
        self.changes = Changes(self.core)
        self.went_on: list[str] = []

    async def task(self, name: str) -> asyncio.Task[None]:
        """One that waits already."""
        task = asyncio.create_task(self._wait(name))
        await asyncio.sleep(0)
        return task

    async def _wait(self, name: str) -> None:
        NAME.set(name)
        await self.changes.wait()
        self.went_on.append(NAME.get())

    def visit(self) -> list[str]:
        """Something was received that all wait for; who has gone on when that is done."""
        visit: list[Callable[[], None]] = []
        self.core.visit = visit
        self.changes.notify()
        self.changes.notify()
        self.core.visit = None
        assert self.went_on == []
        self.runner.finish(visit)
        return list(self.went_on)


async def called_by_the_loop(waiting: Waiting) -> list[str]:
    """A visit as a transport makes it."""
    done: asyncio.Future[list[str]] = asyncio.get_running_loop().create_future()
    asyncio.get_running_loop().call_soon(lambda: done.set_result(waiting.visit()))
    return await done


async def test_a_task_goes_on_at_the_end_of_the_visit_in_its_own_context() -> None:
    waiting = Waiting()
    tasks = [await waiting.task(name) for name in ("first", "second")]
    assert await called_by_the_loop(waiting) == ["first", "second"]
    await asyncio.gather(*tasks)
    assert waiting.went_on == ["first", "second"]
    assert NAME.get() == "nobody"


async def test_a_task_does_not_go_on_within_another_one() -> None:
    waiting = Waiting()
    task = await waiting.task("first")
    assert waiting.visit() == []
    await task
    assert waiting.went_on == ["first"]


async def test_a_change_that_is_no_visit_wakes_in_the_next_turn() -> None:
    waiting = Waiting()
    task = await waiting.task("first")
    waiting.changes.notify()
    assert waiting.went_on == []
    await task
    assert waiting.went_on == ["first"]


async def test_a_cancelled_task_does_not_go_on() -> None:
    waiting = Waiting()
    tasks = [await waiting.task(name) for name in ("first", "second", "third")]
    tasks[0].cancel()
    waiting.changes.notify()
    tasks[1].cancel()  # when its wait is over already
    for task in tasks[:2]:
        with pytest.raises(asyncio.CancelledError):
            await task
    await tasks[2]
    assert waiting.went_on == ["third"]


async def test_one_task_that_ends_the_program_holds_no_other_up() -> None:
    waiting = Waiting()
    left: list[str] = []

    def end() -> None:
        raise SystemExit

    def made_by_the_loop() -> None:
        with pytest.raises(SystemExit):
            waiting.runner.finish([lambda: left.append("a"), end, lambda: left.append("b")])
        left.append("end")

    asyncio.get_running_loop().call_soon(made_by_the_loop)
    await asyncio.sleep(0)
    assert left == ["a", "end"]
    await asyncio.sleep(0)
    assert left == ["a", "end", "b"]


async def test_a_wait_has_an_end() -> None:
    waiting = Waiting()
    await waiting.changes.wait(0.001)
