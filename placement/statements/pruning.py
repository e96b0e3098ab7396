"""Leaves out columns that nobody reads: a statement names tables, and means some of their columns."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sqlglot import exp

from placement.sql.sql_tree import parsed

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

_BOUNDS = {"window_start", "window_end"}


def pruned(operators: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The operators, inputs before readers, of which projects compute what is read, and nothing else."""
    read: dict[str, set[str] | None] = {}
    """By operator; None: all that it gives."""
    kept = []
    for given in reversed(operators):
        wanted = read.get(given["id"])
        operator = given if wanted is None else _without_others(given, wanted)
        kept.append(operator)
        for input_ in _inputs(operator):
            needed = _needed(operator, wanted)
            before = read.get(input_, set())
            read[input_] = None if needed is None or before is None else before | needed
    return kept[::-1]


def _inputs(operator: dict[str, Any]) -> list[str]:
    inputs: list[str] = operator.get("inputs", [])
    return [*inputs, *(operator[each] for each in ("input",) if each in operator)]


def _without_others(operator: dict[str, Any], wanted: set[str]) -> dict[str, Any]:
    """A project that computes what is wanted; one column at least, as rows are counted, too."""
    if operator["type"] != "project":
        return operator
    columns: dict[str, str] = operator["columns"]
    left = {name: text for name, text in columns.items() if name in wanted}
    return {**operator, "columns": left or dict([*columns.items()][:1])}


def _needed(operator: dict[str, Any], wanted: set[str] | None) -> set[str] | None:
    """What an operator reads of its inputs, for what is read of it."""
    match operator["type"]:
        case "project":
            return _columns(operator["columns"].values())
        case "aggregate":
            return {*operator["by"]} | _columns(operator["aggregates"].values())
        case "filter" if wanted is not None:
            return wanted | _columns([operator["predicate"]])
        case "join" if wanted is not None:
            return wanted | {*operator["on"]}
        case "window" if wanted is not None:
            return (wanted - _BOUNDS) | {operator["time"]}
    return None  # all columns of a union, a distinct, a sink: others would be other rows


def _columns(texts: Iterable[str]) -> set[str]:
    return {each.name for text in texts for each in parsed(text).find_all(exp.Column)}
