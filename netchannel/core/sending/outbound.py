"""A sender's channel without I/O: its life, its numbers, and the messages kept until they are acknowledged."""

from __future__ import annotations

import logging
from abc import abstractmethod
from copy import copy
from typing import TYPE_CHECKING, NamedTuple

from netchannel.core.backoff import Backoff
from netchannel.core.link import Closing, JobOwner, Link
from netchannel.core.retries import Episode, Retries
from netchannel.core.states import SENDER_TABLE, SENDER_TERMINAL, SenderEvent, SenderState
from netchannel.core.upqueries import WAITING, WAITING_BYTES
from netchannel.errors import (
    ChannelBroken,
    ChannelClosed,
    ChannelClosedByPeer,
    ChannelFailed,
    MessageTooLarge,
    NetChannelError,
    PositionLost,
    ProtocolError,
)
from netchannel.log_texts import because, encodable, log, printable
from netchannel.values import Ending
from netchannel.wire.frames import ACK_BYTES, ALONE, FRAME_LIMIT, SHARED_FROM, Body, Buffer, Kind, signal

from .ack_requests import AckRequests
from .bounds import Bounds
from .packer import Packer, Ticket
from .send_buffer import Cold, Record, SendBuffer

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import pyarrow as pa

    from netchannel.core.link import Core
    from netchannel.core.timers import Timer
    from netchannel.core.upqueries import Upqueries
    from netchannel.policies import BufferPolicy, FaultPolicy

    from .store import DurableStore, Store


FEW = 128
"""Messages that are on their way where a producer gives out one now and then, and waits for nothing."""


class GroupTarget(NamedTuple):
    """The target of a staged attempt, as in its open request."""

    into: str
    application: str
    epoch: int
    partition: int


class Connection(Link):
    """The data connection of a channel, from the channel's side."""

    attached = False
    held_back = False
    """True if it could write, and waits until the receiver has taken more of the shared memory."""
    upqueries: Upqueries | None = None
    """The consumer's requests that the producer has not taken; None before the first.

    With the connection they go, so that nothing that came on another one is ever given out.
    """

    @property
    @abstractmethod
    def lends(self) -> bool:
        """True if there is shared memory for large bodies."""

    @abstractmethod
    def allocate(self, size: int) -> pa.Buffer | None:
        """Return shared memory for a body of at most ``size`` bytes, which is made there; None if there is none now."""

    @abstractmethod
    def schema(self, channel: OutboundChannel) -> list[Buffer]:
        """The channel's schema, once it is known and if it was not sent."""

    @abstractmethod
    def drop(self) -> None:
        """The channel continues without this connection."""

    @abstractmethod
    def leave(self) -> None:
        """The channel is over; what is written may still go out."""


