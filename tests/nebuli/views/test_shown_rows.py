"""What is shown of Z-sets: each row as often as it is there, beside its key."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from nebuli.dataflow.zset import weighted
from nebuli.views.shown_rows import found_bytes
from nebuli.views.view_calls import Found, answer_of, batch_of

SCHEMA = pa.schema([("n", pa.int64())])


def test_a_row_that_is_not_shown_is_counted_for_no_key_though_another_is_there_twice() -> None:
    rows = pa.record_batch([pa.array([1, 2, 3]), pa.array([-1, 2, 1])], schema=weighted(SCHEMA))
    counts = np.array([1, -1, 1, 1], dtype=np.int32)
    found = answer_of(found_bytes(rows, counts, np.ones(4, dtype=np.bool_)))
    assert isinstance(found, Found)
    assert batch_of(found.rows, SCHEMA).column(0).to_pylist() == [2, 2, 3]
    assert np.frombuffer(found.counts, "<i4").tolist() == [0, -1, 2, 1]
