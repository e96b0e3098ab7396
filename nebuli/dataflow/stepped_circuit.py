"""A query's circuit in steps: what comes out of a step is a function of what went in and of the state before it."""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from nebuli.dataflow.aggregates.aggregate import Aggregate
from nebuli.dataflow.errors import CircuitChanged, DataflowError, FormatUnknown, StateDamaged
from nebuli.dataflow.joins.join import Join
from nebuli.dataflow.progress import GREATEST, LEAST, instants_of
from nebuli.dataflow.rows import MAX_BATCH_ROWS
from nebuli.dataflow.steps import saved_runs
from nebuli.dataflow.steps.contents import Contents
from nebuli.dataflow.steps.exchange_parts import (
    ExchangeParts,
    Received,
    Sending,
    by_hash,
    watermarks_of,
)
from nebuli.dataflow.steps.fingerprint import fingerprint_of
from nebuli.dataflow.steps.member_operators import StepNode, built
from nebuli.dataflow.steps.origins import Seen, greatest_of, idle_after, reached_by
from nebuli.dataflow.steps.resharding import Sharing, put_together
from nebuli.dataflow.steps.saved_runs import CIRCUIT, Kept, Loading, Saved, Tables, identity, table_of
from nebuli.dataflow.zset import (
    canonical,
    canonical_and_hashes,
    concatenated,
    consolidated_hashes,
    empty,
    has_distinct_rows,
    portions,
    with_canonical_floats,
)
from nebuli.limits import DEFAULT_MAX_STATE_BYTES
from placement.steps.whereabouts import divisions

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from nebuli.dataflow.placed_operators import OperatorStatistics
    from nebuli.dataflow.state import Run
    from nebuli.dataflow.steps.origins import SourceRows, StepOrigin
    from nebuli.dataflow.steps.resharding import Counting, Numbers
    from placement.stepped_plan import SteppedPlan


@dataclass(frozen=True, slots=True)
class Offload:
    """Work that has to be done before a step continues, and takes seconds.

    By any thread, while the circuit is not called.
    """

    do: Callable[[], None]


Work = Generator[Sending | Offload | None, Received | None, None]
_NO_SOURCES: Mapping[str, Mapping[str, SourceRows]] = MappingProxyType({})
_OF_STATE = 4
"""A quarter of an operator's bound is kept of each output, unless another bound is given."""


