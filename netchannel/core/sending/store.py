"""The interface between a sender's channel and the storage of its messages on disk.

`netchannel.storage` has what does.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .packer import Ticket
    from .send_buffer import Record


class Store(ABC):
    """Takes messages to the disk, and brings them back when they are to be sent.

    ``settled``: it holds no files any more.
    """

    settled = False

    @property
    @abstractmethod
    def disk_bytes(self) -> int:
        """The size of its files."""

    @abstractmethod
    def room(self, size: int) -> bool:
        """True if ``size`` more bytes may be taken now."""

    @abstractmethod
    def credit(self) -> int:
        """How many bytes may be taken without asking for `room` each time; below 1: none."""

    @abstractmethod
    def taken(self) -> None:
        """The channel has taken a message."""

    @abstractmethod
    def request(self) -> None:
        """Look for something to do."""

    @abstractmethod
    def read_ahead(self) -> None:
        """Read ahead: what is on disk only may have to be sent soon."""

    @abstractmethod
    def acknowledged(self, now: float) -> None:
        """Note that more is acknowledged: its space is free soon."""

    @abstractmethod
    def leave(self, *, discard: bool) -> None:
        """The channel is over: close the files once the job at hand is done, and remove them if requested."""


class DurableStore(Store):
    """A store that has each record on disk before it goes out: all below ``upto``, and the end if ``finished``."""

    upto: int
    finished: bool

    @property
    @abstractmethod
    def uncommitted_bytes(self) -> int:
        """Bytes of messages that are in memory only."""

    @abstractmethod
    def take(self, record: Record, ticket: Ticket, taken_bytes: int) -> None:
        """Make ``record`` durable; ``taken_bytes`` are of all messages before it."""
