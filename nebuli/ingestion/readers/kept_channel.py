"""A channel that is kept: its streams are the parts, one after the other, and messages' numbers the addresses."""

from __future__ import annotations

import asyncio
import logging
from contextlib import contextmanager
from typing import TYPE_CHECKING, ClassVar

import numpy as np
import pyarrow as pa

import netchannel
from nebuli.access_files import TrustUnusable, secret_at, tls_of
from nebuli.dataflow import WEIGHT
from nebuli.ingestion.errors import AddressGone, SourceAway, SourceUnusable
from nebuli.ingestion.message_addresses import PAYLOAD, Messages
from nebuli.ingestion.source_reader import SourceReader

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from typing import Literal

    from nebuli.ingestion.definition import ChannelOrigin
    from nebuli.ingestion.message_addresses import Addresses
    from netchannel.core.receiving.queue import Chunk
    from netchannel.core.replay.read_client import RangeRead

_log = logging.getLogger("nebuli.ingestion")

SILENCE_S = 10.0
"""How long the retaining process may not answer, or have no stream, until the source is away."""
LOOK_S = 1.0
"""How often to check for another stream, while there is nothing after the last message of this one."""
_AGAIN_S = 0.25
_STAYS = (
    netchannel.SchemaMismatch,
    netchannel.ProtocolError,
    netchannel.CertificateError,
    netchannel.MessageTooLarge,
)
"""Errors that do not go away on their own."""
_BYTES = pa.schema([(PAYLOAD, pa.binary())])


