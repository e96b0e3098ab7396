"""The rows that are written: two numbers and a short string."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa

SCHEMA = pa.schema([("key", pa.int64()), ("value", pa.int64()), ("name", pa.string())])
NAMES = pa.array([f"name {number:05}" for number in range(10_000)])
PORTION = 1_000_000
HIGHEST = 1 << 62


def rows_of(count: int, seed: int = 0) -> pa.RecordBatch:
    """Random keys, values below a million, and ten thousand different names; always the same of a seed."""
    generator = np.random.default_rng(seed)
    return pa.record_batch(
        [
            pa.array(generator.integers(0, HIGHEST, count)),
            pa.array(generator.integers(0, 1_000_000, count)),
            NAMES.take(pa.array(generator.integers(0, len(NAMES), count))),
        ],
        schema=SCHEMA,
    )


def portions(count: int) -> Iterator[pa.RecordBatch]:
    """So many rows, a million at a time."""
    for seed, start in enumerate(range(0, count, PORTION)):
        yield rows_of(min(PORTION, count - start), seed)


def row_of(key: int, value: int) -> pa.RecordBatch:
    """A single one."""
    return pa.record_batch([[key], [value], ["name"]], schema=SCHEMA)
