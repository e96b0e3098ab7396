"""`Roster`: which members a circuit has, durably, and how others take their place: all that their home decides."""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

if TYPE_CHECKING:
    from nebuli.steps.coordinator.generation import Generation

Wanted = TypeVar("Wanted")


class Roster(Protocol, Generic[Wanted]):
    """Members of this machine, of Spark, or at workers.

    The last write counts, even if a process dies before or after it. All methods raise StorageError and OSError.
    """

    async def first(self) -> Generation:
        """The members that the circuit has, which have no coordinator yet."""

    def wanted(self, members: int) -> Wanted:
        """So many members. Raises NotScaled if there is no place for them."""

    def number(self, wanted: Wanted) -> int:
        """The number of members that are ``wanted``."""

    def has(self, wanted: Wanted, now: Generation) -> bool:
        """True if the circuit has these. Raises NotScaled if they cannot follow those that it has."""

    async def candidates(self, wanted: Wanted, before: Generation) -> Generation:
        """Members that are to follow, noted so that they are taken away if they do not. Raises NotScaled."""

    async def become(self, after: Generation) -> None:
        """Note that the circuit is theirs."""

    async def tidy(self) -> None:
        """Take away members that are not to be there, with what they keep; may return before that is done."""

    async def release(self, before: Generation) -> None:
        """End processes of members that others have followed, as far as they end soon."""

    async def close(self) -> None:
        """Take no members away any more."""
