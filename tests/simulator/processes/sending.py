"""A producer as a coroutine over the public API, as a careful user would write it.

It draws what it does next, has its calls cancelled at any moment, and begins again after every error.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import replace
from itertools import count
from typing import TYPE_CHECKING, Any

from netchannel import (
    BufferFull,
    ChannelBroken,
    ChannelClosed,
    ChannelClosedByPeer,
    ChannelFailed,
    NetChannelError,
    PositionLost,
    SchemaMismatch,
)
from tests.simulator.oracle import Stream, Violation
from tests.simulator.plans import Kind, Shared, encoded, fault_policy

from .cancelling import Cancelled, perhaps_cancelled

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine
    from random import Random

    from netchannel import SenderChannel, SenderServer

LEFT = "producer left without closing"
MADE_THERE = 3
"""One message in so many is made in memory that the channel gives."""


class Sending:
    """The producer: ``left`` messages to go, in as many streams as it takes; then a clean end."""

    def __init__(self, shared: Shared, to: str, random: Random) -> None:
        self.shared = shared
        self.to = to
        self.left = shared.plan.messages
        self.done = False
        self.stream: Stream | None = None
        self.channel: SenderChannel | None = None
        self.wishes: list[Callable[[SenderChannel], Coroutine[Any, Any, bool]]] = []
        self._random = random
        self._buffer = shared.plan.send_buffer
        if shared.directory is not None and self._buffer.directory is not None:
            self._buffer = replace(self._buffer, directory=shared.directory)
        if self._buffer.when_full == "block" and True:
            self._buffer = replace(self._buffer, when_full=random.choice(["block", "fail"]))
        self._lives = count(1)
        self._beside: list[asyncio.Task[None]] = []  # what waits on the channel beside the producer
        self._head = 0  # of the stream, as far as this producer has got
        self._replay = False
        self._placed = True

    # -- what happens to the process

    def crashed(self) -> None:
        """It is gone."""
        self.channel = None
        self._beside.clear()
        if self.shared.plan.kind is Kind.DURABLE:
            return
        self._replay = self.shared.plan.replayable and self.stream is not None
        if not self._replay:
            self._begin_anew()

    def leaving(self) -> None:
        """The context is left by an exception, with what is open."""
        stream = self.stream
        if stream is not None and self.shared.plan.kind is not Kind.DURABLE:
            stream.failed = stream.failed or LEFT

    def left_behind(self) -> None:
        """The context was left."""
        self.channel = None
        if self.shared.plan.kind is not Kind.DURABLE:
            self._begin_anew()

    def _begin_anew(self) -> None:
        self.stream, self._replay = None, False
        self.left = max(self.left, 3)

    # -- its life

    async def run(self, server: SenderServer) -> None:
        """Until everything is sent, and its end acknowledged."""
        try:
            await self._run(server)
        finally:
            for task in self._beside:
                task.cancel()
            while not all(task.done() for task in self._beside):
                await asyncio.wait(self._beside)
            self._beside.clear()

    async def _run(self, server: SenderServer) -> None:
        while not self.done:
            try:
                self._register(server)
            except BufferFull:  # a full disk can hold up a beginning, too
                await asyncio.sleep(0.5)
                continue
            assert self.channel is not None
            try:
                while not await self._step(self.channel):
                    pass
            except NetChannelError as error:
                self._over(error)
                await asyncio.sleep(self._random.random() * self._random.choice([0.0, 0.1, 0.5]))
            self.channel = None
            server.statistics()
            for task in self._beside:  # what waits for a channel that is over hears of it
                await task
            self._beside.clear()

    def _register(self, server: SenderServer) -> None:
        plan = self.shared.plan
        durable = plan.kind is Kind.DURABLE
        if self.stream is None and not durable:
            self._adopt(self.shared.new_stream())
        self.channel = channel = server.register_channel(
            plan.channel_id,
            self.to,
            codec=plan.codec,
            stream=None if durable or self.stream is None else self.stream.name,
            replayable=self._replay,
            buffer=self._buffer,
            fault=fault_policy(plan.sender_retry),
        )
        if durable:
            self._find(channel)
        elif self._replay:
            assert self.stream is not None
            self.stream.returned = 0
        self._placed = not self._replay
        self._replay = False

    def _adopt(self, name: str) -> None:
        self.stream = self.shared.streams[name]
        self._head = 0

    def _find(self, channel: SenderChannel) -> None:
        """What the disk holds: everything that `send` had returned for."""
        stream, head = self.stream, channel.position
        if stream is None or stream.name != channel.stream:
            if stream is not None and not (
                stream.total is not None or stream.failed or stream.closed_by_consumer
            ):
                raise Violation(f"{stream.name} is gone from the disk, and was not at its end")
            self.shared.streams[channel.stream] = Stream(channel.stream)
            self._adopt(channel.stream)
            if head:
                raise Violation(f"the disk holds {head} messages of a stream that nobody has sent")
            return
        if head > max(stream.sent, default=-1) + 1:
            raise Violation(f"the disk holds {head} messages of {stream.name}, more than were sent")
        stream.resumed(head)
        stream.returned = head
        self.left += max(0, self._head - head)
        self._head = head
        if stream.total is not None and head < stream.total:
            stream.total = None  # a close that did not get to the disk, and did not return

    async def _step(self, channel: SenderChannel) -> bool:
        """Do the next thing; True once the channel is over."""
        stream, random = self.stream, self._random
        assert stream is not None
        try:
            if not self._placed:
                await self._place(channel)
            elif stream.failed is not None:
                return await self._abort(channel)
            elif self.left <= 0 or stream.total is not None:
                return await self._close(channel)
            elif self.wishes:
                return await self.wishes.pop(0)(channel)
            elif random.random() < 0.03:
                await self._flush(channel)
            elif random.random() < 0.05:
                await asyncio.sleep(random.random() * random.choice([0.0, 0.01, 0.5]))
            else:
                await self._send(channel)
        except Cancelled:
            pass
        except BufferFull:
            await asyncio.sleep(random.random())
        return False

    async def _place(self, channel: SenderChannel) -> None:
        """A stream that was begun by another goes on where the receiver is."""
        head, _ = await perhaps_cancelled(self._random, channel.attached())
        stream = self.stream
        assert stream is not None
        if channel.position != head:
            raise Violation(f"attached() says {head}, position {channel.position}")
        self._placed = True
        stream.total = None
        stream.returned = head
        self.left += max(0, self._head - head)
        self._head = head

    async def _send(self, channel: SenderChannel) -> None:
        many = min(self._random.choice([1, 1, 1, self.shared.plan.batch]), max(self.left, 1))
        likely = (
            0.3 if self.shared.plan.kind is Kind.DURABLE else 0.05
        )  # who waits for the disk can be cancelled there
        await perhaps_cancelled(self._random, self._send_some(channel, many), likely)

    async def _send_some(self, channel: SenderChannel, many: int) -> None:
        stream = self.stream
        assert stream is not None
        first = channel.position
        bodies = [
            self._made(channel, encoded(self.shared.plan, self._body(stream, first + n)), first + n)
            for n in range(many)
        ]
        try:
            if many > 1 or self._random.random() < 0.1:
                await channel.send_many(bodies)
            else:
                await channel.send(bodies[0], b"note" if self._random.random() < 0.1 else b"")
        finally:
            self._count(channel, stream, first, many)
        if channel.position != first + many:
            raise Violation(
                f"{many} messages were sent from {first} on, and the position is {channel.position}"
            )
        stream.returned = channel.position

    def _made(self, channel: SenderChannel, value: Any, number: int) -> Any:
        """The same, now and then in memory that is asked for; if there is none to be had, `send` will say why."""
        if number % MADE_THERE == 0 and isinstance(value, bytes):
            with suppress(NetChannelError):
                memory = channel.allocate(len(value))
                memory[:] = value
                return memory
        return value

    def _body(self, stream: Stream, number: int) -> bytes:
        """What goes out under ``number``: what did before, where that may have gone out already."""
        if number < self._fixed(stream):
            return stream.sent[number]
        # Who can begin anywhere says the same again, also what a killed process may have sent before it knew.
        return stream.send(number, 0 if self.shared.plan.replayable else next(self._lives))

    def _fixed(self, stream: Stream) -> int:
        # Of a durable stream nothing goes out that its successor might not know of.
        return 0 if self.shared.plan.kind is Kind.DURABLE else stream.taken

    def _count(self, channel: SenderChannel, stream: Stream, first: int, many: int) -> None:
        """``position`` tells how many were taken."""
        taken = channel.position - first
        if not 0 <= taken <= many:
            raise Violation(
                f"{many} messages were sent from {first} on, and the position is {channel.position}"
            )
        self.left -= taken
        self._head = channel.position
        if self.shared.plan.kind is not Kind.DURABLE:
            stream.taken = max(stream.taken, self._head)
            stream.returned = self._head

    async def _flush(self, channel: SenderChannel) -> None:
        upto, stream = channel.position, self.stream
        assert stream is not None
        if self._random.random() < 0.5:
            self._beside.append(asyncio.ensure_future(self._flush_beside(channel, stream, upto)))
            return
        await perhaps_cancelled(self._random, channel.flush(), 0.3)
        self._check_committed(stream, upto, "flush")

    async def _flush_beside(self, channel: SenderChannel, stream: Stream, upto: int) -> None:
        with suppress(NetChannelError, Cancelled):
            await perhaps_cancelled(self._random, channel.attached())
            await perhaps_cancelled(self._random, channel.flush())
            self._check_committed(stream, upto, "flush")

    def _check_committed(self, stream: Stream, upto: int, call: str) -> None:
        if self.shared.plan.explicit and stream.committed < upto:
            raise Violation(
                f"{call} of {stream.name} returned at {upto}, its consumer has done {stream.committed}"
            )

    async def _close(self, channel: SenderChannel) -> bool:
        stream = self.stream
        assert stream is not None
        stream.total = channel.position
        stream.closed_at.add(stream.total)
        grace = self._random.random() * 3 if self._random.random() < 0.1 else None
        report = await perhaps_cancelled(self._random, channel.close(grace))
        if report.undelivered:
            self._replay = self.shared.plan.kind is not Kind.DURABLE
            return True
        if channel.statistics().state != "ended":  # it had no time to hear of it
            self._replay = self.shared.plan.kind is not Kind.DURABLE
            return True
        self._check_committed(stream, report.acknowledged, "close")
        if report.acknowledged != stream.total:
            raise Violation(f"close of {stream.name} at {stream.total} reports {report}")
        self.stream = None
        self.done = self.left <= 0
        return True

    async def _abort(self, channel: SenderChannel) -> bool:
        stream = self.stream
        assert stream is not None
        assert stream.failed is not None
        await perhaps_cancelled(self._random, channel.abort(stream.failed))
        if self.shared.plan.kind is not Kind.DURABLE or channel.statistics().state == "ended":
            self._begin_anew()
        return True

    # -- what it is told to do

    async def fail(self, channel: SenderChannel) -> bool:
        """The producer fails."""
        stream = self.stream
        assert stream is not None
        stream.failed = f"trouble in {stream.name}"
        return False

    async def detach(self, channel: SenderChannel) -> bool:
        """It leaves its stream to a successor."""
        await perhaps_cancelled(self._random, channel.detach(), 0.3)
        self._replay = self.shared.plan.kind is not Kind.DURABLE
        return True

    def _over(self, error: NetChannelError) -> None:
        """Begin again, as the error says."""
        plan, stream, channel = self.shared.plan, self.stream, self.channel
        assert stream is not None
        assert channel is not None
        self.shared.met[f"sender {type(error).__name__}"] += 1
        durable = plan.kind is Kind.DURABLE
        match error:
            case ChannelBroken():
                self._replay = not durable
            case SchemaMismatch() if plan.kind is Kind.ARROW:
                self._replay = True  # the consumer was wrong, and registers again
            case PositionLost() if not durable:
                self._replay = True
            case ChannelClosedByPeer():
                if not stream.closed_by_consumer:
                    raise Violation(f"{stream.name}: {error!r}")
                self._begin_anew()
            case ChannelClosed() if channel.statistics().state == "detached":  # and the call was cancelled
                self._replay = not durable
            case ChannelClosed() | ChannelFailed() if not durable:
                # It had ended there before: an end, or a failure, that this side did not hear acknowledged.
                if stream.failed is None and not stream.closed_at and not stream.closed_by_consumer:
                    raise Violation(f"{stream.name}: {error!r}")
                self._begin_anew()
            case _:
                raise Violation(f"{stream.name}: {error!r}")
