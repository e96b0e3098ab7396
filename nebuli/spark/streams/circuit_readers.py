"""The readers that Spark calls: steps of an output as a batch, and as a stream whose offsets are steps."""

from __future__ import annotations

import time
from functools import partial
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition

from nebuli.spark.streams.errors import StepsReplaced
from nebuli.spark.streams.step_ranges import StepReader, Steps, complete_steps, first_kept
from spark_bridge.errors import OptionError
from spark_bridge.reading.offsets import foreign
from spark_bridge.versions import SupportsTriggerAvailableNow, limits

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import pyarrow as pa

    from nebuli.spark.streams.circuit_options import ReadOptions

_LOOK_S = 0.05
"""Spark asks what is new every 11 ms or so; the circuit is asked as often as this."""


class StepsPartition(InputPartition):
    """Steps that a task reads."""

    def __init__(self, steps: Steps) -> None:
        super().__init__(steps)


class _ReadsSteps:
    """The interface of both readers for tasks."""

    _read: StepReader

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of steps; none where there is nothing to read, for which Spark still asks once."""
        return iter(()) if partition.value is None else self._read(partition.value)


class CircuitBatchReader(_ReadsSteps, DataSourceReader):
    """Reads the steps of an output that there are."""

    def __init__(self, options: ReadOptions, schema: pa.Schema, *, whole: bool = False) -> None:
        self._options = options
        self._read = StepReader(options, schema, whole)

    def partitions(self) -> Sequence[StepsPartition]:
        """One partition, or more where that is wanted."""
        options = self._options
        there = complete_steps(options)
        end = there if options.ending == "latest" else int(options.ending)
        start = _first(options, there)
        if not start <= end <= there:
            raise OptionError(
                f"circuit {options.place.address}, output {options.output}: steps from {start} up "
                f"to {end} are requested, but only steps below {there} are computed: startingStep must not be "
                f"greater than endingStep, and neither may be greater than {there}"
            )
        return [StepsPartition(each) for each in Steps(start, end).cut(options.min_partitions)]


class CircuitStreamReader(_ReadsSteps, DataSourceStreamReader, SupportsTriggerAvailableNow):  # type: ignore[misc]  # not in PySpark 4.1
    """Reads an output, step by step. One process of the driver plans, for the life of a query, and tasks read."""

    def __init__(self, options: ReadOptions, schema: pa.Schema, *, whole: bool = False) -> None:
        self._options = options
        self._read = StepReader(options, schema, whole)
        self._available_now = False
        self._target: int | None = None
        self._there = 0
        self._looked: float | None = None
        self._behind_since: float | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        # It travels to the tasks.
        return partial(type(self), whole=self._read.whole), (self._options, self._read.schema)

    def initialOffset(self) -> dict[str, int]:  # noqa: N802 - Spark's name
        """The step at which a query without a checkpoint begins."""
        return {"step": _first(self._options, complete_steps(self._options))}

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name
        """Have the query read the steps that there are now."""
        self._available_now = True

    def getDefaultReadLimit(self) -> Any:  # noqa: N802 - Spark's name
        """The limit of the options; it counts steps, of which Spark has no limit."""
        most = self._options.max_steps
        return limits.ReadAllAvailable() if most is None else limits.ReadMaxRows(most)

    def latestOffset(self, start: dict[str, int] | None = None, limit: Any = None) -> dict[str, int]:  # noqa: N802
        """The step at which the next batch ends. Called every 11 ms or so."""
        there = self._look()
        if self._available_now:
            if self._target is None:
                self._target = there
            there = self._target
        if start is None:  # PySpark 4.1 does not report where the batch begins
            return {"step": there}
        first = _step(start)
        self._check(first)
        if limits is not None and not isinstance(limit, limits.ReadAllAvailable) and self._options.max_steps:
            there = min(there, first + self._options.max_steps)
        return {"step": max(first, there)}

    def reportLatestOffset(self) -> dict[str, int]:  # noqa: N802 - Spark's name
        """How far the output goes."""
        return {"step": self._there}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> Sequence[StepsPartition]:
        """The steps of a batch, in one partition or more. Raises StepsReplaced."""
        options, steps = self._options, Steps(_step(start), _step(end))
        if (
            steps.until < steps.first
        ):  # PySpark 4.1 does not report where a batch begins before it has its end
            raise StepsReplaced(
                _replaced(
                    options, steps.first, f"the circuit has computed only the steps below {steps.until}"
                )
            )
        return [StepsPartition(each) for each in steps.cut(options.min_partitions)]

    def commit(self, end: dict[str, int]) -> None:
        """Do nothing: the outputs that a circuit keeps do not depend on their readers."""

    def stop(self) -> None:
        """Do nothing: connections are kept for the next query."""

    def _look(self) -> int:
        """The step below which all are made, as of a moment ago."""
        if self._looked is None or time.monotonic() - self._looked >= _LOOK_S:
            self._there = complete_steps(self._options)
            self._looked = time.monotonic()
        return self._there

    def _check(self, first: int) -> None:
        """See that the circuit is the one that was read: that one never has fewer steps, once it has caught up.

        One of an older version does not report whether it has, so it gets some time. Raises StepsReplaced.
        """
        options, now = self._options, time.monotonic()
        if self._there >= first:
            self._behind_since = None
            return
        self._behind_since = self._behind_since or now
        if now - self._behind_since > options.place.timeout_s:
            there = (
                f"within {options.place.timeout_s:g} s the circuit has computed only the steps below "
                f"{self._there}"
            )
            raise StepsReplaced(_replaced(options, first, there))


def _step(offset: dict[str, Any]) -> int:
    """Return the step in an offset. Raises CheckpointReplaced."""
    try:
        return int(offset["step"])
    except (KeyError, TypeError, ValueError) as error:
        raise foreign(offset, "a circuit") from error


def _replaced(options: ReadOptions, first: int, there: str) -> str:
    return (
        f"circuit {options.place.address}, output {options.output}: the query has read all steps "
        f"below {first}, but {there}: the circuit was started from scratch, or replaced by "
        f"another circuit; start with a new checkpoint"
    )


def _first(options: ReadOptions, there: int) -> int:
    match options.starting:
        case "earliest":
            return first_kept(options)
        case "latest":
            return there
    return int(options.starting)
