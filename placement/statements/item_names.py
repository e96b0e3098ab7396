"""The names of what is selected: those of items without ``AS``, and what a name stands for that an item was given."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from sqlglot import exp

if TYPE_CHECKING:
    from collections.abc import Mapping

    from sqlglot.expressions import Expr

    from placement.statements.relations import Relation

_IS_NOT = re.compile(r"NOT ([^()]+|\w+\([^()]*\)) IS\b")


def name_of(node: Expr, relation: Relation) -> str:
    """The name of an item that is given none, as DuckDB names it: a column's own, or how the item is written."""
    node = node.unnest()
    if isinstance(node, exp.Column):
        found = relation.candidates(node)
        return found[0].name if len(found) == 1 else node.name
    name: str = node.transform(_as_named).sql(dialect="duckdb", normalize_functions="lower")
    name = _IS_NOT.sub(r"\1 IS NOT", name)  # which has no node of its own
    name = (
        name.replace(" AS TEXT)", " AS VARCHAR)")
        .replace(" <> ", " != ")
        .replace(" FILTER(WHERE", " FILTER (WHERE")
    )
    return name[1:-1] if name.startswith('"') and name.endswith('"') else name


def _as_named(node: Expr) -> Expr:
    """A part of an item with the parentheses that DuckDB writes in its name."""
    if isinstance(node, exp.Count) and (node.this is None or isinstance(node.this, exp.Star)):
        return exp.Anonymous(this="count_star")
    if isinstance(node, exp.Neg) and not isinstance(node.this, exp.Literal):
        return exp.Paren(this=exp.Neg(this=exp.Paren(this=node.this.transform(_as_named))))
    if isinstance(node, exp.Not) and isinstance(node.this, exp.Is):
        return exp.Paren(this=node.copy())
    is_operation = isinstance(node, exp.Binary | exp.Is | exp.In | exp.Between | exp.Not)
    if not is_operation or isinstance(node, exp.Dot | exp.PropertyEQ) or isinstance(node.parent, exp.Paren):
        return node
    # Its parts are looked at before it is wrapped: transform does not come back to what it has replaced.
    for key, value in [*node.args.items()]:
        if isinstance(value, exp.Expression):
            node.set(key, value.transform(_as_named))
    return exp.Paren(this=node)


def with_aliases(
    node: Expr, aliases: Mapping[str, Expr], relation: Relation, *, into_aggregates: bool = True
) -> Expr:
    """An expression in which names that no column has, but an item, stand for the item.

    ``into_aggregates``: also in what aggregates are given.
    """
    folded = {name.casefold(): item for name, item in aliases.items()}

    def meant(each: Expr) -> Expr:
        is_bare = isinstance(each, exp.Column) and not each.table and not relation.candidates(each)
        item = folded.get(each.name.casefold()) if is_bare else None
        if item is None or (not into_aggregates and each.find_ancestor(exp.AggFunc) is not None):
            return each
        return exp.Paren(this=item.copy())

    return node.transform(meant) if aliases else node
