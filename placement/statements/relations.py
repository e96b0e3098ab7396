"""Rows that a part of a statement gives: the operator that makes them, and how SQL names its columns."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

from pydantic import Field, TypeAdapter, ValidationError
from sqlglot import exp
from sqlglot.dialects.duckdb import DuckDB

from placement.checking.schemas import output_schema
from placement.plan import RowOperator, SourceOperator
from placement.sql.sql_tree import sql_of
from placement.sql.translation import Translator
from placement.sql.typed_tree import ExpressionError
from placement.statements.carets import Unsupported, begin_of
from placement.statements.reserved_words import RESERVED_WORDS
from topology import Column, DataType
from topology.consistency import did_you_mean, listed
from topology.schema import sql_name

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from sqlglot.expressions import Expr

    from placement.checking.schemas import Fault
    from topology import Schema
    from topology.mistakes import Location

_PLAIN = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_KEYWORDS = frozenset(DuckDB.Tokenizer.KEYWORDS) | {each.upper() for each in RESERVED_WORDS}
_ID_LIMIT = 150
_OPERATOR: TypeAdapter[SourceOperator | RowOperator] = TypeAdapter(
    Annotated[SourceOperator | RowOperator, Field(discriminator="type")]
)


Given = dict[str, Any]
"""An operator as a query file has it."""


class Marked(NamedTuple):
    """An operator, and where it and its fields begin in the text."""

    given: Given
    begins: Mapping[Location, int]


@dataclass(frozen=True, slots=True)
class Named:
    """A column as SQL names it, alone or after one of ``tables``, and its name in the operator's rows."""

    name: str
    tables: frozenset[str]
    column: str
    is_behind_table: bool = False
    """It is named only with its table."""


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

    def called(self, table: str, columns: Sequence[Expr] = ()) -> Relation:
        """The same under the name of a table, the first columns under these names. Raises Unsupported."""
        if len(columns) > len(self.named):
            raise Unsupported(
                f"{table} has {len(self.named)} columns, but {len(columns)} names are given: expected at most "
                f"{len(self.named)}",
                columns[len(self.named)],
            )
        names = [each.name for each in columns] + [each.name for each in self.named[len(columns) :]]
        return replace(
            self,
            named=tuple(
                replace(each, name=name, tables=frozenset({table}))
                for name, each in zip(names, self.named, strict=True)
            ),
        )

    def filtered(self, operator: str) -> Relation:
        """The same columns of an operator that reads this one."""
        return replace(self, operator=operator)

    def find(self, column: exp.Column) -> Named:
        """The column that is meant. Raises Unsupported if there is none, or several."""
        found = self.candidates(column)
        if len(found) == 1:
            return found[0]
        wanted = f"{column.table}.{column.name}" if column.table else column.name
        if len(found) > 1:
            raise Unsupported(self._ambiguous(wanted, found), column)
        if column.table and not any(_is_in(column.table, each.tables) for each in self.named):
            tables = sorted({table for each in self.named for table in each.tables})
            raise Unsupported(
                f"unknown table {column.table!r}{did_you_mean(column.table, tables)}; expected {listed(tables)}",
                column,
            )
        named = [each for each in self.named if not column.table or _is_in(column.table, each.tables)]
        names = [*dict.fromkeys(each.name for each in named)]
        message = f"unknown column {wanted!r}{did_you_mean(column.name, names)}; expected {listed(names)}"
        if column.this.args.get("quoted") and not column.table:
            message += f"; strings are in single quotes: {text_of(exp.Literal.string(column.name))}"
        raise Unsupported(message, column)

    def candidates(self, column: exp.Column) -> list[Named]:
        """The columns that may be meant: those of the name as it is written, else those of it in another case."""
        folded = column.name.casefold()
        found = [
            each
            for each in self.named
            if each.name.casefold() == folded
            and (_is_in(column.table, each.tables) if column.table else not each.is_behind_table)
        ]
        exact = [each for each in found if each.name == column.name]
        return exact or found

    @staticmethod
    def _ambiguous(wanted: str, found: Sequence[Named]) -> str:
        """The message for a name that several columns have."""
        tables = sorted({table for each in found for table in each.tables})
        if len(tables) < len(found):
            names = sorted({each.name for each in found})
            return (
                f"several columns match {wanted} ({', '.join(names)}): give one of them another name with AS"
            )
        return f"column {wanted} is in several tables: write " + " or ".join(
            f"{table}.{found[0].name}" for table in tables
        )


def identifier(name: str) -> exp.Identifier:
    """Return a name as it is read in SQL, with any characters."""
    is_plain = _PLAIN.fullmatch(name) and name.upper() not in _KEYWORDS
    return exp.to_identifier(name, quoted=not is_plain)


def column(name: str) -> exp.Column:
    """A column of an operator's rows, in an expression."""
    return exp.Column(this=identifier(name))


