"""Keys as numbers: codes of repeated texts, bits of values, hashes of rows, and where among sorted ones a hash lies."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

if TYPE_CHECKING:
    from collections.abc import Container, Sequence

    from numpy.typing import NDArray

    Hashes = NDArray[np.uint64]
    Positions = NDArray[np.int64]

_SAMPLE = 512
"""So many values show whether most of a column come again; fewer are not worth it."""
_RUNS = 10
"""Hashes of fewer sorted runs are merged by NumPy's stable sort sooner than they are sorted here."""
FEWEST_SORTED = 1024
"""Fewer hashes are sorted by NumPy alone: more calls would take longer than they save."""


def stable_order(hashes: Hashes) -> Positions:
    """The places of hashes in their order; equal hashes keep theirs.

    NumPy sorts numbers in a sixth of the time in which it sorts their places. So the places take the low bits of the
    hashes: these rarely decide, and if they do, it is noticed.
    """
    rows = len(hashes)
    if rows < FEWEST_SORTED or np.count_nonzero(hashes[1:] < hashes[:-1]) < _RUNS:
        return np.argsort(hashes, kind="stable")
    low = np.uint64((1 << (rows - 1).bit_length()) - 1)
    placed = hashes & ~low
    placed |= np.arange(rows, dtype=np.uint64)
    placed.sort()
    placed &= low
    order = placed.view(np.int64)
    found = hashes[order]
    return order if (found[1:] >= found[:-1]).all() else np.argsort(hashes, kind="stable")


def is_coded(column: Any) -> bool:
    """True if the column has codes."""
    return isinstance(column, pa.DictionaryArray)


def coded(column: Any) -> Any:
    """The column with codes, if it is one of texts that come again; else as it is."""
    if not (pa.types.is_string(column.type) or pa.types.is_binary(column.type)) or len(column) <= _SAMPLE:
        return column
    return column.dictionary_encode() if len(column.slice(0, _SAMPLE).unique()) <= _SAMPLE // 2 else column


def coded_rows(rows: pa.RecordBatch, names: Container[str] | None = None) -> pa.RecordBatch:
    """The batch with codes in the columns ``names``, or in all, that have texts which come again."""
    wanted = [names is None or name in names for name in rows.schema.names]
    columns = [coded(column) if each else column for column, each in zip(rows.columns, wanted, strict=True)]
    return pa.record_batch(columns, rows.schema.names)


def plain(column: Any) -> Any:
    """The column's values themselves."""
    return column.dictionary.take(column.indices) if is_coded(column) else column


def plain_rows(rows: pa.RecordBatch, but: Container[str] = ()) -> pa.RecordBatch:
    """The batch without codes, except in the columns ``but``."""
    names = rows.schema.names
    columns = [each if name in but else plain(each) for each, name in zip(rows.columns, names, strict=True)]
    return pa.record_batch(columns, names)


def codes_of(column: Any) -> NDArray[np.int64]:
    """The codes of a coded column; null has its own, after all others."""
    indices = column.indices
    if indices.null_count:
        indices = indices.fill_null(len(column.dictionary))
    return np.asarray(indices.to_numpy(), dtype=np.int64)


_NULL = np.uint64(0x9E3779B97F4A7C15)
_SEED = np.uint64(0x2545F4914F6CDD1D)
_THREE = np.uint64(3)
_SHIFTS = (np.uint64(30), np.uint64(27), np.uint64(31))
_FACTORS = (np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB))
_BASE = 0x100000001B3  # FNV's prime: odd, so that multiplying by it loses nothing
_ALL = 0xFFFFFFFFFFFFFFFF
_FEWEST_ROWS = 12  # so few are hashed by Python
_SHORT = 64  # bytes of text, beyond which NumPy is faster
_TEXTS = frozenset(each.id for each in (pa.string(), pa.binary()))
_SIMPLE = _TEXTS | {each.id for each in (pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint64())}
"""Types whose values are hashed by Python, where they are few."""
_BLOCK = 1 << 16  # bytes of text hashed at once: bounds the temporary arrays, and the table of powers


