"""The part of a graph that can be partial, why the rest cannot, and the paths by which keys are filled.

A place can be partial if its columns can be traced upwards, each to a column that they are copies of, to places that
rows are found by just these columns: then a key is filled with what these have of it, and with no more. Otherwise it
is full, and so is all above it: rows dropped above would be missing there forever.

Places that a stream feeds are also full, as its rows come once only, and so are windows, whose rows go with their time;
all places below either of them; all above any of these; and all above an output, which takes every row.

A path ends where it comes to a base, which gets an index of these columns; to an aggregate that groups by them, and
maybe by others: the groups of a key are there or not together; to a join by them; to a union, which asks all its
inputs; or to a merger of shards, which asks the one selected by these columns, or all. At other joins it continues to
the input that the columns come from, the first if both have them; of an outer join only to one whose rows are all
given.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import count
from typing import TYPE_CHECKING

from placement.checking.schemas import joined_names, output_schema, plain_columns
from placement.errors import UnfitNodes
from placement.graph import carried
from placement.partial.places import Edge, Path, Place
from placement.plan import (
    AggregateOperator,
    DistinctOperator,
    FilterOperator,
    JoinOperator,
    MergerOperator,
    ProjectOperator,
    SharderOperator,
    UnionOperator,
    WindowOperator,
)
from placement.view_nodes import Base, Output, Stream, View
from topology.consistency import listed

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from placement.checking.schemas import Fault
    from placement.plan import FragmentOperator, PartialNode
    from topology.schema import Schema


@dataclass(frozen=True, slots=True)
class PartialPlan:
    """Nodes with inputs before their readers, what they give out, and how each keeps rows.

    ``full`` has the places that are full, bases apart, and why; ``partial`` the others, ``paths`` how those are filled.
    """

    nodes: Mapping[str, PartialNode]
    schemas: Mapping[str, Schema]
    full: Mapping[Place, str]
    partial: tuple[Place, ...]
    paths: tuple[Path, ...]

    @property
    def edges(self) -> list[Edge]:
        """All edges, by their producers' readers."""
        return [edge for node in self.nodes.values() for edge in edges_into(node)]

    @property
    def edges_to_full(self) -> set[Edge]:
        """The edges that lead to a full place, or to an output: rows that do not come on them are missing forever."""
        edges, leading = self.edges, set[Edge]()
        above = [
            edge
            for place in self.full
            for edge in edges
            if edge.consumer == place.node and place.port in (None, edge.port)
        ]
        above += [edge for edge in edges if isinstance(self.nodes[edge.consumer], Output)]
        while above:
            edge = above.pop()
            if edge not in leading:
                leading.add(edge)
                above += [each for each in edges if each.consumer == edge.producer]
        return leading

    def below(self, above: str) -> set[str]:
        """The nodes that get rows of another one, at any distance."""
        found = {above}
        for id_, node in self.nodes.items():
            if not found.isdisjoint(children_of(node)):
                found.add(id_)
        return found - {above}

    def places(self, node: str) -> list[Place]:
        """Where rows of a node are found."""
        asked = [path.source for path in self.paths if path.source.node == node]
        return list(
            dict.fromkeys(place for place in (*asked, *self.full, *self.partial) if place.node == node)
        )


class NoProvenanceError(Exception):
    """Why columns cannot be traced to places above."""


