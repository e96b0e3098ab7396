"""``ORDER BY`` and ``LIMIT`` of a SELECT whose rows are printed: the columns to sort by, and how many rows count."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from sqlglot import exp

from placement.statements.carets import Unsupported, begin_of, shown
from topology.consistency import listed

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sqlglot.expressions import Expr


_MOST_ROWS = (1 << 63) - 1


@dataclass(frozen=True, slots=True)
class SortKey:
    """A column that rows are sorted by, by its number."""

    column: int
    is_descending: bool
    nulls_first: bool


@dataclass(frozen=True, slots=True)
class Ordering:
    """How the rows of a SELECT are printed: sorted, from ``offset`` on, ``limit`` at most.

    Columns after the first ``width`` are there to sort by, and not printed.
    """

    width: int
    keys: tuple[SortKey, ...] = ()
    limit: int | None = None
    offset: int = 0
    at: int | None = None
    """Where the text has it."""

    @property
    def needs_all(self) -> bool:
        """True if nothing can be printed before all rows are there."""
        return bool(self.keys) or self.limit is not None or self.offset > 0


Term = tuple[int | str | None, "Expr"]
"""A sort key, and its place: the number of an item, below 0 of a hidden one, a name, or all items."""


@dataclass(frozen=True, slots=True)
class Unordered:
    """A query without its ``ORDER BY`` and ``LIMIT``; its last ``hidden`` items are there to sort by."""

    query: Expr
    terms: tuple[Term, ...]
    hidden: int
    limit: int | None
    offset: int
    at: int | None

    def ordering(self, names: Sequence[str]) -> Ordering:
        """The ordering of rows that have these columns. Raises Unsupported."""
        width = len(names) - self.hidden
        keys: list[SortKey] = []
        for by, term in self.terms:
            is_descending, nulls_first = bool(term.args.get("desc")), bool(term.args.get("nulls_first"))
            keys += [SortKey(each, is_descending, nulls_first) for each in _columns(by, names[:width], term)]
        return Ordering(width, tuple(keys), self.limit, self.offset, self.at)


def _columns(by: int | str | None, names: Sequence[str], term: Expr) -> list[int]:
    match by:
        case None:
            return [*range(len(names))]
        case int() if by < 0:
            return [len(names) - by - 1]
        case int() if 0 < by <= len(names):
            return [by - 1]
        case int():
            raise Unsupported(
                f"ORDER BY {by}: expected the position of a column in SELECT, from 1 to {len(names)}", term
            )
    folded = [each.casefold() for each in names]
    if by in names or by.casefold() in folded:
        return [names.index(by) if by in names else folded.index(by.casefold())]
    raise Unsupported(f"ORDER BY {by}: {by} is not a column of the result; expected {listed(names)}", term)


def unordered(query: Expr) -> Unordered:
    """Take ``ORDER BY`` and ``LIMIT`` from the outermost SELECT or UNION. Raises Unsupported."""
    order, limit, offset = (query.args.get(each) for each in ("order", "limit", "offset"))
    bare = query.copy()
    for each in ("order", "limit", "offset"):
        bare.set(each, None)
    terms: list[Term] = []
    hidden = 0
    for term in [] if order is None else order.expressions:
        by = _named(term.this, query)
        if by == "":
            _check_hidden(term, query)
            hidden += 1
            by = -hidden
            bare.append("expressions", exp.alias_(term.this.copy(), f"order {hidden}", quoted=True))
        terms.append((by, term))
    given = [each for each in (order, limit, offset) if each is not None]
    at = begin_of(given[0]) if given else None
    return Unordered(bare, tuple(terms), hidden, _count(limit, "LIMIT"), _count(offset, "OFFSET") or 0, at)


def _named(by: Expr, query: Expr) -> int | str | None:
    """The item that a term names, if it is one; else an empty name."""
    if isinstance(by, exp.Literal) and not by.is_string and str(by.this).isdecimal():
        return int(by.this)
    if isinstance(by, exp.Var) and by.name.upper() == "ALL":
        return None
    if isinstance(by, exp.Column) and not by.table:
        names = {each.alias_or_name.casefold() for each in getattr(query, "expressions", ())}
        if by.name.casefold() in names or not isinstance(query, exp.Select):
            return str(by.name)
    if isinstance(query, exp.Select):
        for number, each in enumerate(query.expressions, 1):
            if each.unalias() == by and not any(
                isinstance(it, exp.Star) for it in query.expressions[:number]
            ):
                return number
    return ""


def _check_hidden(term: Expr, query: Expr) -> None:
    if not isinstance(query, exp.Select):
        raise Unsupported(
            f"ORDER BY {shown(term)} is not supported for a UNION: name a column of its result", term
        )
    if query.args.get("distinct"):
        raise Unsupported(
            f"ORDER BY {shown(term)} is not supported: SELECT DISTINCT can be ordered only by "
            f"what it selects",
            term,
        )


def _count(given: Expr | None, word: str) -> int | None:
    if given is None:
        return None
    number = given.args.get("expression")
    is_bare = not given.args.get("limit_options") and not given.args.get("expressions")
    if is_bare and isinstance(number, exp.Literal) and not number.is_string and str(number.this).isdecimal():
        if int(number.this) > _MOST_ROWS:
            raise Unsupported(
                f"{word} {number.this} is more than {_MOST_ROWS}, the most rows that count", given
            )
        return int(number.this)
    raise Unsupported(f"expected {word} and a whole number, got {shown(given)}", given)
