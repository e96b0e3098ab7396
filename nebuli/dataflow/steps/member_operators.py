"""Operators of a stepped plan in their places, at one of its members."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from nebuli.dataflow.aggregates.aggregate import Aggregate
from nebuli.dataflow.errors import DataflowError
from nebuli.dataflow.joins.join import Join
from nebuli.dataflow.placed_operators import OperatorNode, check_event_time
from nebuli.dataflow.progress import LEAST
from nebuli.dataflow.steps.contents import Contents
from nebuli.dataflow.steps.exchange_parts import ExchangeParts
from nebuli.dataflow.steps.origins import StepOrigin
from nebuli.dataflow.window import Window
from nebuli.dataflow.zset import weights_of
from placement.checking.schemas import plain_columns
from placement.graph import bottom_up
from placement.plan import BoundSink, FilterOperator, ProjectOperator, ViewOperator, WindowOperator
from placement.stepped_plan import AlignOperator, Exchanging, GatherOperator, InputOperator, LateOperator
from topology import DataType, NullSink

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    import pyarrow as pa

    from placement.plan import Closing
    from placement.stepped_plan import SteppedPlan

_FLOATS = (DataType.FLOAT32, DataType.FLOAT64)


@dataclass(slots=True, eq=False)
class StepNode(OperatorNode):
    """An operator, its inputs, and its readers with their ports.

    One that ``collects`` is to have all rows of a step before it works on them, by port in ``waiting``; others work
    on rows as they come.
    """

    origin: StepOrigin | None = None
    inputs: Sequence[StepNode] = field(default=(), repr=False)
    readers: list[tuple[StepNode, int]] = field(default_factory=list, repr=False)
    collects: bool = False
    waiting: list[list[pa.RecordBatch]] = field(default_factory=list)
    exchange: ExchangeParts | None = None
    place: int | None = None
    """The only member at which it can have rows, if that is known."""
    follows_input: bool = False
    """True if its rows lie as those of one input do, regardless of batches: nothing below merges rows."""
    spells: bool = False
    """True if it may give equal floats that are spelled differently."""
    begins: bool = False
    """True if it emits a row in the first step, even without input."""
    cancels: bool = False
    """True if rows that it adds and retracts within a step must stay invisible: an operator above looks at times."""
    origins: Sequence[StepNode] = field(default=(), repr=False)
    """Where its event time begins."""
    window: Window | None = None
    """The window whose late rows it emits, once all rows of the step have passed there."""
    closes: bool = False
    """True if it is notified when event time advances."""
    closing: Closing | None = None
    """The windows that it is done with then, where it keeps rows of them."""
    aligned: bool = False
    """True if members exchange the watermark that begins here."""
    reached: int = LEAST
    """Where the watermark is that begins here, for all members."""
    latest: int = LEAST
    """The latest time of all rows that came here, at any member."""
    untimed: frozenset[str] = frozenset()
    """The inputs whose rows reach it without event time: more of them may belong to any window."""
    span_us: int = 0
    """The size of the windows that its rows are in."""
    watermark: int = LEAST
    """The last event time that it was notified of."""

    @property
    def keeps(self) -> bool:
        """True if it keeps anything between steps."""
        return bool(self.operator.states) or self.closes or self.origin is not None

    @property
    def numbers(self) -> dict[str, int | None]:
        """Its state other than rows."""
        of_origin = {} if self.origin is None else self.origin.numbers
        return {**self.operator.memory, "told": self.watermark, "reached": self.reached, **of_origin}

    def recall(self, numbers: Mapping[str, int | None]) -> None:
        """Have it keep what another one kept."""
        self.operator.recall(numbers)
        self.watermark, self.reached = numbers["told"] or 0, numbers["reached"] or 0
        self.state_bytes = self.operator.state_bytes
        if self.origin is not None:
            self.origin.recall(numbers)

    @property
    def due(self) -> int:
        """Where event time is."""
        return min((each.reached for each in self.origins), default=LEAST)

    @property
    def due_at_end(self) -> int:
        """Where event time is if it ends: every window that has begun is over, and none that a later row opens."""
        latest = max((each.latest for each in self.origins), default=LEAST)
        return latest if latest == LEAST else latest + self.span_us

    def taken(self, port: int) -> list[pa.RecordBatch]:
        """Return and remove the waiting rows of a port."""
        taken, self.waiting[port] = self.waiting[port], []
        return taken

    def check_sink(self, batch: pa.RecordBatch) -> None:
        """Raise ``DataflowError`` for rows of a step that it cannot take, if it is a sink."""
        match self.plan:
            case BoundSink(target=NullSink()):
                pass
            case BoundSink(target=target) if target.mode == "append" and (weights_of(batch) < 0).any():
                raise DataflowError(
                    "a row is retracted, but a sink in mode 'append' cannot retract rows: use mode 'final' or "
                    "'changes'",
                    self.id,
                )


def built(plan: SteppedPlan, member: int, max_state_bytes: int, keep_contents_bytes: int) -> list[StepNode]:
    """All operators, inputs before their readers, in an order that depends on nothing but the graph and its names."""
    if not 0 <= member < plan.members:
        raise DataflowError(f"there is no member {member} of {plan.members}; the first is 0")
    return _Building(plan, member, max_state_bytes, keep_contents_bytes).nodes


class _Building:
    def __init__(
        self, plan: SteppedPlan, member: int, max_state_bytes: int, keep_contents_bytes: int
    ) -> None:
        self._member = member
        self._members = plan.members
        self._max_state_bytes = max_state_bytes
        self._keep_contents_bytes = keep_contents_bytes
        self._closings = {closing.operator: closing for closing in plan.closings}
        self._nodes: dict[str, StepNode] = {}
        self._exchanges = 0
        operators = {each.id: each for each in plan.operators}
        inputs = {id_: each.children for id_, each in operators.items()}
        ends = sorted(each.id for each in (*plan.outputs, *plan.views))
        for id_ in bottom_up(inputs, *ends):
            self._add(operators[id_])
        self._begin_times(plan)
        for node in self._nodes.values():
            if node.exchange is not None:
                node.exchange.combines = all(_takes_sums(reader) for reader, _ in node.readers)
        for node in self._nodes.values() if self._members > 1 else ():
            if isinstance(node.operator, Join) and not node.cancels and _takes_codes(node):
                node.operator.leaves_coded = frozenset(node.schema.names)
        self.nodes = list(self._nodes.values())

    def _add(self, operator: Any) -> None:
        inputs = [self._nodes[child] for child in operator.children]
        closing = self._closings.get(operator.id)
        node = StepNode.of(operator, [each.columns for each in inputs], closing, self._max_state_bytes)
        node.inputs, node.closing = inputs, closing
        if isinstance(operator, BoundSink) and self._keep_contents_bytes:
            node.operator = Contents(operator.id, node.schema, self._keep_contents_bytes)
        elif isinstance(operator, InputOperator) and operator.materialized:
            node.operator = Contents(operator.id, node.schema, None)
        elif isinstance(operator, ViewOperator):
            node.operator = Contents(operator.id, node.schema, None, operator.key)
        if isinstance(operator, LateOperator):
            node.window = _window_of(node, inputs[0])
        else:
            for port, child in enumerate(inputs):
                child.readers.append((node, port))
        if isinstance(operator, Exchanging):
            node.exchange = ExchangeParts(operator, self._exchanges, node.schema, self._members)
            self._exchanges += 1
        node.place = self._place_of(node)
        node.follows_input = isinstance(operator, InputOperator) or (
            isinstance(operator, FilterOperator | ProjectOperator | ViewOperator | Exchanging | BoundSink)
            and inputs[0].follows_input
        )
        node.collects = isinstance(node.operator, Join | Aggregate) or isinstance(operator, BoundSink)
        node.collects |= node.exchange is not None and not isinstance(operator, AlignOperator)
        node.waiting = [[] for _ in inputs]
        if any(column.type in _FLOATS for column in node.columns):
            node.spells = isinstance(operator, InputOperator | ProjectOperator) or isinstance(
                node.operator, Aggregate
            )
        node.closes = isinstance(operator, WindowOperator) or closing is not None
        if isinstance(node.operator, Aggregate) and not node.operator.by:
            if node.place is None:
                raise DataflowError(
                    "an operator without 'by' needs all rows at one member: put a gather below it", node.id
                )
            node.begins = node.place == self._member
        self._nodes[node.id] = node

    def _place_of(self, node: StepNode) -> int | None:
        if self._members == 1:
            return 0
        if isinstance(node.plan, GatherOperator):
            return node.plan.member
        if node.exchange is not None and not isinstance(node.plan, AlignOperator):
            return None
        places = {each.place for each in node.inputs}
        return places.pop() if len(places) == 1 else None

    def _begin_times(self, plan: SteppedPlan) -> None:
        """Let watermarks begin, and make that known to all operators."""
        for settings in plan.watermarks:
            check_event_time(self._nodes, settings.operator, settings.time)
            node = self._nodes[settings.operator]
            node.origin = StepOrigin(settings, _inputs_of(node))
        for closing in plan.closings:
            check_event_time(self._nodes, closing.operator, closing.column)
        for node in self._nodes.values():
            below = {id(each): each for child in node.inputs for each in child.origins}
            node.origins = (node,) if node.origin is not None else tuple(below.values())
            node.untimed = _untimed_below(node)
            node.span_us = max((each.span_us for each in node.inputs), default=0)
            if isinstance(node.operator, Window):
                node.span_us = node.operator.size_us
            if isinstance(node.plan, AlignOperator):
                _align(node.origins)
            if node.origin is not None:
                _let_cancel(node.inputs)
        for node in self._nodes.values():
            if node.origin is not None and not node.aligned and self._members > 1:
                raise DataflowError(
                    "a watermark begins at this operator, but no align operator passes it to the other members",
                    node.id,
                )


def _window_of(node: StepNode, below: StepNode) -> Window:
    if not isinstance(below.operator, Window):
        raise DataflowError(f"only a window has late rows, and {below.id} is not a window", node.id)
    return below.operator


def _untimed_below(node: StepNode) -> frozenset[str]:
    """The inputs whose rows reach an operator without event time, where those of its inputs are known."""
    own = {node.id} if isinstance(node.plan, InputOperator) else set()
    found = frozenset(own.union(*(each.untimed for each in node.inputs)))
    if node.origin is None:
        return found
    # A time that is computed from a join: a later row of either input may make rows of any time.
    return found.difference(node.origin.inputs) if len(found) > 1 else frozenset()


def _inputs_of(start: StepNode) -> frozenset[str]:
    """The inputs whose rows reach an operator at once: nothing below waits for all rows of a step."""
    found: set[str] = set()
    stack = [start]
    while stack:
        node = stack.pop()
        if isinstance(node.plan, InputOperator):
            found.add(node.id)
        elif not node.collects:
            stack += node.inputs
    return frozenset(found)


def _takes_sums(reader: StepNode) -> bool:
    """True if an operator's output does not depend on merging of rows, and none is counted separately."""
    return isinstance(reader.operator, Aggregate) and not reader.closes


def _takes_codes(node: StepNode) -> bool:
    """True if all output of an operator is merged before it is sent, and is not computed with until then."""
    return all(
        (reader.exchange is not None and reader.exchange.combines)
        or (isinstance(reader.plan, ProjectOperator) and _chooses(reader.plan, node) and _takes_codes(reader))
        for reader, _ in node.readers
    )


def _chooses(project: ProjectOperator, below: StepNode) -> bool:
    """True if it computes nothing."""
    return len(plain_columns(project, below.columns)) == len(project.columns)


def _align(origins: Iterable[StepNode]) -> None:
    for each in origins:
        each.aligned = True


def _let_cancel(below: Iterable[StepNode]) -> None:
    stack = list(below)
    while stack:
        node = stack.pop()
        node.cancels = True
        stack += node.inputs
