"""Sums of integers: the result has to fit into int64, and nothing on the way to it."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from nebuli.dataflow import DataflowError, zset
from placement import check_stepped, distribute
from placement.plan import AggregateOperator, FragmentOperator, NetworkSink, NetworkSource
from tests.nebuli.dataflow import oracle
from tests.nebuli.dataflow.dealing import Members, rows_of
from tests.nebuli.dataflow.driven import Driven
from tests.nebuli.dataflow.graphs import SOURCES, TOPOLOGY
from tests.nebuli.dataflow.windowed import change as timed
from tests.nebuli.dataflow.windowed import circuit, fragment, source, window
from tests.support.documents import op, query
from tests.support.sizes import examples

Row = tuple[int, int | None, int | None]
"""A group, a value, and one without a sign."""
Changes = list[tuple[Row, int]]

LEAST, GREATEST = -(2**63), 2**63 - 1
SCHEMA = zset.weighted(pa.schema([("k", pa.int64()), ("n", pa.int64()), ("u", pa.uint64())]))
AGGREGATES = {
    "total": "sum(n)",
    "unsigned": "sum(u)",
    "mean": "avg(n)",
    "some": "count(n)",
    "all": "count(*)",
}
REFERENCE = "SELECT k, sum(n), sum(u), avg(n), count(n), count(*) FROM t GROUP BY k"
ROWS: st.SearchStrategy[Row] = st.tuples(
    st.integers(0, 1),
    st.none() | st.sampled_from([LEAST, GREATEST, 2**62, -1, 0, 1]) | st.integers(LEAST, GREATEST),
    st.none() | st.sampled_from([2**64 - 1, 0, 1]) | st.integers(0, 2**40),
)

BEYOND_AND_BACK: list[Row] = [(0, GREATEST, None), (0, 1, None), (0, -2, None)]


@st.composite
def histories(draw: st.DrawFn) -> tuple[list[Row], list[Changes]]:
    """Rows, and batches that come to them in the end: others are given and taken back, in any order."""
    kept, gone = draw(st.lists(ROWS, max_size=6)), draw(st.lists(ROWS, max_size=4))
    back = [(k, n and min(GREATEST, -n), u) for k, n, u in kept if draw(st.booleans())]
    rows = [*kept, *back]
    changes = [(row, 1) for row in rows] + [(row, w) for row in gone for w in (2, -1, -1)]
    draw(st.randoms(use_true_random=False)).shuffle(changes)
    sizes = draw(st.lists(st.integers(1, 5), min_size=len(changes), max_size=len(changes)))
    batches, left = [], changes
    for size in sizes:
        batches, left = [*batches, left[:size]], left[size:]
    return rows, [batch for batch in batches if batch]


def batch_of(changes: Changes) -> pa.RecordBatch:
    columns = zip(*((*row, weight) for row, weight in changes), strict=True)
    return pa.record_batch(list(map(list, columns)), schema=SCHEMA)


def free(aggregates: dict[str, str], by: Sequence[str] = ("k",), *above: FragmentOperator) -> Driven:
    columns = [{"name": f.name, "type": str(f.type)} for f in list(SCHEMA)[:-1]]
    settings_ = {"id": "s", "channel": "c", "address": "nowhere", "schema": columns}
    last = above[-1].id if above else "a"
    return Driven(
        [
            NetworkSource.model_validate(settings_),
            AggregateOperator(id="a", input="s", by=tuple(by), aggregates=aggregates),
            *above,
            NetworkSink(id="root", input=last, channel="out", address="nowhere"),
        ]
    )


def result(circuit_: Driven, batches: Sequence[Changes]) -> list[tuple[Any, ...]]:
    out = [zset.empty(circuit_.schema)]
    for batch in batches:
        out += circuit_.push("s", batch_of(batch))
    rows = zset.expand(zset.consolidate([*out, *circuit_.end("s")]))
    return sorted(zip(*(column.to_pylist() for column in rows.columns), strict=True)) if rows else []


def reference(rows: Sequence[Row]) -> list[tuple[Any, ...]]:
    """Of DuckDB, whose sums are HUGEINT, of which no few rows leave the range."""
    columns = [[row[index] for row in rows] for index in range(3)]
    arrays = [pa.array(each, field.type) for each, field in zip(columns, SCHEMA, strict=False)]
    table = pa.table(arrays, names=["k", "n", "u"])
    return sorted(oracle.query(REFERENCE, {"t": table})[1])


def fits(rows: Sequence[tuple[Any, ...]]) -> bool:
    return all(total is None or LEAST <= total <= GREATEST for row in rows for total in row[1:3])


@settings(deadline=None, max_examples=examples(120))
@given(histories())
@example((BEYOND_AND_BACK, [[(row, 1)] for row in BEYOND_AND_BACK]))
def test_a_sum_is_that_of_all_rows_in_whatever_batches_they_come(
    drawn: tuple[list[Row], list[Changes]],
) -> None:
    rows, batches = drawn
    expected = reference(rows)
    if not fits(expected):
        with pytest.raises(
            DataflowError, match=r"operator a: the sum -?\d+ is beyond the range of int64, in 'sum"
        ):
            result(free(AGGREGATES), batches)
        return
    ours = result(free(AGGREGATES), batches)
    assert [row[:3] + row[4:] for row in ours] == [row[:3] + row[4:] for row in expected]
    assert all(
        oracle.close(a[3], b[3], 1e-15) for a, b in zip(ours, expected, strict=True) if b[3] is not None
    )


def check_sums(members: Members) -> None:
    for each in members.circuits:
        each.check_sums()


@settings(deadline=None, max_examples=examples(40))
@given(histories(), st.integers(1, 3), st.integers(0, 1 << 30))
def test_in_steps_the_rows_of_all_steps_decide(
    drawn: tuple[list[Row], list[Changes]], members: int, seed: int
) -> None:
    rows, batches = drawn
    operators = [
        op("source", "a", logical="a"),
        op("aggregate", "sums", input="a", by=["k"], aggregates={"total": "sum(n)"}),
        op("sink", "out", input="sums", sink="o0"),
    ]
    plans = [distribute(check_stepped(query(*operators), TOPOLOGY), each, SOURCES) for each in (members, 2)]
    circuits, out = Members(plans[0], seed, SOURCES, plans[1:]), []
    for batch in batches:
        step = circuits.step({"a": [((k, "", 0.0, n), weight) for (k, n, _), weight in batch]})
        out.append(step["out"])
    expected = [row[:2] for row in reference([(k, n, None) for k, n, _ in rows])]
    if any(total is not None and not LEAST <= total <= GREATEST for _, total in expected):
        with pytest.raises(DataflowError, match=r"operator sums: the sum -?\d+ is beyond the range of int64"):
            check_sums(circuits)
        return
    check_sums(circuits)
    assert sorted(rows_of(zset.consolidate(out))) == expected if out else not expected


def test_a_view_in_steps_can_be_read_after_each_step_and_so_each_must_fit() -> None:
    operators = [
        op("source", "a", logical="a"),
        op("aggregate", "sums", input="a", by=["k"], aggregates={"total": "sum(n)"}),
        op("view", "v", input="sums", key=["k"]),
    ]
    plan = distribute(check_stepped(query(*operators), TOPOLOGY), 1, SOURCES)
    rows = [((1, "", 0.0, n), 1) for n in (GREATEST, 1, -2)]
    members = Members(plan, 0, SOURCES)
    members.step({"a": rows})
    (run,) = members.circuits[0].contents("v") or []
    assert run.rows.to_pylist() == [{"k": 1, "total": GREATEST - 1, zset.WEIGHT: 1}]
    with pytest.raises(DataflowError, match="operator sums: the sum 9223372036854775808 is beyond"):
        Members(plan, 0, SOURCES).step({"a": rows[:2]})


def test_a_window_gives_its_sum_when_it_is_over_and_not_before() -> None:
    operators = [
        source("a"),
        window("w", "a", 60, 60, 0),
        op("aggregate", "g", input="w", by=["window_start", "window_end"], aggregates={"total": "sum(k)"}),
    ]

    def totals(values: list[int]) -> list[int]:
        circuit_, out = circuit(fragment(*operators)), []
        for value in values:
            out += circuit_.push("a", timed([((0, value, 0.0), 1)]))
        return [total for batch in [*out, *circuit_.end("a")] for total in batch.column("total").to_pylist()]

    assert totals([GREATEST, 1, -2]) == [GREATEST - 1]
    with pytest.raises(DataflowError, match="the sum 9223372036854775808 is beyond"):
        totals([GREATEST, 1])


def test_a_sum_of_sums_and_one_of_all_rows_pass_beyond_as_well() -> None:
    batches: list[Changes] = [[((k, GREATEST, None), 1) for k in (0, 1)], [((1, LEAST, None), 1)]]
    above = AggregateOperator(id="b", input="a", aggregates={"t": "sum(total)"})
    assert result(free({"total": "sum(n)"}, ["k"], above), batches) == [(GREATEST - 1,)]
    assert result(free({"total": "sum(n)"}, []), batches) == [(GREATEST - 1,)]


@pytest.mark.parametrize("seed", range(5))
def test_weights_count_in_full_and_never_wrap(seed: int) -> None:
    """Against Python's integers: a count, and a sum of as many rows, is exact or an error."""
    drawn = random.Random(seed)
    weights = [drawn.choice([1, 2**31, 2**40, 2**61, 2**62]) for _ in range(drawn.randint(2, 6))]
    batches: list[Changes] = [[((0, n % 3 - 1, None), weight)] for n, weight in enumerate(weights)]
    count, total = sum(weights), sum((n % 3 - 1) * weight for n, weight in enumerate(weights))
    for cut in (batches, [[change for batch in batches for change in batch]]):
        circuit_ = free({"total": "sum(n)", "some": "count(n)", "all": "count(*)"})
        if count <= GREATEST:
            (*out,) = [each for batch in cut for each in circuit_.push("s", batch_of(batch))]
            rows = zset.consolidate([*out, *circuit_.end("s")]).to_pylist()
            assert rows == [{"k": 0, "total": total, "some": count, "all": count, zset.WEIGHT: 1}]
        else:
            with pytest.raises(DataflowError, match=rf"rows occur {2**63} times|beyond the range of int64"):
                result(circuit_, cut)
