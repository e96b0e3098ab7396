"""Texts that come again and again, as numbers: Arrow's dictionary arrays, within a fragment.

Equal texts of one array have equal codes, so that hashing, comparing, grouping and taking them is work on integers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

if TYPE_CHECKING:
    from collections.abc import Container

    from numpy.typing import NDArray

_SAMPLE = 512
"""So many values show whether most of a column come again; fewer are not worth it."""


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
