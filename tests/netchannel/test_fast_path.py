"""What a message costs, counted and not timed: a change that makes the fast path longer is seen here.

Both ends are in one process, over TCP, and Python counts the calls that they make. The bounds are a little above what
was counted when they were written; who needs more raises them, and says why.
"""

from __future__ import annotations

import asyncio
import sys
from collections import Counter
from collections.abc import Awaitable, Callable
from types import FrameType
from typing import Any

import pytest
import uvloop

import netchannel
from netchannel.core.receiving import data_receiver
from netchannel.core.receiving.data_receiver import ReceiverData
from netchannel.core.sending import outbound
from netchannel.core.sending.data_sender import SenderData
from netchannel.core.sending.lender import Lender
from netchannel.transports.host_memory import SHARED_MEMORY
from netchannel.transports.runner import LinkProtocol, Runner
from netchannel.wire.frame_parser import FrameParser
from netchannel.wire.pool import Pool

Work = Callable[[netchannel.SenderChannel, netchannel.ReceiverChannel, int], Awaitable[None]]


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Acknowledgements that nobody waits for wait so long that a busy machine, too, has them go together."""
    monkeypatch.setattr(data_receiver, "ACK_DELAY_S", 0.1)


class Calls:
    """Calls by the name of the function, of Python's and of C's."""

    def __init__(self) -> None:
        self.of: Counter[str] = Counter()

    def __call__(self, frame: FrameType, event: str, arg: Any) -> None:
        if event == "call":
            self.of[frame.f_code.co_qualname] += 1
        elif event == "c_call":
            self.of["C"] += 1

    def each(self, messages: int, *functions: Callable[..., Any]) -> float:
        """Calls of ``functions`` per message; of all, if there are none."""
        names = [function.__qualname__ for function in functions] or self.of
        return sum(self.of[name] for name in names) / messages


def counted(work: Work, messages: int, shared_memory: int = SHARED_MEMORY) -> Calls:
    """What is called while ``work`` moves so many messages, once it has done so before."""
    calls = Calls()

    async def main() -> None:
        async with (
            netchannel.ReceiverServer("127.0.0.1:0") as receiver,
            netchannel.SenderServer(shared_memory=shared_memory) as sender,
        ):
            inbox = receiver.register_channel("c", codec="bytes")
            outbox = sender.register_channel("c", to=receiver.address, codec="bytes")
            await outbox.attached()
            await work(outbox, inbox, messages)
            sys.setprofile(calls)
            try:
                await work(outbox, inbox, messages)
            finally:
                sys.setprofile(None)
            await outbox.close()

    uvloop.run(main())
    return calls


def streamed(size: int) -> Work:
    """One message after the other, as many as go through."""

    async def work(
        outbox: netchannel.SenderChannel, inbox: netchannel.ReceiverChannel, messages: int
    ) -> None:
        async def produce() -> None:
            message = bytes(size)
            for _ in range(messages):
                await outbox.send(message)

        producing = asyncio.create_task(produce())
        left = messages
        async for _ in inbox:
            left -= 1
            if not left:
                break
        await producing

    return work


async def alone(outbox: netchannel.SenderChannel, inbox: netchannel.ReceiverChannel, messages: int) -> None:
    """The next message once the one before has come."""
    consumer = aiter(inbox)
    for number in range(messages):
        await outbox.send(b"%064d" % number)
        await anext(consumer)


@pytest.mark.parametrize(("size", "messages", "most"), [(64, 100_000, 9.5), (1024, 30_000, 10.5)])
def test_a_small_message_in_a_stream(size: int, messages: int, most: float) -> None:
    """It is never by itself: what is done for frames, reads and writes is shared by hundreds."""
    calls = counted(streamed(size), messages)
    assert calls.each(messages) < most
    assert calls.each(messages, LinkProtocol.apply, LinkProtocol.buffer_updated) < 0.03
    assert calls.each(messages, Pool.take) < 0.01


def test_a_message_of_64_kib_over_a_socket() -> None:
    """A frame of its own, received where it stays: it is not copied, and few are acknowledged by themselves."""
    messages = 2_000
    calls = counted(streamed(1 << 16), messages, shared_memory=0)
    assert calls.each(messages) < 140
    assert calls.each(messages, LinkProtocol.buffer_updated) < 1.5
    assert calls.each(messages, SenderData.output) < 0.2
    assert calls.each(messages, ReceiverData.output) < 0.2
    assert calls.each(messages, Pool.take) < 1.05
    assert calls.each(messages, FrameParser._own) < 0.2  # of acknowledgements


def test_a_message_of_64_kib_in_shared_memory() -> None:
    """Only references are read, several at a time, and nothing is received into memory of the receiver's own."""
    messages = 2_000
    calls = counted(streamed(1 << 16), messages)
    assert calls.each(messages) < 160
    assert calls.each(messages, LinkProtocol.buffer_updated) < 0.4
    assert calls.each(messages, SenderData.output) < 0.2
    assert calls.each(messages, ReceiverData.output) < 0.2
    assert calls.each(messages, Pool.take) < 0.01


def test_a_message_of_1_mib_in_shared_memory() -> None:
    """Four of them are a turn of both loops: one write and one read, of references."""
    messages = 1_000
    calls = counted(streamed(1 << 20), messages)
    assert calls.each(messages) < 210
    assert calls.each(messages, LinkProtocol.buffer_updated) < 0.6
    assert calls.each(messages, SenderData.output) < 0.6
    assert calls.each(messages, ReceiverData.output) < 0.35
    assert calls.each(messages, Lender._copied) == 1
    assert calls.each(messages, Pool.take) < 0.01


async def filled(outbox: netchannel.SenderChannel, inbox: netchannel.ReceiverChannel, messages: int) -> None:
    """Each made in memory that the channel gives; the next one once it has come."""
    for number in range(messages):
        memory = outbox.allocate(1 << 20)
        memory[0] = number & 0xFF
        await outbox.send(memory)
        assert (await inbox.recv())[0] == number & 0xFF


def test_a_message_of_1_mib_that_was_made_in_shared_memory() -> None:
    """Nothing is copied."""
    messages = 500
    calls = counted(filled, messages)
    assert calls.each(messages, Lender._copied) == 0
    assert calls.each(messages, Lender.allocate) == 1
    assert calls.each(messages) < 345
    assert calls.each(messages, Pool.take) < 0.01


def test_a_lone_message(monkeypatch: pytest.MonkeyPatch) -> None:
    """One write, one read, one wake-up of its consumer, in the same turn; most acknowledgements go together."""
    # However many are on their way, as late as they are acknowledged here.
    monkeypatch.setattr(outbound, "FEW", 1_000)
    messages = 2_000
    calls = counted(alone, messages)
    assert calls.each(messages) < 165  # 9 of them spare a turn of the loop
    assert calls.each(messages, SenderData.output) < 1.1
    assert calls.each(messages, ReceiverData.output) < 0.1
    assert calls.each(messages, LinkProtocol.buffer_updated) < 1.5
    assert calls.each(messages, Runner._pump) < 0.5
    assert calls.each(messages, Runner.finish) > 0.9
    assert calls.each(messages, Pool.take) == 0
