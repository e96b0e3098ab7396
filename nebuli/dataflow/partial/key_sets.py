"""Keys as batches, and sets of them that know which were used last."""

from __future__ import annotations

import itertools
import math
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from nebuli.dataflow import hashing
from nebuli.dataflow.rows import group_rows, with_one_zero
from nebuli.dataflow.state import KeyedState, Run

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from numpy.typing import NDArray

    Key = tuple[Any, ...]
    Times = NDArray[np.int64]

_SLOT = "slot"
_NAN = math.nan
_FEW = 8
"""So few keys are compared in Python."""
_GROWTH = 4
"""One place in so many is made at once."""
_MANY = 64
"""The places of more keys than that are given back when most are gone."""
_NOTED = 256
"""So many uses of single keys are looked for at once."""
_NO, _YES = np.zeros(1, dtype=np.bool_), np.ones(1, dtype=np.bool_)
_NONE = np.zeros(0, dtype=np.int32)
_moments = itertools.count(1)
"""One clock for all sets: what was used later than what is known also where the two are keys of different places."""


def keys_in(rows: pa.RecordBatch, columns: Sequence[str]) -> pa.RecordBatch:
    """The keys that rows have in ``columns``, each once."""
    return distinct(batch_of([rows.column(name) for name in columns]))


def batch_of(columns: Sequence[Any]) -> pa.RecordBatch:
    """Keys of these columns."""
    return pa.record_batch([with_one_zero(column) for column in columns], _names(len(columns)))


def key_schema_of(types: Sequence[pa.DataType]) -> pa.Schema:
    """The schema of keys of these types, as ``batch_of`` names their columns."""
    return pa.schema([*zip(_names(len(types)), types, strict=True)])


def with_one_zero_each(keys: pa.RecordBatch) -> pa.RecordBatch:
    """Keys of such a schema as ``batch_of`` gives them."""
    return batch_of(keys.columns) if any(map(pa.types.is_floating, keys.schema.types)) else keys


def reordered(keys: pa.RecordBatch, order: Sequence[int]) -> pa.RecordBatch:
    """The keys with their columns in another order."""
    if all(index == place for place, index in enumerate(order)):
        return keys
    return batch_of([keys.column(index) for index in order])


def distinct(keys: pa.RecordBatch) -> pa.RecordBatch:
    """Each key once."""
    if keys.num_rows <= 1 or (keys.num_rows <= _FEW and len(set(tuples_of(keys))) == keys.num_rows):
        return keys
    groups = group_rows(keys.columns, hashing.hash_rows(keys.columns, keys.num_rows))
    return keys.take(pa.array(np.sort(groups.firsts)))


def parted(keys: pa.RecordBatch, which: NDArray[np.bool_]) -> tuple[pa.RecordBatch, pa.RecordBatch]:
    """The rows ``which``, and the others."""
    count = np.count_nonzero(which)
    if count == len(which):
        return keys, keys.slice(0, 0)
    if not count:
        return keys.slice(0, 0), keys
    return keys.filter(pa.array(which)), keys.filter(pa.array(~which))


def tuples_of(keys: pa.RecordBatch) -> list[Key]:
    """The keys as tuples, of which equal keys have equal ones: also those with NaN.

    Dates and times are whole numbers in them: there are some that Python has not.
    """
    return list(zip(*map(_values_of, keys.columns), strict=True))


def _values_of(column: pa.Array) -> Iterable[Any]:
    if pa.types.is_floating(column.type):
        return map(_with_one_nan, column.to_pylist())
    if pa.types.is_temporal(column.type):
        return column.view(pa.int32() if column.type.bit_width == 32 else pa.int64()).to_pylist()  # type: ignore[no-any-return]
    return column.to_pylist()  # type: ignore[no-any-return]


def from_tuples(keys: Iterable[Key], types: Sequence[pa.DataType]) -> pa.RecordBatch:
    """Tuples as keys."""
    listed = list(keys)
    return batch_of([pa.array([key[index] for key in listed], type_) for index, type_ in enumerate(types)])


def among(keys: pa.RecordBatch, others: pa.RecordBatch) -> NDArray[np.bool_]:
    """Which of the keys are among the others."""
    known = KeySet(others.schema.types)
    known.add(distinct(others))
    return known.has(keys)


