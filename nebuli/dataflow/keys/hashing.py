"""Row hashes: 64 bits from the values of columns, the same in every process and on every machine.

Equal rows have equal hashes, where equal is what grouping and joining mean by it: null equals null, NaN
equals NaN, and -0.0 equals 0.0. Unequal rows may collide, so users compare the values of rows whose
hashes are equal.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from nebuli.dataflow.buffers import float_bits, text_buffers
from nebuli.dataflow.keys.coding import coded, codes_of, is_coded

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

_NULL = np.uint64(0x9E3779B97F4A7C15)
_SEED = np.uint64(0x2545F4914F6CDD1D)
_THREE = np.uint64(3)
_SHIFTS = (np.uint64(30), np.uint64(27), np.uint64(31))
_FACTORS = (np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB))
_BASE = 0x100000001B3  # FNV's prime: odd, so that multiplying by it loses nothing
_ALL = 0xFFFFFFFFFFFFFFFF
_FEW = 12
_SHORT = 64  # bytes of text, beyond which NumPy is faster
_TEXTS = frozenset(each.id for each in (pa.string(), pa.binary()))
_SIMPLE = _TEXTS | {each.id for each in (pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint64())}
"""Types whose values are hashed by Python, where they are few."""
_BLOCK = 1 << 16  # bytes of text hashed at once: bounds the temporary arrays, and the table of powers


def hash_rows(columns: Sequence[Any], rows: int) -> NDArray[np.uint64]:
    """One hash per row over ``columns``, Arrow arrays of ``rows`` values each."""
    if rows <= _FEW and all(_is_simple(column.type) for column in columns):
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
