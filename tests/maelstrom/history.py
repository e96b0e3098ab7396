"""What clients asked for and were told: transactions with the moments at which they began and ended."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

_SHOWN = 8

Outcome = Literal["ok", "fail", "info"]
"""It happened, it did not, or nobody knows."""


@dataclass(frozen=True, slots=True)
class Append:
    """An element at the end of a key's list. No two appends to a key have the same element."""

    key: int
    element: int

    def __str__(self) -> str:
        return f"append {self.key} {self.element}"


@dataclass(frozen=True, slots=True)
class Read:
    """The whole list of a key; None while it is not known."""

    key: int
    elements: tuple[int, ...] | None = None

    def __str__(self) -> str:
        return f"read {self.key} {'?' if self.elements is None else shown(self.elements)}"


Operation = Append | Read


def shown(elements: Sequence[int]) -> str:
    """A list for people: of a long one the end."""
    if len(elements) <= _SHOWN:
        return str(list(elements))
    return f"[{len(elements) - _SHOWN} elements, {', '.join(map(str, elements[-_SHOWN:]))}]"


@dataclass(frozen=True, slots=True)
class Transaction:
    """What a client asked for at ``began``, and was told at ``ended``: None if it was told nothing.

    The two are integers on one clock. The elements that it has read are known if it is ``ok``.
    """

    name: str
    outcome: Outcome
    began: int
    ended: int | None
    operations: tuple[Operation, ...]

    def __str__(self) -> str:
        return f"{self.name} [{', '.join(map(str, self.operations))}]"

    def reads(self) -> list[tuple[Read, tuple[int, ...]]]:
        """Those reads whose elements are known, with them."""
        if self.outcome != "ok":
            return []
        reads = [each for each in self.operations if isinstance(each, Read)]
        return [(each, each.elements) for each in reads if each.elements is not None]

    def appends(self) -> list[Append]:
        """Its appends, in their order."""
        return [each for each in self.operations if isinstance(each, Append)]


def packed(operations: Iterable[Operation]) -> list[list[Any]]:
    """Operations as the workload txn-list-append writes them."""
    return [
        ["append", each.key, each.element]
        if isinstance(each, Append)
        else ["r", each.key, None if each.elements is None else list(each.elements)]
        for each in operations
    ]


def unpacked(operations: Iterable[Sequence[Any]]) -> tuple[Operation, ...]:
    """What `packed` gave. Raises ValueError for what is none."""
    found: list[Operation] = []
    for each in operations:
        match each:
            case ["append", int(key), int(element)]:
                found.append(Append(key, element))
            case ["r", int(key), None]:
                found.append(Read(key))
            case ["r", int(key), [*elements]]:
                found.append(Read(key, tuple(elements)))
            case _:
                raise ValueError(f"{each!r} is not an operation of a transaction on lists")
    return tuple(found)


def write(history: Iterable[Transaction], path: Path) -> None:
    """Keep a history, a line for each transaction."""
    with path.open("w", encoding="utf-8") as file:
        for each in history:
            line = [each.name, each.outcome, each.began, each.ended, packed(each.operations)]
            file.write(f"{json.dumps(line)}\n")


def read(path: Path) -> list[Transaction]:
    """The history that was kept."""
    lines = [json.loads(line) for line in path.read_text("utf-8").splitlines()]
    return [
        Transaction(name, outcome, began, ended, unpacked(operations))
        for name, outcome, began, ended, operations in lines
    ]
