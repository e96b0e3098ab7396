"""Arrow's values as Python's, as far as Python has them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa

from netchannel.values import with_article
from netchannel.wire import arrow_objects

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
    """The rows of a batch, a table or a data frame as one batch.

    Raises TypeError for anything else, pyarrow.ArrowException (a ValueError) for rows that a batch cannot have.
    """
    if isinstance(rows, pa.RecordBatch):
        return rows
    if not arrow_objects.is_arrow(rows):
        raise TypeError(
            f"the rows are {with_article(type(rows))}: expected a pyarrow.RecordBatch, a pyarrow.Table or a data "
            f"frame; pyarrow.RecordBatch.from_pylist(rows, schema=...) makes a batch of dicts"
        )
    return arrow_objects.one_batch(rows)


def _value_of(scalar: pa.Scalar) -> Any:
    try:
        return scalar.as_py()
    except (OverflowError, ValueError):
        return scalar.cast(pa.string()).as_py()
