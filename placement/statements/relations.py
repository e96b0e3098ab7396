"""Rows that a part of a statement gives: the operator that makes them, and how SQL names its columns."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from sqlglot import exp
from sqlglot.dialects.duckdb import DuckDB

from placement.statements.carets import Unsupported, begin_of
from topology.consistency import did_you_mean, listed

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from sqlglot.expressions import Expr

    from topology.mistakes import Location

_PLAIN = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_KEYWORDS = frozenset(DuckDB.Tokenizer.KEYWORDS)
_ID_LIMIT = 150


@dataclass(frozen=True, slots=True)
class Named:
    """A column as SQL names it, alone or behind one of ``tables``, and what it is called in the operator's rows."""

    name: str
    tables: frozenset[str]
    column: str
    is_behind_table: bool = False
    """It is named behind a table only."""


@dataclass(frozen=True, slots=True)
class Relation:
    """The rows of an operator. ``width``: the columns that it has, in their order, named in SQL or not."""

    operator: str
    named: tuple[Named, ...]
    width: tuple[str, ...]

    @classmethod
    def of(cls, operator: str, columns: Sequence[str]) -> Relation:
        """Rows whose columns are named as they are called."""
        return cls(operator, tuple(Named(each, frozenset(), each) for each in columns), tuple(columns))

    @classmethod
    def together(cls, relations: Iterable[Relation]) -> Relation:
        """The columns of all of them, as they are sought; of no operator."""
        return cls("", tuple(named for each in relations for named in each.named), ())

    def called(self, table: str) -> Relation:
        """The same under the name of a table."""
        return replace(self, named=tuple(replace(each, tables=frozenset({table})) for each in self.named))

    def filtered(self, operator: str) -> Relation:
        """The same columns of an operator that reads this one."""
        return replace(self, operator=operator)

    def find(self, column: exp.Column) -> Named:
        """The column that is meant. Raises Unsupported where that is none, or one of several."""
        found = self.candidates(column)
        if len(found) == 1:
            return found[0]
        wanted = f"{column.table}.{column.name}" if column.table else column.name
        if len(found) > 1:
            tables = sorted({table for each in found for table in each.tables})
            raise Unsupported(
                f"column {wanted} is in several tables: write "
                + " or ".join(f"{each}.{column.name}" for each in tables),
                column,
            )
        if column.table and not any(column.table in each.tables for each in self.named):
            tables = sorted({table for each in self.named for table in each.tables})
            raise Unsupported(
                f"unknown table {column.table!r}{did_you_mean(column.table, tables)}; expected {listed(tables)}",
                column,
            )
        names = [each.name for each in self.named if not column.table or column.table in each.tables]
        raise Unsupported(
            f"unknown column {wanted!r}{did_you_mean(column.name, names)}; expected {listed(names)}", column
        )

    def candidates(self, column: exp.Column) -> list[Named]:
        """The columns that may be meant."""
        return [
            each
            for each in self.named
            if each.name == column.name
            and (column.table in each.tables if column.table else not each.is_behind_table)
        ]


def identifier(name: str) -> exp.Identifier:
    """A name as it is read in SQL, whatever is in it."""
    is_plain = _PLAIN.fullmatch(name) and name.upper() not in _KEYWORDS
    return exp.to_identifier(name, quoted=not is_plain)


def column(name: str) -> exp.Column:
    """A column of an operator's rows, in an expression."""
    return exp.Column(this=identifier(name))


def in_columns_of(node: Expr, relation: Relation) -> Expr:
    """An expression with the names that columns have in the rows. Raises Unsupported."""

    def renamed(each: Expr) -> Expr:
        return column(relation.find(each).column) if isinstance(each, exp.Column) else each

    return node.copy().transform(renamed)


def text_of(node: Expr) -> str:
    """An expression as a query file has it."""
    return node.sql(dialect="duckdb")


class Operators:
    """The operators of a statement, as a query file has them, and where in the text each comes from."""

    def __init__(self) -> None:
        self.made: list[dict[str, Any]] = []
        self.begins: dict[Location, int] = {}
        self._ids: set[str] = set()

    def add(self, wanted: str, type_: str, at: Expr | None, **fields: Any) -> str:
        """Add one; its id is the one that is wanted, or like it. ``at`` is the part of the tree that it is for."""
        base = re.sub(r"[^!-=?-~]+", "-", wanted)[:_ID_LIMIT] or type_
        id_ = free_name(base, self._ids)
        self._ids.add(id_)
        self.mark(at, len(self.made))
        self.made.append({"id": id_, "type": type_, **fields})
        return id_

    def mark(self, at: Expr | None, *path: str | int) -> None:
        """Remember where a part of the operators comes from: the last one, unless the path begins with a number."""
        begin = None if at is None else begin_of(at)
        if begin is not None:
            where = path if isinstance(path[0], int) else (len(self.made) - 1, *path)
            self.begins["operators", *where] = begin

    def filter(self, wanted: str, relation: Relation, condition: Expr) -> Relation:
        """Keep the rows of which a condition is true."""
        predicate = text_of(in_columns_of(condition, relation))
        id_ = self.add(wanted, "filter", condition, input=relation.operator, predicate=predicate)
        self.mark(condition, "predicate")
        return relation.filtered(id_)

    def project(self, wanted: str, relation: Relation, columns: dict[str, Expr], at: Expr | None) -> Relation:
        """Compute columns, of expressions over the rows as they are called there; nothing where they are the rows."""
        texts = {name: text_of(each) for name, each in columns.items()}
        if [*texts.items()] == [(name, text_of(column(name))) for name in relation.width]:
            return Relation.of(relation.operator, [*columns])
        id_ = self.add(wanted, "project", at, input=relation.operator, columns=texts)
        return Relation.of(id_, [*columns])


def free_name(wanted: str, taken: Iterable[str]) -> str:
    """A name like the one that is wanted, which is not taken."""
    known, name, number = set(taken), wanted, 2
    while name in known:
        name, number = f"{wanted}_{number}", number + 1
    return name
