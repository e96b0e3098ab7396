"""How rows are divided over members, and what operators that move none of them leave of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    Where = int | tuple[frozenset[str], ...] | None
    """Where rows are: all at a member; each where the hash of columns says, which have any of these names; anywhere."""


def by_hash(columns: Iterable[str]) -> Where:
    """Each row is where the hash of these columns says."""
    return tuple(frozenset({name}) for name in columns)


def key_order(where: Where, keys: Iterable[str]) -> tuple[str, ...] | None:
    """The order of the keys whose hash it is that divides the rows; None if it is that of anything else."""
    if where is None or isinstance(where, int):
        return None
    wanted = frozenset(keys)
    found = [names & wanted for names in where]
    if len(found) != len(wanted) or any(len(names) != 1 for names in found):
        return None
    return tuple(name for names in found for name in names)


def within(where: Where, keys: Iterable[str]) -> Where:
    """Where rows are whose hash is of some of these columns; None if it is that of anything else."""
    if where is None or isinstance(where, int):
        return None
    wanted = frozenset(keys)
    found = tuple(names & wanted for names in where)
    return found if all(found) else None


def renamed(where: Where, names: Mapping[str, str]) -> Where:
    """Where rows are with these columns only, of which ``names`` says what they were called."""
    if where is None or isinstance(where, int):
        return where
    found = tuple(frozenset(new for new, old in names.items() if old in before) for before in where)
    return found if all(found) else None


def common(inputs: Sequence[Where]) -> Where:
    """Where the rows of all inputs are, whose columns are alike."""
    first, *others = inputs
    for other in others:
        if first is None or other is None or isinstance(first, int) or isinstance(other, int):
            first = first if first == other else None
        elif len(first) != len(other):
            first = None
        else:
            shared = tuple(ours & theirs for ours, theirs in zip(first, other, strict=True))
            first = shared if all(shared) else None
    return first