class KeySet:
    """A set of keys."""

    def __init__(self, types: Sequence[pa.DataType]) -> None:
        self._types = list(types)
        self._names = _names(len(types))
        self._slots = KeyedState(self._names, _as_it_is)
        self._used = np.zeros(0, dtype=np.int64)
        self._free: NDArray[np.int32] = np.zeros(0, dtype=np.int32)
        self._noted: list[tuple[Run, int]] = []
        """Single keys that were used, and when, which is not in ``_used`` yet."""

    def __len__(self) -> int:
        return len(self._used) - len(self._free)

    @property
    def nbytes(self) -> int:
        """The memory that it holds."""
        return self._slots.nbytes + self._used.nbytes + self._free.nbytes

    @property
    def gone_bytes(self) -> int:
        """The part of it that will be freed."""
        return self._slots.gone_bytes

    def has(self, keys: pa.RecordBatch) -> NDArray[np.bool_]:
        """Which of the keys are in it."""
        return self._found(self.hashed(keys))[0]

    def hashed(self, keys: pa.RecordBatch) -> Run:
        """The keys as they are sought, with the names that its columns have."""
        if keys.schema.names != self._names:
            keys = keys.rename_columns(self._names)
        return Run(keys, hashing.hash_rows(keys.columns, keys.num_rows))

    def used_now(self, keys: Run) -> NDArray[np.bool_]:
        """Those of the keys that are in it were used now; which they are."""
        if len(keys.hashes) == 1:
            slot = self._slot_of_one(keys)
            if slot is None:
                return _NO.copy()
            self._used[slot] = next(_moments)
            return _YES.copy()
        found, slots = self._found(keys)
        self._used[slots] = next(_moments)
        return found

    def note_use(self, key: Run) -> None:
        """A single key, which is in it, was used now; looked for only when that is asked, together with others."""
        self._noted.append((key, next(_moments)))
        if len(self._noted) == _NOTED:
            self._write_noted()

    def _write_noted(self) -> None:
        if not self._noted:
            return
        noted, self._noted = self._noted, []
        rows = pa.concat_batches([key.rows for key, _ in noted])
        found, slots = self._found(Run(rows, np.concatenate([key.hashes for key, _ in noted])))
        moments = np.array([moment for _, moment in noted], dtype=np.int64)
        np.maximum.at(self._used, slots, moments[found])

    def times(self, keys: pa.RecordBatch) -> Times:
        """When each key was used last: a number that is the greater the later that was; 0 of those not in it."""
        self._write_noted()
        found, slots = self._found(self.hashed(keys))
        times = np.zeros(keys.num_rows, dtype=np.int64)
        times[found] = self._used[slots]
        return times

    def used_at(self, keys: pa.RecordBatch, times: Times) -> None:
        """The keys, all of which are in it, were used then, if not later."""
        self._write_noted()
        _, slots = self._found(self.hashed(keys))
        self._used[slots] = np.maximum(self._used[slots], times)

    def add(self, keys: pa.RecordBatch) -> None:
        """Add keys that are not in it, each once; they were used now."""
        self.add_hashed(self.hashed(keys))

    def add_hashed(self, keys: Run) -> None:
        """The same."""
        count = len(keys.hashes)
        if not count:
            return
        if len(self._free) < count:
            more = max(count - len(self._free), len(self._used) // _GROWTH)
            fresh = np.arange(len(self._used), len(self._used) + more, dtype=np.int32)
            self._free = np.concatenate([self._free, fresh])
            self._used = np.concatenate([self._used, np.zeros(more, dtype=np.int64)])
        slots, self._free = self._free[:count], self._free[count:]
        self._used[slots] = next(_moments)
        rows = pa.record_batch([*keys.rows.columns, pa.array(slots)], [*self._names, _SLOT])
        self._slots.insert(Run.sorted(rows, keys.hashes))

    def discard(self, keys: pa.RecordBatch) -> pa.RecordBatch:
        """Take keys out; gives those that were in it."""
        self._write_noted()
        gone = self._slots.take_out(self.hashed(keys)) if len(self) and keys.num_rows else []
        if not gone:
            return keys.slice(0, 0)
        rows = gone[0].rows if len(gone) == 1 else pa.concat_batches([run.rows for run in gone])
        self._free = np.concatenate([self._free, rows.column(_SLOT).to_numpy()])
        if len(self._used) > _MANY and 4 * len(self) < len(self._used):
            self._shrink()
        return rows.select(self._names)

    def _shrink(self) -> None:
        """Give back the memory of keys that are gone: it counts where keys go for want of it."""
        keys, self._used = self.all()
        self._free = _NONE
        self._slots = KeyedState(self._names, _as_it_is)
        if keys.num_rows:
            slots = pa.array(np.arange(keys.num_rows, dtype=np.int32))
            rows = pa.record_batch([*keys.columns, slots], [*self._names, _SLOT])
            self._slots.insert(Run.sorted(rows, self.hashed(keys).hashes))

    def all(self) -> tuple[pa.RecordBatch, Times]:
        """All keys, and of each when it was used last."""
        self._write_noted()
        settled, fresh = self._slots.runs
        runs = [run.rows for run in (*settled, *fresh)]
        if not runs:
            return from_tuples((), self._types), np.zeros(0, dtype=np.int64)
        rows = pa.concat_batches(runs)
        return rows.select(self._names), self._used[rows.column(_SLOT).to_numpy()]

    def _slot_of_one(self, key: Run) -> int | None:
        """As ``_found``, of a single key: it is what is read most of the time."""
        for match in self._slots.lookup(key) if len(self) else ():
            if len(match.probe):
                return int(match.found.column(len(self._names))[0].as_py())
        return None

    def _found(self, keys: Run) -> tuple[NDArray[np.bool_], NDArray[np.int32]]:
        """Which of the keys are in it, and the slots of those, in the order of the keys."""
        if not len(self):
            return np.zeros(len(keys.hashes), dtype=np.bool_), _NONE
        slots = np.full(len(keys.hashes), -1, dtype=np.int32)
        if len(slots):
            for match in self._slots.lookup(keys):
                slots[match.probe] = match.found.column(len(self._names)).to_numpy()
        found = slots >= 0
        return found, slots[found]


def _as_it_is(run: Run, complete: bool) -> Run:
    return run


def _names(count: int) -> list[str]:
    return [f"key{index}" for index in range(count)]


def _with_one_nan(value: Any) -> Any:
    return _NAN if value is not None and math.isnan(value) else value
