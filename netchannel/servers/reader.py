"""Reading what a channel keeps: `ChannelReader` follows its heads, reads ranges, acknowledges by name."""

from __future__ import annotations

import asyncio
import secrets
from contextlib import aclosing
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Self

from netchannel.core.replay.read_client import ReadClient
from netchannel.errors import ChannelInUse, ConsumerFenced, NetChannelError, SchemaMismatch
from netchannel.resumable import Resumable
from netchannel.values import (
    NAME_LIMIT,
    Heads,
    Located,
    Message,
    Moment,
    Position,
    check_given,
    check_kind,
    is_consumer,
)
from netchannel.wire import messages
from netchannel.wire.codec import ArrowDecoder, CodecName, make_decoder

from .client import Client
from .identity import node_name, shown
from .waiter import Changes, check_loop

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Iterator
    from types import TracebackType

    import pyarrow as pa

    from netchannel.core.client_core import ClientChannel, PendingQuestion
    from netchannel.core.receiving.queue import Chunk
    from netchannel.core.replay.read_client import RangeRead
    from netchannel.policies import FaultPolicy, Timing
    from netchannel.tls import Tls
    from netchannel.wire.codec import Decoder

MESSAGE_LIMIT = 1 << 30
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
NUMBERS = 1 << 63
"""The bound below which the numbers of messages are."""
_DECODERS = 8
"""Streams whose schemas are remembered: readings of the last ones may still be decoded."""


