"""The recipe: from messages at times to collections, through any kill, by any number of instances at once.

Steps and words are those of the source document, "A recipe for source ingestion". To start, ``t`` is the lowest write
frontier of all that is written. From there the state is rehydrated, the sources are begun again, and each time is
executed as if alone. Writes at times that were written already are compared.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa

from nebuli.dataflow.zset import insertions, weighted
from nebuli.ingestion.errors import MessageInvalid, SourceConflict
from nebuli.store.collections.errors import ConflictingWrite
from nebuli.store.errors import NotYet

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from nebuli.ingestion.decoding.decoder import Decoder
    from nebuli.ingestion.envelopes.envelope import Envelope
    from nebuli.ingestion.message_addresses import Messages
    from nebuli.store import Store
    from nebuli.store.collections.collections import Collections
    from nebuli.store.shards.payloads import Update

    from .reclocking import Remap
    from .timed_messages import Timed, TimedMessages, TimedSpan
    from .turns import Turns


ERRORS = "errors"
"""Suffix of a source's name in that of its collection of messages that cannot be decoded."""
ERROR_COLUMNS = pa.schema(
    [
        pa.field("source", pa.string(), nullable=False),
        pa.field("part", pa.string(), nullable=False),
        pa.field("address", pa.int64(), nullable=False),
        pa.field("error", pa.string(), nullable=False),
        pa.field("payload", pa.binary()),
    ]
)
"""Columns for a message that cannot be decoded: its raw source, its place there, the reason, and its bytes, if it has
some."""


def first_of(group: ExceptionGroup[Exception]) -> Exception:
    """The first error of a group, also where that is of a group in it."""
    error: Exception = group
    while isinstance(error, ExceptionGroup):
        error = error.exceptions[0]
    return error


@dataclass(frozen=True, slots=True)
class Target:
    """The output: the renditions of one name of the collection, and of the collections of the state."""

    collection: str
    rendition: str

    def state(self, name: str) -> str:
        """The collection of a state."""
        return f"{self.collection}.{name}"


@dataclass(frozen=True, slots=True)
class _Made:
    """The changes to write for a span, below time ``upper``; the error ``wrong``, if not all could be made."""

    span: TimedSpan
    changes: Mapping[str, Sequence[Update]]
    upper: int
    wrong: MessageInvalid | None


