"""Inputs and outputs of fragments: one interface for files, the terminal and the network.

They are made on the worker's event loop. All methods but ``interrupt`` are called by the fragment's own thread, and may
block it; while they do, the fragment does nothing else. Exceptions end the fragment: an ``InputError`` or
``OutputError`` with its message, any other as a bug, with a traceback in the worker's log.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from enum import Enum, auto
from typing import TYPE_CHECKING, Protocol, runtime_checkable

if TYPE_CHECKING:
    from pathlib import Path

    import pyarrow as pa

    from nebuli.dataflow import Progress

__all__ = [
    "Contents",
    "DatedOutput",
    "DatedSource",
    "OnceOutput",
    "Output",
    "Rereadable",
    "Resumable",
    "Signal",
    "Sink",
    "Skipping",
    "Source",
]


class Signal(Enum):
    """The answer of a source that has no batch."""

    LATER = auto()
    """There is nothing now; the source wakes the fragment when that changes, or earlier."""
    END = auto()
    """There is nothing any more: a clean end. Nothing is asked of the source then but to close."""


class Source(ABC):
    """Gives Z-sets: batches with a last column ``_weight``.

    One that always gives the same rows may also have ``skip(rows)``, called after ``open``, to begin after so many
    rows; a fragment that resumes after a crash would read and drop them otherwise.
    """

    total_bytes: int | None = None
    """How much there is to read, if that is known once it is open and all of it is there.

    A fragment reads such sources one after the other, the smallest first, so that a join keeps no more than that.
    """

    @abstractmethod
    def open(self) -> None:
        """Open the source; ``InputError`` if it is not there or not as described in the topology."""

    @abstractmethod
    def poll(self) -> pa.RecordBatch | Progress | Signal:
        """Return the next batch, or how far event time has come after the last one, or why there is neither."""

    @abstractmethod
    def close(self, reason: str) -> None:
        """Let go of everything, at the end or, for that reason, before it; harmless where that was done."""

    def interrupt(self) -> None:  # noqa: B027 - most never wait
        """Have present and later waits raise ``FragmentStopped``; called from another thread."""


@runtime_checkable
class Rereadable(Protocol):
    """A source whose rows can be read again from a position that it gave."""

    def seek(self, position: str) -> None:
        """Begin there; called before `open`. The empty text is the beginning."""

    @property
    def position(self) -> str:
        """Return the position after all rows that `poll` has returned."""

    def release(self, position: str) -> None:
        """Rows before it will not be requested again."""


@runtime_checkable
class DatedSource(Protocol):
    """A `Rereadable` source whose positions are times. Without writers time advances automatically, but slowly."""

    def apart(self) -> None:
        """Have each batch be of one time, also one that has no rows; called before `Source.open`."""

    def hasten(self) -> None:
        """Have it move on now; called from another thread."""


@runtime_checkable
class Contents(Protocol):
    """A source that has nothing for a while before it gives what was there when it was opened."""

    @property
    def is_whole(self) -> bool:
        """True if `Source.poll` has returned all of that."""


@runtime_checkable
class Skipping(Protocol):
    """A source that always gives the same rows, and need not read those that are not needed."""

    def skip(self, rows: int) -> None:
        """Begin after so many rows; called after `open`."""


class Output(ABC):
    """The place where a sink's rows end up. Takes them in order, after ``open`` and up to ``publish``, or ``discard``.

    In mode ``final`` rows come when the query has ended, all at once, and what was there before is there until
    ``publish``; where the output ``is_aside``, they may come earlier. In the modes ``append`` and ``changes`` they come
    as they are; their last column in ``changes`` is the ``_weight``.
    """

    is_aside: bool = False
    """Nothing that is written is seen before ``publish``, whatever the mode, nor after ``discard``."""

    @property
    def directory(self) -> Path | None:
        """A directory with room for as much as is written; None: wherever temporary files go."""
        return None

    @abstractmethod
    def open(self, schema: pa.Schema) -> None:
        """Begin; ``OutputError`` where it cannot be written."""

    @abstractmethod
    def write(self, batch: pa.RecordBatch) -> None:
        """Take rows."""

    @abstractmethod
    def publish(self) -> None:
        """End: all rows are written, and durable where that means something. Only then do they count as the result."""

    @abstractmethod
    def discard(self) -> None:
        """Let go of everything, because of a failure; also where ``open`` has failed, or was not called."""

    def interrupt(self) -> None:  # noqa: B027 - most never wait
        """Have present and later waits raise ``FragmentStopped``; called from another thread."""


@runtime_checkable
class Resumable(Protocol):
    """An output that a later run can continue at one of its positions, in the modes ``append`` and ``changes``.

    One that cannot is rewritten by each run of a query in steps, from the first step, and all steps are kept.
    """

    def resume(self, position: str) -> None:
        """Continue there; called before `Output.open`, which drops later rows, if it can.

        ``open`` raises OutputGone where there is nothing any more, OutputChanged where something else is.
        """

    def sync(self) -> str:
        """Make all written rows durable, even through the end of this process or machine.

        Returns the position after them.
        """


@runtime_checkable
class DatedOutput(Protocol):
    """A `Resumable` output whose rows can be of times; those that are written again are of the same ones."""

    def give_times(self) -> None:
        """Have it know that `at` is called; called before `Output.open`."""

    @property
    def is_dated(self) -> bool:
        """True if it needs times; known once it is open."""

    def at(self, time: int) -> None:
        """All that was written since the time before is of this one. It is complete, and durable with `sync`."""


@runtime_checkable
class OnceOutput(Protocol):
    """An output that takes the result of a query once, in mode ``final``, however often the query starts over."""

    def identify(self, query: str) -> None:
        """Set the id of the query; called before `Output.open`."""


class Sink(Protocol):
    """Takes Z-sets, and ends in one of two ways."""

    def open(self, schema: pa.Schema) -> None:
        """Prepare to write Z-sets of ``schema``, whose last column is the weight."""

    def write(self, change: pa.RecordBatch) -> int:
        """Take one change; how many rows went out."""

    def advance(self, progress: Progress) -> None:
        """Take how far event time has come, after the written rows."""

    def finish(self) -> int:
        """The clean end: all is published, or known to be received. How many rows went out only now."""

    def abort(self, reason: str) -> None:
        """End in any other way: nothing is published as if it were whole."""

    def interrupt(self) -> None:
        """Have what blocks the fragment here, now or later, raise ``FragmentStopped``; called from another thread."""
