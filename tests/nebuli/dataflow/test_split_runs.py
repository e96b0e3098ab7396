"""Rows split over any number of runs whose state continues: the table of one run over all of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from random import Random
from typing import Any, NamedTuple

import pytest

from nebuli.dataflow import SteppedCircuit
from tests.nebuli.dataflow import oracle
from tests.nebuli.dataflow.dealing import Members
from tests.nebuli.dataflow.test_stepped_windows import plan
from tests.nebuli.dataflow.test_windows import in_windows
from tests.nebuli.dataflow.windowed import Changes, Row, rows_of, source, starts, table, window
from tests.support.documents import op
from tests.support.seeds import drawn_seed
from tests.support.stepping import run_together

BY = ["window_start", "window_end", "k"]
SUMS = {"n": "count(*)", "s": "sum(x)", "m": "min(x)"}
SELECTED = "count(*), sum(x), min(x)"
Operators = list[dict[str, Any]]


class Shape(NamedTuple):
    """A query with a window of this size and slide, and the same in SQL over tables a and b."""

    operators: Operators
    sql: str


def _windowed(name: str, sizes: tuple[int, int], lateness: int) -> dict[str, Any]:
    return window(f"w{name}", name, *sizes, lateness)


def _aggregate(sizes: tuple[int, int], lateness: int) -> Shape:
    sql = f"SELECT window_start, window_end, k, {SELECTED} FROM {in_windows(sizes[0])} GROUP BY ALL"
    return Shape(
        [_windowed("a", sizes, lateness), op("aggregate", "g", input="wa", by=BY, aggregates=SUMS)], sql
    )


def _filtered(sizes: tuple[int, int], lateness: int) -> Shape:
    operators = [
        _windowed("a", sizes, lateness),
        op("filter", "f", input="wa", predicate="x > 0"),
        op("aggregate", "g", input="f", by=["window_end"], aggregates=SUMS),
    ]
    return Shape(
        operators, f"SELECT window_end, {SELECTED} FROM {in_windows(sizes[0])} WHERE x > 0 GROUP BY ALL"
    )


def _distinct(sizes: tuple[int, int], lateness: int) -> Shape:
    operators = [
        _windowed("a", sizes, lateness),
        op("project", "p", input="wa", columns={"window_start": "window_start", "k": "k"}),
        op("distinct", "d", input="p"),
    ]
    return Shape(operators, f"SELECT DISTINCT window_start, k FROM {in_windows(sizes[0])}")


def _union(sizes: tuple[int, int], lateness: int) -> Shape:
    operators = [
        op("union", "u", inputs=["a", "b"]),
        window("w", "u", *sizes, lateness),
        op("aggregate", "g", input="w", by=BY, aggregates=SUMS),
    ]
    both = f"({in_windows(sizes[0])} UNION ALL {in_windows(sizes[0], 'b')})"
    return Shape(operators, f"SELECT window_start, window_end, k, {SELECTED} FROM {both} GROUP BY ALL")


def _joined(how: str) -> Callable[[tuple[int, int], int], Shape]:
    def shape(sizes: tuple[int, int], lateness: int) -> Shape:
        operators = [
            _windowed("a", sizes, lateness),
            _windowed("b", sizes, lateness),
            op("join", "j", inputs=["wa", "wb"], on=BY, how=how),
        ]
        sql = (
            f"SELECT window_start, window_end, k, l.t, l.x, r.t, r.x FROM {in_windows(sizes[0])} l {how} JOIN "
            f"{in_windows(sizes[0], 'b')} r USING (window_start, window_end, k)"
        )
        return Shape(operators, sql)

    return shape


def _dimension(how: str) -> Callable[[tuple[int, int], int], Shape]:
    """Rows of windows with those of a table that has no event time, and an aggregate above."""

    def shape(sizes: tuple[int, int], lateness: int) -> Shape:
        operators = [
            _windowed("a", sizes, lateness),
            op("project", "names", input="b", columns={"k": "k", "y": "x"}),
            op("join", "j", inputs=["wa", "names"], on=["k"], how=how),
            op("aggregate", "g", input="j", by=["window_start", "y"], aggregates=SUMS),
        ]
        sql = (
            f"SELECT window_start, b.x AS y, count(*), sum(l.x), min(l.x) FROM {in_windows(sizes[0])} l {how} JOIN b "
            f"USING (k) GROUP BY ALL"
        )
        return Shape(operators, sql)

    return shape


def _joined_below(sizes: tuple[int, int], lateness: int) -> Shape:
    """A table joined below the window, whose time is computed from the join's row."""
    operators = [
        op("project", "names", input="b", columns={"k": "k", "y": "x"}),
        op("join", "j", inputs=["a", "names"], on=["k"]),
        op("project", "p", input="j", columns={"t": "t - INTERVAL 20 SECOND", "k": "k", "x": "y"}),
        window("w", "p", *sizes, lateness),
        op("aggregate", "g", input="w", by=BY, aggregates=SUMS),
    ]
    joined = "(SELECT a.t - INTERVAL 20 SECOND AS t, k, b.x AS x FROM a JOIN b USING (k)) c"
    windows = (
        f"(SELECT c.*, ws AS window_start, ws + INTERVAL {sizes[0]} SECOND AS window_end FROM {joined} JOIN starts "
        f"ON t >= ws AND t < ws + INTERVAL {sizes[0]} SECOND)"
    )
    return Shape(operators, f"SELECT window_start, window_end, k, {SELECTED} FROM {windows} GROUP BY ALL")