class SteppedCircuit:
    """A member's copy of a circuit, of which each member of the plan has one; for one thread at a time.

    The output of a step, as a Z-set, and the following state depend on nothing but the previous state and the Z-sets
    that the members get for the step, from each source and from no source, together: not on which member gets which
    rows, in which batches or in which order. After a ``DataflowError`` (``StateTooLarge`` is one), and where a step is
    not finished, the circuit is of no use.

    Event time: a watermark is the greatest time that a source has given where it begins, less the lateness; of several
    sources, at any members, the least counts, without those that are not waited for. Rows from no source are one of
    them, at any member, once they have begun. Watermarks move at the end of a step, and what they close comes out in
    that step; the step's own rows are judged by the watermark that was there when it began. With several inputs the
    least counts. Times count regardless of the weights of their rows. An input with event time is waited for, also if
    it had no rows yet. One without it has rows of any window: nothing above closes while one of its sources is waited
    for. There is no clock here: the member decides which sources are waited for. Late rows are counted; where the plan
    asks for them, a step's are among what comes out of it.

    ``keep_contents_bytes``: what is kept of what each output adds up to, for queries; None: a quarter of what an
    operator may hold; 0: nothing. If it were more, nothing is.

    An aggregate without ``by`` emits its row in the first step: that of no rows, if there are none.
    """

    def __init__(
        self,
        plan: SteppedPlan,
        member: int,
        *,
        max_state_bytes: int = DEFAULT_MAX_STATE_BYTES,
        keep_contents_bytes: int | None = None,
    ) -> None:
        kept = max_state_bytes // _OF_STATE if keep_contents_bytes is None else keep_contents_bytes
        self.member = member
        self.members = plan.members
        self.fingerprint: str = fingerprint_of(plan)
        """The same for circuits that can resume from one another's state, and for all members."""
        self._nodes: dict[str, StepNode] = {
            node.id: node for node in built(plan, member, max_state_bytes, kept)
        }
        self.inputs: dict[str, pa.Schema] = {
            id_: self._nodes[id_].schema for id_ in sorted(each.id for each in plan.inputs)
        }
        """The inputs of a step: Z-sets of this schema (the weight last), by input."""
        self.outputs: dict[str, pa.Schema] = {
            id_: self._nodes[id_].schema for id_ in sorted(each.id for each in plan.outputs)
        }
        """The outputs of a step: Z-sets of this schema, by output."""
        self.tables: dict[str, pa.Schema] = {
            id_: node.schema for id_, node in self._nodes.items() if isinstance(node.operator, Contents)
        }
        """The tables with contents: outputs, views, and inputs that are ``materialized``; Z-sets of this schema."""
        self.views: dict[str, tuple[str, ...]] = {each.id: each.key for each in plan.views}
        """Which of its tables are views, each with the columns by which its rows are found."""
        self._origins = [node.origin for node in self._nodes.values() if node.origin is not None]
        closing = [node for node in self._nodes.values() if node.closes]
        self._untimed = sorted(frozenset().union(*(node.untimed for node in closing)))
        self._held: frozenset[str] = frozenset()
        timed = idle_after(self.inputs, self._origins)
        self.idle_after_s = {**dict.fromkeys(self._untimed), **timed}
        """After how long without rows a source is not waited for, of the inputs whose sources event time waits for."""
        self.untimed = frozenset(self._untimed).difference(timed)
        """The inputs without event time."""
        self.open_windows: dict[str, tuple[int, int]] = {}
        """The windows that `show_open` has found at operators: the earliest start and the latest end."""
        self._nothing = {id_: empty(schema) for id_, schema in self.outputs.items()}
        self._given: dict[str, pa.RecordBatch] = {}
        self._kept = Kept()
        self._used = self._unfinished = self._shows_open = False

    def step(
        self,
        inputs: Mapping[str, pa.RecordBatch | Sequence[pa.RecordBatch]],
        sources: Mapping[str, Mapping[str, SourceRows]] = _NO_SOURCES,
        *,
        ended: bool = False,
    ) -> Generator[Sending | Offload | None, Received | None, dict[str, pa.RecordBatch]]:
        """Compute a step. Returns a Z-set for each output, with every row once; only one member has rows of it.

        ``sources`` are all of this member's that event time waits for, by input and name, also those without rows in
        the step; of ``inputs`` it does not.

        Gives None after a piece of work, where others may have their turn, ``Sending`` where it needs what comes from
        other members: it is resumed with that; and ``Offload`` for its caller to do before it is resumed. Pieces are
        bounded, except that one group of an aggregate is worked on at once, and so is what an output has in a step.

        ``ended``: event time ends with this step, at all members: every window that has begun is over. A later row is
        late in these, and opens others.
        """
        self._check_finished()
        self._used = self._unfinished = True
        self._held = frozenset(
            id_ for id_ in self._untimed if any(each.awaited for each in sources.get(id_, {}).values())
        )
        arrived = {
            id_: self._arrived(id_, inputs.get(id_, ()), sources.get(id_, {}))
            for id_ in {**inputs, **sources}
        }
        for id_, node in self._nodes.items():
            if id_ in arrived:
                yield from self._take_in(node, arrived[id_])
            elif node.exchange is not None:
                work = self._exchange if node.collects else self._align
                yield from work(node, node.exchange)
            elif node.window is not None:
                yield from self._pass_on(node, iter(node.window.take_late()))
            elif node.begins or any(node.waiting):
                yield from self._work_off(node)
            if node.origin is not None:
                node.origin.wait_for(_awaited(node.origin, sources))
                if not node.aligned:
                    _reach(node, [node.origin.seen])
            if node.closes and (due := self._due(node, ended=ended)) > node.watermark:
                yield from self._advance(node, due)
        self._check_views()
        self._unfinished = False
        given, self._given = self._given, {}
        return self._nothing | given

    def show_open(self) -> Generator[Sending | Offload | None, Received | None, dict[str, pa.RecordBatch]]:
        """Compute the additional rows of each output if event time ended now; in the form of `step`.

        It sets ``open_windows``. Saved state stays; the circuit itself is of no use afterwards.
        """
        self._shows_open = True
        shown = yield from self.step({}, ended=True)
        self._unfinished = True
        return shown

    def _due(self, node: StepNode, *, ended: bool) -> int:
        """Where event time is for an operator."""
        if ended:
            return max(node.due, node.due_at_end)
        return node.watermark if node.untimed & self._held else node.due

    def _check_views(self) -> None:
        """They hand on what they are given, and are measured here; what they have now can be read."""
        for id_ in self.views:
            self._nodes[id_].measure()
        if self.views:
            self.check_sums()

    def check_sums(self) -> None:
        """Raise ``DataflowError`` if a group has no row because of a sum that int64 cannot hold.

        Later steps may bring the sum back. It is to be called where none follows; of a circuit with views each step is
        like that.
        """
        for node in self._nodes.values():
            if isinstance(node.operator, Aggregate):
                try:
                    node.operator.check()
                except DataflowError as error:
                    raise error.at(node.id) from None

    def check_sinks(self, outputs: Mapping[str, pa.RecordBatch]) -> None:
        """Raise ``DataflowError`` for rows of a step that the sink of their output cannot take."""
        for id_, rows in outputs.items():
            self._nodes[id_].check_sink(rows)

    def save(self) -> Saved:
        """The state as it is between two steps, by reference: it does not change with later steps."""
        self._check_finished()
        return self._kept.compared(self._tables())

    def load(self, tables: Mapping[str, Mapping[bytes, Any]]) -> None:
        """Have the state be what was saved; of no tables it is that before the first step.

        The values, anything that has bytes, are used where they lie. Raises ``FormatUnknown``, ``CircuitChanged``,
        ``StateDamaged``.
        """
        if self._used:
            raise DataflowError("this circuit has begun a step: load the state into a new circuit")
        if not tables:
            return
        self._used = self._unfinished = True
        saved = Loading(CIRCUIT, tables.get(CIRCUIT, {})).manifest()
        if (format_ := saved.get("format")) not in saved_runs.READS:
            raise FormatUnknown(format_, saved_runs.READS)
        if saved.get("fingerprint") != self.fingerprint:
            raise CircuitChanged(str(saved.get("fingerprint")), self.fingerprint)
        if saved.get("member") != self.member:
            raise StateDamaged(
                CIRCUIT, "manifest", f"it is the state of member {saved.get('member')}, not {self.member}"
            )
        unknown = tables.keys() - self._stateful.keys() - {CIRCUIT}
        for table in unknown - self.inputs.keys() - self.outputs.keys():
            raise StateDamaged(table, "manifest", "the circuit has no operator with this table")
        for id_, node in self._stateful.items():
            if isinstance(node.operator, Contents) and id_ not in tables and id_ not in self.views:
                node.operator.forget()  # it was not requested, when the state began
            else:
                Loading(id_, tables.get(id_, {})).into(node.operator.states, node.recall)
        # A table that can no longer be queried is there until the next version is made.
        gone: Tables = {
            id_: {key: partial(bytes, value) for key, value in tables[id_].items()} for id_ in unknown
        }
        durable = {**self._tables(), **gone}
        if format_ == saved_runs.FORMAT:
            self._kept.loaded(durable)
        else:
            self._kept.loaded_to_replace(durable)
        self._unfinished = False

    def sharing(self, plan: SteppedPlan) -> Sharing:
        """Return the parts of this state for the members of another plan of the same query, by reference."""
        return Sharing(self._stateful.values(), self.member, plan, divisions(plan))

    @property
    def numbers(self) -> Numbers:
        """Return the state of its operators other than rows, between two steps."""
        self._check_finished()
        return {id_: node.numbers for id_, node in self._stateful.items()}

    def put_together(self, counting: Sequence[Counting], numbers: Sequence[Numbers]) -> Tables:
        """Return the state to save, in addition to the counting parts of those given by the members of another plan.

        ``counting`` and ``numbers`` are of all of them, one after the other. Raises ``StateDamaged``.
        """
        tables = put_together(self._stateful.values(), self.member, counting, numbers)
        return {CIRCUIT: identity(self.fingerprint, self.member), **tables}

    def contents(self, name: str) -> Sequence[Run] | None:
        """Return the contents of one of its ``tables`` at this member, between two steps; None: they were not kept.

        It is a Z-set in runs that never change; a row may stand in several.
        """
        self._check_finished()
        operator = self._nodes[name].operator
        if not isinstance(operator, Contents):
            raise KeyError(name)  # none of its `tables`
        return operator.runs if operator.is_complete else None

    def statistics(self) -> dict[str, OperatorStatistics]:
        """Return the counters of each operator of this member since it was made, by its id."""
        return {id_: node.statistics for id_, node in self._nodes.items()}

    @property
    def _stateful(self) -> dict[str, StepNode]:
        return {id_: node for id_, node in self._nodes.items() if node.keeps}

    def _tables(self) -> Tables:
        tables = {id_: table_of(node.operator.states, node.numbers) for id_, node in self._stateful.items()}
        return {CIRCUIT: identity(self.fingerprint, self.member), **tables}

    def _check_finished(self) -> None:
        if self._unfinished:
            raise DataflowError("a step of this circuit is not finished: load its state into a new circuit")

    def _arrived(
        self,
        id_: str,
        batches: pa.RecordBatch | Sequence[pa.RecordBatch],
        sources: Mapping[str, SourceRows],
    ) -> Sequence[tuple[str | None, Sequence[pa.RecordBatch]]]:
        """Return the rows of an input, by source; all of them together if event time does not begin with it."""
        if id_ not in self.inputs:
            raise DataflowError(f"{id_} is not one of the inputs {', '.join(self.inputs)}")
        batches = [batches] if isinstance(batches, pa.RecordBatch) else batches
        given = [(None, batches), *((name, each.rows) for name, each in sources.items())]
        for _, rows in given:
            for batch in rows:
                self._nodes[id_].check(batch, self.inputs[id_])
        if any(id_ in origin.inputs for origin in self._origins):
            return given
        return [(None, [batch for _, rows in given for batch in rows])]

    def _take_in(self, node: StepNode, given: Sequence[tuple[str | None, Sequence[pa.RecordBatch]]]) -> Work:
        """Take the rows of an input."""
        for source, batches in given:
            for origin in self._origins:
                origin.source = source
            for batch in portions(batches):
                node.rows_in += batch.num_rows
                yield from self._pass_on(node, node.operator.push(0, batch))
        for origin in self._origins:
            origin.source = None

    def _exchange(self, node: StepNode, exchange: ExchangeParts) -> Work:
        """Send rows to the members that they belong to, and continue with received rows."""
        rows = node.taken(0)
        if self.members > 1:
            sending = yield from exchange.of_rows(rows)
            rows = list((yield from _answered(sending)))
        for batch in portions(rows):
            self._give(node, batch)
            yield None

    def _align(self, node: StepNode, exchange: ExchangeParts) -> Work:
        """Have watermarks be where they are by what all members have seen."""
        own = [each.origin.seen for each in node.origins if each.origin is not None]
        own += [Seen(LEAST if id_ in self._held else GREATEST, LEAST, LEAST) for id_ in self._untimed]
        seen = [own]
        if self.members > 1:
            seen = [watermarks_of(each) for each in (yield from _answered(exchange.of_watermarks(own)))]
        places = [*zip(*seen, strict=True)]
        for origin, of_members in zip(node.origins, places, strict=False):
            _reach(origin, of_members)
        untimed = zip(self._untimed, places[len(node.origins) :], strict=True)
        self._held = frozenset(id_ for id_, each in untimed if min(each).awaited == LEAST)

    def _work_off(self, node: StepNode) -> Work:
        """Process the rows that an operator has collected until it had all."""
        match node.operator:
            case Join():
                yield from self._join(node, node.operator)
            case Aggregate():
                yield from self._aggregate(node, node.operator)
            case _:
                rows = concatenated(node.taken(0))
                contents = node.operator if isinstance(node.operator, Contents) else None
                if contents or not (node.follows_input and has_distinct_rows(rows)):
                    hashes = consolidated_hashes(rows) if node.follows_input else None
                    if hashes is None:
                        rows, hashes = canonical_and_hashes(rows)
                    if contents:
                        contents.keep(rows, hashes)
                        node.measure()
                node.rows_out += rows.num_rows
                self._given[node.id] = rows

    def _join(self, node: StepNode, join: Join) -> Work:
        made: list[pa.RecordBatch] = []
        for port, _ in enumerate(node.waiting):
            batches = node.taken(port)
            if batches and (state := join.looked_up(port)).owes_much:
                yield Offload(state.sort_now)
            for batch in portions(batches):
                if not node.cancels:
                    yield from self._pass_on(node, join.push(port, batch))
                    continue
                outputs = join.push(port, batch)
                while (each := node.next_of(outputs)) is not None:
                    made.append(each)
                    yield None
                node.measure()
        for batch in portions([canonical(concatenated(made))] if made else []):
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
                batch = canonical(concatenated(part)) if aggregate.adds_floats else concatenated(part)
                if batch.num_rows:
                    yield from self._pass_on(node, aggregate.push(0, batch))
        if node.begins:
            yield from self._pass_on(node, aggregate.begin())
            node.begins = False

    def _advance(self, node: StepNode, due: int) -> Work:
        """Event time has come to where it is due: give what is complete now."""
        node.watermark = due
        outputs = node.operator.advance(due)
        yield from self._pass_on(node, self._noting_open(node, outputs) if self._shows_open else outputs)

    def _noting_open(self, node: StepNode, outputs: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Return the output of an operator at its end, whose windows are recorded."""
        closing = node.closing
        for batch in outputs:
            if closing is not None and batch.num_rows:
                ends = instants_of(batch.column(closing.column)) + closing.to_end_us
                begin, end = self.open_windows.get(node.id, (GREATEST, LEAST))
                first = int(ends.min()) - node.span_us
                self.open_windows[node.id] = min(begin, first), max(end, int(ends.max()))
            yield batch

    def _pass_on(self, node: StepNode, outputs: Iterator[pa.RecordBatch]) -> Work:
        """Pass the output of an operator to its readers, each batch before the next is made."""
        while (batch := node.next_of(outputs)) is not None:
            self._give(node, batch)
            yield None
        node.measure()

    def _give(self, start: StepNode, batch: pa.RecordBatch) -> None:
        """Have an operator's readers process its output, and so on, or keep it until they have all of it."""
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


def _awaited(origin: StepOrigin, sources: Mapping[str, Mapping[str, SourceRows]]) -> Iterator[str]:
    """The sources that are waited for, of all whose rows come to where a watermark begins."""
    for id_, given in sources.items():
        if id_ in origin.inputs:
            yield from (name for name, each in given.items() if each.awaited)


def _reach(node: StepNode, seen: Sequence[Seen]) -> None:
    """Have the watermark of an operator be where it is by what all members know."""
    if node.origin is not None:
        node.reached = max(node.reached, reached_by(seen))
        node.latest = node.origin.time_of(greatest_of(seen))


def _answered(sending: Sending) -> Generator[Sending, Received | None, Received]:
    received = yield sending
    assert received is not None, "a circuit has to be given the rows from all members"
    return received


def _remainders(hashes: NDArray[np.uint64], parts: int) -> NDArray[np.int64]:
    """The lowest bits: by the highest ones rows are divided among members."""
    return (hashes % np.uint64(parts)).astype(np.int64)