def hash_rows(columns: Sequence[Any], rows: int) -> NDArray[np.uint64]:
    """One hash per row over ``columns``, Arrow arrays of ``rows`` values each."""
    if rows <= _FEWEST_ROWS and all(_is_simple(column.type) for column in columns):
        return _few_hashes(columns, rows)
    result = np.full(rows, _SEED, dtype=np.uint64)
    for column in columns:
        result *= _THREE
        result += _hash_column(column)
        result = _mix(result)
    return result


def _few_hashes(columns: Sequence[Any], rows: int) -> NDArray[np.uint64]:
    """The same, by Python: of few rows, each call of NumPy takes longer than all of this."""
    hashes = [int(_SEED)] * rows
    for column in columns:
        to_bits = _few_texts if _is_text(column.type) else _few_integers
        hashes = [
            _mixed(hash_ * 3 + (int(_NULL) if value is None else _mixed(to_bits(value))))
            for hash_, value in zip(hashes, column.to_pylist(), strict=True)
        ]
    return np.array(hashes, dtype=np.uint64)


def _is_simple(type_: pa.DataType) -> bool:
    return type_.id in _SIMPLE


def _is_text(type_: pa.DataType) -> bool:
    return type_.id in _TEXTS


def _few_integers(value: int) -> int:
    return value & _ALL


def _few_texts(value: str | bytes) -> int:
    data = value.encode() if isinstance(value, str) else value
    if len(data) > _SHORT:
        return int(_text_bits(pa.array([data]))[0])
    hash_ = 0
    for byte in reversed(data):
        hash_ = hash_ * _BASE + byte + 1 & _ALL
    return hash_ * _TO_BLOCK + len(data)


def _mixed(value: int) -> int:
    """As ``_mix``."""
    value &= _ALL
    value = (value ^ value >> 30) * 0xBF58476D1CE4E5B9 & _ALL
    value = (value ^ value >> 27) * 0x94D049BB133111EB & _ALL
    return value ^ value >> 31


def combined(hashes: Sequence[NDArray[np.uint64]]) -> NDArray[np.uint64]:
    """One hash per row over several."""
    result = hashes[0]
    for each in hashes[1:]:
        result = result * _THREE + _mix(each)
    return result


def _hash_column(column: Any) -> NDArray[np.uint64]:
    column = coded(column)
    if is_coded(column):  # each text once
        return np.append(_mix(_text_bits(column.dictionary)), _NULL)[codes_of(column)]
    hashes = _mix(_bits(column))
    if column.null_count:
        hashes[pc.is_null(column).to_numpy(zero_copy_only=False)] = _NULL
    return hashes


