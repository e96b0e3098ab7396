"""`PlacedRoster`: the members of a circuit that live at workers, as the coordinator's note has them."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from nebuli.cancellation import cancelled
from nebuli.node.placed.member_workers import Watched
from nebuli.steps.coordinator.generation import Generation
from nebuli.steps.errors import NotScaled
from nebuli.steps.logs.epoch_log import EpochLog
from nebuli.steps.member.scaling.layout import Layout
from nebuli.store import StorageError

if TYPE_CHECKING:
    from types import TracebackType
    from typing import Self

    from nebuli.node.placed.member_notes import MemberNotes
    from nebuli.node.placed.member_workers import MemberWorkers
    from nebuli.rpc.member_places import MemberPlace, Succession
    from nebuli.store import Store
    from netchannel import ReceiverServer, SenderServer

__all__ = ["PlacedMembers", "PlacedRoster"]

_log = logging.getLogger(__name__)


class PlacedMembers:
    """Members at workers, which keep their processes; those of a ``succession`` are begun from here."""

    def __init__(self, workers: MemberWorkers, succession: Succession | None = None) -> None:
        self._workers = workers
        self._succession = succession
        self._watched = Watched()
        self._watching: asyncio.Task[None] | None = None

    @property
    def ended(self) -> asyncio.Event:
        """Set once a process of those that are to follow has ended."""
        return self._watched.ended

    @property
    def why_ended(self) -> str:
        """The reason."""
        return self._watched.why

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.have_followed()

    async def taking(self) -> list[str]:
        """Register and start members that take over: where they listen, once all do. Raises GivenUp."""
        assert self._succession is not None, "they follow others"
        processes = await self._workers.begin(self._succession.fragments)
        self._watching = asyncio.create_task(self._workers.watch(processes, self._watched))
        return [each.node for each in self._succession.members]

    async def have_followed(self) -> None:
        """Leave it to the workers to look after their processes."""
        if self._watching is not None:
            await cancelled([self._watching])

    def process(self, member: int) -> int | None:
        """None: its worker knows."""
        return None

    async def failed(self) -> None:
        """Wait forever: workers start processes of members again, and an operator sees what fails there."""
        await asyncio.Event().wait()


class PlacedRoster:
    """The members of a query that ``notes`` name.

    The coordinator keeps ``epochs``, and is reached at ``node``.
    """

    def __init__(
        self,
        query: str,
        notes: MemberNotes,
        workers: MemberWorkers,
        *,
        epochs: Store,
        node: str,
        sender: SenderServer,
        receiver: ReceiverServer,
    ) -> None:
        self._query = query
        self.notes = notes
        self._workers = workers
        self._epochs = epochs
        self._node = node
        self._sender = sender
        self._receiver = receiver
        self._succession: Succession | None = None
        self._followed: tuple[MemberPlace, ...] = ()
        self._clearing: asyncio.Task[None] | None = None

    async def first(self) -> Generation:
        """Those of the note."""
        whose = self.notes.whose
        return Generation(
            whose.circuit,
            whose.plan,
            await EpochLog.open(self._epochs, whose.circuit),
            sender=self._sender,
            receiver=self._receiver,
            addresses=whose.addresses,
            answer_to=self._node,
            members=lambda _lines, _done: PlacedMembers(self._workers),
        )

    def wanted(self, members: int) -> Succession:
        """None: a command that has the topology places them."""
        raise NotScaled(
            members,
            f"the topology is needed to select the workers of new members: run 'nebuli scale {self._query} "
            f"--members {members}' on the machine where the query was registered",
        )

    def number(self, wanted: Succession) -> int:
        """That of its members."""
        return len(wanted.members)

    def has(self, wanted: Succession, _: Generation) -> bool:
        """True if the note names them."""
        whose = self.notes.whose
        if (whose.circuit, whose.places) == (wanted.circuit, wanted.places):
            return True
        if whose.places not in ((), wanted.before):
            raise NotScaled(self.number(wanted), "its members have changed since the caller read them")
        return False

    async def candidates(self, wanted: Succession, _: Generation) -> Generation:
        """Record the successors before anything is begun: the next process takes them away if this one dies."""
        await self.close()
        whose = self.notes.whose
        noted = whose.model_copy(update={"leaving": (*whose.leaving, *wanted.places)})
        try:
            await self.notes.write(noted)
        except (StorageError, OSError) as error:  # nothing has changed, whether it is there or not
            raise NotScaled(self.number(wanted), f"the new members cannot be recorded: {error}") from error
        self._succession = wanted
        plan, takeover = wanted.members[0].plan, wanted.members[0].takeover
        assert takeover is not None, "they follow others"
        layout = Layout.of(plan, tuple(each.feeds for each in wanted.members))
        return Generation(
            wanted.circuit,
            plan,
            await EpochLog.open(self._epochs, wanted.circuit),
            sender=self._sender,
            receiver=self._receiver,
            addresses=[each.node for each in wanted.members],
            answer_to=self._node,
            members=lambda _lines, _done: PlacedMembers(self._workers, wanted),
            layout=layout.model_copy(update={"transfer": takeover.transfer}),
        )

    async def become(self, after: Generation) -> None:
        """Note that they are the members, and those before them are leaving."""
        wanted = self._succession
        assert wanted is not None, "they were candidates"
        self._followed = self.notes.whose.places or wanted.before
        await self.notes.write(self.notes.whose.followed_by(wanted))
        assert isinstance(after.members, PlacedMembers)
        await after.members.have_followed()

    async def release(self, _: Generation) -> None:
        """End the processes of those that others have followed."""
        await self._workers.end(self._followed)

    async def tidy(self) -> None:
        """Have workers forget members that are leaving, however long that takes."""
        if self._clearing is None or self._clearing.done():
            self._clearing = asyncio.create_task(self._clear())

    async def close(self) -> None:
        """Have no workers forget members any more."""
        if self._clearing is not None:
            await cancelled([self._clearing])

    async def _clear(self) -> None:
        async def one(place: MemberPlace) -> None:
            await self._workers.forget(place)
            async with changing:
                await self.notes.write(self.notes.whose.without(place))

        changing = asyncio.Lock()
        try:
            async with asyncio.TaskGroup() as group:
                for each in self.notes.whose.leaving:
                    group.create_task(one(each))
        except* OSError as errors:
            _log.warning(
                "the removal of members could not be recorded, so the next process removes them again: %s",
                errors.exceptions[0],
            )
