"""A query's shape: a graph without cycles, in which every operator leads to a sink, or to a view that nothing reads.

A query that runs free has more rules: one tree, whose root is its sink, or such a view. The checks read ``Outline``s,
the little that shape is made of, so that they work on a file whose operators have other mistakes as well.
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
_IN_STEPS = "run it in steps (nebuli run --stepped --state DIR)"


@dataclass(frozen=True, slots=True)
class Outline:
    """An operator's place in the document, its id and type, and the ids of its inputs with their places.

    A view may have a ``name``, by which it is read.
    """

    path: Location
    id: str
    type: str
    inputs: tuple[tuple[Location, str], ...]
    name: str | None = None

    def __str__(self) -> str:
        return f"{self.type} {self.id}"


def shape_mistakes(outlines: Sequence[Outline]) -> Iterator[tuple[Location, str]]:
    """Everything that keeps the operators from being a graph that leads to sinks, with its place."""
    by_id: dict[str, Outline] = {}
    for outline in outlines:
        by_id.setdefault(outline.id, outline)
    yield from _bad_ids(outlines)
    yield from _bad_views(outlines)
    yield from _bad_inputs(outlines, by_id)
    if not roots_of(outlines):
        yield ("operators",), "the query has no sink; expected an operator of type sink, or one of type view"
    readers = _readers(by_id)
    yield from _cycles(by_id, readers)
    yield from _loose_ends(by_id, readers)


def views_of(outlines: Sequence[Outline]) -> list[Outline]:
    """The views among the operators."""
    return [outline for outline in outlines if outline.type == "view"]


def roots_of(outlines: Sequence[Outline]) -> list[Outline]:
    """The sinks, and the views that nothing reads."""
    read = {child for outline in outlines for _, child in outline.inputs}
    return [each for each in outlines if each.type == "sink" or (each.type == "view" and each.id not in read)]


def second_roots(outlines: Sequence[Outline]) -> Iterator[tuple[Location, str]]:
    """The sinks, or views that nothing reads, that a query has too many, to run free."""
    first, *others = roots_of(outlines)
    for other in others:
        what = "sink" if {first.type, other.type} == {"sink"} else "root"
        message = f"{other}: a second {what} in addition to {first}; expected exactly one in a free query"
        onward = (
            _IN_STEPS
            if what == "sink"
            else "let the operators above it read the view, which forwards all rows"
        )
        yield other.path, f"{message}: make it a separate query, or {onward}"


def second_readers(
    outlines: Sequence[Outline], unrepeatable: Mapping[str, str] | None = None
) -> Iterator[tuple[Location, str]]:
    """The inputs that are read already, where a query is to run free; only these, if some are ``unrepeatable``.

    With one root the others are repeated for each of their readers.
    """
    reader: dict[str, Outline] = {}
    for outline in outlines:
        for path, child in outline.inputs:
            if child not in reader:
                reader[child] = outline
            elif unrepeatable is None:
                message = f"{outline}: {child!r} is already read by {reader[child]}; a free query is a tree"
                yield (
                    path,
                    f"{message}: repeat, under other ids, the operators that both read, or {_IN_STEPS}",
                )
            elif child in unrepeatable:
                message = (
                    f"{outline}: {child!r} is already read by {reader[child]}, and {unrepeatable[child]}"
                )
                yield path, f"{message}: {_IN_STEPS}, or read from a file"


def bottom_up(inputs: Mapping[str, Sequence[str]], *roots: str) -> list[str]:
    """The operators below and including the roots, each once and after its inputs, which come in order."""
    order: dict[str, None] = {}
    stack = [(root, False) for root in reversed(roots)]
    while stack:
        operator, has_inputs = stack.pop()
        if has_inputs:
            order[operator] = None
        elif operator not in order:
            stack.append((operator, True))
            stack.extend((child, False) for child in reversed(inputs[operator]))
    return list(order)


def carried(identity: str) -> str:
    """The query's operator whose rows these are: what carries them to other members is ``<operator>><more>``."""
    return identity.partition(">")[0]


