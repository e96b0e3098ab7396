"""The thread of every fragment: it begins, works, and reports its state and its end."""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from contextlib import contextmanager
from threading import Event, Thread
from typing import TYPE_CHECKING

import pyarrow as pa

from nebuli.connectors.errors import (
    DownstreamLeft,
    FragmentError,
    FragmentStopped,
    InputError,
    InputGone,
    InputLost,
    NeighbourEnded,
    UpstreamFailed,
)
from nebuli.dataflow.errors import DataflowError
from nebuli.rpc.status import Cause, FragmentState, FragmentStatus
from placement.plan import NetworkSink

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from typing import Protocol

    from nebuli.connectors.provider import Provider
    from nebuli.connectors.sinks.sink_locks import SinkLock
    from placement.plan import Fragment, FragmentOperator
    from placement.stepped_plan import AnyFragment

    class Interruptible(Protocol):
        """An endpoint that may block the thread."""

        def interrupt(self) -> None:
            """Have it raise ``FragmentStopped`` there, now or later."""

    class Closable(Interruptible, Protocol):
        """An input."""

        def close(self, reason: str) -> None:
            """Read no more, for that reason."""

    class Abortable(Interruptible, Protocol):
        """An output."""

        def abort(self, reason: str) -> None:
            """Write no more, for that reason, and do not count what was written as whole."""


__all__ = ["FragmentThread", "log_end"]

_log = logging.getLogger(__name__)

_BLAME: dict[type[Exception], tuple[FragmentState, Cause]] = {
    InputError: (FragmentState.FAILED, Cause.INPUT),
    InputGone: (FragmentState.FAILED, Cause.INPUT),
    InputLost: (FragmentState.FAILED, Cause.LOST),
    UpstreamFailed: (FragmentState.FAILED, Cause.UPSTREAM),
    DownstreamLeft: (FragmentState.STOPPED, Cause.DOWNSTREAM),
    FragmentStopped: (FragmentState.STOPPED, Cause.REQUEST),
}


class FragmentThread(ABC):
    """A fragment that runs in a thread of its own, from its start to its end.

    Everything but the thread's own work is called on the loop; ``on_end`` is called by the thread, when it is over.
    ``resumed``: a predecessor has begun, and been killed. ``locks`` are those of the files that it writes to, and are
    released before the end is reported.
    """

    def __init__(
        self,
        id_: str,
        fragment: Fragment,
        on_end: Callable[[], None],
        *,
        resumed: bool = False,
        locks: Sequence[SinkLock] = (),
    ) -> None:
        self.id = id_
        self.fragment = fragment
        self._on_end = on_end
        self._resumed = resumed
        self._locks = locks
        self._unusable: FragmentError | None = None
        self._wake = Event()
        self._stopping = False
        self._status = FragmentStatus(id_, fragment.id, FragmentState.REGISTERED)
        self._thread = Thread(target=self._run, name=f"fragment {fragment.id}", daemon=True)

    @property
    def status(self) -> FragmentStatus:
        """The fragment as it is now."""
        return self._status

    def start(self, provider: Provider) -> None:
        """Register its channels and begin to work; no counterpart needs to be there."""
        for operator in self.fragment.operators:
            try:
                self._make(operator, provider)
            except FragmentError as error:  # sent by the thread, to the other ends
                self._unusable = error
        self._begin(provider)
        self._status.state = FragmentState.RUNNING
        self._thread.start()

    def stop(self) -> None:
        """Ask it to end; harmless when it has."""
        self._stopping = True
        self._wake.set()
        for each in [*self._inputs.values(), *self._outputs]:
            each.interrupt()

    @property
    @abstractmethod
    def _inputs(self) -> Mapping[str, Closable]:
        """Its inputs, as long as they have not ended."""

    @property
    @abstractmethod
    def _outputs(self) -> Sequence[Abortable]:
        """Its outputs: one, or one for each of several shards."""

    @abstractmethod
    def _make(self, operator: FragmentOperator, provider: Provider) -> None:
        """Make what an operator reads or writes. Raises FragmentError."""

    @abstractmethod
    def _begin(self, provider: Provider) -> None:
        """Do what is left to do on the loop before the thread begins."""

    @abstractmethod
    def _work(self) -> None:
        """Work to the end. An exception is the reason of an earlier end."""

    @abstractmethod
    def _fail(self, why: str) -> None:
        """Release its other outputs, before the end is reported."""

    @abstractmethod
    def _let_go(self) -> None:
        """Let go of what is left, once the end is known."""

    def _run(self) -> None:
        goes = "continues" if self._resumed else "runs"
        _log.info("fragment %s at %s %s", self.fragment.id, self.fragment.node, goes)
        try:
            if self._unusable is not None:
                raise self._unusable
            self._work()
        except Exception as error:  # noqa: BLE001 - any error that ends the fragment is reported to clients, and downstream
            state, cause = _BLAME.get(type(error), (FragmentState.FAILED, Cause.ITSELF))
            if not isinstance(error, FragmentError | DataflowError | pa.ArrowException):
                _log.exception("fragment %s failed", self.fragment.id)
            sentence = _sentence(error)
            told = self._origin(error, sentence)
            self._fail(sentence)
            # A place is left before the end is seen, for those that wait for that; a reader may be notified later.
            is_read = isinstance(self.fragment.operators[-1], NetworkSink)
            if not is_read:
                self._abort(told)
            self._release()
            self._end(state, cause, sentence)
            if is_read:
                self._abort(told)
            self._close(self._inputs.values(), told)
        else:
            self._release()
            self._end(FragmentState.FINISHED, Cause.NONE, "")
            self._close(self._inputs.values(), "it has finished")
        finally:
            self._let_go()
            self._on_end()

    def _release(self) -> None:
        for lock in self._locks:
            lock.release()

    def _origin(self, error: Exception, sentence: str) -> str:
        """Return the reason for neighbours: the one this fragment was given, or its own.

        So it stays one, over all hops.
        """
        if isinstance(error, NeighbourEnded) and error.origin:
            return error.origin
        return f"fragment {self.fragment.id} at {self.fragment.node}: {sentence}"

    def _abort(self, reason: str) -> None:
        for output in self._outputs:
            with self._errors("sink"):
                output.abort(reason)

    def _close(self, sources: Iterable[Closable], reason: str) -> None:
        for source in sources:
            with self._errors("source"):
                source.close(reason)

    @contextmanager
    def _errors(self, what: str) -> Iterator[None]:
        """Log any error: the fragment's end has its reason already, and others wait for it."""
        try:
            yield
        except Exception:  # noqa: BLE001 - which may be third-party code
            _log.exception("fragment %s: its %s cannot be closed", self.fragment.id, what)

    def _end(self, state: FragmentState, cause: Cause, error: str) -> None:
        log_end(self.fragment, state, error, self.id)
        # The state last: a client that sees the end also sees its reason.
        self._status.cause, self._status.error = cause, error
        self._status.state = state


def log_end(fragment: AnyFragment, state: FragmentState, error: str, id_: str) -> None:
    """Log how a fragment has ended, which its worker knows by ``id_``."""
    text = f"{state}: {error}" if error else str(state)
    level = logging.ERROR if state is FragmentState.FAILED else logging.INFO
    _log.log(level, "fragment %s at %s %s", fragment.id, fragment.node, text, extra={"fragment_id": id_})


def _sentence(error: Exception) -> str:
    if isinstance(error, FragmentError | DataflowError):
        return str(error)
    return f"{type(error).__name__}: {error}"