def _mix(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """The finalizer of splitmix64, a bijection whose every input bit reaches every output bit."""
    # One array for all shifts: of few rows, making one takes as long as filling it.
    shifted = values >> _SHIFTS[0]
    values = values ^ shifted
    values *= _FACTORS[0]
    values ^= np.right_shift(values, _SHIFTS[1], out=shifted)
    values *= _FACTORS[1]
    values ^= np.right_shift(values, _SHIFTS[2], out=shifted)
    return values


def text_buffers(column: Any) -> tuple[NDArray[np.int64], NDArray[np.uint8]]:
    """Return where the strings of a column begin and, after the last, end; and the bytes to which this refers.

    The column must not be empty: it may then have no buffers.
    """
    _, offsets, data = column.buffers()
    places = np.frombuffer(offsets, dtype=np.int32)[column.offset :][: len(column) + 1]
    return places.astype(np.int64), np.frombuffer(data or b"", dtype=np.uint8)


def float_bits(values: NDArray[np.float64]) -> NDArray[np.uint64]:
    """The bits of floats, the same for equal ones: there is one NaN, and -0.0 is 0.0."""
    return np.where(np.isnan(values), np.nan, values + 0.0).view(np.uint64)


def _bits(column: Any) -> NDArray[np.uint64]:
    """64 bits per value, equal for equal values; what null slots hold does not matter."""
    type_ = column.type
    if pa.types.is_string(type_) or pa.types.is_binary(type_):
        return _text_bits(column)
    if pa.types.is_boolean(type_):
        return np.asarray(pc.cast(column, pa.uint8()).fill_null(0).to_numpy(), dtype=np.uint64)
    if pa.types.is_floating(type_):
        filled = column.fill_null(0) if column.null_count else column
        return float_bits(np.asarray(filled.to_numpy(), dtype=np.float64))
    integers = column.view(f"int{type_.bit_width}")
    if integers.null_count:  # asked first: of few rows, filling takes as long as all the rest
        integers = integers.fill_null(0)
    return np.asarray(integers.to_numpy(), dtype=np.int64).view(np.uint64)


def _text_bits(column: Any) -> NDArray[np.uint64]:
    """Return a polynomial over the bytes of each value; the lengths distinguish values that only differ in zeros."""
    if not len(column):
        return np.empty(0, dtype=np.uint64)
    offsets, data = text_buffers(column)
    hashes = np.empty(len(column), dtype=np.uint64)
    row = 0
    while row < len(column):
        stop = int(np.searchsorted(offsets, offsets[row] + _BLOCK, side="right")) - 1
        if stop == row:  # one value longer than a block; these are few for the bytes they have
            value = data[offsets[row] : offsets[row + 1]]
            hashes[row] = int.from_bytes(hashlib.blake2b(value.tobytes(), digest_size=8).digest(), "little")
            row += 1
            continue
        hashes[row:stop] = _polynomials(data, offsets[row : stop + 1])
        row = stop
    return hashes + np.diff(offsets).astype(np.uint64)


def _polynomials(data: NDArray[np.uint8], offsets: NDArray[np.int64]) -> NDArray[np.uint64]:
    """``sum(byte[i] * base ** i)`` of each value, as differences of one running sum over the block.

    A value's terms in the running sum have exponents counted from the block's start; multiplying by what is
    missing to ``base ** _BLOCK`` makes them count from the value's own start.
    """
    starts = offsets[:-1] - offsets[0]
    ends = offsets[1:] - offsets[0]
    terms = (data[offsets[0] : offsets[-1]].astype(np.uint64) + np.uint64(1)) * _POWERS[: ends[-1]]
    running = np.concatenate([np.zeros(1, dtype=np.uint64), np.cumsum(terms, dtype=np.uint64)])
    return np.asarray((running[ends] - running[starts]) * _POWERS[_BLOCK - starts])


def _powers() -> NDArray[np.uint64]:
    factors: NDArray[np.uint64] = np.full(_BLOCK + 1, _BASE, dtype=np.uint64)
    factors[0] = 1
    return np.asarray(np.multiply.accumulate(factors))


_POWERS = _powers()
_TO_BLOCK = int(_POWERS[_BLOCK])


_FEWEST = 4096
"""Among fewer hashes a binary search stays in the processor's caches, and is as fast."""
_FEW, _NOT_MANY = 4096, 65536
"""So few hashes are found among so many as fast by a binary search: the table's work is in its number of passes."""
_PER_SEARCH = 8
"""So many hashes are put into the table in the time that seeking one takes."""
_STEPS = 4
"""How far beyond the table's word a hash is sought step by step. Where hashes are spread, few lie further."""


class Directory:
    """Finds hashes among sorted ones: by binary search, and by a table once that pays.

    The table divides the range of the hashes into about as many parts as there are hashes, and has the beginning of
    each part. It is made when one hash has been sought for every eight that it has to count: making it costs no more
    than the searches before it did.
    """

    def __init__(self, hashes: Hashes) -> None:
        self._hashes = hashes
        self._sought = 0
        self._table: NDArray[np.int32] | None = None
        self._shift = np.uint64(0)
        self._sizes: NDArray[np.int32] | None = None  # how often the hash is there that begins at a position

    @property
    def nbytes(self) -> int:
        """The memory that it has in addition to the hashes."""
        return sum(each.nbytes for each in (self._table, self._sizes) if each is not None)

    def find(self, wanted: Hashes) -> tuple[Positions, Positions]:
        """The first position of each hash, and how often it is there: where that is never, the position is any."""
        if len(wanted) < _FEW and len(self._hashes) < _NOT_MANY:
            return self._searched(wanted)
        if self._table is None:
            self._sought += len(wanted)
            if _PER_SEARCH * self._sought < len(self._hashes) or not _FEWEST <= len(self._hashes) < 1 << 31:
                return self._searched(wanted)
            self._table = self._made()
        return self._looked_up(self._table, wanted)

    def _searched(self, wanted: Hashes) -> tuple[Positions, Positions]:
        hashes = self._hashes
        first = np.searchsorted(hashes, wanted, side="left")
        if not len(hashes):
            return first, np.zeros_like(first)
        counts = (hashes.take(first, mode="clip") == wanted).astype(np.int64)
        if ((hashes.take(first + 1, mode="clip") == wanted) & (first + 1 < len(hashes))).any():
            there = np.flatnonzero(counts)
            counts[there] = np.searchsorted(hashes, wanted[there], side="right") - first[there]
        return first, counts

    def _made(self) -> NDArray[np.int32]:
        hashes, count = self._hashes, len(self._hashes)
        span = int(hashes[-1] - hashes[0])
        self._shift = np.uint64(max(0, span.bit_length() - count.bit_length()))
        parts = ((hashes - hashes[0]) >> self._shift).view(np.int64)
        per_part = np.bincount(parts)
        fresh = np.flatnonzero(hashes[1:] != hashes[:-1]) + 1
        if len(fresh) < count - 1:
            starts = np.concatenate([np.zeros(1, dtype=np.int64), fresh])
            self._sizes = np.zeros(count, dtype=np.int32)
            self._sizes[starts] = np.diff(starts, append=count)
        return (np.cumsum(per_part) - per_part).astype(np.int32)

    def _looked_up(self, table: NDArray[np.int32], wanted: Hashes) -> tuple[Positions, Positions]:
        hashes = self._hashes
        inside = np.clip(wanted, hashes[0], hashes[-1])
        at = table[((inside - hashes[0]) >> self._shift).view(np.int64)].astype(np.int64)
        before = np.flatnonzero(hashes[at] < inside)
        for _ in range(_STEPS):
            at[before] += 1
            before = before[hashes[at[before]] < inside[before]]
        if len(before):
            at[before] = np.searchsorted(hashes, inside[before], side="left")
        there = hashes[at] == wanted
        return at, there.astype(np.int64) if self._sizes is None else np.where(there, self._sizes[at], 0)


_BATCH_BYTES, _COLUMN_BYTES = 512, 512
"""Approximate bytes of a batch of few rows, and of each of its columns: its values are the least of it."""

_SHARED_BYTES = 4096
"""More than this is not kept for a few rows of it."""


class RecentRows:
    """Batches of few rows, by hash; those of one hash in the order that they came in."""

    def __init__(self) -> None:
        self._by_hash: dict[int, list[pa.RecordBatch]] = {}
        self.rows = self.batches = 0
        self.nbytes = 0

    def add(self, rows: pa.RecordBatch, hashes: Sequence[int]) -> None:
        """More of them, which may be a part of what is much larger."""
        if rows.get_total_buffer_size() > _SHARED_BYTES:
            rows = rows.take(pa.array(np.arange(rows.num_rows)))
        if len(set(hashes)) == 1:
            self._add(hashes[0], rows)
        else:
            for index, hash_ in enumerate(hashes):
                self._add(hash_, rows.slice(index, 1))

    def of(self, hash_: int) -> Sequence[pa.RecordBatch]:
        """Those with the hash."""
        return self._by_hash.get(hash_, ())

    def leave(self, hash_: int, left: Sequence[pa.RecordBatch]) -> None:
        """Have ``left`` be all with the hash."""
        for each in self._by_hash.pop(hash_, ()):
            self.rows -= each.num_rows
            self.batches -= 1
            self.nbytes -= _bytes_of(each)
        for each in left:
            self._add(hash_, each)

    def emptied(self) -> tuple[pa.RecordBatch, NDArray[np.uint64]]:
        """All that there are, with their hashes; nothing is left here."""
        listed = [(hash_, each) for hash_, batches in self._by_hash.items() for each in batches]
        hashes = np.repeat(
            np.array([hash_ for hash_, _ in listed], dtype=np.uint64), [each.num_rows for _, each in listed]
        )
        self._by_hash = {}
        self.rows = self.batches = self.nbytes = 0
        return pa.concat_batches([each for _, each in listed]), hashes

    def _add(self, hash_: int, rows: pa.RecordBatch) -> None:
        self._by_hash.setdefault(hash_, []).append(rows)
        self.rows += rows.num_rows
        self.batches += 1
        self.nbytes += _bytes_of(rows)


def _bytes_of(rows: pa.RecordBatch) -> int:
    return int(rows.get_total_buffer_size() + _BATCH_BYTES + _COLUMN_BYTES * rows.num_columns)
