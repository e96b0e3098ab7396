"""The readers that Spark calls: a collection at a time as a batch, and as a stream whose offsets are times."""

from __future__ import annotations

import time
import uuid
from functools import partial
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition

from nebuli.spark.collections.collection_links import opened
from nebuli.spark.collections.errors import TimesReplaced
from nebuli.spark.collections.time_ranges import Changes, Contents, TimeReader, contents_at
from nebuli.store.errors import NotYet
from spark_bridge.reading.offsets import foreign
from spark_bridge.versions import SupportsTriggerAvailableNow, limits

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import pyarrow as pa

    from nebuli.spark.collections.collection_options import ReadOptions

_LOOK_S = 0.05
"""Spark asks what is new every 11 ms or so; the store is asked as often as this."""
_LEASE_S = 3600.0
"""How long a batch can be read at its time: it is not reported when Spark has read it."""
_NOTHING = -1
"""The offset before any read: the contents at the next one come first."""


class _Part(InputPartition):
    """The part that a task reads."""

    def __init__(self, part: Contents | Changes) -> None:
        super().__init__(part)


class _Reads:
    """The interface of both readers for tasks."""

    _read: TimeReader

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of a part; none where there is nothing to read, for which Spark still asks once."""
        return iter(()) if partition.value is None else self._read(partition.value)


class CollectionBatchReader(_Reads, DataSourceReader):
    """Reads a collection at one time, the same for all tasks."""

    def __init__(self, options: ReadOptions, schema: pa.Schema, *, whole: bool = False) -> None:
        self._options = options
        self._read = TimeReader(options, schema, whole)

    def partitions(self) -> Sequence[_Part]:
        """A partition for each shard; the time is held for them."""
        place = self._options.place
        with opened(place) as collections:
            at = self._options.as_of
            if at is None:
                at = collections.latest(place.collection)
            hold = f"spark-{uuid.uuid4().hex[:12]}"
            collections.hold(place.collection, hold, at, lease_s=_LEASE_S)
        return [_Part(each) for each in contents_at(self._options, at)]


class CollectionStreamReader(_Reads, DataSourceStreamReader, SupportsTriggerAvailableNow):  # type: ignore[misc]  # not in PySpark 4.1
    """Follows a collection. One process of the driver plans, for the life of a query, and tasks read."""

    def __init__(self, options: ReadOptions, schema: pa.Schema, *, whole: bool = False) -> None:
        self._options = options
        self._read = TimeReader(options, schema, whole)
        self._available_now = False
        self._target: int | None = None
        self._there = 0
        self._made = 0
        self._looked: float | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        # It travels to the tasks.
        return partial(type(self), whole=self._read.whole), (self._options, self._read.schema)

    def initialOffset(self) -> dict[str, int]:  # noqa: N802 - Spark's name
        """Where a query without a checkpoint begins; for its reader the collection is held from there on."""
        starting, there = self._options.starting, self._look()
        at = there if isinstance(starting, str) else starting
        self._hold(at, only_new=True)
        return self._offset(_NOTHING if starting == "earliest" else at)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name
        """Have the query read up to the time that it is now."""
        self._available_now = True

    def getDefaultReadLimit(self) -> Any:  # noqa: N802 - Spark's name
        """No limit: the number of rows of a time is not known."""
        return limits.ReadAllAvailable()

    def latestOffset(self, start: dict[str, int] | None = None, limit: Any = None) -> dict[str, int]:  # noqa: N802
        """The time up to which the next batch goes. Called every 11 ms or so. Raises TimesReplaced."""
        there = self._look()
        if self._available_now:
            if self._target is None:
                self._target = there
            there = self._target
        if start is not None:  # PySpark 4.1 does not report where the batch begins
            self._check(start, there)
        return self._offset(there)

    def reportLatestOffset(self) -> dict[str, int]:  # noqa: N802 - Spark's name
        """How far the collection goes."""
        return self._offset(self._there)

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> Sequence[_Part]:
        """The parts of a batch. Raises TimesReplaced."""
        first, last = _time(start), _time(end)
        self._look()
        self._check(start, last)
        self._check(end, last)
        if first == _NOTHING:
            return [] if last == first else [_Part(each) for each in contents_at(self._options, last)]
        return [_Part(each) for each in Changes(first, last).cut(self._options.min_partitions)]

    def commit(self, end: dict[str, int]) -> None:
        """Let go of what is before that, for the reader."""
        self._hold(_time(end))

    def stop(self) -> None:
        """Do nothing: stores are kept for the next query."""

    def _offset(self, at: int) -> dict[str, int]:
        """All up to a time, of the collection that there is: another one of its name was made at another time."""
        return {"time": at, "made": self._made}

    def _check(self, offset: dict[str, int], there: int) -> None:
        """See that the collection is the one that was read, and has come as far. Raises TimesReplaced."""
        if there < _time(offset) or offset["made"] != self._made:
            raise TimesReplaced(
                f"the checkpoint is for {self._options.place} with the creation time {offset['made']}, read "
                f"up to {offset['time']}; now the creation time of this collection is {self._made}, and its "
                f"rows are complete up to {there}: the collection was replaced by another one, or restored "
                f"from a copy; start with a new checkpoint"
            )

    def _look(self) -> int:
        """The time up to which all is there, as of a moment ago."""
        if self._looked is None or time.monotonic() - self._looked >= _LOOK_S:
            place = self._options.place
            with opened(place) as collections:
                self._made = collections.describe(place.collection).created
                try:
                    self._there = collections.latest(place.collection)
                except NotYet:  # it has not been written
                    self._there = _NOTHING
            self._looked = time.monotonic()
        return self._there

    def _hold(self, at: int, *, only_new: bool = False) -> None:
        """Have the collection readable from a time on; ``only_new``: one that is there stays where it is."""
        place, reader = self._options.place, self._options.reader
        if reader is None or at == _NOTHING:
            return
        hold = f"spark/{reader}"
        with opened(place) as collections:
            if not (only_new and hold in collections.describe(place.collection).holds):
                collections.hold(place.collection, hold, at)


def _time(offset: dict[str, int]) -> int:
    """The time of an offset. Raises CheckpointReplaced."""
    if not (isinstance(offset, dict) and {"time", "made"} <= set(offset)):
        raise foreign(offset, "a collection")
    return offset["time"]