class KeptChannel(SourceReader):
    """Arrow batches, all rows of one at its number; or, of a channel of bytes, each message as such.

    Messages are kept until they are released, for the consumer's name, which all readers of this ingestion share: they
    register as the same holder, so that any living one can release them. A stream that was read to its end makes way
    for the next one once all of it is released.
    """

    unit: ClassVar[str] = "messages"

    def __init__(self, origin: ChannelOrigin, *, name: str) -> None:
        self._origin = origin
        self._name = name
        self._holder = f"nebuli ingestion {name}"
        self._reader: netchannel.ChannelReader | None = None
        self._schema: pa.Schema | None = None
        self._before: Addresses = {}
        """Streams that were read, and up to where."""
        self._stream = ""
        self._number = 0
        self._head = 0
        """The stream's head when it was last seen, and true if it had ended cleanly."""
        self._has_ended = False
        self._reading: RangeRead | None = None
        self._released: netchannel.Position | None = None
        self._is_told_in_use = False
        self._is_told_failed = False

    @property
    def schema(self) -> pa.Schema:
        """The columns of its batches, or one of bytes."""
        assert self._schema is not None, "it is not open"
        return self._schema

    @property
    def reads(self) -> str:
        """The source's name, and the channel."""
        return f"{self._name} (channel {self._origin.channel!r} at {self._origin.address})"

    async def open(self, at: Mapping[str, int]) -> None:
        """As `SourceReader.open`; without an address, at the oldest message that is kept.

        Waits some seconds for a stream whose columns are known.
        """
        with self._said():
            reader, heads = await self._connected()
            self._schema = await self._schema_of(reader)
            self._before = {part: address for part, address in at.items() if part != heads.stream}
            self._stream, self._number = heads.stream, at.get(heads.stream, 0 if at else heads.oldest)
            if at and heads.stream not in at:
                await self._check_done(reader, heads)
            else:
                await self._hold(reader)
            self._check(heads)

    async def next(self) -> Messages:
        """As `SourceReader.next`; some MiB, of one stream."""
        reader = self._open_reader()
        with self._said():
            while (found := await self._more(reader)) is None:
                await self._look(reader)
            return found

    async def ends(self) -> Addresses:
        """As `SourceReader.ends`."""
        reader = self._open_reader()
        with self._said():
            while True:
                heads = await reader.heads()
                try:
                    found = await reader.locate(netchannel.Position(heads.stream, heads.head))
                except netchannel.StreamReplaced:  # which is reported here in a moment
                    await asyncio.sleep(_AGAIN_S)
                    continue
                last = {self._stream: max(self._number, self._head)}
                return {**self._before, **last, heads.stream: found.until}

    async def release(self, before: Mapping[str, int]) -> None:
        """Acknowledge earlier messages, unless another holder has the consumer's name: then that is left to it."""
        reader = self._open_reader()
        heads = reader.latest
        if heads is None or heads.stream not in before:
            return
        upto = netchannel.Position(heads.stream, min(before[heads.stream], heads.head))
        if upto == self._released:
            return
        with self._said():
            try:
                if await self._hold(reader):
                    await reader.ack(self._origin.consumer, upto)
                    self._released = upto
            except netchannel.ConsumerFenced as error:
                self._is_in_use(error)
            except netchannel.StreamReplaced:  # which only one can be whose messages are all acknowledged
                return

    async def forget(self) -> None:
        """Have nothing kept any more for the consumer; this reader need not be open."""
        with self._said():
            reader = self._reader or (await self._connected())[0]
            await reader.forget(self._origin.consumer)

    async def close(self) -> None:
        """Let go of the connections."""
        reader, self._reader = self._reader, None
        reading, self._reading = self._reading, None
        if reader is not None:
            if reading is not None:
                reader.cancel(reading)
            await reader.close()

    # -- the connection

    def _open_reader(self) -> netchannel.ChannelReader:
        assert self._reader is not None, "it is not open"
        return self._reader

    @contextmanager
    def _said(self) -> Iterator[None]:
        """Have errors of channels be those of sources."""
        try:
            yield
        except (netchannel.NetChannelError, TrustUnusable, ValueError) as error:
            for_good = isinstance(error, (*_STAYS, TrustUnusable, ValueError))
            raise (SourceUnusable if for_good else SourceAway)(f"{self.reads}: {_one_line(error)}") from error

    async def _connected(self) -> tuple[netchannel.ChannelReader, netchannel.Heads]:
        """A reader, and the heads of a stream that there is."""
        try:
            return await self._entered("arrow")
        except netchannel.SchemaMismatch:  # of the codec, as nothing else is known yet
            await self.close()
            return await self._entered("bytes")

    async def _entered(
        self, codec: Literal["arrow", "bytes"]
    ) -> tuple[netchannel.ChannelReader, netchannel.Heads]:
        origin = self._origin
        reader = netchannel.ChannelReader(
            origin.address,
            origin.channel,
            codec=codec,
            secret=None if origin.secret is None else secret_at(origin.secret),
            tls=None if origin.tls is None else tls_of(origin.tls),
            fault=netchannel.FaultPolicy(retry=SILENCE_S),
        )
        await reader.__aenter__()
        self._reader = reader
        self._schema = _BYTES if codec == "bytes" else None
        try:
            heads = await reader.heads_within(None, SILENCE_S)
        except TimeoutError:
            raise SourceAway(
                f"{self.reads}: the channel is not retained there, or has no producer yet"
            ) from None
        if not heads.stream:
            raise SourceAway(f"{self.reads} has no stream: {_one_line(heads.failure)}")
        return reader, heads

    async def _schema_of(self, reader: netchannel.ChannelReader) -> pa.Schema:
        if self._schema is not None:
            return self._schema
        try:
            schema = await reader.schema_within(SILENCE_S)
        except TimeoutError:
            raise SourceAway(
                f"{self.reads}: its columns are unknown until its first message arrives"
            ) from None
        assert schema is not None, "a channel of Arrow has columns"
        if WEIGHT in schema.names:
            raise SourceUnusable(
                f"{self.reads} has a column {WEIGHT}, so it contains changes; expected a channel of rows"
            )
        return schema

    # -- what comes

    async def _look(self, reader: netchannel.ChannelReader) -> None:
        """Ask for what comes next, once there is something, or now and then."""
        try:
            heads = await reader.heads_within(self._number, LOOK_S)
        except TimeoutError:
            heads = await reader.heads()
        if heads.stream != self._stream:
            self._go_on_with(heads)
        self._check(heads)
        self._head, self._has_ended = heads.head, heads.ended and heads.failure is None
        if heads.head > self._number:
            place = netchannel.Position(self._stream, self._number)
            self._reading = await reader.begin(place, heads.head)
        elif heads.ended:
            if heads.failure is not None and not self._is_told_failed:
                self._is_told_failed = True
                _log.warning(
                    "%s: stream %s has failed after %d messages, which were all read (%s); waiting "
                    "for the next stream",
                    *(self.reads, self._stream, heads.head, _one_line(heads.failure)),
                )
            await asyncio.sleep(min(_AGAIN_S, LOOK_S))

    async def _more(self, reader: netchannel.ChannelReader) -> Messages | None:
        """Messages of what was asked for; None: all of that was given."""
        reading = self._reading
        if reading is None:
            return None
        try:
            chunks = await reader.more(reading)
        except netchannel.NetChannelError as error:
            self._reading = None
            if isinstance(error, netchannel.PositionLost | netchannel.StreamReplaced):
                raise self._gone(_one_line(error)) from error
            raise
        if not chunks:
            self._reading = None
            return None
        return self._messages(reader, reading, chunks)

    def _messages(
        self, reader: netchannel.ChannelReader, reading: RangeRead, chunks: list[Chunk]
    ) -> Messages:
        try:
            found = list(reader.decoded(reading, chunks))
        except netchannel.NetChannelError as error:
            self._reading = None
            raise SourceUnusable(
                f"{self.reads}: message {self._number} of stream {self._stream} is malformed: "
                f"{_one_line(error)}"
            ) from error
        numbers = np.array([each.sequence for each in found], np.int64)
        if self.schema is _BYTES:
            payloads = pa.array([bytes(each.batch) for each in found], pa.binary())
            rows, addresses = pa.RecordBatch.from_arrays([payloads], schema=_BYTES), numbers
        else:
            rows = self._as_one(found)
            addresses = np.repeat(numbers, [each.batch.num_rows for each in found])
        lower, self._number = self._number, int(numbers[-1]) + 1
        return Messages(self._stream, lower, self._number, addresses, rows)

    def _as_one(self, found: list[netchannel.Message]) -> pa.RecordBatch:
        there = found[0].batch.schema  # a stream has one
        if not there.equals(self.schema):
            self._reading = None
            raise SourceUnusable(
                f"{self.reads}: message {self._number} of stream {self._stream} has the columns "
                f"({_one_line(there)}), but all earlier messages have the columns "
                f"({_one_line(self.schema)})"
            )
        return found[0].batch if len(found) == 1 else pa.concat_batches([each.batch for each in found])

    # -- which stream

    def _check(self, heads: netchannel.Heads) -> None:
        """Raise AddressGone where the next message of the stream is not there, and will not be."""
        if self._number < heads.oldest:
            raise self._gone(
                f"the oldest kept message is {heads.oldest}: earlier messages were acknowledged "
                f"by all consumers"
            )
        if self._number > heads.head:
            raise self._gone(
                f"the stream has only {heads.head} messages: the process that retains it has lost messages"
            )

    def _go_on_with(self, heads: netchannel.Heads) -> None:
        """Another stream has come. Raises AddressGone where this one was not read to its end.

        Where its end was not seen here, be it that it had none, there may have been more, which another reader has
        read and released: SourceAway, as a new reader begins with what is recorded of that.
        """
        there = f"stream {heads.stream} has taken its place" if heads.stream else "there is no stream now"
        if self._number < self._head or not heads.stream:
            raise self._gone(there)
        if not self._has_ended:
            raise SourceAway(
                f"{self.reads}: stream {self._stream} was read up to message {self._number}, but its "
                f"end was not seen, and {there}; a new reader checks whether all messages of stream "
                f"{self._stream} are ingested"
            )
        self._before = {**self._before, self._stream: self._number}
        self._stream, self._number = heads.stream, 0
        self._head, self._has_ended, self._is_told_failed = 0, False, False

    async def _check_done(self, reader: netchannel.ChannelReader, heads: netchannel.Heads) -> None:
        """Raise AddressGone where messages of an earlier stream may be missing.

        Another one takes its place when all names that are known there have acknowledged all of it. If this one was
        known all the time, all of it is before the released addresses.
        """
        try:
            await reader.renew(self._origin.consumer, self._holder)
        except netchannel.ConsumerFenced as error:
            read = ", ".join(f"message {number} of stream {part}" for part, number in self._known().items())
            raise AddressGone(
                f"{self.reads} was read up to {read}; it now has stream {heads.stream}, and may have had other "
                f"streams in between: {_one_line(error)}; start from scratch"
            ) from error

    def _known(self) -> Addresses:
        return {**self._before, **({self._stream: self._number} if self._number else {})}

    def _gone(self, why: str) -> AddressGone:
        return AddressGone(
            f"{self.reads}: the source needs message {self._number} of stream {self._stream} "
            f"next, but {why}; start from scratch; from then on, other processes must neither acknowledge as "
            f"consumer {self._origin.consumer!r} nor make the server forget this consumer"
        )

    # -- the consumer

    async def _hold(self, reader: netchannel.ChannelReader) -> bool:
        """Have the name, so that nothing is freed before it is released; False where another holder has it."""
        try:
            await reader.hold(self._origin.consumer, holder=self._holder)
        except netchannel.ChannelInUse as error:
            self._is_in_use(error)
            return False
        self._is_told_in_use = False
        return True

    def _is_in_use(self, error: Exception) -> None:
        if not self._is_told_in_use:
            self._is_told_in_use = True
            _log.warning(
                "%s: %s; until the source holds this consumer name, it releases no messages",
                self.reads,
                _one_line(error),
            )


def _one_line(text: object) -> str:
    return "; ".join(str(text).splitlines())
