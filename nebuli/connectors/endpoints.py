"""What a fragment reads from and writes to: one interface for files, the terminal and the network.

All methods but ``interrupt`` are called by the fragment's own thread, and may block it.
"""

from __future__ import annotations

from enum import Enum, auto
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import pyarrow as pa

    from nebuli.dataflow import Progress

__all__ = ["Signal", "Sink", "Source"]


class Signal(Enum):
    """What a source has instead of a batch."""

    LATER = auto()
    """Nothing now; the source wakes the fragment when that changes."""
    END = auto()
    """Nothing any more: a clean end."""


class Source(Protocol):
    """Gives Z-sets: batches with a last column ``_weight``."""

    def open(self) -> None:
        """Open what is read; ``InputError`` where that is not there or not as the topology says."""

    def poll(self) -> pa.RecordBatch | Progress | Signal:
        """The next batch, or how far event time has come behind the last one, or why there is neither."""

    def close(self, reason: str) -> None:
        """Let go of everything, at the end or, for that reason, before it."""


class Sink(Protocol):
    """Takes Z-sets, and ends in one of two ways."""

    def open(self, schema: pa.Schema) -> None:
        """Prepare to write Z-sets of ``schema``, whose last column is the weight."""

    def write(self, change: pa.RecordBatch) -> int:
        """Take one change; how many rows went out."""

    def advance(self, progress: Progress) -> None:
        """Behind what was written, event time has come so far."""

    def finish(self) -> int:
        """The clean end: all is published, or known to be received. How many rows went out only now."""

    def abort(self, reason: str) -> None:
        """Any other end: nothing is published as if it were whole."""

    def interrupt(self) -> None:
        """From another thread: what blocks the fragment here, now or later, raises ``FragmentStopped``."""
