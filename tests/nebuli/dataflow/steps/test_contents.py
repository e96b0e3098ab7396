"""What inputs and outputs add up to: all that has come since the first step, saved with the state, and no more."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nebuli.dataflow import SteppedCircuit
from nebuli.dataflow.state import Run
from nebuli.dataflow.steps.contents import Contents, netted
from nebuli.dataflow.zset import consolidate, weighted
from placement import check_stepped, distribute
from tests.support.documents import op, query
from tests.support.sizes import examples
from tests.support.stepping import run_alone
from topology import parse_topology

TOPOLOGY = """
logical:
  - {name: sales, materialized: MARK, schema: [{name: shop, type: string}, {name: amount, type: int64}]}
nodes:
  - {address: "n:1", sinks: [{name: rows, type: "Null"}, {name: totals, type: Print, mode: changes}]}
"""
QUERY = query(
    op("source", "s", logical="sales"),
    op("sink", "rows", input="s", sink="rows"),
    op("aggregate", "g", input="s", by=["shop"], aggregates={"n": "count(*)"}),
    op("sink", "totals", input="g", sink="totals"),
)
SCHEMA = weighted(pa.schema([("shop", pa.string()), ("amount", pa.int64())]))
Change = list[tuple[str | None, int, int]]
CHANGES: st.SearchStrategy[Change] = st.lists(
    st.tuples(st.none() | st.sampled_from("xyz"), st.integers(0, 2), st.sampled_from([1, 1, 2, -1])),
    max_size=6,
)


def circuits(members: int, *, mark: bool = True, **bounds: int) -> list[SteppedCircuit]:
    topology = parse_topology(TOPOLOGY.replace("MARK", str(mark).lower()))
    plan = distribute(check_stepped(QUERY, topology), members, {"s"})
    return [SteppedCircuit(plan, member, **bounds) for member in range(members)]


def zset(change: Change) -> pa.RecordBatch:
    rows = [{"shop": shop, "amount": amount, "_weight": weight} for shop, amount, weight in change]
    return pa.RecordBatch.from_pylist(rows, SCHEMA)


def summed(*batches: pa.RecordBatch) -> Counter[tuple[Any, ...]]:
    found: Counter[tuple[Any, ...]] = Counter()
    for batch in batches:
        for *row, weight in zip(*(column.to_pylist() for column in batch.columns), strict=True):
            found[tuple(row)] += weight
    return Counter({row: weight for row, weight in found.items() if weight})


def contents(running: list[SteppedCircuit], table: str) -> Counter[tuple[Any, ...]]:
    """A table of all members, as whoever asks for it adds it up."""
    return summed(*(rows for each in running for rows in netted(each.contents(table) or [])))


def saved_again(running: list[SteppedCircuit], *, mark: bool = True, **bounds: int) -> list[SteppedCircuit]:
    """The same circuits, from their saved state."""
    tables = [
        {
            table: {key: bytes(encode()) for key, encode in entries.items()}
            for table, entries in each.save().tables.items()
        }
        for each in running
    ]
    again = circuits(len(running), mark=mark, **bounds)
    for each, of_one in zip(again, tables, strict=True):
        each.load(of_one)
    return again


@settings(max_examples=examples(60), deadline=None)
@given(st.lists(CHANGES, max_size=8), st.integers(1, 3), st.integers(0, 7))
def test_contents_are_the_sum_of_all_steps(changes: list[Change], members: int, saved_at: int) -> None:
    """At every step, of the input and of both outputs, also from saved state on."""
    running = circuits(members)
    came = Counter[tuple[Any, ...]]()
    out: dict[str, Counter[tuple[Any, ...]]] = {"rows": Counter(), "totals": Counter()}
    for step, change in enumerate(changes):
        parts = [zset(change[member::members]) for member in range(members)]
        for outputs in run_alone(running, [{"s": part} for part in parts]):
            for name, found in out.items():
                found.update(summed(outputs[name]))
        came.update(summed(zset(change)))
        if step == saved_at:
            running = saved_again(running)
        for table, expected in {"s": came, **out}.items():
            assert contents(running, table) == Counter({r: w for r, w in expected.items() if w})


@given(st.lists(st.tuples(CHANGES, st.booleans()), max_size=5))
def test_netting_leaves_the_z_set_and_nothing_below_zero_that_is_not_below_zero(
    changes: list[tuple[Change, bool]],
) -> None:
    """Of sorted runs, and of runs whose rows lie in any order."""
    runs = []
    for change, is_sorted in changes:
        run = Run.of(zset(change), ["shop", "amount"])
        runs.append(run if is_sorted else Run(run.rows[::-1], run.hashes[::-1]))
    rows = netted(runs)
    everything = [run.rows for run in runs]
    assert summed(*rows) == summed(*everything)
    below = {row for row, weight in summed(*everything).items() if weight < 0}
    found = {
        (shop, amount)
        for batch in rows
        for shop, amount, weight in zip(*(column.to_pylist() for column in batch.columns), strict=True)
        if weight < 0
    }
    assert found == below


def test_what_was_not_asked_for_at_first_is_not_known() -> None:
    """An input that is marked later has not all its rows; one that is not any more, is forgotten."""
    running = circuits(1, mark=False)
    run_alone(running, [{"s": zset([("x", 1, 1)])}])
    (marked,) = saved_again(running, mark=True)
    assert marked.contents("s") is None
    assert summed(*netted(marked.contents("rows") or [])) == {("x", 1): 1}
    (again,) = saved_again([marked], mark=True)
    assert again.contents("s") is None, "which is remembered"

    running = circuits(1, mark=True)
    run_alone(running, [{"s": zset([("x", 1, 1)])}])
    (unmarked,) = saved_again(running, mark=False)
    saved = unmarked.save()
    assert {table for table, _ in saved.gone} == {"s"}
    assert "s" not in unmarked.tables


def test_an_output_that_grows_too_large_is_given_up_and_its_circuit_goes_on(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """At a quarter of what an operator's state may hold: it is said once, and known after a restart."""
    running = circuits(1, mark=False, max_state_bytes=400_000)
    for number in range(100):
        run_alone(running, [{"s": zset([("shop" * 10, number * 30 + each, 1) for each in range(30)])}])
    assert running[0].contents("rows") is None
    assert [record.message for record in caplog.records if "output rows" in record.message] != []
    assert len(caplog.records) == 1
    (again,) = saved_again(running, mark=False)
    assert again.contents("rows") is None


def test_where_nobody_can_ask_nothing_is_kept() -> None:
    """A later run in which somebody can does not know what came before."""
    running = circuits(1, mark=False, keep_contents_bytes=0)
    run_alone(running, [{"s": zset([("x", 1, 1)])}])
    assert not running[0].tables
    assert {table for table, _ in running[0].save().new} == {"the circuit", "g"}
    (asked,) = saved_again(running, mark=False)
    assert asked.contents("rows") is None
    (unasked,) = saved_again([asked], mark=False, keep_contents_bytes=0)
    assert {table for table, _ in unasked.save().gone} == {"rows", "totals"}


def test_rows_that_are_only_added_are_not_merged_before_somebody_asks() -> None:
    """What a stream of rows costs that nobody ever asks for: nothing but their memory."""
    table = Contents("rows", SCHEMA, None)
    rows, hashes = consolidate(zset([("x", 1, 1)])), Run.of(zset([("x", 1, 1)]), ["shop", "amount"]).hashes
    for _ in range(1000):
        table.keep(rows, hashes)
    assert summed(*(run.rows for run in table.runs)) == {("x", 1): 1000}
    assert len(table.runs) < 20
