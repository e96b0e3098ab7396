"""A batch read of channels that are kept: what is there when the job is planned, or up to where it was told."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceReader, InputPartition

from .admission import check_failed
from .errors import DataLost, OptionError
from .offsets import Entry, Range, cut, initial
from .reading import RangeReader, lost
from .task import log
from .watching import Channels

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import pyarrow as pa

    from netchannel import Heads

    from .options import ReadOptions, Source


class RangePartition(InputPartition):
    """A range that a task reads."""

    def __init__(self, wanted: Range) -> None:
        super().__init__(wanted)


class BatchReader(DataSourceReader):
    """Reads channels into a DataFrame. It acknowledges nothing: the same read again gives the same rows."""

    def __init__(self, options: ReadOptions, schema: pa.Schema) -> None:
        self._options = options
        self._read = RangeReader(options.connection, schema, options.metadata, options.fail_on_data_loss)

    def partitions(self) -> Sequence[RangePartition]:
        """One partition for every channel with something to read, or more."""
        channels = Channels(self._options)
        try:
            heads = channels.heads()
        finally:
            channels.close()
        sources = self._options.connection.sources
        wanted = [self._range(source, heads[source.key]) for source in sources if source.key in heads]
        found = [each for each in wanted if each.first < each.until]
        return [RangePartition(each) for each in cut(found, self._options.min_partitions or 0)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of a range; none where there is nothing to read, for which Spark still asks once."""
        return iter(()) if partition.value is None else self._read(partition.value)

    def _range(self, source: Source, heads: Heads) -> Range:
        start = initial(_at(self._options.starting, source.key, "earliest"), heads, "")
        end = initial(_at(self._options.ending, source.key, "latest"), heads, "")
        _check_order(source.key, start, end, heads)
        missing = _missing(start, end, heads)
        if missing is not None:
            self._complain(lost(source.key, missing))
        if end.sequence == heads.head:
            try:
                check_failed(source.key, end, heads)
            except DataLost as error:
                self._complain(error)
        first = min(max(start.sequence, heads.oldest), heads.head)
        return Range(source, heads.stream, first, min(end.sequence, heads.head))

    def _complain(self, error: DataLost) -> None:
        if self._options.fail_on_data_loss:
            raise error
        log.warning("%s", error)


def _at(offsets: Any, key: str, otherwise: str) -> Any:
    return offsets if isinstance(offsets, str) else offsets.get(key, otherwise)


def _check_order(key: str, start: Entry, end: Entry, heads: Heads) -> None:
    """Raise OptionError for numbers that the stream has not got to, and for an end before the beginning."""
    for name, entry in (("startingOffsets", start), ("endingOffsets", end)):
        if entry.stream == heads.stream and entry.sequence > heads.head:
            raise OptionError(
                f"the option {name} says {entry.sequence} for channel {key!r}, which has messages {heads.oldest} to "
                f"{heads.head} (excluded) so far: give a number up to {heads.head}, or latest"
            )
    if end.sequence < start.sequence:
        raise OptionError(
            f"the option endingOffsets says {end.sequence} for channel {key!r}, and startingOffsets {start.sequence}: "
            f"the end is before the beginning"
        )


def _missing(start: Entry, end: Entry, heads: Heads) -> str | None:
    """What the server does not have of what was asked for."""
    for name, entry in (("startingOffsets", start), ("endingOffsets", end)):
        if entry.stream != heads.stream:
            return f"{name} says stream {entry.stream}, and the server has stream {heads.stream}"
        if not heads.oldest <= entry.sequence <= heads.head:
            return f"{name} says {entry.sequence}, and the server has {heads.oldest} to {heads.head}"
    return None
