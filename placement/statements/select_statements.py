"""``SELECT``, ``UNION`` and ``WITH``: the operators that make what they say."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from sqlglot import exp

from placement.statements.carets import Unsupported, shown
from placement.statements.equi_joins import conditions_of, how_of, is_of, joined
from placement.statements.grouping import Selected, grouped, has_aggregates
from placement.statements.relations import Operators, Relation, column, in_columns_of
from placement.statements.windows import is_window, windowed
from topology.consistency import did_you_mean, listed

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from sqlglot.expressions import Expr

_READ = {"expressions", "from_", "joins", "where", "group", "having", "distinct", "with_"}
_WORDS = {
    "order": "ORDER BY",
    "limit": "LIMIT",
    "offset": "OFFSET",
    "qualify": "QUALIFY",
    "windows": "WINDOW",
    "laterals": "LATERAL",
    "sample": "a sample",
    "pivots": "PIVOT",
    "into": "INTO",
    "locks": "FOR UPDATE",
}


@dataclass(frozen=True, slots=True)
class Scope:
    """What a table may be: a source of the topology, or a query that was named by ``WITH``, with what that may read."""

    sources: Mapping[str, Sequence[str]]
    """The columns of each."""
    queries: Mapping[str, tuple[Expr, Scope]]

    def source(self, table: exp.Table) -> Sequence[str]:
        """The columns of a source. Raises Unsupported where there is none of that name."""
        if table.name not in self.sources:
            names = [*self.sources, *self.queries]
            raise Unsupported(
                f"unknown table {table.name!r}{did_you_mean(table.name, names)}; expected {listed(names)}",
                table,
            )
        return self.sources[table.name]


def selected(operators: Operators, query: Expr, scope: Scope) -> Relation:
    """What a query gives, its columns named as they are called. Raises Unsupported."""
    if with_ := query.args.get("with_"):
        scope = _with(with_, scope)
    if isinstance(query, exp.Subquery):
        _only(query, {"this", "with_", "alias"})
        return selected(operators, query.this, scope)
    if isinstance(query, exp.Union):
        return _union(operators, query, scope)
    if not isinstance(query, exp.Select):
        raise Unsupported(f"expected SELECT, got {shown(query)}", query)
    return _select(operators, query, scope)


def _with(with_: Expr, scope: Scope) -> Scope:
    if with_.args.get("recursive"):
        raise Unsupported("WITH RECURSIVE is not supported", with_)
    for each in with_.expressions:
        if each.args["alias"].args.get("columns"):
            raise Unsupported("name columns in the SELECT of a WITH, by AS", each)
        scope = replace(scope, queries={**scope.queries, each.alias: (each.this, scope)})
    return scope


def _union(operators: Operators, union: exp.Union, scope: Scope) -> Relation:
    _only(union, {"this", "expression", "distinct", "with_"})
    parts = [
        selected(operators, each, scope) for each in _parts(union, distinct=bool(union.args.get("distinct")))
    ]
    first = parts[0]
    for number, part in enumerate(parts[1:], 2):
        if len(part.width) != len(first.width):
            raise Unsupported(
                f"UNION of {len(first.width)} columns ({', '.join(first.width)}) with {len(part.width)} in its "
                f"SELECT {number} ({', '.join(part.width)})",
                union,
            )
    same = [
        operators.project("named", each, dict(zip(first.width, map(column, each.width), strict=True)), union)
        for each in parts
    ]
    id_ = operators.add("union", "union", union, inputs=[each.operator for each in same])
    if union.args.get("distinct"):
        id_ = operators.add("distinct", "distinct", union, input=id_)
    return Relation.of(id_, first.width)


def _parts(union: Expr, *, distinct: bool) -> Iterator[Expr]:
    """The queries of unions that are one: A UNION ALL B UNION ALL C."""
    for each in (union.this, union.expression):
        if (
            isinstance(each, exp.Union)
            and bool(each.args.get("distinct")) == distinct
            and not each.args.get("with_")
        ):
            yield from _parts(each, distinct=distinct)
        else:
            yield each


def _select(operators: Operators, select: exp.Select, scope: Scope) -> Relation:
    _only(select, _READ)
    where = select.args.get("where")
    for part in (*select.expressions, where, select.args.get("group"), select.args.get("having")):
        if part is not None:
            _check_expression(part)
    if where is not None and has_aggregates([where]):
        raise Unsupported("an aggregate in WHERE, which is of single rows: say it in HAVING", where)
    relation = _from(operators, select, scope, [] if where is None else [*conditions_of(where.this)])
    items = _items(select, relation)
    having = select.args.get("having")
    having = None if having is None else having.this
    keys = _keys(select, items, relation)
    wanted = [*items.values()] if having is None else [*items.values(), having]
    if keys or having is not None or has_aggregates(wanted):
        relation, items = grouped(
            operators, relation, Selected(keys, items, having), select.args.get("group") or select
        )
        columns = items
    else:
        columns = {name: in_columns_of(each, relation) for name, each in items.items()}
    found = operators.project("select", relation, columns, select)
    if operators.made[-1]["id"] == found.operator:
        for name, each in items.items():
            operators.mark(each, "columns", name)
    if distinct := select.args.get("distinct"):
        if distinct.args.get("on"):
            raise Unsupported("DISTINCT ON is not supported", distinct)
        found = Relation.of(operators.add("distinct", "distinct", select, input=found.operator), found.width)
    return found


def _check_expression(node: Expr) -> None:
    """Refuse what would be of other rows than the row, or the group, at hand."""
    for each in node.walk():
        if isinstance(each, exp.Window):
            raise Unsupported(f"a window function is not supported: {shown(each)}", each)
        if isinstance(each, exp.Query | exp.Exists):
            raise Unsupported("a subquery in an expression is not supported: join with what it gives", each)


def _from(operators: Operators, select: exp.Select, scope: Scope, conditions: list[Expr]) -> Relation:
    """The rows of all tables for which these conditions are true, each as early as it can be looked at."""
    first = select.args.get("from_")
    if first is None:
        raise Unsupported("SELECT without FROM: name the table that rows come from", select)
    joins = select.args.get("joins") or []
    tables = [_table(operators, first.this, scope), *(_table(operators, each.this, scope) for each in joins)]
    names: set[str] = set()
    for table, at in zip(tables, [first, *joins], strict=True):
        if twice := names & _tables(table):
            raise Unsupported(f"two tables are named {min(twice)}: give one another name, by AS", at)
        names |= _tables(table)
    if all(how_of(each) == "inner" for each in joins):
        tables, conditions = _narrowed(operators, tables, conditions)
    relation = tables[0]
    for number, (right, join) in enumerate(zip(tables[1:], joins, strict=True), 1):
        # What has to be true in the end is so of rows that later joins leave as they are.
        early = conditions if all(how_of(each) in ("inner", "left") for each in joins[number:]) else []
        relation, later = joined(operators, relation, right, join, early)
        conditions = [each for each in conditions if each not in early or each in later]
    if conditions:
        relation = operators.filter("where", relation, exp.and_(*conditions, copy=False))
    return relation


def _narrowed(
    operators: Operators, tables: Sequence[Relation], conditions: Sequence[Expr]
) -> tuple[list[Relation], list[Expr]]:
    """The tables without rows that no condition of a table alone is true for, and the other conditions."""
    narrowed, left = [], [*conditions]
    for table in tables:
        others = Relation.together(each for each in tables if each is not table)
        own = [each for each in left if is_of(each, table, others)]
        left = [each for each in left if each not in own]
        narrowed.append(operators.filter("where", table, exp.and_(*own)) if own else table)
    return narrowed, left


def _tables(relation: Relation) -> set[str]:
    return {table for each in relation.named for table in each.tables}


def _table(operators: Operators, table: Expr, scope: Scope) -> Relation:
    """What stands in ``FROM``, under its name."""
    alias = table.args.get("alias")
    if alias is not None and alias.args.get("columns"):
        raise Unsupported("name columns in SELECT, by AS", alias)
    if isinstance(table, exp.Subquery):
        _only(table, {"this", "alias", "with_"})
        found = selected(operators, table, scope)
        return found.called(alias.name) if alias is not None else found
    if not isinstance(table, exp.Table):
        raise Unsupported(f"expected a table, got {shown(table)}", table)
    _only(table, {"this", "alias"})
    if is_window(table.this):
        found = windowed(operators, table.this, lambda given: _given(operators, given, scope))
        return found.called(alias.name) if alias is not None else found
    if not isinstance(table.this, exp.Identifier):
        raise Unsupported(f"expected a table, TUMBLE or HOP, got {shown(table)}", table)
    name = table.alias or table.name
    if table.name in scope.queries:
        query, of_query = scope.queries[table.name]
        return selected(operators, query, of_query).called(name)
    columns = scope.source(table)
    id_ = operators.add(name, "source", table, logical=table.name)
    operators.mark(table, "logical")
    return Relation.of(id_, columns).called(name)


def _given(operators: Operators, node: Expr, scope: Scope) -> Relation:
    """The table that a window is of."""
    if isinstance(node, exp.Column) and not node.table:
        table = exp.Table(this=node.this.copy())
        table.this.meta.update(node.this.meta)
        return _table(operators, table, scope)
    return _table(operators, node, scope)


def _items(select: exp.Select, relation: Relation) -> dict[str, Expr]:
    """What is selected, by its name, in the words of the statement."""
    items: dict[str, Expr] = {}
    for name, each in _each(select.expressions, relation):
        if name in items:
            raise Unsupported(f"two columns are named {name}: give one another name, by AS", each)
        items[name] = each
    return items


def _each(nodes: Iterable[Expr], relation: Relation) -> Iterator[tuple[str, Expr]]:
    for node in nodes:
        if isinstance(node, exp.Star) or (isinstance(node, exp.Column) and isinstance(node.this, exp.Star)):
            yield from _all(node, relation)
        elif isinstance(node, exp.Alias):
            yield node.alias, node.this
        elif isinstance(node, exp.Column):
            yield node.name, node
        else:
            raise Unsupported(f"{shown(node)} has no name: write {shown(node)} AS name", node)


def _all(star: Expr, relation: Relation) -> Iterator[tuple[str, Expr]]:
    """All columns, or all of a table; two of one name are named behind their tables' names."""
    own = star if isinstance(star, exp.Star) else star.this
    if own.args.get("except_") or own.args.get("replace") or own.args.get("rename"):
        raise Unsupported("* with EXCLUDE, REPLACE or RENAME is not supported: name the columns", star)
    table = star.table if isinstance(star, exp.Column) else ""
    if table and table not in _tables(relation):
        raise Unsupported(f"unknown table {table!r}; expected {listed(sorted(_tables(relation)))}", star)
    for each in relation.named:
        if each.is_behind_table if not table else table not in each.tables:
            continue
        one = exp.column(
            each.name, table=table or (min(each.tables) if len(each.tables) == 1 else None), quoted=True
        )
        begin = {"start": own.meta["start"]} if "start" in own.meta else {}
        one.this.meta.update(begin)
        yield each.name, one


