"""The contract of a raw source: ordered messages, each at its address, from any address on that the source still has.

A repeated read from an address gives the same messages at the same addresses, or an error that they are gone. That is
all that ingestion asks of a source; `nebuli.ingestion.testing` has the kit that tests it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, ClassVar

if TYPE_CHECKING:
    from collections.abc import Mapping

    import pyarrow as pa

    from .message_addresses import Addresses, Messages


class SourceReader(ABC):
    """One reader of a source, on one event loop; any number of them read it at once.

    All methods raise SourceAway if the source does not answer, which is retried by a new reader, and SourceUnusable if
    it does not match the definition. A call that is cancelled loses nothing, and ends.
    """

    unit: ClassVar[str] = "messages"
    """The unit of the difference of two addresses."""

    @property
    @abstractmethod
    def schema(self) -> pa.Schema:
        """The columns of its messages; known once it is open."""

    @property
    @abstractmethod
    def reads(self) -> str:
        """Return its input, as sentences name it."""

    @abstractmethod
    async def open(self, at: Mapping[str, int]) -> None:
        """Begin at an address in each part; a part that is not named begins where the source has it begin.

        Raises AddressGone if the source has messages after an address, but not the one at it.
        """

    @abstractmethod
    async def next(self) -> Messages:
        """The messages that come next, of one part; waited for without a deadline, as a source may idle.

        They are some, or none up to a later address, if a source advances without one: now and then, as it idles.
        Those of a part come in the order of addresses, without a gap between one's ``upper`` and the next's ``lower``.
        Raises AddressGone where the source has dropped what comes next.
        """

    @abstractmethod
    async def ends(self) -> Addresses:
        """Return, by part, the address after all present messages of the source."""

    async def release(self, before: Mapping[str, int]) -> None:  # noqa: B027 - a file is not notified
        """Notify the source that messages before these addresses are no longer needed."""

    async def forget(self) -> None:  # noqa: B027 - as above
        """Have the source keep nothing any more for this ingestion, which is over."""

    @abstractmethod
    async def close(self) -> None:
        """Let go of everything; harmless where that was done, or nothing was opened."""
