"""The bounds of a send buffer, by the application's policy."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .packer import MOST

if TYPE_CHECKING:
    from netchannel.policies import BufferPolicy

    from .store import Store

DEFAULT_MEMORY_BYTES = 1 << 26


class Bounds:
    """A policy, applied to what is kept; ``store`` is where messages are on disk, if they are."""

    __slots__ = ("_policy",)

    def __init__(self, policy: BufferPolicy) -> None:
        self._policy = policy

    @property
    def memory_bytes(self) -> int:
        """The bound of what is in memory, where messages go to disk."""
        most = self._policy.max_bytes
        return DEFAULT_MEMORY_BYTES if most is None else most

    def room(self, size: int, kept: int, kept_bytes: int, store: Store | None) -> bool:
        """True if a message of ``size`` bytes fits in with ``kept`` ones, of which ``kept_bytes`` are in memory."""
        policy = self._policy
        if policy.max_messages is not None and kept >= policy.max_messages:
            return False
        if store is not None:
            return store.room(size)
        return policy.max_bytes is None or kept_bytes + size <= policy.max_bytes

    def half_full(self, kept: int, kept_bytes: int) -> bool:
        """True if ``kept`` messages, of which ``kept_bytes`` are in memory, are half of what it takes, or more."""
        most, most_bytes = self._policy.max_messages, self._policy.max_bytes
        return (most is not None and 2 * kept >= most) or (
            most_bytes is not None and 2 * kept_bytes >= most_bytes
        )

    def credit(self, message_limit: int | None, kept_bytes: int, store: Store | None) -> int:
        """How many bytes of messages may be taken without asking."""
        policy = self._policy
        if policy.max_messages is not None:
            return 0
        most = MOST if message_limit is None else message_limit
        if store is not None:
            return min(most, store.credit())
        return most if policy.max_bytes is None else min(most, policy.max_bytes - kept_bytes)
