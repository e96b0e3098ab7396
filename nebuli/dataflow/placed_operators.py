"""Operators of a plan in their places in a circuit: what each computes, what it may keep, and what went through it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

import pyarrow as pa

from nebuli.dataflow.aggregates.aggregate import Aggregate
from nebuli.dataflow.errors import DataflowError, StateTooLarge
from nebuli.dataflow.joins.outer_join import join_of
from nebuli.dataflow.operators import Filter, Operator, PassThrough, Project
from nebuli.dataflow.types import arrow_schema
from nebuli.dataflow.window import Window, Windows
from nebuli.dataflow.zset import weighted
from placement.checking.schemas import output_schema
from placement.plan import (
    AggregateOperator,
    BoundSource,
    DistinctOperator,
    FilterOperator,
    JoinOperator,
    MergerOperator,
    NetworkSink,
    NetworkSource,
    ProjectOperator,
    SharderOperator,
    WindowOperator,
)
from placement.sql.typing_rules import MOMENTS
from placement.stepped_plan import (
    AlignOperator,
    ExchangeOperator,
    GatherOperator,
    InputOperator,
    LateOperator,
    ShardOperator,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from nebuli.dataflow.progress import Origin
    from placement.checking.schemas import Fault
    from placement.plan import Closing, FragmentOperator
    from placement.stepped_plan import StepOperator
    from topology.schema import Schema

    PlanOperator = FragmentOperator | StepOperator

_OF_ROWS = (pa.ArrowInvalid, pa.ArrowCapacityError, ArithmeticError)
"""Raised by Arrow and Python for values that an operator does not expect: rows are the reason, and not a mistake."""


@dataclass(frozen=True, slots=True)
class OperatorStatistics:
    """The counters of an operator, in rows of its Z-sets, and the bytes of its state now.

    ``late_rows`` are those of them that came when their window was over, and ``rows_without_time`` those whose time is
    null: a window drops both.
    """

    rows_in: int
    rows_out: int
    state_bytes: int
    late_rows: int
    rows_without_time: int = 0


@dataclass(slots=True)
class OperatorNode:
    """An operator in place, with its ``plan``. ``origin`` is there if a watermark begins here."""

    id: str
    plan: PlanOperator
    operator: Operator
    columns: Schema
    max_state_bytes: int
    origin: Origin | None = None
    state_bytes: int = 0
    rows_in: int = 0
    rows_out: int = 0

    @classmethod
    def of(
        cls,
        operator: PlanOperator,
        inputs: Sequence[Schema],
        closing: Closing | None,
        max_state_bytes: int,
        *,
        only_grows: bool = False,
    ) -> Self:
        """Return the operator of a plan, ready to run; ``closing`` decides when its windows are over.

        ``only_grows``: its input retracts no row.
        """
        columns = _output_columns(operator, inputs)
        windows = None if closing is None else Windows(closing)
        placed = running(operator, inputs, columns, windows, only_grows=only_grows)
        return cls(operator.id, operator, placed, columns, _own_bound(operator) or max_state_bytes)

    @property
    def schema(self) -> pa.Schema:
        """The schema of the Z-sets that it gives out."""
        return weighted(arrow_schema(self.columns))

    def next_of(self, outputs: Iterator[pa.RecordBatch]) -> pa.RecordBatch | None:
        """The next of what the operator gives, or None; errors name it."""
        try:
            batch = next(outputs, None)
            if batch is not None and self.origin is not None:
                self.origin.observe(batch)
        except DataflowError as error:
            raise error.at(self.id) from None
        except _OF_ROWS as error:
            raise DataflowError(str(error), self.id) from error
        return batch

    def measure(self) -> None:
        """Take notice of what its state holds; raises ``StateTooLarge``."""
        self.state_bytes = self.operator.state_bytes
        if self.state_bytes > self.max_state_bytes:
            raise StateTooLarge(self.id, self.state_bytes, self.max_state_bytes)

    def check(self, batch: pa.RecordBatch, expected: pa.Schema) -> None:
        """Refuse what has not the columns ``expected``, those of its Z-sets."""
        if batch.schema.names != expected.names or batch.schema.types != expected.types:
            raise DataflowError(f"a batch has the columns {batch.schema}; expected {expected}", self.id)

    @property
    def statistics(self) -> OperatorStatistics:
        """Return its counters."""
        operator = self.operator
        without_time = operator.rows_without_time if isinstance(operator, Window) else 0
        return OperatorStatistics(
            self.rows_in, self.rows_out, self.state_bytes, operator.late_rows, without_time
        )


def _output_columns(operator: PlanOperator, inputs: Sequence[Schema]) -> Schema:
    """Return the output columns of an operator; ``DataflowError`` if it cannot work on these inputs."""
    match operator:
        case BoundSource() | NetworkSource() | InputOperator():
            return operator.columns
        case (
            NetworkSink()
            | SharderOperator()
            | MergerOperator()
            | ExchangeOperator()
            | ShardOperator()
            | GatherOperator()
            | AlignOperator()
            | LateOperator()
        ):
            return inputs[0]
    faults: list[Fault] = []
    columns = output_schema(operator, inputs, faults)
    if faults:
        raise DataflowError("; ".join(message for _, message in faults), operator.id)
    return columns


def running(  # noqa: PLR0911 - one per kind
    operator: PlanOperator,
    inputs: Sequence[Schema],
    output: Schema,
    windows: Windows | None,
    *,
    only_grows: bool = False,
) -> Operator:
    """The operator, ready to run; with ``windows`` it is done with each when it is over.

    ``only_grows``: its input retracts no row.
    """
    match operator:
        case FilterOperator():
            return Filter(operator.predicate, inputs[0])
        case ProjectOperator():
            return Project(operator.columns, inputs[0], output)
        case JoinOperator():
            return join_of(operator, inputs, output, windows)
        case AggregateOperator():
            return Aggregate(
                operator.by, operator.aggregates, inputs[0], output, windows, only_grows=only_grows
            )
        case DistinctOperator():
            return Aggregate([column.name for column in output], {}, inputs[0], output, windows)
        case WindowOperator():
            return Window(operator, output)
    return PassThrough()


def _own_bound(operator: PlanOperator) -> int | None:
    """Return the bound of an operator's state in the plan."""
    match operator:
        case JoinOperator() | AggregateOperator() | DistinctOperator():
            return operator.max_state_bytes
    return None


def check_event_time(nodes: Mapping[str, OperatorNode], operator: str, name: str) -> None:
    """Check that there is such a column in an operator's output, whose values are instants."""
    if operator not in nodes:
        raise DataflowError(f"event time is declared at {operator}, which is not an operator of the query")
    found = [column.type for column in nodes[operator].columns if column.name == name]
    if not found or found[0] not in MOMENTS:
        raise DataflowError(
            f"event time is declared in {name!r}, which is neither a timestamp nor a date", operator
        )
