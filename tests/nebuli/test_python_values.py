"""Values of Arrow that Python has, and those that it has not."""

from __future__ import annotations

from datetime import UTC, datetime

import pandas
import pyarrow as pa
import pytest

from nebuli.python_values import one_batch, rows_of, values_of

FAR_US = 253_402_300_800_000_000
"""The first moment of the year 10000."""


def test_moments_outside_of_pythons_years_are_texts_and_others_are_not():
    moments = pa.array([0, FAR_US, None], pa.timestamp("us", "UTC"))
    assert values_of(moments) == [datetime(1970, 1, 1, tzinfo=UTC), "10000-01-01 00:00:00.000000Z", None]
    assert values_of(pa.array([10_000_000], pa.date32())) == ["29349-01-26"]
    batch = pa.record_batch([moments, pa.array([1, 2, 3])], names=["when", "n"])
    assert [row["n"] for row in rows_of([batch])] == [1, 2, 3]
    assert rows_of([batch])[1]["when"].startswith("10000")


def test_a_table_is_one_batch_of_all_of_its_rows() -> None:
    batch = pa.record_batch({"a": [1, 2]})
    assert one_batch(pa.Table.from_batches([batch, batch])).to_pydict() == {"a": [1, 2, 1, 2]}
    assert one_batch(batch) is batch
    assert one_batch(batch.schema.empty_table()).equals(batch.slice(0, 0))


def test_a_data_frame_is_one_batch() -> None:
    assert one_batch(pandas.DataFrame({"a": [1, 2]})).to_pydict() == {"a": [1, 2]}


@pytest.mark.parametrize(
    ("rows", "named"),
    [([{"a": 1}], "a list"), ({"a": [1]}, "a dict"), (1, "an int"), (b"", "bytes"), (None, "None")],
)
def test_other_rows_are_refused_with_how_to_make_a_batch(rows: object, named: str) -> None:
    with pytest.raises(
        TypeError, match=rf"the rows are {named}: expected .*RecordBatch.from_pylist\(rows, schema"
    ):
        one_batch(rows)