class ChannelReader:
    """The reader's side of a retained channel; an async context manager.

    ``to`` is the address of the receiver, or of the listening sender, whose `retain_channel` keeps the channel; that
    server may start later. Calls wait for the server as long as ``fault`` allows, and then raise `ChannelBroken`.
    ``secret`` and ``tls`` must match the server's.

    Reading changes nothing at the server: any number of readers can read any range any number of times. Messages that
    all consumers have acknowledged, each under its own name, may be freed.
    """

    def __init__(
        self,
        to: str,
        channel_id: str,
        *,
        codec: CodecName = "arrow",
        secret: str | None = None,
        tls: Tls | None = None,
        fault: FaultPolicy | None = None,
        timing: Timing | None = None,
    ) -> None:
        make_decoder(codec, None)
        self.to = to
        self.id = channel_id
        self._codec: CodecName = codec
        self._fault = fault
        self._client = Client(secret=secret, tls=tls, timing=timing)
        self._own_client = True
        self._heads: Heads | None = None
        self._schemas: dict[str, Decoder] = {}
        self._held: dict[str, str] = {}  # consumers, and their holders
        self._tried: set[tuple[str, str]] = set()  # the same, confirmed to this reader or not
        self._renewing: set[tuple[str, str]] = set()
        self._name = f"{node_name('reader')} {secrets.token_hex(8)}"
        self._fenced: dict[str, NetChannelError] = {}
        self._entered = False
        self._error: NetChannelError | None = None
        self._channel: ClientChannel
        self._watch: PendingQuestion
        self._reader: ReadClient
        self._changes: Changes

    @classmethod
    def from_client(
        cls, client: Client, to: str, channel_id: str, *, codec: CodecName, fault: FaultPolicy | None
    ) -> ChannelReader:
        """A reader that asks on the connections of ``client``, which it does not close."""
        reader = cls(to, channel_id, codec=codec, fault=fault)
        reader._client, reader._own_client = client, False
        return reader

    def __repr__(self) -> str:
        state = "failed" if self._error is not None else "reading" if self._entered else "not entered"
        return shown(self, repr(self.id), repr(self.to), state)

    async def __aenter__(self) -> Self:
        if self._entered:
            raise NetChannelError(f"this reader of channel {self.id!r} was already entered: make a new one")
        if self._own_client:
            await self._client.__aenter__()
        try:
            self._channel = self._client.register(self.id, self.to, self._fault)
        except BaseException:
            if self._own_client:
                await self._client.__aexit__(None, None, None)
            raise
        self._entered = True
        self._changes = Changes()
        self._reader = ReadClient(self._channel, self.decoder, MESSAGE_LIMIT)
        self._channel.on_lost = self._lost
        self._watch = self._channel.ask(messages.Watch, self._pushed, self._failed, self._now())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Stop reading; others can take the names that this reader holds once their leases have expired."""
        if self._entered and (runner := self._client.runner) is not None:
            check_loop(runner.loop)
            if self._channel.error is None:
                self._channel.tell(messages.Unwatch, request=self._watch.number)
                for consumer, holder in self._tried:
                    self._channel.tell(messages.Yield, request=0, consumer=consumer, holder=holder)
            self._channel.close(self._now())
            self._reader.close(self._channel.error or NetChannelError("closed"))
        if self._own_client:
            await self._client.__aexit__(None, None, None)

    def _now(self) -> float:
        return self._client.running().clock()

    # -- messages of the retaining end

    def _pushed(self, answer: messages.Heads, now: float) -> None:
        if answer.codec != self._codec:
            text = f"channel {self.id!r} has the codec {answer.codec!r} at {self.to}, but {self._codec!r} was requested"
            self._failed(SchemaMismatch(text), now)
            return
        heads = Heads(*(getattr(answer, name) for name in Heads._fields))
        if heads.stream and answer.schema is not None:
            try:
                self.decoder(heads.stream).learn(answer.schema)
            except NetChannelError as error:
                text = f"channel {self.id!r} at {self.to}: stream {heads.stream!r} has changed: {error}"
                self._failed(type(error)(text), now)
                return
        self._heads = heads
        self._changes.notify()

    def _failed(self, error: NetChannelError, now: float) -> None:
        if self._error is None:
            self._error = error
            self._reader.close(error)
            self._channel.fail(error, now)
            self._changes.notify()

    def _lost(self, reason: str, now: float) -> None:
        self._reader.control_lost()
        if self._channel.error is not None:
            self._failed(self._channel.error, now)
            return
        for consumer, holder in self._held.items():
            self._renew(consumer, holder, now)

    def _renew(self, consumer: str, holder: str, now: float) -> None:
        """Keep a name over a lost connection, unless another holder has had it since."""
        if (consumer, holder) in self._renewing:
            return  # it is asked until it is answered, however many connections are lost meanwhile
        self._renewing.add((consumer, holder))

        def renewed(answer: messages.Held, now: float) -> None:
            self._renewing.discard((consumer, holder))

        def failed(error: NetChannelError, now: float) -> None:
            self._renewing.discard((consumer, holder))
            if self._held.get(consumer) == holder:
                del self._held[consumer]
                self._fenced[consumer] = error

        fields = {"consumer": consumer, "holder": holder, "renew": True, "fresh": False}
        self._channel.ask(messages.Hold, renewed, failed, now, **fields)

    def _check(self) -> None:
        if not self._entered:
            raise NetChannelError(f"this reader of channel {self.id!r} is not entered: use 'async with'")
        if self._error is not None:
            raise type(self._error)(*self._error.args)
        self._channel.check_live()

    # -- for applications

    @property
    def latest(self) -> Heads | None:
        """The last pushed heads; None before the first. ``stream`` is empty if there will be no stream."""
        heads = self._heads
        return heads if heads is not None and (heads.stream or heads.ended) else None

    @property
    def error(self) -> NetChannelError | None:
        """The error that ended this reader; all later calls raise it, and a new reader is needed.

        None while the reader works.
        """
        return self._error

    async def heads(self, beyond: int | None = None) -> Heads:
        """Return the newest heads of the stream that were pushed to this reader.

        Waits for the first heads; with ``beyond``, until ``head`` is above ``beyond`` or the stream has ended. Raises
        `ChannelBroken` if the fault policy gives up, and `SchemaMismatch` for another codec, or if the stream has
        returned with another schema.
        """
        while True:
            self._check()
            heads = self._heads
            if heads is not None and (
                heads.ended or (heads.stream and (beyond is None or heads.head > beyond))
            ):
                return heads
            await self._changes.wait()

    async def heads_within(self, beyond: int | None, timeout_s: float | None) -> Heads:
        """`heads`, for threads, which cannot be cancelled. Raises TimeoutError."""
        async with asyncio.timeout(timeout_s):
            return await self.heads(beyond)

    async def schema_within(self, timeout_s: float | None) -> pa.Schema | None:
        """`schema`, for threads, which cannot be cancelled. Raises TimeoutError."""
        async with asyncio.timeout(timeout_s):
            return await self.schema()

    async def schema(self) -> pa.Schema | None:
        """Wait for the stream's schema; None with the codec ``bytes``."""
        if self._codec == "bytes":
            return None
        while True:
            heads = await self.heads()
            decoder = self.decoder(heads.stream)
            assert isinstance(decoder, ArrowDecoder)
            if decoder.schema is None and heads.head > 0 and heads.stream:
                # Too large for heads: it comes before the end of a range, be that empty.
                reading = await self.begin(heads.head, heads.head)
                while not reading.over:
                    await self._changes.wait()
                reading.take()
            if decoder.schema is not None:
                return decoder.schema
            if heads.ended:
                raise NetChannelError(f"channel {self.id!r} has ended, and its schema was never sent")
            await self._changes.wait()

    def decoder(self, stream: str) -> Decoder:
        """Return the decoder of ``stream``'s messages."""
        found = self._schemas.get(stream)
        if found is None:
            while len(self._schemas) >= _DECODERS:
                del self._schemas[next(iter(self._schemas))]
            found = self._schemas[stream] = make_decoder(self._codec, None)
        return found

    def _check_number(self, number: Any) -> None:
        is_number = isinstance(number, int) and not isinstance(number, bool)
        if not is_number or not 0 <= number < NUMBERS:
            raise (ValueError if is_number else TypeError)(
                f"channel {self.id!r}: {number!r} is not a position: expected a Position, or a number from 0 to "
                f"{NUMBERS - 1}"
            )

    async def _place(self, place: Position | int) -> tuple[str, int]:
        """The stream that is meant, and the number. Raises StreamReplaced if it is not there any more."""
        self._check_number(place.sequence if isinstance(place, Position) else place)
        if isinstance(place, Position):
            self._check()
            return place.stream, place.sequence
        heads = await self.heads()
        if not heads.stream:
            raise NetChannelError(f"channel {self.id!r} has no stream: {heads.failure}")
        return heads.stream, place

    async def locate(
        self, first: Position | int, *, max_rows: int | None = None, max_bytes: int | None = None
    ) -> Located:
        """Return the end and size of the longest range from ``first`` on that fits the bounds.

        The range has at least one message, if one exists. Raises PositionLost below the kept messages, StreamReplaced
        for another stream.
        """
        for name, limit in (("max_rows", max_rows), ("max_bytes", max_bytes)):
            check_kind(name, limit, int)
            if limit is not None and limit < 1:
                raise ValueError(f"{name} is {limit}: expected at least 1, or None for no bound")
        stream, number = await self._place(first)
        answer: messages.Located = await self._ask(
            messages.Locate, stream=stream, first=number, max_rows=max_rows, max_bytes=max_bytes
        )
        return Located(answer.until, answer.rows, answer.bytes)

    async def moment(self, at: datetime) -> Moment:
        """Return the place in the kept stream between messages sent before ``at`` and messages sent at ``at`` or later.

        Raises ValueError for a time without a zone.
        """
        if at.utcoffset() is None:
            raise ValueError(f"the time {at} has no time zone: give it one")
        stream, _ = await self._place(0)
        micros = max(0, (at - _EPOCH) // timedelta(microseconds=1))
        answer: messages.Moment = await self._ask(messages.When, stream=stream, at=micros)
        return Moment(stream, answer.since, answer.before)

    def read(self, first: Position | int, until: int) -> AsyncGenerator[Any, None]:
        """The batches of messages ``first`` to ``until`` (excluded); see `read_messages`."""
        return Resumable(self._read(first, until))

    def read_messages(self, first: Position | int, until: int) -> AsyncGenerator[Message, None]:
        """Yield messages ``first`` to ``until`` (excluded), the same at every call, even if connections are lost.

        A cancelled call of the iterator takes no message: the next call returns it.

        Raises PositionLost below the kept messages, StreamReplaced for another stream, NetChannelError beyond ``head``.
        """
        return Resumable(self._read_messages(first, until))

    async def _read(self, first: Position | int, until: int) -> AsyncGenerator[Iterator[Any], None]:
        async with aclosing(self._read_messages(first, until)) as runs:
            async for messages in runs:
                yield (message.batch for message in messages)

    async def _read_messages(
        self, first: Position | int, until: int
    ) -> AsyncGenerator[Iterator[Message], None]:
        reading = await self.begin(first, until)
        try:
            while chunks := await self.more(reading):
                yield self.decoded(reading, chunks)
        finally:
            self.cancel(reading)

    async def begin(self, first: Position | int, until: int) -> RangeRead:
        """Ask for a range; `more` waits for it, `decoded` reads it, also on another thread, `cancel` gives it up."""
        self._check_number(until)
        stream, number = await self._place(first)
        if until < number:
            raise ValueError(f"channel {self.id!r}: messages {number} to {until} are not a valid range")
        reading = self._reader.read(stream, number, until, self._now())
        reading.on_change = self._changes.notify
        return reading

    async def more(self, reading: RangeRead) -> list[Chunk]:
        """All messages that have come, at least one; none at the end. Raises what ended it early."""
        while not (chunks := reading.take()):
            if reading.complete:
                return []
            await self._changes.wait()
        return chunks

    def decoded(self, reading: RangeRead, chunks: list[Chunk]) -> Iterator[Message]:
        """The messages in ``chunks``."""
        decode = self.decoder(reading.stream).decode
        for chunk in chunks:
            notes, timestamp, context, number = chunk.notes, chunk.timestamp, chunk.context, chunk.first
            for place, body in enumerate(chunk.bodies):
                note = notes[place] if notes else b""
                yield Message(decode(body, context, MESSAGE_LIMIT), note, number + place, timestamp)

    def cancel(self, reading: RangeRead) -> None:
        """Stop a reading of which nothing more is wanted."""
        if not reading.over and self._client.runner is not None:
            self._reader.cancel(reading, self._now())

    async def hold(self, consumer: str, *, holder: str | None = None, fresh: bool = False) -> int:
        """Take the lease of a consumer's name; returns the number below which it has acknowledged everything.

        A new name begins at the oldest kept message. ``holder`` is the new owner of the name (default: this reader): a
        process that returns with the same holder gets the name at once. A cancelled call can be repeated. Raises
        ChannelInUse while another holder has the name, and for the time of a lease after that holder's connection was
        lost. A ``fresh`` holder does not continue the work of others: raises ConsumerFenced if another holder has
        acknowledged messages under the name, unless the name was forgotten since.
        """
        _check_names(consumer=consumer, **({} if holder is None else {"holder": holder}))
        who = holder or self._held.get(consumer) or self._name
        self._tried.add((consumer, who))
        try:
            answer: messages.Held = await self._ask(
                messages.Hold, consumer=consumer, holder=who, renew=False, fresh=fresh
            )
        except NetChannelError:
            self._tried.discard((consumer, who))
            raise
        self._held[consumer] = who
        self._fenced.pop(consumer, None)
        return answer.position

    async def renew(self, consumer: str, holder: str) -> None:
        """Continue with a name that ``holder`` has had before, possibly by another reader.

        Raises ConsumerFenced, without an effect, if the server does not know the name, or another holder has had it
        since.
        """
        await self._ask(messages.Hold, consumer=consumer, holder=holder, renew=True, fresh=False)
        self._tried.add((consumer, holder))
        self._held[consumer] = holder
        self._fenced.pop(consumer, None)

    async def ack(self, consumer: str, upto: Position | int) -> None:
        """Acknowledge everything below ``upto``, which may be freed once all consumers have acknowledged it.

        Takes the lease of the name if this reader has not held it yet. If the channel is kept on disk, returns once the
        acknowledgement is durable. Raises ConsumerFenced if another holder has the name, until `hold` gets it again.
        """
        if (fenced := self._fenced.get(consumer)) is not None:
            raise ConsumerFenced(*fenced.args)
        stream, number = await self._place(upto)
        if consumer not in self._held:
            try:
                await self.hold(consumer)
            except ChannelInUse as error:
                raise ConsumerFenced(str(error)) from None
        try:
            await self._ask(
                messages.Acknowledge,
                consumer=consumer,
                holder=self._held[consumer],
                stream=stream,
                upto=number,
            )
        except ConsumerFenced as error:
            self._held.pop(consumer, None)
            self._fenced[consumer] = error
            raise

    async def forget(self, consumer: str) -> None:
        """Delete the name, even if it has a holder: no more messages are kept for it."""
        _check_names(consumer=consumer)
        await self._ask(messages.Forget, consumer=consumer)
        self._held.pop(consumer, None)

    async def _ask(self, kind: type[messages.Question], **fields: Any) -> Any:
        self._check()
        return await self._client.ask(self._channel, kind, **fields)


def _check_names(**names: str) -> None:
    for kind, name in names.items():
        check_given(kind, name, str)
        if not is_consumer(name):
            raise ValueError(
                f"the name {name[:60]!r} of a {kind} has {len(name)} characters: expected 1 to {NAME_LIMIT} that can "
                f"be printed"
            )
