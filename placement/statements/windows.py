"""``TUMBLE`` and ``HOP`` in ``FROM``: the rows of a table in windows of time."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sqlglot import exp

from placement.statements.carets import Unsupported, shown
from topology.consistency import did_you_mean, listed

if TYPE_CHECKING:
    from collections.abc import Callable

    from sqlglot.expressions import Expr

    from placement.statements.relations import Operators, Relation

WINDOWS = {
    "TUMBLE": ("size",),
    "HOP": ("slide", "size"),
}
"""Arguments of each after the table and the column of time."""
_USAGE = {
    "TUMBLE": "TUMBLE(table, time_column, INTERVAL 10 SECONDS)",
    "HOP": "HOP(table, time_column, INTERVAL 2 SECONDS, INTERVAL 10 SECONDS)",
}
_NAMED = ("lateness", "idle_after", "late")
_SETTINGS = "lateness := INTERVAL 5 SECONDS, idle_after := INTERVAL 1 MINUTE, late := 'late.csv'"


def windowed(operators: Operators, call: exp.Anonymous, table: Callable[[Expr], Relation]) -> Relation:
    """The rows of a table, each once for every window that it is in. Raises Unsupported."""
    kind = call.name.upper()
    given = [each for each in call.expressions if not isinstance(each, exp.Kwarg | exp.PropertyEQ)]
    named = [each for each in call.expressions if isinstance(each, exp.Kwarg | exp.PropertyEQ)]
    lengths = WINDOWS[kind]
    if len(given) != 2 + len(lengths) or not isinstance(given[1], exp.Column):
        raise Unsupported(f"{shown(call)}: expected {_USAGE[kind]}, optionally followed by {_SETTINGS}", call)
    relation = table(given[0])
    fields = {name: _length(each) for name, each in zip(lengths, given[2:], strict=True)}
    for each in named:
        name = each.this.name.lower()
        if name not in _NAMED:
            raise Unsupported(
                f"{name} is not a setting of a window{did_you_mean(name, _NAMED)}; expected {listed(_NAMED)}",
                each,
            )
        if name in fields:
            raise Unsupported(f"{name} is given twice: leave one out", each)
        fields[name] = _path(each.expression) if name == "late" else _length(each.expression)
    time = relation.find(given[1]).column
    id_ = operators.add("window", "window", call, input=relation.operator, time=time, **fields)
    operators.mark(given[1], "time")
    for name, each in zip(lengths, given[2:], strict=True):
        operators.mark(each, name)
    for each in named:
        operators.mark(each, each.this.name.lower())
    bounds = ("window_start", "window_end")
    found = type(relation).of(id_, [*relation.width, *bounds])
    return type(relation)(id_, (*relation.named, *found.named[-len(bounds) :]), found.width)


def _path(node: Expr) -> str:
    """The file for late rows."""
    if not isinstance(node, exp.Literal) or not node.is_string:
        raise Unsupported(f"expected the path of a CSV file, such as 'late.csv', got {shown(node)}", node)
    path: str = node.this
    return path


def _length(node: Expr) -> str:
    """A length as a query file has it."""
    if isinstance(node, exp.Interval) and isinstance(node.this, exp.Literal):
        unit = node.args.get("unit")
        text = f"{node.this.this} {'' if unit is None else unit.name.lower()}".strip()
        number, _, said = text.partition(" ")
        if number.isdecimal() and said:
            return f"{number} {said.removesuffix('s')}{'' if number == '1' else 's'}"
    raise Unsupported(f"expected a length of time, such as INTERVAL '10 seconds', got {shown(node)}", node)


def is_window(node: Expr) -> bool:
    """True if it is a call of one of them."""
    return isinstance(node, exp.Anonymous) and node.name.upper() in WINDOWS
