"""A graph in several parts: upqueries between them are lost and doubled, edges are cut, parts die and begin anew."""

from __future__ import annotations

import random
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterator

import pytest

from nebuli.dataflow.errors import DataflowError
from nebuli.dataflow.partial import Base, Edge, PartialGraph, PartialNode, Place, View, planned
from nebuli.dataflow.partial.graph_node import Waiting
from nebuli.dataflow.partial.key_sets import tuples_of
from nebuli.dataflow.partial.traffic import Message, Upquery
from nebuli.dataflow.partial.union_node import UnionNode
from placement.plan import SharderOperator
from tests.nebuli.dataflow.partial.drawn_graphs import COLUMNS, change
from tests.nebuli.dataflow.partial.reference import Bag, Row, contents, from_scratch, plus
from tests.nebuli.dataflow.partial.shapes import SHAPES

CUT = "cut"
"""Where on an edge messages are lacking."""


class Parts:
    """Every node is in one of some parts; what goes between them is on links, the next first."""

    def __init__(self, nodes: list[PartialNode], draw: random.Random, parts: int) -> None:
        self.nodes = nodes
        self.draw = draw
        self.part_of = {node.id: draw.randrange(parts) for node in nodes}
        self.links: defaultdict[Edge, deque[Message | str]] = defaultdict(deque)
        self.asked: list[tuple[Edge, Upquery]] = []
        self.bases: dict[str, Bag] = {node.id: Counter() for node in nodes if isinstance(node, Base)}
        self.views = [node for node in nodes if isinstance(node, View)]
        self.rebuilding: dict[str, list[tuple[Row, int]]] = {}
        self.awaited: set[tuple[str, Row]] = set()
        self.added: list[PartialNode] = []
        self.untold: list[int] = []
        """Parts that have not heard of what was added."""
        self.graphs = {part: self._begun(part) for part in set(self.part_of.values())}

    def _begun(self, part: int) -> PartialGraph:
        graph = PartialGraph(self.nodes, {id_ for id_, here in self.part_of.items() if here == part})
        if self.added and part not in self.untold:
            graph.add(self.added)
        return graph

    def add(self) -> None:
        """A view by any column of any node that others may read, where that is; other parts hear of it later."""
        if self.added:
            return
        plan = next(iter(self.graphs.values())).plan
        above = self.draw.choice([node.id for node in self.nodes if not isinstance(node, SharderOperator)])
        view = View("added", above, (self.draw.choice(plan.schemas[above]).name,))
        wanted = planned([*self.nodes, view], plan.paths)
        if wanted.full.keys() != plan.full.keys():
            return
        self.added, self.views = [view], [*self.views, view]
        self.untold = [part for part in self.graphs if part != self.part_of[above]]
        self.part_of[view.id] = self.part_of[above]
        self.graphs[self.part_of[above]].add(self.added, {view.id})

    def tell(self) -> None:
        """One more part hears of what was added."""
        if self.untold:
            self.graphs[self.untold.pop()].add(self.added)

    def graph(self, node: str) -> PartialGraph:
        return self.graphs[self.part_of[node]]

    def write(self, base: str, rows: list[tuple[Row, int]]) -> None:
        batch = change(rows)
        self.bases[base] = plus(self.bases[base], contents(batch))
        if base in self.rebuilding:  # the source gives it behind what was there before
            self.rebuilding[base] += rows
        else:
            self.graph(base).write(base, batch)

    def read(self, view: str, keys: list[Row]) -> None:
        reading = self.graph(view).read(view, keys)
        self.awaited |= {(view, key) for key in tuples_of(reading.missing)}

    def move(self) -> None:
        """One move of one part, which then gives to links what is to leave."""
        graph = self.draw.choice([*self.graphs.values()])
        if moves := graph.moves():
            self._filled(graph.step(self.draw.choice(moves)))
        self._take(graph)

    def _filled(self, filled: list) -> None:
        for each in filled:
            self.awaited -= {(each.view, key) for key in tuples_of(each.keys)}

    def _take(self, graph: PartialGraph) -> None:
        for edge, message in graph.leaving():
            if isinstance(message, Upquery):
                self.asked.append((edge, message))
            else:
                self.links[edge].append(message)

    def deliver(self) -> None:
        """The next message of one link."""
        if full := [edge for edge, link in self.links.items() if link]:
            self._deliver(self.draw.choice(full))

    def _deliver(self, edge: Edge) -> None:
        message = self.links[edge].popleft()
        if isinstance(message, str):
            self.graph(edge.consumer).cut(edge)
        else:
            self.graph(edge.consumer).arrives(edge, message)

    def deliver_upquery(self, lost: float, doubled: float) -> None:
        """Any upquery, however late."""
        if not self.asked:
            return
        edge, upquery = self.asked.pop(self.draw.randrange(len(self.asked)))
        if self.draw.random() < lost or upquery.path >= len(self.graph(edge.producer).paths):
            return
        self.graph(edge.producer).arrives(edge, upquery)
        if self.draw.random() < doubled:
            self.asked.append((edge, upquery))

    def cut(self) -> None:
        """One link loses what is on it."""
        if self.links:
            self._cut(self.draw.choice([*self.links]))

    def _cut(self, edge: Edge) -> None:
        link = self.links[edge]
        for _ in range(self.draw.randrange(len(link) + 1)):
            link.pop()
        link.append(CUT)

    def kill(self, part: int) -> None:
        """A part dies, with all that it knows, and begins anew; of what is on the way to it some is lost."""
        graph = self.graphs[part] = self._begun(part)
        for edge in graph.plan.edges:
            if graph.is_here(edge.producer) and not graph.is_here(edge.consumer):
                self.links[edge].append(CUT)
            elif graph.is_here(edge.consumer):
                for _ in range(self.draw.randrange(len(self.links[edge]) + 1)):
                    self.links[edge].popleft()
        self.awaited = {(view, key) for view, key in self.awaited if not graph.is_here(view)}
        for base, rows in self.bases.items():
            if graph.is_here(base):
                graph.rebuild(base)
                self.rebuilding[base] = [*rows.items()]

    def rebuild(self, *, whole: bool = False) -> None:
        """Bases get some of the rows that they had."""
        for base, rows in [*self.rebuilding.items()]:
            count = len(rows) if whole else self.draw.randrange(len(rows) + 1)
            if count:
                self.graph(base).write(base, change(rows[:count]))
            self.rebuilding[base] = rows[count:]
            if not self.rebuilding[base]:
                self.graph(base).is_rebuilt(base)
                del self.rebuilding[base]

    def rest(self) -> None:
        """Everything arrives, and what is awaited is asked for until it is there."""
        while self.untold:
            self.tell()
        self.rebuild(whole=True)
        for _ in range(100):
            busy = True
            while busy:
                busy = False
                for graph in self.graphs.values():
                    busy = busy or bool(graph.moves())
                    self._filled(graph.drain())
                    self._take(graph)
                for edge, link in self.links.items():
                    while link:
                        busy = True
                        self._deliver(edge)
                while self.asked:
                    busy = True
                    self.deliver_upquery(0, 0)
            awaiting = [part for part, graph in self.graphs.items() if graph.ask_again()]
            if not awaiting:
                return
        raise AssertionError("something is awaited for ever")

    def check(self) -> None:
        """All that is present is right."""
        assert self.awaited == set()
        for graph in self.graphs.values():
            right = from_scratch(graph.plan, self.bases)
            for place, kept in graph.partial.items():
                if place.port is not None:
                    continue
                names = [column.name for column in graph.plan.schemas[place.node]]
                by_key = _keyed(right[place.node], names, place)
                there, found = tuples_of(kept.present.all()[0]), _keyed(contents(kept.all()), names, place)
                assert set(found) <= set(there)
                for key in there:
                    assert found.get(key, Counter()) == by_key.get(key, Counter()), f"{place} has {key} wrong"
        for view in self.views:
            graph = self.graph(view.id)
            names = [column.name for column in graph.plan.schemas[view.id]]
            right = from_scratch(graph.plan, self.bases)[view.id]
            keys = [*_keyed(right, names, Place(view.id, view.key))]
            self.read(view.id, keys)
            self.rest()
            reading = graph.read(view.id, keys)
            assert reading.missing.num_rows == 0
            assert contents(reading.rows) == right


