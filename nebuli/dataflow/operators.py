"""The stateless operators, and what all operators have in common."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import pyarrow as pa

from nebuli.dataflow.evaluation import compile_expression
from nebuli.dataflow.hashing import is_coded
from nebuli.dataflow.types import arrow_schema
from nebuli.dataflow.zset import weighted
from placement.sql.expressions import parse

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from nebuli.dataflow.state import KeyedState
    from topology.schema import Schema


class Operator(Protocol):
    """A running operator: takes Z-sets on numbered ports and gives the change that they make to its result.

    ``push`` and ``finish`` give batches lazily, so that all that a join makes of one batch is never in
    memory at once; they are exhausted before the operator is called again.
    """

    def push(self, port: int, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """Take a change of input ``port``."""

    def advance(self, watermark: int) -> Iterator[pa.RecordBatch]:
        """The inputs' watermark is here, later than before: give what is complete now, and forget what is over."""

    def ended(self, port: int) -> None:
        """Input ``port`` has ended: drop what only its changes would have needed."""

    def finish(self) -> Iterator[pa.RecordBatch]:
        """All inputs have ended: give what is still owed."""

    @property
    def states(self) -> Sequence[KeyedState]:
        """Its kept rows, always in the same order."""

    @property
    def memory(self) -> dict[str, int | None]:
        """Its other state, a few numbers."""

    def recall(self, memory: Mapping[str, int | None]) -> None:
        """Have ``memory`` be what an operator like this one gave as such."""

    def kept_as(self, key: str) -> str:
        """Return the name of a lookup column in its states."""

    @property
    def state_bytes(self) -> int:
        """The memory that its state holds."""

    @property
    def late_rows(self) -> int:
        """The rows that came when their window was over, and were dropped."""


class Stateless:
    """An operator that keeps no rows, so that neither a watermark nor the end matters to it."""

    states: Sequence[KeyedState] = ()
    state_bytes = 0
    late_rows = 0

    def advance(self, watermark: int) -> Iterator[pa.RecordBatch]:
        """Nothing is complete, and nothing over."""
        return iter(())

    @property
    def memory(self) -> dict[str, int | None]:
        """Nothing is kept."""
        return {}

    def recall(self, memory: Mapping[str, int | None]) -> None:
        """Nothing is kept."""

    def kept_as(self, key: str) -> str:
        """Nothing is kept."""
        return key

    def ended(self, port: int) -> None:
        """Nothing to drop."""

    def finish(self) -> Iterator[pa.RecordBatch]:
        """Nothing is owed."""
        return iter(())


class PassThrough(Stateless):
    """Sources, sinks, and unions of equal schemas: what comes in goes out."""

    def push(self, port: int, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """Give the batch on."""
        yield batch


class Filter(Stateless):
    """Keeps the rows for which the predicate is true, not false or null."""

    def __init__(self, predicate: str, schema: Schema) -> None:
        self._predicate = compile_expression(parse(predicate, schema), arrow_schema(schema))

    def push(self, port: int, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """Give the rows that remain."""
        yield batch.filter(self._predicate(batch))


class Project(Stateless):
    """Computes columns; weights stay."""

    def __init__(self, columns: Mapping[str, str], schema: Schema, output: Schema) -> None:
        expressions = [parse(sql, schema) for sql in columns.values()]
        self._columns = [compile_expression(each, arrow_schema(schema)) for each in expressions]
        self._schema = weighted(arrow_schema(output))

    def push(self, port: int, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """Give the computed columns."""
        columns = [*(evaluate(batch) for evaluate in self._columns), batch.column(batch.num_columns - 1)]
        if any(map(is_coded, columns)):  # passed on as they came, by a project that computes nothing
            yield pa.record_batch(columns, self._schema.names)
        else:
            yield pa.record_batch(columns, schema=self._schema)
