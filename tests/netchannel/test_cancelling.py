"""Calls that are cancelled wherever they wait, over sockets and with full buffers: nothing is lost or doubled."""

from __future__ import annotations

import asyncio
import itertools
import types
from collections.abc import Callable, Coroutine, Generator, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from netchannel import BufferPolicy, CloseReport, ReceiverChannel, ReceiverServer, SenderChannel, SenderServer
from netchannel.testing.suite import QUICK
from tests.support.chaos import Proxy
from tests.support.waiting import until_async

BEGINS, WOKEN = "as it begins to wait", "as it is woken"
"""When a call is cancelled, at each place where it waits: before what it waits for, and in the same turn as that."""
FAR = 500
"""More places than any call has."""


class Cancelled:
    """A call that is cancelled at the ``place``-th of its waits."""

    def __init__(self, call: Coroutine[Any, Any, Any], place: int, moment: str) -> None:
        self._call, self._place, self._moment = call, place, moment
        self.got_there = False
        self.task = asyncio.ensure_future(self._run())

    async def _run(self) -> Any:
        return await self._driven()

    @types.coroutine
    def _driven(self) -> Generator[Any, Any, Any]:
        """The call, step by step: whatever it waits for, the task waits for."""
        step: Callable[[], Any] = partial(self._call.send, None)
        for place in itertools.count():
            try:
                awaited = step()
            except StopIteration as returned:
                return returned.value
            if place == self._place:
                self._cancel(awaited)
            try:
                step = partial(self._call.send, (yield awaited))
            except BaseException as error:  # noqa: BLE001 - it is the call's
                step = partial(self._call.throw, error)
        raise AssertionError

    def _cancel(self, awaited: asyncio.Future[Any] | None) -> None:
        self.got_there = True
        if self._moment == BEGINS or awaited is None:  # a bare turn of the loop
            self.task.cancel()
        else:
            awaited.add_done_callback(lambda _: self.task.cancel())  # before the task is told

    async def beside(self, other: Coroutine[Any, Any, Any]) -> bool:
        """Have ``other`` bring what the call waits for, once it waits; whether the call was cancelled."""
        await asyncio.sleep(0)
        await asyncio.gather(other, asyncio.wait([self.task]))
        if self.got_there:
            assert self.task.cancelled()
        else:
            self.task.result()
        return self.got_there


def everywhere() -> Iterator[tuple[int, str]]:
    return itertools.product(range(FAR), (BEGINS, WOKEN))


class Consumer:
    """Reads on demand, and acknowledges each message by itself."""

    def __init__(self, inbox: ReceiverChannel) -> None:
        self._inbox = inbox
        self.read: list[int] = []

    async def take(self, count: int) -> None:
        for _ in range(count):
            self.read.append(number_in(await self._inbox.recv()))
            await self._inbox.ack(len(self.read))

    async def take_all(self) -> None:
        async for body in self._inbox:
            self.read.append(number_in(body))
            await self._inbox.ack(len(self.read))


def number_in(body: Any) -> int:
    return int.from_bytes(body[:8], "big")


def message(number: int, size: int = 8) -> bytes:
    return number.to_bytes(8, "big") + bytes(size - 8)


@dataclass(frozen=True)
class Full:
    """What keeps a `send` waiting, and in how many places at least: before each, so many messages are in the buffer."""

    messages: int
    size: int
    acknowledged: int
    """How many the consumer acknowledges while it waits."""
    places: int
    durable: bool = False


async def _acknowledged(outbox: SenderChannel, upto: int) -> bool | None:
    return outbox.statistics().acknowledged >= upto or None


FULL = {
    "of what is not acknowledged": Full(messages=2, size=8, acknowledged=2, places=1),
    "and on disk": Full(messages=2, size=8, acknowledged=2, places=2, durable=True),
    "before a connection that nobody reads": Full(messages=12, size=1 << 22, acknowledged=0, places=2),
}


@pytest.mark.parametrize("full", FULL.values(), ids=FULL)
async def test_sends_that_are_cancelled_where_they_wait(full: Full, tmp_path: Path) -> None:
    """CH-CAN-1: each took its number or did not, as `position` says, and its message arrives once or never."""
    policy = BufferPolicy(
        max_bytes=None,
        max_messages=full.messages if full.acknowledged else None,
        directory=tmp_path if full.durable else None,
    )
    async with (
        ReceiverServer(timing=QUICK) as receiver,
        SenderServer(timing=QUICK) as sender,
        asyncio.timeout(60),
    ):
        inbox = receiver.register_channel(
            "c", codec="bytes", ack="explicit", buffer=BufferPolicy(max_messages=1)
        )
        outbox = sender.register_channel("c", to=receiver.address, codec="bytes", buffer=policy)
        consumer, places = Consumer(inbox), set()
        for place, moment in everywhere():
            await until_async(partial(_acknowledged, outbox, len(consumer.read)), "the acknowledgements came")
            while outbox.statistics().buffered_messages < full.messages:
                await outbox.send(message(outbox.position, full.size))
            before = outbox.position
            sending = Cancelled(outbox.send(message(before, full.size)), place, moment)
            cancelled = await sending.beside(consumer.take(full.acknowledged))
            assert outbox.position in ((before, before + 1) if cancelled else (before + 1,))
            if not cancelled:
                break
            places.add(place)
        assert len(places) >= full.places
        await asyncio.gather(outbox.close(), consumer.take_all())
        assert consumer.read == list(range(outbox.position))


