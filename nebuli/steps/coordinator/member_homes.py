"""Where the members of a circuit live.

The interface that they have as processes of this machine and as tasks of Spark.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from types import TracebackType
    from typing import Self

    from nebuli.steps.coordinator.member_connection import MemberConnection
    from nebuli.steps.member.member_order import MemberOrder
    from netchannel import ReceiverServer


ENDED_ABOVE = "a member that should take over has ended: see the reason in its log lines above"


class Members(Protocol):
    """All members of a circuit: entered, they are begun, and begun again when they end; left, they have ended.

    Their lines are notified where they listen, whenever that changes. One that was dismissed is not begun again.
    """

    @property
    def ended(self) -> asyncio.Event:
        """Set once a member has ended, though it is begun again."""

    @property
    def why_ended(self) -> str:
        """The reason, in a sentence for an error."""

    async def __aenter__(self) -> Self:
        """Begin them; returns at once."""

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """End them."""

    def process(self, member: int) -> int | None:
        """The process id of a member, while it has one on this machine."""

    async def taking(self) -> list[str]:
        """The addresses at which all listen for what they take over, once they do."""

    async def failed(self) -> None:
        """Wait until they cannot be kept: raises MembersFailed, with the last error message."""


class Home(Protocol):
    """Where members live."""

    host: str
    """The address of this machine at which members reach the coordinator."""

    def members(
        self,
        orders: Sequence[MemberOrder],
        lines: Sequence[MemberConnection],
        receiver: ReceiverServer,
        done: Callable[[], int],
    ) -> Members:
        """Those of a circuit, one for each order, with its line.

        ``receiver`` is the coordinator's. ``done`` returns how much all have done together: members that end are
        restarted as long as that grows.
        """


class TakingAt:
    """Where so many members listen for what they take over."""

    def __init__(self, members: int) -> None:
        self._members = members
        self._addresses: dict[int, str] = {}
        self._all = asyncio.Event()

    def hear(self, member: int, address: str) -> None:
        """A process of a member reports it."""
        self._addresses[member] = address
        if len(self._addresses) == self._members:
            self._all.set()

    async def all(self) -> list[str]:
        """The addresses, by member, once all listen."""
        await self._all.wait()
        return [self._addresses[member] for member in range(self._members)]
