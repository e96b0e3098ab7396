"""Random queries in steps, what they are by brute force, and the members that run them.

The reference computes an operator of all rows that there are, which are tuples in Counters.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import Any

import yaml
from hypothesis import strategies as st

from placement import SteppedPlan, check_stepped, distribute
from tests.nebuli.dataflow.dealing import Change, Row, Rows, spelled, spelled_row
from tests.support.documents import op, query
from topology import Column, DataType, parse_topology

COLUMNS = (
    Column(name="k", type=DataType.INT64),
    Column(name="g", type=DataType.STRING),
    Column(name="x", type=DataType.FLOAT64),
    Column(name="n", type=DataType.INT64),
)
SOURCES = ("a", "b")
Compute = Callable[[Sequence[Rows]], Rows]

TOPOLOGY = parse_topology(
    yaml.safe_dump(
        {
            "logical": [
                {"name": name, "schema": [each.model_dump(mode="json") for each in COLUMNS]}
                for name in SOURCES
            ],
            "nodes": [
                {
                    "address": "n:1",
                    "sinks": [{"name": f"o{n}", "type": "Print", "mode": "changes"} for n in range(30)],
                }
            ],
        }
    )
)
# Floats are quarters, so that sums are exact in any order.
ROWS: st.SearchStrategy[Row] = st.tuples(
    st.none() | st.integers(0, 3),
    st.none() | st.sampled_from(["", "a", "é"]),
    st.none() | st.integers(-4, 4).map(lambda n: n / 4) | st.sampled_from([-0.0, float("nan"), float("inf")]),
    st.none() | st.integers(-2, 2),
)


# -- operators, one at a time: what they are in a query, and by brute force

PREDICATES: list[tuple[str, Callable[[Any, Any, Any, Any], bool]]] = [
    ("k > 0", lambda k, g, x, n: k is not None and k > 0),
    ("g IS NULL OR n <> 1", lambda k, g, x, n: g is None or (n is not None and n != 1)),
    ("x >= 0e0", lambda k, g, x, n: x is not None and (x == "NaN" or x >= 0)),
]


def _negative(x: Any) -> Any:
    return x if x in (None, "NaN") else spelled(-x)


PROJECTIONS: list[tuple[dict[str, str], Callable[[Any, Any, Any, Any], Row]]] = [
    (
        {"k": "n", "g": "upper(g)", "x": "-x", "n": "k"},
        lambda k, g, x, n: (n, g and g.upper(), _negative(x), k),
    ),
    (
        {"k": "k % 2", "g": "coalesce(g, 'a')", "x": "x", "n": "n * 2"},
        lambda k, g, x, n: (
            None if k is None else int(math.fmod(k, 2)),  # with the sign of k, as in SQL
            "a" if g is None else g,
            x,
            None if n is None else n * 2,
        ),
    ),
]
HOW = ["left", "right", "full"]
KEYS = [("k",), ("g", "k"), ("x",), ("n", "x", "g", "k")]
AGGREGATES: list[tuple[tuple[str, ...], dict[str, str]]] = [
    (("k",), {"g": "max(g)", "x": "sum(x)", "n": "count(x)"}),
    (("g", "k"), {"x": "avg(x)", "n": "sum(n)"}),
    (("x",), {"k": "min(k)", "g": "min(g)", "n": "count(*)"}),
    (("n",), {"k": "max(k)", "g": "min(g)", "x": "min(x)"}),
    (("k",), {"g": "max(g)", "x": "max(x)", "n": "count(DISTINCT x)"}),
    (("n", "x"), {"g": "min(g)", "k": "count(DISTINCT g)"}),
    ((), {"k": "count(k)", "g": "min(g)", "x": "sum(x)", "n": "sum(k)"}),
]


def _kept(test: Callable[..., bool]) -> Compute:
    return lambda inputs: Counter({row: w for row, w in inputs[0].items() if test(*row)})


def _mapped(compute: Callable[..., Row]) -> Compute:
    def mapped(inputs: Sequence[Rows]) -> Rows:
        result = Rows()
        for row, weight in inputs[0].items():
            result[compute(*row)] += weight
        return result

    return mapped


def _united(inputs: Sequence[Rows]) -> Rows:
    return sum(inputs, Rows())


def _distinct(inputs: Sequence[Rows]) -> Rows:
    return Counter(dict.fromkeys(inputs[0], 1))


def _joined(on: Sequence[str], how: str = "inner") -> Compute:
    places = ["kgxn".index(name) for name in on]

    def joined(inputs: Sequence[Rows]) -> Rows:
        result, matched = Rows(), set[tuple[int, Row]]()
        for rows in product(*(each.items() for each in inputs)):
            keys = {tuple(row[place] for place in places) for row, _ in rows}
            if len(keys) == 1 and None not in next(iter(keys)):
                # Each column of another input, in turn.
                chosen = tuple(rows[place % len(rows)][0][place] for place in range(4))
                result[chosen] += math.prod(weight for _, weight in rows)
                matched |= {(port, row) for port, (row, _) in enumerate(rows)}
        for port in {"left": [0], "right": [1], "full": [0, 1]}.get(how, []):
            for row, weight in inputs[port].items():
                if (port, row) not in matched:
                    alone = (row[p] if p in places or p % 2 == port else None for p in range(4))
                    result[tuple(alone)] += weight
        return result

    return joined


def _aggregated(by: Sequence[str], aggregates: Mapping[str, str]) -> Compute:
    places = ["kgxn".index(name) for name in by]

    def aggregated(inputs: Sequence[Rows]) -> Rows:
        groups: dict[Row, list[Row]] = {} if by else {(): []}
        for row, weight in inputs[0].items():
            groups.setdefault(tuple(row[place] for place in places), []).extend([row] * weight)
        result = Rows()
        for key, rows in groups.items():
            values = dict(zip(by, key, strict=True))
            values |= {name: aggregate_of(call, rows) for name, call in aggregates.items()}
            result[tuple(values.get(name) for name in "kgxn")] += 1
        return result

    return aggregated


def aggregate_of(call: str, rows: Sequence[Row]) -> Any:
    """count, sum, avg, min or max of a column of all these rows."""
    if call == "count(*)":
        return len(rows)
    function, _, argument = call.rstrip(")").partition("(")
    column = "kgxn".index(argument.removeprefix("DISTINCT "))
    values = [row[column] for row in rows if row[column] is not None]
    if function == "count":
        return len(set(values)) if "DISTINCT" in call else len(values)
    if not values:
        return None
    if function in ("min", "max"):
        least = function == "min"
        numbers = [value for value in values if value != "NaN"]
        if len(numbers) < len(values) and not (least and numbers):
            return "NaN"
        return min(numbers) if least else max(numbers)
    total = sum(float("nan") if value == "NaN" else value for value in values)
    return spelled(total / len(values) if function == "avg" else total)


@dataclass
class Graph:
    """Operators of a query, and how each is computed of its inputs; those that give ``kgxn`` can be read."""

    operators: list[dict[str, Any]] = field(default_factory=list)
    computes: dict[str, tuple[tuple[str, ...], Compute]] = field(default_factory=dict)
    sinks: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.operators += [op("source", name, logical=name) for name in SOURCES]

    @property
    def readable(self) -> list[str]:
        return [*SOURCES, *self.computes]

    def add(self, kind: str, inputs: Sequence[str], compute: Compute, **settings: Any) -> str:
        id_ = f"{kind}{len(self.operators)}"
        given = {"inputs": list(inputs)} if kind in ("union", "join") else {"input": inputs[0]}
        self.operators.append(op(kind, id_, **given, **settings))
        self.computes[id_] = (tuple(inputs), compute)
        return id_

    def add_project(self, child: str, columns: Mapping[str, str]) -> str:
        """Gives an operator the columns that all have; what it computes stays."""
        id_ = f"p{len(self.operators)}"
        self.operators.append(op("project", id_, input=child, columns=dict(columns)))
        self.computes[id_] = self.computes.pop(child)
        return id_

    def add_filter(self, child: str, index: int) -> str:
        sql, test = PREDICATES[index]
        return self.add("filter", [child], _kept(test), predicate=sql)

    def add_projection(self, child: str, index: int) -> str:
        columns, compute = PROJECTIONS[index]
        return self.add("project", [child], _mapped(compute), columns=columns)

    def add_union(self, children: Sequence[str]) -> str:
        return self.add("union", children, _united)

    def add_distinct(self, child: str) -> str:
        return self.add("distinct", [child], _distinct)

    def add_join(self, children: Sequence[str], on: Sequence[str], how: str = "inner") -> str:
        # Names of their own, also where an operator is joined with itself.
        inputs = [self.add("project", [child], _united, columns={c: c for c in "kgxn"}) for child in children]
        id_ = self.add("join", inputs, _joined(on, how), on=list(on), how=how)
        origin = [inputs[place % len(inputs)] for place in range(4)]
        names = {
            name: name if name in on else f'"{origin[place]}.{name}"' for place, name in enumerate("kgxn")
        }
        return self.add_project(id_, names)

    def add_aggregate(self, child: str, by: Sequence[str], aggregates: Mapping[str, str]) -> str:
        id_ = self.add(
            "aggregate", [child], _aggregated(by, aggregates), by=list(by), aggregates=dict(aggregates)
        )
        return self.add_project(id_, {name: name for name in "kgxn"})

    def add_sink(self, child: str) -> str:
        id_ = f"out{len(self.sinks)}"
        self.operators.append(op("sink", id_, input=child, sink=f"o{len(self.sinks)}"))
        self.sinks[id_] = child
        return id_

    def finish(self) -> Graph:
        """Let what nobody reads go into sinks."""
        read = {child for inputs, _ in self.computes.values() for child in inputs}
        for id_ in self.readable:
            if id_ not in read and id_ not in self.sinks.values():
                self.add_sink(id_)
        return self

    def plan(self, members: int, spread: Sequence[str] = SOURCES) -> SteppedPlan:
        return distribute(check_stepped(query(*self.operators), TOPOLOGY), members, spread)

    def outputs(self, inputs: Mapping[str, Rows]) -> dict[str, Rows]:
        """By brute force: what the outputs are of all rows that the inputs have."""
        made: dict[str, Rows] = dict(inputs)
        for id_, (children, compute) in self.computes.items():
            result = compute([made[child] for child in children])
            made[id_] = Counter({row: weight for row, weight in result.items() if weight})
        return {sink: made[child] for sink, child in self.sinks.items()}


@st.composite
def graphs(draw: st.DrawFn) -> Graph:
    """A few operators over two inputs, each over any of those before it."""
    graph = Graph()
    for _ in range(draw(st.integers(1, 5))):
        child = draw(st.sampled_from(graph.readable))
        match draw(st.sampled_from(["filter", "project", "union", "join", "aggregate", "distinct"])):
            case "filter":
                graph.add_filter(child, draw(st.integers(0, len(PREDICATES) - 1)))
            case "project":
                graph.add_projection(child, draw(st.integers(0, len(PROJECTIONS) - 1)))
            case "union":
                graph.add_union([child, draw(st.sampled_from(graph.readable))])
            case "distinct":
                graph.add_distinct(child)
            case "aggregate":
                graph.add_aggregate(child, *draw(st.sampled_from(AGGREGATES)))
            case _:
                others = draw(st.lists(st.sampled_from(graph.readable), min_size=1, max_size=2))
                how = draw(st.sampled_from(["inner", *HOW])) if len(others) == 1 else "inner"
                graph.add_join([child, *others], draw(st.sampled_from(KEYS)), how)
    graph.add_sink(draw(st.sampled_from(graph.readable)))
    return graph.finish()


# -- steps


@st.composite
def steps(draw: st.DrawFn, most: int = 5) -> list[dict[str, Change]]:
    """What the inputs are given in steps; a row is taken back only while it is there."""
    present = {source: Counter[Row]() for source in SOURCES}
    made = []
    for _ in range(draw(st.integers(1, most))):
        step = {}
        for source in SOURCES:
            change = [(row, draw(st.integers(1, 2))) for row in draw(st.lists(ROWS, max_size=4))]
            there = sorted((row for row, weight in present[source].items() if weight > 0), key=repr)
            if there:
                gone = draw(st.lists(st.sampled_from(there), unique_by=repr, max_size=3))
                change += [(row, -draw(st.integers(1, present[source][row]))) for row in gone]
            for row, weight in change:
                present[source][row] += weight
            step[source] = change
        made.append(step)
    return made


def accumulated(before: Mapping[str, Rows], step: Mapping[str, Change]) -> dict[str, Rows]:
    """The inputs with what a step gives them."""
    after = {source: Counter(rows) for source, rows in before.items()}
    for source, change in step.items():
        for row, weight in change:
            after[source][spelled_row(row)] += weight
    return {source: Counter({row: w for row, w in rows.items() if w}) for source, rows in after.items()}


def difference(after: Rows, before: Rows) -> Rows:
    """The Z-set that makes one of the other."""
    result = Counter(after)
    result.subtract(before)
    return Counter({row: weight for row, weight in result.items() if weight})