def _bad_ids(outlines: Sequence[Outline]) -> Iterator[tuple[Location, str]]:
    counts: Counter[str] = Counter()
    for outline in outlines:
        counts[outline.id] += 1
        if counts[outline.id] > 1:
            yield (*outline.path, "id"), f"duplicate operator id {outline.id!r}; use each id once"
        if len(outline.id) > _MAX_ID:
            yield (
                (*outline.path, "id"),
                f"operator id of {len(outline.id)} characters; expected {_MAX_ID} at most",
            )
        if ">" in outline.id:
            yield (
                (*outline.path, "id"),
                f"operator id {outline.id!r} has a '>', which is reserved for names of channels and exchanges",
            )


def _bad_views(outlines: Sequence[Outline]) -> Iterator[tuple[Location, str]]:
    """Return views with invalid names, or those of others."""
    of_names: dict[str, Outline] = {}
    for view in views_of(outlines):
        name = view.id if view.name is None else view.name
        place = view.path if view.name is None else (*view.path, "name")
        if name in of_names and of_names[name].id != view.id:
            yield (
                place,
                f"{view}: {of_names[name]} already has the name {name!r}; expected another name",
            )
        of_names.setdefault(name, view)
        if view.name is not None and len(view.name) > _MAX_ID:
            yield place, f"{view}: a name of {len(view.name)} characters; expected {_MAX_ID} at most"
        if view.name is not None and ">" in view.name:
            yield place, f"{view}: its name {view.name!r} has a '>', which is reserved; expected another name"


def _bad_inputs(outlines: Sequence[Outline], by_id: Mapping[str, Outline]) -> Iterator[tuple[Location, str]]:
    for outline in outlines:
        seen: set[str] = set()
        for path, child in outline.inputs:
            if child not in by_id:
                known = [key for key, each in by_id.items() if key != outline.id and each.type != "sink"]
                hint = did_you_mean(child, known)
                yield path, f"{outline}: unknown input {child!r}{hint}; expected {listed(known)}"
            elif by_id[child].type == "sink":
                yield path, f"{outline}: reads {by_id[child]}; a sink has no output"
            elif child in seen and outline.type == "join":
                message = f"{outline}: reads {child!r} twice, so both inputs have the same column names"
                yield path, f"{message}; put a project operator between, with an id of its own"
            seen.add(child)


def _readers(by_id: Mapping[str, Outline]) -> dict[str, list[str]]:
    """Return the readers of an operator, or of an unknown id."""
    readers: dict[str, list[str]] = {key: [] for key in by_id}
    for outline in by_id.values():
        for child in dict.fromkeys(child for _, child in outline.inputs):
            readers.setdefault(child, []).append(outline.id)
    return readers


def _cycles(
    by_id: Mapping[str, Outline], readers: Mapping[str, Sequence[str]]
) -> Iterator[tuple[Location, str]]:
    """Operators whose output comes back to them."""
    done: set[str] = set()
    for start in by_id:
        trail = {} if start in done else {start: iter(readers[start])}
        while trail:
            at = next(reversed(trail))
            reader = next(trail[at], None)
            if reader is None:
                del trail[at]
                done.add(at)
            elif reader in trail:
                cycle = [*list(trail)[list(trail).index(reader) :], reader]
                message = f"operators form a cycle: {' -> '.join(cycle)}; data flows one way, to the sinks"
                yield by_id[reader].path, message
            elif reader not in done:
                trail[reader] = iter(readers[reader])


def _loose_ends(
    by_id: Mapping[str, Outline], readers: Mapping[str, Sequence[str]]
) -> Iterator[tuple[Location, str]]:
    """Operators whose output goes nowhere."""
    # An operator that nothing reads is likely the one that an unknown input means: one mistake, not two.
    if len(readers) > len(by_id):
        return
    for outline in by_id.values():
        if not readers[outline.id] and outline.type not in ("sink", "view"):
            yield outline.path, f"{outline}: nothing reads it; every operator must lead to a sink or a view"
