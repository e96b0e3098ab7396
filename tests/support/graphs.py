"""Queries that are graphs, for Hypothesis: over ``l0`` to ``l2``, with several sinks and readers."""

from __future__ import annotations

from hypothesis import strategies as st

from placement import Query
from placement.checking.schemas import InnerOperator, output_schema
from placement.plan import (
    AggregateOperator,
    DistinctOperator,
    FilterOperator,
    JoinOperator,
    ProjectOperator,
    QueryOperator,
    SinkOperator,
    SourceOperator,
    UnionOperator,
    WindowOperator,
)
from topology import DataType, parse_topology

TOPOLOGY = parse_topology(
    "logical:\n"
    + "".join(
        f"  - {{name: l{n}, schema: [{{name: a, type: int64}}, {{name: b, type: int64}}, "
        "{name: c, type: int64}, {name: t, type: timestamp}]}\n"
        for n in range(3)
    )
    + "nodes: [{address: 'n:1', sinks: ["
    + ", ".join(f"{{name: o{n}, type: Print, mode: changes}}" for n in range(20))
    + "]}]"
)
SOURCES = ("s0", "s1", "s2")
HOUR_US = 3_600_000_000
_KINDS = ["filter", "distinct", "window", *2 * ["project", "union", "join"], *3 * ["aggregate"]]


@st.composite
def graphs(draw: st.DrawFn, min_operators: int = 1, max_operators: int = 9) -> Query:
    """Operators over operators; those that no other reads go into sinks, and one more does.

    SQL is ``"x"``, ``"x" + 1``, ``"x" > 0``, ``count(*)`` and ``sum("x")``, of columns that are integers.
    """
    grown = _Graph(draw)
    for number in range(draw(st.integers(min_operators, max_operators))):
        grown.grow(f"op{number}")
    read = {child for operator in grown.operators for child in operator.children}
    ends = [operator.id for operator in grown.operators if operator.id not in read]
    ends.append(draw(st.sampled_from(sorted(grown.schemas))))
    sinks = [SinkOperator(id=f"out{n}", input=end, sink=f"o{n}") for n, end in enumerate(ends)]
    return Query(operators=tuple(draw(st.permutations([*grown.operators, *sinks]))))


class _Graph:
    def __init__(self, draw: st.DrawFn) -> None:
        self._draw = draw
        self.operators: list[QueryOperator] = []
        self.schemas = {key: source.columns for key, source in zip(SOURCES, TOPOLOGY.logical, strict=True)}
        self._timely = set(SOURCES)  # have the time of their sources, and no windows
        for key, source in zip(SOURCES, TOPOLOGY.logical, strict=True):
            self.operators.append(SourceOperator(id=key, logical=source.name))

    def grow(self, key: str) -> None:
        """Add an operator, if there can be one of the kind that is drawn."""
        child = self._draw(st.sampled_from(list(self.schemas)[-4:]))
        match self._draw(st.sampled_from(_KINDS)):
            case "filter":
                self._add(FilterOperator(id=key, input=child, predicate=f'"{self._integer(child)}" > 0'))
            case "project":
                self._project(key, child)
            case "union":
                alike = [each for each, schema in self.schemas.items() if schema == self.schemas[child]]
                others = self._draw(st.lists(st.sampled_from(alike), min_size=1, max_size=2))
                self._add(UnionOperator(id=key, inputs=(child, *others)))
            case "join":
                self._join(key, child)
            case "aggregate":
                calls = ["count(*)", f'sum("{self._integer(child)}")']
                aggregates = {"n": self._draw(st.sampled_from(calls))}
                by = self._keys([name for name in self._names(child) if name != "n"])
                self._add(AggregateOperator(id=key, input=child, by=by, aggregates=aggregates))
            case "distinct":
                self._add(DistinctOperator(id=key, input=child))
            case "window" if child in self._timely:
                self._add(WindowOperator(id=key, input=child, time="t", size="1 hour"))

    def _project(self, key: str, child: str) -> None:
        names = self._draw(st.lists(st.sampled_from("abn"), min_size=1, max_size=3, unique=True))
        computed = st.sampled_from(["", "", "", " + 1"])
        columns = {name: f'"{self._integer(child)}"{self._draw(computed)}' for name in names}
        kept = {name: name for name in ("t", "window_start") if name in self._names(child)}
        self._add(ProjectOperator(id=key, input=child, columns=columns | kept))

    def _join(self, key: str, child: str) -> None:
        other = self._draw(st.sampled_from([each for each in self.schemas if each != child]))
        if on := self._keys([name for name in self._names(child) if name in self._names(other)], at_least=1):
            self._add(JoinOperator(id=key, inputs=(child, other), on=on))

    def _add(self, operator: InnerOperator) -> None:
        faults: list[object] = []
        schema = output_schema(operator, [self.schemas[child] for child in operator.children], faults)  # type: ignore[arg-type]
        if faults or len(schema) > 10:
            return
        self.operators.append(operator)
        self.schemas[operator.id] = schema
        keeps = not isinstance(operator, AggregateOperator | JoinOperator | WindowOperator)
        if keeps and "t" in self._names(operator.id) and self._timely.issuperset(operator.children):
            self._timely.add(operator.id)

    def _names(self, key: str) -> list[str]:
        return [column.name for column in self.schemas[key]]

    def _integer(self, key: str) -> str:
        names = [column.name for column in self.schemas[key] if column.type is DataType.INT64]
        return self._draw(st.sampled_from(names))

    def _keys(self, names: list[str], at_least: int = 0) -> tuple[str, ...]:
        """Few names, so that operators often have the same."""
        few = [name for name in names if name in ("a", "b", "n", "window_start")]
        return tuple(self._draw(st.permutations(few))[: self._draw(st.integers(at_least, 2))])