def _cut_nothing(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(PartialGraph, "cut", lambda graph, edge: None)


def _ask_once(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(PartialGraph, "ask_again", lambda graph: False)


def _take_answers_that_nobody_waits_for(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Waiting, "of", lambda waiting, keys: keys)


def _have_a_union_forget_pieces_alone(patch: pytest.MonkeyPatch) -> None:
    def forget_all(node: UnionNode, port: int, place: Place) -> Iterator[object]:
        return node.forget(port, place, node._gatherings[place].pieces[port].present.all()[0])

    patch.setattr(UnionNode, "forget_all", forget_all)


@pytest.mark.long
@pytest.mark.parametrize(
    "take_out",
    [_cut_nothing, _ask_once, _take_answers_that_nobody_waits_for, _have_a_union_forget_pieces_alone],
)
def test_without_a_safeguard_of_parts_a_run_is_wrong(take_out: Callable[[pytest.MonkeyPatch], None]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        take_out(patch)
        with pytest.raises((AssertionError, DataflowError)):
            _run_all(40)


def _run_all(seeds: int) -> None:
    for seed in range(seeds):
        for nodes in SHAPES.values():
            run(nodes, seed)


def test_a_base_answers_once_it_is_rebuilt() -> None:
    """What is read before waits; nobody is told of a half."""
    nodes: list[PartialNode] = [Base("s", COLUMNS), View("by_a", "s", ("a",))]
    graph = PartialGraph(nodes)
    graph.rebuild("s")
    graph.write("s", change([((1, 1, 1), 1)]))
    assert graph.read("by_a", [(1,)]).missing.num_rows == 1
    assert graph.drain() == []
    graph.write("s", change([((1, 2, 2), 1)]))
    assert graph.drain() == []
    graph.is_rebuilt("s")
    (filled,) = graph.drain()
    assert contents(filled.rows) == {(1, 1, 1): 1, (1, 2, 2): 1}
    assert sum(graph.sent.values()) == 2  # the upquery and its response: no row that nobody could use


def _keyed(rows: Bag, names: list[str], place: Place) -> dict[Row, Bag]:
    found: defaultdict[Row, Bag] = defaultdict(Counter)
    for row, weight in rows.items():
        found[tuple(row[names.index(name)] for name in place.columns)][row] += weight
    return found


def run(nodes: list[PartialNode], seed: int, actions: int = 150) -> Parts:
    """Everything that can happen, at random, and at the end all is right."""
    draw = random.Random(seed)
    parts = Parts(nodes, draw, draw.randrange(2, 5))
    faults: list[Callable[[], None]] = [
        parts.cut,
        lambda: parts.kill(draw.choice([*parts.graphs])),
        parts.rebuild,
        parts.rebuild,
    ]
    for _ in range(actions):
        match draw.choices(["write", "read", "evict", "move", "link", "ask", "again", "fault", "rest", "add", "tell"],
                           [3, 3, 0.5, 12, 10, 5, 0.5, 0.8, 0.3, 0.3, 0.3])[0]:  # fmt: skip
            case "write":
                base = draw.choice(sorted(parts.bases))
                there = sorted(parts.bases[base])
                rows = [(tuple(draw.randrange(3) for _ in range(3)), 1) for _ in range(draw.randrange(3))]
                if there and draw.random() < 0.6:
                    rows.append((draw.choice(there), -1))
                parts.write(base, rows)
            case "read":
                view = draw.choice(parts.views)
                parts.read(view.id, [tuple(draw.randrange(3) for _ in view.key)])
            case "evict":
                graph = draw.choice([*parts.graphs.values()])
                there = [(p, rows.present.all()[0]) for p, rows in graph.partial.items() if len(rows.present)]
                if there:
                    place, keys = draw.choice(there)
                    graph.evict(place, keys.slice(draw.randrange(keys.num_rows), 1))
            case "move":
                parts.move()
            case "link":
                parts.deliver()
            case "ask":
                parts.deliver_upquery(lost=0.2, doubled=0.2)
            case "again":
                draw.choice([*parts.graphs.values()]).ask_again()
            case "fault":
                draw.choice(faults)()
            case "add":
                parts.add()
            case "tell":
                parts.tell()
            case "rest":
                parts.rest()
                parts.check()
    parts.rest()
    parts.check()
    return parts


@pytest.mark.parametrize("shape", SHAPES)
def test_parts_lose_upqueries_and_connections_and_die_and_all_that_is_present_is_right(shape: str) -> None:
    """PS-INV-1, PS-INV-3, PS-AFT-1: what is lost is missing, never wrong, and what is awaited comes.

    A view is added meanwhile, of which some parts hear late.
    """
    for seed in range(12):
        run(SHAPES[shape], seed)
