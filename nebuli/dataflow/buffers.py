"""The values of Arrow arrays as NumPy arrays, where their bits matter."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray


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
