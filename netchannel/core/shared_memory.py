"""Memory that processes of one host share, as a core asks for it: an adapter makes it and hands it over."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

ALIGNMENT = 64
"""Bodies begin at multiples of so many bytes, and no two share one."""


class SharedMemory(ABC):
    """Shared memory as a host has it.

    ``place`` is equal for processes that can have memory in common, and should. ``size`` is how much of it a peer gets
    or is taken from one, in bytes.
    """

    place: bytes
    size: int

    @abstractmethod
    def hand_over(self, meeting: bytes, token: bytes, size: int) -> memoryview | None:
        """Memory of ``size`` bytes that this side writes, handed to the process that waits at ``meeting``.

        None if it fails.
        """

    @abstractmethod
    def expect(self, token: bytes, take: Callable[[memoryview | None], None]) -> bytes | None:
        """The place where memory is to be handed over with ``token``; None if nowhere.

        ``take`` gets it once, to be read only; None if what came is nothing to be read without harm.
        """

    @abstractmethod
    def expect_no_more(self, token: bytes) -> None:
        """Stop expecting a peer with ``token``."""

    @abstractmethod
    def give_back(self, memory: memoryview, offset: int, size: int) -> None:
        """Give the system back a part of the shared memory that is no longer read, while the rest is in use."""

    @abstractmethod
    def soon(self, action: Callable[[], None]) -> None:
        """Call ``action`` on the core's own thread; may be called anywhere, also in the middle of anything."""
