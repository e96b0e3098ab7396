"""Texts with codes on their way from a join's state to an exchange that sums: the rows are those without codes."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nebuli.dataflow import hashing
from nebuli.dataflow.hashing import is_coded
from nebuli.dataflow.steps import exchange_parts
from tests.nebuli.dataflow.dealing import Change, Members, Rows, rows_of
from tests.nebuli.dataflow.graphs import HOW, Graph, steps
from tests.nebuli.dataflow.test_stepped_circuit import SPREADS, check
from tests.support.sizes import examples

BY = ("g", "n")
COUNTS = {"k": "count(*)", "x": "avg(k)"}


def counted_join(on: tuple[str, ...], how: str = "inner") -> Graph:
    """Rows of the one input with a text of the other, counted by that."""
    graph = Graph()
    graph.add_aggregate(graph.add_join(["a", "b"], on, how), BY, COUNTS)
    return graph.finish()


@settings(max_examples=examples(60), deadline=None)
@given(
    steps(),
    st.sampled_from([("k",), ("k", "g")]),
    st.sampled_from(["inner", *HOW]),
    st.integers(2, 3),
    SPREADS,
    st.integers(0, 1000),
    st.sampled_from([1, 5]),
)
def test_what_is_counted_is_what_brute_force_says(
    all_steps: list[dict[str, Change]],
    on: tuple[str, ...],
    how: str,
    members: int,
    spread: tuple[str, ...],
    seed: int,
    fewest: int,
) -> None:
    """Where two texts that are equal are enough for codes, so that some batches have them and others do not."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(hashing, "_SAMPLE", 2)
        patch.setattr(exchange_parts, "_FEWEST_ROWS", fewest)
        check(counted_join(on, how), all_steps, members, spread, seed)


def test_texts_of_the_state_come_to_the_exchange_with_codes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Once they have been looked up as often as there are of them."""
    came: list[bool] = []
    combined = exchange_parts.combined

    def watched(batch: pa.RecordBatch) -> pa.RecordBatch:
        came.append(any(map(is_coded, batch.columns)))
        return combined(batch)

    monkeypatch.setattr(exchange_parts, "combined", watched)
    members = Members(counted_join(("k",)).plan(2), 0, ())
    texts: list[Change] = [
        [((k, f"text {k % 7}", 0.0, k % 3), 1) for k in range(6000)],
        [((k, f"other {k}", 0.0, 0), 1) for k in range(3000)],
    ]
    numbers: Change = [((k, "", 0.0, 0), 1) for k in range(6000)]
    given_ = Rows()
    for step in ({"b": texts[0]}, {"a": numbers}, {"a": numbers, "b": texts[1]}):
        came.clear()
        for batch in members.step(step).values():
            given_.update(rows_of(batch))
    assert {True, False} == set(came), "in one step, some rows have codes and others have not"
    assert not _codes(members)
    found = {row: weight for row, weight in given_.items() if weight}
    groups: dict[tuple[str, int], list[int]] = {}
    for (k, text, _, n), _ in texts[0] + texts[1]:
        groups.setdefault((text, n), []).append(k)
    assert found == {(2 * len(ks), text, sum(ks) / len(ks), n): 1 for (text, n), ks in groups.items()}


def _codes(members: Members) -> list[Any]:
    """Columns with codes in what would be saved: there are none."""
    return [
        column
        for circuit in members.circuits
        for node in circuit._nodes.values()
        for state in node.operator.states
        for part in state.runs
        for run in part
        for column in run.rows.columns
        if is_coded(column)
    ]
