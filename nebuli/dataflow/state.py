"""The state of joins and aggregates: rows found by key.

State is kept as a few sorted runs, like a log-structured merge tree: a delta becomes a run, and runs are
merged as they grow, so that each row is moved a logarithmic number of times. What comes between two lookups
is sorted and merged at once, by the second: what is never looked up, as the larger input of a join whose other one has
come to rest, is not sorted. A lookup is a search in each run. Work per delta is thus proportional to the delta and to
the logarithm of the state, where a rebuilt hash table costs the whole state every time.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from nebuli.dataflow.keys import hashing
from nebuli.dataflow.keys.coding import coded_rows, is_coded
from nebuli.dataflow.keys.directory import Directory
from nebuli.dataflow.progress import instants_of
from nebuli.dataflow.rows import MAX_BATCH_ROWS, equal_values
from nebuli.dataflow.zset import WEIGHT, merged

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    Positions = NDArray[np.int64]

_LAST = np.uint64(0xFFFFFFFFFFFFFFFF)
_FRESH_ROWS, _FRESH_RUNS = 65536, 64
"""So much waits for a lookup before it is merged; more rows where they are still few beside those that were."""
_FEW, _FEW_ADDED = 0.5, 2.0
"""What few is, of rows some of which may say nothing together; and of those that are only added."""
_TOGETHER_ROWS = 65536
"""Where nothing is gained by merging, what waits is only put together, up to so many rows: steps may be small."""
_LITTLE = 8192
"""No more than so many rows that were found in several runs are put together."""
_MAX_TEXT_BYTES = (1 << 31) - 1  # what an Arrow column of texts can address; runs beyond this are not merged


@dataclass(frozen=True, slots=True)
class Run:
    """Rows sorted by the hash of their key; where they are only looked up elsewhere, or wait, in any order."""

    rows: pa.RecordBatch
    hashes: NDArray[np.uint64]
    directory: Directory = field(init=False, repr=False, compare=False)
    _taken: int = field(default=0, init=False, repr=False, compare=False)
    _coded: pa.RecordBatch | None = field(default=None, init=False, repr=False, compare=False)
    _name: bytes = field(default=b"", init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Make the directory, which takes nothing until it is used."""
        object.__setattr__(self, "directory", Directory(self.hashes))

    @classmethod
    def named(cls, name: bytes, rows: pa.RecordBatch, hashes: NDArray[np.uint64]) -> Run:
        """A run that has its name already."""
        run = cls(rows, hashes)
        object.__setattr__(run, "_name", name)
        return run

    @property
    def name(self) -> bytes:
        """Its name, which no other run ever has, in no process: it is drawn when it is first asked for."""
        if not self._name:
            object.__setattr__(self, "_name", os.urandom(12).hex().encode())
        return self._name

    @classmethod
    def of(cls, rows: pa.RecordBatch, keys: Sequence[str]) -> Run:
        """Hash and sort ``rows``."""
        return cls.sorted(rows, hashing.hash_rows([rows.column(key) for key in keys], rows.num_rows))

    @classmethod
    def sorted(cls, rows: pa.RecordBatch, hashes: NDArray[np.uint64]) -> Run:
        """Sort ``rows`` by their hashes; rows of one hash keep their order."""
        order = np.argsort(hashes, kind="stable")
        return cls(rows.take(pa.array(order)), hashes[order])

    @property
    def is_sorted(self) -> bool:
        """Whether its rows are in the order of their hashes."""
        return bool((self.hashes[1:] >= self.hashes[:-1]).all())

    @property
    def nbytes(self) -> int:
        """The memory it holds."""
        coded = 0 if self._coded is None else _bytes_beside(self._coded, self.rows)
        return int(self.rows.get_total_buffer_size() + self.hashes.nbytes + self.directory.nbytes + coded)

    def take(self, places: Positions) -> pa.RecordBatch:
        """The rows at these places."""
        return self.rows.take(pa.array(places))

    def take_coded(self, places: Positions) -> pa.RecordBatch:
        """As `take`; texts that come again have codes, once as many rows were taken as there are."""
        coded = self._coded
        if coded is None:
            object.__setattr__(self, "_taken", self._taken + len(places))
            if self._taken < len(self.hashes):
                return self.take(places)
            coded = coded_rows(self.rows)
            object.__setattr__(self, "_coded", coded)
        return coded.take(pa.array(places))


