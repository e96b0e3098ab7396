"""A graph beside which a full one runs, in plain Python and with the same messages in the same order.

So it is known of every place and at every moment which rows each key would have, had nothing ever been missing.
"""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Iterable, Iterator

import pyarrow as pa

from nebuli.dataflow.partial import (
    Base,
    Data,
    Down,
    Edge,
    Eviction,
    Filled,
    Move,
    PartialGraph,
    PartialNode,
    Path,
    Place,
    Reading,
    Send,
)
from nebuli.dataflow.partial.base_and_view import ViewNode
from nebuli.dataflow.partial.graph_node import GraphNode
from nebuli.dataflow.partial.grouping_node import GroupingNode
from nebuli.dataflow.partial.join_node import JoinNode
from nebuli.dataflow.partial.key_sets import tuples_of
from nebuli.dataflow.partial.shard_nodes import MergerNode, shards_of
from nebuli.dataflow.partial.traffic import Instruction
from nebuli.dataflow.partial.union_node import UnionNode
from nebuli.dataflow.zset import empty
from placement.partial.provenance import children_of
from placement.plan import JoinOperator, MergerOperator, UnionOperator
from tests.nebuli.dataflow.partial.reference import (
    Bag,
    Row,
    contents,
    evaluate,
    from_scratch,
    given_to,
    plus,
)


