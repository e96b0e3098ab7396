"""Joins by what is equal in two tables: each side is given the columns that it is joined by under names of both."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from sqlglot import exp

from placement.sql.sql_tree import chained
from placement.sql.typing_rules import common_type
from placement.statements.carets import Unsupported, shown
from placement.statements.relations import Named, Relation, cast, column, free_name, in_columns_of
from topology.schema import sql_name

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from sqlglot.expressions import Expr

    from placement.statements.relations import Operators

_HOW = {"": "inner", "LEFT": "left", "RIGHT": "right", "FULL": "full"}


@dataclass(frozen=True, slots=True)
class _Pair:
    """Two expressions, over the columns of each side as they are called there, that have to be equal."""

    left: Expr
    right: Expr
    at: Expr
    """The place of the condition."""
    using: str = ""
    """The common name of both, if they were given by one name."""


def joined(
    operators: Operators, left: Relation, right: Relation, join: exp.Join, conditions: Sequence[Expr]
) -> tuple[Relation, list[Expr]]:
    """The rows of two relations that match, with unmatched ones if the join requires that.

    For an inner join equal columns are also sought in ``conditions``, which hold in the end; returns the remaining
    ones. Raises Unsupported.
    """
    how, others = how_of(join), [*conditions]
    pairs, rest = _on(left, right, _conditions(left, right, join))
    if join.args.get("using"):
        pairs = _using(left, right, join)
    if how == "inner":
        more, others = _on(left, right, others)
        pairs += more
    if how == "left":
        right, rest = _narrowed(operators, right, left, rest)
    elif how == "right":
        left, rest = _narrowed(operators, left, right, rest)
    if rest and how != "inner":
        raise Unsupported(
            f"{shown(rest[0])} is not supported in ON of a {how} join, which also returns rows for which this "
            f"condition is false: filter a table in a subquery before the join (WHERE after the join would "
            f"also drop rows without a match)",
            rest[0],
        )
    if not pairs:
        raise Unsupported(
            "tables are joined by equal columns: write ON a.x = b.y, with AND for more columns, "
            "or USING (x); a cross join is not supported",
            join,
        )
    names = _names(pairs)
    lefts, rights = _of_one_type(operators, left, right, pairs)
    # Where a row may be without one of a side, what the side was joined by is null, and the join's column is not.
    own, taken = how in ("right", "full"), {*names}
    left = _side(operators, left, lefts, names, own=own, taken=taken, avoided=right.width)
    own, taken = how in ("left", "full"), {*names, *left.width}
    right = _side(operators, right, rights, names, own=own, taken=taken)
    if left.operator == right.operator:
        right = operators.again(right)
    id_ = operators.add("join", "join", join, inputs=[left.operator, right.operator], on=names)
    if how != "inner":
        operators.made[-1]["how"] = how
    width = (*names, *(each for side in (left, right) for each in side.width if each not in names))
    found = Relation(id_, _named(left, right, pairs, names), width)
    if rest:
        found = operators.filter("on", found, exp.and_(*rest, copy=False))
    return found, others


def _of_one_type(
    operators: Operators, left: Relation, right: Relation, pairs: Sequence[_Pair]
) -> tuple[list[Expr], list[Expr]]:
    """Return the keys of each side, cast to a type that holds the values of both. Raises Unsupported."""
    lefts, rights = [each.left for each in pairs], [each.right for each in pairs]
    for index, pair in enumerate(pairs):
        one, other = operators.type_of(left, pair.left), operators.type_of(right, pair.right)
        if one is None or other is None or one == other:
            continue
        both = common_type(one, other)
        if both is None:
            raise Unsupported(
                f"{shown(pair.left)} is {sql_name(one)}, and {shown(pair.right)} is "
                f"{sql_name(other)}: cast one of them",
                pair.at,
            )
        lefts[index] = pair.left if one == both else cast(pair.left, both)
        rights[index] = pair.right if other == both else cast(pair.right, both)
    return lefts, rights


def how_of(join: exp.Join) -> str:
    """How it joins, in the words of a query file. Raises Unsupported."""
    kind = str(join.args.get("method") or join.args.get("kind") or "").upper()
    if kind not in ("", "INNER", "OUTER", "CROSS"):
        instead = {
            "NATURAL": "USING (x), with the columns that both tables have",
            "SEMI": "a JOIN with SELECT DISTINCT",
            "ANTI": "a LEFT JOIN and IS NULL",
        }
        raise Unsupported(f"{kind} JOIN is not supported: write {instead.get(kind, 'JOIN ... ON')}", join)
    side = str(join.args.get("side") or "").upper()
    if kind == "OUTER" and not side:
        raise Unsupported("OUTER JOIN needs a side: write LEFT JOIN, RIGHT JOIN or FULL JOIN", join)
    return _HOW[side]


def _using(left: Relation, right: Relation, join: exp.Join) -> list[_Pair]:
    pairs = []
    for name in join.args["using"]:
        one = exp.Column(this=name.copy())
        one.this.meta.update(name.meta)
        first, second = left.find(one), right.find(one)
        pairs.append(_Pair(column(first.column), column(second.column), one, first.name))
    return pairs


def _conditions(left: Relation, right: Relation, join: exp.Join) -> list[Expr]:
    """Return the conditions of ``ON``. Raises Unsupported for a column that neither side has, or both."""
    on = join.args.get("on")
    if on is None:
        return []
    both = Relation.together((left, right))
    for each in on.find_all(exp.Column):
        both.find(each)
    return [*conditions_of(on)]


def _on(left: Relation, right: Relation, conditions: Iterable[Expr]) -> tuple[list[_Pair], list[Expr]]:
    """Return the equal columns, and the other conditions, as they were written."""
    pairs, rest = [], []
    for each in conditions:
        pair = _pair(each, left, right)
        if pair is None:
            rest.append(each)
        else:
            pairs.append(pair)
    return pairs, rest


def conditions_of(condition: Expr) -> Iterator[Expr]:
    """The conditions that have to be true together."""
    while isinstance(condition, exp.Paren):
        condition = condition.this
    if isinstance(condition, exp.And):
        for each in chained(condition):
            yield from conditions_of(each)
    else:
        yield condition


def _pair(condition: Expr, left: Relation, right: Relation) -> _Pair | None:
    if not isinstance(condition, exp.EQ):
        return None
    for one, other in ((condition.this, condition.expression), (condition.expression, condition.this)):
        if is_of(one, left, right) and is_of(other, right, left):
            return _Pair(in_columns_of(one, left), in_columns_of(other, right), condition)
    return None


def is_of(node: Expr, relation: Relation, others: Relation) -> bool:
    """True if an expression refers to this relation only."""
    columns = [*node.find_all(exp.Column)]
    return bool(columns) and all(
        relation.candidates(each) and not others.candidates(each) for each in columns
    )


def _narrowed(
    operators: Operators, side: Relation, other: Relation, conditions: Sequence[Expr]
) -> tuple[Relation, list[Expr]]:
    """The side without rows that cannot match, by the conditions of it alone, and the others."""
    rest = []
    for condition in conditions:
        if is_of(condition, side, other) or condition.find(exp.Column) is None:
            side = operators.filter("on", side, condition)
        else:
            rest.append(condition)
    return side, rest


def _names(pairs: Sequence[_Pair]) -> list[str]:
    """How the columns are called by which it is joined."""
    names: list[str] = []
    for pair in pairs:
        plain = (each.name for each in (pair.left, pair.right) if isinstance(each, exp.Column))
        names.append(free_name(pair.using or next(plain, "key"), names))
    return names


def _side(
    operators: Operators,
    side: Relation,
    keys: Sequence[Expr],
    names: Sequence[str],
    *,
    own: bool,
    taken: set[str],
    avoided: Sequence[str] = (),
) -> Relation:
    """Return a side with its keys under these names, next to columns whose names are not taken.

    ``own``: its own columns stay in addition to the keys. A column that needs another name gets none of those
    that are ``avoided``.
    """
    columns = dict(zip(names, keys, strict=True))
    called: dict[str, str] = {}
    if not own:
        for name, key in columns.items():
            if isinstance(key, exp.Column):
                called.setdefault(key.name, name)
    left = [each for each in side.width if each not in called]
    kept = {each for each in left if each not in taken and each not in columns}
    for each in left:  # one that need not be renamed keeps its name
        called[each] = each if each in kept else free_name(each, {*taken, *columns, *kept, *avoided})
        columns[called[each]] = column(each)
    named = tuple(replace(each, column=called[each.column]) for each in side.named)
    if {*columns} == {*side.width} and all(name == key.name for name, key in columns.items()):
        return replace(side, named=named)
    made = operators.project("side", side, columns, None)
    return Relation(made.operator, named, made.width)


def _named(
    left: Relation, right: Relation, pairs: Sequence[_Pair], names: Sequence[str]
) -> tuple[Named, ...]:
    """Return the columns of both; one given by a single name for both is one column, at the place of the left one."""
    used = {pair.using.casefold(): name for pair, name in zip(pairs, names, strict=True) if pair.using}
    found: list[Named] = []
    for side in (left, right):
        for each in side.named:
            merged = used.get(each.name.casefold())
            if merged is None or each.is_behind_table:
                found.append(each)
            elif side is right:
                if each.column != merged:
                    found.append(replace(each, is_behind_table=True))
            else:
                of_right = [it for it in right.named if it.name.casefold() == each.name.casefold()]
                both = frozenset().union(*(it.tables for it in (each, *of_right) if it.column == merged))
                found.append(Named(each.name, both, merged))
                if each.column != merged:
                    found.append(replace(each, is_behind_table=True))
    return tuple(found)
