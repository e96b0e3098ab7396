"""The interface of a fragment's engine for the code that moves its batches."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    import pyarrow as pa

    from nebuli.connectors.endpoints import Source
    from nebuli.dataflow import OperatorStatistics, Progress

__all__ = ["Engine"]


class Engine(Protocol):
    """Takes the Z-sets of its sources, one at a time, and gives those of its result. Used by one thread."""

    @property
    def sources(self) -> Mapping[str, pa.Schema]:
        """The schema of the Z-sets that `push` takes, by the id of their source."""

    @property
    def schema(self) -> pa.Schema:
        """The schema of the Z-sets of the result."""

    @property
    def late_schemas(self) -> Mapping[str, pa.Schema]:
        """The schema of the rows that `take_late` gives, by the operator that drops them."""

    @property
    def idle_after_s(self) -> Mapping[str, float]:
        """Seconds without a batch after which a source is idle, for those that can be."""

    @property
    def progress(self) -> Progress:
        """Return how far event time has come after all emitted rows."""

    @property
    def watermark(self) -> int | None:
        """The same, in microseconds since 1970 UTC, if it has come anywhere."""

    @property
    def ended(self) -> bool:
        """True if the result has ended."""

    @property
    def phase(self) -> str:
        """Its current phase, if that takes long; otherwise empty."""

    def start(self, wake: Callable[[], None]) -> Mapping[str, Source]:
        """Begin, on the running loop: sources of its own that are to be polled with the others, by their ids."""

    def interrupt(self) -> None:
        """Have what blocks it, now or later, raise ``FragmentStopped``; called from any thread."""

    def push(self, source: str, batch: pa.RecordBatch) -> Iterable[pa.RecordBatch]:
        """Take a batch of a source; the changes of the result."""

    def advance(self, source: str, progress: Progress) -> Iterable[pa.RecordBatch]:
        """Event time has come so far in a source."""

    def idle(self, source: str) -> Iterable[pa.RecordBatch]:
        """Event time is not to wait for a source."""

    def end(self, source: str) -> Iterable[pa.RecordBatch]:
        """A source has ended."""

    def take_late(self) -> Iterable[tuple[str, pa.RecordBatch]]:
        """The rows that came when their window was over, since the last call, by operator."""

    def statistics(self) -> Mapping[str, OperatorStatistics]:
        """The operators' counts, by their ids."""
