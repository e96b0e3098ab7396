"""The state of joins and aggregates: rows found by key.

State is kept as a few sorted runs, like a log-structured merge tree: a delta becomes a run, and runs are
merged as they grow, so that each row is moved a logarithmic number of times. Rows between two lookups are sorted and
merged together, by the second: rows that are never looked up, such as those of the larger input of a join whose other
one is at rest, are not sorted. A lookup is a search in each run. Work per delta is thus proportional to the delta and
to the logarithm of the state, where a rebuilt hash table costs the whole state every time.

Additions of few rows are not made a run at once, and few keys are sought without a call per column and run (`recent`).
Removed rows are only marked, until half of a run is: then the rest is copied.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from nebuli.dataflow import hashing
from nebuli.dataflow.hashing import Directory, RecentRows, coded_rows, is_coded
from nebuli.dataflow.progress import instants_of
from nebuli.dataflow.rows import MAX_BATCH_ROWS, equal_few, equal_rows, equal_values
from nebuli.dataflow.zset import WEIGHT, merged, weights_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    Positions = NDArray[np.int64]

_LAST = np.uint64(0xFFFFFFFFFFFFFFFF)
_FRESH_ROWS, _FRESH_RUNS = 65536, 64
"""How much waits for a lookup before it is merged; more rows if they are still few compared with the earlier ones."""
_FEW, _FEW_ADDED = 0.5, 2.0
"""The meaning of few, for rows some of which may cancel each other; and for rows that are only added."""
_MUCH_ROWS = 1 << 20
_TOGETHER_ROWS = 65536
"""If merging gains nothing, waiting rows are only concatenated, up to so many rows: steps may be small."""
_LITTLE = 8192
"""No more than so many rows that were found in several runs are concatenated."""
_FEW_KEYS = 16
"""So few keys are sought one by one."""
_FEW_ROWS = 8
"""Insertions of so few rows wait as they are."""
_RECENT, _MOST_RECENT, _RECENT_PART = 32, 1024, 1024
"""The fewest and the most such batches, and otherwise one for so many rows: each takes as much as dozens of rows."""
_MUCH_TAKEN = 4
"""Much is merged at once if one row in so many is retracted: it would be kept forever, with its retraction."""
_MOST_GONE = 1 / 16
"""A run's rows are copied if more than this part was removed: so many rows are copied for each removed one."""
_SHARED = 2.0
"""A run may hold so many times its own memory, as a part of something larger."""
_MAX_TEXT_BYTES = (1 << 31) - 1  # what an Arrow column of texts can address; runs beyond this are not merged


