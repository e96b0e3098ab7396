"""A fragment's operators as one running computation."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from nebuli.dataflow.aggregates.aggregate import Aggregate
from nebuli.dataflow.errors import DataflowError
from nebuli.dataflow.joins.join import Join
from nebuli.dataflow.placed_operators import OperatorNode, check_event_time
from nebuli.dataflow.progress import BEGINNING, END, Origin, Progress, combined
from nebuli.dataflow.window import Window
from nebuli.limits import DEFAULT_MAX_STATE_BYTES
from placement.plan import BoundSource, WindowOperator

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence

    import pyarrow as pa

    from nebuli.dataflow.placed_operators import OperatorStatistics
    from placement.plan import Closing, FragmentOperator, WatermarkOrigin


@dataclass(slots=True)
class _Node(OperatorNode):
    """The readers of an operator, with their ports, and how many of its inputs are open.

    ``inputs`` is how far event time has come at each port, ``progress`` what they make together; where a watermark
    begins, that counts instead.
    """

    open_inputs: int = 1
    inputs: list[Progress] = field(default_factory=list)
    progress: Progress = BEGINNING
    reader: _Node | None = None
    port: int = 0


class OperatorGraph:
    """Runs the operators of a fragment, given with inputs before their readers and the root last.

    It is synchronous and for one thread at a time. Each push is worked off through all operators; an
    operator takes whichever input has data. ``DataflowError`` names the operator and what it cannot
    compute, ``StateTooLarge`` the one whose state holds more than its own ``max_state_bytes`` or else the
    circuit's; after either the circuit is of no use.

    ``push``, ``advance``, ``idle`` and ``end`` give the changes at the root, possibly none, as they are made, so that
    all that a join makes of one batch is never in memory at once. They work only as far as they are asked: each is to
    be exhausted before the circuit is called again.

    ``watermarks`` are where event time comes from, in addition to sources that get it by ``advance``; ``closings``
    are the operators that are done with windows as it passes. No clock is read: the owner of the circuit reports when a
    source is idle.

    ``only_growing`` are aggregates whose input retracts no row: they keep less, and a retracted row is an error.
    """

    def __init__(
        self,
        operators: Sequence[FragmentOperator],
        *,
        watermarks: Sequence[WatermarkOrigin] = (),
        closings: Sequence[Closing] = (),
        only_growing: Collection[str] = (),
        max_state_bytes: int = DEFAULT_MAX_STATE_BYTES,
    ) -> None:
        self._max_state_bytes = max_state_bytes
        self._closings = {closing.operator: closing for closing in closings}
        self._only_growing = frozenset(only_growing)
        self._nodes: dict[str, _Node] = {}
        self._open: dict[str, _Node] = {}
        for operator in operators:
            self._add(operator)
        for settings in watermarks:
            check_event_time(self._nodes, settings.operator, settings.time)
            self._nodes[settings.operator].origin = Origin(settings)
        for closing in closings:
            check_event_time(self._nodes, closing.operator, closing.column)
        self._origins = self._origins_of_sources()
        self._idle: set[str] = set()
        self._windows = {
            each.id: window
            for each in operators
            if isinstance(each, WindowOperator)
            and each.late is not None
            and isinstance(window := self._nodes[each.id].operator, Window)
        }
        attached = {each.id for each in operators if isinstance(each, BoundSource)}
        self.idle_after_s: dict[str, float] = {
            source: node.origin.idle_after_s
            for source, node in self._origins.items()
            if node.origin is not None and node.origin.idle_after_s is not None and source in attached
        }
        """The sources for which ``idle`` is to be called, and after how long without rows.

        None of those beyond a network: what is down may be that.
        """
        self.progress = BEGINNING
        """How far event time has come at the root."""
        root = self._nodes[operators[-1].id]
        self.sources: dict[str, pa.Schema] = {id_: node.schema for id_, node in self._open.items()}
        """The inputs of ``push``: Z-sets of this schema (the weight last), by the id of their source."""
        self.schema: pa.Schema = root.schema
        """The schema of the Z-sets that come out at the root."""

    def push(self, source: str, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """Take a Z-set of ``source``."""
        node = self._open_source(source)
        node.check(batch, self.sources[source])
        node.rows_in += batch.num_rows
        self._idle.discard(source)
        yield from self._flow(node, iter((batch,)))
        begins = self._origins.get(source)
        if begins is not None and begins.origin is not None:
            yield from self._reached(begins, begins.origin.progress)

    def advance(self, source: str, progress: Progress) -> Iterator[pa.RecordBatch]:
        """Learn how far event time has come in ``source``."""
        yield from self._reached(self._open_source(source), progress)

    def idle(self, source: str) -> Iterator[pa.RecordBatch]:
        """Learn that ``source`` has had nothing for its ``idle_after_s``, and is not to be waited for until it has."""
        self._open_source(source)
        self._idle.add(source)
        yield from self._reached_if_idle(source)

    def end(self, source: str) -> Iterator[pa.RecordBatch]:
        """Learn that ``source`` has ended."""
        node = self._open_source(source)
        del self._open[source]
        yield from self._ended(node)
        yield from self._reached_if_idle(source)

    @property
    def watermark(self) -> int | None:
        """How far event time has come at the root, in microseconds; None: not known, or all sources have ended."""
        watermark = self.progress.watermark
        return None if watermark in (BEGINNING.watermark, END.watermark) else watermark

    def take_late(self) -> Iterator[tuple[str, pa.RecordBatch]]:
        """Return the rows dropped since the last call by windows with a place for late rows, by operator."""
        for id_, window in self._windows.items():
            yield from ((id_, batch) for batch in window.take_late())

    @property
    def late_schemas(self) -> dict[str, pa.Schema]:
        """The operators that ``take_late`` gives rows of, and the schema of these Z-sets."""
        return {id_: self._nodes[id_].schema for id_ in self._windows}

    @property
    def ended(self) -> bool:
        """True if all sources have ended, so that nothing more will come out."""
        return not self._open

    def statistics(self) -> dict[str, OperatorStatistics]:
        """Return the counters of each operator, by its id."""
        return {node.id: node.statistics for node in self._nodes.values()}

    def _open_source(self, source: str) -> _Node:
        if source in self._open:
            return self._open[source]
        what = (
            "has ended" if source in self.sources else f"is not one of the sources {', '.join(self.sources)}"
        )
        raise DataflowError(f"{source} {what}")

    def _ended(self, node: _Node) -> Iterator[pa.RecordBatch]:
        """An input of ``node`` has ended; with the last one it, and so on."""
        while True:
            node.open_inputs -= 1
            if node.open_inputs > 0:
                return
            yield from self._flow(node, node.operator.finish())
            yield from self._reached(node, END)
            if node.reader is None:
                return
            node.reader.operator.ended(node.port)
            node = node.reader
            node.measure()

    def _flow(self, start: _Node, outputs: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Pass on what ``start`` gives, each batch all the way before the next is asked for.

        Depth first, so that of what a join makes only one batch at a time is on its way.
        """
        stack = [(start, outputs)]
        while stack:
            node, outputs = stack[-1]
            batch = node.next_of(outputs)
            if batch is None:
                stack.pop()
                node.measure()
                continue
            if not batch.num_rows:
                continue
            node.rows_out += batch.num_rows
            if node.reader is None:
                yield batch
            else:
                node.reader.rows_in += batch.num_rows
                stack.append((node.reader, node.reader.operator.push(node.port, batch)))

    def _reached(self, node: _Node, progress: Progress) -> Iterator[pa.RecordBatch]:
        """The output of ``node`` has come to ``progress``: notify its readers, and so on.

        Not past a reader that this ends: before that one's readers may be notified, it has to emit its outstanding
        rows.
        """
        while node.reader is not None:
            reader = node.reader
            if progress.ended:  # its progress still counts among others that are idle
                progress = replace(reader.inputs[node.port], ended=True)
            reader.inputs[node.port] = progress
            progress = combined(reader.progress, reader.inputs)
            if progress == reader.progress:
                return
            moved = progress.watermark > reader.progress.watermark
            reader.progress = progress
            if moved:
                yield from self._flow(reader, reader.operator.advance(progress.watermark))
            if progress.ended:
                return
            node = reader
        self.progress = progress

    def _reached_if_idle(self, source: str) -> Iterator[pa.RecordBatch]:
        """If all open sources are idle whose watermark begins where that of ``source`` does, that is idle."""
        begins = self._origins.get(source)
        if begins is None or begins.origin is None:
            return
        waited_for = {other for other in self._open if self._origins.get(other) is begins}
        if waited_for and self._idle.issuperset(waited_for):
            yield from self._reached(begins, replace(begins.origin.progress, idle=True))

    def _origins_of_sources(self) -> dict[str, _Node]:
        """The place above each source where its watermark begins, for sources that have one."""
        found = {}
        for source, leaf in self._open.items():
            node: _Node | None = leaf
            while node is not None and node.origin is None:
                node = node.reader
            if node is not None:
                found[source] = node
        return found

    def _add(self, operator: FragmentOperator) -> None:
        children = [self._nodes[child] for child in operator.children]
        schemas = [child.columns for child in children]
        closing, only_grows = self._closings.get(operator.id), operator.id in self._only_growing
        node = _Node.of(operator, schemas, closing, self._max_state_bytes, only_grows=only_grows)
        node.open_inputs = max(1, len(children))
        node.inputs = [BEGINNING] * node.open_inputs
        for port, child in enumerate(children):
            child.reader, child.port = node, port
            if isinstance(child.operator, Join) and isinstance(node.operator, Aggregate):
                child.operator.leaves_coded = node.operator.takes_coded
        if not children:
            self._open[operator.id] = node
        self._nodes[operator.id] = node
