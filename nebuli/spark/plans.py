"""The operators of a fragment as steps in Spark SQL, each a view over earlier ones and over views of its inputs.

A window keeps Spark's own column of it in addition to ``window_start`` and ``window_end``: by that an aggregate without
an end is done with it as the watermark passes. Filters between the two leave it there.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from nebuli.spark.expressions import aggregate_sql, identifier, sql_of
from placement.checking.event_time import EventTimes
from placement.checking.schemas import WINDOW_COLUMNS, output_schema
from placement.plan import (
    AggregateOperator,
    BoundSource,
    DistinctOperator,
    FilterOperator,
    JoinOperator,
    MergerOperator,
    NetworkSink,
    NetworkSource,
    ProjectOperator,
    SharderOperator,
    UnionOperator,
    WindowOperator,
)
from placement.sql.expressions import parse, parse_aggregate

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from placement.checking.schemas import InnerOperator
    from placement.plan import Fragment
    from topology import Schema

_WINDOW = identifier("Spark's window")


@dataclass(frozen=True, slots=True)
class SparkPlan:
    """``inputs`` are by source, the first of which is the view ``input_0`` and so on; the last step is the result.

    ``times`` are the columns that watermarks come from, with how late rows may be, by the view of the input.
    """

    inputs: Mapping[str, Schema]
    output: Schema
    steps: tuple[tuple[str, str], ...]
    times: Mapping[str, tuple[str, str]]


def view(index: int) -> str:
    """The name of an input's view."""
    return f"input_{index}"


def compile_plan(fragment: Fragment) -> SparkPlan:
    """The steps of a fragment, whose operators stand after what they read, and which ends in a sink."""
    return _Compiler(fragment).plan()


class _Compiler:
    def __init__(self, fragment: Fragment) -> None:
        self._operators = fragment.operators
        self._endless = fragment.engine is not None and not fragment.engine.bounded
        self._schemas: dict[str, Schema] = {}
        self._names: dict[str, str] = {}
        self._inputs: dict[str, Schema] = {}
        self._steps: list[tuple[str, str]] = []
        self._windowed: set[str] = set()
        """Operators whose output has Spark's own column of a window."""

    def plan(self) -> SparkPlan:
        """The whole plan."""
        for operator in self._operators[:-1]:
            if isinstance(operator, BoundSource | NetworkSource):
                self._names[operator.id] = view(len(self._inputs))
                self._inputs[operator.id] = self._schemas[operator.id] = operator.columns
            else:
                assert not isinstance(operator, NetworkSink), "a fragment has one sink, its last operator"
                assert not isinstance(operator, SharderOperator | MergerOperator), "no view is made by Spark"
                self._add(operator)
        (root,) = self._operators[-1].children
        self._add_step(f"SELECT {_listed(self._schemas[root])} FROM {self._names[root]}")
        return SparkPlan(self._inputs, self._schemas[root], tuple(self._steps), self._times())

    def _add_step(self, select: str) -> str:
        name = f"step_{len(self._steps)}"
        self._steps.append((name, select))
        return name

    def _add(self, operator: InnerOperator) -> None:
        inputs = [self._schemas[child] for child in operator.children]
        tables = [self._names[child] for child in operator.children]
        schema = self._schemas[operator.id] = output_schema(operator, inputs, [])
        if isinstance(operator, WindowOperator) or (
            isinstance(operator, FilterOperator) and operator.input in self._windowed
        ):
            self._windowed.add(operator.id)
        if self._endless and isinstance(operator, AggregateOperator) and operator.input in self._windowed:
            select = _by_window(operator, inputs[0], tables[0])
        else:
            select = _select(operator, inputs, schema, tables)
        self._names[operator.id] = self._add_step(select)

    def _times(self) -> dict[str, tuple[str, str]]:
        """Event time and lateness of views, by the rule of the embedded engine's watermarks, within the fragment."""
        if not self._endless:
            return {}
        operators = {operator.id: operator for operator in self._operators[:-1]}
        event_times = EventTimes(operators, self._schemas)
        for operator in operators.values():
            event_times.add(operator, [])
        return {
            self._names[origin.operator]: (origin.time, origin.lateness)
            for origin in event_times.origins.values()
        }