@dataclass(slots=True, eq=False)
class Run:
    """Rows sorted by the hash of their key; where they are only looked up elsewhere, or wait, in any order."""

    rows: pa.RecordBatch
    hashes: NDArray[np.uint64]
    _directory: Directory | None = field(default=None, init=False, repr=False)
    _taken: int = field(default=0, init=False, repr=False)
    _coded: pa.RecordBatch | None = field(default=None, init=False, repr=False)
    _name: bytes = field(default=b"", init=False, repr=False)
    _gone: NDArray[np.bool_] | None = field(default=None, init=False, repr=False)
    _gone_rows: int = field(default=0, init=False, repr=False)

    @property
    def directory(self) -> Directory:
        """Where its hashes are."""
        if self._directory is None:
            self._directory = Directory(self.hashes)
        assert self._directory is not None, "it was just made"
        return self._directory

    @classmethod
    def named(cls, name: bytes, rows: pa.RecordBatch, hashes: NDArray[np.uint64]) -> Run:
        """A run that has its name already."""
        run = cls(rows, hashes)
        run._name = name
        return run

    @property
    def name(self) -> bytes:
        """Its name, which no other run ever has, in no process: it is drawn when it is first asked for."""
        if not self._name:
            self._name = os.urandom(12).hex().encode()
        return self._name

    def parts(self, wanted: NDArray[np.uint64]) -> list[tuple[int, pa.RecordBatch]]:
        """Return the rows with each of few hashes, with the number of the hash; in parts of bounded size."""
        hashes, end, parts = self.hashes, len(self.hashes), []
        for number, first in enumerate(hashes.searchsorted(wanted).tolist()):
            if first == end or hashes[first] != wanted[number]:
                continue
            last = first + 1
            if last < end and hashes[last] == wanted[number]:
                last = int(hashes.searchsorted(wanted[number], "right"))
            starts = range(first, last, MAX_BATCH_ROWS)
            parts += [(number, self._between(each, min(last, each + MAX_BATCH_ROWS))) for each in starts]
        return parts

    def _between(self, start: int, stop: int) -> pa.RecordBatch:
        """The rows at places that follow each other, but for those that were taken out."""
        rows = self.rows.slice(start, stop - start)
        if self._gone is None or not (gone := self._gone[start:stop]).any():
            return rows
        return rows.filter(pa.array(~gone))

    def is_left(self, places: Positions) -> NDArray[np.bool_] | None:
        """Which rows at these places were not taken out; None: none was."""
        return None if self._gone is None else ~self._gone[places]

    def take_out(self, places: Positions) -> Run:
        """The rows at these places, which are in order; they are not here any more."""
        gone = np.zeros(len(self.hashes), dtype=np.bool_) if self._gone is None else self._gone
        gone[places] = True
        self._gone = gone
        self._gone_rows += len(places)
        first, count = int(places[0]), len(places)
        adjacent = places[-1] - first < count
        return Run(self.rows.slice(first, count) if adjacent else self.take(places), self.hashes[places])

    def compacted(self, most: float = 0.0) -> Run:
        """Another one without the rows that were taken out, if they are more than such a part; else the same."""
        if self._gone is None or self._gone_rows <= most * len(self.hashes):
            return self
        places = np.flatnonzero(~self._gone)
        return Run(self.take(places), self.hashes[places])

    @classmethod
    def of(cls, rows: pa.RecordBatch, keys: Sequence[str]) -> Run:
        """Hash and sort ``rows``."""
        return cls.sorted(rows, hashing.hash_rows([rows.column(key) for key in keys], rows.num_rows))

    @classmethod
    def sorted(cls, rows: pa.RecordBatch, hashes: NDArray[np.uint64]) -> Run:
        """Sort ``rows`` by their hashes; rows of one hash keep their order."""
        if (hashes[1:] >= hashes[:-1]).all():
            return cls(rows if len(hashes) <= _FEW_ROWS else owned(rows, _SHARED), hashes)
        order = hashing.stable_order(hashes)
        return cls(rows.take(pa.array(order)), hashes[order])

    @property
    def is_sorted(self) -> bool:
        """True if its rows are in the order of their hashes."""
        return bool((self.hashes[1:] >= self.hashes[:-1]).all())

    @property
    def gone_bytes(self) -> int:
        """The part of it that belongs to removed rows."""
        return self.nbytes * self._gone_rows // len(self.hashes) if self._gone_rows else 0

    @property
    def nbytes(self) -> int:
        """The memory it holds."""
        coded = 0 if self._coded is None else _bytes_beside(self._coded, self.rows)
        gone = 0 if self._gone is None else self._gone.nbytes
        own = self.rows.get_total_buffer_size() + self.hashes.nbytes
        directory = 0 if self._directory is None else self._directory.nbytes
        return int(own + directory + coded + gone)

    def take(self, places: Positions) -> pa.RecordBatch:
        """The rows at these places."""
        return self.rows.take(pa.array(places))

    def take_coded(self, places: Positions) -> pa.RecordBatch:
        """As `take`; texts that come again have codes, once as many rows were taken as there are."""
        coded = self._coded
        if coded is None:
            self._taken += len(places)
            if self._taken < len(self.hashes):
                return self.take(places)
            coded = coded_rows(self.rows)
            self._coded = coded
        return coded.take(pa.array(places))