Take = Callable[[Run, "Positions"], pa.RecordBatch]
"""How rows are taken of a run."""


@dataclass(frozen=True, slots=True)
class Match:
    """Rows of the state, and beside each the row of the run looked up whose key it has."""

    probe: Positions
    found: pa.RecordBatch


@dataclass(frozen=True, slots=True)
class Found:
    """What ``seek`` found: all rows of a key before its bound, and, if there are no more, all from there on."""

    matches: list[Match]
    bounds: NDArray[np.uint64]
    more: NDArray[np.bool_]


Compact = Callable[[Run, bool], Run]
"""Puts rows of a run together that say one thing together, keeping it sorted; older rows stand before newer.

The second argument says whether the run holds all that the state has, so that nothing older can lie beneath.
"""
Compacts = Callable[[pa.RecordBatch], bool]
"""Whether rows may be put together with others that are like them, so that there are fewer."""


def always(rows: pa.RecordBatch) -> bool:
    """They may."""
    return True


class KeyedState:
    """Rows by key.

    ``keys`` are columns of every run inserted and looked up; null equals null in them. ``compact`` is
    called on what a merge makes. While ``compacts`` says of what is inserted that no merge makes less of it, nothing is
    merged before the next lookup, and the runs inserted need not be sorted.
    """

    def __init__(self, keys: Sequence[str], compact: Compact, compacts: Compacts = always) -> None:
        self._keys = tuple(keys)
        self._compact = compact
        self._compacts = compacts
        self._runs: list[Run] = []
        self._fresh: list[Run] = []
        self._fresh_rows = self._fresh_bytes = 0
        self._fresh_only_adds, self._fresh_compacts = True, False

    def insert(self, delta: Run) -> None:
        """Add rows; the run's memory becomes the state's."""
        if not len(delta.hashes):
            return
        self._fresh.append(delta)
        self._fresh_rows += len(delta.hashes)
        self._fresh_bytes += delta.nbytes
        self._fresh_compacts |= self._compacts(delta.rows)
        if not self._fresh_compacts:
            self._put_together()
            return
        self._fresh_only_adds &= _only_adds(delta.rows)
        few = _FEW_ADDED if self._fresh_only_adds else _FEW
        many = self._fresh_rows >= max(_FRESH_ROWS, few * self._settled_rows)
        if many or len(self._fresh) >= _FRESH_RUNS:
            self._take_in()

    def settle(self) -> None:
        """No more rows will be inserted: make it one run, so that a lookup is one search, of coded rows."""
        self._take_in()
        while len(self._runs) > 1 and _addressable([run.rows for run in self._runs[-2:]]):
            self._runs[-2:] = self._merged(self._runs[-2:])
        self._runs = [Run(coded_rows(run.rows), run.hashes) for run in self._runs]

    def lookup(self, probe: Run) -> Iterator[Match]:
        """All rows with the keys of ``probe``, oldest first, in portions of bounded size."""
        return self._found(probe, Run.take)

    def lookup_coded(self, probe: Run) -> Iterator[Match]:
        """As `lookup`; texts that come again may have codes."""
        return self._found(probe, Run.take_coded)

    def _found(self, probe: Run, take: Take) -> Iterator[Match]:
        self._take_in()
        some: list[Match] = []
        for run in list(self._runs):
            for match in _candidates(run, *run.directory.find(probe.hashes), take):
                if some and not _fit(some, match):
                    yield self._verified(probe, some)
                    some = []
                if len(match.probe) > _LITTLE:  # of much, what was just taken is not to leave the caches
                    yield self._verified(probe, [match])
                else:
                    some.append(match)
        if some:
            yield self._verified(probe, some)

    def seek(self, probe: Run, order: str, start: NDArray[np.uint64], limit: int) -> Found:
        """The first rows with each key of ``probe`` from ``start`` on, up to ``limit`` of each run.

        For states whose runs have the rows of a key by the column ``order``.
        """
        self._take_in()
        found = Found([], np.full(len(start), _LAST), np.zeros(len(start), dtype=np.bool_))
        for run in self._runs:
            orders = run.rows.column(order).to_numpy()
            first, counts = run.directory.find(probe.hashes)
            last = first + counts
            first = _search_each(orders, first, last, start)
            cut = np.flatnonzero(last - first > limit)
            found.more[cut] = True
            found.bounds[cut] = np.minimum(found.bounds[cut], orders[first[cut] + limit - 1])
            candidates = _candidates(run, first, np.minimum(last - first, limit), Run.take)
            found.matches.extend(self._verified(probe, [each]) for each in candidates)
        return found

    def expire(self, column: str, upto: int) -> list[Run]:
        """Take out the rows whose ``column``, an instant, is at most ``upto`` (in microseconds); oldest first.

        Cheap where runs are sorted by it, in any direction.
        """
        self._take_in()
        expired = []
        for index, run in enumerate(self._runs):
            over = instants_of(run.rows.column(column)) <= upto
            if over.any():
                gone, self._runs[index] = _split(run, over)
                expired.append(gone)
        self._runs = [run for run in self._runs if len(run.hashes)]
        return expired

    @property
    def runs(self) -> tuple[Sequence[Run], Sequence[Run]]:
        """All rows: the runs that they lie in, oldest first, and what has come since the last lookup."""
        return tuple(self._runs), tuple(self._fresh)

    def restore(self, settled: Sequence[Run], fresh: Sequence[Run]) -> None:
        """Have its rows be those that a state like this one gave as its ``runs``."""
        self.clear()
        self._runs += settled
        for run in fresh:
            self.insert(run)

    def clear(self) -> None:
        """Forget all rows."""
        self._runs.clear()
        self._fresh.clear()
        self._fresh_rows = self._fresh_bytes = 0
        self._fresh_only_adds, self._fresh_compacts = True, False

    @property
    def nbytes(self) -> int:
        """The memory that it holds."""
        return sum(run.nbytes for run in self._runs) + self._fresh_bytes

    @property
    def _settled_rows(self) -> int:
        return sum(len(run.hashes) for run in self._runs)

    def _take_in(self) -> None:
        """Make runs of what has come since the last time: one, if Arrow can hold it."""
        fresh, self._fresh = self._fresh, []
        self._fresh_rows = self._fresh_bytes = 0
        self._fresh_only_adds, self._fresh_compacts = True, False
        if len(fresh) > 1 and _addressable([run.rows for run in fresh]):
            fresh = self._merged(fresh)
        for run in fresh:
            self._runs += [run] if run.is_sorted else self._merged([run])
            while len(self._runs) > 1 and _worth_merging(*self._runs[-2:]):
                self._runs[-2:] = self._merged(self._runs[-2:])

    def _put_together(self) -> None:
        """Of what waits, leave few runs: those before the last are at least twice as long as the next, or long."""
        fresh = self._fresh
        while len(fresh) > 1 and _worth_merging(*fresh[-2:]):
            older, newer = fresh[-2:]
            if len(older.hashes) + len(newer.hashes) > _TOGETHER_ROWS:
                return
            rows = pa.concat_batches([older.rows, newer.rows])
            fresh[-2:] = [Run(rows, np.concatenate([older.hashes, newer.hashes]))]

    def _verified(self, probe: Run, candidates: Sequence[Match]) -> Match:
        """Those of pairs with equal hashes that have equal keys, all in one."""
        rows, found = candidates[0].probe, candidates[0].found
        if len(candidates) > 1:
            rows = np.concatenate([each.probe for each in candidates])
            found = pa.concat_batches([each.found for each in candidates])
        same, places = np.ones(len(rows), dtype=np.bool_), pa.array(rows)
        for key in self._keys:
            same &= equal_values(probe.rows.column(key).take(places), found.column(key))
        return Match(rows, found) if same.all() else Match(rows[same], found.filter(pa.array(same)))

    def _merged(self, runs: Sequence[Run]) -> list[Run]:
        """The newest runs, older before newer, as one; none if nothing is left of them."""
        rows = pa.concat_batches([run.rows for run in runs])
        both = Run.sorted(rows, np.concatenate([run.hashes for run in runs]))
        complete = not self._runs or runs[0] is self._runs[0]
        merged = self._compact(both, complete)
        return [merged] if len(merged.hashes) else []


