"""Z-sets: what adding up, taking back and repeating rows mean for odd values."""

from __future__ import annotations

import pyarrow as pa
import pytest

from nebuli.dataflow import DataflowError, zset

NAN = float("nan")


def _batch(rows: list[tuple[float | None, str | None, int]]) -> pa.RecordBatch:
    f, s, weights = (list(column) for column in zip(*rows, strict=True))
    return pa.record_batch(
        [pa.array(f, pa.float64()), pa.array(s, pa.string()), pa.array(weights, pa.int64())],
        ["f", "s", "_weight"],
    )


def _counted(batch: pa.RecordBatch) -> set[tuple[str, str | None, int]]:
    return {(str(f), s, weight) for f, s, weight in zip(*batch.to_pydict().values(), strict=True)}


def test_consolidate_sums_equal_rows_and_drops_zeros() -> None:
    rows = [(NAN, "a", 1), (None, "a", 2), (-0.0, None, 1), (0.0, None, 1), (-NAN, "a", 1), (1.0, "b", 1)]
    merged = zset.consolidate([_batch([*rows, (1.0, "b", -1)]), _batch([(None, "a", 1)])])
    assert {(f.removeprefix("-"), s, n) for f, s, n in _counted(merged)} == {
        ("nan", "a", 2),
        ("None", "a", 3),
        ("0.0", None, 2),
    }


def test_a_change_and_its_negation_are_nothing() -> None:
    batch, back = _batch([(1.0, "a", 3), (NAN, None, -2)]), _batch([(1.0, "a", -3), (NAN, None, 2)])
    assert zset.consolidate([batch, back]).num_rows == 0


def test_consolidate_takes_a_table_of_no_rows() -> None:
    empty = _batch([(1.0, "a", 1)]).slice(0, 0)
    merged = zset.consolidate(pa.Table.from_batches([empty]))
    assert merged.num_rows == 0
    assert merged.schema.names == ["f", "s", "_weight"]


def test_insertions_expand_to_themselves() -> None:
    rows = pa.record_batch([pa.array([1, None, 1])], ["k"])
    assert zset.expand(zset.insertions(rows)) == rows


def test_expand_repeats_rows_by_their_weight() -> None:
    expanded = zset.expand(_batch([(1.0, "a", 2), (2.0, "b", 0), (3.0, None, 1)]))
    assert expanded.to_pydict() == {"f": [1.0, 1.0, 3.0], "s": ["a", "a", None]}


def test_a_row_taken_back_more_often_than_given_cannot_be_expanded() -> None:
    with pytest.raises(DataflowError, match=r"\{'f': 2.0, 's': 'b'\} was retracted 3 times more"):
        zset.expand(_batch([(1.0, "a", 2), (2.0, "b", -3)]))


def test_a_row_that_is_there_too_often_for_memory_cannot_be_expanded() -> None:
    with pytest.raises(DataflowError, match=r"\{'f': 2.0, 's': 'b'\} occurs 4,611,686,018,427,387,904 times"):
        zset.expand(_batch([(1.0, "a", 1 << 62), (2.0, "b", 1 << 62), (3.0, "c", 2)])[1:])


def test_no_column_may_be_named_like_the_weight() -> None:
    with pytest.raises(DataflowError, match="_weight"):
        zset.weighted(pa.schema([pa.field("_weight", pa.int64())]))


@pytest.mark.parametrize(
    ("rows", "weights", "expected"),
    [
        ([1, 2, 3], [1, 2, -1], True),
        ([1, 2, 1], [1, 1, 1], False),
        ([1, 2, 3], [1, 0, 1], False),
        ([None, None], [1, 1], False),
        ([], [], True),
    ],
)
def test_a_z_set_is_consolidated_where_each_row_stands_once_and_with_a_weight(
    rows: list[int | None], weights: list[int], expected: bool
) -> None:
    batch = pa.record_batch([pa.array(rows, pa.int64()), pa.array(weights, pa.int64())], ["n", zset.WEIGHT])
    assert (zset.consolidated_hashes(batch) is not None) is expected


_TIMES = pa.timestamp("us", "UTC")


@pytest.mark.parametrize(
    ("column", "weights", "expected"),
    [
        (pa.array([1, 2, 3]), [1, 2, -1], True),
        (pa.array([3, 2, 1]), [1, 1, 1], False),
        (pa.array([1, 2, 2]), [1, 1, 1], False),
        (pa.array([1, 2, 3]), [1, 0, 1], False),
        (pa.array([1, None, 3]), [1, 1, 1], False),
        (pa.array([1, 2**63], pa.uint64()), [1, 1], True),
        (pa.array([2**63, 1], pa.uint64()), [1, 1], False),
        (pa.array([-1, 1], pa.int8()), [1, 1], True),
        (pa.array([-5, 7], _TIMES), [1, 1], True),
        (pa.array([7, 7], _TIMES), [1, 1], False),
        (pa.array([1, 2], pa.date32()), [1, 1], True),
        (pa.array([1.0, 2.0]), [1, 1], False),
        (pa.array(["a", "b"]), [1, 1], False),
        (pa.array([*range(1_000), 7]), [1] * 1_001, False),
        (pa.array([], pa.int64()), [], True),
    ],
)
def test_rows_in_which_a_number_or_a_time_increases_are_distinct(
    column: pa.Array, weights: list[int], expected: bool
) -> None:
    """Where another column repeats its values, too."""
    same = pa.array(["same"] * len(column), pa.string())
    batch = pa.record_batch([same, column, same, pa.array(weights, pa.int64())], ["a", "b", "c", zset.WEIGHT])
    assert zset.has_distinct_rows(batch) is expected
    assert not expected or zset.consolidate(batch).num_rows == batch.num_rows
