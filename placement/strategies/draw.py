"""Drawing a path that has room, uniformly, without listing paths.

A path owes a number of slots, and each node on it pays with the room it has. The ways on from a node depend
only on the node and on what is still owed there; so they are counted backwards from the end, and the draw
follows the counts. What is owed is kept as 0 where every way on pays it, which leaves few (node, owed) pairs:
the cost grows with the links between start and end, not with the number of paths.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from random import Random

    Steps = Callable[[str], Iterable[str]]
    Room = Callable[[str], float]
    State = tuple[str, float]


def draw_path(start: str, steps: Steps, room: Room, need: float, rng: Random) -> tuple[str, ...] | None:
    """A path from ``start`` until there is no step on, whose nodes after the first have room for ``need``.

    ``steps`` gives the next nodes, and must not lead into a cycle. None if no path has the room.
    """
    onward = _reachable(start, steps)
    least, most = _room_onward(onward, room)
    if most[start] < need:
        return None
    first = (start, 0 if need <= least[start] else need)
    moves = _moves(first, onward, room, least, most)
    return _follow(first, moves, _ways(moves), rng)


def _reachable(start: str, steps: Steps) -> dict[str, tuple[str, ...]]:
    """The nodes from ``start`` on with their next ones, each node after all that come behind it."""
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


def _room_onward(
    onward: Mapping[str, tuple[str, ...]], room: Room
) -> tuple[dict[str, float], dict[str, float]]:
    """The least and the most room that the nodes after each node have, over all ways on."""
    least: dict[str, float] = {}
    most: dict[str, float] = {}
    for node, ends in onward.items():
        least[node] = min((room(end) + least[end] for end in ends), default=0)
        most[node] = max((room(end) + most[end] for end in ends), default=0)
    return least, most


def _moves(
    first: State,
    onward: Mapping[str, tuple[str, ...]],
    room: Room,
    least: Mapping[str, float],
    most: Mapping[str, float],
) -> dict[State, list[State]]:
    """The states that lead to the end with all paid, in the order of the path, with their next ones."""
    owed_at: dict[str, dict[float, None]] = {node: {} for node in onward}
    owed_at[first[0]][first[1]] = None
    moves: dict[State, list[State]] = {}
    for node in reversed(list(onward)):
        for owed in owed_at[node]:
            moves[node, owed] = []
            for end in onward[node]:
                left = owed - room(end)
                if left <= most[end]:
                    left = 0 if left <= least[end] else left
                    moves[node, owed].append((end, left))
                    owed_at[end][left] = None
    return moves


def _ways(moves: Mapping[State, list[State]]) -> dict[State, int]:
    """In how many ways each state leads to the end."""
    ways: dict[State, int] = {}
    for state in reversed(list(moves)):
        ways[state] = sum(ways[move] for move in moves[state]) or 1
    return ways


def _follow(
    state: State, moves: Mapping[State, list[State]], ways: Mapping[State, int], rng: Random
) -> tuple[str, ...]:
    path = [state[0]]
    while options := moves[state]:
        ticket = rng.randrange(ways[state])
        for option in options:
            ticket -= ways[option]
            if ticket < 0:
                state = option
                break
        path.append(state[0])
    return tuple(path)
