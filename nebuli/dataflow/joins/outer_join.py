"""Outer joins: rows that nothing matches are given as well, with nulls for the other input's columns.

A row's having a match depends on its key alone. So for an input that may have no rows for a key, the number of rows of
each key is kept as well. As a key gets its first, all rows of the other input that have it are retracted in their form
without a match; as it loses its last, they are added in that form again.

With windows a row that nothing has matched is emitted when its window is over, and never retracted.
"""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from nebuli.dataflow import hashing
from nebuli.dataflow.hashing import coded_rows, plain_rows
from nebuli.dataflow.joins.join import SHARED, Join, spelled_alike
from nebuli.dataflow.progress import GREATEST
from nebuli.dataflow.rows import MAX_BATCH_ROWS
from nebuli.dataflow.state import KeyedState, Run, consolidated, owned, takes_back, without_zeros
from nebuli.dataflow.zset import WEIGHT, merged, weights_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from nebuli.dataflow.window import Windows
    from placement.plan import JoinOperator
    from topology.schema import Schema


def join_of(
    operator: JoinOperator, inputs: Sequence[Schema], output: Schema, windows: Windows | None = None
) -> Join:
    """The join of a plan, ready to run."""
    if operator.how == "inner":
        return Join(operator.on, inputs, output, windows)
    return OuterJoin(operator.preserved, operator.on, inputs, output, windows)


