"""Two applications that share a channel, and what each may expect of the other; nothing of the protocol is known here.

A stream is the list of what its producer has sent. Its producer can send that list again from any place, so that a
successor of a crashed one goes on; its consumer begins again after every error.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from netchannel import (
    ChannelBroken,
    ChannelClosed,
    ChannelClosedByPeer,
    ChannelFailed,
    EndOfChannel,
    NetChannelError,
    PositionLost,
    StreamReplaced,
)
from netchannel.core.receiving.inbound import InboundChannel
from netchannel.core.receiving.queue import Item
from netchannel.core.sending.outbound import OutboundChannel
from netchannel.core.states import ReceiverState, SenderState
from tests.support.world import Consumer, Producer


@dataclass
class Stream:
    """What was sent on a stream, how it is to end, and how far its consumers are."""

    name: str
    sent: list[bytes] = field(default_factory=list)
    ending: str | None = None  # "" ends it cleanly behind all that was sent, anything else is a failure
    over: bool = False  # its producer was told that it is
    closed: bool = False  # a consumer wanted no more
    given: set[int] = field(default_factory=set)
    received: int = 0  # what a receiver had of it, at most
    acknowledged: int = 0  # what a consumer has acknowledged of it, at most
    buried: bool = False  # the receiver's process knows that it is over
    lossy: bool = False  # some of it may be missed, for a reason

    def next_value(self, size: int) -> bytes:
        """A message that no other is equal to."""
        return f"{self.name}:{len(self.sent)}:".encode() + bytes(size)


class Sending:
    """A producer's process: one channel at a time."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.streams: list[Stream] = []
        self.producer: Producer | None = None
        self.gave_up = False

    @property
    def stream(self) -> Stream:
        """The latest."""
        return self.streams[-1]

    @property
    def channel(self) -> OutboundChannel | None:
        """What is registered now."""
        return None if self.producer is None else self.producer.channel

    def begin_stream(self) -> Stream:
        """A new one; the one before is abandoned."""
        if self.streams:
            self.stream.lossy = True
        self.streams.append(Stream(f"{self.name}{len(self.streams)}"))
        return self.stream

    def begin(self, producer: Producer) -> None:
        """A channel was registered."""
        self.producer = producer

    def push(self) -> bool:
        """Send what the channel does not have yet, then the end; whether there was room for all of it."""
        channel = self.channel
        if channel is None or channel.terminal or channel.closing is not None or not channel.placed:
            return False
        stream = self.stream
        while channel.head < len(stream.sent):
            if not self.send(stream.sent[channel.head]):
                return False
        if stream.ending is not None:
            channel.finish(stream.ending or None)
        return True

    def send(self, value: bytes) -> bool:
        """Under the next number, if there is room."""
        producer, channel = self.producer, self.channel
        assert producer is not None
        assert channel is not None
        size = len(value) + len(note(channel.head))
        if not channel.room(size) and not channel.make_room(size):
            channel.waiting = 1
            channel.wait_for_room()
            return False
        channel.waiting = 0
        producer.send(value, note(channel.head))
        return True

    def look(self, *, patient: bool) -> None:
        """Take note of an end; it must have one of the reasons that there are."""
        channel = self.channel
        if channel is None or not channel.terminal:
            return
        stream, error = self.stream, channel.error
        match channel.state:
            case SenderState.ENDED if error is None:
                assert channel.closing is not None, "it was not closed"
                assert stream.ending is not None
                stream.over = True
            case SenderState.ENDED:
                assert isinstance(error, ChannelFailed if stream.ending else ChannelClosed), error
                assert stream.ending is not None, "its end was not asked for"
                stream.over = True
            case SenderState.CLOSED_BY_PEER:
                assert isinstance(error, ChannelClosedByPeer)
                assert stream.closed, "nobody closed it"
                stream.over = True
            case SenderState.DETACHED:
                assert isinstance(error, ChannelClosed)
            case _ if isinstance(error, PositionLost):
                assert channel.replayable, "it could not have begun elsewhere"
            case _:
                assert isinstance(error, ChannelBroken), error
                assert self.gave_up or not patient, error
        self.producer, self.gave_up = None, False


