"""``GROUP BY`` and aggregates: what is computed before an aggregate operator, by it, and of what it gives."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from sqlglot import exp

from placement.sql.translation import AGGREGATES
from placement.statements.carets import Unsupported, shown
from placement.statements.relations import column, free_name, in_columns_of, text_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from sqlglot.expressions import Expr

    from placement.statements.relations import Operators, Relation

_KINDS = (exp.AggFunc, *AGGREGATES)


class Selected(NamedTuple):
    """The grouping, the selected items of the groups, by name, and the condition on groups."""

    keys: Sequence[Expr]
    items: Mapping[str, Expr]
    having: Expr | None


def has_aggregates(nodes: Sequence[Expr]) -> bool:
    """True if one of them is computed from many rows."""
    return any(each.find(*_KINDS) is not None for each in nodes)


def grouped(
    operators: Operators,
    relation: Relation,
    select: Selected,
    at: Expr,
) -> tuple[Relation, dict[str, Expr]]:
    """The groups of a relation, and the items over the columns that these have. Raises Unsupported."""
    keys, items, having = select
    by = _Keys(relation, keys, items)
    calls = _Calls(by, relation, items, having)
    if not by.names and not calls.names:
        calls.names["COUNT(*)"], calls.trees["COUNT(*)"] = "count", exp.Count(this=exp.Star())
        calls.places["COUNT(*)"] = at  # HAVING alone makes all rows one group
    computed = {name: key for name, key in by.names.items() if not _is(key, name)}
    if computed:
        read = {each.name for call in calls.names for each in calls.trees[call].find_all(exp.Column)}
        before = {name: by.names[name] for name in by.names}
        before |= {each: column(each) for each in relation.width if each in read and each not in before}
        relation = operators.project("keys", relation, before, at)
    if calls.names:
        aggregates = {name: text for text, name in calls.names.items()}
        id_ = operators.add(
            "aggregate", "aggregate", at, input=relation.operator, by=[*by.names], aggregates=aggregates
        )
        for text, name in calls.names.items():
            operators.mark(calls.places[text], "aggregates", name)
    else:
        kept = operators.project("keys", relation, {each: column(each) for each in by.names}, at)
        id_ = operators.add("distinct", "distinct", at, input=kept.operator)
    found = type(relation).of(id_, [*by.names, *calls.names.values()])
    if having is not None:
        found = operators.filter("having", found, calls.above(having))
    return found, {name: calls.above(each) for name, each in items.items()}


class _Keys:
    """The grouping keys: the name of each, and the expression over the rows."""

    def __init__(self, relation: Relation, keys: Sequence[Expr], items: Mapping[str, Expr]) -> None:
        self.names: dict[str, Expr] = {}
        self.texts: dict[str, str] = {}
        for key in keys:
            tree = in_columns_of(key, relation)
            text = text_of(tree)
            if text in self.texts:
                continue
            name = tree.name if isinstance(tree, exp.Column) else self._wanted(key, items)
            if not isinstance(tree, exp.Column):
                name = free_name(name, {*self.names, *relation.width})
            self.names[name] = tree
            self.texts[text] = name

    @staticmethod
    def _wanted(key: Expr, items: Mapping[str, Expr]) -> str:
        return next((name for name, each in items.items() if each == key), "key")


class _Calls:
    """The calls of aggregates in what is selected and in ``HAVING``: by their text, under which name."""

    def __init__(
        self, keys: _Keys, relation: Relation, items: Mapping[str, Expr], having: Expr | None
    ) -> None:
        self._keys = keys
        self._relation = relation
        self.names: dict[str, str] = {}
        self.trees: dict[str, Expr] = {}
        self.places: dict[str, Expr] = {}
        for name, item in items.items():
            self._add_all(item, name)
        if having is not None:
            self._add_all(having, "")

    def _add_all(self, item: Expr, name: str) -> None:
        for call in _calls_in(item):
            tree = in_columns_of(_unfiltered(call), self._relation)
            text = text_of(tree)
            if text not in self.names:
                own = call is item and name
                wanted = name if own else text_of(_aggregate_of(call)).partition("(")[0].lower()
                self.names[text] = free_name(wanted, {*self._keys.names, *self.names.values()})
                self.trees[text] = tree
                self.places[text] = call

    def above(self, item: Expr) -> Expr:
        """An item over the columns of the groups. Raises Unsupported for what is not one value of a group."""
        kinds = {exp.Column, *map(type, self._keys.names.values())}

        def replaced(node: Expr) -> Expr:
            if _is_call(node):
                return column(self.names[text_of(in_columns_of(_unfiltered(node), self._relation))])
            # As text only then: of a long condition that takes long, at each of its levels.
            if type(node) in kinds:
                name = self._keys.texts.get(text_of(in_columns_of(node, self._relation)))
                if name is not None:
                    return column(name)
            if isinstance(node, exp.Column):
                raise Unsupported(
                    f"{shown(node)} is neither in GROUP BY nor in an aggregate, and has no single value in a group",
                    node,
                )
            return node

        above: Expr = item.transform(replaced)
        return above


def _calls_in(item: Expr) -> list[Expr]:
    """The calls in an expression, each with its ``FILTER``. Raises Unsupported for one in another."""
    calls = [each for each in item.dfs(prune=_is_call) if _is_call(each)]
    for call in calls:
        own = _aggregate_of(call)
        inner: Iterable[Expr] = own.find_all(*_KINDS)
        if any(each is not own for each in inner):
            raise Unsupported(f"an aggregate cannot contain another aggregate: {shown(call)}", call)
    return calls


def _is_call(node: Expr) -> bool:
    return isinstance(node, (exp.Filter, *_KINDS))


def _aggregate_of(call: Expr) -> Expr:
    """A call without the ``FILTER`` around it."""
    found: Expr = call.this if isinstance(call, exp.Filter) else call
    return found


def _unfiltered(call: Expr) -> Expr:
    """A call without ``FILTER``: of what does not pass it is given null, which no aggregate counts."""
    if not isinstance(call, exp.Filter):
        extreme = isinstance(call, exp.Min | exp.Max) and isinstance(call.this, exp.Distinct)
        if extreme and len(call.this.expressions) == 1:  # the least of different values is that of all
            call = call.copy()
            call.set("this", call.this.expressions[0])
        return call
    aggregate: Expr = call.this.copy()
    condition = call.expression.this
    argument = aggregate.this
    is_distinct = isinstance(argument, exp.Distinct)
    value = argument.expressions[0] if is_distinct else argument
    if value is None or isinstance(value, exp.Star):
        value = exp.Literal.number(1)
    chosen = exp.Case(ifs=[exp.If(this=condition.copy(), true=value.copy())])
    aggregate.set("this", exp.Distinct(expressions=[chosen]) if is_distinct else chosen)
    return aggregate


def _is(key: Expr, name: str) -> bool:
    return isinstance(key, exp.Column) and key.name == name