class OuterJoin(Join):
    """A join of two inputs that gives every row of those that are ``preserved``, 0 or 1 or both.

    A row with a null in its key matches nothing, and is given if its input is preserved.
    """

    def __init__(
        self,
        preserved: Sequence[int],
        on: Sequence[str],
        inputs: Sequence[Schema],
        output: Schema,
        windows: Windows | None = None,
    ) -> None:
        super().__init__(on, inputs, output, windows)
        self._preserved = tuple(preserved)
        self._counts = {1 - port: KeyedState(on, consolidated) for port in reversed(self._preserved)}
        """How many rows an input has of each key, for inputs whose columns may be null."""

    def push(self, port: int, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """Yield the rows that the change adds or retracts, in batches of bounded size."""
        rows = self.matchable(port, batch)
        if self._windows is not None:
            rows = self._windows.in_time(rows)
        rows, keyless = self._by_key(rows)
        delta = self._hashed(coded_rows(rows, self._on))
        counted = self._counted(port, delta)
        if self._windows is None:
            made = chain(self._made(port, delta, keyless), self._turned(port, counted))
        else:
            made = chain(self._joined(delta, self._others(port)), self._alone(keyless))
        yield from self._portions(made)
        if self._is_needed(port):
            self._states[port].insert(Run(owned(plain_rows(delta.rows), SHARED), delta.hashes))
        if counted is not None:
            self._counts[port].insert(counted)

    def matchable(self, port: int, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The rows of an input that something is made of, as they are kept: of a preserved one all."""
        if port not in self._preserved:
            return super().matchable(port, batch)
        return spelled_alike(batch.rename_columns(self._names[port]), self._on)

    def matched(self, port: int, rows: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """Return the result of joining such rows with those of the other input, or without any; they are not kept."""
        rows, keyless = self._by_key(rows)
        yield from self._portions(self._made(port, self._hashed(coded_rows(rows, self._on)), keyless))

    def changed(self, port: int, rows: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """As ``matched``, and what they change of rows of the other input that had no match, or have none now."""
        rows, keyless = self._by_key(rows)
        delta = self._hashed(coded_rows(rows, self._on))
        made = chain(self._made(port, delta, keyless), self._turned(port, self._counted(port, delta)))
        yield from self._portions(made)

    def made_of(self, rows_of: Callable[[int], pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """All that is made of rows that are kept, of each input all with the same keys, as ``rows_of`` gives them."""
        first, *others = self._preserved
        yield from self.matched(first, rows_of(first))
        for port in others:  # what they match is there
            rows, keyless = self._by_key(rows_of(port))
            alone = chain(self._alone(keyless), self._unmatched(port, self._hashed(rows)))
            yield from self._portions(alone)

    def count(self, port: int, rows: pa.RecordBatch) -> None:
        """Rows of an input are kept by others from now on, in its state."""
        counted = self._counted(port, self._hashed(self._by_key(rows)[0]))
        if counted is not None:
            self._counts[port].insert(counted)

    def discount(self, port: int, keys: pa.RecordBatch) -> None:
        """All rows of an input with these keys are not kept any more."""
        if port in self._counts:
            hashes = hashing.hash_rows(keys.columns, keys.num_rows)
            self._counts[port].take_out(Run(keys.rename_columns(self._on), hashes))

    def ended(self, port: int) -> None:
        """As any join; how many there are of a key is asked until nothing can change."""
        super().ended(port)
        if not self._open and self._windows is None:
            for counts in self._counts.values():
                counts.clear()

    def advance(self, watermark: int) -> Iterator[pa.RecordBatch]:
        """Give the rows of windows that are over which nothing has matched, and forget the windows."""
        upto = None if self._windows is None else self._windows.advance(watermark)
        if self._windows is None or upto is None:
            return
        column = self._windows.column
        over = [state.expire(column, upto) for state in self._states]
        for port in self._preserved:
            yield from self._portions(self._unmatched_of(port, over[port]))
        for counts in self._counts.values():
            counts.expire(column, upto)

    def finish(self) -> Iterator[pa.RecordBatch]:
        """Give what nothing has matched in the windows that are left."""
        return self.advance(GREATEST)

    @property
    def states(self) -> Sequence[KeyedState]:
        """The inputs, and how many rows they have of each key."""
        return (*self._states, *self._counts.values())

    @property
    def counts(self) -> Mapping[int, KeyedState]:
        """How many rows an input has of each key."""
        return self._counts

    def _is_needed(self, port: int) -> bool:
        """True if rows of an input may be met by others, or are to be emitted at the end of their window."""
        return super()._is_needed(port) or (self._windows is not None and port in self._preserved)

    def _others(self, port: int) -> Sequence[KeyedState]:
        return (self._states[1 - port],)

    def _by_key(self, rows: pa.RecordBatch) -> tuple[pa.RecordBatch, pa.RecordBatch]:
        """The rows that can match, and those that have a null in their key."""
        null = np.zeros(rows.num_rows, dtype=np.bool_)
        for key in self._on:
            if rows.column(key).null_count:
                null |= pc.is_null(rows.column(key)).to_numpy(zero_copy_only=False)
        if not null.any():
            return rows, rows.slice(0, 0)
        return rows.filter(pa.array(~null)), rows.filter(pa.array(null))

    def _made(self, port: int, rows: Run, keyless: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """Return the output of rows, with a match or without."""
        yield from self._joined(rows, self._others(port))
        yield from self._alone(keyless)
        yield from self._unmatched(port, rows)

    def _unmatched(self, port: int, rows: Run) -> Iterator[pa.RecordBatch]:
        """Those of the rows that have no match, if they are to be given."""
        if port in self._preserved and len(rows.hashes):
            none = self._numbers(1 - port, rows) <= 0
            if none.any():
                yield from self._alone(rows.rows.filter(pa.array(none)))

    def _unmatched_of(self, port: int, runs: Sequence[Run]) -> Iterator[pa.RecordBatch]:
        """Return, of rows that are no longer kept, those without a match."""
        if any(takes_back(run.rows) for run in runs):
            rows = pa.concat_batches([plain_rows(run.rows) for run in runs])
            runs = [without_zeros(Run.sorted(rows, np.concatenate([run.hashes for run in runs])), True)]
        for run in runs:
            for start in range(0, len(run.hashes), MAX_BATCH_ROWS):
                stop = start + MAX_BATCH_ROWS
                part = Run(run.rows.slice(start, MAX_BATCH_ROWS), run.hashes[start:stop])
                yield from self._unmatched(port, part)

    def _turned(self, port: int, keys: Run | None) -> Iterator[pa.RecordBatch]:
        """Retract the other input's rows that get their first match, and add those that lose their last."""
        if keys is None:
            return
        before = self._numbers(port, keys)
        after = before + weights_of(keys.rows)
        turned = (before > 0) != (after > 0)
        if not turned.any():
            return
        signs = np.where(after > 0, -1, 1)[turned]
        probe = Run(keys.rows.filter(pa.array(turned)), keys.hashes[turned])
        for match in self._states[1 - port].lookup(probe):
            if len(match.probe):
                weights = weights_of(match.found) * signs[match.probe]
                place = match.found.schema.get_field_index(WEIGHT)
                yield from self._alone(match.found.set_column(place, WEIGHT, pa.array(weights)))

    def _alone(self, rows: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """Rows without a match, as they are given."""
        if rows.num_rows:
            there = set(rows.schema.names)
            columns = [
                rows.column(field.name) if field.name in there else pa.nulls(rows.num_rows, field.type)
                for field in self._schema
            ]
            yield pa.record_batch(columns, self._schema.names)

    def _counted(self, port: int, rows: Run) -> Run | None:
        """How many rows of an input there are of each key, if that is kept."""
        if port not in self._counts or not len(rows.hashes):
            return None
        keys, kept = merged(plain_rows(rows.rows.select([*self._on, WEIGHT])))
        return Run(keys, rows.hashes[kept])

    def _numbers(self, port: int, keys: Run) -> NDArray[np.int64]:
        """How many rows an input has of each of the keys."""
        numbers = np.zeros(len(keys.hashes), dtype=np.int64)
        for match in self._counts[port].lookup(keys):
            np.add.at(numbers, match.probe, weights_of(match.found))
        return numbers
