"""An index that is built bit by bit, against a list of rows."""

from __future__ import annotations

import math
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nebuli.dataflow.partial import Build, View, base_index
from nebuli.dataflow.partial.base_index import BaseIndex
from nebuli.dataflow.partial.key_sets import distinct, from_tuples
from nebuli.dataflow.zset import weighted
from tests.nebuli.dataflow.partial.library import BOOKS, Library, count
from tests.nebuli.dataflow.partial.reference import contents

SCHEMA = weighted(pa.schema([("x", pa.float64()), ("s", pa.string()), ("n", pa.int64())]))
X = st.sampled_from([None, math.nan, 0.0, -0.0, 1.0])
S = st.sampled_from([None, "a", "b"])
ROWS = st.lists(st.tuples(X, S, st.integers(0, 1), st.sampled_from([1, 1, -1])), max_size=6)
KEYS = st.lists(st.tuples(X, S), min_size=1, max_size=4)


def batch(rows: list[tuple[Any, ...]]) -> pa.RecordBatch:
    columns = zip(*rows, strict=True) if rows else [[]] * 4
    return pa.record_batch([pa.array(list(c), t) for c, t in zip(columns, SCHEMA.types, strict=True)], SCHEMA)


def spelled(value: Any) -> str:
    return "0.0" if value == 0 and isinstance(value, float) else str(value)


@given(st.lists(st.tuples(ROWS, st.booleans()), max_size=6), KEYS, st.integers(0, 20))
def test_it_finds_all_rows_however_many_are_still_owed(
    changes: list[tuple[list[tuple[Any, ...]], bool]], keys: list[tuple[Any, ...]], works: int
) -> None:
    """PS-EL-3, PS-AFT-1: what is scanned and what is found by the index are together what was added."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(base_index, "_PIECE_ROWS", 2)
        index = BaseIndex(SCHEMA, ["x", "s"])
        right: dict[tuple[str, ...], int] = {}
        for rows, owed in changes:
            index.owe([batch(rows)]) if owed else index.apply(batch(rows))
            if not index.is_settled and works:
                index.work()
                works -= 1
            for *row, weight in rows:
                spelt = tuple(map(spelled, row))
                right[spelt] = right.get(spelt, 0) + weight
        wanted = {tuple(map(spelled, key)) for key in keys}
        found = index.lookup(distinct(from_tuples(keys, SCHEMA.types[:2])))
        expected = {row: n for row, n in right.items() if n and row[:2] in wanted}
        assert {tuple(map(spelled, row)): n for row, n in contents(found).items()} == expected
        assert found.num_rows == len(expected)


def test_a_view_answers_before_its_index_stands(monkeypatch: pytest.MonkeyPatch) -> None:
    """PS-AFT-1: by a scan; what is written meanwhile, and taken back of what is not taken in yet, is right as well."""
    monkeypatch.setattr(base_index, "_PIECE_ROWS", 100)
    library = Library(BOOKS, count("counts", "books", "genre"), View("per_genre", "counts", ("genre",)))
    library.give("books", *((number, f"genre{number % 10}") for number in range(1_000)))
    assert library.rows("per_genre", "genre1") == {("genre1", 100): 1}
    library.add([count("titles", "books", "title"), View("per_title", "titles", ("title",))])
    for title, rows in ((999, {(999, 1): 1}), (1_000, {})):
        library.read("per_title", [(title,)])
        (filled,) = library.deliver()
        assert contents(filled.rows) == rows
    library.take("books", (999, "genre9"))
    library.give("books", (1_000, "genre9"))
    library.deliver()
    builds = 0
    while library.moves():
        assert library.moves() == [Build("books")]
        assert contents(library.read("per_title", [(999,), (1_000,)]).rows) == {(1_000, 1): 1}
        library.step(Build("books"))
        builds += 1
    assert builds == 10
    assert library.rows("per_title", 999, 1_000, 5) == {(1_000, 1): 1, (5, 1): 1}
