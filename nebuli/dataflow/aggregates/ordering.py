"""Order codes: 64 bits per value that sort as the values do.

Values in order have codes in order; equal codes mean equal values except for text, of which a code holds the first
eight bytes. NaN is the greatest float, as in DuckDB.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from nebuli.dataflow.buffers import float_bits, text_buffers

if TYPE_CHECKING:
    from numpy.typing import NDArray

_SIGN = np.uint64(1 << 63)


def order_codes(values: Any) -> NDArray[np.uint64]:
    """The codes of an Arrow array without nulls."""
    type_ = values.type
    if pa.types.is_string(type_) or pa.types.is_binary(type_):
        return _text_codes(values)
    if pa.types.is_boolean(type_) or pa.types.is_unsigned_integer(type_):
        return np.asarray(pc.cast(values, pa.uint64()).to_numpy())
    if pa.types.is_floating(type_):
        return _float_codes(np.asarray(values.to_numpy(), dtype=np.float64))
    return np.asarray(values.view(f"int{type_.bit_width}").to_numpy(), dtype=np.int64).view(np.uint64) ^ _SIGN


def _float_codes(values: NDArray[np.float64]) -> NDArray[np.uint64]:
    """IEEE floats sort as integers once negative ones are complemented."""
    bits = float_bits(values)
    return np.where(bits & _SIGN, ~bits, bits | _SIGN)


def _text_codes(values: Any) -> NDArray[np.uint64]:
    codes = np.zeros(len(values), dtype=np.uint64)
    if not len(values):
        return codes
    offsets, data = text_buffers(values)
    for position in range(8):
        codes <<= np.uint64(8)
        at = offsets[:-1] + position
        longer = at < offsets[1:]
        codes[longer] |= data[at[longer]]
    return codes
