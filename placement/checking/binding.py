"""A query over a topology: sources and sinks bound to what is attached where, every schema known."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeVar

from placement.checking.event_time import EventTimes
from placement.checking.needed_columns import narrow
from placement.checking.policies import Policies
from placement.checking.repeated_inputs import MAX_OPERATORS, repeated, unrepeatable
from placement.checking.schemas import (
    RESERVED,
    DividedOperator,
    Fault,
    InnerOperator,
    divisible_by,
    output_schema,
)
from placement.errors import (
    InvalidQuery,
    MultipleReaders,
    MultipleSinks,
    RetractingPlan,
    UnknownSink,
    UnknownSource,
)
from placement.graph import bottom_up, roots_of, second_readers, second_roots
from placement.plan import (
    AggregateOperator,
    BoundSink,
    BoundSource,
    Closing,
    FragmentOperator,
    JoinOperator,
    SinkOperator,
    SourceOperator,
    UnionOperator,
    ViewOperator,
    WatermarkOrigin,
    WindowOperator,
)
from placement.stepped_plan import InputOperator, LateOperator, SteppedPlan
from topology import ChannelSource, CollectionSink, CollectionSource, CsvSink
from topology.consistency import did_you_mean, listed
from topology.mistakes import in_file_order

if TYPE_CHECKING:
    from collections.abc import Container, Iterable, Iterator, Mapping, Sequence

    from placement.plan import Query, QueryOperator, Sharding
    from topology import LogicalSource, Mistake, PhysicalSource, Schema, Sink, SinkConnector, Topology
    from topology.mistakes import Location


T = TypeVar("T")
_BY_WINDOWS = {
    "source": "a collection that is not followed (follow: false)",
    "aggregate": "an aggregate by the columns of a window",
    "join": "a join on the columns of a window (an input with unmatched rows in the result needs that window)",
}
"""Properties that operators with retractions would need in order to have none."""


@dataclass(frozen=True, slots=True)
class BoundPlan:
    """A checked query, ready to be placed.

    ``operators`` holds every operator after its inputs; the root is the last. A logical source with several
    physical ones has become the union of its parts. Sources that can read some of their columns have those that are
    needed. ``schemas`` are what operators give out, ``pins`` the nodes that the topology gives to sources and the sink,
    and a view to itself, ``readers`` the operator that reads each one, ``watermarks`` the operators where a watermark
    begins, ``closings`` those that it closes windows of, ``only_growing`` the aggregates whose input retracts no row,
    ``policies`` those of channels, wherever these will run, ``spark_masters`` where Spark runs, by the nodes whose
    engine it is.
    """

    name: str
    operators: dict[str, FragmentOperator]
    schemas: Mapping[str, Schema]
    pins: Mapping[str, str]
    readers: Mapping[str, str]
    watermarks: Mapping[str, WatermarkOrigin]
    closings: Mapping[str, Closing]
    only_growing: frozenset[str] = frozenset()
    policies: Policies = field(default_factory=Policies)
    spark_masters: Mapping[str, str] = field(default_factory=dict)

    @property
    def root(self) -> str:
        """The sink, or the view that nothing reads."""
        return next(reversed(self.operators))


def check(query: Query, topology: Topology) -> BoundPlan:
    """Bind a query to a topology and check every operator's columns and types.

    Raises ``InvalidQuery``, or the kind of it that fits the first mistake, with every mistake: ``MultipleSinks`` and
    ``MultipleReaders`` where it is not a tree below one sink, or one view. An operator whose input is wrong is
    not judged.
    """
    return _FreeBinder(query, topology).plan()


def check_stepped(query: Query, topology: Topology) -> SteppedPlan:
    """As ``check``, for a query that runs in steps: with any number of sinks, and of readers of an operator.

    A logical source is an input whether or not something is attached anywhere; what is may be asked for some of its
    columns.
    """
    return _SteppedBinder(query, topology).plan()


class _Binder(ABC):
    """The common part of all ways to run a query."""

    def __init__(self, query: Query, topology: Topology) -> None:
        self._query = query
        self._policies = Policies.of(query, topology)
        self._ids = {operator.id: operator for operator in query.operators}
        self._places = {operator.id: index for index, operator in enumerate(query.operators)}
        self._logical = {source.name: source for source in topology.logical}
        self._physical: dict[str, list[tuple[str, PhysicalSource]]] = {name: [] for name in self._logical}
        self._sinks: dict[str, tuple[str, Sink]] = {}
        self._nodes = [node.address for node in topology.nodes]
        for node in topology.nodes:
            for physical in node.physical:
                self._physical[physical.logical].append((node.address, physical))
            self._sinks.update((sink.name, (node.address, sink)) for sink in node.sinks)
        self._spark_masters = {
            node.address: node.spark_master for node in topology.nodes if node.spark_master is not None
        }
        self._operators: dict[str, FragmentOperator | InputOperator] = {}
        self._schemas: dict[str, Schema] = {}
        self._writers: dict[str, str] = {}
        self._pins: dict[str, str] = {}
        self._mistakes: dict[Mistake, type[InvalidQuery]] = {}
        self._times = EventTimes(self._operators, self._schemas)

    def _bind_all(self, roots: Sequence[str]) -> None:
        for identity in bottom_up({key: operator.children for key, operator in self._ids.items()}, *roots):
            self._bind(self._ids[identity])
        if self._mistakes:
            ordered = in_file_order(list(self._mistakes))
            raise self._mistakes[ordered[0]](ordered)

    def _narrow(self, narrowable: Container[str]) -> None:
        origins, closings = self._times.origins.values(), self._times.closings.values()
        narrow(self._operators, self._schemas, origins, closings, narrowable)

    def _bind(self, operator: QueryOperator) -> None:
        match operator:
            case SourceOperator():
                self._bind_source(operator)
            case SinkOperator():
                self._bind_sink(operator)
            case ViewOperator():
                self._bind_view(operator)
            case WindowOperator():
                self._bind_window(operator)
            case _:
                self._add(operator)

    def _bind_source(self, operator: SourceOperator) -> None:
        name = operator.logical
        source = self._logical.get(name)
        if source is None:
            hint = did_you_mean(name, self._logical)
            message = f"unknown logical source {name!r}{hint}; expected {listed(self._logical)}"
            self._fault(operator, ("logical",), message, UnknownSource)
        elif any(column.name == RESERVED for column in source.columns):
            message = f"{name!r} has a column {RESERVED!r}, which every stream already has"
            self._fault(operator, ("logical",), message)
        else:
            self._add_source(operator, source, self._physical.get(name, []))

    @abstractmethod
    def _add_source(
        self, operator: SourceOperator, source: LogicalSource, attached: list[tuple[str, PhysicalSource]]
    ) -> None:
        """Add a source with what the nodes have of it."""

    @property
    @abstractmethod
    def _endless_by(self) -> list[str]:
        """The views of a query that gives no result because of them."""

    def _add_leaf(self, leaf: BoundSource | InputOperator) -> None:
        self._operators[leaf.id] = leaf
        self._schemas[leaf.id] = leaf.columns
        self._times.add(leaf, [])

    def _bind_sink(self, operator: SinkOperator) -> None:
        if operator.sink not in self._sinks:
            hint = did_you_mean(operator.sink, self._sinks)
            message = f"unknown sink {operator.sink!r}{hint}; expected {listed(self._sinks)}"
            self._fault(operator, ("sink",), message, UnknownSink)
            return
        node, sink = self._sinks[operator.sink]
        taking_back = self._times.retracting(operator.input)
        if sink.mode == "append" and taking_back:
            kinds: dict[str, list[str]] = {}
            for each in taking_back:
                kind = (
                    self._ids[each].type if each in self._ids else "source"
                )  # one of several of its logical source
                kinds.setdefault(kind, []).append(each)
            who = " and ".join(f"{kind} {', '.join(ids)}" for kind, ids in kinds.items())
            message = f"{sink.name!r} at {node} appends, but {who} retracts rows"
            wanted = " or ".join(_BY_WINDOWS[kind] for kind in kinds)
            wanted = f"expected mode final or changes, or {wanted}"
            self._fault(operator, ("sink",), f"{message}; {wanted}", RetractingPlan)
        if sink.mode == "final" and (views := self._endless_by):
            message = (
                f"{sink.name!r} at {node} writes its result when the query ends, but a query with views "
                f"({', '.join(views)}) does not end; expected mode changes or append"
            )
            self._fault(operator, ("sink",), message)
        self._check_types(operator, "sink", sink, f"{sink.name!r} at {node} ({sink.type})")
        writer = self._writers.setdefault(operator.sink, operator.id)
        if writer != operator.id:
            message = f"{sink.name!r} at {node} is already written by sink {writer}; expected a single writer"
            self._fault(operator, ("sink",), message)
        self._pins[operator.id] = node
        bound = BoundSink(
            id=operator.id,
            input=operator.input,
            sink=operator.sink,
            target=sink,
            only_grows=not taking_back,
        )
        self._add(bound)

    def _bind_window(self, operator: WindowOperator) -> None:
        if operator.late is not None:
            self._check_types(operator, "late", _late_sink(operator, operator.late), "late (CSV)")
        self._add(operator)

    def _check_types(
        self, operator: SinkOperator | WindowOperator, key: str, sink: SinkConnector, name: str
    ) -> None:
        for column in self._schemas.get(operator.input, ()):
            if column.type not in sink.types:
                message = f"{name} does not accept {column.type}, the type of {column.name}"
                self._fault(operator, (key,), f"{message}; cast it to {listed(map(str, sorted(sink.types)))}")

    def _bind_view(self, operator: ViewOperator) -> None:
        if operator.node is not None:
            readers = [each.id for each in self._ids.values() if operator.id in each.children]
            if operator.node not in self._nodes:
                hint = did_you_mean(operator.node, self._nodes)
                message = f"unknown node {operator.node!r}{hint}; expected {listed(self._nodes)}"
                self._fault(operator, ("node",), message)
            elif readers:
                message = (
                    f"{readers[0]} reads this view, so the view is placed on a node with room along the "
                    f"path; omit 'node'"
                )
                self._fault(operator, ("node",), message)
            else:
                self._pins[operator.id] = operator.node
        self._add(operator)

    def _add(self, operator: InnerOperator) -> None:
        self._operators[operator.id] = operator
        inputs = [self._schemas.get(child) for child in operator.children]
        known = [schema for schema in inputs if schema is not None]
        if len(known) < len(inputs):
            return
        faults: list[Fault] = []
        schema = output_schema(operator, known, faults)
        if not faults:
            self._schemas[operator.id] = schema
            self._times.add(operator, faults)
        for place, message in faults:
            self._fault(operator, place, message)

    def _fault(
        self,
        operator: QueryOperator | BoundSink,
        field: Location,
        message: str,
        kind: type[InvalidQuery] = InvalidQuery,
    ) -> None:
        path = ("operators", self._places[operator.id], *field)
        self._mistakes[self._query.mistake(path, f"{operator.type} {operator.id}: {message}")] = kind


class _FreeBinder(_Binder):
    """Binds what is one tree; a logical source with several physical ones becomes the union of its parts."""

    def plan(self) -> BoundPlan:
        outlines = self._query.outlines
        roots = [each.id for each in roots_of(outlines)]
        for path, message in second_roots(outlines):
            self._mistakes[self._query.mistake(path, message)] = MultipleSinks
        only_once = None if len(roots) > 1 else unrepeatable(self._ids, self._physical)
        for path, message in second_readers(outlines, only_once):
            self._mistakes[self._query.mistake(path, message)] = MultipleReaders
        if not self._mistakes:
            self._repeat(roots[0])
        self._bind_all(roots)
        attached = [each for each in self._operators.values() if isinstance(each, BoundSource)]
        self._narrow({each.id for each in attached if each.physical.columns_by_name})
        operators = {
            key: each for key, each in self._operators.items() if not isinstance(each, InputOperator)
        }
        readers = {child: key for key, operator in operators.items() for child in operator.children}
        return BoundPlan(
            self._query.name,
            operators,
            self._schemas,
            self._pins,
            readers,
            self._times.origins,
            self._times.closings,
            frozenset(self._only_growing(operators.values())),
            self._policies,
            self._spark_masters,
        )

    def _only_growing(self, operators: Iterable[FragmentOperator]) -> Iterator[str]:
        """Return the aggregates whose input retracts no row."""
        for each in operators:
            if isinstance(each, AggregateOperator) and self._times.only_grows(each.input):
                yield each.id

    def _repeat(self, root: str) -> None:
        """Have each operator with several readers once for each of them."""
        found = repeated(self._ids, root)
        if found is None:
            message = (
                f"if each operator is repeated for each of its readers, the query has more than "
                f"{MAX_OPERATORS:,} operators; run it in steps, which compute each operator once "
                f"(nebuli run --stepped --state DIR)"
            )
            self._mistakes[self._query.mistake(("operators",), message)] = MultipleReaders
            return
        self._ids, origins = found
        self._places = {key: self._places[origin] for key, origin in origins.items()}
        self._policies = self._policies.repeated(origins)

    def _add(self, operator: InnerOperator) -> None:
        super()._add(operator)
        if isinstance(operator, DividedOperator) and operator.shard is not None:
            self._check_shard(operator, operator.shard)

    def _check_shard(self, operator: DividedOperator, shard: Sharding) -> None:
        if not any(isinstance(each, ViewOperator) for each in self._ids.values()):
            message = "only a query with a view can have operators in shards, but this query has no view; omit 'shard'"
            self._fault(operator, ("shard",), message)
        elif (schema := self._schemas.get(operator.id)) is not None:
            columns, by = divisible_by(operator, schema), shard.by or ()
            if not columns:
                message = (
                    "it has no columns to group by, so it has a single group, which cannot be "
                    "divided; omit 'shard'"
                )
                self._fault(operator, ("shard",), message)
            for index, name in enumerate(by):
                if name not in columns:
                    what = "join" if isinstance(operator, JoinOperator) else "group"
                    message = f"it does not {what} by column {name!r}; expected {listed(columns)}"
                    self._fault(operator, ("shard", "by", index), message)
                elif name in by[:index]:
                    self._fault(operator, ("shard", "by", index), f"column {name!r} is given twice")

    @property
    def _endless_by(self) -> list[str]:
        return [each.id for each in self._ids.values() if isinstance(each, ViewOperator)]

    def _add_source(
        self, operator: SourceOperator, source: LogicalSource, attached: list[tuple[str, PhysicalSource]]
    ) -> None:
        if not attached:
            message = f"no node has a physical source of {source.name!r}; expected at least one"
            self._fault(operator, ("logical",), message, UnknownSource)
        elif len(attached) == 1:
            self._add_attached(operator.id, source, *attached[0])
        else:
            self._bind_parts(operator, source, attached)

    def _bind_parts(
        self, operator: SourceOperator, source: LogicalSource, attached: list[tuple[str, PhysicalSource]]
    ) -> None:
        parts = [f"{operator.id}/{index}" for index, _ in enumerate(attached)]
        if taken := [part for part in parts if part in self._ids]:
            self._fault(
                operator, ("id",), f"its part gets the id {taken[0]!r}, which another operator already has"
            )
            return
        for part, (node, physical) in zip(parts, attached, strict=True):
            self._add_attached(part, source, node, physical)
        self._add(UnionOperator(id=operator.id, inputs=tuple(parts)))

    def _add_attached(
        self, identity: str, source: LogicalSource, node: str, physical: PhysicalSource
    ) -> None:
        self._add_leaf(
            BoundSource(id=identity, logical=source.name, schema=source.columns, physical=physical)
        )
        self._pins[identity] = node


class _SteppedBinder(_Binder):
    """Binds a query with names for its inputs and outputs, regardless of the origin and target of the rows."""

    def plan(self) -> SteppedPlan:
        for operator in self._query.operators:
            if isinstance(operator, DividedOperator) and operator.shard is not None:
                message = "in steps, rows are divided among all members; omit 'shard', or run the query without steps"
                self._fault(operator, ("shard",), message)
        self._bind_all(sorted(each.id for each in roots_of(self._query.outlines)))
        inputs = [each for each in self._operators.values() if isinstance(each, InputOperator)]
        self._narrow({each.id for each in inputs if self._can_leave_out(each)})
        operators = [each for each in self._operators.values() if not isinstance(each, BoundSource)]
        late = [part for each in operators if isinstance(each, WindowOperator) for part in _late_output(each)]
        return SteppedPlan.model_validate(
            {
                "name": self._query.name,
                "operators": (*operators, *late),
                "watermarks": _by_operator(self._times.origins),
                "closings": _by_operator(self._times.closings),
            }
        )

    def _bind_sink(self, operator: SinkOperator) -> None:
        super()._bind_sink(operator)
        node, sink = self._sinks.get(operator.sink, ("", None))
        if isinstance(sink, CollectionSink) and sink.mode == "final":
            message = (
                f"{sink.name!r} at {node} inserts one result into {sink.writes} at the end of the query (mode "
                f"final), but a query in steps continues after each run; expected mode changes or append"
            )
            self._fault(operator, ("sink",), message)

    @property
    def _endless_by(self) -> list[str]:
        return []  # a program shuts it down, and then sinks have their results

    def _add_source(
        self, operator: SourceOperator, source: LogicalSource, attached: list[tuple[str, PhysicalSource]]
    ) -> None:
        for node, physical in attached:
            named = "consumer" if isinstance(physical, ChannelSource) else "reader"
            if isinstance(physical, ChannelSource | CollectionSource) and not physical.can_be_read_again:
                message = (
                    f"node {node} reads {source.name!r} from {physical.reads} without a {named}: "
                    f"the read position would not be kept, and a restarted process would repeat "
                    f"or skip rows; add '{named}' to this source"
                )
                self._fault(operator, ("logical",), message)
        leaf = InputOperator(
            id=operator.id, logical=source.name, schema=source.columns, materialized=source.materialized
        )
        self._add_leaf(leaf)

    def _can_leave_out(self, leaf: InputOperator) -> bool:
        """True if unneeded columns are not read: all physical sources have to support that."""
        attached = self._physical[leaf.logical]
        return (
            not leaf.materialized
            and bool(attached)
            and all(physical.columns_by_name for _, physical in attached)
        )


def _late_output(window: WindowOperator) -> tuple[LateOperator | BoundSink, ...]:
    """The output that has the window's late rows, if they have a place."""
    if window.late is None:
        return ()
    rows = LateOperator(id=f"{window.id}>dropped", input=window.id)
    target = _late_sink(window, window.late)
    return rows, BoundSink(id=target.name, input=rows.id, sink=target.name, target=target)


def _late_sink(window: WindowOperator, path: str) -> CsvSink:
    return CsvSink(type="CSV", name=f"{window.id}>late", mode="changes", path=path)


def _by_operator(settings: Mapping[str, T]) -> tuple[T, ...]:
    return tuple(settings[key] for key in sorted(settings))
