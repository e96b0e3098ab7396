"""A sender's channel without I/O: its life, its numbers, and the messages kept until they are acknowledged."""

from __future__ import annotations

import logging
from collections import deque
from typing import TYPE_CHECKING, NamedTuple

from netchannel.errors import (
    ChannelBroken,
    ChannelClosed,
    ChannelClosedByPeer,
    ChannelFailed,
    MessageTooLarge,
    NetChannelError,
    ProtocolError,
)

from .frames import FRAME_LIMIT, PACK_LIMIT, Body, Buffer, Kind, blob, cut, pack, signal
from .link import log
from .states import SENDER_TABLE, SENDER_TERMINAL, SenderEvent, SenderState

if TYPE_CHECKING:
    from collections.abc import Callable

    from netchannel.values import BufferPolicy, FaultPolicy

    from .data_sender import SenderData
    from .sender import SenderCore
    from .timers import Timer

COMPLAIN_AFTER_S = 5.0
WRITE_LIMIT = 1 << 20
"""Bytes handed to the transport at a time, so that it can say stop in between."""


class Record(NamedTuple):
    """Messages ``first`` to ``end`` (excluded) as they go on the wire."""

    first: int
    end: int
    size: int
    largest: int
    buffers: list[Buffer]
    context: bytes


class OutboundChannel:
    """One stream to one receiver.

    Owned by a `SenderCore`; the application's side calls `append`, `finish`, `detach` and reads the numbers,
    ``on_change`` tells it when to look again.
    """

    def __init__(
        self,
        core: SenderCore,
        channel_id: str,
        to: str,
        *,
        stream: str,
        codec: str,
        buffer: BufferPolicy,
        fault: FaultPolicy,
        replayable: bool,
        now: float,
    ) -> None:
        self.core = core
        self.id = channel_id
        self.to = to
        self.stream = stream
        self.codec = codec
        self.schema: bytes | None = None
        self.buffer = buffer
        self.fault = fault
        self.replayable = replayable
        self.on_change: Callable[[], None] = lambda: None
        self.state = SenderState.REGISTERED
        self.since = now
        self.error: NetChannelError | None = None
        self.head = 0
        self.acknowledged = 0
        self.received = 0
        self.sent = 0  # everything below was handed to a connection at some time
        self.placed = (
            not replayable
        )  # whether the numbers are known: a replayable stream goes on where it was
        self.last_note = b""
        self.message_limit: int | None = None
        self.bytes = 0
        self.kept_bytes = 0
        self.reconnects = 0
        self.dropped = 0
        self.starved = False
        self.waiting = 0  # producers that wait for room
        self.attachments = 0
        self.request = 0
        self.last_failure = "still going on"
        self._failing_since: float | None = None
        self._complained = False
        self.backoff_s = core.timing.backoff_s
        self.progressed = False  # whether anything was received since the last loss
        self.retry: Timer | None = None
        self.link: SenderData | None = None
        self.ending: bytes | None = None
        self._gaps = 0  # dropped messages whose numbers are not acknowledged yet
        self._blocked_at = -1  # the head that the receiver was told of
        self._dropping = False
        self._pending: list[Body] = []
        self._pending_size = 0
        self._pending_since = 0
        self._pending_context = b""
        self._unsent: deque[Record] = deque()
        self._in_flight: deque[Record] = deque()
        self._give_up: Timer | None = None
        self.watch(now)

    # -- the application's side

    @property
    def terminal(self) -> bool:
        """Nothing will happen any more."""
        return self.state in SENDER_TERMINAL

    def room(self, size: int) -> bool:
        """Whether a message of ``size`` bytes fits into the buffer now."""
        if not self.placed:
            return False
        kept = self.head - self.acknowledged - self._gaps
        if kept <= 0:
            return True
        policy = self.buffer
        return (policy.max_messages is None or kept < policy.max_messages) and (
            policy.max_bytes is None or self.kept_bytes + size <= policy.max_bytes
        )

    def admit(self, body: Body) -> None:
        """Raise what stands against sending ``body``; called before it takes a number."""
        self.check_open()
        if self.message_limit is not None and body.size > self.message_limit:
            raise self._too_large(body.size, self.message_limit)

    def _too_large(self, size: int, limit: int) -> MessageTooLarge:
        return MessageTooLarge(
            f"a message of {size} bytes on channel {self.id!r}: {self.to} takes at most {limit}; send smaller "
            f"batches, or raise its message_limit"
        )

    def granted(self, link: SenderData, message_limit: int, now: float) -> None:
        """The receiver has given a token; if it cannot take what is kept for it, nothing will ever help."""
        self.message_limit = message_limit
        kept = [record.largest for record in (*self._in_flight, *self._unsent)]
        largest = max([*kept, *[body.size for body in self._pending]], default=0)
        if largest > message_limit:
            self.fail(SenderEvent.GIVE_UP, self._too_large(largest, message_limit), now)
            return
        self.link = link
        self.move(SenderEvent.OK, now)
        self.core.dial(link)

    def check_open(self) -> None:
        """Raise the reason why nothing more can be sent."""
        if self.error is not None:
            raise type(self.error)(*self.error.args)
        if self.ending is not None or self.terminal:
            raise ChannelClosed(f"channel {self.id!r} was closed by this side after {self.head} messages")

    def make_room(self, size: int) -> bool:
        """Drop the oldest messages that were never sent, if the policy says so; whether there is room then."""
        if self.buffer.when_full == "drop_oldest" and self.placed:
            if self._pending:
                self._seal()
            while not self.room(size) and self._drop_one():
                if not self._dropping:
                    self._dropping = True
                    log.warning("channel %s to %s drops messages: its buffer is full", self.id, self.to)
        return self.room(size)

    def _drop_one(self) -> bool:
        for index, record in enumerate(self._unsent):
            if record.first >= self.sent and record.size:
                first = self._swallow_gap(index, record.first)
                gap: list[Buffer] = [signal(Kind.GAP, sequence=first, count=record.end - first)]
                place = index if first == record.first else index - 1
                self._unsent[place] = Record(first, record.end, 0, 0, gap, record.context)
                self.kept_bytes -= record.size
                self._gaps += record.end - record.first
                self.dropped += record.end - record.first
                return True
        return False

    def _swallow_gap(self, index: int, first: int) -> int:
        """Take the unsent gap before ``index`` out, if there is one; where the gap that replaces it begins."""
        before = self._unsent[index - 1] if index else None
        if before is None or before.size or before.first < self.sent:
            return first
        del self._unsent[index - 1]
        return before.first

    def wait_for_room(self) -> None:
        """A producer waits: if only acknowledgements are missing, the receiver is told."""
        if (
            self.link is not None
            and self.link.attached
            and self.waiting
            and self.received == self.head > self.acknowledged
            and self._blocked_at != self.head
        ):
            self._blocked_at = self.head
            self.link.send(signal(Kind.BLOCKED, sequence=self.head, count=self.head - self.acknowledged))

    def on_starved(self) -> None:
        """The consumer waits for a message while we wait for its acknowledgement."""
        if not self.starved:
            self.starved = True
            log.warning(
                "channel %s to %s is starved: %d messages from number %d on are received and not acknowledged, the "
                "buffer (%s) takes no more, and the consumer waits for number %d: acknowledge more often, or give the "
                "sender a larger buffer",
                self.id, self.to, self.head - self.acknowledged, self.acknowledged, self.buffer, self.head,
            )  # fmt: skip

    def append(self, body: Body, context: bytes) -> None:
        """Take a message: it has number ``head`` now, and is kept until it is acknowledged."""
        size = body.size + len(body.note)
        if self._pending and (context is not self._pending_context or self._pending_size + size > PACK_LIMIT):
            self._seal()
        if not self._pending:
            self._pending_since = self.core.wall()
            self._pending_context = context
            if self.link is not None:
                self.core.touch(self.link)
        self._pending.append(body)
        self._pending_size += size
        self.kept_bytes += size
        self.bytes += size
        self.head += 1

    def finish(self, failure: str | None = None) -> None:
        """Queue the end, or the abort, behind everything sent."""
        if self.ending is None:
            self.ending = (
                signal(Kind.END, sequence=self.head)
                if failure is None
                else signal(Kind.FAIL, sequence=self.head, payload=failure.encode()[:FRAME_LIMIT])
            )
            if self.link is not None:
                self.core.touch(self.link)

    def detach(self, now: float) -> None:
        """Leave the stream to a successor, unfinished."""
        self.fail(
            SenderEvent.DETACH, ChannelClosed(f"channel {self.id!r} was detached at number {self.head}"), now
        )

    # -- the life of the channel

    def move(self, event: SenderEvent, now: float) -> None:
        """Follow the table; a pair that is not in it is our own mistake."""
        before, self.state = self.state, SENDER_TABLE[self.state, event]
        self.since = now
        if before is not self.state:
            # Asking again and being denied again is no news.
            again = self._failing_since is not None and event in (SenderEvent.OPEN, SenderEvent.DENY)
            log.log(
                logging.DEBUG if again else logging.INFO,
                "channel %s to %s: %s -> %s (%s; next %d, acknowledged %d)",
                self.id, self.to, before, self.state, event, self.head, self.acknowledged,
            )  # fmt: skip
        if self.terminal:
            self._release(now)
        self.on_change()

    def fail(self, event: SenderEvent, error: NetChannelError, now: float) -> None:
        """End in ``error``, which every later call raises."""
        if not self.terminal:
            self.error = error
            self.move(event, now)

    def give_up(self, reason: str, now: float) -> None:
        """The policy, or the owner, gives up."""
        kept = self.head - self.acknowledged
        self.fail(
            SenderEvent.GIVE_UP,
            ChannelBroken(
                f"channel {self.id!r} to {self.to} was given up: {reason}; {self.acknowledged} messages were "
                f"acknowledged, {kept} were not; register it again with stream={self.stream!r} to go on"
            ),
            now,
        )

    def watch(self, now: float) -> None:
        """Start the clock of the fault policy, if it does not run."""
        retry = self.fault.retry
        if self._give_up is None and retry != "forever" and retry > 0:
            self._give_up = self.core.timers.at(now + retry, self._ran_out)

    def _ran_out(self, now: float) -> None:
        self.give_up(f"no connection for {self.fault.retry} s; the last attempt: {self.last_failure}", now)

    def unreachable(self, event: SenderEvent | None, reason: str, now: float) -> None:
        """An attempt failed, or the connection was lost."""
        if self.terminal:
            return
        self.last_failure = reason
        if self.link is not None:
            self.link.drop()
            self.link = None
        if event is not None:
            self.move(event, now)
        else:
            self.on_change()
        self._complain(reason, now)
        if self.fault.retry == 0:
            self.give_up(reason, now)
        else:
            self.watch(now)

    def _complain(self, reason: str, now: float) -> None:
        """One warning per episode, once it is more than a hiccup."""
        if self._failing_since is None:
            self._failing_since = now
        elif not self._complained and now - self._failing_since >= COMPLAIN_AFTER_S:
            self._complained = True
            log.warning(
                "channel %s to %s is not attached for %.0f s: %s; still trying, and keeping %d messages",
                self.id, self.to, now - self._failing_since, reason, self.head - self.acknowledged,
            )  # fmt: skip

    def _release(self, now: float) -> None:
        for timer in (self.retry, self._give_up):
            if timer is not None:
                timer.cancel()
        if self.link is not None:
            self.link.leave()
            self.link = None
        if self.state is SenderState.ENDED:
            self.acknowledged = self.head
        self._pending, self._pending_size, self.kept_bytes = [], 0, 0
        self._unsent.clear()
        self._in_flight.clear()
        self.core.released(self, now)

    # -- the connection's side

    def attached(self, link: SenderData, expected: int, last_note: bytes, now: float) -> None:
        """The receiver took the token and wants number ``expected`` next."""
        if not self.placed:
            self.placed = True
            self.head = self.sent = self.acknowledged = self.received = expected
        if not self.acknowledged <= expected <= self.head:
            self.give_up(
                f"the receiver wants number {expected} of stream {self.stream!r}, kept are "
                f"{self.acknowledged} to {self.head}",
                now,
            )
            return
        self.last_note = last_note
        self._rewind(expected)
        self._blocked_at = -1
        self._dropping = self._complained = False
        self._failing_since = None
        self._progress(expected)
        self.reconnects += self.attachments > 0
        self.attachments += 1
        if self._give_up is not None:
            self._give_up.cancel()
            self._give_up = None
        if self.schema is not None:
            link.send(*blob(Kind.SCHEMA, self.schema))
            link.schema_sent = True
        self.move(SenderEvent.ATTACHED, now)
        self.core.touch(link)

    def _rewind(self, expected: int) -> None:
        """Send again from ``expected``; what the receiver has, but has not acknowledged, stays kept."""
        while self._in_flight and self._in_flight[-1].end > expected:
            self._unsent.appendleft(self._in_flight.pop())
        while self._unsent and self._unsent[0].end <= expected:
            self._in_flight.append(self._unsent.popleft())

    def output(self, link: SenderData) -> list[Buffer]:
        """What to write next: sealed records, then the end."""
        if self._pending:
            self._seal()
        buffers: list[Buffer] = []
        size = 0
        if self._unsent and not link.schema_sent and self.schema is not None:
            buffers += blob(Kind.SCHEMA, self.schema)
            link.schema_sent = True
        while self._unsent and size < WRITE_LIMIT:
            record = self._unsent.popleft()
            if record.context is not link.context_sent:
                buffers += blob(Kind.CONTEXT, record.context)
                link.context_sent = record.context
            buffers += record.buffers
            size += record.size
            self._in_flight.append(record)
            self.sent = max(self.sent, record.end)
        if self.ending is not None and not self._unsent and not link.end_sent:
            buffers.append(self.ending)
            link.end_sent = True
        return buffers

    def _seal(self) -> None:
        bodies, first = self._pending, self.head - len(self._pending)
        if bodies[0].size > FRAME_LIMIT:
            buffers = cut(bodies[0], first, self._pending_since)
        else:
            buffers = pack(bodies, first, self._pending_since)
        largest = max([body.size for body in bodies])
        self._unsent.append(
            Record(first, self.head, self._pending_size, largest, buffers, self._pending_context)
        )
        self._pending, self._pending_size = [], 0

    def on_receipt(self, upto: int) -> None:
        """The receiver has everything below ``upto``. Raises ProtocolError if it cannot."""
        if upto > self.sent:
            raise ProtocolError(
                f"{self.to} has received up to {upto} on channel {self.id!r}, sent are {self.sent}"
            )
        self._progress(upto)
        self.wait_for_room()

    def _progress(self, received: int) -> None:
        if received > self.received:
            self.received = received
            self.progressed = True
            self.backoff_s = self.core.timing.backoff_s

    def on_ack(self, upto: int) -> None:
        """The receiver has acknowledged everything below ``upto``. Raises ProtocolError if it cannot have."""
        self.on_receipt(upto)
        if upto <= self.acknowledged:
            return
        self.acknowledged = upto
        self.starved = False
        self._blocked_at = -1
        while self._in_flight and self._in_flight[0].end <= upto:
            record = self._in_flight.popleft()
            self.kept_bytes -= record.size
            if not record.size:
                self._gaps -= record.end - record.first
        self.on_change()

    def finished(self, reason: str, message: str, now: float) -> None:
        """The receiver is done with the stream: it has the end, or its consumer wants no more."""
        if self.terminal:
            return
        if reason == "closed":
            text = (
                f"channel {self.id!r} was closed by its consumer at {self.to}: {message}; {self.acknowledged} of "
                f"{self.head} messages were acknowledged"
            )
            self.fail(SenderEvent.PEER_CLOSED, ChannelClosedByPeer(text), now)
            return
        if self.ending is None:
            text = f"channel {self.id!r} of stream {self.stream!r} has ended at {self.to} before ({message})"
            self.error = ChannelFailed(text) if reason == "failed" else ChannelClosed(text)
        self.move(SenderEvent.FINISHED, now)
