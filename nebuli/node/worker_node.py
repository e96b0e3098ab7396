"""The fragments of one worker, by the ids that they have there."""

from __future__ import annotations

import asyncio
import itertools
import logging
from dataclasses import replace
from typing import TYPE_CHECKING

import netchannel
from nebuli.connectors.errors import OutputError, SinkInUse
from nebuli.connectors.policies import drop_files
from nebuli.connectors.sinks.sink_locks import note_reads, take_all
from nebuli.exactness import goes_on, state_of
from nebuli.free import engine_of
from nebuli.node.hosted_fragment import HostedFragment, NotAdded
from nebuli.node.logs import Logs
from nebuli.node.parts.part_runner import check_part
from nebuli.node.records import FragmentRecord
from nebuli.rpc.ids import query_of
from nebuli.rpc.status import FragmentState, FragmentStatus
from nebuli.steps.coordinator.run_record import RunRecord
from nebuli.steps.member.run_notes import LeftOutNotes, forget_run
from nebuli.store import StorageError, Store
from placement.plan import Fragment, ViewOperator
from placement.stepped_plan import CoordinatorPlacement, MemberFragment

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Coroutine, Iterable
    from typing import Any

    from nebuli.connectors.sinks.sink_locks import SinkLock
    from nebuli.node.fragment.conversation import Report
    from nebuli.node.hosted_fragment import Host
    from nebuli.node.records import Records
    from nebuli.rpc.log_lines import LogLine
    from nebuli.rpc.member_places import Succession
    from nebuli.rpc.status import ViewStatus
    from nebuli.store.store_url import StorePlace
    from placement.plan import Addition
    from placement.stepped_plan import AnyFragment

__all__ = [
    "BusyFragment",
    "FragmentStarted",
    "IdInUse",
    "NoState",
    "UnknownFragment",
    "WorkerNode",
    "WrongNode",
]

_log = logging.getLogger(__name__)

_LAST_WORDS_S = 4.0
"""How long to wait for a fragment that is notifying its neighbours of its end."""

_LEFT_S, _AGAIN_S = 5.0, 0.1
"""How long processes that a killed worker had are waited for in all, and how often they are looked for."""


class UnknownFragment(Exception):
    """No fragment has this id."""


class FragmentStarted(Exception):
    """The fragment was started before, or has ended."""


class IdInUse(Exception):
    """Another fragment has the id that was wished for."""


class WrongNode(Exception):
    """The fragment is for another node."""


class NoState(Exception):
    """The fragment keeps what it has, and this worker has no place for that."""


class BusyFragment(Exception):
    """The fragment has not ended, and can be taken away only then."""


