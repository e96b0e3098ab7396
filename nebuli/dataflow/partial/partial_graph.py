"""A graph of nodes with the queues between them: what is written, read and evicted, and one move after the other."""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa

from nebuli.dataflow.aggregates.aggregate import Aggregate
from nebuli.dataflow.errors import DataflowError, StateTooLarge
from nebuli.dataflow.joins.outer_join import join_of
from nebuli.dataflow.operators import PassThrough
from nebuli.dataflow.partial.base_and_view import BaseNode, ViewNode
from nebuli.dataflow.partial.graph_node import GraphNode, Passing
from nebuli.dataflow.partial.grouping_node import GroupingNode
from nebuli.dataflow.partial.join_node import JoinNode
from nebuli.dataflow.partial.key_sets import batch_of, distinct, from_tuples
from nebuli.dataflow.partial.shard_nodes import MergerNode, SharderNode
from nebuli.dataflow.partial.traffic import Ask, Data, Eviction, Filled, Send, Upquery
from nebuli.dataflow.partial.union_node import UnionNode
from nebuli.dataflow.placed_operators import running
from nebuli.dataflow.types import arrow_schema
from nebuli.dataflow.zset import empty, weighted
from nebuli.limits import DEFAULT_MAX_STATE_BYTES
from placement.checking.schemas import DividedOperator, joined_names
from placement.graph import carried
from placement.partial.places import Edge, Paths, Place
from placement.partial.provenance import children_of, edges_into, grouped_by, in_words, planned
from placement.plan import (
    AggregateOperator,
    DistinctOperator,
    JoinOperator,
    MergerOperator,
    SharderOperator,
    UnionOperator,
)
from placement.view_nodes import Base, Output, Stream, View
from topology.consistency import listed

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
    from typing import Any

    from nebuli.dataflow.operators import Operator
    from nebuli.dataflow.partial.keyed_rows import KeyedRows
    from nebuli.dataflow.partial.traffic import Instruction, Message
    from placement.partial.provenance import PartialPlan
    from placement.plan import PartialNode


@dataclass(frozen=True, slots=True)
class Down:
    """The consumer of an edge takes the next message on it."""

    edge: Edge


@dataclass(frozen=True, slots=True)
class Up:
    """The producer of an edge takes the next upquery on it."""

    edge: Edge


@dataclass(frozen=True, slots=True)
class Build:
    """A base takes a bounded part of its rows into an index: until all are there, upqueries are answered by scans."""

    base: str


Move = Down | Up | Build


@dataclass(frozen=True, slots=True)
class Reading:
    """The result of a read of a view: ``rows`` with weights, and the keys that are ``missing``.

    Those are requested, and a ``Filled`` will have their rows.
    """

    rows: pa.RecordBatch
    missing: pa.RecordBatch


