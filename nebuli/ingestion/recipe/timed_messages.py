"""Messages at the times at which they became available: of raw sources, by what is recorded, or of a collection."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections import ChainMap
from contextlib import suppress
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from nebuli.dataflow.zset import canonical, weights_of, without_weight
from nebuli.ingestion.errors import AddressGone, IngestionError, MessageInvalid, SourceAway
from nebuli.ingestion.message_addresses import ADDRESS, AVAILABLE, PART, PLACE, SOURCE, Messages
from nebuli.store.errors import StorageError

from .read_ahead import ReadAhead

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence

    from nebuli.ingestion.message_addresses import Addresses
    from nebuli.ingestion.readers.seen_files import SeenFiles
    from nebuli.ingestion.source_reader import SourceReader
    from nebuli.store import Store
    from nebuli.store.collections.collections import Collections
    from nebuli.store.shards.shard import Span

    from .message_check import Checked
    from .reclocking import Binding, Remap
    from .turns import Turns

DATA = "data"
"""The raw source that rows come from."""
TICK_S = 1.0
"""While no messages come, this is reported as often."""
_LEAST_S = 0.02
"""Between two times; what comes meanwhile is of the later one."""
_SPAN_BYTES = 1 << 24
_HELD_S = 5.0
"""How often data that is no longer needed is released."""


@dataclass(frozen=True, slots=True)
class Timed:
    """The messages that became available at a time, by raw source."""

    time: int
    messages: Mapping[str, Sequence[Messages]]

    @property
    def nbytes(self) -> int:
        """How much memory their rows take."""
        return sum(each.nbytes for some in self.messages.values() for each in some)


@dataclass(frozen=True, slots=True)
class TimedSpan:
    """All messages that became available up to but not including time ``upper``, after earlier spans.

    By raw source, that is all below its ``addresses``.
    """

    upper: int
    times: Sequence[Timed]
    addresses: Mapping[str, Addresses]


class TimedMessages(ABC):
    """The input of a stage: the same times with the same messages in every read."""

    @abstractmethod
    async def begin(self, upper: int) -> None:
        """Begin after the messages that became available below a time; 0 is the beginning."""

    @abstractmethod
    async def run(self) -> None:
        """Do what there is to do in the background, until it is cancelled."""

    @abstractmethod
    async def next(self) -> TimedSpan:
        """Return the next span; without a deadline, as a source may idle."""

    @abstractmethod
    async def done(self, span: TimedSpan) -> None:
        """The result of this and all earlier spans is durable, and need not be read again."""

    @abstractmethod
    async def is_caught_up(self, span: TimedSpan) -> bool:
        """True if there is nothing after this one now."""

    @abstractmethod
    async def close(self) -> None:
        """Let go of everything."""


class Reclocked(TimedMessages):
    """Raw sources: records new times for messages read from them, and delivers messages by recorded times."""

    def __init__(
        self,
        remap: Remap,
        readers: Mapping[str, Callable[[], SourceReader]],
        decoders: Mapping[str, Checked],
        turns: Turns,
        told: Callable[[IngestionError | None], Awaitable[None]],
        *,
        seen: Mapping[str, SeenFiles],
    ) -> None:
        """``readers`` make one of a raw source, and ``decoders`` find the facts to record with its messages.

        By what they have ``seen`` of files these are known again by others that begin at what is recorded.

        ``told`` is called when one cannot be read, which is tried again; and once it can. Meanwhile times advance
        without messages.
        """
        self._remap = remap
        self._readers = readers
        self._decoders = decoders
        self._turns = turns
        self._report = told
        self._seen = seen
        self._ahead: dict[str, ReadAhead] = {}
        self._told: dict[str, Addresses] = {}
        self._beginning: set[str] = set()
        self._upper = 0
        self._minted = self._let_go = self._moved = _now_s()

    async def begin(self, upper: int) -> None:
        """Begin the sources at the addresses that are recorded for this time."""
        before, marks = await self._remap.begin(upper)
        self._upper = upper
        for (source, part), mark in marks.items():
            self._seen[source].know(part, mark)
        self._told = {source: dict(before.get(source, {})) for source in self._readers}
        self._beginning = {source for source, addresses in self._told.items() if not addresses}
        for source, make in self._readers.items():
            self._ahead[source] = ReadAhead(make, self._told[source], self._report)

    async def run(self) -> None:
        """Read ahead."""
        async with asyncio.TaskGroup() as group:
            for each in self._ahead.values():
                group.create_task(each.run())

    async def next(self) -> TimedSpan:
        """Return recorded messages, once there are some."""
        while self._remap.upper == self._upper:
            await self._record()
        times: list[Timed] = []
        size = 0
        while size < _SPAN_BYTES and (binding := self._remap.next()) is not None:
            times.append(await self._available(binding))
            size += times[-1].nbytes
        self._upper = self._remap.told_upper
        self._moved = _now_s()
        return TimedSpan(self._upper, times, {source: dict(parts) for source, parts in self._told.items()})

    async def _available(self, binding: Binding) -> Timed:
        messages: dict[str, Sequence[Messages]] = {}
        for source, addresses in binding.addresses.items():
            if source not in self._ahead:
                continue
            new = {
                part: address
                for part, address in addresses.items()
                if self._told[source].get(part, -1) < address
            }
            if new:
                messages[source] = [
                    each for each in await self._ahead[source].take(new) if each.rows.num_rows
                ]
                self._told[source] |= new
                await self._check_beginning(source)
        return Timed(binding.time, messages)

    async def _check_beginning(self, source: str) -> None:
        """Raise AddressGone where this instance may have begun later than others have.

        It has begun where the source does, as nothing was recorded. Meanwhile others may have recorded what came first,
        written it, and let the source go of it, before the reader here was open: then it lacks that.
        """
        if source in self._beginning:
            self._beginning.discard(source)
            if await self._remap.was_let_go(source):
                raise AddressGone(
                    f"other instances have ingested and released the first messages of {source} before this "
                    f"instance read them: this instance restarts, and continues after these messages"
                )

    async def _record(self) -> None:
        """Have something recorded, by this instance or another one: what was read, or that nothing came."""
        read = {source: dict(each.read) for source, each in self._ahead.items()}
        if not self._is_new(read):
            left_s = self._moved + TICK_S - _now_s()
            if left_s > 0:
                await self._wait(left_s)
                return
        if self._turns.is_first:
            left_s = self._minted + _LEAST_S - _now_s()
            if left_s > 0:
                await asyncio.sleep(left_s)
        else:
            known = self._remap.upper
            await self._remap.wait(self._turns.pause_s)
            if self._remap.upper != known:
                return
        read, facts = await self._sound()
        self._minted = _now_s()
        marks = {
            (source, part): self._seen[source].recorded(part, address)
            for source, parts in read.items()
            for part, address in parts.items()
        }
        self._turns.is_first = await self._remap.mint(read, facts, marks)
        if any(self._remap.facts.get(key) != value for key, value in facts.items()):
            for each in self._decoders.values():
                each.keep(())  # another instance has found others

    async def _wait(self, pause_s: float) -> None:
        """Until something was read, or recorded, for so long at most."""
        for each in self._ahead.values():
            each.news.clear()
        waiting: list[asyncio.Future[object]] = [
            asyncio.ensure_future(each.news.wait()) for each in self._ahead.values()
        ]
        waiting.append(asyncio.ensure_future(self._remap.wait(pause_s)))
        try:
            await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            if waiting[-1].done():
                waiting[-1].result()
        finally:
            for task in waiting:
                task.cancel()
            await asyncio.gather(*waiting, return_exceptions=True)

    def _is_new(self, read: Mapping[str, Addresses]) -> bool:
        last = self._remap.last
        return any(
            last.get(source, {}).get(part, -1) < address
            for source, parts in read.items()
            for part, address in parts.items()
        )

    async def _sound(self) -> tuple[dict[str, Addresses], dict[str, bytes]]:
        """Return read messages, up to one that cannot be ingested, and the facts to record with them.

        Records cannot be undone, and a source may be fixed: nothing is recorded after a wrong message, nor after one
        whose decoder needs an absent server.
        """
        read = {source: dict(each.read) for source, each in self._ahead.items()}
        waiting = {source: each.waiting() for source, each in self._ahead.items()}
        facts: dict[str, bytes] = {}
        for source, some in waiting.items():
            for each, error in await self._tried(source, some, facts):
                right, found = each.lower, dict[str, bytes]()
                if isinstance(error, MessageInvalid):
                    known = ChainMap(facts, self._remap.facts)
                    right, found = await self._decoders[source].right_part(each, known)
                facts |= found
                read[source][each.part] = right
                self._ahead[source].refuse(each.part, right, error)
        return read, facts

    async def _tried(
        self, source: str, some: Sequence[Messages], facts: dict[str, bytes]
    ) -> Sequence[tuple[Messages, IngestionError]]:
        """Find the facts that messages are decoded by, and the first ones of each part that cannot be."""
        decoder = self._decoders[source]
        decoder.keep(some)
        wrong: dict[str, tuple[Messages, IngestionError]] = {}
        for each in some:
            try:
                if each.part not in wrong:
                    facts |= await decoder.facts(each, ChainMap(facts, self._remap.facts))
            except (MessageInvalid, SourceAway) as error:
                wrong.setdefault(each.part, (each, error))
        known = ChainMap(facts, self._remap.facts)
        for each, found in zip(
            some, await asyncio.gather(*(decoder.try_out(each, known) for each in some)), strict=True
        ):
            first = wrong.get(each.part)
            if found is not None and (first is None or each.lower < first[0].lower):
                wrong[each.part] = each, found
        return [*wrong.values()]

    async def done(self, span: TimedSpan) -> None:
        """Let go of what is before, at the sources, too, now and then."""
        if _now_s() - self._let_go < _HELD_S:
            return
        self._let_go = _now_s()
        await self._remap.hold(span.upper - 1)
        for source, ahead in self._ahead.items():
            if ahead.reader is not None:
                with suppress(IngestionError):  # the source keeps more than it needs to, until the next time
                    await ahead.reader.release(span.addresses[source])

    async def is_caught_up(self, span: TimedSpan) -> bool:
        """True if the sources have no more."""
        for source, ahead in self._ahead.items():
            if ahead.reader is None:
                return False
            ends = await ahead.reader.ends()
            if any(span.addresses[source].get(part, 0) < end for part, end in ends.items()):
                return False
        return True

    async def close(self) -> None:
        """Nothing is left when `run` has ended."""


class OfCollection(TimedMessages):
    """A collection of the same store, which is reclocked already; one of raw messages has their places, too."""

    def __init__(
        self, store: Store, collections: Collections, origin: str, reader: str, built_from: int | None
    ) -> None:
        """``built_from``: the time whose contents are what comes first; None: there was nothing yet."""
        self._work = store.access.work
        self._collections = collections
        self._origin = origin
        self._hold = f"source/{reader}"
        self._built_from = built_from or 0
        self._begin = 0
        self._spans: AsyncGenerator[Span] | None = None
        self._let_go = _now_s()

    async def begin(self, upper: int) -> None:
        """Subscribe there."""
        self._begin = upper

    async def run(self) -> None:
        """Nothing is to be done."""
        await asyncio.Event().wait()  # until it is cancelled

    async def next(self) -> TimedSpan:
        """Return the next changes of the collection."""
        if self._spans is None:
            begins = self._begin <= self._built_from  # the contents come again until all of them are written
            as_of = self._built_from if begins else self._begin - 1
            self._spans = self._collections.subscribe(self._origin, as_of, snapshot=begins)
        span = await anext(self._spans)
        times = []
        for time, some in groupby(span.updates, key=itemgetter(0)):
            rows = pa.concat_batches([rows for _, rows in some])
            times += await self._work.on_blobs(self._available, time, rows)
        return TimedSpan(span.upper, times, {})

    def _available(self, time: int, rows: pa.RecordBatch) -> list[Timed]:
        """Return the messages of a time; raw messages that are read again come one by one, in their original order."""
        weights = weights_of(rows)
        if len(weights) and int(weights.min()) < 0:
            row = without_weight(rows).slice(int(np.argmin(weights)), 1).to_pylist()[0]
            raise MessageInvalid(
                f"collection {self._origin} retracts the row {tuple(row.values())} at time {time}, but a "
                f"source can be ingested only from a collection without retractions: change the writer of the "
                f"collection so that it only adds rows, or rebuild the source"
            )
        if SOURCE in rows.schema.names:
            return [Timed(time, each) for each in _placed(without_weight(rows))]
        one = canonical(rows)
        each = np.repeat(np.arange(one.num_rows), weights_of(one))
        plain = without_weight(one).take(pa.array(each))
        addresses = np.arange(plain.num_rows, dtype=np.int64)
        messages = Messages(f"time {time}", 0, plain.num_rows, addresses, plain)
        return [Timed(time, {DATA: [messages]})] if len(each) else []

    async def done(self, span: TimedSpan) -> None:
        """Hold the collection there, now and then."""
        if _now_s() - self._let_go < _HELD_S:
            return
        self._let_go = _now_s()
        with suppress(StorageError):  # it holds more than it needs to, until the next time
            await self._collections.hold(self._origin, self._hold, span.upper - 1)

    async def is_caught_up(self, span: TimedSpan) -> bool:
        """True if nothing is written there after it."""
        return span.upper > await self._collections.latest(self._origin)

    async def close(self) -> None:
        """End the subscription."""
        if self._spans is not None:
            await self._spans.aclose()


def _placed(rows: pa.RecordBatch) -> list[dict[str, list[Messages]]]:
    """Raw messages in the order of their places, apart by the times at which they became available."""
    keys = [(name, "ascending") for name in PLACE]
    rows = rows.take(pc.sort_indices(rows, sort_keys=keys))
    own = rows.drop_columns([*PLACE])
    addresses, times = rows.column(ADDRESS).to_numpy(), rows.column(AVAILABLE).to_numpy()
    names = [rows.column(each).dictionary_encode().indices.to_numpy() for each in (SOURCE, PART)]
    is_new = np.zeros(max(rows.num_rows - 1, 0), dtype=bool)
    for each in (times, *names):
        is_new |= np.diff(each) != 0
    begins = [0, *(np.flatnonzero(is_new) + 1).tolist()] if rows.num_rows else []
    placed: dict[int, dict[str, list[Messages]]] = {}
    for begin, end in zip(begins, [*begins[1:], rows.num_rows], strict=True):
        own_addresses = addresses[begin:end]
        at_once = placed.setdefault(int(times[begin]), {})
        at_once.setdefault(rows.column(SOURCE)[begin].as_py(), []).append(
            Messages(
                rows.column(PART)[begin].as_py(),
                int(own_addresses[0]),
                int(own_addresses[-1]) + 1,
                own_addresses,
                own.slice(begin, end - begin),
            )
        )
    return [*placed.values()]


def _now_s() -> float:
    return asyncio.get_running_loop().time()
