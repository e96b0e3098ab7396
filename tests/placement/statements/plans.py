"""Plans, to be compared up to the ids of their operators."""

from __future__ import annotations

from typing import Any

from placement import Query


def plan(query: Query) -> list[Any]:
    """The operators without their ids, each with the numbers of its inputs."""
    operators = {each.id: each for each in query.operators}
    numbers: dict[str, int] = {}
    found: list[Any] = []

    def visit(id_: str) -> int:
        if id_ not in numbers:
            inputs = [visit(each) for each in operators[id_].children]
            fields = operators[id_].model_dump(exclude={"id", "input", "inputs"})
            numbers[id_] = len(found)
            found.append((operators[id_].type, inputs, fields))
        return numbers[id_]

    visit(next(each.id for each in query.operators if each.type == "sink"))
    return found
