"""The rows that go through Spark: each says by its number whether it is lost, doubled or out of order."""

from __future__ import annotations

import pyarrow as pa

ROWS = 100
"""In a message."""
SCHEMA = pa.schema({"id": pa.int64(), "text": pa.string()})


def batch(message: int) -> pa.RecordBatch:
    """The message of that number: the same whenever it is made."""
    ids = range(message * ROWS, (message + 1) * ROWS)
    return pa.RecordBatch.from_pydict({"id": ids, "text": [f"row {n}" for n in ids]}, schema=SCHEMA)


def count(expected: dict[str, int], rows: pa.RecordBatch) -> None:
    """Move on the next number of every source by the rows of it. Raises Violation for any other row."""
    for source, number, text in zip(
        rows["source"].to_pylist(), rows["id"].to_pylist(), rows["text"].to_pylist(), strict=True
    ):
        wanted = expected.get(source, 0)
        if number != wanted or text != f"row {wanted}":
            raise Violation(f"{source}: row {number} {text!r} came, and row {wanted} was due")
        expected[source] = wanted + 1


class Violation(AssertionError):
    """A promise was broken."""
