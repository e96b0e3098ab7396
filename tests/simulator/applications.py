"""A producer and a consumer of one channel, as a careful user would write them: they begin again after every error."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa

from netchannel import (
    BufferFull,
    ChannelBroken,
    ChannelClosed,
    ChannelClosedByPeer,
    ChannelFailed,
    EndOfChannel,
    NetChannelError,
    Position,
    PositionLost,
    SchemaMismatch,
    StreamReplaced,
)
from netchannel.core.receiving.inbound import InboundChannel
from netchannel.core.receiving.queue import Item
from netchannel.core.receiving.receiver_core import ReceiverCore
from netchannel.core.sending.outbound import OutboundChannel
from netchannel.core.sending.packer import Ticket
from netchannel.core.sending.sender_core import SenderCore
from netchannel.core.states import ReceiverState, SenderState
from netchannel.servers.receiver import MESSAGE_LIMIT
from netchannel.storage import SegmentLog
from netchannel.storage.durable_writer import keep_in
from netchannel.storage.spill_writer import spill_to
from tests.support.simulated_files import SimulatedFiles
from tests.support.world import Consumer, Producer

from .network import FaultyWorld
from .oracle import Stream, Violation
from .plans import ANOTHER_SCHEMA, Kind, Shared, encoded, fault_policy

MADE_THERE = 3
"""One message in so many is made in shared memory, where there is some."""


def decoded(consumer: Consumer, item: Item) -> bytes:
    """The body again."""
    value = consumer.decoder.decode(item.body, item.context, MESSAGE_LIMIT)
    return bytes(value) if isinstance(value, memoryview) else bytes(value.column(0)[0].as_py())


def made_there(channel: OutboundChannel, body: bytes) -> bytes | memoryview:
    """The body in memory that the receiver has too, if there is any."""
    memory = channel.allocate(len(body))
    if memory is None:
        return body
    view = memoryview(memory).cast("B")[: len(body)]
    view[:] = body
    return view


class Sending:
    """The producer: ``left`` messages to go, in as many streams as it takes; then a clean end."""

    def __init__(self, world: FaultyWorld, shared: Shared) -> None:
        self.world = world
        self.shared = shared
        self.left = shared.plan.messages
        self.life = 0
        self.done = False
        self.detaching = False
        self.stream: Stream | None = None
        self.producer: Producer | None = None
        self.log: SegmentLog | None = None
        self._tickets: list[tuple[int, Ticket]] = []
        self._replay = False
        self._placed = True

    @property
    def channel(self) -> OutboundChannel | None:
        return None if self.producer is None else self.producer.channel

    def crashed(self) -> None:
        """The process is gone."""
        self.producer, self.log, self._tickets, self.detaching = None, None, [], False
        self.life += 1
        self._replay = self.shared.plan.replayable
        if not self._replay and self.shared.plan.kind is not Kind.DURABLE:
            self.stream = None

    def turn(self, core: SenderCore) -> None:
        """Do a little."""
        if self.done:
            return
        if self.producer is None:
            with suppress(BufferFull):  # a full disk can hold up a beginning too
                self._begin(core)
            return
        channel = self.producer.channel
        self._collect()
        if channel.terminal:
            if channel.settled:
                self._over(channel)
            return
        if not self._placed and channel.placed:
            self._placed = True
            assert self.stream is not None
            self._go_on_at(channel.head)
        self._answer(channel)
        if self.detaching:
            self._detach(channel)
        elif channel.closing is None and channel.placed:
            self._send(channel)

    def abort(self) -> None:
        """Fail, once."""
        channel = self.channel
        if channel is not None and not channel.terminal and channel.closing is None and channel.placed:
            assert self.stream is not None
            self.stream.failed = f"trouble in {self.stream.name}"
            channel.finish(self.stream.failed)
            self.stream.returned = min(self.stream.returned, channel.head)

    def _begin(self, core: SenderCore) -> None:
        plan = self.shared.plan
        prepare: Callable[[OutboundChannel], None] = lambda channel: None  # noqa: E731 - replaced below
        if plan.kind is Kind.DURABLE:
            log = self.log = self._open_log()
            prepare = lambda channel: keep_in(channel, log)  # noqa: E731 - as above
            self._found(log)
        elif plan.kind is Kind.SPILLING:
            prepare = lambda channel: spill_to(channel, self._open_spill, lambda: None)  # noqa: E731
        if self.stream is None:
            self.stream = self.shared.streams[self.shared.new_stream()]
        self.producer = Producer(
            self.world,
            core,
            plan.channel_id,
            "r:1",
            stream=self.stream.name,
            codec=plan.codec,
            buffer=plan.send_buffer,
            fault=fault_policy(plan.sender_retry),
            replayable=self._replay,
            prepare=prepare,
        )
        self._placed = not self._replay
        self._replay = False

    def _open_log(self) -> SegmentLog:
        return SegmentLog.open(
            Path("/d"),
            self.shared.plan.channel_id,
            create_stream=self.shared.new_stream,
            codec="bytes",
            segment_bytes=6000,
            files=self.shared.files,
        )

    def _open_spill(self, start: int) -> SegmentLog:
        return SegmentLog.open(
            Path(f"/tmp{start}"),
            "c",
            create_stream=lambda: "s",
            start=start,
            segment_bytes=6000,
            files=SimulatedFiles(),
        )

    def _found(self, log: SegmentLog) -> None:
        """What the disk holds after a crash: everything that `send` had returned for."""
        stream = self.shared.streams[log.stream]
        if self.stream is None or stream is not self.stream:
            self.stream = stream
            return
        if log.head > stream.returned and log.head > max(stream.sent, default=-1) + 1:
            raise Violation(f"the disk holds {log.head} messages of {stream.name}, more than were sent")
        stream.resumed(log.head)
        stream.returned = log.head
        if log.ending is None:
            stream.total = None  # a close that did not get to the disk, and did not return
        if log.ending is not None and stream.total is None and stream.failed is None:
            raise Violation(f"the disk holds an end of {stream.name} that nobody asked for")

    def _go_on_at(self, head: int) -> None:
        """A replayable stream goes on where the receiver is."""
        assert self.stream is not None
        self.stream.total = None
        self.stream.returned = head
        self.left += max(0, len(self.stream.sent) - head)

    def _send(self, channel: OutboundChannel) -> None:
        assert self.producer is not None
        assert self.stream is not None
        for _ in range(self.shared.plan.batch):
            if self.left <= 0:
                self._close(channel)
                return
            number = channel.head
            body = self.stream.send(number, self.life if channel.durable else 0)
            if not channel.room(len(body)) and not channel.make_room(len(body)):
                channel.waiting = 1
                channel.wait_for_room()
                return
            channel.waiting = 0
            value = encoded(self.shared.plan, body)
            if isinstance(value, bytes) and number % MADE_THERE == 0:
                value = made_there(channel, value)
            ticket = self.producer.send(value)
            self.left -= 1
            if ticket is None:
                self.stream.returned = channel.head
            else:
                self._tickets.append((number, ticket))

    def _close(self, channel: OutboundChannel) -> None:
        assert self.stream is not None
        self.stream.total = channel.head
        self.stream.closed_at.add(channel.head)
        channel.finish()

    def _collect(self) -> None:
        """What the disk has confirmed, the producer was told of."""
        while self._tickets and self._tickets[0][1].durable:
            number, _ = self._tickets.pop(0)
            assert self.stream is not None
            self.stream.returned = max(self.stream.returned, number + 1)

    def _answer(self, channel: OutboundChannel) -> None:
        """Take some of what the consumer asks for."""
        questions, link = self.shared.questions, channel.link
        if questions is None or link is None or link.upqueries is None:
            return
        for _ in range(min(questions.some(), len(link.upqueries))):
            questions.answer(link.upqueries.take(), link.adapter)

    def _detach(self, channel: OutboundChannel) -> None:
        if channel.closing is not None:
            self.detaching = False
            return
        delivered = channel.placed and channel.acknowledged == channel.head
        if channel.on_disk_entirely if channel.durable else delivered:
            channel.detach(self.world.now)

    def _over(self, channel: OutboundChannel) -> None:
        """Begin again, as the error says."""
        plan, stream = self.shared.plan, self.stream
        assert stream is not None
        self.shared.met[f"sender {channel.state}"] += 1
        self.producer, self.log, self._tickets, self.detaching = None, None, [], False
        match channel.state:
            case SenderState.ENDED if channel.error is None:
                if stream.total is None and stream.failed is None:
                    raise Violation(f"{stream.name} is acknowledged as ended, and was not closed")
                if stream.failed is None and self.left <= 0:
                    self.done = True
                self.stream = None
            case SenderState.BROKEN if isinstance(channel.error, SchemaMismatch) and plan.kind is Kind.ARROW:
                self._replay = True  # the consumer was wrong, and registers again
            case SenderState.DETACHED | SenderState.BROKEN:
                expected = PositionLost if channel.replayable else ChannelBroken
                if not isinstance(channel.error, ChannelBroken | ChannelClosed | expected):
                    raise Violation(f"{stream.name}: {channel.error!r}")
                if plan.kind is not Kind.DURABLE:
                    self._replay = True
            case _:
                if not isinstance(channel.error, ChannelClosedByPeer | ChannelClosed | ChannelFailed):
                    raise Violation(f"{stream.name}: {channel.error!r}")
                self.stream = None
        if not self.done:
            self.left = max(self.left, 3)


class Receiving:
    """The consumer: reads, commits, and registers again after every error until the last stream has ended."""

    def __init__(self, world: FaultyWorld, shared: Shared, random: Random, chance: Random) -> None:
        self.world = world
        self.shared = shared
        self.random = random
        self._chance = chance
        self.consumer: Consumer | None = None
        self.closed: set[str] = set()
        self.unheard: set[str] = set()  # its end was acknowledged, and nobody heard it
        self.away = False  # it does not register for a while
        self._resume: Position | None = None
        self._dropped = 0
        self._mistaken = False
        self._keeps = chance.choice([0.0, 0.1, 0.5])
        self._kept: list[tuple[memoryview, bytes]] = []  # bodies, and what they were when they came

    @property
    def channel(self) -> InboundChannel | None:
        return None if self.consumer is None else self.consumer.channel

    @property
    def stream(self) -> Stream | None:
        """Of the channel that is registered."""
        channel = self.channel
        return None if channel is None or channel.stream is None else self.shared.streams[channel.stream]

    def crashed(self) -> None:
        """The process is gone; what it had committed is not."""
        channel, stream, explicit = self.channel, self.stream, self.shared.plan.explicit
        self.let_go()
        if channel is not None and channel.state is ReceiverState.ENDED and stream is not None:
            self.unheard.add(stream.name)
        self.consumer = None
        self._resume = None
        for each in self.shared.streams.values():
            each.crashed(at_receipt=not explicit)
        # A consumer may have lost its position as well: then it begins at the oldest that is not acknowledged.
        if stream is not None and explicit and not stream.ended and self.random.random() < 0.7:
            self._resume = Position(stream.name, stream.committed)

    @property
    def keeps_shared(self) -> bool:
        """It keeps a body that is in shared memory."""
        return any(isinstance(body.obj, pa.Buffer) and not body.obj.is_mutable for body, _ in self._kept)

    def let_go(self) -> None:
        """What it has kept must be as it came, whatever has happened meanwhile."""
        for body, was in self._kept:
            if body != was:
                raise Violation(f"a body that the consumer keeps has become {bytes(body[:40])!r}")
        self._kept.clear()

    def turn(self, core: ReceiverCore) -> None:
        """Do a little."""
        if self._chance.random() < 0.02:
            self.let_go()
        if self.consumer is None:
            if self.away or self.random.random() < 0.8:
                return
            self._register(core)
        channel = self.channel
        assert channel is not None
        for _ in range(self.shared.plan.batch):
            try:
                item = channel.take()
            except NetChannelError as error:
                self._over(channel, error)
                return
            if item is None:
                channel.waiting = 1
                channel.check_starved()
                break
            channel.waiting = 0
            stream = self.stream
            assert stream is not None
            self._hear_of_gaps(channel, stream)
            if self._resume is None and self.shared.plan.explicit and item.sequence < stream.next:
                stream.next = item.sequence  # from the oldest that is not acknowledged
            self._resume = Position(stream.name, item.sequence + 1)
            assert self.consumer is not None
            stream.read(item.sequence, decoded(self.consumer, item))
            if self._chance.random() < self._keeps:
                self._kept.append((item.body, bytes(item.body)))
        self._ask(channel)
        if self.shared.plan.explicit and (channel.waiting or self.random.random() < 0.2):
            self.commit()

    def _ask(self, channel: InboundChannel) -> None:
        """Ask the producer for something, over the connection that there is."""
        questions: Any = self.shared.questions
        link: Any = channel.link
        if questions is None or link is None or questions.waits(link.adapter.peer):
            return
        for _ in range(questions.some()):
            body = questions.ask(link.adapter.peer)
            if not channel.upquery(body):
                del questions.out[body]

    def _hear_of_gaps(self, channel: InboundChannel, stream: Stream) -> None:
        stream.dropped += channel.dropped - self._dropped
        self._dropped = channel.dropped

    def commit(self) -> None:
        """What was read is done."""
        channel, stream = self.channel, self.stream
        if channel is not None and stream is not None and not channel.terminal and self._resume is not None:
            stream.committed = max(stream.committed, stream.next)
            with suppress(NetChannelError):
                channel.ack(stream.next, self.world.now)

    def close(self) -> None:
        """No more of this stream."""
        channel = self.channel
        if channel is not None and channel.stream is not None and not channel.terminal:
            self.closed.add(channel.stream)
            channel.close("enough", self.world.now)

    def detach(self) -> None:
        """Leave it to a successor."""
        channel = self.channel
        if channel is not None and not channel.terminal:
            channel.detach(self.world.now)

    def _register(self, core: ReceiverCore) -> None:
        plan = self.shared.plan
        self._dropped = 0
        self._mistaken = plan.kind is Kind.ARROW and self.random.random() < 0.1
        self.consumer = Consumer(
            self.world,
            core,
            plan.channel_id,
            codec=plan.codec,
            schema=ANOTHER_SCHEMA if self._mistaken else None,
            explicit=plan.explicit,
            resume_from=self._resume,
            buffer=plan.receive_buffer,
            fault=fault_policy(plan.receiver_retry, accept_new_stream=plan.accept_new_stream),
        )

    def _replays(self) -> bool:
        """The producer may have gone on where an earlier consumer was."""
        return self.shared.met["sender broken"] + self.shared.met["sender detached"] > 0 or (
            self.shared.plan.replayable
        )

    def _over(self, channel: InboundChannel, error: NetChannelError) -> None:
        """Begin again, as the error says."""
        self.shared.met[f"receiver {channel.state}"] += 1
        stream = None if channel.stream is None else self.shared.streams[channel.stream]
        if stream is not None:
            self._hear_of_gaps(channel, stream)
        match error:
            case EndOfChannel():
                assert stream is not None
                stream.end()
                self.commit()
                if not channel.terminal:
                    return  # its acknowledgement is on its way
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
            case ChannelClosed() if channel.state is ReceiverState.CLOSED:
                self._resume = None
            case ChannelBroken() | ChannelClosed():
                # On from where it was. Who has no position of its own takes what is kept.
                if self._resume is not None and channel.position is not None:
                    self._resume = Position(self._resume.stream, channel.position)
            case _:
                raise Violation(f"{channel.id}: {error!r}")
        self.consumer = None
