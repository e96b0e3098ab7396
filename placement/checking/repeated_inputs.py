"""A query that is to run free as a tree: a part that several operators read is repeated for each of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from placement.graph import bottom_up
from placement.plan import SourceOperator, UnaryOperator, ViewOperator

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from placement.plan import QueryOperator
    from topology import PhysicalSource

MAX_OPERATORS = 10_000
"""Bound on a tree: parts that are read twice by parts that are read twice double at every level."""


def unrepeatable(
    operators: Mapping[str, QueryOperator], physical: Mapping[str, Iterable[tuple[str, PhysicalSource]]]
) -> dict[str, str]:
    """The operators that cannot be repeated, with the reason: only files and generators are read twice."""
    found: dict[str, str] = {}
    for key in bottom_up({key: each.children for key, each in operators.items()}, *operators):
        operator = operators[key]
        if isinstance(operator, ViewOperator):
            found[key] = f"view {key} cannot be repeated for another reader"
        elif isinstance(operator, SourceOperator):
            for node, each in physical.get(operator.logical, ()):
                if not each.repeatable:
                    found[key] = (
                        f"node {node} reads {operator.logical!r} from {each.reads}, which can be "
                        f"read only once"
                    )
        for child in operator.children:
            if child in found:
                found.setdefault(key, found[child])
    return found


def repeated(
    operators: Mapping[str, QueryOperator], root: str
) -> tuple[dict[str, QueryOperator], dict[str, str]] | None:
    """The tree below a root, inputs before their readers, and which operator each one repeats.

    None if the tree would have more than `MAX_OPERATORS`.
    """
    sizes: dict[str, int] = {}
    for key in bottom_up({key: each.children for key, each in operators.items()}, root):
        sizes[key] = 1 + sum(sizes[child] for child in operators[key].children)
    if sizes[root] > MAX_OPERATORS:
        return None
    tree: dict[str, QueryOperator] = {}
    origins: dict[str, str] = {}
    taken = {*operators}

    def add(key: str) -> str:
        """Add an operator after its inputs; its id there."""
        stack: list[tuple[str, list[str]]] = [(key, [])]
        while True:
            at, made = stack[-1]
            children = operators[at].children
            if len(made) < len(children):
                stack.append((children[len(made)], []))
                continue
            id_, number = at, 2
            while id_ in tree or (id_ != at and id_ in taken):
                id_, number = f"{at}_{number}", number + 1
            tree[id_] = _reading(operators[at], id_, made)
            origins[id_] = at
            stack.pop()
            if not stack:
                return id_
            stack[-1][1].append(id_)

    add(root)
    return tree, origins


def _reading(operator: QueryOperator, id_: str, children: list[str]) -> QueryOperator:
    """The operator under an id, with these inputs."""
    if not children:
        return operator.model_copy(update={"id": id_})
    if isinstance(operator, UnaryOperator):
        return operator.model_copy(update={"id": id_, "input": children[0]})
    return operator.model_copy(update={"id": id_, "inputs": tuple(children)})
