"""The output schema of every operator, and what keeps an operator from working on its inputs."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, assert_never

from placement.errors import QueryError
from placement.graph import carried
from placement.plan import (
    AggregateOperator,
    BoundSink,
    DistinctOperator,
    FilterOperator,
    JoinOperator,
    ProjectOperator,
    RowOperator,
    UnionOperator,
    ViewOperator,
    WindowOperator,
)
from placement.sql.typed_tree import ColumnRef
from placement.sql.typing_rules import MOMENTS
from topology import Column, DataType, Schema
from topology.consistency import did_you_mean, listed
from topology.schema import sql_name

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from topology.mistakes import Location

Fault = tuple["Location", str]
"""The field of an operator that is wrong, and why."""
RESERVED = "_weight"
"""The column that carries, in addition to a stream's own columns, how many times a row is added or retracted."""
WINDOW_COLUMNS = ("window_start", "window_end")
"""The columns that a window adds to its input."""
InnerOperator = RowOperator | ViewOperator | BoundSink

DividedOperator = AggregateOperator | DistinctOperator | JoinOperator
"""Operators that may be in shards."""


def divisible_by(operator: DividedOperator, schema: Schema) -> tuple[str, ...]:
    """The columns of which any divide its rows so that what belongs together is; ``schema`` is what it gives out."""
    match operator:
        case AggregateOperator():
            return operator.by
        case JoinOperator():
            return operator.on
    return tuple(column.name for column in schema)


def output_schema(  # noqa: PLR0911 - one per kind of operator
    operator: InnerOperator, inputs: Sequence[Schema], faults: list[Fault]
) -> Schema:
    """The columns that ``operator`` gives out, reading ``inputs``. Adds what is wrong with it to ``faults``.

    If there are faults, what is returned has no meaning.
    """
    match operator:
        case FilterOperator():
            return _filtered(operator, inputs[0], faults)
        case ProjectOperator():
            return _projected(operator, inputs[0], faults)
        case AggregateOperator():
            return _aggregated(operator, inputs[0], faults)
        case UnionOperator():
            return _united(operator, inputs, faults)
        case JoinOperator():
            _check_join(operator, inputs, faults)
            return _unique(joined_schema(operator, inputs), ("inputs",), faults)
        case WindowOperator():
            return _windowed(operator, inputs[0], faults)
        case ViewOperator():
            return _viewed(operator, inputs[0], faults)
        case DistinctOperator() | BoundSink():
            return inputs[0]
    assert_never(operator)


def joined_schema(join: JoinOperator, inputs: Sequence[Schema]) -> Schema:
    """The keys once, then the other columns of each input; a name of several is ``<input id>.<name>``."""
    types = {column.name: column for column in inputs[0]}
    keys = [types[name] for name in join.on if name in types]
    names = Counter(column.name for schema in inputs for column in schema if column.name not in join.on)
    others = [
        Column(
            name=f"{carried(child)}.{column.name}" if names[column.name] > 1 else column.name,
            type=column.type,
        )
        for child, schema in zip(join.inputs, inputs, strict=True)
        for column in schema
        if column.name not in join.on
    ]
    return (*keys, *others)


def joined_names(on: Sequence[str], inputs: Sequence[Schema], output: Schema) -> list[dict[str, str]]:
    """Return the names of non-key columns in a join's output, by input."""
    given = iter([column.name for column in output[len(on) :]])
    return [{column.name: next(given) for column in schema if column.name not in on} for schema in inputs]


def plain_columns(project: ProjectOperator, schema: Schema) -> dict[str, str]:
    """The columns of a project that are columns of its input, which has this schema, with their names there."""
    from placement.sql.expressions import parse

    trees = {name: parse(sql, schema).tree for name, sql in project.columns.items()}
    return {name: tree.name for name, tree in trees.items() if isinstance(tree, ColumnRef)}


def _filtered(operator: FilterOperator, schema: Schema, faults: list[Fault]) -> Schema:
    from placement.sql.expressions import parse

    try:
        kind = parse(operator.predicate, schema).type
    except QueryError as error:
        faults.append((("predicate",), str(error)))
    else:
        if kind is not DataType.BOOL:
            faults.append(
                (
                    ("predicate",),
                    f"the predicate {operator.predicate!r} is {sql_name(kind)}; expected BOOLEAN",
                )
            )
    return schema


def _projected(operator: ProjectOperator, schema: Schema, faults: list[Fault]) -> Schema:
    from placement.sql.expressions import parse

    columns: list[Column] = []
    for name, sql in operator.columns.items():
        if not _is_name(name):
            faults.append((("columns", name), f"{name!r} cannot name a column"))
            continue
        try:
            columns.append(Column(name=name, type=parse(sql, schema).type))
        except QueryError as error:
            faults.append((("columns", name), f"column {name!r}: {error}"))
    return _unique(columns, ("columns",), faults)