class WorkerNode:
    """The fragments of a worker. To be used on the worker's loop.

    With ``records`` they are remembered: `take_up` continues those of an earlier worker.
    """

    def __init__(self, host: Host, records: Records | None = None) -> None:
        self._host = host
        self._records = records
        self._fragments: dict[str, HostedFragment] = {}
        self._notes: dict[str, SinkLock] = {}
        """Notes of the files that registered fragments will read."""
        self._numbers = itertools.count(1)
        self._tasks: set[asyncio.Task[None]] = set()
        self._removing: dict[StorePlace, asyncio.Task[None]] = {}
        self._adding = asyncio.Lock()
        self.logs = Logs(self._owner)

    def register(self, fragment: AnyFragment, wished: str = "") -> str:
        """Take a fragment; its id. A fragment taken under the same id before is taken already.

        Without a wish the id is a number that no other fragment here has. Raises OSError if it cannot be recorded,
        StorageError if one of a query in steps has no place for what it will keep; then it was not taken.
        """
        known = self._fragments.get(wished)
        if known is not None:
            if known.fragment != fragment:
                raise IdInUse(
                    f"fragment {known.fragment.id} already exists here as {wished}, with other contents"
                )
            return wished
        here = self.address
        if fragment.node != here:
            raise WrongNode(
                f"fragment {fragment.id} is for node {fragment.node}, but this worker is node {here}: "
                "correct the grpc address of the node in the topology, or start this worker with "
                f"--advertise {fragment.node}"
            )
        if isinstance(fragment, Fragment) and fragment.views:
            check_part(fragment)
        elif isinstance(fragment, Fragment):
            engine_of(fragment, self._host.max_state_bytes)
        elif self._host.state is None:
            raise NoState(
                f"fragment {fragment.id} belongs to a query in steps, which keeps state: start the worker at "
                f"{here} with --state DIR"
            )
        id_ = wished or next(id_ for id_ in map(str, self._numbers) if id_ not in self._fragments)
        none_yet = 0 if isinstance(fragment, CoordinatorPlacement) else None
        status = FragmentStatus(id_, fragment.id, FragmentState.REGISTERED, checkpoint=none_yet)
        if (place := self._place(id_, fragment)) is not None:
            Store.make(place)  # now, so that a process of it that finds none knows that it is gone
        self._save(status, fragment)
        self._add(status, fragment)
        return status.id

    async def start(self, id_: str, *, closes: bool = False, left_out: str = "") -> None:
        """Start a fragment, once; one of a query in steps again when it has ended, which continues where it was.

        ``closes``: of a coordinator, event time ends with this run. A member leaves out the rows in ``left_out`` from
        now on, see `LeftOutNotes.ask`.

        Raises ChannelInUse if another one reads one of its channels, or has a view of the same name; BusyFragment if
        its process is still ending.

        SinkInUse if another one, here or elsewhere on this machine, writes to one of its files; OSError if it cannot be
        recorded. Then it is not started. One whose files cannot be written at all has failed.
        """
        hosted = await self._startable(id_)
        if hosted.status.state is not FragmentState.REGISTERED:
            text = f"fragment {hosted.fragment.id} is {hosted.status.state} already"
            if hosted.status.state.is_final:
                text += ": unregister the query, and start it from its files"
            raise FragmentStarted(text)
        for other in self._fragments.values():
            if other.status.state is FragmentState.RUNNING and (shared := hosted.inputs & other.inputs):
                raise netchannel.ChannelInUse(
                    f"channel {min(shared)} is read by fragment {other.fragment.id} here already: "
                    f"stop that fragment"
                )
        if isinstance(hosted.fragment, Fragment) and (
            in_use := self._in_use(_views(hosted.fragment), hosted)
        ):
            raise netchannel.ChannelInUse(
                f"{in_use}: stop that query, or give this query's view another name"
            )
        try:
            locks = self._locks_of(hosted)
        except SinkInUse:
            raise
        except OutputError as error:
            self._release_note(id_)
            hosted.fail(str(error))
            return
        try:
            self._record_start(hosted, closes=closes, left_out=left_out)
        except OSError:
            for lock in locks:
                lock.release()
            raise
        self._release_note(id_)
        hosted.start(locks)

    def _locks_of(self, hosted: HostedFragment) -> list[SinkLock]:
        """The locks of its files; those of members that it follows, or is followed by, are its own, too.

        Raises SinkInUse, OutputError.
        """
        query = query_of(hosted.id)
        shared = {
            lock.file: lock
            for other in self._fragments.values()
            if query_of(other.id) == query and _are_in_turn(hosted.fragment, other.fragment)
            for lock in other.locks
        }
        return take_all(hosted.fragment, query, shared)

    async def _startable(self, id_: str) -> HostedFragment:
        """Return the fragment.

        A new one of a query in steps, if it has ended, once nothing of it is in its successor's way.
        """
        hosted = self._fragment(id_)
        if not _begins_again(hosted):
            return hosted
        if not await hosted.ended(_LAST_WORDS_S):
            raise BusyFragment(f"the process of fragment {hosted.fragment.id} is still ending: try again")
        hosted = self._fragment(id_)
        if not _begins_again(hosted):  # another call was first
            return hosted
        before = hosted.status
        created = FragmentStatus(id_, before.fragment, FragmentState.REGISTERED, checkpoint=before.checkpoint)
        return self._add(created, hosted.fragment)

    def _record_start(self, hosted: HostedFragment, *, closes: bool, left_out: str) -> None:
        """Record the start before it.

        A successor that took it up as registered would not continue, nor report what is lost.

        Nor does it know which checkpoints have been made until then.
        """
        if (place := self._place(hosted.id, hosted.fragment)) is not None:
            forget_run(place)
            if closes and isinstance(hosted.fragment, CoordinatorPlacement):
                RunRecord.begin(place, closes=True)
            if left_out and isinstance(hosted.fragment, MemberFragment):
                LeftOutNotes(place).ask(left_out)
        self._save(replace(hosted.status, state=FragmentState.RUNNING, checkpoint=None), hosted.fragment)

    def stop(self, id_: str, *, at_once: bool = False) -> None:
        """Ask a fragment to end; harmless when it has."""
        self._fragment(id_).stop(at_once=at_once)

    async def checkpoint(self, id_: str) -> int:
        """Have the coordinator of a query in steps make a checkpoint; returns the next step.

        Raises CheckpointNotMade; NothingToSave where it does not run.
        """
        return await self._fragment(id_).checkpoint()

    async def succeed(self, id_: str, succession: Succession) -> int:
        """Have the coordinator of a query in steps continue with other members; returns their first step.

        Raises NotSucceeded.
        """
        return await self._fragment(id_).succeed(succession)

    async def add(self, id_: str, index: int, addition: Addition) -> None:
        """Have a part of a query with views be given more operators, if it has not: ``index`` came before these.

        They run one after the other, and to their end, even if the caller is gone. Raises NotAdded; OSError if it
        cannot be recorded: then it is to be asked for again.
        """
        task = asyncio.create_task(self._add_next(self._fragment(id_), index, addition))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        task.add_done_callback(_heard)
        await asyncio.shield(task)

    async def _add_next(self, hosted: HostedFragment, index: int, addition: Addition) -> None:
        async with self._adding:
            if addition.fragment == hosted.fragment.id:
                names = (
                    each.name or each.id for each in addition.operators if isinstance(each, ViewOperator)
                )
                if in_use := self._in_use(names, hosted):
                    raise NotAdded(f"{in_use}: give this view another name")
            await hosted.add(index, addition)
            self._save(hosted.status, hosted.fragment)

    def _in_use(self, views: Iterable[str], besides: HostedFragment) -> str:
        """Return a sentence with the owner of a view of one of these names here; empty, if there is no other."""
        wanted = set(views)
        for other in self._fragments.values():
            if other is besides or other.status.state is not FragmentState.RUNNING:
                continue
            if isinstance(other.fragment, Fragment) and (names := wanted & _views(other.fragment)):
                return (
                    f"a view {min(names)!r} already exists at this node, in fragment {other.fragment.id} "
                    "(query "
                    f"{query_of(other.id)})"
                )
        return ""

    async def unregister(self, id_: str) -> None:
        """Forget a fragment that does not run. Raises OSError if its record stays; then it is still known.

        The state of one that is no longer known, as the worker was killed during this, is deleted, too.
        """
        if id_ and id_ not in self._fragments and (place := self._host.place(id_)) is not None:
            await self._remove(id_, place)
        hosted = self._fragment(id_)
        if hosted.status.state is FragmentState.RUNNING:
            raise BusyFragment(f"fragment {hosted.fragment.id} is running: stop it first")
        if not await hosted.ended(_LAST_WORDS_S):
            raise BusyFragment(f"fragment {hosted.fragment.id} is notifying its reader of its end: try again")
        if self._records is not None:
            self._records.forget(id_)
        if (place := self._place(id_, hosted.fragment)) is not None:
            await self._remove(hosted.fragment.id, place)
        self._release_note(id_)
        self._fragments.pop(id_, None)

    async def _remove(self, what: str, place: StorePlace) -> None:
        """Delete the state at a place, once, for all callers, even if some have stopped waiting."""
        removing = self._removing.get(place)
        if removing is None:
            removing = self._removing[place] = asyncio.create_task(self._removed(what, place))
            removing.add_done_callback(lambda _: self._removing.pop(place))
        await asyncio.shield(removing)

    async def _removed(self, what: str, place: StorePlace) -> None:
        try:
            await asyncio.to_thread(Store.remove, place)
        except (StorageError, OSError) as error:
            _log.warning(
                "the state of fragment %s cannot be deleted, and stays at %s: %s", what, place, error
            )

    def _place(self, id_: str, fragment: AnyFragment) -> StorePlace | None:
        """Where a fragment keeps what it has, if it is one of a query in steps."""
        return None if isinstance(fragment, Fragment) else self._host.place(id_)

    async def take_up(self, records: Iterable[FragmentRecord]) -> None:
        """Continue the fragments of an earlier worker: exact ones where they were.

        The rest is lost, and reported as such.
        """
        until = asyncio.get_running_loop().time() + _LEFT_S
        for record in records:
            hosted = self._add(record.status, record.fragment)
            drop_files(record.fragment)
            match record.status.state:
                case FragmentState.RUNNING if goes_on(record.fragment):
                    await self._resume(hosted, until)
                case FragmentState.RUNNING:
                    what = f"its worker was restarted, which lost {state_of(record.fragment)}"
                    self._do(hosted.lose(what))
                case FragmentState.FINISHED | FragmentState.FAILED | FragmentState.STOPPED:
                    self._do(hosted.decline_inputs())

    async def _resume(self, hosted: HostedFragment, until: float) -> None:
        """Continue it, once processes that it had have let go of its files; it fails where another query has one."""
        loop = asyncio.get_running_loop()
        locks = None
        while locks is None:
            try:
                locks = self._locks_of(hosted)
            except OutputError as error:
                if not isinstance(error, SinkInUse) or loop.time() >= until:
                    hosted.fail(str(error))
                    return
                await asyncio.sleep(_AGAIN_S)
        hosted.start(locks, resumed=True)

    def logged(self, id_: str, *, follow: bool) -> AsyncIterator[LogLine]:
        """Return the log of a fragment, or of all if ``id_`` is empty."""
        if id_:
            self._fragment(id_)
        return self.logs.lines(id_, follow=follow)

    @property
    def address(self) -> str:
        """The address at which others reach the node."""
        return self._host.receiver.address

    def statuses(self) -> list[FragmentStatus]:
        """The statuses of all fragments, in the order in which they came. From any thread."""
        return [hosted.status for hosted in list(self._fragments.values())]

    def fragments(self) -> list[tuple[FragmentStatus, AnyFragment]]:
        """All fragments, and how they are."""
        return [(hosted.status, hosted.fragment) for hosted in self._fragments.values()]

    def views(self) -> list[ViewStatus]:
        """The views of fragments that run."""
        running = (each for each in self.statuses() if each.state is FragmentState.RUNNING)
        return [view for status in running for view in status.views]

    def reports(self) -> dict[str, Report]:
        """Return the last reports of the fragments' processes, by the fragments' ids. From any thread."""
        hosted = list(self._fragments.items())
        return {id_: each.report for id_, each in hosted if each.report is not None}

    def running_reports(self) -> list[Report]:
        """The reports of those that run: a process' channels end with it, regardless of its last report."""
        return [
            each.report
            for each in self._fragments.values()
            if each.report is not None and each.status.state is FragmentState.RUNNING
        ]

    async def shutdown(self, timeout_s: float) -> bool:
        """Stop everything, but leave what is exact, or was not started, to a successor, if there are records for one.

        False if a fragment is still busy after that time.
        """
        durable, self._records = (
            self._records is not None,
            None,
        )  # how they end now is not how they are to be taken up
        for task in self._tasks:
            task.cancel()
        for id_ in [*self._notes]:
            self._release_note(id_)
        stopping = []
        for hosted in self._fragments.values():
            if durable and (goes_on(hosted.fragment) or hosted.status.state is FragmentState.REGISTERED):
                hosted.abandon()
            else:
                hosted.stop()
                stopping.append(hosted)
        return all(await asyncio.gather(*(hosted.ended(timeout_s) for hosted in stopping)))

    def _add(self, status: FragmentStatus, fragment: AnyFragment) -> HostedFragment:
        hosted = HostedFragment(status, fragment, self._host, self.logs.keep, self._changed)
        self._fragments[status.id] = hosted
        if status.state is FragmentState.REGISTERED:
            self._release_note(status.id)
            if (note := note_reads(fragment, query_of(status.id))) is not None:
                self._notes[status.id] = note
        return hosted

    def _release_note(self, id_: str) -> None:
        if (note := self._notes.pop(id_, None)) is not None:
            note.release()

    def _changed(self, hosted: HostedFragment) -> None:
        if hosted.status.state is FragmentState.RUNNING:
            return  # which was recorded before
        try:
            self._save(hosted.status, hosted.fragment)
        except OSError as error:
            _log.error("fragment %s: its state cannot be recorded: %s", hosted.fragment.id, error)

    def _save(self, status: FragmentStatus, fragment: AnyFragment) -> None:
        if self._records is not None:
            self._records.save(FragmentRecord(fragment=fragment, status=status))

    def _do(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _owner(self, text: str) -> str:
        """The fragment that a line of the worker's own is about: it names one of its channels."""
        owners = (
            id_
            for id_, hosted in list(self._fragments.items())
            if any(channel in text for channel in hosted.channels)
        )
        return next(owners, "")

    def _fragment(self, id_: str) -> HostedFragment:
        try:
            return self._fragments[id_]
        except KeyError:
            raise UnknownFragment(f"no fragment {id_} here; fragments here: {len(self._fragments)}") from None


def _are_in_turn(one: AnyFragment, other: AnyFragment) -> bool:
    """True if they are members of one query that are never both members."""
    return (
        isinstance(one, MemberFragment) and isinstance(other, MemberFragment) and one.circuit != other.circuit
    )


def _views(fragment: Fragment) -> set[str]:
    """Return the readers of its views."""
    return {each.name or each.id for each in fragment.own if isinstance(each, ViewOperator)}


def _heard(task: asyncio.Task[None]) -> None:
    """Retrieve its result, if it is no longer waited for."""
    if not task.cancelled():
        task.exception()


def _begins_again(hosted: HostedFragment) -> bool:
    return hosted.status.state.is_final and not isinstance(hosted.fragment, Fragment)
