"""Draws of a path that has room, without listing paths."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from random import Random

    Steps = Callable[[str], Iterable[str]]
    Room = Callable[[str], float]


def draw_path(start: str, steps: Steps, room: Room, need: float, rng: Random) -> tuple[str, ...] | None:
    """Draw a path from ``start`` until there is no step on, whose nodes after the first have room for ``need``.

    ``steps`` gives the next nodes, and must not lead into a cycle. Each step is drawn from those after which there
    is still a way with enough room. None if no path has the room.
    """
    onward = _reachable(start, steps)
    most = _most_room(onward, room)
    if most[start] < need:
        return None
    path = [start]
    while ends := [end for end in onward[path[-1]] if room(end) + most[end] >= need]:
        path.append(rng.choice(ends))
        need -= room(path[-1])
    return tuple(path)


def _reachable(start: str, steps: Steps) -> dict[str, tuple[str, ...]]:
    """The nodes from ``start`` on with their next ones, each node after all that come after it on a path."""
    done: dict[str, tuple[str, ...]] = {}
    stack = [(start, tuple(steps(start)), 0)]
    while stack:
        node, ends, index = stack.pop()
        while index < len(ends) and ends[index] in done:
            index += 1
        if index == len(ends):
            done[node] = ends
        else:
            stack += [(node, ends, index), (ends[index], tuple(steps(ends[index])), 0)]
    return done


def _most_room(onward: Mapping[str, tuple[str, ...]], room: Room) -> dict[str, float]:
    """The most room that the nodes after each node have, over all ways on."""
    most: dict[str, float] = {}
    for node, ends in onward.items():
        most[node] = max((room(end) + most[end] for end in ends), default=0)
    return most