def _keys(select: exp.Select, items: Mapping[str, Expr], relation: Relation) -> list[Expr]:
    """What is grouped by: expressions, numbers of items, or names of items that no column has."""
    group = select.args.get("group")
    if group is None:
        return []
    if group.args.get("all"):
        return [each for each in items.values() if not has_aggregates([each])]
    _only(group, {"expressions"})
    keys = []
    for each in group.expressions:
        if isinstance(each, exp.Literal) and not each.is_string and str(each.this).isdecimal():
            number = int(each.this)
            if not 1 <= number <= len(items):
                raise Unsupported(
                    f"GROUP BY {each.this}: expected 1 to {len(items)}, a place in SELECT", each
                )
            key = [*items.values()][number - 1]
        elif (
            isinstance(each, exp.Column)
            and not each.table
            and not relation.candidates(each)
            and each.name in items
        ):
            key = items[each.name]
        else:
            key = each
        if has_aggregates([key]):
            raise Unsupported(f"an aggregate in GROUP BY: {shown(key)}", each)
        keys.append(key)
    return keys


def _only(node: Expr, known: Iterable[str]) -> None:
    """Refuse what would else be passed over."""
    others = [name for name, value in node.args.items() if value and name not in known]
    if others:
        value = node.args[others[0]]
        at = value if isinstance(value, exp.Expression) else node
        word = _WORDS.get(others[0], others[0].strip("_").upper())
        raise Unsupported(f"{word} is not supported here", at)
