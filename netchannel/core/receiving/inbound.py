"""A receiver's channel without I/O: its life, the position in its stream, and what is received but not yet read."""

from __future__ import annotations

from operator import index, length_hint
from typing import TYPE_CHECKING

from netchannel.core.retries import COMPLAIN_AFTER_S, Retries
from netchannel.core.states import RECEIVER_TABLE, RECEIVER_TERMINAL, ReceiverEvent, ReceiverState
from netchannel.errors import (
    ChannelBroken,
    ChannelClosed,
    ChannelFailed,
    EndOfChannel,
    MessageTooLarge,
    NetChannelError,
    ProtocolError,
    SchemaMismatch,
)
from netchannel.log_texts import because, encodable, log, printable
from netchannel.values import Position
from netchannel.wire.frames import (
    ACK_BYTES,
    SEQUENCE_LIMIT,
    UPQUERY_LIMIT,
    Buffer,
    Frame,
    Kind,
    refused,
    signal,
    unpack,
)

from .queue import Chunk, Queue

if TYPE_CHECKING:
    from collections.abc import Callable

    from netchannel.core.link import Core
    from netchannel.core.timers import Timer
    from netchannel.policies import BufferPolicy, FaultPolicy
    from netchannel.wire.codec import Decoder

    from .queue import Item
    from .roles import Feed, Owner, Retainer, Session