def _select(  # noqa: PLR0911 - one per kind of operator
    operator: InnerOperator, inputs: Sequence[Schema], output: Schema, tables: Sequence[str]
) -> str:
    match operator:
        case FilterOperator():
            return f"SELECT * FROM {tables[0]} WHERE {sql_of(parse(operator.predicate, inputs[0]).tree)}"
        case ProjectOperator():
            return f"SELECT {_computed(operator.columns, inputs[0])} FROM {tables[0]}"
        case UnionOperator():
            return " UNION ALL ".join(f"SELECT {_listed(output)} FROM {table}" for table in tables)
        case JoinOperator():
            return _joined(operator, inputs, output, tables)
        case AggregateOperator():
            return _aggregated(operator, inputs[0], tables[0])
        case DistinctOperator():
            return f"SELECT DISTINCT {_listed(output)} FROM {tables[0]}"
        case WindowOperator():
            return _windowed(operator, inputs[0], tables[0])
    raise AssertionError(f"{operator.type} computes nothing")


def _listed(schema: Schema) -> str:
    return ", ".join(identifier(column.name) for column in schema)


def _windowed(operator: WindowOperator, schema: Schema, table: str) -> str:
    """Each row once for each of its windows; a row without a time is in none."""
    lengths = f"'{operator.size}', '{operator.slide or operator.size}'"
    windows = f"SELECT *, window({identifier(operator.time)}, {lengths}) AS {_WINDOW} FROM {table}"
    start, end = map(identifier, WINDOW_COLUMNS)
    return f"SELECT {_listed(schema)}, {_WINDOW}.start AS {start}, {_WINDOW}.end AS {end}, {_WINDOW} FROM ({windows})"


def _by_window(operator: AggregateOperator, schema: Schema, table: str) -> str:
    """A grouping by Spark's own column of a window, in which the watermark is known; out of it come start and end."""
    start, end = WINDOW_COLUMNS
    parts = {start: f"{_WINDOW}.start", end: f"{_WINDOW}.end"}
    keys = [parts.get(key, identifier(key)) + f" AS {identifier(key)}" for key in operator.by]
    groups = [_WINDOW, *(identifier(key) for key in operator.by if key not in parts)]
    return f"SELECT {', '.join([*keys, *_aggregates(operator, schema)])} FROM {table} GROUP BY {', '.join(groups)}"


def _computed(columns: Mapping[str, str], schema: Schema) -> str:
    return ", ".join(
        f"{sql_of(parse(sql, schema).tree)} AS {identifier(name)}" for name, sql in columns.items()
    )


def _joined(join: JoinOperator, inputs: Sequence[Schema], output: Schema, tables: Sequence[str]) -> str:
    """The keys, then the other columns input by input, under the names that the output has for them.

    Keys are those of an input whose rows are all there, of two such inputs of the one that has a row.
    """
    names = iter(column.name for column in output[len(join.on) :])
    chosen = [_key_of(join, key, tables) for key in join.on]
    sources = [f"{table} AS {table}_{index}" for index, table in enumerate(tables)]
    text = sources[0]
    for index, (schema, table) in enumerate(zip(inputs, tables, strict=True)):
        alias = f"{table}_{index}"
        chosen += [
            f"{alias}.{identifier(column.name)} AS {identifier(next(names))}"
            for column in schema
            if column.name not in join.on
        ]
        if index:
            equal = " AND ".join(
                f"{tables[0]}_0.{identifier(key)} = {alias}.{identifier(key)}" for key in join.on
            )
            text += f" {join.how.upper()} JOIN {sources[index]} ON {equal}"
    return f"SELECT {', '.join(chosen)} FROM {text}"


def _key_of(join: JoinOperator, key: str, tables: Sequence[str]) -> str:
    preserved = [f"{tables[port]}_{port}.{identifier(key)}" for port in join.preserved or (0,)]
    return preserved[0] if len(preserved) == 1 else f"coalesce({', '.join(preserved)}) AS {identifier(key)}"


def _aggregated(operator: AggregateOperator, schema: Schema, table: str) -> str:
    keys = [identifier(key) for key in operator.by]
    group = f" GROUP BY {', '.join(keys)}" if keys else ""
    return f"SELECT {', '.join([*keys, *_aggregates(operator, schema)])} FROM {table}{group}"


def _aggregates(operator: AggregateOperator, schema: Schema) -> list[str]:
    calls = {name: parse_aggregate(sql, schema) for name, sql in operator.aggregates.items()}
    return [
        f"{aggregate_sql(call.function, call.argument.tree if call.argument else None)} AS {identifier(name)}"
        for name, call in calls.items()
    ]
