"""Outer joins: after every change what came out adds up to DuckDB's answer over what went in."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nebuli.dataflow import hashing, zset
from nebuli.dataflow.joins import join, outer_join
from nebuli.dataflow.rows import MAX_BATCH_ROWS
from nebuli.dataflow.state import KeyedState
from placement.plan import JoinOperator, ProjectOperator
from tests.nebuli.dataflow import oracle
from tests.nebuli.dataflow.driven import Driven
from tests.nebuli.dataflow.plans import HOW, KEYS, ROWS, ZSETS, Plan, Row, change, source_of
from tests.support.sizes import examples

Z = tuple[Row, int]


def joined(how: Any, on: tuple[str, ...]) -> tuple[Driven, str]:
    """A join of ``l`` and ``r`` that gives all columns of both, and the query that does."""
    plan = Plan()
    for name in "lr":
        source_of(plan, name)
    plan.operators.append(JoinOperator(id="j", inputs=("l", "r"), on=on, how=how))
    others = [f"{side}.{name}" for side in "lr" for name in "kgxn" if name not in on]
    columns = {f"c{index}": f'"{name}"' for index, name in enumerate([*on, *others])}
    plan.operators.append(ProjectOperator(id="p", input="j", columns=columns))
    return plan.circuit(), f"SELECT {', '.join([*on, *others])} FROM l {how} JOIN r USING ({', '.join(on)})"


@st.composite
def changes(draw: st.DrawFn) -> list[tuple[str, list[Z]]]:
    """Batches of both inputs; rows are taken back while they are there, the last of a key often."""
    present = {name: Counter[Row]() for name in "lr"}
    made = []
    for _ in range(draw(st.integers(1, 8))):
        name = draw(st.sampled_from("lr"))
        batch: list[Z] = [(row, draw(st.integers(1, 2))) for row in draw(st.lists(ROWS, max_size=4))]
        there = sorted((row for row, count in present[name].items() if count), key=repr)
        gone = draw(st.lists(st.sampled_from(there), unique_by=repr)) if there else []
        batch += [(row, -draw(st.integers(1, present[name][row]))) for row in gone]
        for row, weight in batch:
            present[name][row] += weight
        made.append((name, draw(st.permutations(batch))))
    return made


def rows(batches: list[list[Z]]) -> pa.Table:
    return pa.Table.from_batches([zset.expand(zset.consolidate([change([]), *map(change, batches)]))])


def total(batches: list[pa.RecordBatch], schema: pa.Schema) -> Counter[Any]:
    table = zset.expand(zset.consolidate([zset.empty(schema), *batches]))
    return oracle.multiset(zip(*(column.to_pylist() for column in table.columns), strict=True))


def _all_alike(_: Any, rows: int) -> Any:
    return np.zeros(rows, dtype=np.uint64)


@pytest.mark.parametrize("how", HOW)
@settings(max_examples=examples(100), deadline=None)
@given(
    changes(),
    st.sampled_from(KEYS),
    st.sampled_from([hashing.hash_rows, _all_alike]),
    st.sampled_from([2, MAX_BATCH_ROWS]),
)
def test_every_change_adds_up_to_duckdbs_answer(
    how: str, made: list[tuple[str, list[Z]]], on: tuple[str, ...], hash_rows: Any, most: int
) -> None:
    circuit, query = joined(how, on)
    out: list[pa.RecordBatch] = []
    sides: dict[str, list[list[Z]]] = {"l": [], "r": []}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(hashing, "hash_rows", hash_rows)
        for module in (join, outer_join):
            patch.setattr(module, "MAX_BATCH_ROWS", most)
        for name, batch in made:
            sides[name].append(batch)
            out += circuit.push(name, change(batch))
            answer = oracle.query(query, {side: rows(batches) for side, batches in sides.items()})[1]
            assert total(out, circuit.schema) == oracle.multiset(answer)


@pytest.mark.parametrize("how", HOW)
@settings(max_examples=examples(60), deadline=None)
@given(changes(), st.sampled_from(KEYS), st.sampled_from(["l", "r"]), st.booleans())
def test_an_input_that_has_ended_is_as_it_was(
    how: str, made: list[tuple[str, list[Z]]], on: tuple[str, ...], first: str, alike: bool
) -> None:
    """One is read to its end, then the other: nothing that is kept is met by anything in the end."""
    circuit, query = joined(how, on)
    sides = {side: [batch for name, batch in made if name == side] for side in "lr"}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(hashing, "hash_rows", _all_alike if alike else hashing.hash_rows)
        out: list[pa.RecordBatch] = []
        for side in (first, "lr".replace(first, "")):
            for batch in sides[side]:
                out += circuit.push(side, change(batch))
            out += circuit.end(side)
    answer = oracle.query(query, {side: rows(batches) for side, batches in sides.items()})[1]
    assert total(out, circuit.schema) == oracle.multiset(answer)
    assert circuit.statistics()["j"].state_bytes == 0


def numbered(keys: Any, weight: int = 1) -> pa.RecordBatch:
    """A row for each key, told apart by x."""
    count = len(keys)
    columns = [
        keys,
        pa.nulls(count, pa.string()),
        np.arange(float(count)),
        keys * 0,
        np.full(count, weight),
    ]
    return pa.record_batch([pa.array(each) for each in columns], schema=ZSETS)


def test_batches_stay_within_bounds_when_many_rows_get_their_first_match() -> None:
    circuit, _ = joined("left", ("k",))
    count = 3 * MAX_BATCH_ROWS
    same = np.zeros(count, dtype=np.int64)
    assert sum(batch.num_rows for batch in circuit.push("l", numbered(same))) == count
    for weight in (1, -1):
        out = circuit.push("r", numbered(same[:1], weight))
        assert sum(batch.num_rows for batch in out) == 2 * count
        assert max(batch.num_rows for batch in out) <= MAX_BATCH_ROWS


def test_that_a_key_has_its_first_row_is_known_without_a_look_at_all_of_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A row more of a key that many rows have: what is looked up is a few rows, and not these."""
    circuit, _ = joined("left", ("k",))
    circuit.push("l", numbered(np.zeros(1, dtype=np.int64)))
    for _ in range(20):
        circuit.push("r", numbered(np.zeros(10_000, dtype=np.int64)))
    found = 0
    lookup = KeyedState.lookup

    def counted(state: KeyedState, probe: Any) -> Any:
        nonlocal found
        for match in lookup(state, probe):
            found += len(match.probe)
            yield match

    monkeypatch.setattr(KeyedState, "lookup", counted)
    assert sum(batch.num_rows for batch in circuit.push("r", numbered(np.zeros(1, dtype=np.int64)))) == 1
    assert 0 < found < 100


def test_its_state_shrinks_when_rows_are_taken_back() -> None:
    circuit, _ = joined("full", ("k", "x"))
    for start in range(0, 40_000, 1000):
        for side in "lr":
            circuit.push(side, numbered(np.arange(start, start + 1000)))
            if start >= 2000:
                circuit.push(side, numbered(np.arange(start - 2000, start - 1000), -1))
    assert circuit.statistics()["j"].state_bytes < 1_500_000, "the state is that of 2 000 rows, not of 40 000"
