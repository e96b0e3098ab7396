"""What Z-sets add up to."""

from collections import Counter
from collections.abc import Iterable, Sequence

import pyarrow as pa


def contents(batches: Iterable[pa.RecordBatch]) -> Counter[tuple[object, ...]]:
    """The weight of each row, by its values."""
    total: Counter[tuple[object, ...]] = Counter()
    for batch in batches:
        for *row, weight in zip(*(column.to_pylist() for column in batch.columns), strict=True):
            total[tuple(row)] += weight
    return Counter({row: weight for row, weight in total.items() if weight})


def table_of(total: Counter[tuple[object, ...]], schema: pa.Schema) -> pa.Table:
    """A table that has each row once; each has to be there once."""
    assert set(total.values()) <= {1}
    columns: Sequence[Sequence[object]] = list(zip(*total, strict=True)) if total else [[] for _ in schema]
    return pa.table(
        [pa.array(each, field.type) for each, field in zip(columns, schema, strict=True)], schema=schema
    )