def _twice(sizes: tuple[int, int], lateness: int) -> Shape:
    """Groups of groups of a window."""
    operators = [
        *_aggregate(sizes, lateness).operators,
        op("aggregate", "h", input="g", by=["window_start"], aggregates={"of": "count(*)", "rows": "sum(n)"}),
    ]
    groups = f"(SELECT window_start, k, count(*) AS n FROM {in_windows(sizes[0])} GROUP BY ALL)"
    return Shape(operators, f"SELECT window_start, count(*), sum(n) FROM {groups} GROUP BY ALL")


def _over_windows(sizes: tuple[int, int], lateness: int) -> Shape:
    """Groups over all windows, which change with each that is over."""
    operators = [
        *_aggregate(sizes, lateness).operators,
        op("aggregate", "h", input="g", by=["k"], aggregates={"of": "count(*)", "rows": "sum(n)"}),
    ]
    groups = f"(SELECT window_start, k, count(*) AS n FROM {in_windows(sizes[0])} GROUP BY ALL)"
    return Shape(operators, f"SELECT k, count(*), sum(n) FROM {groups} GROUP BY ALL")


SHAPES = [
    _aggregate,
    _filtered,
    _distinct,
    _union,
    *map(_joined, ("inner", "left", "right", "full")),
    *map(_dimension, ("inner", "left")),
    _joined_below,
    _twice,
    _over_windows,
]
_SPREAD = "ab"
GROWS = {"a": ["x", "y"], "b": ["z"]}
"""The sources of each input, by name: files that are appended to."""


class Story(NamedTuple):
    """Rows of each source, by run, each in pieces that come in steps of their own."""

    shape: Shape
    runs: list[dict[str, list[Changes]]]
    members: int
    seed: int

    @property
    def inputs(self) -> list[str]:
        """Those of a and b that the query reads."""
        used = {each.get("input") for each in self.shape.operators}
        used |= {child for each in self.shape.operators for child in each.get("inputs", ())}
        return [name for name in "ab" if name in used]

    @property
    def slide(self) -> int:
        """The seconds between the starts of windows."""
        return next(
            int(each["slide"].split()[0]) for each in self.shape.operators if each["type"] == "window"
        )


def story(seed: int) -> Story:
    """A query none of whose rows is late: those of each source are out of order by no more than the lateness."""
    random = Random(seed)
    lateness = random.choice([0, 30, 200])
    shape = SHAPES[seed % len(SHAPES)](random.choice([(60, 60), (60, 20), (50, 20)]), lateness)
    runs: list[dict[str, list[Changes]]] = [{} for _ in range(random.randint(1, 5))]
    for name in ("x", "y", "z"):
        rows = _stream(random, lateness)
        cuts = sorted(random.randint(0, len(rows)) for _ in runs[1:])
        for run, first, until in zip(runs, [0, *cuts], [*cuts, len(rows)], strict=True):
            middle = random.randint(first, until)
            run[name] = [rows[first:middle], rows[middle:until]]
    return Story(shape, runs, random.randint(1, 3), seed)