class PartialGraph:
    """Nodes, given with inputs before their readers, and what is on its way between them.

    It is synchronous, and reads no clock. ``write``, ``read`` and ``evict`` only put messages into queues. ``moves``
    are what can be done next, each on its own and in any order; ``step`` makes one, ``drain`` all that there are and
    come to be. Once no message is left to move, each key of each place is missing, or has just the rows that all that
    was written makes. ``deliver`` makes the moves of messages alone, for who has to answer: indices can be built
    (``Build``) when there is nothing else to do.

    A graph may be in several parts, each with some of its nodes: those of ``here``. Each part is given all nodes, and
    so knows the same paths by the same numbers. Messages for an edge to another part are in ``leaving``, and those from
    there are passed to ``arrives``, in order. Upqueries may be lost between parts, or come twice: ``ask_again`` repeats
    what is still awaited. Where messages were lost, or another part was restarted, the edge is ``cut``.

    Rows that are retracted from a base have to be there. After a ``DataflowError`` of an operator the graph is of no
    use; ``StateTooLarge`` is one, of a base, or of what is full, that holds more than its operator's own
    ``max_state_bytes``, or else the graph's. A ``Budget`` bounds the partial state.
    """

    def __init__(
        self,
        nodes: Iterable[PartialNode],
        here: Iterable[str] | None = None,
        *,
        max_state_bytes: int = DEFAULT_MAX_STATE_BYTES,
    ) -> None:
        self._here = None if here is None else set(here)
        self._max_state_bytes = max_state_bytes
        self.plan: PartialPlan = planned(())
        self.paths = Paths()
        self.nodes: dict[str, GraphNode] = {}
        self.sent: Counter[tuple[Edge, str]] = Counter()
        """How many messages and upqueries each edge was given, by the name of their kind."""
        self._down: defaultdict[Edge, deque[Message]] = defaultdict(deque)
        self._up: defaultdict[Edge, deque[Upquery]] = defaultdict(deque)
        self._rebuilt: set[str] = set()
        self._to_full: set[Edge] = set()
        self.add(nodes)

    def add(self, nodes: Iterable[PartialNode], here: Collection[str] = ()) -> None:
        """Have more nodes, that read those that are there or each other; in a part, ``here`` are those that it has.

        Partial ones are there at once, with all keys missing. Full ones get the rows so far, as messages that are yet
        to be moved; for that no other message may be in transit. ``DataflowError``: they cannot be added, as more would
        have to be full, or one of them cannot take the rows so far; the graph is as before.
        """
        before, nodes = self.plan, list(nodes)
        plan = planned([*before.nodes.values(), *nodes], before.paths)
        for place, why in plan.full.items():
            groups = self.nodes.get(place.node)
            if place in before.partial or (isinstance(groups, GroupingNode) and not groups.full):
                raise DataflowError(
                    f"the added operators need the full state of {in_words(place, plan.nodes)}, but this state "
                    f"is partial: {why}"
                )
        fresh = [id_ for id_ in plan.nodes if id_ not in before.nodes]
        mine = fresh if self._here is None else here
        feeding = _edges_into(mine, fresh, plan) if before.nodes else []
        if feeding and any(self._down.values()):
            raise DataflowError(
                f"{', '.join(fresh)} cannot be added before rows in transit have arrived: drain the graph"
            )
        fed = [(edge, self._given_on(edge)) for edge in feeding]
        if fed:
            self._try(nodes, {edge.producer: rows for edge, rows in fed}, plan)
        self.plan = plan
        self.paths.add(path for path in plan.paths if path not in before.paths)
        self._to_full = plan.edges_to_full
        if self._here is not None:
            self._here.update(here)
        self._make(fresh)
        self._do(Send(edge, Data(rows)) for edge, rows in fed if rows.num_rows)

    def _make(self, fresh: Sequence[str]) -> None:
        """Those of the nodes that are here, and what others need for them."""
        made = [id_ for id_ in fresh if self.is_here(id_)]
        self.nodes.update((id_, self._made(self.plan.nodes[id_])) for id_ in made)
        for edge in self.plan.edges:
            if edge.consumer in fresh and self.is_here(edge.producer):
                self.nodes[edge.producer].outputs.append(edge)
        for id_ in self.nodes:
            self._open_places(id_)
        for node in map(self.nodes.__getitem__, made):
            if isinstance(node, GroupingNode):
                self._do(node.everywhere(node.begin()))

    def write(self, base: str, batch: pa.RecordBatch) -> None:
        """Add rows to a base or a stream, or take them back: a Z-set."""
        node = self.nodes.get(base)
        if node is None or not isinstance(self.plan.nodes[base], Base | Stream):
            bases = [id_ for id_ in self.nodes if isinstance(self.plan.nodes[id_], Base | Stream)]
            raise DataflowError(f"{base!r} is not a base; expected {listed(bases)}")
        if not batch.schema.equals(node.schema):
            raise DataflowError(f"a batch has the columns {batch.schema}; expected {node.schema}", base)
        self._do(self._heard(base, node.change(0, batch)))
        self._check_state(base)

    def rebuild(self, base: str) -> None:
        """Have a base answer no upquery until it ``is_rebuilt``: some of its earlier rows are missing.

        Call it before any are written. Until then all its keys are missing below, so its rows go only to full nodes.
        """
        self._rebuilt.add(base)

    def is_rebuilt(self, base: str) -> None:
        """Have a base answer from now on."""
        self._rebuilt.discard(base)

    def read(self, view: str, keys: Iterable[tuple[Any, ...]]) -> Reading:
        """Return the rows of keys in a view."""
        return self.read_batch(view, distinct(from_tuples(keys, self.view(view).rows.types)))

    def read_batch(self, view: str, keys: pa.RecordBatch) -> Reading:
        """The same, of keys that are each given once, as ``key_sets.batch_of`` gives them."""
        rows, missing, instructions = self.view(view).read(keys)
        self._do(instructions)
        return Reading(rows, missing)

    def view(self, id_: str) -> ViewNode:
        """A view that is here. Raises DataflowError if it is not one."""
        node = self.nodes.get(id_)
        if not isinstance(node, ViewNode):
            views = [id_ for id_, each in self.nodes.items() if isinstance(each, ViewNode)]
            raise DataflowError(f"{id_!r} is not a view; expected {listed(views)}")
        return node

    def upqueries_into(self, node: str) -> int:
        """How many upqueries a node has sent to its inputs. From any thread."""
        return sum(
            count
            for (edge, kind), count in list(self.sent.items())
            if edge.consumer == node and kind == "Upquery"
        )

    def evict(self, place: Place, keys: pa.RecordBatch) -> None:
        """Have keys be missing at a place, given in the order of its columns, and all rows derived from them below."""
        if place not in self.partial:
            raise DataflowError(
                f"{place} is not partial; expected {listed([str(each) for each in self.partial])}"
            )
        self._do(self.nodes[place.node].forget(place.port or 0, place, distinct(batch_of(keys.columns))))

    @property
    def partial(self) -> dict[Place, KeyedRows]:
        """The places that keys can be missing at, and what they have."""
        kept = [(place, rows) for node in self.nodes.values() for place, rows in node.kept.items()]
        return {place: rows for place, rows in kept if not rows.full}

    @property
    def partial_bytes(self) -> int:
        """The memory of what evictions can shrink, and of what is kept with it: not that of bases and full places."""
        return sum(node.partial_bytes for node in self.nodes.values())

    def moves(self) -> list[Move]:
        """Return the possible moves; indices are built last, as nothing waits for that."""
        builds = [
            Build(id_)
            for id_, node in self.nodes.items()
            if isinstance(node, BaseNode) and not node.is_settled
        ]
        ups = [Up(edge) for edge, queue in self._up.items() if queue and self._can_answer(edge.producer)]
        downs = [Down(edge) for edge, queue in self._down.items() if queue and self.is_here(edge.consumer)]
        return [*ups, *downs, *builds]

    def step(self, move: Move) -> list[Filled]:
        """Make a move; gives what views were waiting for."""
        if isinstance(move, Build):
            base = self.nodes[move.base]
            assert isinstance(base, BaseNode), "only bases have indices"
            base.work()
            return []
        edge = move.edge
        if isinstance(move, Up):
            return self._do(self.nodes[edge.producer].asked(self._up[edge].popleft()))
        try:
            filled = self._do(self.nodes[edge.consumer].receive(edge.port, self._down[edge].popleft()))
        except DataflowError as error:
            raise error.at(edge.consumer) from None
        self._check_state(edge.consumer)
        return filled

    def _check_state(self, id_: str) -> None:
        """Raise StateTooLarge if what a node has for good is more than it may hold."""
        node, held = self.plan.nodes[id_], self.nodes[id_].full_bytes
        own = node.max_state_bytes if isinstance(node, DividedOperator) else None
        bound = self._max_state_bytes if own is None else own
        if held > bound:
            raise StateTooLarge(carried(id_), held, bound, _to_keep_less(node))

    def drain(self) -> list[Filled]:
        """Move until nothing is left; gives what views were waiting for."""
        filled = self.deliver()
        while moves := self.moves():
            filled += self.step(moves[0])
        return filled

    def deliver(self) -> list[Filled]:
        """Move until no message is left; gives what views were waiting for."""
        filled: list[Filled] = []
        while (move := self._next_message()) is not None:
            filled += self.step(move)
        return filled

    def _next_message(self) -> Down | Up | None:
        """The one that is the furthest on its way, if there is any."""
        for edge, messages in reversed(self._down.items()):
            if messages and self.is_here(edge.consumer):
                return Down(edge)
        for edge, upqueries in reversed(self._up.items()):
            if upqueries and self._can_answer(edge.producer):
                return Up(edge)
        return None

    @property
    def bases_here(self) -> list[str]:
        """The bases that are here."""
        return [id_ for id_, node in self.nodes.items() if isinstance(node, BaseNode)]

    def leads_to_full(self, edge: Edge) -> bool:
        """True if a node below an edge needs all of its messages."""
        return edge in self._to_full

    def is_here(self, node: str) -> bool:
        """True if a node is of this part."""
        return self._here is None or node in self._here

    def leaving(self) -> Iterator[tuple[Edge, Message | Upquery]]:
        """Return the messages for other parts, each once: those of an edge in order."""
        for edge, messages in self._down.items():
            while messages and not self.is_here(edge.consumer):
                yield edge, messages.popleft()
        for edge, upqueries in self._up.items():
            while upqueries and not self.is_here(edge.producer):
                yield edge, upqueries.popleft()

    def arrives(self, edge: Edge, message: Message | Upquery) -> None:
        """Another part has sent this on an edge of this one."""
        queue: deque[Any] = self._up[edge] if isinstance(message, Upquery) else self._down[edge]
        queue.append(message)

    def cut(self, edge: Edge) -> None:
        """Have all be missing that was filled through an edge from another part: from here on it may lack changes."""
        for path in self.plan.paths:
            if edge in path.edges:
                self._down[edge].append(Eviction(path.number, None))

    def ask_again(self) -> bool:
        """Repeat what was asked for at other parts and has not come; whether there is any."""
        found = False
        for node in self.nodes.values():
            for upquery in node.awaited():
                path = self.paths[upquery.path]
                if not all(self.is_here(edge.producer) for edge in path.edges):
                    self._do([Ask(path.edges[-1], upquery)])
                    found = True
        return found

    def on_its_way(self, edge: Edge) -> Sequence[Message]:
        """The messages on an edge, the next one first."""
        return tuple(self._down.get(edge, ()))

    def _do(self, instructions: Iterable[Instruction]) -> list[Filled]:
        filled = []
        for instruction in instructions:
            match instruction:
                case Send(edge, message):
                    self.sent[edge, type(message).__name__] += 1
                    self._down[edge].append(message)
                case Ask(edge, upquery):
                    self.sent[edge, type(upquery).__name__] += 1
                    self._up[edge].append(upquery)
                case Filled():
                    filled.append(instruction)
        return filled

    def _can_answer(self, node: str) -> bool:
        return self.is_here(node) and node not in self._rebuilt

    def _heard(self, base: str, instructions: Iterable[Instruction]) -> Iterable[Instruction]:
        """Handle a base's answer to a read."""
        if base not in self._rebuilt:
            return instructions
        return [each for each in instructions if isinstance(each, Send) and each.edge in self._to_full]

    def _try(
        self, nodes: Sequence[PartialNode], given: Mapping[str, pa.RecordBatch], plan: PartialPlan
    ) -> None:
        """Have a graph of its own take the rows that nodes are given. Raises DataflowError where they cannot."""
        own = {node.id for node in nodes}
        above = dict.fromkeys(child for node in nodes for child in children_of(node) if child not in own)
        streams = [Stream(id_, plan.schemas[id_]) for id_ in above]
        trial = PartialGraph([*streams, *nodes], max_state_bytes=self._max_state_bytes)
        for id_, rows in given.items():
            trial.write(id_, rows)
        trial.deliver()

    def _made(self, node: PartialNode) -> GraphNode:
        plan, paths = self.plan, self.paths
        columns = plan.schemas[node.id]
        inputs = [plan.schemas[child] for child in children_of(node)]
        schema = weighted(arrow_schema(columns))
        match node:
            case Base():
                return BaseNode(node.id, schema, paths)
            case View():
                place = Place(node.id, node.key)
                return ViewNode(node.id, schema, paths, place, full=place in plan.full)
            case UnionOperator() | SharderOperator() | MergerOperator():
                return _passing_on(node, schema, paths)
            case JoinOperator():
                full = [Place(node.id, node.on, port) in plan.full for port, _ in enumerate(inputs)]
                join = join_of(node, inputs, columns)
                kept = [
                    _renamed(each, names)
                    for each, names in zip(inputs, joined_names(node.on, inputs, columns), strict=True)
                ]
                return JoinNode(node.id, schema, paths, join=join, on=node.on, inputs=kept, full=full)
            case AggregateOperator() | DistinctOperator():
                by = grouped_by(node, columns)
                aggregates = node.aggregates if isinstance(node, AggregateOperator) else {}
                is_full = any(place in plan.full for place in plan.places(node.id))
                return GroupingNode(
                    node.id,
                    schema,
                    paths,
                    lambda: Aggregate(by, aggregates, inputs[0], columns),
                    full=is_full,
                )
        if isinstance(node, Stream | Output):
            operator: Operator = PassThrough()
        else:
            operator = running(node, inputs, columns, None)
        return Passing(node.id, schema, paths, operator)

    def _open_places(self, id_: str) -> None:
        node = self.nodes[id_]
        for place in self.plan.places(id_):
            if isinstance(node, BaseNode):
                node.index(place.columns)
            elif isinstance(node, GroupingNode | UnionNode):
                node.add(place)

    def _given_on(self, edge: Edge) -> pa.RecordBatch:
        """Return all rows sent on an edge, by ``_contents``."""
        rows, producer = self._contents(edge.producer), self.nodes[edge.producer]
        return producer.only_of(edge, rows) if isinstance(producer, SharderNode) else rows

    def _contents(self, id_: str) -> pa.RecordBatch:
        """Return all rows that a node has emitted, if they follow from its state and no message is in transit."""
        node = self.nodes[id_]
        match node:
            case BaseNode() | GroupingNode():
                return node.rows
            case JoinNode():
                return node.contents()
        if isinstance(self.plan.nodes[id_], Stream):
            raise DataflowError(
                f"the rows of {id_} were not kept: add the operators that read it before its first rows arrive"
            )
        above = [self._given_on(edge) for edge in edges_into(self.plan.nodes[id_])]
        if isinstance(node, Passing):
            return pa.concat_batches([empty(node.schema), *node.made_of(above[0])])
        return pa.concat_batches(above)


