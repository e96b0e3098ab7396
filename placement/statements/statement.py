"""Reads a statement as a query, and says what in it means nothing here."""

from __future__ import annotations

from typing import TYPE_CHECKING

import sqlglot
from pydantic import ValidationError
from sqlglot import exp
from sqlglot.errors import SqlglotError

from placement.errors import InvalidQuery
from placement.plan import Origin, Query
from placement.statements.carets import TextMarks, Unsupported, mistake_at, shown
from placement.statements.pruning import pruned
from placement.statements.relations import Operators
from placement.statements.selecting import Scope, selected
from topology.consistency import listed
from topology.mistakes import Mistake, in_file_order
from topology.validation import validation_mistakes

if TYPE_CHECKING:
    from topology import Topology


def parse_statement(text: str, topology: Topology, name: str = "query", file: str | None = None) -> Query:
    """Read ``INSERT INTO sink SELECT ...`` over the logical sources of a topology; ``file`` is what mistakes carry.

    Raises InvalidQuery, with the place of what is wrong.
    """
    operators = Operators()
    try:
        insert = _insert(text, file, topology)
        scope = Scope({each.name: [column.name for column in each.columns] for each in topology.logical}, {})
        query = insert.expression
        if with_ := insert.args.get("with_"):
            query = query.copy()
            query.set("with_", with_.copy())
        found = selected(operators, query, scope)
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
        trees = [each for each in sqlglot.parse(text, dialect="duckdb") if each is not None]
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
