"""The operators of a fragment as one Spark SQL query over views of its inputs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from placement.expressions import parse, parse_aggregate
from placement.plan import (
    AggregateOperator,
    BoundSink,
    BoundSource,
    FilterOperator,
    JoinOperator,
    NetworkSink,
    NetworkSource,
    ProjectOperator,
    UnionOperator,
)
from placement.schemas import output_schema
from spark_bridge.engine.expressions import aggregate_sql, identifier, sql_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from placement.plan import FragmentOperator
    from placement.schemas import InnerOperator
    from topology import Schema


@dataclass(frozen=True, slots=True)
class SparkPlan:
    """``sql`` reads the view ``input_0`` as the first of ``inputs``, which are by source, and so on."""

    inputs: Mapping[str, Schema]
    output: Schema
    sql: str


def view(index: int) -> str:
    """The name of an input's view."""
    return f"input_{index}"


def compile_plan(operators: Sequence[FragmentOperator]) -> SparkPlan:
    """The query of a fragment, whose operators stand after what they read, and which ends in a sink."""
    schemas: dict[str, Schema] = {}
    names: dict[str, str] = {}
    inputs: dict[str, Schema] = {}
    steps: list[str] = []
    for operator in operators:
        match operator:
            case BoundSource() | NetworkSource():
                names[operator.id] = view(len(inputs))
                inputs[operator.id] = schemas[operator.id] = operator.columns
            case BoundSink() | NetworkSink():
                child = operator.input
                query = f"SELECT * FROM {names[child]}"
                return SparkPlan(
                    inputs, schemas[child], f"WITH {', '.join(steps)} {query}" if steps else query
                )
            case _:
                below = [schemas[child] for child in operator.children]
                schemas[operator.id] = output_schema(operator, below, [])
                names[operator.id] = f"step_{len(steps)}"
                tables = [names[child] for child in operator.children]
                steps.append(
                    f"{names[operator.id]} AS ({_select(operator, below, schemas[operator.id], tables)})"
                )
    raise AssertionError("a fragment ends in a sink")


def _select(operator: InnerOperator, inputs: Sequence[Schema], output: Schema, tables: Sequence[str]) -> str:
    match operator:
        case FilterOperator():
            return f"SELECT * FROM {tables[0]} WHERE {sql_of(parse(operator.predicate, inputs[0]).tree)}"
        case ProjectOperator():
            return f"SELECT {_computed(operator.columns, inputs[0])} FROM {tables[0]}"
        case UnionOperator():
            return " UNION ALL ".join(f"SELECT * FROM {table}" for table in tables)
        case JoinOperator():
            return _joined(operator, inputs, output, tables)
        case AggregateOperator():
            return _aggregated(operator, inputs[0], tables[0])
    raise AssertionError(f"{operator.type} computes nothing")


def _computed(columns: Mapping[str, str], schema: Schema) -> str:
    return ", ".join(
        f"{sql_of(parse(sql, schema).tree)} AS {identifier(name)}" for name, sql in columns.items()
    )


def _joined(join: JoinOperator, inputs: Sequence[Schema], output: Schema, tables: Sequence[str]) -> str:
    """The keys, then the other columns input by input, under the names that the output has for them."""
    names = iter(column.name for column in output[len(join.on) :])
    chosen = [f"{tables[0]}_0.{identifier(key)}" for key in join.on]
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
            text += f" JOIN {sources[index]} ON {equal}"
    return f"SELECT {', '.join(chosen)} FROM {text}"


def _aggregated(operator: AggregateOperator, schema: Schema, table: str) -> str:
    calls = {name: parse_aggregate(sql, schema) for name, sql in operator.aggregates.items()}
    keys = [identifier(key) for key in operator.by]
    chosen = keys + [
        f"{aggregate_sql(call.function, call.argument.tree if call.argument else None)} AS {identifier(name)}"
        for name, call in calls.items()
    ]
    group = f" GROUP BY {', '.join(keys)}" if keys else ""
    return f"SELECT {', '.join(chosen)} FROM {table}{group}"
