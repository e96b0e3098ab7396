"""A fragment's operators as one running computation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from nebuli.dataflow.aggregate import Aggregate
from nebuli.dataflow.errors import DataflowError, StateTooLarge
from nebuli.dataflow.join import Join
from nebuli.dataflow.operators import Filter, Operator, PassThrough, Project
from nebuli.dataflow.types import arrow_schema
from nebuli.dataflow.zset import weighted
from nebuli.limits import DEFAULT_MAX_STATE_BYTES
from placement.plan import (
    AggregateOperator,
    BoundSource,
    DistinctOperator,
    FilterOperator,
    JoinOperator,
    NetworkSink,
    NetworkSource,
    ProjectOperator,
)
from placement.schemas import output_schema

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import pyarrow as pa

    from placement.plan import FragmentOperator
    from placement.schemas import Fault
    from topology.schema import Schema


@dataclass(frozen=True, slots=True)
class OperatorStatistics:
    """What went through an operator so far, counted in rows of its Z-sets, and the bytes of its state now."""

    rows_in: int
    rows_out: int
    state_bytes: int


@dataclass(slots=True)
class _Node:
    """An operator in place: who reads it, at which port, and how many of its inputs are open."""

    id: str
    operator: Operator
    columns: Schema
    open_inputs: int
    max_state_bytes: int
    state_bytes: int = 0
    reader: _Node | None = None
    port: int = 0
    rows_in: int = 0
    rows_out: int = 0


class Circuit:
    """Runs the operators of a fragment, given with inputs before their readers and the root last.

    It is synchronous and for one thread at a time. Each push is worked off through all operators; an
    operator takes whichever input has data. ``DataflowError`` names the operator and what it cannot
    compute, ``StateTooLarge`` the one whose state holds more than its own ``max_state_bytes`` or else the
    circuit's; after either the circuit is of no use.
    """

    def __init__(
        self, operators: Sequence[FragmentOperator], *, max_state_bytes: int = DEFAULT_MAX_STATE_BYTES
    ) -> None:
        self._max_state_bytes = max_state_bytes
        self._nodes: dict[str, _Node] = {}
        self._open: dict[str, _Node] = {}
        for operator in operators:
            self._add(operator)
        root = self._nodes[operators[-1].id]
        self.sources: dict[str, pa.Schema] = {id_: _zsets(node.columns) for id_, node in self._open.items()}
        """What ``push`` takes: Z-sets of this schema (the weight last), by the id of their source."""
        self.schema: pa.Schema = _zsets(root.columns)
        """The schema of the Z-sets that come out at the root."""

    def push(self, source: str, batch: pa.RecordBatch) -> list[pa.RecordBatch]:
        """Take a Z-set of ``source``; returns the changes at the root, possibly none."""
        node = self._open_source(source)
        expected = self.sources[source]
        if batch.schema.names != expected.names or batch.schema.types != expected.types:
            raise DataflowError(f"a batch has the columns {batch.schema}; expected {expected}", source)
        node.rows_in += batch.num_rows
        return self._flow(node, iter((batch,)))

    def end(self, source: str) -> list[pa.RecordBatch]:
        """Learn that ``source`` has ended; returns the changes at the root that this makes."""
        node: _Node | None = self._open_source(source)
        del self._open[source]
        results: list[pa.RecordBatch] = []
        while node is not None:
            node.open_inputs -= 1
            if node.open_inputs > 0:
                break
            results += self._flow(node, node.operator.finish())
            node = node.reader
        return results

    @property
    def ended(self) -> bool:
        """Whether all sources have ended, so that nothing more will come out."""
        return not self._open

    def statistics(self) -> dict[str, OperatorStatistics]:
        """What went through each operator so far, by its id."""
        return {
            node.id: OperatorStatistics(node.rows_in, node.rows_out, node.state_bytes)
            for node in self._nodes.values()
        }

    def _open_source(self, source: str) -> _Node:
        if source in self._open:
            return self._open[source]
        what = "has ended" if source in self.sources else f"is none of the sources {', '.join(self.sources)}"
        raise DataflowError(f"{source} {what}")

    def _flow(self, start: _Node, outputs: Iterator[pa.RecordBatch]) -> list[pa.RecordBatch]:
        """Pass on what ``start`` gives, each batch all the way before the next is asked for.

        Depth first, so that of what a join makes only one batch at a time is on its way.
        """
        results: list[pa.RecordBatch] = []
        stack = [(start, outputs)]
        while stack:
            node, outputs = stack[-1]
            batch = _next(node, outputs)
            if batch is None:
                stack.pop()
                _measure(node)
                continue
            if not batch.num_rows:
                continue
            node.rows_out += batch.num_rows
            if node.reader is None:
                results.append(batch)
            else:
                node.reader.rows_in += batch.num_rows
                stack.append((node.reader, node.reader.operator.push(node.port, batch)))
        return results

    def _add(self, operator: FragmentOperator) -> None:
        children = [self._nodes[child] for child in operator.children]
        columns = _columns(operator, [child.columns for child in children])
        running = _operator(operator, [child.columns for child in children], columns)
        bound = _own_bound(operator) or self._max_state_bytes
        node = _Node(operator.id, running, columns, max(1, len(children)), bound)
        for port, child in enumerate(children):
            child.reader, child.port = node, port
        if not children:
            self._open[operator.id] = node
        self._nodes[operator.id] = node


def _next(node: _Node, outputs: Iterator[pa.RecordBatch]) -> pa.RecordBatch | None:
    try:
        return next(outputs, None)
    except DataflowError as error:
        raise error.at(node.id) from None


def _own_bound(operator: FragmentOperator) -> int | None:
    match operator:
        case JoinOperator() | AggregateOperator() | DistinctOperator():
            return operator.max_state_bytes
    return None


def _measure(node: _Node) -> None:
    node.state_bytes = node.operator.state_bytes
    if node.state_bytes > node.max_state_bytes:
        raise StateTooLarge(node.id, node.state_bytes, node.max_state_bytes)


def _zsets(columns: Schema) -> pa.Schema:
    return weighted(arrow_schema(columns))


def _columns(operator: FragmentOperator, inputs: Sequence[Schema]) -> Schema:
    match operator:
        case BoundSource() | NetworkSource():
            return operator.columns
        case NetworkSink():
            return inputs[0]
    faults: list[Fault] = []
    columns = output_schema(operator, inputs, faults)
    if faults:
        raise DataflowError("; ".join(message for _, message in faults), operator.id)
    return columns


def _operator(operator: FragmentOperator, inputs: Sequence[Schema], output: Schema) -> Operator:
    match operator:
        case FilterOperator():
            return Filter(operator.predicate, inputs[0])
        case ProjectOperator():
            return Project(operator.columns, inputs[0], output)
        case JoinOperator():
            return Join(operator.on, inputs, output)
        case AggregateOperator():
            return Aggregate(operator.by, operator.aggregates, inputs[0], output)
        case DistinctOperator():
            return Aggregate([column.name for column in output], {}, inputs[0], output)
    return PassThrough()