def _only_adds(rows: pa.RecordBatch) -> bool:
    """Whether rows have weights, all of which are above zero: no two of them say nothing together."""
    place = rows.schema.get_field_index(WEIGHT)
    return place >= 0 and bool((rows.column(place).to_numpy() > 0).all())


def consolidated(run: Run, complete: bool) -> Run:
    """A run that is a Z-set with equal rows put together, and those of weight zero dropped."""
    return _consolidated(run, run.hashes)


def ordered(order: str) -> Compact:
    """As ``consolidated``, with the rows of a key by the column ``order``."""
    return lambda run, _: _consolidated(run, run.hashes, run.rows.column(order).to_numpy())


def _consolidated(run: Run, *order: NDArray[np.uint64]) -> Run:
    rows, kept = merged(run.rows, *order)
    return Run(rows, run.hashes[kept])


def _split(run: Run, which: NDArray[np.bool_]) -> tuple[Run, Run]:
    """The rows ``which``, and the others, both in order."""
    count, rows = int(which.sum()), len(which)
    if which[:count].all():
        return _part(run, 0, count), _part(run, count, rows)
    if which[rows - count :].all():
        return _part(run, rows - count, rows), _part(run, 0, rows - count)
    parts = (np.flatnonzero(each) for each in (which, ~which))
    gone, kept = (Run(run.rows.take(pa.array(part)), run.hashes[part]) for part in parts)
    return gone, kept


