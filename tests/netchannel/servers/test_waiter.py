"""Tasks that wait for a channel, and when they go on."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from contextvars import ContextVar
from functools import partial

import pytest
import uvloop

from netchannel import ReceiverChannel, ReceiverServer, SenderServer
from netchannel.core.link import Core, Link
from netchannel.policies import Timing
from netchannel.servers.waiter import Changes
from netchannel.transports.memory import MemoryConnection
from netchannel.transports.runner import LinkProtocol, Runner

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
    calls: list[partial[object]] = []

    def end() -> None:
        raise SystemExit

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(asyncio, "current_task", lambda loop: None)
        patch.setattr(
            waiting.runner.loop, "call_soon", lambda call, *args: calls.append(partial(call, *args))
        )
        waiting.runner.finish([lambda: left.append("a"), end, lambda: left.append("b")])
    assert left == ["a"]
    with pytest.raises(SystemExit):
        calls.pop(0)()
    for call in calls:
        call()
    assert left == ["a", "b"]


@pytest.mark.parametrize("new_loop", [asyncio.SelectorEventLoop, uvloop.new_event_loop])
def test_a_consumer_that_ends_the_program_ends_it(new_loop: Callable[[], asyncio.AbstractEventLoop]) -> None:
    """Also where the loop takes what is raised while it hands over bytes for a failure of their connection."""

    async def consume(inbox: ReceiverChannel) -> None:
        while await inbox.recv() != b"end":
            pass
        sys.exit("as it was told")

    consumers: list[asyncio.Task[None]] = []

    async def program() -> None:
        async with ReceiverServer() as receiver, SenderServer() as sender:
            consumer = asyncio.create_task(consume(receiver.register_channel("c", codec="bytes")))
            consumers.append(consumer)
            outbox = sender.register_channel("c", receiver.address, codec="bytes")
            await outbox.send(b"go on")
            await outbox.flush()
            await outbox.send(b"end")
            await asyncio.wait([consumer])
            await asyncio.sleep(0.2)

    with pytest.raises(SystemExit, match="as it was told"), asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(program())
    assert isinstance(
        consumers[0].exception(), SystemExit
    )  # which asyncio would log else, in another test's midst


class _Failing(Link):
    """A connection that has something for somebody, and then fails in a way that nobody has thought of."""

    def __init__(self, waiting: Waiting) -> None:
        super().__init__(waiting.core, "a test")
        self._went_on = waiting.went_on

    def get_buffer(self, hint: int) -> memoryview:
        return self.core.slab

    def _received(self, n: int, now: float) -> None:
        assert self.core.visit is not None
        self.core.visit.append(lambda: self._went_on.append("first"))
        raise LookupError("nobody has thought of this")

    def _lost(self, reason: str, now: float) -> None: ...


async def test_who_waits_goes_on_though_the_connection_fails_behind_that() -> None:
    """It could not even be cancelled else: its wait is over."""
    waiting = Waiting()
    protocol = LinkProtocol(waiting.runner, lambda _: _Failing(waiting))
    protocol.connection_made(MemoryConnection(waiting.runner.loop, "mem:test"))
    protocol.get_buffer(-1)
    with pytest.raises(LookupError):
        protocol.buffer_updated(1)
    await asyncio.sleep(0)
    assert waiting.went_on == ["first"]


async def test_a_wait_has_an_end() -> None:
    waiting = Waiting()
    await waiting.changes.wait(0.001)