class Shadowed(PartialGraph):
    """Knows, beside each change, what it would be if nothing was missing. All invariants are scanned by ``scan``."""

    def __init__(self, nodes: Iterable[PartialNode]) -> None:
        self.ideal: defaultdict[Edge, deque[Bag | None]] = defaultdict(deque)
        self.inputs: dict[str, list[Bag]] = {}
        self.outputs: dict[str, Bag] = {}
        self.bases: dict[str, Bag] = {}
        self.awaited: set[tuple[str, Row]] = set()
        self._giving: tuple[str, Bag] | None = None
        super().__init__(nodes)

    def add(self, nodes: Iterable[PartialNode]) -> None:
        fed = {edge: len(queue) for edge, queue in self._down.items()}
        super().add(nodes)
        for id_, node in self.plan.nodes.items():
            if id_ in self.inputs:
                continue
            edges = [Edge(child, id_, port) for port, child in enumerate(children_of(node))]
            given = [len(self._down[edge]) > fed.get(edge, 0) for edge in edges]
            self.inputs[id_] = [
                Counter()
                if is_given
                else given_to(self.plan, edge.producer, id_, Counter(self.outputs[edge.producer]))
                for edge, is_given in zip(edges, given, strict=True)
            ] or [Counter()]
            self.outputs[id_] = evaluate(self.plan, id_, self.inputs[id_])
            if isinstance(node, Base):
                self.bases[id_] = Counter()

    def write(self, base: str, batch: pa.RecordBatch) -> None:
        change = contents(batch)
        self.bases[base] = plus(self.bases[base], change)
        self._giving = base, self._through(base, 0, change)
        super().write(base, batch)
        self._giving = None

    def read(self, view: str, keys: Iterable[Row]) -> Reading:
        reading = super().read(view, keys)
        self.awaited |= {(view, key) for key in tuples_of(reading.missing)}
        return reading

    def step(self, move: Move) -> list[Filled]:
        if isinstance(move, Down):
            delta = self.ideal[move.edge].popleft()
            if delta is not None:
                node = move.edge.consumer
                self._giving = node, self._through(node, move.edge.port, delta)
        filled = super().step(move)
        self._giving = None
        for each in filled:
            place = Place(each.view, self.plan.nodes[each.view].key)  # type: ignore[union-attr] # a view
            rows = self._by_key(place, contents(each.rows), place.columns)
            for key in tuples_of(each.keys):
                self.awaited.discard((each.view, key))
                if not self.is_doomed(place, key):
                    assert rows.get(key, Counter()) == self.ideal_rows(place, key), (
                        f"a reader of {place} was told {key} wrong"
                    )
        return filled

    def _through(self, node: str, port: int, change: Bag) -> Bag:
        self.inputs[node][port] = plus(self.inputs[node][port], change)
        before, self.outputs[node] = self.outputs[node], evaluate(self.plan, node, self.inputs[node])
        return plus(self.outputs[node], before, -1)

    def _do(self, instructions: Iterable[Instruction]) -> list[Filled]:
        listed = list(instructions)
        change: Bag | None = None
        if self._giving is not None:
            node, change = self._giving
            changed = Counter(
                each.edge for each in listed if isinstance(each, Send) and isinstance(each.message, Data)
            )
            for edge in self.nodes[node].outputs:
                assert changed[edge] <= 1
                if not changed[edge]:
                    listed.append(Send(edge, Data(empty(self.nodes[node].schema))))
        for each in listed:
            if isinstance(each, Send):
                given = isinstance(each.message, Data)
                rows = (
                    None
                    if change is None
                    else given_to(self.plan, each.edge.producer, each.edge.consumer, change)
                )
                self.ideal[each.edge].append(
                    None if not given else contents(each.message.batch) if rows is None else rows  # type: ignore[union-attr]
                )
        return super()._do(listed)

    # What the scan knows.

    def ideal_rows(self, place: Place, key: Row) -> Bag:
        return self._ideal_by_key(place).get(key, Counter())

    def _ideal_by_key(self, place: Place) -> dict[Row, Bag]:
        node = self.plan.nodes[place.node]
        if place.port is None:
            return self._by_key(place, self.outputs[place.node], place.columns)
        names = [column.name for column in self.plan.schemas[children_of(node)[place.port]]]
        nulls = isinstance(node, JoinOperator) and place.port in node.preserved
        return _keyed(self.inputs[place.node][place.port], names, place.columns, nulls=nulls)

    def _by_key(self, place: Place, rows: Bag, columns: tuple[str, ...]) -> dict[Row, Bag]:
        return _keyed(rows, [column.name for column in self.plan.schemas[place.node]], columns)

    def _present(self, place: Place) -> set[Row]:
        return set(tuples_of(self.nodes[place.node].kept[place].present.all()[0]))

    def holds(self, place: Place, key: Row) -> bool:
        """Whether all that changes the key arrives at the place, so that it is given on from there."""
        if place in self.plan.partial:
            return key in self._present(place)
        if isinstance(self.plan.nodes[place.node], UnionOperator | MergerOperator):
            return all(self._is_held(path, key) for path in self._asked_for(place, key))
        return all(self.holds(side, key) for side in self._sides(place))

    def _asked_for(self, place: Place, key: Row) -> list[Path]:
        """The paths that may bring rows of a key: of shards that are known by the key's columns one."""
        node, paths = self.plan.nodes[place.node], list(self.paths.ending(place))
        if not isinstance(node, MergerOperator) or not node.by or not set(node.by) <= set(place.columns):
            return paths
        schema = self.nodes[node.id].schema
        columns = [pa.array([key[place.columns.index(n)]], schema.field(n).type) for n in node.by]
        (number,) = shards_of(columns, 1, len(node.inputs))
        return [path for path in paths if path.edges[-1].port == number]

    def _is_held(self, path: Path, key: Row) -> bool:
        source = tuple(key[index] for index in path.to_source)
        return self.holds(path.source, source) and all(
            self.holds(side, join_key) for side, join_key in self._passed(path, key)
        )

    def is_doomed(self, place: Place, key: Row) -> bool:
        """Whether an eviction of the key is on its way to the place, or to one above from where it goes on to it."""
        if place in self.plan.partial and key not in self._present(place):
            return False
        if any(self.is_doomed(side, key) for side in self._sides(place)):
            return True
        return any(self._brings_eviction(path, key) for path in self.paths.ending(place))

    def _brings_eviction(self, path: Path, key: Row) -> bool:
        for edge in path.edges:
            for message in self.on_its_way(edge):
                if (
                    isinstance(message, Eviction)
                    and message.path == path.number
                    and key in tuples_of(message.keys)
                ):
                    return True
        source = tuple(key[index] for index in path.to_source)
        return self.is_doomed(path.source, source) or any(
            self.is_doomed(side, join_key) for side, join_key in self._passed(path, key)
        )

    def _sides(self, place: Place) -> list[Place]:
        """The inputs of a join whose output the place is."""
        node = self.plan.nodes[place.node]
        if not isinstance(node, JoinOperator) or place.port is not None:
            return []
        return [Place(place.node, node.on, port) for port, _ in enumerate(node.inputs)]

    def _passed(self, path: Path, key: Row) -> list[tuple[Place, Row]]:
        """The join keys that rows with a key of the path have where it is foreign, at each input there."""
        found = []
        for edge, columns in list(zip(path.edges, path.columns, strict=True))[:-1]:
            node = self.plan.nodes[edge.consumer]
            if isinstance(node, JoinOperator):
                names = [column.name for column in self.plan.schemas[edge.producer]]
                rows = _keyed(self.inputs[node.id][edge.port], names, columns).get(key, Counter())
                keys = _keyed(rows, names, node.on, nulls=edge.port in node.preserved)
                found += [(side, each) for side in self._sides(Place(node.id, node.on)) for each in keys]
        return found

    def scan(self) -> None:
        """Every key of every place is missing, right as of now, or about to be evicted."""
        for place, kept in self.partial.items():
            present = self._present(place)
            assert len(present) == len(kept.present)
            names = [name for name in kept.schema.names if name != "_weight"]
            rows, right = _keyed(contents(kept.all()), names, place.columns), self._ideal_by_key(place)
            assert set(rows) <= present, f"rows of missing keys at {place}"
            for key in present:
                if self.is_doomed(place, key):
                    continue
                assert rows.get(key, Counter()) == right.get(key, Counter()), f"{place} has {key} wrong"
                for path in self.paths.ending(place):
                    assert self._is_held(path, key), f"{place} has {key}, which is missing above"

    def check_at_rest(self) -> None:
        """Nothing is on its way: every key is missing, or right by all that was written, and nobody waits."""
        assert self.moves() == []
        right = from_scratch(self.plan, self.bases)
        assert self.outputs == right
        for place in self.partial:
            assert not any(self.is_doomed(place, key) for key in self._present(place))
        self.scan()
        for node in self.nodes.values():
            for place, rows in node.kept.items():
                if rows.full and place.port is None:
                    assert contents(rows.all()) == right[place.node], f"{place} is full and wrong"
        assert self.awaited == set(), "readers are waiting still"
        for node in self.nodes.values():
            assert not any(_waiting_for(node)), f"{node.id} is waiting still"


def _waiting_for(node: GraphNode) -> Iterator[object]:
    """All that a node remembers because something is to come."""
    match node:
        case ViewNode():
            yield len(node._waiting)
        case GroupingNode():
            yield from (len(groups.waiting) for groups in node._groups.values())
        case UnionNode():
            yield from map(len, node._narrow.values()) if isinstance(node, MergerNode) else ()
            for gathering in node._gatherings.values():
                yield len(gathering.waiting)
                yield from (len(piece.present) or piece.all().num_rows for piece in gathering.pieces)
        case JoinNode():
            yield from (len(node._waiting), *node._asked, node._held_up._wait_for, node._held_up._waited_for)


def _keyed(rows: Bag, names: list[str], columns: tuple[str, ...], *, nulls: bool = True) -> dict[Row, Bag]:
    places = [names.index(name) for name in columns]
    found: dict[Row, Bag] = {}
    for row, weight in rows.items():
        key = tuple(row[place] for place in places)
        if nulls or None not in key:
            found.setdefault(key, Counter())[row] += weight
    return found