def _part(run: Run, start: int, stop: int) -> Run:
    """A part of a run, which shares the run's memory only as long as that is not much more than its own."""
    return Run(owned(run.rows.slice(start, stop - start), 2), run.hashes[start:stop].copy())


def owned(rows: pa.RecordBatch, most: float) -> pa.RecordBatch:
    """The rows, copied if they hold more memory than ``most`` times their own."""
    if rows.get_total_buffer_size() <= most * rows.nbytes:
        return rows
    return rows.take(pa.array(np.arange(rows.num_rows)))


def _worth_merging(older: Run, newer: Run) -> bool:
    return len(older.hashes) <= 2 * len(newer.hashes) and _addressable([older.rows, newer.rows])


def _addressable(batches: Sequence[pa.RecordBatch]) -> bool:
    """Whether Arrow can hold them as one."""
    return all(
        sum(batch.column(index).nbytes for batch in batches) <= _MAX_TEXT_BYTES
        for index, type_ in enumerate(batches[0].schema.types)
        if pa.types.is_string(type_) or pa.types.is_binary(type_)
    )


def _candidates(run: Run, first: Positions, counts: Positions, take: Take) -> Iterator[Match]:
    """The rows of a run that have the hashes that were looked up."""
    for probe, rows in _pairs(first, counts):
        if len(probe):
            yield Match(probe, take(run, rows))


def _bytes_beside(coded: pa.RecordBatch, rows: pa.RecordBatch) -> int:
    """The memory of the columns that were given codes; the others are those of ``rows``."""
    pairs = zip(coded.columns, rows.columns, strict=True)
    return sum(new.get_total_buffer_size() for new, old in pairs if is_coded(new) and not is_coded(old))


def _fit(some: Sequence[Match], match: Match) -> bool:
    """Whether matches can be put together: of one run the texts may be coded, and of another not."""
    rows = sum(len(each.probe) for each in some) + len(match.probe)
    alike = match.found.schema == some[0].found.schema
    return alike and rows <= _LITTLE and _addressable([each.found for each in (*some, match)])


def _pairs(first: Positions, counts: Positions) -> Iterator[tuple[Positions, Positions]]:
    """``counts[i]`` positions from ``first[i]`` on, each beside its ``i``.

    They are cut before they are made: a key may match millions of rows.
    """
    if counts.max(initial=0) <= 1:
        some = np.flatnonzero(counts)
        for start in range(0, len(some), MAX_BATCH_ROWS):
            portion = some[start : start + MAX_BATCH_ROWS]
            yield portion, first[portion]
        return
    ends = np.cumsum(counts)
    total = int(ends[-1]) if len(ends) else 0
    for start in range(0, total, MAX_BATCH_ROWS):
        pairs = np.arange(start, min(start + MAX_BATCH_ROWS, total))
        probe_rows = np.searchsorted(ends, pairs, side="right")
        yield probe_rows, first[probe_rows] + pairs - (ends - counts)[probe_rows]


def _search_each(
    values: NDArray[np.uint64], first: Positions, last: Positions, wanted: NDArray[np.uint64]
) -> Positions:
    """The first position for each ``i`` in ``first[i] : last[i]`` whose value is not below ``wanted[i]``."""
    while (first < last).any():
        middle = (first + last) // 2
        below = (first < last) & (values[np.minimum(middle, len(values) - 1)] < wanted)
        first, last = np.where(below, middle + 1, first), np.where(below, last, np.maximum(middle, first))
    return first
