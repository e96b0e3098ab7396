"""One fragment, running in a thread of its own."""

from __future__ import annotations

import logging
import time
from dataclasses import replace
from typing import TYPE_CHECKING

from nebuli.connectors.endpoints import Signal
from nebuli.connectors.errors import FragmentStopped, RowsLate, RowsWithoutTime
from nebuli.connectors.positions import Lineage
from nebuli.dataflow import Progress
from nebuli.exactness import is_exact
from nebuli.free import engine_of
from nebuli.free.fragment_thread import FragmentThread
from nebuli.free.idleness import Idleness
from nebuli.free.late_rows import LateRows
from placement.plan import BoundSink, BoundSource, Fragment, Late, NetworkSink, NetworkSource, window_times

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    import pyarrow as pa

    from nebuli.connectors.endpoints import Sink, Source
    from nebuli.connectors.provider import Provider
    from nebuli.connectors.sinks.sink_locks import SinkLock
    from nebuli.rpc.status import FragmentStatus
    from placement.plan import FragmentOperator

__all__ = ["FragmentRunner"]

_log = logging.getLogger(__name__)


class FragmentRunner(FragmentThread):
    """Moves batches from sources through an engine into a sink, whichever source has one.

    Only an exact fragment may be ``resumed``.
    """

    def __init__(
        self,
        id_: str,
        fragment: Fragment,
        on_end: Callable[[], None],
        *,
        max_state_bytes: int,
        resumed: bool = False,
        locks: Sequence[SinkLock] = (),
    ) -> None:
        super().__init__(id_, fragment, on_end, resumed=resumed, locks=locks)
        self._engine = engine_of(fragment, max_state_bytes)
        self._idleness = Idleness(self._engine.idle_after_s)
        self._late = LateRows(fragment, self._engine)
        self._told = self._engine.progress
        self._lineage = Lineage() if is_exact(fragment) else None
        self._sources: dict[str, Source] = {}
        self._ended: list[Source] = []
        self._sink: Sink | None = None

    @property
    def status(self) -> FragmentStatus:
        """The fragment as it is now."""
        return replace(self._status, phase="" if self._status.state.is_final else self._engine.phase)

    @property
    def _inputs(self) -> Mapping[str, Source]:
        return self._sources

    @property
    def _outputs(self) -> Sequence[Sink]:
        return [] if self._sink is None else [self._sink]

    def _begin(self, provider: Provider) -> None:
        self._sources.update(self._engine.start(self._wake.set))

    def stop(self) -> None:
        """Ask it to end; harmless when it has."""
        self._engine.interrupt()
        super().stop()

    def _fail(self, why: str) -> None:
        self._late.abort(why)

    def _let_go(self) -> None:
        self._close(self._ended, "it has ended")

    def _make(self, operator: FragmentOperator, provider: Provider) -> None:
        match operator:
            case BoundSource() | NetworkSource():
                self._sources[operator.id] = provider.source(operator, self._wake.set, self._lineage)
            case BoundSink() | NetworkSink():
                self._sink = provider.sink(operator, self._lineage, resumed=self._resumed)

    def _work(self) -> None:
        sink = self._sink
        assert sink is not None
        for source in self._sources.values():
            source.open()
        self._late.open()
        sink.open(self._engine.schema)
        while not self._engine.ended:
            self._wake.clear()  # before the sources are asked: what arrives meanwhile is not slept over
            if not self._turn(sink):
                self._wake.wait(self._idleness.wait_s(time.monotonic()))
        self._late.finish()
        self._status.rows_out += sink.finish()

    def _turn(self, sink: Sink) -> bool:
        """Ask sources once; whether any had something."""
        had_something = False
        for id_, source in self._asked():
            if self._stopping:
                raise FragmentStopped("stopped")
            match source.poll():
                case Signal.LATER:
                    if self._idleness.is_idle_now(id_, time.monotonic()):
                        _log.info("fragment %s does not wait for %s, which is idle", self.fragment.id, id_)
                        self._write(sink, self._engine.idle(id_))
                    continue
                case Signal.END:
                    # Closed when the sink is: only then is all that was made of it acknowledged.
                    self._ended.append(self._sources.pop(id_))
                    self._write(sink, self._engine.end(id_))
                case Progress() as progress:
                    self._write(sink, self._engine.advance(id_, progress))
                case batch:
                    if id_ in self._engine.sources:
                        self._status.rows_in += batch.num_rows
                        self._status.bytes_in += batch.nbytes
                    self._write(sink, self._engine.push(id_, batch))
            self._idleness.active(id_)
            had_something = True
        return had_something

    def _asked(self) -> list[tuple[str, Source]]:
        """The sources whose turn it is: all, but of those that are there from the beginning only the smallest.

        If event time comes from the rows, they advance together: all windows would be open until the last begins.
        """
        asked = list(self._sources.items())
        sizes = {id_: source.total_bytes for id_, source in asked if source.total_bytes is not None}
        if len(sizes) < 2 or self.fragment.watermarks or self.fragment.closings:
            return asked
        first = min(sizes, key=lambda id_: sizes[id_])
        return [(id_, source) for id_, source in asked if id_ not in sizes or id_ == first]

    def _write(self, sink: Sink, changes: Iterable[pa.RecordBatch]) -> None:
        for change in changes:
            self._status.rows_out += sink.write(change)
            self._status.bytes_out += change.nbytes
        self._late.write()
        if self._engine.progress != self._told and not self._engine.ended:
            self._told = self._engine.progress
            sink.advance(self._told)
        self._count()

    def _count(self) -> None:
        statistics = self._engine.statistics()
        late = {id_: each.late_rows for id_, each in statistics.items() if each.late_rows}
        self._status.late = late
        self._status.state_bytes = sum(each.state_bytes for each in statistics.values())
        self._status.watermark = self._engine.watermark
        without_time = {
            id_: each.rows_without_time for id_, each in statistics.items() if each.rows_without_time
        }
        self._status.without_time = without_time
        if self.fragment.late is Late.FAIL:  # before its end: so this fragment's reader publishes nothing
            if late:
                raise RowsLate(late)
            if without_time:
                raise RowsWithoutTime(without_time, window_times(self.fragment.operators))
