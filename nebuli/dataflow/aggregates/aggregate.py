"""Grouping with count, sum, avg, min and max, kept up to date under changes."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from nebuli.dataflow import hashing
from nebuli.dataflow.aggregates.accumulators import (
    VALUE_BITS,
    Accumulator,
    Change,
    CountDistinct,
    CountRows,
    CountValues,
    IntegerAverage,
    IntegerSum,
    RealAverage,
    RealSum,
)
from nebuli.dataflow.aggregates.extremes import Extreme, GrowingExtreme
from nebuli.dataflow.evaluation import Evaluator, compile_expression
from nebuli.dataflow.hashing import coded, plain
from nebuli.dataflow.progress import GREATEST
from nebuli.dataflow.rows import (
    coded_groups,
    equal_values,
    group_rows,
    neighbours,
    with_one_zero,
)
from nebuli.dataflow.state import KeyedState, Run
from nebuli.dataflow.types import arrow_schema, arrow_type
from nebuli.dataflow.zset import portions, weighted, weights_of
from placement.sql.expressions import AggregateCall, parse_aggregate
from placement.sql.typed_tree import columns_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from nebuli.dataflow.rows import Groups
    from nebuli.dataflow.window import Windows
    from topology.schema import Schema

    States = list[list[Any]]
    """Per aggregate the columns of its state, with a row per group."""

_log = logging.getLogger("nebuli.dataflow")


class Aggregate:
    """Groups rows and gives, for every group that a batch changes, its old row retracted and its new row.

    Null is a group of its own. Without ``by`` there is always one row, emitted at the end at the latest, as in SQL.

    ``only_grows``: no row of its input is retracted, so that less has to be kept.

    With ``windows`` among the columns of ``by`` a group is given once, when its window is over, and then forgotten.

    A group of which a sum is beyond int64 has no row until the sum is back: rows that follow may bring it back, and
    how they are cut into batches must not decide. Where nothing follows, ``check`` is to be called.
    """

    def __init__(
        self,
        by: Sequence[str],
        aggregates: Mapping[str, str],
        schema: Schema,
        output: Schema,
        windows: Windows | None = None,
        *,
        only_grows: bool = False,
    ) -> None:
        self._windows = windows
        calls = [parse_aggregate(sql, schema) for sql in aggregates.values()]
        self.by = tuple(by)
        arguments = [call.argument.tree for call in calls if call.argument is not None]
        self.takes_coded = frozenset(by).difference(*map(columns_of, arguments))
        """The columns that may come with codes: those that are only grouped by."""
        self._schema = weighted(arrow_schema(output))
        self._keys = [f"key{index}" for index in range(len(self.by))]
        self._parts = [_Part(CountRows(), None, "count(*)")]  # a group is there while it has rows
        self._parts += [
            _part(call, self._keys, arrow_schema(schema), only_grows=only_grows) for call in calls
        ]
        self.adds_floats = any(isinstance(part.accumulator, RealSum) for part in self._parts)
        """True if its output may depend on the order of a batch's rows, and on repetitions in it."""
        self._sums = [
            (index, part.accumulator, part.sql)
            for index, part in enumerate(self._parts)
            if isinstance(part.accumulator, IntegerSum) and not isinstance(part.accumulator, IntegerAverage)
        ]
        self._state = KeyedState(self._keys, self._compacted)
        self._given = self._may_be_beyond = False
        self._nothing = self._states_of_nothing(1)

    def push(self, port: int, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """Give the changes of the groups that the batch has rows of."""
        if self._windows is not None:
            batch = self._windows.in_time(batch)
            if not batch.num_rows:
                return
        groups, keys = self._grouped(batch)
        old = self._stored(keys)
        delta = [
            part.accumulator.change(Change(part.values(batch), weights_of(batch), groups, keys), state)
            for part, state in zip(self._parts, old, strict=True)
        ]
        self._state.insert(self._state_run(keys, delta))
        if self._windows is None:
            new = [
                part.accumulator.after(was, more)
                for part, was, more in zip(self._parts, old, delta, strict=True)
            ]
            yield from self._changes(keys, old, new)

    def compute_arguments(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """Give nothing and keep nothing, but raise what `push` raises for single rows."""
        for part in self._parts:
            part.values(batch)
        yield from ()

    def fill(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """Give the groups of the rows, of which none is there yet; without windows."""
        groups, keys = self._grouped(batch)
        nothing = self._nothing if len(keys.hashes) == 1 else self._states_of_nothing(len(keys.hashes))
        states = [
            part.accumulator.change(Change(part.values(batch), weights_of(batch), groups, keys), state)
            for part, state in zip(self._parts, nothing, strict=True)
        ]
        run = self._state_run(keys, states)
        self._state.insert(run)
        yield from self._last_rows(run)

    def advance(self, watermark: int) -> Iterator[pa.RecordBatch]:
        """Give the groups whose window is over, in the order of windows, and forget them."""
        upto = None if self._windows is None else self._windows.advance(watermark)
        if self._windows is None or upto is None:
            return
        column = self._keys[self.by.index(self._windows.column)]
        for state in self.states[1:]:
            state.expire(column, upto)
        expired = self._state.expire(column, upto)
        if expired:
            rows = pa.concat_batches([run.rows for run in expired])
            hashes = np.concatenate([run.hashes for run in expired])
            yield from self._last_rows(self._compacted(Run.sorted(rows, hashes), complete=True))

    @property
    def late_rows(self) -> int:
        """The rows that came for a window that was over."""
        return 0 if self._windows is None else self._windows.late_rows

    def ended(self, port: int) -> None:
        """Nothing to drop: its only input."""

    def finish(self) -> Iterator[pa.RecordBatch]:
        """Give the windows that are left; without ``by``: the row of no rows, if none came."""
        yield from self.advance(GREATEST)
        yield from self.begin()
        self.check()

    def check(self) -> None:
        """Raise ``DataflowError`` if there is a group without a row because of a sum that int64 cannot hold."""
        if not self._may_be_beyond:
            return
        for runs in self._state.runs:
            for run in runs:
                self._check(self._stored(run))
        self._may_be_beyond = False

    def _check(self, states: States) -> None:
        for index, sums, sql in self._sums:
            sums.check(states[index], sql)

    def begin(self) -> Iterator[pa.RecordBatch]:
        """Give the row of no rows where there is no ``by``, if no row was given."""
        if not self.by and not self._given:
            keys = self._key_run([], hashing.hash_rows([], 1), np.zeros(1, dtype=np.int64))
            yield from self._changes(keys, self._stored(keys), self._stored(keys))

    def forget(self, groups: pa.RecordBatch) -> None:
        """Have these groups, in the columns of ``by``, be such that no row of them ever came."""
        columns = [with_one_zero(groups.column(name)) for name in self.by]
        hashes = hashing.hash_rows(columns, groups.num_rows)
        keys = self._key_run(columns, hashes, np.arange(groups.num_rows))
        for state in self.states:
            state.take_out(keys, 0 if state is self._state else VALUE_BITS)

    @property
    def states(self) -> Sequence[KeyedState]:
        """The groups, and the state of min, max and count(DISTINCT)."""
        return (self._state, *(state for part in self._parts for state in part.accumulator.states))

    def kept_as(self, key: str) -> str:
        """Numbered, as the columns of ``by`` are."""
        return self._keys[self.by.index(key)]

    @property
    def memory(self) -> dict[str, int | None]:
        """If the one row was emitted, if a sum may be beyond its type, and the state of windows."""
        beyond = {"beyond": 1} if self._may_be_beyond else {}
        return {
            "given": int(self._given),
            **beyond,
            **({} if self._windows is None else self._windows.memory),
        }

    def recall(self, memory: Mapping[str, int | None]) -> None:
        """Have it be known."""
        self._given = bool(memory["given"])
        self._may_be_beyond = bool(memory.get("beyond"))
        if self._windows is not None:
            self._windows.recall(memory)

    @property
    def state_bytes(self) -> int:
        """The memory of the groups and of the state of min and max."""
        return sum(state.nbytes for state in self.states)

    @property
    def gone_bytes(self) -> int:
        """The part of it that forgotten groups have left."""
        return sum(state.gone_bytes for state in self.states)

    def _grouped(self, batch: pa.RecordBatch) -> tuple[Groups, Run]:
        """The groups of the rows, and their keys."""
        columns = [with_one_zero(coded(batch.column(name))) for name in self.by]
        if self._windows is None and (found := coded_groups(columns)) is not None:
            groups, hashes = found
            return groups, self._key_run(columns, hashes, groups.firsts)
        hashes = hashing.hash_rows(columns, batch.num_rows)
        if self._windows is not None:
            hashes = self._windows.hashes(batch, hashes)
        groups = group_rows(columns, hashes)
        return groups, self._key_run(columns, hashes[groups.firsts], groups.firsts)

    def _stored(self, keys: Run) -> States:
        """The state of each group of ``keys``, that of no rows if there is none."""
        found = [(match.probe, self._split(match.found)) for match in self._state.lookup(keys)]
        return [
            part.accumulator.gather(len(keys.hashes), [(places, states[index]) for places, states in found])
            for index, part in enumerate(self._parts)
        ]

    def _states_of_nothing(self, groups: int) -> States:
        """The state of so many groups without rows."""
        return [part.accumulator.gather(groups, ()) for part in self._parts]

    def _changes(self, keys: Run, old: States, new: States) -> Iterator[pa.RecordBatch]:
        """The rows of the groups that differ: the old ones retracted, the new ones added."""
        was, is_ = self._there(old, self._given), self._there(new, True)
        self._given = True
        before, after = self._results(old), self._results(new)
        differs = was != is_
        for left, right in zip(before, after, strict=True):
            differs |= ~equal_values(left, right)
        taken = _rows([*keys.rows.columns, *before], np.flatnonzero(was & differs), -1)
        given = _rows([*keys.rows.columns, *after], np.flatnonzero(is_ & differs), 1)
        columns = [pa.concat_arrays(pair) for pair in zip(taken, given, strict=True)]
        yield from portions([pa.record_batch(columns, schema=self._schema)])

    def _last_rows(self, run: Run) -> Iterator[pa.RecordBatch]:
        """The rows of groups, none of which was given before."""
        states = self._split(run.rows)
        self._check(states)
        columns = [*run.rows.columns[: len(self._keys)], *self._results(states)]
        given = _rows(columns, np.flatnonzero(self._there(states, True)), 1)
        yield from portions([pa.record_batch(given, schema=self._schema)])

    def _there(self, states: States, without_by: bool) -> NDArray[np.bool_]:
        """Which groups have a row in the result."""
        rows = states[0][0].to_numpy()
        there = rows > 0 if self.by else np.full(len(rows), without_by)
        for index, sums, sql in self._sums:
            if (beyond := sums.beyond(states[index])).any():
                there &= ~beyond
                if not self._may_be_beyond:
                    self._may_be_beyond = True
                    _log.warning(
                        "a sum in %r is now beyond the range of int64, so the result has no row for the sum's group",
                        sql,
                    )
        return there

    def _results(self, states: States) -> list[Any]:
        pairs = zip(self._parts[1:], states[1:], strict=True)
        return [part.accumulator.result(columns) for part, columns in pairs]

    def _compacted(self, run: Run, complete: bool) -> Run:
        """One row per group; a group without rows is forgotten if nothing older contradicts that."""
        columns = run.rows.columns[: len(self._keys)]
        groups = neighbours(columns, run.hashes)
        if len(groups.starts) < len(groups.order):
            pairs = zip(self._parts, self._split(run.rows), strict=True)
            states = [part.accumulator.combine(state, groups) for part, state in pairs]
            firsts = groups.firsts
            run = self._state_run(self._key_run(columns, run.hashes[firsts], firsts), states)
        if not complete:
            return run
        is_alive = self._split(run.rows)[0][0].to_numpy() != 0
        if is_alive.all():
            return run
        return Run(run.rows.filter(pa.array(is_alive)), run.hashes[is_alive])

    def _key_run(self, columns: Sequence[Any], hashes: NDArray[np.uint64], rows: NDArray[np.int64]) -> Run:
        """The keys in ``rows``, which have these hashes."""
        if len(rows) == 1:
            keys = [plain(column.slice(int(rows[0]), 1)) for column in columns]
        else:
            keys = [plain(column.take(pa.array(rows))) for column in columns]
        return Run(pa.record_batch(keys, self._keys), hashes)

    def _state_run(self, keys: Run, states: States) -> Run:
        columns = [column for state in states for column in state]
        names = [*self._keys, *(f"state{index}" for index in range(len(columns)))]
        return Run(pa.record_batch([*keys.rows.columns, *columns], names), keys.hashes)

    def _split(self, rows: pa.RecordBatch) -> States:
        columns = iter(rows.columns[len(self._keys) :])
        return [[next(columns) for _ in part.accumulator.types] for part in self._parts]


@dataclass(frozen=True, slots=True)
class _Part:
    """One aggregate of the operator; ``count(*)`` has no argument."""

    accumulator: Accumulator
    argument: Evaluator | None
    sql: str

    def values(self, batch: pa.RecordBatch) -> Any:
        return self.argument(batch) if self.argument else batch.column(batch.num_columns - 1)


def _part(call: AggregateCall, keys: Sequence[str], schema: pa.Schema, *, only_grows: bool) -> _Part:
    argument = compile_expression(call.argument, schema) if call.argument else None
    return _Part(_accumulator(call, keys, only_grows=only_grows), argument, call.sql)


def _accumulator(call: AggregateCall, keys: Sequence[str], *, only_grows: bool) -> Accumulator:
    if call.argument is None:
        return CountRows()
    type_ = arrow_type(call.argument.type)
    real = pa.types.is_floating(type_)
    match call.function:
        case "count":
            return CountValues()
        case "count distinct":
            return CountDistinct(keys)
        case "sum":
            return RealSum() if real else IntegerSum()
        case "avg":
            return RealAverage() if real else IntegerAverage()
    order = "ascending" if call.function == "min" else "descending"
    return GrowingExtreme(type_, order) if only_grows else Extreme(type_, keys, order)


def _rows(columns: Sequence[Any], rows: NDArray[np.int64], weight: int) -> list[Any]:
    weights = pa.array(np.full(len(rows), weight))
    if columns and len(rows) == len(columns[0]):
        return [*columns, weights]
    return [*(column.take(pa.array(rows)) for column in columns), weights]
