"""Operators as SQL: each for itself, and a whole query as the statement that gives it."""

# ruff: noqa: S608 - what is printed is text for people and for our own parser, of a plan that was checked

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from placement.durations import microseconds
from placement.errors import QueryError
from placement.graph import bottom_up
from placement.plan import (
    AggregateOperator,
    DistinctOperator,
    FilterOperator,
    JoinOperator,
    ProjectOperator,
    SinkOperator,
    SourceOperator,
    UnionOperator,
    WindowOperator,
)
from placement.statements.relations import identifier

if TYPE_CHECKING:
    from collections.abc import Mapping

    from placement.plan import Query
    from topology import Topology

_JOINS = {"inner": "JOIN", "left": "LEFT JOIN", "right": "RIGHT JOIN", "full": "FULL JOIN"}


class NotInSql(QueryError):
    """A query with a part that only a query file can have; the message names it."""


def statement_of(query: Query, topology: Topology) -> str:
    """The statement that gives the query over a topology: each operator is a query that ``WITH`` names.

    Raises NotInSql for views, shards, bounds of state, policies of channels, more than one sink, and joins whose inputs
    have columns of one name, which a statement calls otherwise.
    """
    sinks = [each for each in query.operators if isinstance(each, SinkOperator)]
    if len(sinks) != 1:
        raise NotInSql(
            f"a statement has one sink, but the query has {len(sinks)}: write a separate query for each sink"
        )
    if query.channels.of or query.channels.model_dump(exclude_defaults=True):
        raise NotInSql("a statement cannot have policies of channels: keep the query as a JSON file")
    (sink,) = sinks
    _check_joins(query, {each.name: [column.name for column in each.columns] for each in topology.logical})
    names = _names(query)
    named = []
    for each in query.operators:
        for field in ("shard", "max_state_bytes"):
            if getattr(each, field, None) is not None:
                raise NotInSql(
                    f"a statement cannot have '{field}' (of {each.id}): keep the query as a JSON file"
                )
        if not isinstance(each, SinkOperator):
            named.append(f"{_name(names[each.id])} AS ({operator_sql(each, names)})")
    with_ = ",\n     ".join(named)
    return f"WITH {with_}\nINSERT INTO {_name(sink.sink)}\nSELECT * FROM {_name(names[sink.input])}\n"


def _check_joins(query: Query, sources: Mapping[str, list[str]]) -> None:
    """Raise NotInSql for a join of columns that have one name and are not joined by."""
    operators = {each.id: each for each in query.operators}
    widths: dict[str, list[str]] = {}
    for key in bottom_up({each.id: each.children for each in query.operators}, *operators):
        operator = operators[key]
        inputs = [widths[each] for each in operator.children]
        match operator:
            case SourceOperator():
                widths[key] = [*sources.get(operator.logical, ())]
            case ProjectOperator():
                widths[key] = [*operator.columns]
            case AggregateOperator():
                widths[key] = [*operator.by, *operator.aggregates]
            case WindowOperator():
                widths[key] = [*inputs[0], "window_start", "window_end"]
            case JoinOperator():
                others = [name for width in inputs for name in width if name not in operator.on]
                if twice := sorted({name for name in others if others.count(name) > 1}):
                    raise NotInSql(
                        f"join {key}: several inputs have a column {', '.join(twice)}, and a statement would "
                        f"rename such columns: give them different names in a project operator before the join"
                    )
                widths[key] = [*operator.on, *others]
            case _:
                widths[key] = inputs[0]


def _names(query: Query) -> dict[str, str]:
    """Return a name for each operator: not that of a source, which it would hide, and all different in any case."""
    taken = {each.logical.casefold() for each in query.operators if isinstance(each, SourceOperator)}
    names = {}
    for each in query.operators:
        name, number = each.id, 2
        while name.casefold() in taken:
            name, number = f"{each.id}_{number}", number + 1
        taken.add(name.casefold())
        names[each.id] = name
    return names


def operator_sql(operator: Any, names: Mapping[str, str] | None = None) -> str:  # noqa: PLR0911 - one per kind
    """An operator as SQL over its inputs, which are tables there, called by their ``names``. Raises NotInSql."""
    inputs = [_name(each if names is None else names[each]) for each in operator.children]
    match operator:
        case SourceOperator():
            return f"SELECT * FROM {_name(operator.logical)}"
        case FilterOperator():
            return f"SELECT * FROM {inputs[0]} WHERE {operator.predicate}"
        case ProjectOperator():
            return f"SELECT {_items(operator.columns)} FROM {inputs[0]}"
        case UnionOperator():
            return " UNION ALL ".join(f"SELECT * FROM {each}" for each in inputs)
        case JoinOperator():
            first, *others = inputs
            on = ", ".join(map(_name, operator.on))
            joined = "".join(f" {_JOINS[operator.how]} {each} USING ({on})" for each in others)
            return f"SELECT * FROM {first}{joined}"
        case AggregateOperator():
            by = ", ".join(map(_name, operator.by))
            items = _items({each: _name(each) for each in operator.by} | operator.aggregates)
            return f"SELECT {items} FROM {inputs[0]}" + (f" GROUP BY {by}" if by else "")
        case DistinctOperator():
            return f"SELECT DISTINCT * FROM {inputs[0]}"
        case WindowOperator():
            return f"SELECT * FROM {_window(operator, inputs[0])}"
        case SinkOperator():
            return f"INSERT INTO {_name(operator.sink)} SELECT * FROM {inputs[0]}"
    raise NotInSql(
        f"a statement cannot have an operator of type {operator.type} ({operator.id}): keep the query "
        f"as a JSON file"
    )


def _window(window: WindowOperator, table: str) -> str:
    given = [table, _name(window.time)]
    if window.slide is not None:
        given.append(_interval(window.slide))
    given.append(_interval(window.size))
    if microseconds(window.lateness):
        given.append(f"lateness := {_interval(window.lateness)}")
    if window.idle_after is not None:
        given.append(f"idle_after := {_interval(window.idle_after)}")
    if window.late is not None:
        path = window.late.replace("'", "''")
        given.append(f"late := '{path}'")
    return f"{'TUMBLE' if window.slide is None else 'HOP'}({', '.join(given)})"


def _interval(duration: str) -> str:
    return f"INTERVAL '{duration}'"


def _items(columns: Mapping[str, str]) -> str:
    return ", ".join(
        text if text == _name(name) else f"{text} AS {_name(name)}" for name, text in columns.items()
    )


def _name(name: str) -> str:
    return identifier(name).sql(dialect="duckdb")
