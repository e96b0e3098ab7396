"""The rows that Spark reads and writes: eight columns of 64-bit integers, or a mix with text."""

from __future__ import annotations

import pyarrow as pa

LONGS, MIX = "longs", "mix"

DDL = {
    LONGS: ", ".join(f"c{column} BIGINT" for column in range(8)),
    MIX: "id BIGINT, at TIMESTAMP, value DOUBLE, word STRING",
}

MADE = {
    LONGS: [f"id + {column} AS c{column}" for column in range(8)],
    MIX: [
        "id",
        "timestamp_micros(id) AS at",
        "CAST(id AS DOUBLE) AS value",
        "concat('word ', id % 1000000) AS word",
    ],
}
"""What makes a column out of Spark's own ``range``."""


def batch(kind: str, rows: int) -> pa.RecordBatch:
    """So many rows, in exactly the types that Spark reads."""
    numbers = pa.array(range(rows), pa.int64())
    if kind == LONGS:
        return pa.RecordBatch.from_pydict({f"c{column}": numbers for column in range(8)})
    return pa.RecordBatch.from_pydict(
        {
            "id": numbers,
            "at": numbers.cast(pa.timestamp("us", tz="UTC")),
            "value": pa.array([float(number) for number in range(rows)], pa.float64()),
            "word": pa.array([f"word {number % 1_000_000}" for number in range(rows)]),
        }
    )