def _to_keep_less(node: PartialNode) -> str:
    """Return the remedies for a base, or a full node, that holds too much."""
    match node:
        case Base():
            return (
                "raise --max-state-bytes of its worker; or keep less: read fewer of its columns, or look up its "
                "rows by fewer sets of columns, because each set has an index ('nebuli place' shows the indices)"
            )
        case JoinOperator() | AggregateOperator() | DistinctOperator():
            raised = "max_state_bytes of the operator, or of its worker (--max-state-bytes)"
        case _:
            raised = "--max-state-bytes of its worker"
    return (
        f"raise {raised}; or keep less: drop rows and columns before this operator, or make its state partial "
        f"('nebuli place' explains why it is full)"
    )


def _passing_on(
    node: UnionOperator | SharderOperator | MergerOperator, schema: pa.Schema, paths: Paths
) -> GraphNode:
    """Return the node that forwards rows as they are, to or from several."""
    match node:
        case SharderOperator():
            return SharderNode(node.id, schema, paths, node.by, node.shards)
        case MergerOperator():
            return MergerNode(node.id, schema, paths, len(node.inputs), node.by)
    return UnionNode(node.id, schema, paths, len(node.inputs))


def _renamed(columns: Any, names: dict[str, str]) -> pa.Schema:
    schema = arrow_schema(columns)
    return weighted(pa.schema([field.with_name(names.get(field.name, field.name)) for field in schema]))


def _edges_into(mine: Collection[str], fresh: Collection[str], plan: PartialPlan) -> list[Edge]:
    """The edges from nodes that are there to fresh ones of this part, where these lead to something full."""
    leading = plan.edges_to_full
    return [
        edge
        for edge in plan.edges
        if edge in leading and edge.consumer in mine and edge.producer not in fresh
    ]
