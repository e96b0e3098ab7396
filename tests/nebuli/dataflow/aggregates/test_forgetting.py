"""Groups that are forgotten are as if no row of them had come, and no other group is touched."""

from __future__ import annotations

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from nebuli.dataflow import arrow_schema, zset
from nebuli.dataflow.aggregates.aggregate import Aggregate
from placement.checking.schemas import output_schema
from placement.plan import AggregateOperator
from tests.nebuli.dataflow.plans import COLUMNS, ROWS, change

AGGREGATES = {
    "rows": "count(*)",
    "values": "count(DISTINCT x)",
    "least": "min(x)",
    "greatest": "max(n)",
    "sum": "sum(n)",
    "mean": "avg(x)",
}
OPERATOR = AggregateOperator(id="a", input="s", by=("k", "g"), aggregates=AGGREGATES)
OUTPUT = output_schema(OPERATOR, [COLUMNS], [])
PARTS = st.lists(st.lists(ROWS, max_size=6), max_size=4)


def aggregate() -> Aggregate:
    return Aggregate(OPERATOR.by, AGGREGATES, COLUMNS, OUTPUT)


def pushed(operator: Aggregate, rows: list) -> list[pa.RecordBatch]:
    batch = change([(row, 1) for row in rows])
    return list(operator.push(0, batch)) if rows else []


def total(batches: list[pa.RecordBatch]) -> set[str]:
    """Rows with weights, NaN as such."""
    return set(
        map(str, zset.consolidate([zset.empty(zset.weighted(arrow_schema(OUTPUT))), *batches]).to_pylist())
    )


@settings(deadline=None)
@given(PARTS, st.sets(st.sampled_from([0, 1, 2, None])), PARTS)
def test_a_group_begins_anew_once_it_was_forgotten(before: list, keys: set, after: list) -> None:
    forgetful, fresh = aggregate(), aggregate()
    groups = {(row[0], row[1]) for rows in before for row in rows if row[0] in keys}
    for rows in before:
        pushed(forgetful, rows)
        pushed(fresh, [row for row in rows if row[0] not in keys])
    columns = [
        pa.array([group[0] for group in groups], pa.int64()),
        pa.array([group[1] for group in groups], pa.string()),
    ]
    forgetful.forget(pa.record_batch(columns, ["k", "g"]))
    for rows in after:
        assert total(pushed(forgetful, rows)) == total(pushed(fresh, rows))
