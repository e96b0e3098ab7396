"""A batch read of retained channels: the messages present when the job is planned, or up to a given end."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceReader, InputPartition

from spark_bridge.errors import OptionError
from spark_bridge.tasks.task import log

from .admission import failed, freed
from .channel_watch import Channels
from .filters import window
from .offsets import Range, cut, initial
from .range_reader import RangeReader, lost

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    import pyarrow as pa
    from pyspark.sql.datasource import Filter

    from netchannel import Heads
    from spark_bridge.options import ReadOptions, Source

    from .filters import Window
    from .offsets import Entry


class RangePartition(InputPartition):
    """A range that a task reads."""

    def __init__(self, wanted: Range) -> None:
        super().__init__(wanted)


class ReadsRanges:
    """The interface of both readers for tasks."""

    _read: RangeReader

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of a range; none where there is nothing to read, for which Spark still asks once."""
        return iter(()) if partition.value is None else self._read(partition.value)


class BatchReader(ReadsRanges, DataSourceReader):
    """Reads channels into a DataFrame. It acknowledges nothing: the same read again gives the same rows."""

    def __init__(self, options: ReadOptions, schema: pa.Schema, *, whole: bool = False) -> None:
        self._options = options
        self._window: Window | None = None
        self._read = RangeReader.of(options, schema, whole=whole)

    def partitions(self) -> Sequence[RangePartition]:
        """One partition for every channel with something to read, or more."""
        channels = Channels(self._options)
        try:
            heads = channels.heads()
            sources = [each for each in self._options.connection.sources if each.key in heads]
            wanted = [self._range(channels, source, heads[source.key]) for source in sources]
        finally:
            channels.close()
        found = [each for each in wanted if each.first < each.until]
        return [RangePartition(each) for each in cut(found, self._options.min_partitions or 0)]

    def _range(self, channels: Channels, source: Source, heads: Heads) -> Range:
        key, starting = source.key, _at(self._options.starting, source.key, "beginning")
        if self._options.since is not None:
            starting = {"stream": heads.stream, "seq": channels.since(key, self._options.since, heads)}
        start = initial(key, starting, heads)
        end = initial(key, _at(self._options.ending, key, "latest"), heads, option="endingOffsets")
        if start.stream == end.stream and end.sequence < start.sequence:
            raise OptionError(
                f"the option endingOffsets has {end.sequence} for channel {key!r}, but startingOffsets has "
                f"{start.sequence}: the end is before the beginning"
            )
        name = "startingOffsets"
        low, high = (0, heads.head) if self._window is None else _numbers(self._window, channels, key, heads)
        if start.stream == heads.stream and start.sequence < low:
            start, name = replace(start, sequence=min(low, heads.head)), "a filter"
        first = self._bound(key, name, start, heads, heads.oldest)
        until = self._bound(key, "endingOffsets", end, heads, heads.head)
        if until == heads.head and (what := failed(end, heads)):
            self._complain(key, what, until)
        return Range(source, heads.stream, first, min(until, high))

    def _bound(self, key: str, name: str, entry: Entry, heads: Heads, otherwise: int) -> int:
        """The number that ``entry`` stands for in the stream that is there; ``otherwise`` if it is of another one."""
        if entry.stream != heads.stream:
            if not entry.ended:
                what = f"{name} names stream {entry.stream}, but the server has stream {heads.stream}"
                self._complain(key, what, otherwise)
            return otherwise
        if entry.sequence < heads.oldest:
            missing = freed(heads) if entry.sequence == 0 else None
            what = (
                missing
                or f"{name} has message {entry.sequence}, but the server has messages {heads.oldest} to "
                f"{heads.head} (excluded)"
            )
            self._complain(key, what, heads.oldest)
        return max(entry.sequence, heads.oldest)

    def _complain(self, key: str, what: str, number: int) -> None:
        if self._options.fail_on_data_loss:
            raise lost(key, what)
        log.warning("channel %r: %s; the read continues with message %d", key, what, number)


class FilteringBatchReader(BatchReader):
    """Reads what filters on the metadata columns leave; Spark drops what of that does not pass."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802 - Spark's name
        """Take the filters into account, and leave them all to Spark as well."""
        self._window = window(filters)
        return filters


def _numbers(window: Window, channels: Channels, key: str, heads: Heads) -> tuple[int, int]:
    """The numbers that a window leaves of a channel: from the first on, below the second."""
    low, high = window.first, heads.head if window.until is None else window.until
    if window.since is not None:
        low = max(low, channels.since(key, window.since, heads))
    if window.before is not None:
        high = min(high, channels.before(key, window.before, heads))
    return low, high


def _at(offsets: Any, key: str, otherwise: str) -> Any:
    return offsets if isinstance(offsets, str) else offsets.get(key, otherwise)
