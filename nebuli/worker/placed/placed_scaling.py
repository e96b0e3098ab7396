"""`PlacedScaling`: a coordinator at a worker has other members take the place of those that it has."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from nebuli.members.errors import NotScaled
from nebuli.members.local.succession import GivenUp, given_ahead, handed_over, saved
from nebuli.members.scaling.layout import Layout
from nebuli.storage import StorageError
from nebuli.worker.fragment.step_runner import cancelled
from nebuli.worker.placed.member_workers import Watched

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from nebuli.members.calls.call_routes import CallRoutes
    from nebuli.rpc.following_members import MemberPlace, Succession
    from nebuli.worker.placed.member_notes import MemberNotes, Whose
    from nebuli.worker.placed.member_workers import MemberWorkers
    from nebuli.worker.placed.placed_members import PlacedMembers

__all__ = ["PlacedScaling"]

_log = logging.getLogger(__name__)
_PUSH_S = 10.0
"""How long a push that waits for room holds up a scaling."""


class _Following:
    """Members that are to follow."""

    def __init__(self, members: Watched) -> None:
        self.members = members


class PlacedScaling:
    """Says, in its notes, whose the circuit is; ``made`` makes members of it, with a coordinator.

    Whoever is not to be there is taken away: `begin` begins with those that a process before this one has left.
    """

    def __init__(
        self,
        notes: MemberNotes,
        workers: MemberWorkers,
        calls: CallRoutes,
        made: Callable[[Whose], Awaitable[PlacedMembers]],
    ) -> None:
        self._notes = notes
        self._workers = workers
        self._calls = calls
        self._made = made
        self._clearing: asyncio.Task[None] | None = None
        self.is_decided = False
        """Whether those who are to follow may be noted as the members: from then on only the note says whose it is."""

    def begin(self) -> None:
        """Take away who is not to be there, however long that takes."""
        self._clearing = asyncio.create_task(self._clear())

    async def close(self) -> None:
        """Take nobody away any more."""
        if self._clearing is not None:
            await cancelled([self._clearing])

    async def _clear(self) -> None:
        async def one(place: MemberPlace) -> None:
            await self._workers.forget(place)
            async with changing:
                await self._notes.write(self._notes.whose.without(place))

        changing = asyncio.Lock()
        try:
            async with asyncio.TaskGroup() as group:
                for each in self._notes.whose.leaving:
                    group.create_task(one(each))
        except* OSError as errors:
            _log.warning("who has left is looked for again by the next process: %s", errors.exceptions[0])

    async def succeed(self, before: PlacedMembers, succession: Succession) -> PlacedMembers:
        """Have others take the place of members: the others, which have a coordinator that does not run yet.

        Raises NotScaled: those before go on. StorageError, OSError: whose it is, only the note says, and nobody is
        taken away before another process has read it.
        """
        await self.close()
        try:
            after = await self._succeed(before, succession)
        except NotScaled:
            self.begin()
            raise
        self.begin()
        return after

    async def _succeed(self, before: PlacedMembers, succession: Succession) -> PlacedMembers:
        whose = self._notes.whose
        # First: whatever ends this process, the next one takes them away.
        begun = whose.model_copy(update={"leaving": (*whose.leaving, *succession.places)})
        try:
            await self._notes.write(begun)
        except (StorageError, OSError) as error:  # nothing has changed, whether it is there or not
            raise NotScaled(
                len(succession.members), f"it cannot be noted who is to follow: {error}"
            ) from error
        watched = Watched()
        watching: asyncio.Task[None] | None = None
        try:
            await saved(before)
            processes = await self._workers.begin(succession.fragments)
            watching = asyncio.create_task(self._workers.watch(processes, watched))
            handover = _Handover(before, succession, watched)
            await handover.begin()
            async with self._calls.held(_PUSH_S):
                await handover.end()
                self.is_decided = True
                await self._notes.write(whose.followed_by(succession))  # from here on, whatever dies
                before.over.set()
                await before.left.wait()  # nobody greets them any more, and has them open their sinks
                after = await self._made(self._notes.whose)
                await self._workers.end(whose.places or succession.before)
                await before.close()
                self._calls.lead(after.calls)
                self.is_decided = False
                return after
        except (GivenUp, TimeoutError) as error:
            if self.is_decided:  # the note's place may be too slow
                raise
            await before.take_back()
            waited = f"a push has waited {_PUSH_S:g} s for room: start the circuit if it is paused"
            raise NotScaled(len(succession.members), watched.why or str(error) or waited) from error
        except asyncio.CancelledError:
            if not self.is_decided:
                await before.take_back()
            raise
        finally:
            if watching is not None:
                await cancelled([watching])


class _Handover:
    """What there is goes from members to those that follow them. Raises GivenUp: those before go on."""

    def __init__(self, before: PlacedMembers, succession: Succession, watched: Watched) -> None:
        members = succession.members
        takeover = members[0].takeover
        assert takeover is not None, "they follow others"
        layout = Layout.of(members[0].plan, tuple(each.feeds for each in members))
        self._layout = layout.model_copy(update={"transfer": takeover.transfer})
        self._before = before
        self._following = _Following(watched)
        self._addresses = [each.node for each in members]
        self._epoch = 0

    async def begin(self) -> None:
        """Most of it, while steps go on."""
        self._epoch = await given_ahead(self._before, self._following, self._layout, self._addresses)

    async def end(self) -> None:
        """The rest of it, between two steps."""
        try:
            await handed_over(self._before, self._following, self._layout, self._addresses, self._epoch)
        except (GivenUp, StorageError) as error:
            await self._before.go_on()
            raise GivenUp(str(error)) from error
        except asyncio.CancelledError:
            await self._before.go_on()
            raise