Take = Callable[[Run, "Positions"], pa.RecordBatch]
"""How rows are taken of a run."""


@dataclass(frozen=True, slots=True)
class Match:
    """Rows of the state, and for each the row of the run looked up whose key it has."""

    probe: Positions
    found: pa.RecordBatch


@dataclass(frozen=True, slots=True)
class Found:
    """The result of ``seek``: all rows of a key before its bound, and, if there are no more, all from there on."""

    matches: list[Match]
    bounds: NDArray[np.uint64]
    more: NDArray[np.bool_]


Compact = Callable[[Run, bool], Run]
"""Merges rows of a run that mean one thing together, keeping it sorted; older rows stand before newer.

The second argument is true if the run holds all that the state has, so that nothing older can lie beneath.
"""
Compacts = Callable[[pa.RecordBatch], bool]
"""True if rows may be merged with others that are like them, so that there are fewer."""


def always(rows: pa.RecordBatch) -> bool:
    """They may."""
    return True


class KeyedState:
    """Rows by key.

    ``keys`` are columns of every run inserted and looked up; null equals null in them. ``compact`` is
    called on what a merge makes. No more than ``most_rows`` of Z-sets are merged at once, if they have few retractions.
    While ``compacts`` reports for inserted rows that no merge reduces them, nothing is merged before the next lookup,
    and the runs inserted need not be sorted.
    """

    def __init__(
        self, keys: Sequence[str], compact: Compact, compacts: Compacts = always, most_rows: int | None = None
    ) -> None:
        self._most_rows = most_rows
        self._keys = tuple(keys)
        self._compact = compact
        self._compacts = compacts
        self._runs: list[Run] = []
        self._fresh: list[Run] = []
        self._recent = RecentRows()
        self._fresh_rows = self._fresh_bytes = 0
        self._fresh_only_adds, self._fresh_compacts = True, False

    def insert(self, delta: Run) -> None:
        """Add rows; the run's memory becomes the state's."""
        if not len(delta.hashes):
            return
        if len(delta.hashes) <= _FEW_ROWS:
            self._recent.add(delta.rows, delta.hashes.tolist())
            most = max(_RECENT, min(self._settled_rows // _RECENT_PART, _MOST_RECENT))
            if self._recent.batches > most:
                self._sort_recent()
            return
        self._sort_recent()
        self._wait(delta)

    def _sort_recent(self) -> None:
        """Make a run of what came in few rows: in the order of runs, which is more than that of their hashes."""
        if self._recent.rows:
            run = self._compact(Run.sorted(*self._recent.emptied()), False)
            if len(run.hashes):
                self._wait(run)

    def _wait(self, delta: Run) -> None:
        """Keep a run for the next lookup, if that is not too much."""
        self._add(delta)
        if not self._fresh_compacts:
            self._put_together()
            return
        few = _FEW_ADDED if self._fresh_only_adds else _FEW
        many = self._fresh_rows >= max(_FRESH_ROWS, few * self._settled_rows)
        if many or len(self._fresh) >= _FRESH_RUNS:
            self._take_in()

    def _add(self, delta: Run) -> None:
        self._fresh.append(delta)
        self._fresh_rows += len(delta.hashes)
        self._fresh_bytes += delta.nbytes
        self._fresh_compacts |= self._compacts(delta.rows)
        self._fresh_only_adds &= _only_adds(delta.rows)

    @property
    def unsorted_rows(self) -> int:
        """How many the next lookup sorts first."""
        return self._fresh_rows

    @property
    def owes_much(self) -> bool:
        """True if so many rows have come that the next lookup takes seconds, as it sorts them first."""
        return self._fresh_rows + self._recent.rows >= _MUCH_ROWS

    def sort_now(self) -> None:
        """Do what the next lookup does first."""
        self._take_in()

    def settle(self) -> None:
        """No more rows will be inserted: make it one run, so that a lookup is one search, of coded rows."""
        self._take_in()
        while len(self._runs) > 1 and _addressable([run.rows for run in self._runs[-2:]]):
            self._runs[-2:] = self._merged(self._runs[-2:])
        self._leave_out()
        self._runs = [Run(coded_rows(run.rows), run.hashes) for run in self._runs]

    def lookup(self, probe: Run) -> Iterator[Match]:
        """All rows with the keys of ``probe``, oldest first, in portions of bounded size."""
        if len(probe.hashes) <= _FEW_KEYS:
            return iter(self._found_few(probe))
        return self._found(probe, Run.take)

    def lookup_coded(self, probe: Run) -> Iterator[Match]:
        """As `lookup`; texts that come again may have codes."""
        if len(probe.hashes) <= _FEW_KEYS:
            return iter(self._found_few(probe))
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

    def _found_few(self, probe: Run) -> Sequence[Match]:
        """As ``lookup``, for few keys: what came in few rows need not be sorted for it."""
        if self._fresh:
            self._merge_fresh()
        some: list[tuple[int, pa.RecordBatch]] = []
        for run in self._runs:
            some += run.parts(probe.hashes)
        if self._recent.rows:
            for number, hash_ in enumerate(probe.hashes.tolist()):
                some += [(number, rows) for rows in self._recent.of(hash_)]
        if len(some) <= 1:
            return [self._verified_few(probe, some)] if some else ()
        return [self._verified_few(probe, portion) for portion in _few_portions(some)]

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
        self._leave_out()
        expired = []
        for index, run in enumerate(self._runs):
            over = instants_of(run.rows.column(column)) <= upto
            if over.any():
                gone, self._runs[index] = _split(run, over)
                expired.append(gone)
        self._runs = [run for run in self._runs if len(run.hashes)]
        return expired

    def take_out(self, probe: Run, low_bits: int = 0) -> list[Run]:
        """Take out the rows with the keys of ``probe``, which may be some of this state's; oldest first.

        ``low_bits``: so many of the lowest bits of the state's hashes are not of these keys.
        """
        if low_bits or len(probe.hashes) > _FEW_KEYS:
            self._take_in()
        elif self._fresh:
            self._merge_fresh()
        gone = []
        for run in self._runs:
            places = self._places_of_keys(run, probe, low_bits)
            left = run.is_left(places)
            places = places if left is None else places[left]
            if len(places):
                gone.append(run.take_out(places))
        if self._recent.rows:
            gone += self._recent_of_keys(probe)
        if gone:
            self._leave_out(_MOST_GONE)
        return gone

    def _leave_out(self, most: float = 0.0) -> None:
        """Copy runs of which more than such a part was taken out."""
        self._runs = [run for run in (run.compacted(most) for run in self._runs) if len(run.hashes)]

    def _places_of_keys(self, run: Run, probe: Run, low_bits: int) -> Positions:
        """Where a run has rows of the keys."""
        low = np.uint64((1 << low_bits) - 1)
        first = np.searchsorted(run.hashes, probe.hashes & ~low, side="left")
        counts = np.searchsorted(run.hashes, probe.hashes | low, side="right") - first
        if not counts.any():
            return counts[:0]
        names = probe.rows.schema.names
        wanted, there = ([each.column(name) for name in names] for each in (probe.rows, run.rows))
        pairs = _pairs(first, counts)
        found = [places[equal_rows(wanted, there, sought, places)] for sought, places in pairs]
        return np.unique(np.concatenate(found))

    def _recent_of_keys(self, probe: Run) -> Iterator[Run]:
        """Take the rows of few keys out of what came in few rows."""
        for number, hash_ in enumerate(probe.hashes.tolist()):
            batches = self._recent.of(hash_)
            key = Run(probe.rows.slice(number, 1), probe.hashes[number : number + 1])
            left = []
            for batch in batches:
                match = self._verified_few(key, [(0, batch)])
                if len(match.probe):
                    yield Run(match.found, np.full(len(match.probe), hash_, dtype=np.uint64))
                if len(match.probe) < batch.num_rows:
                    left.append(self._others(key, batch))
            if batches:
                self._recent.leave(hash_, left)

    def _others(self, key: Run, rows: pa.RecordBatch) -> pa.RecordBatch:
        """The rows that have another key than this one."""
        first = pa.array(np.zeros(rows.num_rows, dtype=np.int64))
        same = np.ones(rows.num_rows, dtype=np.bool_)
        for name in self._keys:
            same &= equal_values(key.rows.column(name).take(first), rows.column(name))
        return rows.filter(pa.array(~same))

    @property
    def runs(self) -> tuple[Sequence[Run], Sequence[Run]]:
        """All rows: the runs that they lie in, oldest first, and what has come since the last lookup."""
        self._sort_recent()
        self._leave_out()
        return tuple(self._runs), tuple(self._fresh)

    def restore(self, settled: Sequence[Run], fresh: Sequence[Run]) -> None:
        """Have its rows be those that a state like this one gave as its ``runs``, or several: nothing is merged."""
        self.clear()
        self._runs += settled
        for run in fresh:
            self._add(run)

    def clear(self) -> None:
        """Forget all rows."""
        self._runs.clear()
        self._fresh.clear()
        self._recent = RecentRows()
        self._fresh_rows = self._fresh_bytes = 0
        self._fresh_only_adds, self._fresh_compacts = True, False

    @property
    def nbytes(self) -> int:
        """The memory that it holds."""
        return sum(run.nbytes for run in self._runs) + self._fresh_bytes + self._recent.nbytes

    @property
    def gone_bytes(self) -> int:
        """How much of it is taken by rows that were taken out, and will be given back once they are enough."""
        return sum(run.gone_bytes for run in self._runs)

    @property
    def _settled_rows(self) -> int:
        return sum(len(run.hashes) for run in self._runs)

    def _take_in(self) -> None:
        """Make runs of all that has come since the last time."""
        self._sort_recent()
        self._merge_fresh()

    def _merge_fresh(self) -> None:
        """Make runs of what waits: one, if Arrow can hold it."""
        fresh, self._fresh = self._fresh, []
        self._fresh_rows = self._fresh_bytes = 0
        self._fresh_only_adds, self._fresh_compacts = True, False
        if len(fresh) > 1 and _addressable([run.rows for run in fresh]):
            fresh = self._merged(fresh)
        for run in fresh:
            self._runs += [run] if run.is_sorted else self._merged([run])
            while len(self._runs) > 1 and self._is_worth_merging(*self._runs[-2:]):
                self._runs[-2:] = self._merged(self._runs[-2:])

    def _is_worth_merging(self, older: Run, newer: Run) -> bool:
        rows = len(older.hashes) + len(newer.hashes)
        if self._most_rows is not None and rows > self._most_rows:
            taken = int((weights_of(newer.rows) < 0).sum())
            if _MUCH_TAKEN * taken < rows:
                return False
        return _worth_merging(older, newer)

    def _put_together(self) -> None:
        """Concatenate waiting runs to few: those before the last are at least twice as long as the next, or long."""
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

    def _verified_few(self, probe: Run, candidates: Sequence[tuple[int, pa.RecordBatch]]) -> Match:
        """As ``_verified``, of parts each of which belongs to one row of ``probe``."""
        if len(candidates) == 1:
            number, found = candidates[0]
            numbers = [number] * found.num_rows
        else:
            found = pa.concat_batches([rows for _, rows in candidates])
            numbers = [number for number, rows in candidates for _ in range(rows.num_rows)]
        match = Match(np.array(numbers, dtype=np.int64), found)
        for key in self._keys:
            if not equal_few(probe.rows.column(key), found.column(key), numbers):
                return self._verified(probe, [match])
        return match

    def _merged(self, runs: Sequence[Run]) -> list[Run]:
        """The newest runs, older before newer, as one; none if nothing is left of them."""
        complete = not self._runs or runs[0] is self._runs[0]
        runs = [run.compacted() for run in runs]
        rows = pa.concat_batches([run.rows for run in runs])
        both = Run.sorted(rows, np.concatenate([run.hashes for run in runs]))
        merged = self._compact(both, complete)
        return [merged] if len(merged.hashes) else []


def _only_adds(rows: pa.RecordBatch) -> bool:
    """True if rows have weights, all of which are above zero: no two of them cancel each other."""
    place = rows.schema.get_field_index(WEIGHT)
    return place >= 0 and bool((rows.column(place).to_numpy() > 0).all())


def consolidated(run: Run, complete: bool) -> Run:
    """A run that is a Z-set with equal rows merged, and those of weight zero dropped."""
    return _consolidated(run, run.hashes)


def without_zeros(run: Run, complete: bool) -> Run:
    """As ``consolidated``, if there are retractions; else it would be work for nothing."""
    return consolidated(run, complete) if takes_back(run.rows) else run


def takes_back(rows: pa.RecordBatch) -> bool:
    """True if any row of a Z-set has another weight than one above zero."""
    return not (weights_of(rows) > 0).all()


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
    return Run(owned(run.rows.slice(start, stop - start), _SHARED), run.hashes[start:stop].copy())


def owned(rows: pa.RecordBatch, most: float) -> pa.RecordBatch:
    """The rows, copied if they hold more memory than ``most`` times their own."""
    if rows.get_total_buffer_size() <= most * rows.nbytes:
        return rows
    return rows.take(pa.array(np.arange(rows.num_rows)))


def _worth_merging(older: Run, newer: Run) -> bool:
    return len(older.hashes) <= 2 * len(newer.hashes) and _addressable([older.rows, newer.rows])


def _addressable(batches: Sequence[pa.RecordBatch]) -> bool:
    """True if Arrow can hold them as one."""
    return all(
        sum(batch.column(index).nbytes for batch in batches) <= _MAX_TEXT_BYTES
        for index, type_ in enumerate(batches[0].schema.types)
        if pa.types.is_string(type_) or pa.types.is_binary(type_)
    )


def _candidates(run: Run, first: Positions, counts: Positions, take: Take) -> Iterator[Match]:
    """The rows of a run that have the hashes that were looked up."""
    for probe, rows in _pairs(first, counts):
        if (left := run.is_left(rows)) is not None:
            probe, rows = probe[left], rows[left]  # noqa: PLW2901 - the same, but for what is gone
        if len(probe):
            yield Match(probe, take(run, rows))


def _few_portions(
    parts: list[tuple[int, pa.RecordBatch]],
) -> Iterator[Sequence[tuple[int, pa.RecordBatch]]]:
    """Return the parts, with small ones concatenated if they are alike: the strings of one run may be coded."""
    if len(parts) <= 1 or (
        sum(rows.num_rows for _, rows in parts) <= _LITTLE
        and all(rows.schema == parts[0][1].schema for _, rows in parts)
        and _addressable([rows for _, rows in parts])
    ):
        if parts:
            yield parts
        return
    for part in parts:
        yield [part]


def _bytes_beside(coded: pa.RecordBatch, rows: pa.RecordBatch) -> int:
    """The memory of the columns that were given codes; the others are those of ``rows``."""
    pairs = zip(coded.columns, rows.columns, strict=True)
    return sum(new.get_total_buffer_size() for new, old in pairs if is_coded(new) and not is_coded(old))


def _fit(some: Sequence[Match], match: Match) -> bool:
    """True if matches can be concatenated: the strings of one run may be coded, and of another not."""
    rows = sum(len(each.probe) for each in some) + len(match.probe)
    alike = match.found.schema == some[0].found.schema
    return alike and rows <= _LITTLE and _addressable([each.found for each in (*some, match)])


def _pairs(first: Positions, counts: Positions) -> Iterator[tuple[Positions, Positions]]:
    """``counts[i]`` positions from ``first[i]`` on, each with its ``i``.

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
