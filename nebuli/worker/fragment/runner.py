"""One fragment, running in a thread of its own."""

from __future__ import annotations

import logging
import time
from contextlib import contextmanager
from dataclasses import replace
from threading import Event, Thread
from typing import TYPE_CHECKING

import pyarrow as pa

from nebuli.connectors.endpoints import Signal
from nebuli.connectors.errors import (
    DownstreamLeft,
    FragmentError,
    FragmentStopped,
    InputError,
    InputGone,
    InputLost,
    NeighbourEnded,
    RowsLate,
    UpstreamFailed,
)
from nebuli.connectors.positions import Lineage
from nebuli.dataflow import Progress
from nebuli.dataflow.errors import DataflowError
from nebuli.engines import engine_of
from nebuli.exactness import is_exact
from nebuli.rpc.status import Cause, FragmentState, FragmentStatus
from nebuli.worker.fragment.idleness import Idleness
from nebuli.worker.fragment.late_rows import LateRows
from placement.plan import BoundSink, BoundSource, Fragment, Late, NetworkSink, NetworkSource

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from nebuli.connectors.endpoints import Sink, Source
    from nebuli.connectors.provider import Provider
    from nebuli.connectors.sinks.sink_locks import SinkLock
    from placement.plan import FragmentOperator
    from placement.stepped import AnyFragment

__all__ = ["FragmentRunner", "log_end"]

_log = logging.getLogger(__name__)

_BLAME: dict[type[Exception], tuple[FragmentState, Cause]] = {
    InputError: (FragmentState.FAILED, Cause.INPUT),
    InputGone: (FragmentState.FAILED, Cause.INPUT),
    InputLost: (FragmentState.FAILED, Cause.LOST),
    UpstreamFailed: (FragmentState.FAILED, Cause.UPSTREAM),
    DownstreamLeft: (FragmentState.STOPPED, Cause.DOWNSTREAM),
    FragmentStopped: (FragmentState.STOPPED, Cause.REQUEST),
}


class FragmentRunner:
    """Moves batches from sources through an engine into a sink, whichever source has one.

    Everything but the thread's own work is called on the loop; ``on_end`` is called by the thread, when it is over.
    ``resumed``: a predecessor has begun, and been killed; only for exact fragments. ``locks`` are those of the files
    that it writes to, and are let go of before anybody is told of the end.
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
        self.id = id_
        self.fragment = fragment
        self._engine = engine_of(fragment, max_state_bytes)
        self._idleness = Idleness(self._engine.idle_after_s)
        self._late = LateRows(fragment, self._engine)
        self._told = self._engine.progress
        self._on_end = on_end
        self._resumed = resumed
        self._locks = locks
        self._lineage = Lineage() if is_exact(fragment) else None
        self._sources: dict[str, Source] = {}
        self._ended: list[Source] = []
        self._sink: Sink | None = None
        self._unusable: FragmentError | None = None
        self._wake = Event()
        self._stopping = False
        self._status = FragmentStatus(id_, fragment.id, FragmentState.REGISTERED)
        self._thread = Thread(target=self._run, name=f"fragment {fragment.id}", daemon=True)

    @property
    def status(self) -> FragmentStatus:
        """The fragment as it is now."""
        return replace(self._status, phase="" if self._status.state.is_final else self._engine.phase)

    def start(self, provider: Provider) -> None:
        """Register its channels and begin to work; no counterpart needs to be there."""
        for operator in self.fragment.operators:
            try:
                self._make(operator, provider)
            except FragmentError as error:  # said by the thread, to whoever is at the other ends
                self._unusable = error
        self._sources.update(self._engine.start(self._wake.set))
        self._status.state = FragmentState.RUNNING
        self._thread.start()

    def _make(self, operator: FragmentOperator, provider: Provider) -> None:
        match operator:
            case BoundSource() | NetworkSource():
                self._sources[operator.id] = provider.source(operator, self._wake.set, self._lineage)
            case BoundSink() | NetworkSink():
                self._sink = provider.sink(operator, self._lineage, resumed=self._resumed)

    def stop(self) -> None:
        """Ask it to end; harmless when it has."""
        self._stopping = True
        self._wake.set()
        self._engine.interrupt()
        for each in [*self._sources.values(), self._sink]:
            if each is not None:
                each.interrupt()

    def _run(self) -> None:
        goes = "goes on" if self._resumed else "runs"
        _log.info("fragment %s at %s %s", self.fragment.id, self.fragment.node, goes)
        try:
            self._work()
        except Exception as error:  # noqa: BLE001 - whatever ends the fragment is told to whoever asks, and downstream
            state, cause = _BLAME.get(type(error), (FragmentState.FAILED, Cause.ITSELF))
            if not isinstance(error, FragmentError | DataflowError | pa.ArrowException):
                _log.exception("fragment %s failed", self.fragment.id)
            sentence = _sentence(error)
            told = self._origin(error, sentence)
            self._late.abort(sentence)
            # A place is left before the end is seen, for whoever waits for that; a reader may be told later.
            is_read = isinstance(self.fragment.operators[-1], NetworkSink)
            if not is_read:
                self._abort(told)
            self._release()
            self._end(state, cause, sentence)
            if is_read:
                self._abort(told)
            self._close(self._sources.values(), told)
        else:
            self._release()
            self._end(FragmentState.FINISHED, Cause.NONE, "")
            self._close(self._sources.values(), "it has finished")
        finally:
            self._close(self._ended, "it has ended")
            self._on_end()

    def _work(self) -> None:
        if self._unusable is not None:
            raise self._unusable
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

        Where event time is told by what is read, they go on together: all windows would be open until the last begins.
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
        if late and self.fragment.late is Late.FAIL:
            raise RowsLate(late)  # before its end: so whoever reads this fragment publishes nothing

    def _release(self) -> None:
        for lock in self._locks:
            lock.release()

    def _origin(self, error: Exception, sentence: str) -> str:
        """What neighbours are told: what this fragment was told, or its own reason. So it stays one, over all hops."""
        if isinstance(error, NeighbourEnded) and error.origin:
            return error.origin
        return f"fragment {self.fragment.id} at {self.fragment.node}: {sentence}"

    def _abort(self, reason: str) -> None:
        if self._sink is not None:
            with self._errors("sink"):
                self._sink.abort(reason)

    def _close(self, sources: Iterable[Source], reason: str) -> None:
        for source in sources:
            with self._errors("source"):
                source.close(reason)

    @contextmanager
    def _errors(self, what: str) -> Iterator[None]:
        """Log whatever it is: that the fragment ends has its reason already, and others wait to hear of it."""
        try:
            yield
        except Exception:  # noqa: BLE001 - which may be somebody else's code
            _log.exception("fragment %s: its %s cannot be closed", self.fragment.id, what)

    def _end(self, state: FragmentState, cause: Cause, error: str) -> None:
        log_end(self.fragment, state, error, self.id)
        # The state last: who sees the end, sees its reason.
        self._status.cause, self._status.error = cause, error
        self._status.state = state


def log_end(fragment: AnyFragment, state: FragmentState, error: str, id_: str) -> None:
    """Say how a fragment has ended, which its worker knows by ``id_``."""
    text = f"{state}: {error}" if error else str(state)
    level = logging.ERROR if state is FragmentState.FAILED else logging.INFO
    _log.log(level, "fragment %s at %s %s", fragment.id, fragment.node, text, extra={"fragment_id": id_})


def _sentence(error: Exception) -> str:
    if isinstance(error, FragmentError | DataflowError):
        return str(error)
    return f"{type(error).__name__}: {error}"