class Receiving:
    """A consumer's process: one channel at a time."""

    def __init__(self, *, explicit: bool) -> None:
        self.explicit = explicit
        self.consumer: Consumer | None = None
        self.position: tuple[str, int] | None = None  # of what comes next, as far as the consumer knows
        self.begins_at: tuple[str, int] | None = None  # what this channel was asked to begin at
        self.reading: Stream | None = None
        self.next = 0
        self.missed = 0
        self.left = False  # this side closed or detached the channel

    @property
    def channel(self) -> InboundChannel | None:
        """What is registered now."""
        return None if self.consumer is None else self.consumer.channel

    def begin(self, consumer: Consumer) -> None:
        """A channel was registered, at `begins_at`."""
        self.consumer, self.reading, self.missed, self.left = consumer, None, 0, False
        self.position = self.begins_at

    def take(self, item: Item, stream: Stream, *, accepts_new: bool, lossy: bool) -> None:
        """The consumer was given ``item``: what it must be."""
        # Whoever takes any stream may have been through another one, unseen, and begin this one again.
        again = accepts_new and item.sequence < self.next
        if stream is not self.reading or again:
            assert self.reading is None or accepts_new, f"{stream.name} came in the middle of another"
            self._begin_reading(item, stream, accepts_new=accepts_new)
        gap = item.sequence - self.next
        assert gap >= 0, f"number {item.sequence} of {stream.name} came where {self.next} was due"
        self._miss(gap, lossy=lossy)
        assert bytes(item.body) == stream.sent[item.sequence]
        assert item.note == note(item.sequence)
        stream.given.add(item.sequence)
        self.next = item.sequence + 1
        self.position = stream.name, self.next

    def _begin_reading(self, item: Item, stream: Stream, *, accepts_new: bool) -> None:
        asked = None if self.reading is not None else self.begins_at
        assert asked is None or asked[0] == stream.name or accepts_new, f"{asked} was asked for"
        self.next = self._first(stream, item.sequence, accepts_new=accepts_new)
        self.reading = stream

    def _first(self, stream: Stream, number: int, *, accepts_new: bool) -> int:
        """The first number that was due, where ``number`` of ``stream`` came as the first of it."""
        assert not stream.buried, f"{stream.name} was over"
        asked = None if self.reading is not None else self.begins_at
        if asked is not None and asked[0] == stream.name and not (accepts_new and number < asked[1]):
            return asked[1]
        at_most = stream.acknowledged if self.explicit else stream.received
        due = min(number, at_most)
        if not set(range(due)) <= stream.given:
            stream.lossy = True
        return due

    def _miss(self, count: int, *, lossy: bool) -> None:
        assert self.channel is not None
        self.missed += count
        assert self.missed <= (self.channel.dropped if lossy else 0), f"{count} messages are missing"

    def hear(self, error: NetChannelError, streams: dict[str, Stream], *, patient: bool, lossy: bool) -> None:
        """The consumer was told that the channel is over; it must have one of the reasons that there are."""
        channel = self.channel
        assert channel is not None
        stream = streams.get(channel.stream or "")
        match error:
            case EndOfChannel():
                assert stream is not None
                assert stream.ending == "", "it was not closed"
                self._reach_the_end(stream, lossy=lossy)
            case ChannelFailed():
                assert stream is not None
                assert stream.ending, "its producer did not fail"
                assert stream.ending in str(error)
                self._reach_the_end(stream, lossy=lossy)
            case StreamReplaced():
                # Another one, or one that was over and is sent again under its name, which may have less.
                assert len(streams) > 1 or (stream is not None and stream.over), error
                self.position = None
            case PositionLost():
                assert self.begins_at is not None
                assert not self.explicit, error
                self.position = None
            case ChannelClosed():
                assert self.left, error
                if channel.state is ReceiverState.CLOSED:
                    self.position = None
            case _:
                assert isinstance(error, ChannelBroken), error
                assert not patient, error

    def _reach_the_end(self, stream: Stream, *, lossy: bool) -> None:
        total = len(stream.sent)
        if stream is not self.reading:
            self.next = self._first(stream, total, accepts_new=False)
            self.reading = stream
        self._miss(total - self.next, lossy=lossy)
        self.next = total
        assert self.channel is not None
        stream.buried = self.channel.terminal
        self.position = None if stream.buried else (stream.name, total)


def note(number: int) -> bytes:
    """What travels with message ``number``."""
    return b"" if number % 3 else b"note %d" % number