def planned(nodes: Iterable[PartialNode], known: Sequence[Path] = ()) -> PartialPlan:
    """The plan of these nodes, inputs before readers; paths that are ``known`` keep their numbers.

    Raises ``UnfitNodes`` for nodes that cannot work on their inputs.
    """
    by_id: dict[str, PartialNode] = {}
    schemas: dict[str, Schema] = {}
    for node in nodes:
        if node.id in by_id:
            raise UnfitNodes("two nodes have this id; use each id once", node.id)
        for child in children_of(node):
            if child not in by_id or isinstance(by_id[child], Output):
                raise UnfitNodes(
                    f"it reads {child!r}, which is not listed before it; expected {listed(list(by_id))}",
                    node.id,
                )
            sharder = by_id[child]
            if isinstance(sharder, SharderOperator) and node.id not in sharder.shards:
                raise UnfitNodes(
                    f"it reads {child!r}, which sends rows only to {', '.join(sharder.shards)}", node.id
                )
        by_id[node.id] = node
        schemas[node.id] = _columns_of(node, [schemas[child] for child in children_of(node)])
    return _Planning(by_id, schemas).plan(known)


def children_of(node: PartialNode | FragmentOperator) -> tuple[str, ...]:
    """The nodes that it reads, in order."""
    match node:
        case Base() | Stream():
            return ()
        case View() | Output():
            return (node.input,)
    return node.children


def in_words(place: Place, nodes: Mapping[str, PartialNode]) -> str:
    """A place as its query names it: shards by their operator, what a join has of an input by that input."""
    columns = ", ".join(place.columns) or "nothing"
    if place.port is None:
        return f"{carried(place.node)} by {columns}"
    return f"{carried(place.node)}, of {carried(children_of(nodes[place.node])[place.port])}, by {columns}"


def edges_into(node: PartialNode) -> list[Edge]:
    """The edges that end at it, by input."""
    return [Edge(child, node.id, port) for port, child in enumerate(children_of(node))]


def grouped_by(node: AggregateOperator | DistinctOperator, output: Schema) -> tuple[str, ...]:
    """Return the columns that identify its groups."""
    return node.by if isinstance(node, AggregateOperator) else tuple(column.name for column in output)


def _columns_of(node: PartialNode, inputs: Sequence[Schema]) -> Schema:
    match node:
        case Base() | Stream():
            return node.columns
        case Output():
            return inputs[0]
        case View():
            names = [column.name for column in inputs[0]]
            if unknown := [name for name in node.key if name not in names]:
                raise UnfitNodes(
                    f"its key has the unknown column {unknown[0]!r}; expected {listed(names)}", node.id
                )
            if len(set(node.key)) < len(node.key):
                raise UnfitNodes(f"its key {', '.join(node.key)} contains a column twice", node.id)
            return inputs[0]
        case SharderOperator():
            return _with_columns(node, node.by, inputs[0])
        case MergerOperator():
            if any(columns != inputs[0] for columns in inputs):
                raise UnfitNodes(
                    "its inputs have different columns; expected shards of one operator", node.id
                )
            return _with_columns(node, node.by, inputs[0])
    faults: list[Fault] = []
    columns = output_schema(node, inputs, faults)
    if faults:
        raise UnfitNodes("; ".join(message for _, message in faults), node.id)
    return columns


def _with_columns(node: PartialNode, by: Sequence[str], columns: Schema) -> Schema:
    """The columns of a node, which are to have those that it is divided by."""
    names = [column.name for column in columns]
    if unknown := [name for name in by if name not in names]:
        raise UnfitNodes(
            f"its rows are divided by the unknown column {unknown[0]!r}; expected {listed(names)}", node.id
        )
    return columns


@dataclass(slots=True)
class _Leg:
    """A path in the making: its edges, upwards, and what the key is called on each."""

    edges: list[Edge]
    columns: list[tuple[str, ...]]