class Stage:
    """From messages to the collections of a target."""

    def __init__(
        self,
        store: Store,
        collections: Collections,
        target: Target,
        messages: TimedMessages,
        *,
        decoders: Mapping[str, Decoder],
        envelope: Envelope,
        facts: Remap,
        turns: Turns,
        collects_errors: bool = False,
    ) -> None:
        """``store`` is that of the collections; ``facts`` has what messages are decoded by, and keeps what is found.

        Where it ``collects_errors``, messages that cannot be decoded are in a collection of their own, at their times.
        """
        self._errors = target.state(ERRORS) if collects_errors else None
        self._work = store.access.work
        self._collections = collections
        self._target = target
        self._messages = messages
        self._decoders = decoders
        self._envelope = envelope
        self._facts = facts
        self._turns = turns
        self._written: TimedSpan | None = None
        self.upper = 0
        """All that became available at lower times is written; never goes back."""
        self.advanced = asyncio.Event()
        """Set whenever it has."""

    @property
    def names(self) -> list[str]:
        """The collections that are written: the output's, and then those of the state, and of errors."""
        errors = [] if self._errors is None else [self._errors]
        return [self._target.collection, *map(self._target.state, self._envelope.states), *errors]

    async def run(self) -> None:
        """Ingest, until it is cancelled. Raises IngestionError, StorageError."""
        try:
            await self._begin()
            async with asyncio.TaskGroup() as group:
                group.create_task(self._messages.run())
                made: asyncio.Queue[_Made] = asyncio.Queue(1)
                group.create_task(self._make(made))
                group.create_task(self._write_made(made))
        except ExceptionGroup as group_error:
            raise first_of(group_error) from None
        finally:
            await self._messages.close()

    async def is_caught_up(self) -> bool:
        """True if all present messages are written."""
        return self._written is not None and await self._messages.is_caught_up(self._written)

    # -- the assembly instructions, by their numbers in the document

    async def _begin(self) -> None:
        upper = await self._lowest_upper()  # 1
        await self._rehydrate(upper)  # 2
        await self._messages.begin(upper)  # 3
        self.upper = upper

    async def _lowest_upper(self) -> int:
        uppers = []
        for name in self.names:
            found = await self._collections.describe(name)
            uppers += [each.upper for each in found.renditions if each.name == self._target.rendition]
        return min(uppers)

    async def _rehydrate(self, upper: int) -> None:
        output = await self._contents(self._target.collection, upper) if self._envelope.reads_output else None
        states = {
            name: await self._contents(self._target.state(name), upper) for name in self._envelope.states
        }
        await self._work.on_blobs(self._envelope.rehydrate, output, states)

    async def _contents(self, name: str, upper: int) -> pa.Table:
        if not upper:
            return weighted((await self._collections.describe(name)).schema).empty_table()
        return await self._collections.snapshot(
            name, upper - 1, weighted=True, rendition=self._target.rendition
        )

    async def _make(self, made: asyncio.Queue[_Made]) -> None:
        """Ahead of what is written, by a little."""
        while True:
            span = await self._messages.next()  # 4
            learned, wrong = await self._learn(span.times)
            changes, executed, inapt = await self._changes(learned)  # 5
            wrong = inapt or wrong
            upper = span.upper
            if wrong is not None:
                upper = span.times[executed].time
                changes = {name: [each for each in some if each[0] < upper] for name, some in changes.items()}
            await made.put(_Made(span, changes, upper, wrong))
            if wrong is not None:
                return

    async def _write_made(self, made: asyncio.Queue[_Made]) -> None:
        while True:
            some = await made.get()
            if some.upper > self.upper:
                await self._write(some.changes, some.upper)
                self.upper = some.upper
                self.advanced.set()
            if some.wrong is not None:
                raise some.wrong
            self._written = some.span
            await self._messages.done(some.span)

    async def _learn(self, times: Sequence[Timed]) -> tuple[Sequence[Timed], MessageInvalid | None]:
        """Have all facts recorded that these messages are decoded by; those of raw sources are already.

        Gives the times of which there are all, and what is wrong with the next one.
        """
        for place, timed in enumerate(times):
            try:
                for source, some in timed.messages.items():
                    for each in some:
                        while found := await self._decoders[source].facts(each, self._facts.facts):
                            await self._facts.mint({}, found)
            except MessageInvalid as error:
                return times[:place], error
        return times, None

    async def _changes(
        self, times: Sequence[Timed]
    ) -> tuple[dict[str, list[Update]], int, MessageInvalid | None]:
        """Return the changes to write, by collection; the number of their times, and the error of the next one."""
        decoded = await asyncio.gather(
            *(
                self._decoded(source, each)
                for timed in times
                for source, some in timed.messages.items()
                for each in some
            )
        )
        return await self._work.on_blobs(self._applied, times, iter(decoded))

    async def _decoded(self, source: str, some: Messages) -> Messages | MessageInvalid:
        try:
            return await self._work.on_blobs(self._decoders[source].decode, some, self._facts.facts)
        except MessageInvalid as error:
            return error

    def _applied(
        self, times: Sequence[Timed], decoded: Iterator[Messages | MessageInvalid]
    ) -> tuple[dict[str, list[Update]], int, MessageInvalid | None]:
        """Each time executed as if alone."""
        written: dict[str, list[Update]] = {name: [] for name in self.names}
        for place, timed in enumerate(times):
            try:
                messages = {
                    source: [_valid(next(decoded)) for _ in some] for source, some in timed.messages.items()
                }
                self._envelope.at(timed.time)
                changes = self._envelope.apply(messages)
            except MessageInvalid as error:
                return written, place, error
            written[self._target.collection] += [
                (timed.time, rows) for rows in changes.output if rows.num_rows
            ]
            if self._errors is not None and (wrong := undecoded_rows(messages)) is not None:
                written[self._errors].append((timed.time, wrong))
            for name, batches in changes.states.items():
                written[self._target.state(name)] += [(timed.time, rows) for rows in batches if rows.num_rows]
        return written, len(times), None

    async def _write(self, changes: Mapping[str, Sequence[Update]], upper: int) -> None:
        output, rendition = self._target.collection, self._target.rendition
        if not self._turns.is_first:
            with suppress(NotYet):
                await self._collections.written(output, rendition, upper - 1, deadline_s=self._turns.pause_s)
        try:
            self._turns.is_first = await self._collections.write_all(
                changes, self.upper, upper, rendition=rendition
            )
        except ConflictingWrite as error:
            raise SourceConflict(
                f"two instances have decoded the same messages differently: {error}"
            ) from error


def undecoded_rows(messages: Mapping[str, Sequence[Messages]]) -> pa.RecordBatch | None:
    """The messages of which no rows could be made, as rows of the collection of errors; None: there are none."""
    rows = [
        (source, some.part, each.address, each.error, each.payload)
        for source, all_of_it in messages.items()
        for some in all_of_it
        for each in some.undecoded
    ]
    if not rows:
        return None
    columns = zip(*rows, strict=True)
    return insertions(
        pa.RecordBatch.from_arrays(
            [pa.array(column, field.type) for column, field in zip(columns, ERROR_COLUMNS, strict=True)],
            schema=ERROR_COLUMNS,
        )
    )


def _valid(some: Messages | MessageInvalid) -> Messages:
    if isinstance(some, MessageInvalid):
        raise some
    return some
