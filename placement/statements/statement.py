"""Reads a statement as a query, and reports its unsupported parts."""

from __future__ import annotations

import re
from dataclasses import dataclass
from difflib import get_close_matches
from typing import TYPE_CHECKING

import sqlglot
from pydantic import ValidationError
from sqlglot import exp
from sqlglot.errors import SqlglotError, TokenError
from sqlglot.tokenizer_core import TokenType

from placement.errors import InvalidQuery
from placement.plan import Origin, Query
from placement.sql.sql_tree import QueryDialect
from placement.statements.carets import TextMarks, Unsupported, mistake_at, shown
from placement.statements.ordering import Ordering, unordered
from placement.statements.relations import Marked, Operators
from placement.statements.reserved_words import check_names
from placement.statements.select_statements import Scope, selected, with_queries
from placement.statements.simplification import simplified
from topology.consistency import listed
from topology.mistakes import Mistake, in_file_order
from topology.validation import validation_mistakes

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sqlglot.expressions import Expr
    from sqlglot.tokenizer_core import Token

    from topology import Topology
    from topology.mistakes import Location


@dataclass(frozen=True, slots=True)
class Statement:
    """A statement as it is read. ``ordering`` is that of a SELECT without a sink, whose rows are to be printed.

    The query of such a SELECT has a sink of the name `PRINTED`, which no topology has.
    """

    query: Query
    is_explained: bool = False
    ordering: Ordering | None = None
    text: str = ""
    file: str | None = None

    def check_run(self, topology: Topology) -> None:
        """Raise InvalidQuery if it is explained, or has no sink: few commands take these."""
        if not self.is_explained and self.ordering is None:
            return
        message = "EXPLAIN is for nebuli run and nebuli place: leave it out"
        if not self.is_explained:
            sinks = sorted({each.name for node in topology.nodes for each in node.sinks})
            known = f"expected as sink {listed(sinks)}" if sinks else "the topology has no sink yet"
            message = (
                f"the statement has no sink for its rows: write INSERT INTO sink in front of it, "
                f"or let nebuli run print them; {known}"
            )
        raise InvalidQuery([mistake_at(self.text, self.file, _tokens(self.text)[0].start, message)])

    def mistake_at_order(self, message: str) -> Mistake:
        """The mistake ``message`` in ``ORDER BY`` or ``LIMIT``."""
        return mistake_at(self.text, self.file, None if self.ordering is None else self.ordering.at, message)


PRINTED = "standard output"
_WORDS = (
    "SELECT", "FROM", "WHERE", "GROUP", "HAVING", "ORDER", "LIMIT", "OFFSET", "JOIN", "UNION", "INSERT", "INTO", "WITH",
    "DISTINCT", "INTERVAL",
)  # fmt: skip
"""Words after which another one is expected when they are misspelt."""


def parse_statement(text: str, topology: Topology, name: str = "query", file: str | None = None) -> Query:
    """Read ``INSERT INTO sink SELECT ...`` over the logical sources of a topology; ``file`` is what mistakes carry.

    Raises InvalidQuery, with the place of what is wrong.
    """
    found = read_statement(text, topology, name, file)
    found.check_run(topology)
    return found.query


def read_statement(text: str, topology: Topology, name: str = "query", file: str | None = None) -> Statement:
    """Read a statement as `parse_statement` does, or a ``SELECT`` without a sink, either after ``EXPLAIN``.

    Raises InvalidQuery, with the place of what is wrong.
    """
    operators = Operators({each.name: each.columns for each in topology.logical})
    scope = Scope({each.name: [column.name for column in each.columns] for each in topology.logical}, {})
    ordering = None
    try:
        is_explained, tree = _tree(text, file)
        if isinstance(tree, exp.Query):
            bare = unordered(tree)
            found = selected(operators, bare.query, scope)
            ordering = bare.ordering(found.width)
            operators.add("output", "sink", tree, input=found.operator, sink=PRINTED)
        else:
            insert = _insert(tree, topology)
            if with_ := insert.args.get("with_"):
                scope = with_queries(with_, scope)
            found = selected(operators, insert.expression, scope)
            sink = _sink(insert.this, topology)
            operators.add(sink, "sink", insert.this, input=found.operator, sink=sink)
            operators.mark(insert.this, "sink")
    except Unsupported as error:
        begin = len(text) - len(text.lstrip()) if error.at is None else error.at
        raise InvalidQuery([mistake_at(text, file, begin, str(error))]) from None
    except RecursionError:
        raise InvalidQuery([Mistake("the statement is nested too deeply", file)]) from None
    marks = _marks(text, file, operators.marked)
    if wrong := [marks.mistake(path, message) for path, message in operators.mistakes()]:
        raise InvalidQuery(in_file_order(wrong))
    marked = simplified(operators.marked, scope.sources)
    marks = _marks(text, file, marked)
    try:
        made = [each.given for each in marked]
        query = Query.model_validate({"operators": made}, context=Origin(name, marks))
    except ValidationError as error:
        raise InvalidQuery(in_file_order(validation_mistakes(error, Query, marks))) from None
    return Statement(query, is_explained, ordering, text, file)


