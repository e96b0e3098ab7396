"""Reading steps of an output: which there are, and their rows, in driver and tasks."""

from __future__ import annotations

import time
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from nebuli.circuits import StepForgotten
from nebuli.spark.row_schemas import WEIGHT
from nebuli.spark.streams.circuit_links import STEP, linked, pause
from nebuli.spark.streams.errors import CircuitAway, RowTakenBack
from spark_bridge.batch_sizes import joined
from spark_bridge.schemas import Normaliser
from spark_bridge.tasks.task import settle

if TYPE_CHECKING:
    from collections.abc import Iterator

    from nebuli.spark.streams.circuit_options import ReadOptions

_ROWS = 1 << 13
"""Rows of a batch that is handed to Spark, if there are as many."""


@dataclass(frozen=True, slots=True)
class Steps:
    """Steps from ``first`` up to but not including ``until``."""

    first: int
    until: int

    def cut(self, pieces: int) -> list[Steps]:
        """The same in so many parts, if there are as many steps."""
        size = self.until - self.first
        count = min(size, pieces)
        bounds = [self.first + size * number // count for number in range(count + 1)] if count > 0 else []
        return [Steps(a, b) for a, b in pairwise(bounds)]


def complete_steps(options: ReadOptions) -> int:
    """The step below which all are made, and do not change any more: never fewer than before, of one circuit.

    Waits for a circuit that is away, or has begun again and does not know of all that it had made. Raises CircuitAway.
    """
    until = time.monotonic() + options.place.timeout_s
    while True:
        with linked(options.place, f"output {options.output}") as circuit:
            status = circuit.status()
        if status.caught_up:
            return status.complete
        if time.monotonic() > until:
            paused = ", and is paused: start it" if status.paused else ": check that all of its members run"
            raise CircuitAway(
                f"circuit {options.place.address}, output {options.output}: the circuit was restarted, and "
                f"has not caught up with its earlier steps within {options.place.timeout_s:g} s (the option "
                f"timeout){paused}"
            )
        pause()


def first_kept(options: ReadOptions) -> int:
    """The first step of the output that is kept."""
    if not complete_steps(options):
        return 0
    with linked(options.place, f"output {options.output}") as circuit:
        steps = circuit.output(options.output, 0)
        try:
            next(steps, None)
        except StepForgotten as error:
            return error.bound
        finally:
            steps.close()
    return 0


@dataclass(frozen=True, slots=True)
class StepReader:
    """Reads steps into batches of ``schema``; travels to the tasks. ``whole``: see `RangeReader`."""

    options: ReadOptions
    schema: pa.Schema
    whole: bool = False

    def __call__(self, steps: Steps) -> Iterator[pa.RecordBatch]:
        """The rows of steps, in order; the same whenever they are read.

        Raises StepsForgotten, RowTakenBack, SchemaConflict, CircuitAway.
        """
        as_read = self._as_added if self.options.append_only else _as_changes
        normalise = Normaliser(self.schema, whole=self.whole)
        yield from joined((normalise(as_read(step, zset)) for step, zset in self._steps(steps)), _ROWS)
        settle()

    def _steps(self, steps: Steps) -> Iterator[tuple[int, pa.RecordBatch]]:
        """Each step that changes something. An output that ends before has been shut down: it is waited for."""
        options, at = self.options, steps.first
        until = time.monotonic() + options.place.timeout_s
        while at < steps.until:
            with linked(
                options.place, f"output {options.output}, steps {at} to {steps.until - 1}"
            ) as circuit:
                reading = circuit.output(options.output, at)
                try:
                    for step, zset in reading:
                        if zset.num_rows:
                            yield step, zset
                        at, until = step + 1, time.monotonic() + options.place.timeout_s
                        if at == steps.until:
                            return
                finally:
                    reading.close()
            if time.monotonic() > until:
                raise CircuitAway(
                    f"circuit {options.place.address}, output {options.output}: the circuit was shut down "
                    "before step "
                    f"{at}, and was not started again within {options.place.timeout_s:g} s (the option timeout)"
                )
            pause()

    def _as_added(self, step: int, zset: pa.RecordBatch) -> pa.RecordBatch:
        """The rows, each as often as it is there more."""
        # With the engine, which takes each of Spark's processes longer to import than all the rest.
        from nebuli.dataflow.zset import consolidate, weights_of, without_weight

        net = consolidate(zset)
        weights = weights_of(net)
        if (weights < 0).any():
            row = without_weight(net).slice(int(np.argmax(weights < 0)), 1).to_pylist()[0]
            raise RowTakenBack(
                f"circuit {self.options.place.address}, output {self.options.output}: step {step} retracts "
                f"{row}, but appendOnly=true accepts only added rows: read with appendOnly=false, to get {WEIGHT} "
                f"and {STEP}"
            )
        return without_weight(net).take(pa.array(np.repeat(np.arange(net.num_rows), weights)))


def _as_changes(step: int, zset: pa.RecordBatch) -> pa.RecordBatch:
    return zset.append_column(STEP, pa.array(np.full(zset.num_rows, step, dtype=np.int64)))
