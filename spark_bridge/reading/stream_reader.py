"""Structured Streaming over channels that are kept: one process of the driver plans, tasks read.

Spark makes a reader in a process of the driver that lives as long as the run of the query, and asks it every 11 ms
or so where the channels are. Facts that this rests on, measured with Spark 4.3 and held by tests:

- ``latestOffset(start, limit)`` is called with the end of the last batch as ``start`` once that batch is in Spark's
  commit log: at once with the default trigger, at the next turn of ``processingTime``, and once more at the end of
  ``availableNow``. So ``start`` is acknowledged there, and waited for. With ``once`` there is no such call,
  and none either when a query is stopped between two turns: there the next start's first call does it.
- ``commit(end)`` comes only when the next batch is planned.
- A query that comes back calls ``latestOffset`` with the last committed offset; a batch that was planned and not
  committed comes before, as ``partitions(start, end)``. Only a batch 0 that was not committed has a new
  ``initialOffset`` as its start: therefore the end of a batch contains its beginning.
- With ``asyncProgressTracking`` (no sink of this package has it) ``start`` is ahead of the commit log.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from pyspark.sql.datasource import DataSourceStreamReader

from netchannel import Position, PositionLost, StreamReplaced
from spark_bridge.tasks.task import log
from spark_bridge.versions import SupportsTriggerAvailableNow, limits

from .admission import Limits, Waiting, advance, failed, waiting
from .batch_reader import RangePartition, ReadsRanges
from .channel_watch import Channels
from .offsets import Entry, decode, encode, initial, left_out, ranges
from .range_reader import RangeReader, lost

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import pyarrow as pa

    from netchannel import Heads, Located
    from spark_bridge.options import ReadOptions

    from .admission import Waiting


class Mark(NamedTuple):
    """Rows and bytes before a message of a stream."""

    stream: str | None
    sequence: int
    rows: int
    bytes: int


@dataclass(slots=True)
class Backlog:
    """The messages between the end of the last planned batch and the heads."""

    _marks: dict[str, Mark] = field(default_factory=dict)
    _parts: dict[str, Located] = field(default_factory=dict)

    def located(self, key: str, part: Located) -> Located:
        """Remember how much of a channel the next batch takes."""
        self._parts[key] = part
        return part

    def planned(
        self,
        ends: Mapping[str, Entry],
        found: Mapping[str, Waiting],
        count: Callable[[str, Position], Located],
    ) -> None:
        """The next batch ends there. ``count(key, first)`` counts all messages of a channel from one on."""
        for key, here in found.items():
            end, heads = ends[key], here.heads
            if (end.stream, end.sequence) == (heads.stream, heads.head):
                self._marks[key] = Mark(heads.stream, heads.head, heads.rows, heads.bytes)
                continue
            part = self._parts.get(key)
            if part is None:
                continue
            before = self._marks.get(key)
            if before is None or before[:2] != (heads.stream, here.first):
                rest = count(key, Position(heads.stream, here.first))
                before = Mark(heads.stream, here.first, heads.rows - rest.rows, heads.bytes - rest.bytes)
            self._marks[key] = Mark(
                heads.stream, end.sequence, before.rows + part.rows, before.bytes + part.bytes
            )
        self._parts.clear()

    def report(self, latest: Mapping[str, Heads]) -> dict[str, Any]:
        """The newest offset of every channel, with what is between the last batch and it where that is known."""
        shown: dict[str, Any] = {}
        for key, heads in sorted(latest.items()):
            shown[key] = {"stream": heads.stream, "seq": heads.head}
            mark = self._marks.get(key)
            if mark is not None:
                same = mark.stream == heads.stream
                shown[key]["backlogRows"] = max(0, heads.rows - (mark.rows if same else 0))
                shown[key]["backlogBytes"] = max(0, heads.bytes - (mark.bytes if same else 0))
        return shown


FIRST_LOOK_S = 5.0
"""How long servers have to answer before the first turn of a query continues without them."""


class StreamReader(ReadsRanges, DataSourceStreamReader, SupportsTriggerAvailableNow):  # type: ignore[misc]  # not in PySpark 4.1
    """Reads channels into a streaming query."""

    def __init__(self, options: ReadOptions, schema: pa.Schema, *, whole: bool = False) -> None:
        self._options = options
        self._read = RangeReader.of(options, schema, whole=whole)
        self._channels: Channels | None = None
        self._initial: dict[str, Entry] | None = None
        self._first = True
        self._available_now = False
        self._target: dict[str, Heads] | None = None
        self._last: dict[str, Entry] = {}
        self._backlog = Backlog()
        self._warned: set[tuple[str, str]] = set()

    def __reduce__(self) -> tuple[Any, ...]:
        # It travels to the tasks, which read and have no use for the driver's connections.
        return partial(type(self), whole=self._read.whole), (self._options, self._read.schema)

    @property
    def channels(self) -> Channels:
        """The driver's connections, made where they are needed."""
        if self._channels is None:
            self._channels = Channels(self._options)
        return self._channels

    # -- what Spark calls in the driver

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """The offset at which a query without a checkpoint begins; asked for more than once."""
        if self._initial is None:
            holder = uuid.uuid4().hex[:12]
            starting = {source.key: self._starting(source.key) for source in self._options.connection.sources}
            # The first message is any that comes first: a query may begin before its channels do.
            new = {key: Entry(None, 0, holder=holder) for key in starting}
            awaited = all(at in ("beginning", "earliest") for at in starting.values())
            now = {} if awaited and self._options.since is None else self._now(new)
            starting |= {key: self._since(key, heads) for key, heads in now.items() if self._options.since}
            self._initial = {key: initial(key, at, now.get(key), holder) for key, at in starting.items()}
        return encode(self._initial)

    def _now(self, entries: Mapping[str, Entry]) -> dict[str, Heads]:
        """The heads of all channels, once their servers have answered."""
        for source in self._options.connection.sources:
            self._hold(source.key, entries[source.key])
        return self.channels.latest()

    def _since(self, key: str, heads: Heads) -> Any:
        assert self._options.since is not None
        return {"stream": heads.stream, "seq": self.channels.since(key, self._options.since, heads)}

    def _starting(self, key: str) -> Any:
        at = self._options.starting
        return at if isinstance(at, str) else at.get(key, "beginning")

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name
        """Have the query read the present messages.

        As of the first call that determines the holder of the consumer's name.
        """
        self._available_now = True

    def getDefaultReadLimit(self) -> Any:  # noqa: N802 - Spark's name
        """The limit of the options. Spark knows one at a time; the other one is looked at here."""
        if self._options.max_rows is not None:
            return limits.ReadMaxRows(self._options.max_rows)
        if self._options.max_bytes is not None:
            return limits.ReadMaxBytes(self._options.max_bytes)
        return limits.ReadAllAvailable()

    def latestOffset(self, start: dict[str, Any] | None = None, limit: Any = None) -> dict[str, Any]:  # noqa: N802
        """The offset at which the next batch ends; ``start`` itself if nothing is new. Called every 11 ms or so."""
        heads = self.channels.latest()
        if start is None:
            return self._latest_without_start(heads)
        entries = self._with_all_channels(decode(start))
        begins = self._first
        if begins:
            heads = self._begin(entries)
        self._hold_and_acknowledge(entries, heads)
        found = self._found(entries, heads)
        if not found:
            ended = begins and not self._available_now and all(entry.ended for entry in entries.values())
            return _told_again(entries) if ended else start
        try:
            ends = advance(entries, found, self._limits(limit), self._locate)
            self._backlog.planned(ends, found, lambda key, first: self.channels.locate(key, first, Limits()))
        except (PositionLost, StreamReplaced):
            return start  # the heads were old: the next ones show the state of the stream
        return encode(ends)

    def _begin(self, entries: Mapping[str, Entry]) -> dict[str, Heads]:
        """The first look at the channels, which is waited for: the next turn may be an hour away, or never come."""
        self._first = False
        if self._available_now:
            self._target = self._now(entries)
            return self._target
        for source in self._options.connection.sources:
            self._hold_soon(source.key, entries[source.key])
        self.channels.settle(FIRST_LOOK_S)
        return self.channels.latest()

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802 - Spark's name
        """How far the channels go, and how many rows and bytes of them no batch has yet."""
        return self._backlog.report(self.channels.latest()) or None

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[RangePartition]:
        """One partition for every channel with something to read, or more."""
        self._last = self._present(decode(end))
        end = {key: end[key] for key in self._last}
        found = ranges(start, end, self._options.connection.sources, self._options.min_partitions)
        return [RangePartition(each) for each in found]

    def commit(self, end: dict[str, Any]) -> None:
        """Acknowledge the end of a batch; PySpark from 4.2 on has reported it before, by ``latestOffset``."""
        done = {key: entry.unmoved() for key, entry in decode(end).items()}
        self._hold_and_acknowledge(self._with_all_channels(done), self.channels.latest())

    def stop(self) -> None:
        """Give the connections up. Spark often ends the process without calling this: leases end with it."""
        if self._channels is not None:
            self._channels.close()
            self._channels = None

    # -- within

    def _with_all_channels(self, entries: dict[str, Entry]) -> dict[str, Entry]:
        holder = next((entry.holder for entry in entries.values()), "")
        entries = self._present(entries)
        new = {
            source.key: Entry(None, 0, holder=holder)
            for source in self._options.connection.sources
            if source.key not in entries
        }
        return entries | new

    def _present(self, entries: dict[str, Entry]) -> dict[str, Entry]:
        """Those of the channels of this run. Raises DataLost, or warns once, for one that the query has read before."""
        sources = self._options.connection.sources
        for key in left_out(entries, sources):
            self._lose(
                key,
                f"the query's checkpoint has this channel up to message {entries[key].sequence}, but this run reads "
                f"{', '.join(source.key for source in sources)}: start the query with all the channels and endpoints "
                f"that it had",
            )
        return {source.key: entries[source.key] for source in sources if source.key in entries}

    def _hold_and_acknowledge(self, entries: Mapping[str, Entry], heads: Mapping[str, Heads]) -> None:
        for source in self._options.connection.sources:
            if source.key in heads:
                self._hold(source.key, entries[source.key])
            else:
                self._hold_soon(source.key, entries[source.key])
        self.channels.acknowledge(entries, heads)

    def _hold(self, key: str, entry: Entry) -> None:
        self.channels.hold(key, entry.holder, fresh=entry.first is None)

    def _hold_soon(self, key: str, entry: Entry) -> None:
        self.channels.hold_soon(key, entry.holder, fresh=entry.first is None)

    def _found(self, entries: Mapping[str, Entry], heads: Mapping[str, Heads]) -> dict[str, Waiting]:
        found = {}
        for key, entry in entries.items():
            now = self._up_to_target(key, entry, heads.get(key))
            if now is None:
                continue
            here = waiting(entry, now, kept=self._starting(key) == "earliest")
            self._check(key, entry, now, here)
            if here is not None:
                found[key] = here
        return found

    def _up_to_target(self, key: str, entry: Entry, heads: Heads | None) -> Heads | None:
        """The heads that the query goes up to: with ``availableNow``, what was there when it started."""
        if self._target is None or heads is None:
            return heads
        target = self._target.get(key)
        if target is None or (entry.stream == target.stream and entry.sequence > target.head):
            return None
        if heads.stream == target.stream:
            return target._replace(oldest=heads.oldest)
        read = entry.stream == target.stream and entry.sequence == target.head
        return None if read else heads

    def _check(self, key: str, entry: Entry, heads: Heads, here: Waiting | None) -> None:
        """Raise DataLost, or warn once, where messages are missing or the producer has failed."""
        what = failed(entry, heads) or (here and here.lost)
        if what:
            self._lose(key, what)

    def _lose(self, key: str, what: str) -> None:
        if self._options.fail_on_data_loss:
            raise lost(key, what)
        if (key, what) not in self._warned:
            self._warned.add((key, what))
            log.warning("channel %r: %s; the query continues with the available messages", key, what)

    def _limits(self, limit: Any) -> Limits:
        if isinstance(limit, limits.ReadAllAvailable):
            return Limits()
        return Limits(self._options.max_rows, self._options.max_bytes)

    def _locate(self, key: str, first: Position, limits: Limits) -> Located:
        return self._backlog.located(key, self.channels.locate(key, first, limits))

    def _latest_without_start(self, heads: Mapping[str, Heads]) -> dict[str, Any]:
        """The latest offset for PySpark 4.1, which neither passes the beginning of the batch nor limits it."""
        if not self._last:
            self._last = dict(self._initial or {})
        ends = {key: Entry(each.stream, each.head) for key, each in heads.items()}
        if not self._last:
            return encode(ends)  # a query that came back: `partitions` gets its start
        entries = self._with_all_channels(self._last)
        found = self._found(entries, heads)
        self._last = advance(entries, found, Limits(), self._locate) if found else entries
        return encode(self._last)


def _told_again(entries: Mapping[str, Entry]) -> dict[str, Any]:
    """The end of a batch of nothing, for a run that begins where all channels have ended: so that Spark shows it."""
    return encode({key: replace(entry.unmoved(), ended=entry.ended + 1) for key, entry in entries.items()})
