"""`Running`: what a circuit's service asks of whoever runs the circuit, on this machine or at workers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from nebuli.coordinator.coordinator import Coordinator
    from nebuli.members.calls.call_routes import CallRoutes
    from nebuli.storage import Span
    from nebuli.storage.logs.remap import Offsets
    from placement.stepped import SteppedPlan


class Running(Protocol):
    """A circuit with its coordinator in this process, and its members wherever they are."""

    calls: CallRoutes
    """The ways into the members' input logs."""

    @property
    def plan(self) -> SteppedPlan:
        """What the members run."""

    @property
    def external(self) -> Sequence[str]:
        """The inputs that are pushed into."""

    @property
    def coordinator(self) -> Coordinator:
        """The one that there is now."""

    def follow(self, output: str, first: int) -> AsyncIterator[Span]:
        """An output from a step on. Raises SinceMismatch, StorageError."""

    async def offsets(self, member: int, step: int) -> Offsets:
        """What counts for a step at a member. Raises StepOutOfRange, StorageError."""

    def process(self, member: int) -> int | None:
        """The process id of a member, while it has one that is known."""

    @property
    def over(self) -> int | None:
        """The step that nothing follows in any output, once the circuit has come to its end."""

    async def pause(self) -> None:
        """Have no more steps made, until `start`. Raises OSError."""

    async def start(self) -> None:
        """Have steps made again. Raises OSError."""

    async def scale(self, members: int) -> int:
        """Go on with so many members; their first step. Raises NotScaled (of members), StorageError, OSError."""

    async def shut_down(self) -> None:
        """Begin to end the circuit, whose sinks have their results then. Raises OSError."""