class OutboundChannel(JobOwner):
    """One stream to one receiver.

    The application's side calls `append`, `finish`, `detach` and reads the numbers, ``on_change`` notifies it
    when to look again. ``on_released`` notifies its owner that it is over.
    """

    def __init__(
        self,
        core: Core,
        channel_id: str,
        to: str,
        *,
        stream: str,
        codec: str,
        buffer: BufferPolicy,
        fault: FaultPolicy,
        replayable: bool,
        on_released: Callable[[OutboundChannel, float], None],
        now: float,
    ) -> None:
        self.core = core
        self._on_released = on_released
        self.id = channel_id
        self.to = to
        self.at = (
            to  # the process that is asked for it: `to`, or the process of that node that was named there
        )
        self.stream = stream
        self.codec = codec
        self.schema: bytes | None = None
        self.buffer = buffer
        self.bounds = Bounds(buffer)
        self.fault = fault
        self.replayable = replayable
        self.group: GroupTarget | None = None  # of a staged attempt
        self.on_change: Callable[[], None] = lambda: None
        self.state = SenderState.REGISTERED
        self.terminal = False  # nothing will happen any more
        self.since = now
        self.error: NetChannelError | None = None
        self.acknowledged = 0
        self.begun = 0  # everything below was sent by a predecessor, and is not kept here
        self.received = 0
        self.sent = 0  # everything below was handed to a connection at some time
        self.placed = (
            not replayable
        )  # true if the numbers are known: a replayable stream continues where it was
        self.last_note = b""
        self.message_limit: int | None = None
        self.reconnects = 0
        # Messages; bytes of bodies that went through shared memory, each time that they were sent; upqueries that
        # came, and of them those that were too many.
        self.dropped = self.shared_bytes = self.upqueries = self.upqueries_dropped = 0
        self.starved = False
        self.waiting = self.pacing = 0  # producers that wait for room, and that give the connection time
        self.ack_requests = AckRequests()
        # Producers that have more at hand, and are about to bring it; and that wait until theirs is durable.
        self.gathering = self.awaited = 0
        self.attachments = 0
        self.request = 0
        self.last_failure = "still in progress"
        self._episode = Episode()
        self.backoff = Backoff(core)
        self.progressed = False  # whether anything was received since the last loss
        self.retry: Timer | None = None
        self.link: Connection | None = None
        self.closing: Ending | None = None  # what the producer asked for
        self.leaving = False  # it is being detached, and takes nothing more
        self.store: Store | None = None  # what keeps messages on disk, if anything does
        self.durable: DurableStore | None = None  # the same, if they are there before they go out
        self.send_buffer = SendBuffer()
        self._blocked_at = -1  # the head that was sent to the receiver
        self._dropping = False
        self.packer = Packer(core.frames)
        self.sealed = self.sealed_bytes = 0  # what is in records; what is in the packer follows
        self._last_context = b""
        self._retries = Retries(core.timers, fault, give_up=self._ran_out, wait_on=self._waits_on, now=now)

    # -- the application's side

    def keep_in(
        self, store: DurableStore, log: object, acknowledged: int, head: int, ending: Ending | None
    ) -> None:
        """Make the buffer durable, and continue with the messages in ``log`` of the store."""
        self.store = self.durable = store
        self.sealed = head
        self.acknowledged = self.received = self.sent = acknowledged
        self.closing = ending
        if acknowledged < head:
            self.send_buffer.add_cold(acknowledged, head, log)

    @property
    def head(self) -> int:
        """The number of the next message."""
        return self.sealed + len(self.packer.bodies)

    @property
    def taken_bytes(self) -> int:
        """Bytes of all messages that were taken."""
        return self.sealed_bytes + self.packer.size - self.packer.shared

    @property
    def settled(self) -> bool:
        """True if it is over, and its files are closed."""
        return self.terminal and (self.store is None or self.store.settled)

    @property
    def kept_from(self) -> int:
        """The lowest number that can still be sent."""
        return max(self.acknowledged, self.begun)

    @property
    def offered(self) -> int:
        """The number below which everything may go out."""
        return self.head if self.durable is None else self.durable.upto

    @property
    def on_disk_entirely(self) -> bool:
        """True if all messages and the end are durable."""
        store = self.durable
        assert store is not None
        return store.upto == self.head and (store.finished or self.closing is None)

    @property
    def kept_bytes(self) -> int:
        """Bytes of messages in memory."""
        kept = self.send_buffer.memory + self.packer.size
        return kept if self.durable is None else kept + self.durable.uncommitted_bytes

    @property
    def disk_bytes(self) -> int:
        """The size of the buffer's files."""
        return 0 if self.store is None else self.store.disk_bytes

    @property
    def aborted(self) -> bool:
        """True if the producer has failed, and reported it."""
        return self.closing is not None and self.closing.failure is not None

    def room(self, size: int) -> bool:
        """True if a message of ``size`` bytes fits into the buffer now."""
        kept = self.sealed + len(self.packer.bodies) - max(self.acknowledged, self.begun)
        kept -= self.send_buffer.gaps
        return self.placed and (kept <= 0 or self.bounds.room(size, kept, self.kept_bytes, self.store))

    def admit(self, body: Body, context: bytes) -> None:
        """Raise what stands against sending ``body``; called before it takes a number."""
        if self.error is not None or self.leaving or self.closing is not None or self.terminal:
            self.check_open()
        limit = self.message_limit
        if limit is not None:
            largest = len(body)
            if context or self.schema:
                largest = max(largest, len(context), len(self.schema or b""))
            if largest > limit:
                raise self._too_large(largest, limit)

    def allocate(self, size: int) -> pa.Buffer | None:
        """Return memory shared with the receiver, for a body of at most ``size`` bytes; None if there is none now."""
        return None if self.link is None or size < SHARED_FROM else self.link.allocate(size)

    def check_size(self, size: int) -> None:
        """Raise MessageTooLarge for a body that the receiver does not take, as far as that is known."""
        if self.message_limit is not None and size > self.message_limit:
            raise self._too_large(size, self.message_limit)

    def cost(self, body: Body, note: bytes, context: bytes) -> int:
        """The bytes that the buffer counts for a message: with a context that the last one did not have."""
        size = len(body) + len(note)
        return size if context is self._last_context else size + len(context)

    def _too_large(self, size: int, limit: int) -> MessageTooLarge:
        return MessageTooLarge(
            f"a message on channel {self.id!r} is too large: the message, its schema or its dictionaries have {size} "
            f"bytes, but {self.to} takes at most {limit} bytes; send smaller batches, or raise the receiver's "
            f"message_limit"
        )

    def granted(self, link: Connection, message_limit: int, now: float) -> None:
        """The receiver has given a token; if it cannot take what is kept for it, nothing will ever help."""
        self.message_limit = message_limit
        self.packer.revoke()
        largest = max(self.send_buffer.largest(), self.packer.largest(), len(self.schema or b""))
        if largest > message_limit:
            self.fail(SenderEvent.GIVE_UP, self._too_large(largest, message_limit), now)
            return
        self.link = link
        self.move(SenderEvent.OK, now)
        self.core.dial(link)

    def check_open(self) -> None:
        """Raise the reason why nothing more can be sent."""
        if self.error is not None:
            raise copy(self.error)
        if self.leaving:
            raise ChannelClosed(f"channel {self.id!r} is being detached by this side, at number {self.head}")
        if self.closing is not None or self.terminal:
            did = f"aborted ({self.closing.failure})" if self.closing and self.closing.failure else "closed"
            raise ChannelClosed(
                f"channel {self.id!r} was {did} by this side after {self.head} messages: to send a new stream, wait "
                f"until this one has ended, and register the channel again"
            )

    def make_room(self, size: int) -> bool:
        """Drop the oldest messages that were never sent, if the policy allows it.

        Returns true if there is room then.
        """
        if self.buffer.when_full == "drop_oldest" and self.placed:
            self.seal()
            while not self.room(size) and (dropped := self.send_buffer.drop_oldest(self.sent)):
                self.dropped += dropped
                if not self._dropping:
                    self._dropping = True
                    log.warning("channel %s to %s drops messages: its buffer is full", self.id, self.to)
        return self.room(size)

    def wait_for_room(self) -> None:
        """A producer waits: if only acknowledgements are missing, the receiver is notified."""
        if self.store is not None:
            self.store.request()
        if self.waiting and self.send_buffer.memory < ACK_BYTES:
            self.want_acknowledgement()
        if (
            self.link is not None
            and self.link.attached
            and self.waiting
            and self.received == self.head > self.acknowledged
            and self._blocked_at != self.head
        ):
            self._blocked_at = self.head
            self.link.send(signal(Kind.BLOCKED, sequence=self.head, count=self.head - self.acknowledged))

    def want_acknowledgement(self) -> None:
        """Request an acknowledgement: a task waits until everything sent is acknowledged."""
        if self.ack_requests.want(self.head):
            self._touch()

    def question(self) -> bytes | None:
        """Return the frame that requests an acknowledgement, if one is waited for: it may come late otherwise."""
        sent, asking = self.sent, self.ack_requests
        if self.acknowledged >= sent or asking.asked >= sent:
            return None
        memory = self.send_buffer.memory
        crowded = memory < ACK_BYTES and self.bounds.half_full(sent - self.acknowledged, memory)
        return asking.question(sent) if asking.wanted or crowded else None

    def on_starved(self) -> None:
        """The consumer waits for a message while we wait for its acknowledgement."""
        if not self.starved:
            self.starved = True
            log.warning(
                "channel %s to %s is starved: its consumer waits for message %d, but has not acknowledged the %d "
                "messages from number %d on, so the buffer (%s) is full: acknowledge more often, or give the sender "
                "a larger buffer",
                self.id, self.to, self.head, self.head - self.acknowledged, self.acknowledged, self.buffer,
            )  # fmt: skip

    def on_upquery(self, waiting: Upqueries, body: bytes) -> None:
        """The consumer asks for something; what is ``waiting`` came on the same connection."""
        self.upqueries += 1
        dropped = waiting.force(body)
        self.upqueries_dropped += dropped
        if dropped and not waiting.overflown:
            waiting.overflown = True
            log.warning(
                "channel %s to %s drops upqueries, the oldest first: %d wait for its producer to take them with "
                "recv_upquery(), and at most %d upqueries, or %d bytes, are kept",
                self.id, self.to, len(waiting), WAITING, WAITING_BYTES,
            )  # fmt: skip
        self.on_change()

    def append(self, body: Body, note: bytes, context: bytes, cost: int) -> Ticket | None:
        """Take a message: it has number ``head`` now, and is kept until it is acknowledged.

        A durable buffer gives a ticket, which shows when it is durable. Later messages may go to the packer
        directly, as long as that has credit.
        """
        packer = self.packer
        if packer.granted:
            packer.revoke()
        alone = self.durable is not None and len(body) > ALONE  # a ticket is for one record
        if packer.bodies and (alone or not packer.fits(cost, context)):
            self.seal()
        first = not packer.bodies
        if first:
            packer.since = max(0, self.core.wall())  # of a clock that has not been set yet
            packer.context = context
            if self.store is not None:
                self._begin_on_disk(self.store)
        packer.add(body, note, cost)
        self._last_context = context
        ticket = packer.ticket
        if alone:
            self.seal()
        elif first and self.store is None:
            if (link := self.link) is not None and self._idle(link, body):
                self.core.hurry(link)
            else:
                self.core.request(self)
        if packer.bodies:
            packer.grant(
                0 if context else self.bounds.credit(self.message_limit, self.kept_bytes, self.store)
            )
        return ticket

    def _idle(self, link: Connection, body: Body) -> bool:
        """True if the connection has nothing to do but ``body``, which is small: there is nothing to gather it with.

        Not so where one message comes after the other: then what follows within this turn of the loop waits
        for its end, so that it goes together.
        """
        if (
            self.sealed - self.received > FEW
            or len(body) > ALONE
            or not (link.attached and link.writable and link.closing is Closing.OPEN)
            or self.send_buffer.unsent
        ):
            return False
        return self.packer.apart()

    def _begin_on_disk(self, store: Store) -> None:
        if self.durable is not None:
            self.packer.ticket = Ticket()
        else:
            self._touch()
        store.taken()

    def _touch(self) -> None:
        if self.link is not None:
            self.core.touch(self.link)

    def finish(self, failure: str | None = None) -> None:
        """Queue the end, or the abort, after everything sent."""
        if self.closing is None:
            self.packer.revoke()
            self.closing = Ending(self.head, None if failure is None else encodable(failure))
            if self.store is not None:
                self.store.request()
            self._touch()
            self.on_change()

    def ending(self) -> bytes | None:
        """The frame that ends the stream, if it may go out."""
        if self.closing is None or (self.durable is not None and not self.durable.finished):
            return None
        count, failure = self.closing.count, self.closing.failure
        if failure is None:
            return signal(Kind.END, sequence=count)
        return signal(Kind.FAIL, sequence=count, payload=failure.encode()[:FRAME_LIMIT])

    def leave(self) -> None:
        """Take nothing more, as the stream is to be left to a successor once all of it is safe."""
        self.packer.revoke()
        self.leaving = True
        self.on_change()

    def stay(self) -> None:
        """Stay after all: the owner has changed its mind about leaving."""
        self.leaving = False

    def detach(self, now: float) -> None:
        """Leave the stream to a successor, unfinished."""
        self.fail(
            SenderEvent.DETACH, ChannelClosed(f"channel {self.id!r} was detached at number {self.head}"), now
        )

    # -- the life of the channel

    def move(self, event: SenderEvent, now: float) -> None:
        """Follow the table; a pair that is not in it is our own mistake."""
        before, self.state = self.state, SENDER_TABLE[self.state, event]
        self.terminal = self.state in SENDER_TERMINAL
        self.since = now
        if before is not self.state:
            # Asking again and being denied again is not news.
            again = self._episode.lasts and event in (SenderEvent.OPEN, SenderEvent.DENY)
            failed = event in (SenderEvent.DENY, SenderEvent.DATA_LOST, SenderEvent.CONTROL_LOST)
            why = self.error or (self.last_failure if failed else None)
            log.log(
                logging.DEBUG if again else logging.INFO,
                "channel %s to %s: %s -> %s (%s; next %d, acknowledged %d)",
                self.id, self.to, before, self.state, because(event, why), self.head, self.acknowledged,
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
        text = f"channel {self.id!r} to {self.to} was given up: {reason}; {self.what_is_left()}"
        self.fail(SenderEvent.GIVE_UP, ChannelBroken(text), now)

    def what_is_left(self) -> str:
        """The numbers, and how to continue, for errors that end the channel."""
        if self.group is not None:
            return f"{self.head} messages of the attempt are dropped at the receiver; to continue, make a new attempt"
        stream = f"with stream={self.stream!r}, replayable=True"
        again = stream if self.durable is None else "with the same directory"
        return f"{self.counts}; to continue, register the channel again {again}"

    @property
    def counts(self) -> str:
        """How much was acknowledged, for errors."""
        return f"{self.acknowledged} messages were acknowledged, {self.head - self.acknowledged} were not"

    def _ran_out(self, within: str, now: float) -> None:
        text = (
            f"no connection for {within}; the last attempt: {self.last_failure}"
            if within
            else self.last_failure
        )
        self.give_up(text, now)

    def _waits_on(self, now: float) -> None:
        self.core.warning_digest.warn(
            now,
            "channel %s to %s had no connection for %s s: %s; still waiting, with %d messages kept",
            self.id, self.to, self.fault.retry, printable(self.last_failure), self.head - self.acknowledged,
        )  # fmt: skip

    def unreachable(self, event: SenderEvent | None, reason: str, now: float) -> None:
        """An attempt failed, or the connection was lost."""
        if self.terminal:
            return
        self.last_failure = reason
        if self.link is not None:
            self.link.drop()
            self.link = None
            self.send_buffer.rewind(
                self.received
            )  # so that what was in flight needs no memory if it is on disk
        if event is not None:
            self.move(event, now)
        else:
            self.on_change()
        # A policy to wait has its own time to speak.
        if self.fault.on_failure == "fail" and (failing_s := self._episode.failed(now)) is not None:
            self.core.warning_digest.warn(
                now,
                "channel %s to %s has not been attached for %.0f s: %s; still trying, and keeping %d messages",
                self.id, self.to, failing_s, printable(reason), self.head - self.acknowledged,
            )  # fmt: skip
        self._retries.failed(now)

    def _release(self, now: float) -> None:
        self._retries.stop()
        if self.retry is not None:
            self.retry.cancel()
        if self.link is not None:
            self.link.leave()
            self.link = None
        if self.state is SenderState.ENDED and self.error is None and not self.aborted:
            # Also what another connection, or another process, had sent.
            self.acknowledged = self.received = self.sent = self.head
        self._unpack()
        self.send_buffer.clear()
        if self.store is not None:
            # Messages that the consumer has finished are of no use to a successor; all others are.
            ended = self.state is SenderState.ENDED and self.error is None
            self.store.leave(discard=ended or self.state is SenderState.CLOSED_BY_PEER)
        self._on_released(self, now)

    # -- the connection's side

    def attached(self, link: Connection, expected: int, last_note: bytes, now: float) -> None:
        """The receiver took the token and wants number ``expected`` next."""
        if not self.placed:
            self.placed = True
            # Its acknowledgements are sent after this: a receiver that has lost the rest has to get that
            # first.
            self.sealed = self.sent = self.begun = self.received = expected
            if self.closing is not None:
                self.closing = Ending(expected, self.closing.failure)
        if not self.kept_from <= expected <= self.offered:
            self._misplaced(expected, now)
            return
        self.last_note = last_note
        self.sent = max(self.sent, expected)
        self.send_buffer.rewind(expected)
        self._blocked_at = -1
        self.ack_requests.begin()
        self._dropping = False
        self._episode.over()
        self._progress(expected)
        self.reconnects += self.attachments > 0
        self.attachments += 1
        self._retries.stop()
        link.send(*link.schema(self))
        self.move(SenderEvent.ATTACHED, now)
        self.core.touch(link)

    def _misplaced(self, expected: int, now: float) -> None:
        wants = f"the receiver needs number {expected} of stream {self.stream!r}"
        if self.acknowledged <= expected < self.begun:
            text = (
                f"channel {self.id!r} to {self.to}: {wants}, because it lost messages that it had not acknowledged, "
                f"but this producer has already continued at number {self.begun}: register the channel again with "
                f"stream={self.stream!r}, replayable=True, to continue where the receiver stopped"
            )
            self.fail(SenderEvent.GIVE_UP, PositionLost(text), now)
        else:
            self.give_up(f"{wants}, but only {self.kept_from} to {self.offered} are kept", now)

    def after_output(self) -> None:
        """The connection has written."""
        if self.store is not None and self.send_buffer.has_cold:
            self.store.read_ahead()
        if self.pacing:
            self.on_change()

    @property
    def lends(self) -> bool:
        """True if large bodies go through shared memory, if there is room."""
        return self.link is not None and self.link.lends

    @property
    def behind(self) -> bool:
        """True if the connection cannot write, and there is more in memory to write."""
        link = self.link
        stuck = link is not None and link.attached and (link.held_back or not link.writable)
        return stuck and self.store is None and bool(self.send_buffer.unsent)

    def begin(self) -> None:
        """The loop's turn is over in which something was taken: what is taken later was sent at another time.

        Where there is a disk, that is begun at once, and takes all that has come by then.
        """
        self.seal()
        self._touch()

    def seal(self) -> None:
        """Make records of what was taken since the last ones."""
        packer, first = self.packer, self.sealed
        if not packer.bodies:
            return
        if self.durable is None:
            for record in packer.records(first):
                self.send_buffer.add(record)
        else:
            assert packer.ticket is not None
            self.durable.take(packer.record(first), packer.ticket, self.sealed_bytes)
        self._unpack()

    def _unpack(self) -> None:
        """Take care of what is in the packer."""
        packer = self.packer
        self.sealed += len(packer.bodies)
        self.sealed_bytes += packer.size - packer.shared
        packer.clear()

    # -- the disk's side

    @property
    def pending_final(self) -> bool:
        """True if messages that are not in a record yet can no longer be withdrawn."""
        return self.packer.ticket is not None and self.packer.ticket.final

    def take_back(self, first: int, taken_bytes: int | None, error: NetChannelError) -> None:
        """The disk did not take the messages from number ``first`` on: they were not sent.

        ``taken_bytes`` are of all messages before it; None if no record has any of the messages from
        ``first``.
        """
        if self.packer.ticket is not None:
            self.packer.ticket.error = error
        self.packer.clear()
        self.sealed = first
        if taken_bytes is not None:
            self.sealed_bytes = taken_bytes
        self._last_context = b""  # it counts again, with the next message that has it
        if self.closing is not None:
            self.closing = Ending(first, self.closing.failure)

    def on_disk(self, now: float) -> None:
        """A job of the writer is done."""
        self._touch()
        self.on_change()

    def on_read(
        self, cold: Cold, first: int, records: Sequence[Record], error: NetChannelError | None, now: float
    ) -> None:
        """A piece of what is on disk is in memory."""
        if self.terminal:
            return
        limit = self.message_limit
        largest = max([record.largest for record in records], default=0)
        if limit is not None and largest > limit:
            error = self._too_large(largest, limit)
        if error is not None and self.send_buffer.first_cold()[0] is cold:
            self.fail(SenderEvent.GIVE_UP, error, now)
            return
        self.send_buffer.warm(cold, first, records)
        self._touch()

    def on_receipt(self, upto: int) -> None:
        """The receiver has everything below ``upto``. Raises ProtocolError if it cannot."""
        self._check_sent(upto)
        self._progress(upto)
        self.wait_for_room()

    def _check_sent(self, upto: int) -> None:
        if upto > self.sent:
            raise ProtocolError(
                f"{self.to} confirmed messages below {upto} of channel {self.id!r}, but only {self.sent} were sent"
            )

    def _progress(self, received: int) -> None:
        if received > self.received:
            self.send_buffer.on_received(received)
            self.received = received
            self.progressed = True
            self.backoff.reset()

    def on_ack(self, upto: int, now: float) -> None:
        """The receiver has acknowledged everything below ``upto``. Raises ProtocolError if it cannot have."""
        self._check_sent(upto)
        if upto <= self.acknowledged:
            return
        self.acknowledged = upto
        self.send_buffer.on_acknowledged(upto)
        self._progress(upto)
        self.starved = False
        self._blocked_at = -1
        self.ack_requests.acknowledged(self.waiting)
        if self.store is not None:
            self.store.acknowledged(now)
        self.on_change()

    def finished(self, reason: str, message: str, now: float, count: int | None = None) -> None:
        """The receiver is done with the stream: it has the end, or its consumer wants no more.

        ``count`` is that of its messages, where it may have been another producer that ended it.
        """
        if self.terminal:
            return
        if reason == "closed":
            text = (
                f"channel {self.id!r} was closed by its consumer at {self.to}: {message}; {self.acknowledged} of "
                f"{self.head} messages were acknowledged"
            )
            self.fail(SenderEvent.PEER_CLOSED, ChannelClosedByPeer(text, message), now)
            return
        if self.closing is None or count not in (None, self.closing.count):
            text = (
                f"stream {self.stream!r} of channel {self.id!r} had already ended at {self.to}, after {count} "
                f"messages ({message}); the {self.head} messages sent here were not accepted: send them as a new stream"
            )
            self.error = ChannelFailed(text) if reason == "failed" else ChannelClosed(text)
        self.move(SenderEvent.FINISHED, now)
