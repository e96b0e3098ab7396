"""The inner equi-join: a change of one input meets all that the others have had so far."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from nebuli.dataflow import hashing
from nebuli.dataflow.hashing import coded_rows, plain_rows
from nebuli.dataflow.rows import MAX_BATCH_ROWS, times, with_one_zero
from nebuli.dataflow.state import KeyedState, Match, Run, owned, takes_back, without_zeros
from nebuli.dataflow.types import arrow_schema
from nebuli.dataflow.zset import WEIGHT, weighted, weights_of
from placement.checking.schemas import joined_names

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from nebuli.dataflow.window import Windows
    from topology.schema import Schema

SHARED = 1.25
"""Rows that are kept may hold so many times their own memory: they may be a part of what came from another member."""


class Join:
    """Joins two or more inputs on columns of the same names; a null key matches nothing.

    Every input is kept, so that order of arrival does not matter, as long as another one can still change; with
    ``windows`` among the keys, until they are over.
    """

    def __init__(
        self, on: Sequence[str], inputs: Sequence[Schema], output: Schema, windows: Windows | None = None
    ) -> None:
        self._windows = windows
        self._on = tuple(on)
        self._schema = weighted(arrow_schema(output))
        self._names = [
            [*(names.get(column.name, column.name) for column in schema), WEIGHT]
            for schema, names in zip(inputs, joined_names(on, inputs, output), strict=True)
        ]
        self._states = [KeyedState(on, without_zeros, takes_back) for _ in inputs]
        self._open = set(range(len(inputs)))
        self.leaves_coded: frozenset[str] = frozenset()
        """The columns that may go out with codes, because their readers accept them."""

    def push(self, port: int, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """Yield the rows that the change adds or retracts, in batches of bounded size."""
        rows = self.matchable(port, batch)
        if self._windows is not None:
            rows = self._windows.in_time(rows)
        delta = self._hashed(coded_rows(rows, self._on))
        yield from self._matches(port, delta)
        if self._is_needed(port):
            self._states[port].insert(Run(owned(plain_rows(delta.rows), SHARED), delta.hashes))

    def matchable(self, port: int, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The rows of an input that have a key, as they are kept: with the names of the output."""
        return _with_keys(batch.rename_columns(self._names[port]), self._on)

    def matched(self, port: int, rows: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """Return the result of joining such rows with those of the other inputs; they are not kept."""
        yield from self._matches(port, self._hashed(coded_rows(rows, self._on)))

    def changed(self, port: int, rows: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """Return the change of the result by such rows of an input; they are not kept."""
        return self.matched(port, rows)

    def made_of(self, rows_of: Callable[[int], pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """All that is made of rows that are kept, of each input all with the same keys, as ``rows_of`` gives them."""
        return self.matched(0, rows_of(0))

    def count(self, port: int, rows: pa.RecordBatch) -> None:
        """Rows of an input are kept by others from now on, in its state: nothing else is known of them."""

    def discount(self, port: int, keys: pa.RecordBatch) -> None:
        """All rows of an input with these keys are not kept any more."""

    def looked_up(self, port: int) -> KeyedState:
        """Where rows of an input are looked up first."""
        return self._states[1 if port == 0 else 0]

    def ended(self, port: int) -> None:
        """Forget the input that only changes of this one would have met; this one is complete."""
        self._open.discard(port)
        for index, state in enumerate(self._states):
            if not self._is_needed(index):
                state.clear()
        self._states[port].settle()

    def _is_needed(self, port: int) -> bool:
        """True if an input other than ``port`` can still change."""
        return bool(self._open - {port})

    def advance(self, watermark: int) -> Iterator[pa.RecordBatch]:
        """Forget windows that are over."""
        upto = None if self._windows is None else self._windows.advance(watermark)
        if self._windows is not None and upto is not None:
            for state in self._states:
                state.expire(self._windows.column, upto)
        return iter(())

    def finish(self) -> Iterator[pa.RecordBatch]:
        """Nothing is owed."""
        return iter(())

    @property
    def late_rows(self) -> int:
        """The rows that came for a window that was over."""
        return 0 if self._windows is None else self._windows.late_rows

    @property
    def inputs(self) -> Sequence[KeyedState]:
        """The rows of each input."""
        return self._states

    @property
    def counts(self) -> Mapping[int, KeyedState]:
        """Counts kept for the rows of an input: none."""
        return {}

    @property
    def states(self) -> Sequence[KeyedState]:
        """The inputs."""
        return self._states

    def kept_as(self, key: str) -> str:
        """The same: rows are kept as they come."""
        return key

    @property
    def memory(self) -> dict[str, int | None]:
        """The state of windows."""
        return {} if self._windows is None else self._windows.memory

    def recall(self, memory: Mapping[str, int | None]) -> None:
        """Have it be known."""
        if self._windows is not None:
            self._windows.recall(memory)

    @property
    def state_bytes(self) -> int:
        """The memory that the states take."""
        return sum(state.nbytes for state in self.states)

    def _hashed(self, rows: pa.RecordBatch) -> Run:
        """The rows in their order."""
        hashes = hashing.hash_rows([rows.column(key) for key in self._on], rows.num_rows)
        return Run(rows, hashes if self._windows is None else self._windows.hashes(rows, hashes))

    def _matches(self, port: int, delta: Run) -> Iterator[pa.RecordBatch]:
        others = [state for index, state in enumerate(self._states) if index != port]
        yield from self._portions(self._joined(delta, others))

    def _joined(self, rows: Run, others: Sequence[KeyedState]) -> Iterator[pa.RecordBatch]:
        if not others:
            yield rows.rows
            return
        for match in others[0].lookup_coded(rows):
            if len(match.probe):
                yield from self._joined(self._paired(rows, match), others[1:])

    def _paired(self, rows: Run, match: Match) -> Run:
        names = [name for name in match.found.schema.names if name not in self._on and name != WEIGHT]
        mine = rows.rows
        if len(match.probe) < mine.num_rows or not np.array_equal(match.probe, np.arange(mine.num_rows)):
            mine = mine.take(pa.array(match.probe))
        theirs = match.found.select([*names, WEIGHT])
        weights = times(weights_of(mine), weights_of(theirs))
        columns = [*mine.columns[:-1], *theirs.select(names).columns, pa.array(weights)]
        return Run(
            pa.record_batch(columns, [*mine.schema.names[:-1], *names, WEIGHT]), rows.hashes[match.probe]
        )

    def _portions(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The same rows with the columns in order, small batches merged up to the bound."""
        waiting: list[pa.RecordBatch] = []
        rows = 0
        for batch in batches:
            if rows + batch.num_rows > MAX_BATCH_ROWS and waiting:
                yield self._together(waiting)
                waiting, rows = [], 0
            waiting.append(batch)
            rows += batch.num_rows
        if waiting:
            yield self._together(waiting)

    def _together(self, batches: Sequence[pa.RecordBatch]) -> pa.RecordBatch:
        if len(batches) == 1:
            return plain_rows(batches[0].select(self._schema.names), but=self.leaves_coded)
        return pa.concat_batches([plain_rows(each.select(self._schema.names)) for each in batches])


def _with_keys(batch: pa.RecordBatch, on: Sequence[str]) -> pa.RecordBatch:
    """The rows that can match: those without a null in their key."""
    for index in [batch.schema.get_field_index(key) for key in on]:
        if batch.column(index).null_count:
            batch = batch.filter(pc.is_valid(batch.column(index)))
    return spelled_alike(batch, on)


def spelled_alike(batch: pa.RecordBatch, on: Sequence[str]) -> pa.RecordBatch:
    """The rows, with equal keys spelled alike: of zeros there is one."""
    for index in [batch.schema.get_field_index(key) for key in on]:
        if pa.types.is_floating(batch.schema.field(index).type):
            batch = batch.set_column(index, batch.schema.field(index), with_one_zero(batch.column(index)))
    return batch
