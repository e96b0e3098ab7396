"""A consumer as a coroutine over the public API, as `sending` has the producer."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from netchannel import (
    ChannelBroken,
    ChannelClosed,
    ChannelFailed,
    EndOfChannel,
    NetChannelError,
    Position,
    PositionLost,
    SchemaMismatch,
    StreamReplaced,
)
from tests.simulator.oracle import Stream, Violation
from tests.simulator.plans import ANOTHER_SCHEMA, Kind, Shared, fault_policy

from .cancelling import Cancelled, perhaps_cancelled

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Coroutine
    from random import Random

    from netchannel import ReceiverChannel, ReceiverServer


async def _nothing() -> AsyncIterator[None]:
    return
    yield


class Receiving:
    """The consumer: reads, commits, and registers again after every error, until it is stopped."""

    def __init__(self, shared: Shared, random: Random, note: Callable[[str], None], chance: Random) -> None:
        self.shared = shared
        self.channel: ReceiverChannel | None = None
        self.unheard: set[str] = set()  # its end was acknowledged, and nobody heard it
        self.wishes: list[Callable[[ReceiverChannel], Coroutine[Any, Any, None]]] = []
        self._random = random
        self._note = note
        self._resume: Position | None = None
        self._dropped = 0
        self._mistaken = False
        self._chance = chance
        self._keeps = chance.choice([0.0, 0.1, 0.5])
        self._kept: list[tuple[Any, bytes]] = []  # what has come, and its body

    # -- what happens to the process

    def crashed(self) -> None:
        """It is gone, or has left its server; what it had committed is not."""
        self.let_go()
        channel, explicit = self.channel, self.shared.plan.explicit
        stream = self._stream(channel)
        if channel is not None and stream is not None and channel.statistics().state == "ended":
            self.unheard.add(stream.name)
        self.channel = self._resume = None
        for each in self.shared.streams.values():
            each.crashed(at_receipt=not explicit)
        # A consumer may have lost its position as well: then it begins at the oldest that is not acknowledged.
        if stream is not None and explicit and not stream.ended and self._random.random() < 0.7:
            self._resume = Position(stream.name, stream.committed)

    def heard_all(self) -> bool:
        """It has heard of the last end, or cannot any more."""
        last = [stream for stream in self.shared.streams.values() if stream.total is not None][-1]
        return last.name in self.unheard or last.closed_by_consumer or last.ended or bool(last.lossy)

    def _stream(self, channel: ReceiverChannel | None) -> Stream | None:
        return None if channel is None or channel.stream is None else self.shared.streams[channel.stream]

    # -- its life

    async def run(self, server: ReceiverServer) -> None:
        """For ever."""
        while True:
            if self._random.random() < 0.5:
                await asyncio.sleep(self._random.random() * self._random.choice([0.01, 1.0]))
            self._register(server)
            server.statistics()
            assert self.channel is not None
            try:
                while True:
                    await self._step(self.channel)
            except NetChannelError as error:
                await self._over(self.channel, error)
            self.channel = None

    def _register(self, server: ReceiverServer) -> None:
        plan = self.shared.plan
        self._dropped = 0
        self._mistaken = plan.kind is Kind.ARROW and self._random.random() < 0.05
        self.channel = server.register_channel(
            plan.channel_id,
            codec=plan.codec,
            schema=ANOTHER_SCHEMA if self._mistaken else None,
            ack="explicit" if plan.explicit else "receipt",
            resume_from=self._resume,
            buffer=plan.receive_buffer,
            fault=fault_policy(plan.receiver_retry, accept_new_stream=plan.accept_new_stream),
        )

    async def _step(self, channel: ReceiverChannel) -> None:
        random = self._random
        try:
            if self.wishes:
                await self.wishes.pop(0)(channel)
            elif random.random() < 0.1:
                await asyncio.sleep(random.random() * random.choice([0.0, 0.01, 0.5]))
            elif random.random() < 0.1:
                await perhaps_cancelled(random, self._commit(channel))
            elif random.random() < 0.02:
                await perhaps_cancelled(random, channel.schema())
            else:
                await self._read(channel)
        except Cancelled:
            pass

    async def _read(self, channel: ReceiverChannel) -> None:
        """The next few, which are committed before the consumer waits for what may not come without."""
        random, dropping = self._random, self.shared.plan.kind is Kind.DROPPING
        for _ in range(self.shared.plan.batch):
            read = self._read_bare if not dropping and random.random() < 0.3 else self._read_whole
            if self.shared.plan.explicit and not channel.statistics().buffered_messages:
                await self._commit(channel)
            await perhaps_cancelled(random, read(channel), 0.05)

    async def _read_whole(self, channel: ReceiverChannel) -> None:
        message = await channel.recv_message()
        self._take(channel, message.sequence, message.batch)

    async def _read_bare(self, channel: ReceiverChannel) -> None:
        batch = await channel.recv()
        position = channel.position
        assert position is not None
        self._take(channel, position.sequence - 1, batch)

    async def _read_twice(self, channel: ReceiverChannel) -> None:
        """Two tasks at once: each message goes to one of them."""
        tasks = [
            asyncio.ensure_future(perhaps_cancelled(self._random, self._read_whole(channel), 0.3))
            for _ in range(2)
        ]
        try:
            await asyncio.wait(tasks)
        finally:
            for task in tasks:
                task.cancel()
            while not all(task.done() for task in tasks):
                await asyncio.wait(tasks)
        errors = [error for task in tasks if (error := task.exception()) is not None]
        for error in sorted(errors, key=lambda error: isinstance(error, Cancelled)):
            raise error

    async def _read_on(self, channel: ReceiverChannel, most: int) -> None:
        """By iterating: at most as many as are there, so that nobody waits for what must be committed first."""
        left = min(most, channel.statistics().buffered_messages)
        async for batch in channel if left else _nothing():
            position = channel.position
            assert position is not None
            self._take(channel, position.sequence - 1, batch)
            left -= 1
            if not left:
                break

    def _take(self, channel: ReceiverChannel, number: int, batch: Any) -> None:
        stream = self._stream(channel)
        assert stream is not None
        self._hear_of_gaps(channel, stream)
        if self._resume is None and self.shared.plan.explicit and number < stream.next:
            stream.next = number  # from the oldest that is not acknowledged
        self._resume = Position(stream.name, number + 1)
        stream.read(number, self._body(batch))
        if self._chance.random() < self._keeps:
            self._kept.append((batch, self._body(batch)))
        if self._chance.random() < 0.05:
            self.let_go()
        self._note(f"{stream.name}:{number}")

    def _body(self, batch: Any) -> bytes:
        return bytes(batch) if self.shared.plan.codec == "bytes" else bytes(batch.column(0)[0].as_py())

    def let_go(self) -> None:
        """What it has kept must be as it came, whatever has happened meanwhile."""
        for batch, was in self._kept:
            if self._body(batch) != was:
                raise Violation(f"a body that the consumer keeps has become {self._body(batch)[:40]!r}")
        self._kept.clear()

    def _hear_of_gaps(self, channel: ReceiverChannel, stream: Stream) -> None:
        dropped = channel.statistics().dropped
        stream.dropped += dropped - self._dropped
        self._dropped = dropped

    async def _commit(self, channel: ReceiverChannel) -> None:
        """What was read is done."""
        stream = self._stream(channel)
        if self.shared.plan.explicit and stream is not None and self._resume is not None:
            stream.committed = max(stream.committed, stream.next)
            await channel.ack(self._random.choice([stream.next, Position(stream.name, stream.next)]))

    # -- what it is told to do

    async def close(self, channel: ReceiverChannel) -> None:
        """No more of this stream."""
        stream = self._stream(channel)
        if stream is not None:
            stream.closed_by_consumer = True
            await perhaps_cancelled(self._random, channel.close("enough"))

    async def detach(self, channel: ReceiverChannel) -> None:
        """It leaves the stream to a successor."""
        await perhaps_cancelled(self._random, channel.detach())

    async def _over(self, channel: ReceiverChannel, error: NetChannelError) -> None:
        """Begin again, as the error says."""
        self.shared.met[f"receiver {type(error).__name__}"] += 1
        stream, state = self._stream(channel), channel.statistics().state
        if stream is not None:
            self._hear_of_gaps(channel, stream)
        match error:
            case EndOfChannel():
                assert stream is not None
                stream.end()
                await self._commit(channel)
                if channel.statistics().state != "ended":
                    raise Violation(
                        f"{stream.name} is read to its end and acknowledged, and its channel {state}"
                    )
                self._resume = None
            case ChannelFailed():
                assert stream is not None
                stream.fail(str(error))
                self._resume = None
            case StreamReplaced():
                self._resume = None
            case SchemaMismatch() if self._mistaken:
                pass
            case PositionLost() if self._replays():
                pass  # the producer hears it too, and begins again there
            case ChannelClosed() if state == "closed":
                self._resume = None
            case ChannelBroken() | ChannelClosed():
                # On from where it was. Who has no position of its own takes what is kept.
                position = channel.position
                if self._resume is not None and position is not None:
                    self._resume = position
            case _:
                raise Violation(f"{channel.id}: {error!r}")

    def _replays(self) -> bool:
        """The producer may have gone on where an earlier consumer was."""
        met = self.shared.met
        return self.shared.plan.replayable or met["sender ChannelBroken"] + met["detach"] > 0
