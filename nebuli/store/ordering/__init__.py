"""The order of events: a log of entries per key, durable and linearizable for all processes that have it open."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from xxhash import xxh3_64_intdigest

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["Bell", "Change", "Entry", "Lock", "Ordering", "checksum"]

_SIGNED = 1 << 63


@dataclass(frozen=True, slots=True)
class Entry:
    """An entry of a log. Sequences begin at 1 and have no gaps."""

    sequence: int
    data: bytes


@dataclass(frozen=True, slots=True)
class Change:
    """An entry to append to the log of ``key``, if its last sequence is ``expected``; 0 while it has none."""

    key: str
    expected: int
    data: bytes


def checksum(key: str, sequence: int, data: bytes) -> int:
    """Return the checksum of an entry's contents and of its place; signed, as the integers of databases are."""
    value = xxh3_64_intdigest(data, seed=xxh3_64_intdigest(f"{key}\0{sequence}".encode()))
    return value - (value >= _SIGNED) * (1 << 64)


class Bell(Protocol):
    """Rings for all that have the store open, when something was appended; at times for nothing."""

    def fileno(self) -> int:
        """The descriptor that can be read when it has rung."""

    def silence(self) -> None:
        """Silence it: its ring was noticed."""

    def close(self) -> None:
        """Close it: nothing waits for it any more."""


class Lock(Protocol):
    """A lock that is held, until this process ends at the latest."""

    def close(self) -> None:
        """Let it go."""


class Ordering(Protocol):
    """A store's logs, for one thread at a time; blocking. Methods raise `StorageError` if the system fails them."""

    def open(self) -> None:
        """Make it, if it is not there, and open it; called before all others."""

    def hurry(self) -> None:
        """Have calls wait for nothing that may take long, as `close` is called soon; from any thread."""

    def close(self) -> None:
        """Close it; called after all others, and maybe again."""

    def heads(self, keys: Sequence[str]) -> dict[str, int]:
        """The last sequence of each log, all at one moment; 0 while it has none."""

    def scan(self, key: str, after: int) -> list[Entry]:
        """The entries whose sequence is above ``after``, as far as they are kept. Raises EntryDamaged."""

    def append(self, changes: Sequence[Change]) -> None:
        """Append all of them or, raising `Conflict`, none. When it returns they are durable.

        After `Unclear` they are there or not, all or none; after any other error they are not.
        """

    def truncate(self, key: str, below: int) -> None:
        """Forget entries with lower sequences; the last entry of a log is always kept."""

    def keys(self, prefix: str) -> list[str]:
        """The keys that have a log and begin so, in order."""

    def unchanged(self) -> bool:
        """True if no other than this one has appended anything since it was last asked; cheap."""

    def bell(self) -> Bell:
        """A bell that rings from now on. Its caller closes it."""

    def lock(self, name: str) -> Lock:
        """Take it, at once. Raises `Locked`. Its caller closes it."""
