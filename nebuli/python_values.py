"""Arrow's values as Python's, as far as Python has them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa

from netchannel.values import with_article

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["one_batch", "rows_of", "values_of"]


def values_of(column: pa.Array | pa.ChunkedArray) -> list[Any]:
    """The values of a column. Dates and timestamps outside of Python's years, 1 to 9999, are texts."""
    try:
        return column.to_pylist()  # type: ignore[no-any-return]
    except (OverflowError, ValueError):
        return [_value_of(each) for each in column]


def rows_of(batches: Iterable[pa.RecordBatch | pa.Table]) -> list[dict[str, Any]]:
    """The rows of batches, by the names of their columns."""
    return [
        dict(zip(batch.schema.names, row, strict=True))
        for batch in batches
        for row in zip(*map(values_of, batch.columns), strict=True)
    ]


def one_batch(rows: object) -> pa.RecordBatch:
    """The rows of a batch or a table as one batch. Raises TypeError for anything else, ValueError for too many."""
    if isinstance(rows, pa.RecordBatch):
        return rows
    if not isinstance(rows, pa.Table):
        raise TypeError(
            f"the rows are {with_article(type(rows))}: expected a pyarrow.RecordBatch or a pyarrow.Table; of dicts, "
            f"pyarrow.RecordBatch.from_pylist(rows, schema=...) makes one"
        )
    batches = rows.combine_chunks().to_batches()
    if len(batches) > 1:
        raise ValueError(
            "a column of the table has more than the 2 GiB of a batch: give it in pieces, by to_batches()"
        )
    return batches[0] if batches else pa.RecordBatch.from_pylist([], schema=rows.schema)


def _value_of(scalar: pa.Scalar) -> Any:
    try:
        return scalar.as_py()
    except (OverflowError, ValueError):
        return scalar.cast(pa.string()).as_py()