@dataclass(slots=True)
class _Planning:
    nodes: Mapping[str, PartialNode]
    schemas: Mapping[str, Schema]
    full: dict[Place | str, str] = field(default_factory=dict)
    """Why something is full: a join's input, or a node with all that it has."""

    def plan(self, known: Sequence[Path]) -> PartialPlan:
        self._begin()
        while self._another_is_full():
            pass
        targets = dict(self._targets())
        kept = {(path.source, path.target, path.edges): path.number for path in known}
        numbers = count(1 + max(kept.values(), default=-1))
        paths = []
        for target, legs in targets.items():
            for source, leg in legs:
                edges, columns = tuple(leg.edges[::-1]), tuple(leg.columns[::-1])
                number = kept.get((source, target, edges))
                paths.append(
                    Path(next(numbers) if number is None else number, source, target, edges, columns)
                )
        sources = [path.source for path in paths]
        places = dict.fromkeys((*self._kept_places(), *(each for each in sources if self._keeps(each.node))))
        full = {place: why for place in places if (why := self._why_full(place)) is not None}
        return PartialPlan(
            self.nodes, self.schemas, full, tuple(p for p in places if p not in full), tuple(paths)
        )

    def _begin(self) -> None:
        """Mark as full the nodes that are full regardless of their readers."""
        whole = {}  # what takes every row, and why
        for id_, node in self.nodes.items():
            reasons = [self.full[child] for child in children_of(node) if child in self.full]
            match node:
                case Stream():
                    self.full[id_] = f"it reads {id_}, which is not a base"
                case WindowOperator():
                    self.full[id_] = f"it reads window {id_}, whose rows are dropped when the window closes"
                    whole[id_] = f"window {id_}, which is computed from it, reads every row"
                case Output():
                    whole[id_] = f"sink {id_}, which is computed from it, reads every row"
                case _ if reasons:
                    self.full[id_] = reasons[0]
                    whole[id_] = f"{carried(id_)} needs every row of it: {reasons[0]}"
        for id_, why in whole.items():
            self._make_full_above(children_of(self.nodes[id_]), why)

    def _another_is_full(self) -> bool:
        try:
            for _ in self._targets():
                pass
        except _Untraceable as found:
            self._make_full(found.target, str(found))
            return True
        return False

    def _make_full(self, place: Place, why: str) -> None:
        """It is, and all above it."""
        self.full[place if place.port is not None else place.node] = why
        above = [edge.producer for edge in self._edges_into(place)]
        self._make_full_above(above, f"{in_words(place, self.nodes)} needs every row of it: {why}")

    def _make_full_above(self, nodes: Iterable[str], why: str) -> None:
        """These are, and all above them, but for views."""
        above = list(nodes)
        while above:
            node = above.pop()
            above += children_of(self.nodes[node])
            if not isinstance(self.nodes[node], View):  # which gives on what it has dropped
                self.full.setdefault(node, why)

    def _targets(self) -> Iterator[tuple[Place, list[tuple[Place, _Leg]]]]:
        """Return the places to fill, with their paths."""
        waiting, seen = list(self._roots()), set[Place]()
        while waiting:
            place = waiting.pop(0)
            if place in seen or not self._is_filled(place):
                continue
            seen.add(place)
            try:
                legs = [self._leg(edge, place.columns) for edge in self._edges_into(place)]
            except NoProvenanceError as why:
                raise _Untraceable(place, str(why)) from None
            yield place, legs
            waiting += [source for source, _ in legs]

    def _roots(self) -> Iterator[Place]:
        """Return the places that are filled for their own sake, and not for others."""
        for node in self.nodes.values():
            if isinstance(node, View):
                yield Place(node.id, node.key)
            elif isinstance(node, JoinOperator):
                yield from (Place(node.id, node.on, port) for port, _ in enumerate(node.inputs))

    def _kept_places(self) -> Iterator[Place]:
        yield from self._roots()
        for node in self.nodes.values():
            if isinstance(node, AggregateOperator | DistinctOperator) and node.id in self.full:
                yield Place(node.id, grouped_by(node, self.schemas[node.id]))

    def _keeps(self, node: str) -> bool:
        return isinstance(self.nodes[node], AggregateOperator | DistinctOperator)

    def _is_filled(self, place: Place) -> bool:
        """True if its keys come by paths; those of a union are merged wherever a path requires it."""
        node = self.nodes[place.node]
        return isinstance(node, UnionOperator | MergerOperator) or not (
            isinstance(node, Base) or self._why_full(place)
        )

    def _why_full(self, place: Place) -> str | None:
        return self.full.get(place, self.full.get(place.node))

    def _edges_into(self, place: Place) -> list[Edge]:
        edges = edges_into(self.nodes[place.node])
        if place.port is not None:
            return [edges[place.port]]
        return [] if isinstance(self.nodes[place.node], JoinOperator) else edges

    def _leg(self, edge: Edge, columns: tuple[str, ...]) -> tuple[Place, _Leg]:
        """From an edge up to the nearest place by these columns."""
        if not columns:
            raise NoProvenanceError("it is read without a key")
        leg = _Leg([edge], [columns])
        while True:
            at, names = leg.edges[-1].producer, leg.columns[-1]
            node = self.nodes[at]
            match node:
                case FilterOperator() | SharderOperator() | View():
                    above = names
                case ProjectOperator():
                    above = self._projected(node, names)
                case JoinOperator() if set(names) != set(node.on):
                    port, above = self._side(node, names)
                    leg.edges.append(edges_into(node)[port])
                    leg.columns.append(above)
                    continue
                case _:
                    return self._source(node, names), leg
            leg.edges.append(edges_into(node)[0])
            leg.columns.append(above)

    def _source(self, node: PartialNode, names: tuple[str, ...]) -> Place:
        match node:
            case AggregateOperator() | DistinctOperator():
                by = grouped_by(node, self.schemas[node.id])
                if results := [name for name in names if name not in by]:
                    raise NoProvenanceError(
                        f"{results[0]!r} is a result of {carried(node.id)}, which does not group by it"
                    )
            case UnionOperator() | MergerOperator():
                for edge in edges_into(node):
                    self._leg(edge, names)
            case JoinOperator():
                return Place(node.id, node.on)
        return Place(node.id, tuple(each.name for each in self.schemas[node.id] if each.name in names))

    def _projected(self, node: ProjectOperator, names: tuple[str, ...]) -> tuple[str, ...]:
        plain = plain_columns(node, self.schemas[node.input])
        if computed := [name for name in names if name not in plain]:
            raise NoProvenanceError(
                f"{computed[0]!r} is computed by {carried(node.id)}: {node.columns[computed[0]]}"
            )
        above = tuple(plain[name] for name in names)
        if len(set(above)) < len(above):
            raise NoProvenanceError(
                f"{' and '.join(names)} are the same column in the input of {carried(node.id)}"
            )
        return above

    def _side(self, node: JoinOperator, names: tuple[str, ...]) -> tuple[int, tuple[str, ...]]:
        inputs = [self.schemas[child] for child in node.inputs]
        given = joined_names(node.on, inputs, self.schemas[node.id])
        here = [{out: name for name, out in each.items()} | {key: key for key in node.on} for each in given]
        ports = [port for port, known in enumerate(here) if all(name in known for name in names)]
        for port in ports:
            if port not in node.nullable:
                return port, tuple(here[port][name] for name in names)
        said, join, is_one = " and ".join(names), carried(node.id), len(names) == 1
        match ports:
            case []:
                raise NoProvenanceError(f"{said} come from different inputs of {join}")
            case [port]:
                origin = carried(node.inputs[port])
                raise NoProvenanceError(
                    f"{said} {'comes' if is_one else 'come'} from {origin}, and {node.how} join "
                    f"{join} also returns rows without a match in {origin}"
                )
        raise NoProvenanceError(
            f"{said} {'is' if is_one else 'are'} part of the key of {node.how} join {join}, but no input of "
            f"the join contains all of {'its' if is_one else 'their'} values"
        )


class _Untraceable(Exception):
    """The columns of ``target`` cannot be traced."""

    def __init__(self, target: Place, why: str) -> None:
        self.target = target
        super().__init__(why)
