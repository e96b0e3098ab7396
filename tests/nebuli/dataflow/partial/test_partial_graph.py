"""Whatever is computed, written, read and evicted, and whatever moves first: keys are missing, or right."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from nebuli.dataflow.errors import DataflowError
from nebuli.dataflow.partial import Build, base_index
from tests.nebuli.dataflow.partial.drawn_graphs import ROWS, VALUES, change, drawn_view, graphs, grow
from tests.nebuli.dataflow.partial.reference import contents
from tests.nebuli.dataflow.partial.shadowed import Shadowed
from tests.nebuli.dataflow.partial.shapes import SHAPES
from tests.nebuli.dataflow.partial.sharded_shapes import sharded_chains


class Graphs(RuleBasedStateMachine):
    """All rows are small, so that keys meet."""

    graph: Shadowed
    patch: pytest.MonkeyPatch

    @initialize(nodes=graphs() | sharded_chains() | st.sampled_from(list(SHAPES.values())), data=st.data())
    def begin(self, nodes: list, data: st.DataObject) -> None:
        self.patch = pytest.MonkeyPatch()
        self.patch.setattr(base_index, "_PIECE_ROWS", data.draw(st.sampled_from([1, 2, 1000])))
        self.graph = Shadowed(nodes)
        for base in self.graph.bases:
            rows = data.draw(st.lists(ROWS, max_size=4))
            self.graph.write(base, change([(row, 1) for row in rows]))
        if data.draw(st.booleans()):
            self.graph.drain()

    @rule(data=st.data(), rows=st.lists(ROWS, min_size=1, max_size=3), taken=st.booleans())
    def write(self, data: st.DataObject, rows: list, taken: bool) -> None:
        """Rows come, and one that is there is taken back: its successor, maybe."""
        base = data.draw(st.sampled_from(sorted(self.graph.bases)))
        there = sorted(self.graph.bases[base], key=str)
        changes = [(row, 1) for row in rows]
        if taken and there:
            changes.append((data.draw(st.sampled_from(there)), -1))
        self.graph.write(base, change(changes))

    @rule(data=st.data())
    def take_back(self, data: st.DataObject) -> None:
        base = data.draw(st.sampled_from(sorted(self.graph.bases)))
        if there := sorted(self.graph.bases[base], key=str):
            self.graph.write(base, change([(data.draw(st.sampled_from(there)), -1)]))

    def _key(self, data: st.DataObject, width: int) -> tuple:
        return tuple(data.draw(st.tuples(*[VALUES] * width)))

    @rule(data=st.data())
    def read(self, data: st.DataObject) -> None:
        views = [node for node in self.graph.plan.nodes.values() if hasattr(node, "key")]
        view = data.draw(st.sampled_from(views))
        keys = [self._key(data, len(view.key)) for _ in range(data.draw(st.integers(1, 3)))]
        self.graph.read(view.id, keys)

    @precondition(lambda self: self.graph.partial)
    @rule(data=st.data())
    def evict(self, data: st.DataObject) -> None:
        """Mostly keys that are there, of any place."""
        there = {place: rows.present.all()[0] for place, rows in self.graph.partial.items()}
        filled = [place for place, keys in there.items() if keys.num_rows]
        if filled:
            place = data.draw(st.sampled_from(filled))
            self.graph.evict(
                place, there[place].slice(data.draw(st.integers(0, there[place].num_rows - 1)), 1)
            )

    @rule(data=st.data(), moves=st.integers(1, 8))
    def move(self, data: st.DataObject, moves: int) -> None:
        for _ in range(moves):
            if possible := self.graph.moves():
                self.graph.step(possible[data.draw(st.integers(0, len(possible) - 1))])
                self.graph.scan()

    @rule()
    def deliver(self) -> None:
        """All messages arrive, and what is owed to indices is as it was: upqueries are answered by scans."""
        builds = [move for move in self.graph.moves() if isinstance(move, Build)]
        self.graph.deliver()
        assert self.graph.moves() == builds

    @rule()
    def rest(self) -> None:
        self.graph.drain()
        self.graph.check_at_rest()

    @rule(data=st.data(), grown=st.booleans())
    def add(self, data: st.DataObject, grown: bool) -> None:
        """A view, or an operator and a view, join what runs; some have to wait, and some cannot."""
        nodes = list(self.graph.plan.nodes.values())
        if len(nodes) > 40:
            return
        before = len(nodes)
        if grown:
            grow(data.draw, nodes)
        nodes.append(drawn_view(data.draw, nodes, len(nodes)))
        try:
            self.graph.add(nodes[before:])
        except DataflowError as error:
            assert "need the full state of" in str(error) or "drain the graph" in str(error)  # noqa: PT017

    @invariant()
    def holds(self) -> None:
        if hasattr(self, "graph"):
            self.graph.scan()

    def teardown(self) -> None:
        """At rest all is right, and so is what is read of any key."""
        if not hasattr(self, "graph"):
            return
        self.patch.undo()
        self.graph.drain()
        self.graph.check_at_rest()
        for view in [node for node in self.graph.plan.nodes.values() if hasattr(node, "key")]:
            ideal = self.graph._by_key(self.graph.nodes[view.id].place, self.graph.outputs[view.id], view.key)
            keys = [*ideal, tuple([1] * len(view.key)), tuple([None] * len(view.key))]
            self.graph.read(view.id, keys)
            self.graph.drain()
            rows = self.graph.read(view.id, keys)
            assert rows.missing.num_rows == 0
            assert contents(rows.rows) == self.graph.outputs[view.id]
        self.graph.check_at_rest()


class ShardedGraphs(Graphs):
    """The same, of operators that are in shards, divided now alike and now anew."""

    @initialize(nodes=sharded_chains(), data=st.data())
    def begin(self, nodes: list, data: st.DataObject) -> None:
        super().begin(nodes, data)


Graphs.TestCase.settings = settings(
    max_examples=60,
    stateful_step_count=25,
    deadline=None,
    report_multiple_bugs=False,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much],
)


ShardedGraphs.TestCase.settings = settings(Graphs.TestCase.settings, max_examples=40)


@pytest.mark.long
class TestGraphs(Graphs.TestCase):
    """PS-INV-1, PS-INV-2, PS-INV-3, PS-INV-4, PS-MA-5, PS-AFT-1: after every move all states and queues are scanned."""


@pytest.mark.long
class TestShardedGraphs(ShardedGraphs.TestCase):
    """PS-EX-1, PS-EX-2, PS-INV-1, PS-INV-2, PS-INV-3, PS-INV-4: as above, with narrow upqueries and reshuffles."""