def in_columns_of(node: Expr, relation: Relation) -> Expr:
    """An expression with the names that columns have in the rows. Raises Unsupported."""

    def renamed(each: Expr) -> Expr:
        return column(relation.find(each).column) if isinstance(each, exp.Column) else each

    return renamed(node) if isinstance(node, exp.Column) else node.transform(renamed)


def text_of(node: Expr) -> str:
    """An expression as a query file has it."""
    return str(sql_of(node))


def _is_in(table: str, tables: Iterable[str]) -> bool:
    """True if a table is one of these, in any case."""
    return table.casefold() in {each.casefold() for each in tables}


class Operators:
    """The operators of a statement, as a query file has them, and where in the text each comes from.

    ``sources`` are the columns of the logical sources.
    """

    def __init__(self, sources: Mapping[str, Schema]) -> None:
        self._sources = sources
        self._schemas: dict[str, Schema | None] = {}
        self._numbers: dict[str, int] = {}
        self.queries: dict[int, Relation] = {}
        """The results of queries named by ``WITH``, by the identity of its tree: each is made once."""
        self.made: list[dict[str, Any]] = []
        self._begins: list[dict[Location, int]] = []
        self._faults: dict[str, list[Fault]] = {}
        self._ids: set[str] = set()

    def add(self, wanted: str, type_: str, at: Expr | None, **fields: Any) -> str:
        """Add one; its id is the one that is wanted, or like it. ``at`` is the part of the tree that it is for."""
        base = re.sub(r"[^!-=?-~]+", "-", wanted)[:_ID_LIMIT] or type_
        id_ = free_name(base, self._ids)
        self._ids.add(id_)
        self._numbers[id_] = len(self.made)
        self.made.append({"id": id_, "type": type_, **fields})
        self._begins.append({})
        self.mark(at)
        return id_

    def mark(self, at: Expr | None, *path: str | int) -> None:
        """Remember where a part of the last operator comes from."""
        begin = None if at is None else begin_of(at)
        if begin is not None:
            self._begins[-1][path] = begin

    @property
    def marked(self) -> list[Marked]:
        """All operators, each with the places of its own."""
        return [*map(Marked, self.made, self._begins)]

    def mistakes(self) -> Iterator[tuple[Location, str]]:
        """The columns and types that do not fit, each with its path; none of what reads what is wrong."""
        for number, each in enumerate(self.made[:-1]):  # the sink is the last
            self._schema(each["id"])
            for path, message in self._faults.get(each["id"], ()):
                yield ("operators", number, *path), f"{each['type']} {each['id']}: {message}"

    def filter(self, wanted: str, relation: Relation, condition: Expr) -> Relation:
        """Keep the rows of which a condition is true."""
        if isinstance(condition.unnest(), exp.Null):
            condition = cast(condition, DataType.BOOL)
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

    def given(self, id_: str) -> dict[str, Any]:
        """An operator as a query file has it."""
        return self.made[self._numbers[id_]]

    def types(self, relation: Relation) -> dict[str, DataType]:
        """The types of a relation's columns; none where a mistake keeps them from being known."""
        return {each.name: each.type for each in self._schema(relation.operator) or ()}

    def _schema(self, id_: str) -> Schema | None:
        if id_ not in self._schemas:
            self._schemas[id_] = self._found_schema(id_)
        return self._schemas[id_]

    def _found_schema(self, id_: str) -> Schema | None:
        try:
            operator = _OPERATOR.validate_python(self.given(id_))
        except ValidationError:
            return None  # which is reported of the whole query
        if isinstance(operator, SourceOperator):
            return self._sources[operator.logical]
        known = [schema for each in operator.children if (schema := self._schema(each)) is not None]
        if len(known) < len(operator.children):
            return None
        faults: list[Fault] = []
        schema = output_schema(operator, known, faults)
        self._faults[id_] = faults
        return None if faults else schema

    def type_of(self, relation: Relation, node: Expr) -> DataType | None:
        """The type of an expression over a relation's columns; None where a mistake keeps it from being known."""
        types = self.types(relation)
        if isinstance(node, exp.Column):
            return types.get(node.name)
        try:
            schema = tuple(Column(name=name, type=type_) for name, type_ in types.items())
            return Translator(schema).translate(node).type
        except ExpressionError:
            return None

    def again(self, relation: Relation) -> Relation:
        """The same rows of an operator of their own, for one that reads them twice."""
        columns = {each: text_of(column(each)) for each in relation.width}
        id_ = self.add("again", "project", None, input=relation.operator, columns=columns)
        return relation.filtered(id_)


def cast(node: Expr, to: DataType) -> Expr:
    """``CAST(node AS to)``."""
    return exp.Cast(this=node, to=exp.DataType.build(sql_name(to), dialect="duckdb"))


def free_name(wanted: str, taken: Iterable[str]) -> str:
    """A name like the one that is wanted, which is not taken."""
    known, name, number = set(taken), wanted, 2
    while name in known:
        name, number = f"{wanted}_{number}", number + 1
    return name