async def test_flushes_that_are_cancelled_where_they_wait() -> None:
    """CH-CAN-1: they change nothing, and the next one waits for all of it."""
    async with (
        ReceiverServer(timing=QUICK) as receiver,
        SenderServer(timing=QUICK) as sender,
        asyncio.timeout(60),
    ):
        inbox = receiver.register_channel("c", codec="bytes", ack="explicit")
        outbox = sender.register_channel("c", to=receiver.address, codec="bytes")
        consumer, places = Consumer(inbox), set()
        for place, moment in everywhere():
            await outbox.send_many([message(outbox.position + each) for each in range(3)])
            flushing = Cancelled(outbox.flush(), place, moment)
            cancelled = await flushing.beside(consumer.take(3))
            await outbox.flush()
            assert outbox.statistics().acknowledged == outbox.position == len(consumer.read)
            if not cancelled:
                break
            places.add(place)
        assert places
        await asyncio.gather(outbox.close(), consumer.take_all())
        assert consumer.read == list(range(outbox.position))


async def _cut_and_send(proxy: Proxy, outbox: SenderChannel, number: int) -> None:
    for wire in proxy.wires:
        wire.cut()
    await outbox.send(message(number))


@pytest.mark.parametrize("call", ["recv", "recv_message", "__anext__", "aiter"])
async def test_reads_that_are_cancelled_where_they_wait(call: str) -> None:
    """CH-CAN-1: while the connection is lost and made again, and as the message comes: the next one gets it."""
    async with (
        ReceiverServer(timing=QUICK) as receiver,
        Proxy(receiver.address) as proxy,
        SenderServer(timing=QUICK) as sender,
        asyncio.timeout(60),
    ):
        inbox = receiver.register_channel("c", codec="bytes")
        outbox = sender.register_channel("c", to=proxy.address, codec="bytes")
        await outbox.attached()
        places = set()
        iterator = aiter(inbox)  # the same one all along: a cancelled call does not end it
        for number, (place, moment) in enumerate(everywhere()):
            begun = anext(iterator) if call == "aiter" else getattr(inbox, call)()
            reading = Cancelled(begun, place, moment)
            cancelled = await reading.beside(_cut_and_send(proxy, outbox, number))
            again = anext(iterator) if call == "aiter" else inbox.recv()
            read = await again if cancelled else reading.task.result()
            assert number_in(read.batch if call == "recv_message" and not cancelled else read) == number
            if not cancelled:
                again.close()
                break
            places.add(place)
        assert len(places) >= 2
        assert await outbox.close() == CloseReport(acknowledged=number + 1)
        assert [body async for body in inbox] == []


@pytest.mark.parametrize("durable", [False, True])
@pytest.mark.parametrize("grace", [None, 60.0])
async def test_closes_that_are_cancelled_where_they_wait(
    grace: float | None, durable: bool, tmp_path: Path
) -> None:
    """CH-CAN-1: the end stays queued behind all messages; the next call waits for it, and says what there is to say."""
    policy = BufferPolicy(max_messages=3, directory=tmp_path if durable else None)
    async with (
        ReceiverServer(timing=QUICK) as receiver,
        SenderServer(timing=QUICK) as sender,
        asyncio.timeout(60),
    ):
        places = set()
        for place, moment in everywhere():
            name = f"{place} {moment}"
            inbox = receiver.register_channel(name, codec="bytes", ack="explicit")
            outbox = sender.register_channel(name, to=receiver.address, codec="bytes", buffer=policy)
            await outbox.send_many([message(each) for each in range(3)])
            consumer = Consumer(inbox)
            closing = Cancelled(outbox.close(grace), place, moment)
            cancelled = await closing.beside(consumer.take_all())
            assert consumer.read == [0, 1, 2]
            report = await outbox.close() if cancelled else closing.task.result()
            assert report == CloseReport(acknowledged=3)
            if not cancelled:
                break
            places.add(place)
        assert places
