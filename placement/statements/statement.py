"""Reads a statement as a query, and says what in it means nothing here."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import sqlglot
from pydantic import ValidationError
from sqlglot import exp
from sqlglot.errors import SqlglotError

from placement.errors import InvalidQuery
from placement.plan import Origin, Query
from placement.sql.sql_tree import parsed
from placement.statements.carets import TextMarks, Unsupported, mistake_at, shown
from placement.statements.relations import Operators
from placement.statements.select_statements import Scope, selected, with_queries
from topology.consistency import listed
from topology.mistakes import Mistake, in_file_order
from topology.validation import validation_mistakes

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from topology import Topology

_BOUNDS = {"window_start", "window_end"}


def parse_statement(text: str, topology: Topology, name: str = "query", file: str | None = None) -> Query:
    """Read ``INSERT INTO sink SELECT ...`` over the logical sources of a topology; ``file`` is what mistakes carry.

    Raises InvalidQuery, with the place of what is wrong.
    """
    operators = Operators({each.name: each.columns for each in topology.logical})
    try:
        insert = _insert(text, file, topology)
        scope = Scope({each.name: [column.name for column in each.columns] for each in topology.logical}, {})
        if with_ := insert.args.get("with_"):
            scope = with_queries(with_, scope)
        found = selected(operators, insert.expression, scope)
        operators.add(insert.this.name, "sink", insert.this, input=found.operator, sink=insert.this.name)
        operators.mark(insert.this, "sink")
    except Unsupported as error:
        raise InvalidQuery([mistake_at(text, file, error.at, str(error))]) from None
    except RecursionError:
        raise InvalidQuery([Mistake("the statement is nested too deep", file)]) from None
    marks = TextMarks(text, file, operators.begins)
    try:
        return Query.model_validate({"operators": pruned(operators.made)}, context=Origin(name, marks))
    except ValidationError as error:
        raise InvalidQuery(in_file_order(validation_mistakes(error, Query, marks))) from None


def _insert(text: str, file: str | None, topology: Topology) -> exp.Insert:
    """The statement. Raises InvalidQuery, Unsupported."""
    try:
        trees = [
            each
            for each in sqlglot.parse(text, dialect="duckdb")
            if each is not None and not isinstance(each, exp.Semicolon)
        ]
    except SqlglotError as error:
        details = (getattr(error, "errors", None) or [{}])[0]
        reason = str(details.get("description") or error).partition("\n")[0].rstrip(".")
        raise InvalidQuery([_misread(text, file, details, f"cannot be read as SQL: {reason}")]) from None
    if len(trees) != 1:
        at = trees[1] if trees else None
        raise Unsupported(f"expected one statement, got {len(trees)}", at)
    (tree,) = trees
    sinks = sorted({each.name for node in topology.nodes for each in node.sinks})
    if isinstance(tree, exp.Select | exp.Union | exp.Subquery):
        raise Unsupported(
            f"the statement says nothing of where its rows go: write INSERT INTO sink in front of it; expected as sink "
            f"{listed(sinks) if sinks else 'one that the topology has, which has none'}",
            tree,
        )
    if not isinstance(tree, exp.Insert):
        raise Unsupported(f"expected INSERT INTO sink SELECT ..., got {shown(tree)}", tree)
    target = tree.this
    if (
        not isinstance(target, exp.Table)
        or not isinstance(target.this, exp.Identifier)
        or target.args.get("db")
    ):
        raise Unsupported("expected the name of a sink alone behind INSERT INTO", target)
    _refuse_others(tree)
    return tree


def _refuse_others(insert: exp.Insert) -> None:
    others = [
        name for name, value in insert.args.items() if value and name not in ("this", "expression", "with_")
    ]
    if others:
        raise Unsupported(f"{others[0].strip('_').upper()} of INSERT is not supported", insert.this)
    if insert.expression is None:
        raise Unsupported("INSERT INTO without SELECT", insert.this)


def _misread(text: str, file: str | None, details: dict[str, object], message: str) -> Mistake:
    """What sqlglot says: its column is that of the last character of what it has stumbled on."""
    line, end = details.get("line"), details.get("col")
    if not isinstance(line, int) or not isinstance(end, int):
        return Mistake(message, file)
    word = str(details.get("highlight") or "")
    before = sum(len(each) + 1 for each in text.split("\n")[: line - 1])
    begin = before + max(end - max(len(word), 1), 0)
    return mistake_at(text, file, begin, message)


def pruned(operators: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The operators, inputs before readers, of which projects compute what is read, and nothing else."""
    read: dict[str, set[str] | None] = {}
    """By operator; None: all that it gives."""
    kept = []
    for given in reversed(operators):
        wanted = read.get(given["id"])
        operator = given if wanted is None else _without_others(given, wanted)
        kept.append(operator)
        for input_ in _inputs(operator):
            needed = _needed(operator, wanted)
            before = read.get(input_, set())
            read[input_] = None if needed is None or before is None else before | needed
    return kept[::-1]


def _inputs(operator: dict[str, Any]) -> list[str]:
    inputs: list[str] = operator.get("inputs", [])
    return [*inputs, *(operator[each] for each in ("input",) if each in operator)]


def _without_others(operator: dict[str, Any], wanted: set[str]) -> dict[str, Any]:
    """A project that computes what is wanted; one column at least, as rows are counted, too."""
    if operator["type"] != "project":
        return operator
    columns: dict[str, str] = operator["columns"]
    left = {name: text for name, text in columns.items() if name in wanted}
    return {**operator, "columns": left or dict([*columns.items()][:1])}


def _needed(operator: dict[str, Any], wanted: set[str] | None) -> set[str] | None:
    """What an operator reads of its inputs, for what is read of it."""
    match operator["type"]:
        case "project":
            return _columns(operator["columns"].values())
        case "aggregate":
            return {*operator["by"]} | _columns(operator["aggregates"].values())
        case "filter" if wanted is not None:
            return wanted | _columns([operator["predicate"]])
        case "join" if wanted is not None:
            return wanted | {*operator["on"]}
        case "window" if wanted is not None:
            return (wanted - _BOUNDS) | {operator["time"]}
    return None  # all columns of a union, a distinct, a sink: others would be other rows


def _columns(texts: Iterable[str]) -> set[str]:
    return {each.name for text in texts for each in parsed(text).find_all(exp.Column)}
