"""`Trial`: what can be known of rows before they are logged, of operators that keep nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa

from nebuli.dataflow.aggregates.aggregate import Aggregate
from nebuli.dataflow.errors import DataflowError
from nebuli.dataflow.operators import Stateless
from nebuli.dataflow.steps.member_operators import built
from nebuli.dataflow.zset import consolidate, weights_of, with_canonical_floats
from placement.plan import BoundSink, WindowOperator

if TYPE_CHECKING:
    from placement.stepped_plan import SteppedPlan


class Trial:
    """Operators from the inputs up to the first that keeps rows: what these give depends on a push's rows alone.

    Sinks in mode ``append`` are among them, which retract no row, and the arguments of an aggregate. So rows that
    fail here fail in any step. A circuit's own operators do not do, as an event time that begins below an operator
    moves with what it is given.
    """

    def __init__(self, plan: SteppedPlan) -> None:
        self._inputs = [each.id for each in plan.inputs]
        self._nodes = {node.id: node for node in built(plan, 0, 0, 0)}

    @property
    def tried(self) -> frozenset[str]:
        """The ids of operators and sinks all of whose failures are known of rows alone."""
        found: set[str] = set()
        waiting = [self._nodes[input_] for input_ in self._inputs]
        while waiting:
            for reader, _ in waiting.pop().readers:
                if isinstance(reader.plan, BoundSink):
                    found.add(reader.id)
                elif isinstance(reader.operator, Stateless):
                    found.add(reader.id)
                    if not isinstance(reader.plan, WindowOperator):
                        waiting.append(reader)
        return frozenset(found)

    def check(self, input_: str, rows: pa.RecordBatch) -> None:
        """Raise ``DataflowError`` for rows that no step can be computed with, if that is known of them alone."""
        if not rows.num_rows:
            return
        if (weights_of(rows) < 0).any():
            rows = consolidate([rows])  # rows that one push adds and retracts are not there
        waiting = [(self._nodes[input_], rows)]
        while waiting:
            node, batch = waiting.pop()
            batch = with_canonical_floats(batch) if node.spells else batch
            for reader, port in node.readers:
                if isinstance(reader.plan, BoundSink):
                    reader.check_sink(batch)
                elif isinstance(reader.operator, Aggregate):
                    reader.next_of(reader.operator.compute_arguments(batch))
                elif isinstance(reader.operator, Stateless):
                    outputs = reader.operator.push(port, batch)
                    while (made := reader.next_of(outputs)) is not None:
                        # Rows whose window is over go no further in the circuit.
                        if made.num_rows and not isinstance(reader.plan, WindowOperator):
                            waiting.append((reader, made))

    def parted(self, input_: str, rows: pa.RecordBatch) -> tuple[pa.RecordBatch, pa.RecordBatch]:
        """The rows that pass, and those that fail on their own."""
        waiting, fit, unfit = [rows], [rows.slice(0, 0)], [rows.slice(0, 0)]
        while waiting:
            part = waiting.pop()
            try:
                self.check(input_, part)
            except DataflowError:
                if part.num_rows == 1:
                    unfit.append(part)
                else:
                    half = part.num_rows // 2
                    waiting += [part.slice(half), part.slice(0, half)]
            else:
                fit.append(part)
        return pa.concat_batches(fit), pa.concat_batches(unfit)