class InboundChannel:
    """One stream from one sender.

    The application's side calls `take`, `ack`, `close`, `detach`, and ``on_change`` notifies it when to look
    again.
    """

    def __init__(
        self,
        core: Core,
        owner: Owner[InboundChannel],
        channel_id: str,
        *,
        codec: str,
        decoder: Decoder,
        explicit: bool,
        resume_from: Position | int | None,
        buffer: BufferPolicy,
        fault: FaultPolicy,
        now: float,
    ) -> None:
        self.core = core
        self._owner = owner
        self.message_limit = owner.message_limit  # the largest message taken, in bytes
        self.id = channel_id
        self.codec = codec
        self.decoder = decoder
        self.explicit = explicit
        self.resume_from = resume_from
        self.buffer = buffer
        self.fault = fault
        self.on_change: Callable[[], None] = lambda: None
        self.disk_bytes: Callable[[], int] = _none
        self.unsettled = False  # it has files that are still to be written, or closed: the end waits for that
        self.parting = False  # it is over, and its sender was notified and may not have read it
        self.state = ReceiverState.REGISTERED
        self.since = now
        self.error: NetChannelError | None = None
        self.stream: str | None = resume_from.stream if isinstance(resume_from, Position) else None
        self.expected: int | None = None if resume_from is None else _sequence(resume_from)
        self.start: int | None = self.expected
        self.acked = self.expected or 0
        self.last_note = b""
        self.holder = ""
        self._replaced = False  # whether there was another stream before
        self.lossy = False  # true if its sender has declared that it may drop messages
        self.bytes = 0
        self.shared_bytes = 0  # of bodies that came through shared memory, each time
        self.upqueries = 0  # that went out
        self.received = 0
        self.attachments = 0
        self.ended: int | None = None
        self.dropped = 0
        self._dropping = False  # and it was logged, since the sender was attached
        self.starved = False
        self.waiting = 0  # consumers that wait for a message
        self._missing: Timer | None = None  # when they are notified that no sender has come
        self._blocked_at = -1  # all that the sender can send before it gets an acknowledgement
        self.session: Session[InboundChannel] | None = None
        self.link: Feed | None = None
        self.retainer: Retainer | None = None  # where the stream is kept
        self.failure: str | None = None  # the producer's failure, if it is kept before it is acknowledged
        self.context: memoryview | None = None
        self.queue = Queue(buffer)
        self._receipted = 0
        self._told = 0  # the number of the last `ACK` on this connection
        self._told_bytes = 0  # of all messages that had come by then
        self._asked = 0  # the sender waits until all below is acknowledged
        self._last_failure = "the channel was not requested"
        self._retries = Retries(core.timers, fault, give_up=self._gave_up, wait_on=self._waits_on, now=now)

    # -- the application's side

    @property
    def terminal(self) -> bool:
        """True if nothing more will be received."""
        return self.state in RECEIVER_TERMINAL

    @property
    def position(self) -> int | None:
        """The number of the next message to read: there may be gaps, of dropped ones, in what is queued."""
        first = self.queue.first
        return self.expected if first is None else first

    @property
    def acknowledged(self) -> int:
        """The number below which everything is acknowledged."""
        return self.acked if self.explicit else self.expected or 0

    def check_live(self) -> None:
        """Raise what ended the channel, if anything did."""
        if self.error is not None:
            raise type(self.error)(*self.error.args)
        if self.ended is not None:
            raise EndOfChannel(
                f"channel {self.id!r} has ended after {self.ended} messages, and all were read"
            )

    def take(self) -> Item | None:
        """Return the next message, or None if there is none now. Raises what ended the channel once all is read."""
        return self.queue.take() if self.more() else None

    def more(self) -> bool:
        """True if there is something ready in the queue. Raises what ended the channel once all is read."""
        queue = self.queue
        if length_hint(queue.ready):
            return True
        if queue.next_chunk():
            if self.link is not None and not self.link.reading:
                self._admit()
            return True
        if queue.release() and self.link is None:
            self._owner.announce(self.id)  # to a new stream that must not begin before all is read
        if self.error is not None or self.ended is not None:
            self.check_live()
        return False

    def drain(self, size: int) -> list[Chunk]:
        """Take what is queued, in the pieces in which it came, until they have ``size`` bytes."""
        chunks = self.queue.drain(size)
        if self.link is not None and not self.link.reading:
            self._admit()
        return chunks

    def put_back(self, item: Item) -> None:
        """Undo the last `take`."""
        self.queue.put_back(item)
        self.on_change()

    def hand_back(self) -> None:
        """Give back what was not read, as if it had not come: it is there for another consumer."""
        self.expected = self.position
        self.queue.clear()

    def take_chunk(self) -> Chunk:
        """Take all messages of the next chunk, of which there is one."""
        queue = self.queue
        queue.next_chunk()
        if self.link is not None and not self.link.reading:
            self._admit()
        chunk = queue.chunk
        queue.release()
        return chunk

    def ack(self, upto: int | Position, now: float) -> None:
        """Acknowledge everything below ``upto``. Raises NetChannelError if that was not received.

        Before anything was read of a stream that has taken another one's place, a number is of that other one.
        """
        expected = self.expected or 0
        if not self.explicit:
            raise NetChannelError(
                f"channel {self.id!r} acknowledges on receipt, so ack() cannot be called: register the channel with "
                "ack='explicit'"
            )
        if isinstance(upto, Position):
            if upto.stream != self.stream:
                if self._replaced:
                    return
                raise NetChannelError(
                    f"channel {self.id!r}: ack of a position in stream {upto.stream!r}, but the channel "
                    f"receives stream {self.stream!r}"
                )
            upto = upto.sequence
        upto = _whole(upto, f"channel {self.id!r}: ack")
        if self._replaced and self.position == self.start:
            return
        if upto > expected:
            raise NetChannelError(
                f"channel {self.id!r}: ack({upto}), but the next message has number {expected}"
            )
        if upto > self.acked:
            self.acked = upto
            self.starved = False
            self._blocked_at = -1  # the sender repeats it if this did not help
            self._touch()
            self.maybe_finish(now)

    def upquery(self, body: bytes) -> bool:
        """Ask the sender that is attached for something; whether that goes out. Raises MessageTooLarge."""
        if len(body) > UPQUERY_LIMIT:
            raise MessageTooLarge(
                f"an upquery of {len(body)} bytes on channel {self.id!r}: the limit is {UPQUERY_LIMIT}; ask for less "
                f"at a time"
            )
        asked = self.link is not None and self.ended is None and self.link.upquery(body)
        self.upqueries += asked
        return asked

    def close(self, reason: str, now: float) -> None:
        """Take no more, ever: the producer is notified."""
        reason = encodable(reason)
        text = f"channel {self.id!r} was closed by this side: {reason}"
        self._end(ReceiverEvent.CLOSE, ChannelClosed(text, reason), now)

    @property
    def last_word(self) -> str:
        """Return the reason of the end for the sender: the consumer's own, if there is one."""
        if isinstance(self.error, ChannelClosed) and self.error.said:
            return self.error.said
        return str(self.error or self.failure or "it ended cleanly")

    def detach(self, now: float) -> None:
        """Leave the stream to a successor; what was received can still be read."""
        self._end(ReceiverEvent.DETACH, ChannelClosed(f"channel {self.id!r} was detached"), now)

    def fail(self, error: NetChannelError, now: float) -> None:
        """Give the channel up; it may be registered again."""
        self._end(ReceiverEvent.GIVE_UP, error, now)

    # -- the life of the channel

    def _move(self, event: ReceiverEvent, now: float) -> None:
        before, self.state = self.state, RECEIVER_TABLE[self.state, event]
        self.since = now
        if before is not self.state:
            why = self.error or (self._last_failure if event is ReceiverEvent.LOST else None)
            following = "any" if self.expected is None else self.expected
            log.info(
                "channel %s from %s: %s -> %s (%s; next %s, acknowledged %d)",
                self.id, self.holder or "nobody", before, self.state, because(event, why), following,
                self.acknowledged,
            )  # fmt: skip
        if self.terminal:
            self._release(now)
        self.on_change()

    def _end(self, event: ReceiverEvent, error: NetChannelError, now: float) -> None:
        if not self.terminal:
            self.error = error
            self._move(event, now)

    def _release(self, now: float) -> None:
        self._retries.stop()
        if self._missing is not None:  # it would keep what was not read for that long
            self._missing.cancel()
        if self.state is ReceiverState.CLOSED:
            self.queue.clear()
        link, self.link = self.link, None
        self._owner.released(self, now)
        if link is not None:
            link.leave(self.farewell(), now)

    def parted(self) -> None:
        """The sender has read the last word, or will not."""
        self.parting = False
        self.on_change()

    def farewell(self) -> Buffer | None:
        """Return the last frame to the sender, if there is one."""
        match self.state:
            case ReceiverState.DETACHED:
                # After the acknowledgements: a connection that is only cut may lose those in transit, and
                # then a successor would get it again.
                return refused(
                    "unregistered", f"channel {self.id!r} was detached, so that a successor can continue it"
                )
            case ReceiverState.ENDED | ReceiverState.FAILED:
                return signal(Kind.FINISHED, sequence=self.expected or 0)
            case ReceiverState.CLOSED:
                return signal(Kind.CLOSED, payload=self.last_word.encode()[:1000])
            case ReceiverState.BROKEN if isinstance(self.error, SchemaMismatch):
                return refused("schema", self.last_word)
            case ReceiverState.BROKEN if isinstance(self.error, ProtocolError):
                return refused("unreadable", self.last_word)
        return None

    def _waits_on(self, now: float) -> None:
        self.core.warning_digest.warn(
            now,
            "channel %s had no sender for %s s (%s): %s; still waiting for number %d",
            self.id, self.fault.retry, printable(self.holder or "no sender has connected"),
            printable(self._last_failure), self.expected or 0,
        )  # fmt: skip

    def _gave_up(self, within: str, now: float) -> None:
        reason = f"{within} passed; {self._last_failure}" if within else self._last_failure
        self.fail(
            ChannelBroken(
                f"channel {self.id!r} has no sender ({self.holder or 'no sender has connected'}): {reason}; the next "
                f"message was number {self.expected or 0}; register the channel again to keep waiting"
            ),
            now,
        )

    # -- the connection's side

    def give(self, session: Session[InboundChannel], stream: str, *, lossy: bool) -> None:
        """``session`` has the channel from now on, to send ``stream``; a connection that was there before is closed."""
        if self.link is not None:
            self.link.supersede()
            self.link = None
        self.leave_session()
        self.session = session
        session.channels[self] = None
        self.holder = session.peer
        if self.stream not in (None, stream):
            log.warning(
                "channel %s: stream %s replaces stream %s at number %s",
                self.id, printable(stream), printable(self.stream or ""), self.expected,
            )  # fmt: skip
            start = self.expected_of(stream)
            self.expected, self.start, self.acked = start, start, start or 0
            self.last_note = b""
            self._replaced = True
        self.stream, self.lossy = stream, lossy

    def expected_of(self, stream: str) -> int | None:
        """The number to come next if ``stream`` is sent, maybe in the place of another one; None for any."""
        if self.stream in (None, stream):
            return self.expected
        return self.resume_from if isinstance(self.resume_from, int) else None

    def leave_session(self) -> None:
        """Forget whose control connection the channel depends on."""
        if self.session is not None:
            self.session.channels.pop(self, None)
            self.session = None

    def feed(self, link: Feed, stream: str, holder: str, oldest: int, now: float) -> None:
        """The messages come from ``link`` in this process, and not from a sender."""
        self.stream, self.holder = stream, holder
        self.attach(link, oldest, now)

    def attach(self, link: Feed, oldest: int, now: float, flags: int = 0) -> None:
        """The messages come on ``link``, from a sender that still has ``oldest`` and is answered with ``flags``."""
        self._retries.stop()
        if self.expected is None:
            self.expected = self.start = oldest
            self.acked = oldest
            stream = printable(self.stream or "")
            log.info("channel %s starts at number %d of stream %s", self.id, oldest, stream)
        self.link, self.context = link, None
        self._receipted = self.expected
        self._asked = 0
        self._dropping = False
        self.attachments += 1
        self._move(ReceiverEvent.ATTACH, now)
        link.send(signal(Kind.ATTACHED, sequence=self.expected, payload=self.last_note, flags=flags))
        link.acknowledge()
        self._admit()

    def lost(self, reason: str, now: float) -> None:
        """The connection is gone; the sender is expected back."""
        self.link = None
        self.context = None
        self._last_failure = reason
        if self.state is ReceiverState.ATTACHED:
            self._move(ReceiverEvent.LOST, now)
            self._owner.invite(self.id)
            self._retries.failed(now)

    def learn(self, schema: bytes) -> None:
        """The sender's schema."""
        self.decoder.learn(schema)
        self.on_change()

    def learn_context(self, context: bytes) -> None:
        """Keep the context that later bodies need in addition to the schema."""
        self.decoder.check_context(context, self.message_limit)
        self.context = memoryview(context)

    def deliver(self, frame: Frame) -> None:
        """A DATA frame; messages that are here already are passed over."""
        bodies, notes, largest = unpack(frame)
        if largest > self.message_limit:
            raise ProtocolError(
                f"channel {self.id!r}: a message of {largest} bytes is larger than the limit here, "
                f"{self.message_limit} bytes"
            )
        if frame.sequence != self.expected or self.ended is not None:
            known = self._due(frame.sequence) - frame.sequence
            bodies, notes = bodies[known:], notes[known:]
        if bodies:
            self._check_and_take(bodies, notes, frame.timestamp)
        else:
            self._touch()

    def _check_and_take(self, bodies: list[memoryview], notes: list[bytes], timestamp: int) -> None:
        """Take messages; unreadable ones are not acknowledged."""
        try:
            self.decoder.check(bodies, self.context, self.message_limit)
        except ProtocolError as error:
            raise ProtocolError(f"channel {self.id!r}, from message {self.expected} on: {error}") from error
        self.take_in(bodies, notes, timestamp)

    def unreadable(self, number: int, error: NetChannelError, now: float) -> None:
        """The consumer cannot read message ``number``, which passed the checks.

        It gets nothing after it, and the sender is notified.

        With acknowledgement at receipt it may be acknowledged already, as may the end; then only the consumer
        can be notified.
        """
        text = f"channel {self.id!r}: message {number} cannot be read: {error}"
        self.queue.clear()
        if self.terminal:
            self.error = ProtocolError(text)
            self.on_change()
        else:
            self.fail(ProtocolError(text), now)

    def deliver_large(self, frame: Frame) -> None:
        """A message that came in pieces."""
        if frame.sequence == self._due(frame.sequence):
            self._check_and_take([frame.payload], [frame.note], frame.timestamp)

    def gap(self, first: int, count: int) -> None:
        """The sender has dropped messages that it never sent."""
        expected = self._due(first)
        end = first + count
        if not self.lossy:
            raise ProtocolError(
                f"channel {self.id!r}: its sender reports {count} dropped messages from number {first}, "
                "although it opened the channel as lossless"
            )
        if not count:
            raise ProtocolError(f"channel {self.id!r}: a gap of 0 messages was reported at number {first}")
        if end > expected:
            if not self._dropping:
                self._dropping = True
                log.warning(
                    "channel %s: its sender drops messages, first messages %d to %d, because its buffer is full",
                    self.id, expected, end - 1,
                )  # fmt: skip
            self.dropped += end - expected
            self._received_to(end)
        else:
            self._touch()

    def blocked(self, head: int, kept: int) -> None:
        """The sender can send nothing above ``head`` before one of the ``kept`` messages below is acknowledged."""
        if head - kept == self.acknowledged:  # else an acknowledgement is on its way already
            self._blocked_at = head
            self.check_starved()

    def asked(self, upto: int) -> None:
        """The sender waits until everything below ``upto`` is acknowledged."""
        if upto > (self.expected or 0):
            raise ProtocolError(
                f"channel {self.id!r}: its sender waits for the acknowledgement of {upto} messages, but only "
                f"{self.expected} have arrived"
            )
        self._asked = max(self._asked, upto)
        self._touch()

    def miss_sender(self, now: float) -> None:
        """The consumer waits.

        If no sender has ever come, also not for an earlier stream, nothing else would report it.
        """
        if self._missing is None:
            self._missing = self.core.timers.at(now + COMPLAIN_AFTER_S, self._say_missing)

    def _say_missing(self, now: float) -> None:
        if not self.holder and self.waiting and not self._owner.had_sender(self.id):
            self.core.warning_digest.warn(
                now,
                "channel %s: its consumer waits, but no sender has requested the channel in %.0f s: check that "
                "a sender runs, and sends to this address and this channel id. Still waiting",
                self.id, now - self.since,
            )  # fmt: skip

    def check_starved(self) -> None:
        """Report on both sides, once per episode, that the consumer waits for messages that the sender holds back."""
        expected = self.expected or 0
        if (
            self._blocked_at == expected > self.acknowledged
            and self.link is not None
            and self.waiting
            and not self.starved
            and not self.queue
        ):
            self.starved = True
            log.warning(
                "channel %s is starved: its consumer waits for message %d, but the sender's buffer is full, because it "
                "contains %d unacknowledged messages, from number %d on: acknowledge more often, or give the sender "
                "a larger buffer",
                self.id, expected, expected - self.acknowledged, self.acknowledged,
            )  # fmt: skip
            self.link.send(signal(Kind.STARVED, sequence=expected))

    def _due(self, sequence: int) -> int:
        expected = self.expected or 0
        if sequence > expected or self.ended is not None:
            due = (
                f"expected message {expected}" if self.ended is None else f"the stream ended at {self.ended}"
            )
            raise ProtocolError(f"channel {self.id!r}: {due}, got message {sequence}")
        return expected

    def take_in(self, bodies: list[memoryview], notes: list[bytes], timestamp: int) -> None:
        """Queue the messages that are due."""
        count = len(bodies)
        end = (self.expected or 0) + count
        chunk = Chunk(bodies, notes, end, timestamp, self.context)
        full = self.queue.add(chunk)
        self.received += count
        self.bytes += chunk.size
        if notes:
            self.last_note = next(filter(None, reversed(notes)), self.last_note)
        if full:
            self._admit()
        self._received_to(end)

    def _received_to(self, expected: int) -> None:
        self.expected = expected
        self.on_change()
        self._touch()

    def end(self, count: int, now: float) -> None:
        """The clean end, after ``count`` messages."""
        self._check_count(count)
        self.ended = self._asked = count
        self._touch()
        self.on_change()
        self.maybe_finish(now)

    def aborted(self, count: int, message: str, now: float) -> None:
        """The producer failed, after ``count`` messages."""
        self._check_count(count)
        if self.retainer is not None:
            self.ended, self.failure = count, message
            self.maybe_finish(now)
            return
        text = f"the producer of channel {self.id!r} failed: {message}"
        self._end(ReceiverEvent.FAIL, ChannelFailed(text, message), now)

    def _check_count(self, count: int) -> None:
        if count != self.expected:
            raise ProtocolError(
                f"channel {self.id!r} ended at number {count}, but message {self.expected} was next"
            )

    def maybe_finish(self, now: float) -> None:
        """The end is acknowledged once everything before it is, and it is kept itself, where the stream is."""
        if self.ended is None or self.acknowledged < self.ended or self.terminal or self.unsettled:
            return
        if self.retainer is None or self.retainer.end_kept:
            self._move(ReceiverEvent.FINISH, now)

    def settle(self, now: float) -> None:
        """The files are what they should be: the end may be acknowledged."""
        self.unsettled = False
        self.maybe_finish(now)
        self.on_change()

    def _touch(self) -> None:
        """Have messages acknowledged: soon with later ones, unless the sender waits, or there are many."""
        link = self.link
        if link is None or link.acknowledging:
            return
        if self._asked > self._told or self.bytes - self._told_bytes >= ACK_BYTES:
            link.acknowledge()
        else:
            link.acknowledge_later()

    def acknowledgements(self) -> list[Buffer]:
        """Return acknowledgements that are new since the last time, at most once per turn of the loop."""
        buffers: list[Buffer] = []
        expected = self.expected or 0
        if self.explicit and expected > self._receipted:
            buffers.append(signal(Kind.RECEIPT, sequence=expected))
        self._receipted = expected
        self._told, self._told_bytes = self.acknowledged, self.bytes
        buffers.append(signal(Kind.ACK, sequence=self._told))
        return buffers

    def _admit(self) -> None:
        """Read the socket only while the queue is below its marks; start again at half of them."""
        link = self.link
        if link is not None and link.reading is (self.queue.full if link.reading else self.queue.half_full):
            link.reading = not link.reading
            link.touched()


def _none() -> int:
    """The size of files that there are not."""
    return 0


def _sequence(position: Position | int) -> int:
    if isinstance(position, tuple) and not isinstance(position, Position):
        raise TypeError(f"resume_from is {position!r}: expected a Position, or a number")
    sequence = position.sequence if isinstance(position, Position) else position
    sequence = _whole(sequence, "resume_from")
    if sequence < 0:
        raise ValueError(f"resume_from is {sequence}: numbers begin at 0")
    if sequence >= SEQUENCE_LIMIT:
        raise ValueError(f"resume_from is {sequence}: numbers end at {SEQUENCE_LIMIT}")
    return sequence


def _whole(number: int, what: str) -> int:
    """``number``, also one of numpy. Raises TypeError for one that is not whole, as from a data frame."""
    try:
        return index(number)
    except TypeError:
        raise TypeError(f"{what}({number!r}): expected a whole number") from None
