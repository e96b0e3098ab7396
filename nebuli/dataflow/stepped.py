"""A query's circuit in steps: what comes out of a step is a function of what went in and of the state before it."""

from __future__ import annotations

from collections.abc import Generator
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from nebuli.dataflow.aggregates.aggregate import Aggregate
from nebuli.dataflow.errors import CircuitChanged, DataflowError, StateDamaged
from nebuli.dataflow.join import Join
from nebuli.dataflow.progress import GREATEST
from nebuli.dataflow.rows import MAX_BATCH_ROWS
from nebuli.dataflow.steps.building import StepNode, built
from nebuli.dataflow.steps.fingerprint import fingerprint_of
from nebuli.dataflow.steps.saving import CIRCUIT, Kept, Loading, Saved, Tables, identity, table_of
from nebuli.dataflow.steps.trades import Received, Sending, Trade, by_hash, together, watermarks_of
from nebuli.dataflow.zset import canonical, empty, portions, with_canonical_floats
from nebuli.limits import DEFAULT_MAX_STATE_BYTES

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from nebuli.dataflow.placed_operators import OperatorStatistics
    from placement.stepped import SteppedPlan

Work = Generator[Sending | None, Received | None, None]


class SteppedCircuit:
    """A member's copy of a circuit, of which each member of the plan has one; for one thread at a time.

    What comes out of a step, as a Z-set, and what the state then says depends on nothing but the state before and the
    Z-sets that the members are given for the step, together: not on who is given which rows, in which batches or in
    which order. After a ``DataflowError`` (``StateTooLarge`` is one), and where a step is not finished, the circuit
    is of no use.

    Event time: a watermark is the greatest time that any member has seen where it begins, less the lateness. It moves
    at the end of a step, and what it closes comes out in that step; the step's own rows are judged by the watermark
    that was there when it began. Of several the least counts. Times count whatever the weights of their rows. An input
    without event time is not waited for; one with event time is, also if it had no rows yet. There is no clock, and so
    nothing is idle. Late rows are counted; where the plan asks for them, a step's are among what comes out of it.

    An aggregate without ``by`` gives its row in the first step: that of no rows, if there are none.
    """

    def __init__(
        self, plan: SteppedPlan, member: int, *, max_state_bytes: int = DEFAULT_MAX_STATE_BYTES
    ) -> None:
        self.member = member
        self.members = plan.members
        self.fingerprint: str = fingerprint_of(plan)
        """The same for circuits that can go on from one another's state, and for all members."""
        self._nodes: dict[str, StepNode] = {node.id: node for node in built(plan, member, max_state_bytes)}
        self.inputs: dict[str, pa.Schema] = {
            id_: self._nodes[id_].schema for id_ in sorted(each.id for each in plan.inputs)
        }
        """What a step takes: Z-sets of this schema (the weight last), by input."""
        self.outputs: dict[str, pa.Schema] = {
            id_: self._nodes[id_].schema for id_ in sorted(each.id for each in plan.outputs)
        }
        """What a step gives: Z-sets of this schema, by output."""
        self._nothing = {id_: empty(schema) for id_, schema in self.outputs.items()}
        self._given: dict[str, pa.RecordBatch] = {}
        self._kept = Kept()
        self._used = self._unfinished = False

    def step(
        self, inputs: Mapping[str, pa.RecordBatch | Sequence[pa.RecordBatch]], *, ended: bool = False
    ) -> Generator[Sending | None, Received | None, dict[str, pa.RecordBatch]]:
        """Compute a step. Returns a Z-set for each output, with every row once; only one member has rows of it.

        Gives None after a piece of work, where others may have their turn, and ``Sending`` where it needs what comes
        from other members: it is resumed with that. Pieces are bounded, except that one group of an aggregate is
        worked on at once, and so is what an output has in a step.

        ``ended``: no input has anything after this step, at any member. Event time comes to its end.
        """
        self._check_finished()
        self._used = self._unfinished = True
        arrived = {id_: self._checked(id_, batches) for id_, batches in inputs.items()}
        for id_, node in self._nodes.items():
            if id_ in arrived:
                yield from self._take_in(node, arrived[id_])
            elif node.trade is not None:
                work = self._trade if node.collects else self._align
                yield from work(node, node.trade)
                if ended:
                    _end_times(node.origins)
            elif node.window is not None:
                yield from self._pass_on(node, iter(node.window.take_late()))
            elif node.begins or any(node.waiting):
                yield from self._work_off(node)
            if node.origin is not None and not node.aligned:
                node.reached = GREATEST if ended else node.seen
            if node.closes and node.due > node.watermark:
                yield from self._advance(node)
        self._unfinished = False
        given, self._given = self._given, {}
        return self._nothing | given

    def save(self) -> Saved:
        """The state as it is between two steps, by reference: it stays so, whatever steps follow."""
        self._check_finished()
        return self._kept.compared(self._tables())

    def load(self, tables: Mapping[str, Mapping[bytes, Any]]) -> None:
        """Have the state be what was saved; of no tables it is that before the first step.

        The values, anything that has bytes, are used where they lie. Raises ``CircuitChanged``, ``StateDamaged``.
        """
        if self._used:
            raise DataflowError("this circuit has begun a step: load the state into another one")
        if not tables:
            return
        self._used = self._unfinished = True
        saved = Loading(CIRCUIT, tables.get(CIRCUIT, {})).manifest()
        if saved.get("fingerprint") != self.fingerprint:
            raise CircuitChanged(str(saved.get("fingerprint")), self.fingerprint)
        if saved.get("member") != self.member:
            raise StateDamaged(
                CIRCUIT, "manifest", f"it is that of member {saved.get('member')}, not {self.member}"
            )
        keeping = {id_: node for id_, node in self._nodes.items() if node.keeps}
        for unknown in tables.keys() - keeping.keys() - {CIRCUIT}:
            raise StateDamaged(unknown, "manifest", "no operator of the circuit has such a table")
        for id_, node in keeping.items():
            loading = Loading(id_, tables.get(id_, {}))
            loading.into(node.operator.states, node.recall)
        self._kept.loaded(self._tables())
        self._unfinished = False

    def statistics(self) -> dict[str, OperatorStatistics]:
        """What went through each operator of this member since it was made, by its id."""
        return {id_: node.statistics for id_, node in self._nodes.items()}

    def _tables(self) -> Tables:
        keeping = {id_: node for id_, node in self._nodes.items() if node.keeps}
        tables = {id_: table_of(node.operator.states, node.numbers) for id_, node in keeping.items()}
        return {CIRCUIT: identity(self.fingerprint, self.member), **tables}

    def _check_finished(self) -> None:
        if self._unfinished:
            raise DataflowError("this circuit has not finished a step: load its state into another one")

    def _checked(
        self, id_: str, batches: pa.RecordBatch | Sequence[pa.RecordBatch]
    ) -> Sequence[pa.RecordBatch]:
        if id_ not in self.inputs:
            raise DataflowError(f"{id_} is none of the inputs {', '.join(self.inputs)}")
        batches = [batches] if isinstance(batches, pa.RecordBatch) else batches
        for batch in batches:
            self._nodes[id_].check(batch, self.inputs[id_])
        return batches

    def _take_in(self, node: StepNode, batches: Sequence[pa.RecordBatch]) -> Work:
        """What has come of an input."""
        for batch in portions(batches):
            node.rows_in += batch.num_rows
            yield from self._pass_on(node, node.operator.push(0, batch))

    def _trade(self, node: StepNode, trade: Trade) -> Work:
        """Send rows to the members that they belong to, and go on with what comes."""
        rows = node.taken(0)
        if self.members > 1:
            sending = yield from trade.of_rows(rows)
            rows = list((yield from _answered(sending)))
        for batch in portions(rows):
            self._give(node, batch)
            yield None

    def _align(self, node: StepNode, trade: Trade) -> Work:
        """Have watermarks be where they are for the member that has seen most."""
        seen = [[each.seen for each in node.origins]]
        if self.members > 1:
            seen = [watermarks_of(each) for each in (yield from _answered(trade.of_watermarks(seen[0])))]
        for origin, watermarks in zip(node.origins, zip(*seen, strict=True), strict=True):
            origin.reached = max(watermarks)

    def _work_off(self, node: StepNode) -> Work:
        """What an operator has waited for to have all of it."""
        match node.operator:
            case Join():
                yield from self._join(node, node.operator)
            case Aggregate():
                yield from self._aggregate(node, node.operator)
            case _:
                rows = canonical(together(node.taken(0)))
                node.rows_out += rows.num_rows
                self._given[node.id] = rows

    def _join(self, node: StepNode, join: Join) -> Work:
        made: list[pa.RecordBatch] = []
        for port, _ in enumerate(node.waiting):
            for batch in portions(node.taken(port)):
                if not node.cancels:
                    yield from self._pass_on(node, join.push(port, batch))
                    continue
                outputs = join.push(port, batch)
                while (each := node.next_of(outputs)) is not None:
                    made.append(each)
                    yield None
                node.measure()
        for batch in portions([canonical(together(made))] if made else []):
            self._give(node, batch)
            yield None

    def _aggregate(self, node: StepNode, aggregate: Aggregate) -> Work:
        """A group's rows are worked on together, so that it changes once, and floats are added in their own order."""
        rows = node.taken(0)
        parts = [rows] if rows else []
        pieces = -(-sum(batch.num_rows for batch in rows) // MAX_BATCH_ROWS)
        if pieces > 1 and aggregate.by:
            parts = yield from by_hash(rows, aggregate.by, pieces, _remainders)
        for part in parts:
            if part:
                batch = canonical(together(part)) if aggregate.adds_floats else together(part)
                if batch.num_rows:
                    yield from self._pass_on(node, aggregate.push(0, batch))
        if node.begins:
            yield from self._pass_on(node, aggregate.begin())
            node.begins = False

    def _advance(self, node: StepNode) -> Work:
        """Event time has come to where it is due: give what is complete now."""
        node.watermark = node.due
        yield from self._pass_on(node, node.operator.advance(node.watermark))

    def _pass_on(self, node: StepNode, outputs: Iterator[pa.RecordBatch]) -> Work:
        """Give what an operator makes to those who read it, each batch before the next is made."""
        while (batch := node.next_of(outputs)) is not None:
            self._give(node, batch)
            yield None
        node.measure()

    def _give(self, start: StepNode, batch: pa.RecordBatch) -> None:
        """Have those who read an operator work on what it gives, and so on, or keep it until they have all of it."""
        stack = [(start, batch)]
        while stack:
            node, batch = stack.pop()
            if not batch.num_rows:
                continue
            batch = with_canonical_floats(batch) if node.spells else batch
            node.rows_out += batch.num_rows
            for reader, port in node.readers:
                reader.rows_in += batch.num_rows
                if reader.collects:
                    reader.waiting[port].append(batch)
                    continue
                outputs = reader.operator.push(port, batch)
                while (made := reader.next_of(outputs)) is not None:
                    stack.append((reader, made))


def _end_times(origins: Iterable[StepNode]) -> None:
    for each in origins:
        if each.origin is not None:
            each.reached = GREATEST


def _answered(sending: Sending) -> Generator[Sending, Received | None, Received]:
    received = yield sending
    assert received is not None, "who runs a circuit has to give it what came from all members"
    return received


def _remainders(hashes: NDArray[np.uint64], parts: int) -> NDArray[np.int64]:
    """The lowest bits: by the highest ones rows are divided among members."""
    return (hashes % np.uint64(parts)).astype(np.int64)