def _stream(random: Random, lateness: int) -> Changes:
    """Rows of ten minutes, in the order in which they come."""
    arrivals: list[tuple[int, Row]] = []
    for _ in range(random.randint(0, 40)):
        time = 10 * random.randint(0, 60)
        row = (time, random.choice([None, 0, 1, 2]), random.choice([None, -0.5, 0.0, 0.25, 1.0]))
        arrivals.append((time + random.randint(0, lateness), row))
    return [(row, 1) for _, row in sorted(arrivals, key=lambda arrival: arrival[0])]


def _net(batches: Sequence[Any]) -> Counter[Any]:
    """Rows with their weights, of all batches together."""
    found: Counter[Any] = Counter()
    for row, weight in rows_of(batches):
        found[next(iter(oracle.multiset([row])))] += weight
    return Counter({row: weight for row, weight in found.items() if weight})


class Runs:
    """Runs of one query over the same state, as many members as the first has."""

    def __init__(self, story: Story) -> None:
        self._inputs = story.inputs
        self._plan = plan(
            story.members, _SPREAD, *(source(name) for name in self._inputs), *story.shape.operators
        )
        self._random = Random(story.seed)
        self._saved: Mapping[str, Mapping[bytes, bytes]] = {}
        self.given: list[Any] = []
        """All that came out of steps."""

    def run(self, rows: Mapping[str, list[Changes]], *, closes: bool) -> list[Any]:
        """A run to the end of its sources: what windows that stay open have beside the steps."""
        members = Members(self._plan, self._random.randrange(1000), _SPREAD)
        for circuit, tables in zip(members.circuits, self._saved or [{}] * members.plan.members, strict=True):
            circuit.load(tables)
        left = {name: list(pieces) for name, pieces in rows.items()}
        while any(left.values()):
            now = {
                name: left[name].pop(0) if left[name] and self._random.random() < 0.5 else [] for name in left
            }
            self.given.append(members.step({}, self._sources(now))["out"])
        self.given.append(members.step({}, self._sources({}), ended=closes)["out"])
        assert {
            key: each.late_rows
            for circuit in members.circuits
            for key, each in circuit.statistics().items()
            if each.late_rows
        } == {}
        self._saved = [_bytes_of(circuit) for circuit in members.circuits]
        shown = run_together(circuit.show_open() for circuit in members.circuits)
        assert not (closes and any(circuit.open_windows for circuit in members.circuits))
        return [each["out"] for each in shown]

    def _sources(self, rows: Mapping[str, Changes]) -> dict[str, dict[str, tuple[Changes, bool]]]:
        """As a member has them of files that a later run may find longer: their end is waited beyond."""
        return {
            input_: {name: (rows.get(name, []), False) for name in GROWS[input_]} for input_ in self._inputs
        }


def _bytes_of(circuit: SteppedCircuit) -> dict[str, dict[bytes, bytes]]:
    return {
        table_: {key: bytes(encoded()) for key, encoded in values.items()}
        for table_, values in circuit.save().tables.items()
    }


def check(story: Story) -> None:
    """After each run the table has all rows so far; at the end, closed, what steps gave is all of it, once."""
    runs = Runs(story)
    seen: dict[str, Changes] = {"a": [], "b": []}

    def wanted() -> Counter[Any]:
        tables = {name: table(rows) for name, rows in seen.items()}
        return oracle.multiset(oracle.query(story.shape.sql, {**tables, "starts": starts(story.slide)})[1])

    for rows in story.runs:
        for input_, names in GROWS.items():
            seen[input_] += [row for name in names for piece in rows[name] for row in piece]
        shown = runs.run(rows, closes=False)
        assert _net([*runs.given, *shown]) == wanted()
    assert _net(runs.run({}, closes=True)) == Counter()
    assert _net(runs.given) == wanted()


@pytest.mark.parametrize("seed", range(len(SHAPES)))
def test_rows_split_over_runs_give_the_table_of_one_run(seed: int) -> None:
    check(story(seed))


def test_rows_of_300_queries_split_over_runs_give_the_table_of_one_run() -> None:
    with drawn_seed() as first:
        for seed in range(first, first + 300):
            check(story(seed))