def _marks(text: str, file: str | None, marked: Sequence[Marked]) -> TextMarks:
    """The places of operators and their fields, by their paths in a query file."""
    begins: dict[Location, int] = {}
    for number, each in enumerate(marked):
        for path, begin in each.begins.items():
            begins["operators", number, *path] = begin
    return TextMarks(text, file, begins)


def _tree(text: str, file: str | None) -> tuple[bool, Expr]:
    """Return true if the statement has EXPLAIN, and its tree without that. Raises InvalidQuery, Unsupported."""
    text = text.replace("\ufeff", " ", 1) if text.startswith("\ufeff") else text
    is_explained = False
    try:
        tokens = _tokens(text) if "explain" in text.lower() else []
        if tokens and tokens[0].text.upper() == "EXPLAIN":
            is_explained = True
            if tokens[1:] and tokens[1].text.upper().split()[:1] == ["ANALYZE"]:
                begin = text.lower().index("analyze", tokens[0].end)
                raise Unsupported(
                    "EXPLAIN ANALYZE is not supported: run the statement itself, with --json for figures",
                    begin,
                )
            first, last = tokens[0].start, tokens[0].end
            text = text[:first] + " " * (last + 1 - first) + text[last + 1 :]
        trees = [
            each
            for each in sqlglot.parse(text, dialect=QueryDialect)
            if each is not None and not isinstance(each, exp.Semicolon)
        ]
    except TokenError as error:
        raise Unsupported(
            "cannot be read as SQL: a quote or a comment is not closed", _unclosed(text, error)
        ) from None
    except SqlglotError as error:
        details = (getattr(error, "errors", None) or [{}])[0]
        reason = str(details.get("description") or error).partition("\n")[0].partition(" but got <Token")[0]
        reason = reason.partition(" for <class")[0].rstrip(".")
        if reason.startswith("Required keyword"):
            reason = "an expression is missing"
        raise InvalidQuery([_misread(text, file, details, f"cannot be read as SQL: {reason}")]) from None
    if not trees:
        raise Unsupported("expected a statement, INSERT INTO sink SELECT ..., got none")
    if len(trees) > 1:
        raise Unsupported(f"expected one statement, got {len(trees)}: run each separately", trees[1])
    check_names(trees[0], text)
    return is_explained, trees[0]


def _unclosed(text: str, error: TokenError) -> int:
    """Where a quote or a comment begins that does not end."""
    place = re.search(r"from (\d+):(\d+)", str(error.__cause__))
    if place is None:
        return max(text.rfind("/*"), 0)
    line, column = map(int, place.groups())
    return sum(len(each) + 1 for each in text.split("\n")[: line - 1]) + column


def _tokens(text: str) -> list[Token]:
    return sqlglot.tokenize(text, dialect="duckdb")


def _insert(tree: Expr, topology: Topology) -> exp.Insert:
    """The tree as a statement with a sink. Raises Unsupported."""
    if not isinstance(tree, exp.Insert):
        is_view = isinstance(tree, exp.Create) and tree.kind == "VIEW"
        hint = "; a view is an operator of type view in a query file (JSON)" if is_view else ""
        raise Unsupported(f"expected INSERT INTO sink SELECT ..., got {shown(tree)}{hint}", tree)
    target = tree.this
    if (
        not isinstance(target, exp.Table)
        or not isinstance(target.this, exp.Identifier)
        or target.args.get("db")
    ):
        raise Unsupported("expected only the name of a sink after INSERT INTO", target)
    _refuse_others(tree)
    return tree


def _sink(target: exp.Table, topology: Topology) -> str:
    """The name of the sink that is meant, in any case."""
    sinks = [each.name for node in topology.nodes for each in node.sinks]
    folded = {each.casefold(): each for each in sinks}
    name: str = target.name
    return name if name in sinks else folded.get(name.casefold(), name)


def _refuse_others(insert: exp.Insert) -> None:
    others = [
        name for name, value in insert.args.items() if value and name not in ("this", "expression", "with_")
    ]
    if others:
        words = {"alternative": "OR REPLACE", "by_name": "BY NAME", "conflict": "ON CONFLICT"}
        word = words.get(others[0], others[0].strip("_").upper())
        raise Unsupported(f"{word} of INSERT is not supported: leave it out", insert.this)
    if insert.expression is None:
        raise Unsupported("INSERT INTO without SELECT: write INSERT INTO sink SELECT ...", insert.this)


def _misread(text: str, file: str | None, details: dict[str, object], message: str) -> Mistake:
    """Return sqlglot's error: its column is that of the last character of the offending token."""
    line, end = details.get("line"), details.get("col")
    if not isinstance(line, int) or not isinstance(end, int):
        return Mistake(message, file)
    word = str(details.get("highlight") or "")
    before = sum(len(each) + 1 for each in text.split("\n")[: line - 1])
    begin = before + max(end - max(len(word), 1), 0)
    for token in [each for each in _tokens(text) if each.start <= begin][-3:]:
        near = get_close_matches(token.text.upper(), _WORDS, 1, 0.75)
        if token.token_type is TokenType.VAR and near:
            word = f"{near[0]} BY" if near[0] in ("GROUP", "ORDER") else near[0]
            message, begin = f"{message} (did you mean {word} instead of {token.text}?)", token.start
            break
    return mistake_at(text, file, begin, message)
