"""Texts that come again are codes within a fragment, and nobody sees it: against DuckDB after every change."""

from __future__ import annotations

from collections import Counter
from itertools import product
from random import Random
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pytest

from nebuli.dataflow import hashing
from nebuli.dataflow.hashing import coded, codes_of, is_coded, plain
from placement.plan import (
    AggregateOperator,
    DistinctOperator,
    FragmentOperator,
    JoinOperator,
    ProjectOperator,
)
from tests.nebuli.dataflow import oracle
from tests.nebuli.dataflow.plans import SCHEMA, Plan, Row, change, source_of
from tests.support.sizes import some

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray


def all_alike(_: Sequence[Any], rows: int) -> NDArray[np.uint64]:
    """In the place of `hash_rows`: all collide."""
    return np.zeros(rows, dtype=np.uint64)


SEEDS = some(range(3))
SIZES = (3, 512, 513, 700)
"""Rows of a change: on either side of how many show whether texts come again."""
ODD = [None, "", "a", "a\0", "é", "e\u0301", "\U0001f600", "a" * 300]
FULL_JOIN = "l JOIN r ON l.g = r.g"
PLANS: dict[str, tuple[list[FragmentOperator], str]] = {
    "grouped": (
        [AggregateOperator(id="a", input="l", by=("g",), aggregates={"n": "count(*)", "m": "sum(n)"})],
        "SELECT g, count(*), CAST(sum(n) AS BIGINT) FROM l GROUP BY g",
    ),
    "grouped by what is computed with": (
        [AggregateOperator(id="a", input="l", by=("g", "n"), aggregates={"x": "max(g)", "c": "count(g)"})],
        "SELECT g, n, max(g), count(g) FROM l GROUP BY g, n",
    ),
    "distinct": (
        [
            ProjectOperator(id="p", input="l", columns={"g": "g", "n": "n"}),
            DistinctOperator(id="d", input="p"),
        ],
        "SELECT DISTINCT g, n FROM l",
    ),
    "joined by texts": (
        [
            JoinOperator(id="j", inputs=("l", "r"), on=("g",)),
            AggregateOperator(id="a", input="j", by=("g",), aggregates={"c": "count(*)", "m": "min(l.n)"}),
        ],
        f"SELECT l.g, count(*), min(l.n) FROM {FULL_JOIN} GROUP BY l.g",
    ),
    "joined, and grouped by texts of both": (
        [
            JoinOperator(id="j", inputs=("l", "r"), on=("k",)),
            AggregateOperator(id="a", input="j", by=("l.g", "r.g"), aggregates={"c": "count(*)"}),
        ],
        "SELECT l.g, r.g, count(*) FROM l JOIN r USING (k) GROUP BY l.g, r.g",
    ),
    "joined, and grouped by texts that are compared": (
        [
            JoinOperator(id="j", inputs=("l", "r"), on=("k",)),
            AggregateOperator(id="a", input="j", by=("r.g",), aggregates={"m": "max(l.g)", "s": "min(r.g)"}),
        ],
        "SELECT r.g, max(l.g), min(r.g) FROM l JOIN r USING (k) GROUP BY r.g",
    ),
}


class Story:
    """Changes of both sources: other texts in each, so that no two have the same codes; some are taken back."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.there: dict[str, list[Row]] = {"l": [], "r": []}

    def change(self, name: str, number: int) -> list[tuple[Row, int]]:
        random, there = self.random, self.there[name]
        words = [*random.sample(ODD, random.randint(1, len(ODD))), f"{number}", f"{number // 2}"]
        size = random.choice(SIZES)
        rows: list[Row] = [
            (random.choice([None, *range(60)]), random.choice(words), 0.5, random.randint(-2, 2))
            for _ in range(size)
        ]
        gone = random.sample(there, random.choice([0, len(there) // 2, len(there)]))
        for row in gone:
            there.remove(row)
        there += rows
        batch = [(row, 1) for row in rows] + [(row, -1) for row in gone]
        random.shuffle(batch)
        return batch

    def tables(self) -> dict[str, pa.Table]:
        columns = {name: list(zip(*rows, strict=True)) or [[]] * 4 for name, rows in self.there.items()}
        return {name: pa.table(list(map(list, each)), schema=SCHEMA) for name, each in columns.items()}


@pytest.mark.parametrize("hash_rows", [hashing.hash_rows, all_alike])
@pytest.mark.parametrize(("name", "seed"), list(product(PLANS, SEEDS)))
def test_what_is_grouped_and_joined_by_texts_is_right_after_every_change(
    name: str, seed: int, hash_rows: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where one source has ended, whose rows are coded for good then."""
    monkeypatch.setattr(hashing, "hash_rows", hash_rows)
    operators, query = PLANS[name]
    plan, story, out = Plan(), Story(seed), Counter[tuple[Any, ...]]()
    names = [source_of(plan, each) for each in ("l", "r")][: 2 if " r " in query else 1]
    del plan.operators[len(names) :]
    plan.operators += operators
    circuit = plan.circuit()
    for number in range(8):
        if number == 5:
            given = circuit.end(names.pop()) if len(names) > 1 else []
        else:
            at = story.random.choice(names)
            given = circuit.push(at, change(story.change(at, number)))
        for batch in given:
            assert batch.schema == circuit.schema
            for *row, weight in zip(*(column.to_pylist() for column in batch.columns), strict=True):
                out[tuple(row)] += weight
        assert +out == oracle.multiset(oracle.query(query, story.tables())[1]), number
        assert min(out.values(), default=0) >= 0


@pytest.mark.parametrize("values", [ODD, [None], [""], ["a", "b"]])
@pytest.mark.parametrize(("rows", "repeat"), [(512, False), (513, True), (5000, True)])
def test_codes_stand_for_the_texts(values: list[str | None], rows: int, repeat: bool) -> None:
    texts = [values[n * 7 % len(values)] for n in range(rows)]
    column = coded(pa.array(["x", *texts], pa.string()).slice(1))
    assert is_coded(column) is repeat
    assert plain(column).to_pylist() == texts
    if repeat:
        numbers = dict(zip(texts, codes_of(column).tolist(), strict=True))
        assert codes_of(column).tolist() == [numbers[text] for text in texts]
        assert len(set(numbers.values())) == len(set(texts))
    assert hashing.hash_rows([column], rows).tolist() == [
        hashing.hash_rows([pa.array([text], pa.string())], 1)[0] for text in texts
    ]


def test_texts_that_do_not_come_again_stay_as_they_are() -> None:
    column = pa.array([f"{n % 257}" for n in range(513)])
    assert not is_coded(coded(column))
    assert is_coded(coded(pa.array([f"{n % 256}" for n in range(513)])))
    assert np.array_equal(
        hashing.hash_rows([column], 513), hashing.hash_rows([column.dictionary_encode()], 513)
    )
