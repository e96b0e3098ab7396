"""``SELECT``, ``UNION`` and ``WITH``: their operators."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import reduce
from typing import TYPE_CHECKING

from sqlglot import exp

from placement.sql.sql_tree import sql_of, unknown_aggregate, unsupported
from placement.sql.translation import AGGREGATES, is_known
from placement.sql.typing_rules import common_type
from placement.statements.carets import Unsupported, shown
from placement.statements.equi_joins import conditions_of, how_of, is_of, joined
from placement.statements.grouping import Selected, grouped, has_aggregates
from placement.statements.item_names import name_of, with_aliases
from placement.statements.relations import Operators, Relation, cast, column, in_columns_of
from placement.statements.windows import WINDOWS, is_window, windowed
from topology import DataType
from topology.consistency import did_you_mean, listed
from topology.schema import sql_name

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from sqlglot.expressions import Expr

_NULL = "CAST(NULL AS INT)"
"""A NULL that is given no type."""
_READ = {"expressions", "from_", "joins", "where", "group", "having", "distinct", "with_"}
_OUTERMOST = "leave it out; in nebuli run, the outermost SELECT of a statement without INSERT may have it"
_INSTEAD = {
    "order": _OUTERMOST,
    "limit": _OUTERMOST,
    "offset": _OUTERMOST,
    "qualify": "put this SELECT in a subquery, and filter its rows with WHERE",
    "by_name": "list the columns of each SELECT in the same order",
}
"""Replacements for parts that are not supported."""
_WORDS = {
    "by_name": "BY NAME",
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
    """The possible tables: a source of the topology, or a query named by ``WITH``, with its own scope."""

    sources: Mapping[str, Sequence[str]]
    """The columns of each."""
    queries: Mapping[str, tuple[Expr, Scope]]

    def query(self, name: str) -> str | None:
        """The name of the query that is meant, if one is."""
        return _named(name, self.queries)

    def source(self, table: exp.Table) -> str:
        """The name of the source that is meant. Raises Unsupported if there is none of that name."""
        found = _named(table.name, self.sources)
        if found is None:
            names = [*self.sources, *self.queries]
            raise Unsupported(
                f"unknown table {table.name!r}{did_you_mean(table.name, names)}; expected {listed(names)}",
                table,
            )
        return found


def _named(name: str, known: Iterable[str]) -> str | None:
    """The one of this name, else the one of it in another case."""
    folded = {each.casefold(): each for each in known}
    return name if name in folded.values() else folded.get(name.casefold())


def selected(operators: Operators, query: Expr, scope: Scope) -> Relation:
    """Return the relation of a query, its columns under their names. Raises Unsupported."""
    if with_ := query.args.get("with_"):
        scope = with_queries(with_, scope)
    if isinstance(query, exp.Subquery):
        _only(query, {"this", "with_", "alias"})
        return selected(operators, query.this, scope)
    if isinstance(query, exp.Union):
        return _union(operators, query, scope)
    if isinstance(query, exp.SetOperation):
        word = type(query).__name__.upper()
        instead = "a JOIN and a DISTINCT" if word == "INTERSECT" else "a LEFT JOIN and IS NULL"
        raise Unsupported(f"{word} is not supported: write {instead}", query)
    if not isinstance(query, exp.Select):
        raise Unsupported(f"expected SELECT, got {shown(query)}", query)
    return _select(operators, query, scope)


def with_queries(with_: Expr, scope: Scope) -> Scope:
    """The scope with the queries that ``WITH`` names. Raises Unsupported."""
    if with_.args.get("recursive"):
        raise Unsupported("WITH RECURSIVE is not supported", with_)
    named: set[str] = set()
    for each in with_.expressions:
        if each.alias.casefold() in named:
            raise Unsupported(f"WITH has two queries named {each.alias}: give one of them another name", each)
        named.add(each.alias.casefold())
        queries = {
            name: query for name, query in scope.queries.items() if name.casefold() != each.alias.casefold()
        }
        scope = replace(scope, queries={**queries, each.alias: (each, scope)})
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
                f"UNION of different numbers of columns: {len(first.width)} in SELECT 1 "
                f"({', '.join(first.width)}), {len(part.width)} in SELECT {number} "
                f"({', '.join(part.width)})",
                union,
            )
    types = _common_types(operators, parts, union)
    same = [_alike(operators, each, first.width, types, union) for each in parts]
    id_ = operators.add("union", "union", union, inputs=_apart(operators, same))
    if union.args.get("distinct"):
        id_ = operators.add("distinct", "distinct", union, input=id_)
    return Relation.of(id_, first.width)


def _common_types(operators: Operators, parts: Sequence[Relation], union: Expr) -> list[DataType | None]:
    """The type of each column that holds those of all parts; None if one is not known, which is reported elsewhere."""
    every = [operators.types(each) for each in parts]
    if not all(every):
        return [None] * len(parts[0].width)
    found: list[DataType | None] = []
    for index, name in enumerate(parts[0].width):
        of_parts = [
            types[part.width[index]]
            for part, types in zip(parts, every, strict=True)
            if not _is_null(operators, part, part.width[index])
        ]
        if not of_parts:
            found.append(DataType.INT32)
            continue
        first: DataType | None = of_parts[0]
        type_ = reduce(_common, of_parts[1:], first)
        if type_ is None:
            shown_types = " and ".join(dict.fromkeys(map(sql_name, of_parts)))
            raise Unsupported(
                f"column {name} of a UNION has the types {shown_types}: cast one of them", union
            )
        found.append(type_)
    return found


def _common(a: DataType | None, b: DataType | None) -> DataType | None:
    return None if a is None or b is None else common_type(a, b)


def _is_null(operators: Operators, part: Relation, name: str) -> bool:
    """True if a column is a NULL without a type."""
    given = operators.given(part.operator)
    return given["type"] == "project" and bool(given["columns"][name] == _NULL)


def _alike(
    operators: Operators,
    part: Relation,
    names: Sequence[str],
    types: Sequence[DataType | None],
    at: Expr,
) -> Relation:
    """A part of a union with the names and types of all."""
    own = operators.types(part)
    columns = {}
    for name, wanted, each in zip(names, types, part.width, strict=True):
        if wanted not in (None, DataType.INT32) and _is_null(operators, part, each):
            columns[name] = cast(exp.Null(), wanted)
        else:
            columns[name] = column(each) if wanted in (None, own.get(each)) else cast(column(each), wanted)
    return operators.project("named", part, columns, at)


def _apart(operators: Operators, parts: Sequence[Relation]) -> list[str]:
    """The operators of the parts, each another one."""
    found: list[str] = []
    for each in parts:
        found.append(operators.again(each).operator if each.operator in found else each.operator)
    return found


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
    if not select.expressions:
        raise Unsupported("SELECT without columns: name them, or write *", select)
    for name in ("expressions", "where", "group", "having"):
        part = select.args.get(name)
        for each in part if isinstance(part, list) else [part]:
            if each is not None:
                _check_expression(each)
    relation = _from(operators, select, scope)
    items = _items(select, relation)
    having = select.args.get("having")
    keys = _keys(select, items, relation)
    having = None if having is None else _having(having.this, items, keys, relation)
    wanted = [*items.values()] if having is None else [*items.values(), having]
    if keys or having is not None or has_aggregates(wanted):
        relation, items = grouped(
            operators, relation, Selected(keys, items, having), select.args.get("group") or select
        )
        columns = items
    else:
        columns = {name: in_columns_of(each, relation) for name, each in items.items()}
    columns = {name: _typed(each) for name, each in columns.items()}
    found = operators.project("select", relation, columns, select)
    if operators.made[-1]["id"] == found.operator:
        for name, each in items.items():
            operators.mark(each, "columns", name)
    if distinct := select.args.get("distinct"):
        if distinct.args.get("on"):
            raise Unsupported(
                "DISTINCT ON is not supported: write GROUP BY, with aggregates of the other columns", distinct
            )
        found = Relation.of(operators.add("distinct", "distinct", select, input=found.operator), found.width)
    return found


def _having(condition: Expr, items: Mapping[str, Expr], keys: Sequence[Expr], relation: Relation) -> Expr:
    """The condition of ``HAVING``, in which a column that is not grouped by may be the name of what is selected."""
    columns = [in_columns_of(each, relation) for each in keys if isinstance(each, exp.Column)]
    grouped_by = [each for each in relation.named if column(each.column) in columns]
    return with_aliases(condition, items, replace(relation, named=tuple(grouped_by)), into_aggregates=False)


def _typed(item: Expr) -> Expr:
    """An item with a type: a NULL is an INTEGER, as in DuckDB."""
    return cast(exp.Null(), DataType.INT32) if isinstance(item.unnest(), exp.Null) else item


def _check_expression(node: Expr) -> None:
    """Refuse what would be of other rows than the row, or the group, at hand."""
    for each in node.walk():
        if isinstance(each, exp.Window):
            raise Unsupported(f"a window function is not supported: {shown(each)}", each)
        if isinstance(each, exp.Query | exp.Exists):
            raise Unsupported("a subquery in an expression is not supported: join with its result", each)
        if isinstance(each, exp.In) and not each.expressions and not each.args.get("query"):
            raise Unsupported("IN without values: write IN (1, 2)", each)
        if isinstance(each, exp.Rollup | exp.Cube | exp.GroupingSets):
            word = str(sql_of(each)).partition(" (")[0]
            raise Unsupported(
                f"{word} is not supported: write one SELECT with GROUP BY for each grouping, combined by UNION ALL",
                each,
            )
        if isinstance(each, exp.AggFunc) and type(each) not in AGGREGATES:
            raise Unsupported(unknown_aggregate(each), each)
        if isinstance(each, exp.IgnoreNulls | exp.RespectNulls):
            raise Unsupported("IGNORE NULLS and RESPECT NULLS are of window functions: leave them out", each)
        if isinstance(each, exp.Func) and not isinstance(each, exp.AggFunc) and not is_known(each):
            raise Unsupported(str(unsupported(each)), each)


def _from(operators: Operators, select: exp.Select, scope: Scope) -> Relation:
    """The rows of all tables that ``WHERE`` is true for, each as early as it can be looked at."""
    first = select.args.get("from_")
    if first is None:
        raise Unsupported("SELECT without FROM: name the table that rows come from", select)
    joins = select.args.get("joins") or []
    tables = [_table(operators, first.this, scope), *(_table(operators, each.this, scope) for each in joins)]
    names: set[str] = set()
    for table, at in zip(tables, [first, *joins], strict=True):
        own = {each.casefold() for each in _tables(table)}
        if twice := names & own:
            raise Unsupported(f"two tables are named {min(twice)}: give one of them another name with AS", at)
        names |= own
    conditions = _where(select, Relation.together(tables))
    if all(how_of(each) == "inner" for each in joins):
        tables, conditions = _narrowed(operators, tables, conditions)
    relation = tables[0]
    for number, (right, join) in enumerate(zip(tables[1:], joins, strict=True), 1):
        # A condition that has to hold in the end holds for rows that later joins leave as they are.
        early = conditions if all(how_of(each) in ("inner", "left") for each in joins[number:]) else []
        relation, later = joined(operators, relation, right, join, early)
        if early:
            kept = {*later}
            conditions = [each for each in conditions if each in kept]
    if conditions:
        relation = operators.filter("where", relation, exp.and_(*conditions, copy=False))
    return relation


def _where(select: exp.Select, tables: Relation) -> list[Expr]:
    """The conditions of ``WHERE``, which may name what is selected."""
    where = select.args.get("where")
    if where is None:
        return []
    aliases = {each.alias: each.this for each in select.expressions if isinstance(each, exp.Alias)}
    condition = with_aliases(where.this, aliases, tables)
    if has_aggregates([condition]):
        raise Unsupported("an aggregate in WHERE, which filters single rows: move it to HAVING", where)
    for each in condition.find_all(exp.Column):
        if not tables.candidates(each):  # one in several is decided after the joins: USING makes one of two
            tables.find(each)
    return [*conditions_of(condition)]


def _narrowed(
    operators: Operators, tables: Sequence[Relation], conditions: Sequence[Expr]
) -> tuple[list[Relation], list[Expr]]:
    """The tables without rows that no condition of a table alone is true for, and the other conditions."""
    narrowed, left = [], [*conditions]
    for table in tables:
        others = Relation.together(each for each in tables if each is not table)
        own: list[Expr] = []
        rest: list[Expr] = []
        for each in left:
            (own if is_of(each, table, others) else rest).append(each)
        left = rest
        narrowed.append(operators.filter("where", table, exp.and_(*own)) if own else table)
    return narrowed, left


def _tables(relation: Relation) -> set[str]:
    return {table for each in relation.named for table in each.tables}


def _table(operators: Operators, table: Expr, scope: Scope) -> Relation:
    """Return a table in ``FROM``, under its name."""
    alias = table.args.get("alias")
    columns = [] if alias is None else alias.args.get("columns") or []
    name = "" if alias is None else alias.name
    if isinstance(table, exp.Subquery):
        _only(table, {"this", "alias", "with_"})
        found = selected(operators, table, scope)
        return found.called(name, columns) if name else found
    if not isinstance(table, exp.Table):
        raise Unsupported(f"expected a table, got {shown(table)}", table)
    if table.args.get("db"):
        raise Unsupported(
            f"expected the name of a table alone, got {shown(table)}: leave the schema out", table
        )
    _only(table, {"this", "alias"})
    if is_window(table.this):
        found = windowed(operators, table.this, lambda given: _given(operators, given, scope))
        return found.called(name, columns) if name else found
    if not isinstance(table.this, exp.Identifier):
        raise Unsupported(
            f"expected a table, TUMBLE or HOP, got {shown(table)}{did_you_mean(table.this.name, WINDOWS)}",
            table,
        )
    if (query := scope.query(table.name)) is not None:
        found = _query(operators, *scope.queries[query])
        return found.called(name or query, columns)
    logical = scope.source(table)
    id_ = operators.add(name or logical, "source", table, logical=logical)
    operators.mark(table, "logical")
    return Relation.of(id_, scope.sources[logical]).called(name or logical, columns)


def _query(operators: Operators, named: Expr, scope: Scope) -> Relation:
    """Return the relation of a query named by ``WITH``, which is made once, however often it is read."""
    if id(named) not in operators.queries:
        found = selected(operators, named.this, scope)
        operators.queries[id(named)] = found.called(
            named.alias, named.args["alias"].args.get("columns") or []
        )
    return operators.queries[id(named)]


def _given(operators: Operators, node: Expr, scope: Scope) -> Relation:
    """The table that a window is of."""
    if isinstance(node, exp.Column) and not node.table:
        table = exp.Table(this=node.this.copy())
        table.this.meta.update(node.this.meta)
        return _table(operators, table, scope)
    return _table(operators, node, scope)


def _items(select: exp.Select, relation: Relation) -> dict[str, Expr]:
    """Return the selected items, by name, as in the statement; a name that is taken gets a number."""
    items: dict[str, Expr] = {}
    for name, each in _each(select.expressions, relation):
        items[_free(name, items)] = with_aliases(each, items, relation)
    return items


def _free(name: str, taken: Iterable[str]) -> str:
    known, found, number = set(taken), name, 1
    while found in known:
        found, number = f"{name}_{number}", number + 1
    return found


def _each(nodes: Iterable[Expr], relation: Relation) -> Iterator[tuple[str, Expr]]:
    for node in nodes:
        if isinstance(node, exp.Star) or (isinstance(node, exp.Column) and isinstance(node.this, exp.Star)):
            yield from _all(node, relation)
        elif isinstance(node, exp.Alias):
            yield node.alias, node.this
        else:
            yield name_of(node, relation), node


def _all(star: Expr, relation: Relation) -> Iterator[tuple[str, Expr]]:
    """Return all columns, or all of a table; two of one name get their tables' names as a prefix."""
    own = star if isinstance(star, exp.Star) else star.this
    if own.args.get("except_") or own.args.get("replace") or own.args.get("rename"):
        raise Unsupported("* with EXCLUDE, REPLACE or RENAME is not supported: name the columns", star)
    table = star.table if isinstance(star, exp.Column) else ""
    if table:
        found, tables = _named(table, _tables(relation)), sorted(_tables(relation))
        if found is None:
            raise Unsupported(
                f"unknown table {table!r}{did_you_mean(table, tables)}; expected {listed(tables)}", star
            )
        table = found
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
    """Return the grouping keys: expressions, numbers of items, or names of items that no column has."""
    group = select.args.get("group")
    if group is None:
        return []
    if group.args.get("all"):
        # Not by constants, as in DuckDB: with these alone all rows are one group, also none.
        return [each for each in items.values() if each.find(exp.Column) and not has_aggregates([each])]
    _only(group, {"expressions"})
    if not group.expressions:
        raise Unsupported("GROUP BY without columns: name them, or write GROUP BY ALL", select)
    keys = []
    for each in group.expressions:
        if isinstance(each, exp.Literal) and not each.is_string and str(each.this).isdecimal():
            number = int(each.this)
            if not 1 <= number <= len(items):
                raise Unsupported(
                    f"GROUP BY {each.this}: expected the position of a column in SELECT, from 1 "
                    f"to {len(items)}",
                    each,
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
            raise Unsupported(f"GROUP BY cannot contain an aggregate: {shown(key)}", each)
        keys.append(key)
    return keys


def _only(node: Expr, known: Iterable[str]) -> None:
    """Refuse what would else be passed over."""
    others = [name for name, value in node.args.items() if value and name not in known]
    if others:
        value = node.args[others[0]]
        at = value if isinstance(value, exp.Expression) else node
        word = _WORDS.get(others[0], others[0].strip("_").upper())
        instead = _INSTEAD.get(others[0], "leave it out")
        raise Unsupported(f"{word} is not supported here: {instead}", at)