def _aggregated(operator: AggregateOperator, schema: Schema, faults: list[Fault]) -> Schema:
    from placement.sql.expressions import parse_aggregate

    columns = [_column(schema, name, ("by", index), faults) for index, name in enumerate(operator.by)]
    for name, sql in operator.aggregates.items():
        if not _is_name(name):
            faults.append((("aggregates", name), f"{name!r} cannot name a column"))
            continue
        try:
            columns.append(Column(name=name, type=parse_aggregate(sql, schema).type))
        except QueryError as error:
            faults.append((("aggregates", name), f"column {name!r}: {error}"))
    return _unique((column for column in columns if column), ("by",), faults)


def _windowed(operator: WindowOperator, schema: Schema, faults: list[Fault]) -> Schema:
    time = _column(schema, operator.time, ("time",), faults)
    if time is not None and time.type not in MOMENTS:
        faults.append(
            (("time",), f"column {time.name!r} is {sql_name(time.type)}; expected DATE or TIMESTAMP")
        )
    added = (Column(name=name, type=DataType.TIMESTAMP) for name in WINDOW_COLUMNS)
    return _unique((*schema, *added), ("input",), faults)


def _viewed(operator: ViewOperator, schema: Schema, faults: list[Fault]) -> Schema:
    for index, name in enumerate(operator.key):
        _column(schema, name, ("key", index), faults)
        if name in operator.key[:index]:
            faults.append((("key", index), f"column {name!r} is in the key twice"))
    return schema


def _united(operator: UnionOperator, inputs: Sequence[Schema], faults: list[Fault]) -> Schema:
    first = inputs[0]
    for index, (child, schema) in enumerate(zip(operator.inputs, inputs, strict=True)):
        if schema != first:
            message = f"inputs differ: {operator.inputs[0]} has {_difference(first, child, schema)}"
            faults.append((("inputs", index), f"{message}; expected equal schemas"))
    return first


def _difference(ours: Schema, other: str, theirs: Schema) -> str:
    """How schemas differ first: "5 columns, but b has 4", or "column x BIGINT, but at this position b has y DATE"."""
    for our, their in zip(ours, theirs, strict=False):
        if our != their:
            return (
                f"column {our.name} {sql_name(our.type)}, but at this position {other} has {their.name} "
                f"{sql_name(their.type)}"
            )
    return f"{len(ours)} columns, but {other} has {len(theirs)}"


def _check_join(operator: JoinOperator, inputs: Sequence[Schema], faults: list[Fault]) -> None:
    if operator.how != "inner" and len(inputs) > 2:
        message = (
            f"a {operator.how} join has 2 inputs, but this one has {len(inputs)} "
            f"({', '.join(operator.inputs)})"
        )
        faults.append(
            (
                ("how",),
                f"{message}; join two of them, and join the result with the next input by another operator",
            )
        )
    for index, key in enumerate(operator.on):
        found = [
            (child, column)
            for child, schema in zip(operator.inputs, inputs, strict=True)
            if (column := _column(schema, key, ("on", index), faults, f" in input {child}"))
        ]
        types = {column.type for _, column in found}
        if len(types) > 1:
            shown = ", ".join(f"{sql_name(column.type)} in {child}" for child, column in found)
            faults.append((("on", index), f"key {key!r} has different types: {shown}"))
        if key in operator.on[:index]:
            faults.append((("on", index), f"key {key!r} is given twice"))


def _is_name(text: str) -> bool:
    """True if it is a string that can be encoded: JSON can write half a character."""
    return bool(text) and not any("\ud800" <= character <= "\udfff" for character in text)


def _column(
    schema: Schema, name: str, field: Location, faults: list[Fault], where: str = ""
) -> Column | None:
    for column in schema:
        if column.name == name:
            return column
    names = [column.name for column in schema]
    if qualified := [known for known in names if known.endswith(f".{name}")]:
        faults.append((field, f"column {name!r} is ambiguous{where}; expected {' or '.join(qualified)}"))
    else:
        hint = did_you_mean(name, names)
        faults.append((field, f"unknown column {name!r}{where}{hint}; expected {listed(names)}"))
    return None


def _unique(columns: Iterable[Column], field: Location, faults: list[Fault]) -> Schema:
    """The schema of these columns, each with a name of its own."""
    schema = tuple(columns)
    counts = Counter(column.name for column in schema)
    faults += [(field, f"two output columns are named {name!r}") for name, n in counts.items() if n > 1]
    if RESERVED in counts:
        faults.append((field, f"every stream already has a column {RESERVED!r}; expected another name"))
    return schema
