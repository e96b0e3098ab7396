"""A query's shape: one tree, whose root is its sink.

The checks read ``Outline``s, the little that shape is made of, so that they work on a file whose operators
have other mistakes as well.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from topology.consistency import did_you_mean, listed

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from topology.mistakes import Location


_MAX_ID = 200
"""Parts of a source and network sinks have the ids of their operators with a little more, below 256."""


@dataclass(frozen=True, slots=True)
class Outline:
    """An operator's place in the document, its id and type, and the ids of its inputs with their places."""

    path: Location
    id: str
    type: str
    inputs: tuple[tuple[Location, str], ...]

    def __str__(self) -> str:
        return f"{self.type} {self.id}"


def shape_mistakes(outlines: Sequence[Outline]) -> Iterator[tuple[Location, str]]:
    """Everything that keeps the operators from being one tree below one sink, with its place."""
    by_id: dict[str, Outline] = {}
    for outline in outlines:
        by_id.setdefault(outline.id, outline)
    yield from _bad_ids(outlines)
    yield from _bad_inputs(outlines, by_id)
    yield from _bad_sinks(outlines)
    yield from _cycles_and_loose_ends(by_id)


def sinks_of(outlines: Sequence[Outline]) -> list[Outline]:
    """The sinks among the operators."""
    return [outline for outline in outlines if outline.type == "sink"]


def bottom_up(inputs: Mapping[str, Sequence[str]], root: str) -> list[str]:
    """The operators below and including ``root``, each after its inputs, which come in order."""
    order: list[str] = []
    stack = [root]
    while stack:
        operator = stack.pop()
        order.append(operator)
        stack.extend(inputs[operator])
    return order[::-1]


def _bad_ids(outlines: Sequence[Outline]) -> Iterator[tuple[Location, str]]:
    counts: Counter[str] = Counter()
    for outline in outlines:
        counts[outline.id] += 1
        if counts[outline.id] > 1:
            yield (*outline.path, "id"), f"duplicate operator id {outline.id!r}; each may be given once"
        if len(outline.id) > _MAX_ID:
            yield (
                (*outline.path, "id"),
                f"operator id of {len(outline.id)} characters; expected {_MAX_ID} at most",
            )
        if ">" in outline.id:
            yield (*outline.path, "id"), f"operator id {outline.id!r} has a '>'; channel names need it"


def _bad_inputs(outlines: Sequence[Outline], by_id: Mapping[str, Outline]) -> Iterator[tuple[Location, str]]:
    reader: dict[str, Outline] = {}
    for outline in outlines:
        for path, child in outline.inputs:
            if child not in by_id:
                known = [key for key, each in by_id.items() if key != outline.id and each.type != "sink"]
                hint = did_you_mean(child, known)
                yield path, f"{outline}: unknown input {child!r}{hint}; expected {listed(known)}"
            elif by_id[child].type == "sink":
                yield path, f"{outline}: reads {by_id[child]}; a sink has no output"
            elif child in reader:
                yield path, f"{outline}: {child!r} is read by {reader[child]} already; a query is a tree"
            else:
                reader[child] = outline


def _bad_sinks(outlines: Sequence[Outline]) -> Iterator[tuple[Location, str]]:
    sinks = sinks_of(outlines)
    if not sinks:
        yield ("operators",), "the query has no sink; expected exactly one operator of type sink"
    for other in sinks[1:]:
        yield other.path, f"{other}: a second sink beside {sinks[0]}; expected exactly one"


def _cycles_and_loose_ends(by_id: Mapping[str, Outline]) -> Iterator[tuple[Location, str]]:
    """Operators whose output comes back to them, or goes nowhere."""
    reader: dict[str, str] = {}
    for outline in by_id.values():
        for _, child in outline.inputs:
            reader.setdefault(child, outline.id)
    # An operator that nothing reads is likely the one that an unknown input means: one mistake, not two.
    misnamed = any(child not in by_id for child in reader)
    done: set[str] = set()
    for start in by_id:
        trail: dict[str, None] = {}
        at = start
        while at in reader and at not in trail and at not in done:
            trail[at] = None
            at = reader[at]
        if at in trail:
            cycle = [*list(trail)[list(trail).index(at) :], at]
            yield by_id[at].path, f"operators form a cycle: {' -> '.join(cycle)}; a query is a tree"
        elif not (at in done or at in reader or misnamed or by_id[at].type == "sink"):
            yield by_id[at].path, f"{by_id[at]}: nothing reads it; every operator leads to the sink"
        done.update(trail, (at,))
