"""The typed tree of an SQL expression: what parsing makes and what engines evaluate.

Three kinds of node. Conversions are explicit in it (``Call("cast", ...)``), so that an evaluator needs no
rules of its own about types.
"""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from placement.errors import QueryError

if TYPE_CHECKING:
    from sqlglot.expressions import Expr

    from topology.schema import DataType

Value = bool | int | float | str | dt.date | dt.datetime | None
"""The value of a literal; a ``datetime`` is in UTC, with its zone."""


class ExpressionError(QueryError):
    """An SQL expression that cannot be read, or does not fit the columns it is used on."""


@dataclass(frozen=True, slots=True)
class Written:
    """How a part of an expression is written, made when a message needs it.

    The texts of all the parts of a long chain of operators are much longer than the chain.
    """

    node: Expr

    def __str__(self) -> str:
        return self.node.sql(dialect="duckdb")

    def __repr__(self) -> str:
        return repr(str(self))


Text = str | Written
"""A text for a message."""


@dataclass(frozen=True, slots=True)
class ColumnRef:
    """The value of an input column."""

    name: str
    type: DataType

    @property
    def sql(self) -> str:
        """How the column is written."""
        return self.name


@dataclass(frozen=True, slots=True)
class Literal:
    """A constant. ``adapts`` is true if its type was not written and follows the other operand."""

    value: Value
    type: DataType | None
    adapts: bool = field(default=False, compare=False)

    @property
    def sql(self) -> str:
        """How the constant is written."""
        return "NULL" if self.value is None else repr(self.value)


@dataclass(frozen=True, slots=True)
class Call:
    """A function or operator applied to arguments."""

    function: str
    arguments: tuple[Node, ...]
    type: DataType
    written: Text = field(compare=False)

    @property
    def sql(self) -> str:
        """How the call was written, for messages."""
        return str(self.written)


Node = ColumnRef | Literal | Call


def columns_of(node: Node) -> set[str]:
    """The input columns whose values an expression needs."""
    match node:
        case ColumnRef(name):
            return {name}
        case Call():
            return set().union(*map(columns_of, node.arguments))
        case Literal():
            return set()
