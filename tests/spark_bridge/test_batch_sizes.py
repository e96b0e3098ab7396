"""Small batches become larger ones, on the way into Spark and out of it."""

from __future__ import annotations

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from spark_bridge.batch_sizes import joined

MIB = 1 << 20


def batches(*counts: int) -> list[pa.RecordBatch]:
    """Numbered rows, so many in each."""
    starts = [sum(counts[:index]) for index in range(len(counts))]
    ranges = (range(start, start + count) for start, count in zip(starts, counts, strict=True))
    return [pa.RecordBatch.from_pydict({"n": pa.array(each, pa.int64())}) for each in ranges]


@given(st.lists(st.integers(0, 30), max_size=40), st.integers(1, 50))
def test_rows_stay_in_order_and_only_the_last_batch_is_small(counts: list[int], enough: int):
    found = list(joined(batches(*counts), enough))
    assert [n for batch in found for n in batch["n"].to_pylist()] == list(range(sum(counts)))
    assert all(enough <= batch.num_rows < enough + 30 for batch in found[:-1])
    assert all(batch.num_rows for batch in found)


def test_what_has_enough_bytes_waits_for_no_more_and_is_not_copied():
    wide = pa.RecordBatch.from_pydict({"text": ["x" * MIB] * 4})
    small = pa.RecordBatch.from_pydict({"text": ["y"]})
    found = list(joined([wide, small, small, wide, small], 1000))
    assert [batch.num_rows for batch in found] == [4, 6, 1]
    assert found[0].column(0).buffers()[2].address == wide.column(0).buffers()[2].address
