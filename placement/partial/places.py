"""Places, where keys can be missing or asked for, and paths along edges, by which they are filled."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


class Edge(NamedTuple):
    """From a node to an input of another: first in, first out."""

    producer: str
    consumer: str
    port: int


@dataclass(frozen=True, slots=True)
class Place:
    """Where rows are found by ``columns``: a node's output or, with ``port``, what a join has of that input.

    A union and a join's output keep nothing: they are places because responses are merged there.
    """

    node: str
    columns: tuple[str, ...]
    port: int | None = None

    def __str__(self) -> str:
        columns = ", ".join(self.columns) or "nothing"
        return (
            f"{self.node} by {columns}"
            if self.port is None
            else f"input {self.port} of {self.node} by {columns}"
        )


@dataclass(frozen=True, slots=True)
class Path:
    """From ``source`` down ``edges`` to ``target``, with nothing between that could answer for these keys.

    ``columns`` has the names of the key's columns on each edge, in the order of the target's. The joins that it
    passes find rows by other columns than its own: it is foreign there.
    """

    number: int
    source: Place
    target: Place
    edges: tuple[Edge, ...]
    columns: tuple[tuple[str, ...], ...]

    @property
    def to_source(self) -> list[int]:
        """Which of the path's columns each of the source's is."""
        return [self.columns[0].index(name) for name in self.source.columns]

    @property
    def from_source(self) -> list[int]:
        """Which of the source's columns each of the path's is."""
        return [self.source.columns.index(name) for name in self.columns[0]]

    def into(self, node: str) -> Edge:
        """Its edge that leads to the node."""
        return next(edge for edge in self.edges if edge.consumer == node)

    def out_of(self, node: str) -> Edge:
        """Its edge that comes from the node."""
        return next(edge for edge in self.edges if edge.producer == node)

    def names_out_of(self, node: str) -> tuple[str, ...]:
        """Return the names of its columns in the node's output."""
        return self.columns[self.edges.index(self.out_of(node))]


class Paths:
    """All paths of a graph, by where they begin, pass and end."""

    def __init__(self) -> None:
        self._all: dict[int, Path] = {}
        self._from: defaultdict[Place, list[Path]] = defaultdict(list)
        self._to: defaultdict[Place, list[Path]] = defaultdict(list)
        self._through: defaultdict[tuple[str, int], list[Path]] = defaultdict(list)

    def add(self, paths: Iterable[Path]) -> None:
        """More of them."""
        for path in paths:
            self._all[path.number] = path
            self._from[path.source].append(path)
            self._to[path.target].append(path)
            for edge in path.edges[:-1]:
                self._through[edge.consumer, edge.port].append(path)

    def __getitem__(self, number: int) -> Path:
        return self._all[number]

    def __len__(self) -> int:
        return len(self._all)

    def known(self, number: int) -> Path | None:
        """Return the path with a number from another part."""
        return self._all.get(number)

    def beginning(self, place: Place) -> Sequence[Path]:
        """Those whose source it is."""
        return self._from.get(place, ())

    def ending(self, place: Place) -> Sequence[Path]:
        """Those whose target it is: one, of a union one for each input."""
        return self._to.get(place, ())

    def through(self, node: str, port: int) -> Sequence[Path]:
        """Return the paths that come to the node by that input and continue."""
        return self._through.get((node, port), ())
