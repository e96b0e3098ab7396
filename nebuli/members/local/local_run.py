"""`LocalRun`: a query in steps with its coordinator in this process and its members in others."""

from __future__ import annotations

import asyncio
import secrets
from contextlib import AsyncExitStack
from pathlib import Path
from typing import TYPE_CHECKING

from nebuli.connectors.sinks.sink_locks import files_read, take_files
from nebuli.coordinator.lockstep import Phase
from nebuli.disk_room import what_to_do
from nebuli.limits import DEFAULT_MAX_STATE_BYTES
from nebuli.members.calls.call_routes import CallRoutes
from nebuli.members.errors import FolderUnusable, NotScaled
from nebuli.members.local.generation import Generation, Surroundings
from nebuli.members.local.kept_state import KeptState
from nebuli.members.local.local_members import ThisMachine
from nebuli.members.local.succession import GivenUp, begun, given_ahead, handed_over
from nebuli.members.scaling.layout import Layout, Takeover
from nebuli.storage import Store
from nebuli.storage.errors import StorageError, StoreClosed, StoreFull
from nebuli.storage.logs.epoch_log import EpochLog
from netchannel import ReceiverServer, SenderServer
from placement.plan import Late

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
    from types import TracebackType
    from typing import Self

    from nebuli.coordinator.coordinator import Coordinator
    from nebuli.coordinator.events import Order
    from nebuli.coordinator.triggers import TriggerSettings
    from nebuli.members.homes import Home, Members
    from nebuli.members.stepped_query import SteppedQuery
    from nebuli.storage.logs.output_log import OutputLog
    from nebuli.storage.logs.remap import Offsets
    from nebuli.storage.shards.shard import Span
    from nebuli.storage.store_url import StorePlace
    from placement.stepped import SteppedPlan

_PUSH_S = 10.0
"""How long a push may be on its way before others than the members that it goes to are begun with."""


class LocalRun:
    """Entered, it has begun; left, all its processes have ended. What it keeps is at ``state``, and goes on there.

    ``directory`` is where paths of sources start. ``home`` is where members live; None: in processes of this machine,
    which listen at its addresses ``hosts``, in turn. ``observe`` hears what the coordinator orders, ``scaled`` how many
    members there are, at first and whenever that changes. ``late``: what is done about rows whose window is over.
    ``keep_output_bytes``: how much each member keeps of the output that its sinks have had; None: all.
    ``keep_contents_bytes``: of what each output adds up to, for queries; None: a quarter of ``max_state_bytes``. Where
    the folder has the state of another number of members than the query's, it goes on with these, and, if it
    ``scales``, with the query's from there on.

    Entering raises StateOfAnother, StateInUse, StateGone, FolderUnusable, FolderOfOthers, NotScaled, StorageError,
    OutputError.
    """

    def __init__(
        self,
        query: SteppedQuery,
        state: StorePlace,
        directory: Path,
        settings: TriggerSettings,
        *,
        observe: Callable[[Order], None] = lambda order: None,
        scaled: Callable[[int], None] = lambda members: None,
        scales: bool = True,
        home: Home | None = None,
        hosts: Sequence[str] = (ThisMachine.host,),
        max_state_bytes: int = DEFAULT_MAX_STATE_BYTES,
        late: Late = Late.COUNT,
        keep_output_bytes: int | None = None,
        keep_contents_bytes: int | None = None,
    ) -> None:
        self._folder = KeptState(state.absolute() if isinstance(state, Path) else state)
        self._home = ThisMachine(directory) if home is None else home
        self._settings = settings
        self._observe = observe
        self._scaled = scaled
        self._scales = scales
        self._hosts = tuple(hosts)
        self._max_state_bytes = max_state_bytes
        self._late = late
        self._keep_output_bytes = keep_output_bytes
        self._keep_contents_bytes = keep_contents_bytes
        self._stack = AsyncExitStack()
        self._wanted = query
        self._number = 0
        self._epochs_in: Store
        self._around: Surroundings
        self._generation: Generation | None = None
        self._alone = asyncio.Lock()
        self._scalings: set[asyncio.Task[int]] = set()
        self._broken: BaseException | None = None
        """What went wrong where other members had taken over, and do not run."""
        self.calls = CallRoutes()
        """The ways into the members' input logs."""

    async def __aenter__(self) -> Self:
        try:
            await self._begin()
        except BaseException as error:
            await self.__aexit__(type(error), error, None)
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for scaling in self._scalings:
            scaling.cancel()
        await asyncio.gather(*self._scalings, return_exceptions=True)
        if self._generation is not None:
            await self._generation.close("its query did not come to its end" if error is None else str(error))
        await self._stack.aclose()

    async def _begin(self) -> None:
        try:
            self._stack.enter_context(self._folder.lock())
            query, self._number = await self._folder.claim(self._wanted)
        except OSError as error:
            path = str(self._folder)
            if (remedy := what_to_do(error)) is not None:
                raise StoreFull(path, error.strerror, remedy) from error
            raise FolderUnusable(path, _why(error)) from error
        self._lock_sinks()
        secret = secrets.token_urlsafe()
        receiver = await self._stack.enter_async_context(
            ReceiverServer(f"{self._home.host}:0", secret=secret)
        )
        sender = await self._stack.enter_async_context(SenderServer(secret=secret))
        self._around = Surroundings(
            home=self._home,
            settings=self._settings,
            observe=self._observe,
            hosts=self._hosts,
            max_state_bytes=self._max_state_bytes,
            late=self._late,
            keep_output_bytes=self._keep_output_bytes,
            keep_contents_bytes=self._keep_contents_bytes,
            sender=sender,
            receiver=receiver,
            secret=secret,
            alone=self._alone,
        )
        folders = self._folder.members(self._number, query.plan.members)
        for folder in folders:  # all of them before that of the coordinator
            await asyncio.to_thread(Store.make, folder)
        self._epochs_in = await self._stack.enter_async_context(Store.at(self._folder.coordinator))
        generation = await self._made(query, self._number)
        self._generation = generation
        await generation.open()
        await generation.start()
        self.calls.lead(generation.calls)
        self._scaled(query.plan.members)
        generation.coordinate()
        if self._scales and query.plan.members != self._wanted.plan.members:
            await self.scale(self._wanted.plan.members)

    async def _made(self, query: SteppedQuery, number: int, takeover: Takeover | None = None) -> Generation:
        folders = self._folder.members(number, query.plan.members)
        epochs = await EpochLog.open(self._epochs_in, query.circuit)
        return Generation(query, folders, epochs, self._around, takeover)

    def _lock_sinks(self) -> None:
        """No other query is to write to the same files, nor to those that are read."""
        query = self._wanted
        paths = [path for target in query.targets.values() for path in target.files]
        reads = files_read(feed.source.physical for feeds in query.feeds for feed in feeds)
        for lock in take_files(paths, query.plan.name, "all members", str(self._folder), reads=reads):
            self._stack.callback(lock.release)

    @property
    def _now(self) -> Generation:
        assert self._generation is not None, "it has begun"
        return self._generation

    @property
    def query(self) -> SteppedQuery:
        """As it runs now."""
        return self._now.query

    @property
    def members(self) -> Members:
        """Those that there are now."""
        return self._now.members

    @property
    def outputs(self) -> dict[str, OutputLog]:
        """The logs of what comes out, by output."""
        return self._now.outputs

    # -- other numbers of members

    async def scale(self, members: int) -> int:
        """Go on with so many members; the step that is their first.

        Pushes wait meanwhile, and are logged behind it. After a cancel it goes to its end all the same. Raises
        NotScaled: all goes on as it was. After any other error the run is over.
        """
        scaling = asyncio.create_task(self._scale(members))
        self._scalings.add(scaling)
        scaling.add_done_callback(self._scalings.discard)
        return await asyncio.shield(scaling)

    async def _scale(self, members: int) -> int:
        async with self._alone:
            before = self._now
            if members == before.query.plan.members:
                return before.coordinator.next_step
            if before.coordinator.ending:
                raise NotScaled(members, "the query is ending")
            query = before.query.over(members)
            layout = Layout.of(query.plan, query.feeds)
            takeover = Takeover(transfer=layout.transfer, before=before.query.plan.members)
            after = await self._made(query, self._number + 1, takeover)
            try:
                addresses = await begun(before, after)
                epoch = await given_ahead(before, after, layout, addresses)
                async with self.calls.held(_PUSH_S):
                    step = await self._succeed(before, after, layout, addresses, epoch)
            except (GivenUp, TimeoutError) as error:
                await after.close("its members do not take over")
                await before.take_back()
                await asyncio.to_thread(self._folder.forget_others, self._number)
                why = (
                    str(error)
                    or f"a push has waited {_PUSH_S:g} s for room: start the circuit if it is paused"
                )
                raise NotScaled(members, why) from error
            except BaseException:
                await after.close("its members do not take over")
                raise
            await asyncio.to_thread(self._folder.forget_others, self._number)
            return step

    async def _succeed(
        self, before: Generation, after: Generation, layout: Layout, addresses: Sequence[str], epoch: int
    ) -> int:
        try:
            step = await handed_over(before, after, layout, addresses, epoch)
        except (GivenUp, StorageError) as error:
            try:
                await before.go_on()
            except BaseException as second:
                self._broken = second
                before.changed.set()
                raise
            raise GivenUp(str(error)) from error
        try:
            # From here on, whatever dies.
            await asyncio.to_thread(self._folder.belong, after.query, self._number + 1)
            self._number += 1
            before.changed.set()
            paused = before.was_paused
            await asyncio.gather(before.close("its query goes on with other members"), after.open())
            after.coordinate(paused=paused)
            self.calls.lead(after.calls)
            self._generation = after
        except BaseException as error:
            self._broken = error
            await after.close(str(error))
            raise
        finally:
            before.changed.set()
        self._scaled(after.query.plan.members)
        return step

    # -- as a `nebuli.circuits.running_circuit.Running`

    @property
    def coordinator(self) -> Coordinator:
        """That of the members that there are now."""
        return self._now.coordinator

    @property
    def plan(self) -> SteppedPlan:
        """The query's."""
        return self.query.plan

    @property
    def external(self) -> Sequence[str]:
        """The inputs that are pushed into."""
        return self.query.external

    async def follow(self, output: str, first: int) -> AsyncIterator[Span]:
        """An output from a step on, from the log itself: also while its member is away, and with other members."""
        at = first
        while True:
            generation = self._now
            try:
                async for span in generation.outputs[output].follow(output, at):
                    yield span
                    at = span.upper
            except StoreClosed:
                async with self._alone:
                    if self._now is generation:
                        raise

    async def offsets(self, member: int, step: int) -> Offsets:
        """What counts for a step at a member. Raises StepOutOfRange."""
        remap = self._now.remaps[member]
        await remap.refresh()
        return await remap.offsets(step)

    def process(self, member: int) -> int | None:
        """The process id of a member, while it has one."""
        return self.members.process(member)

    @property
    def over(self) -> int | None:
        """The step that nothing follows, once the coordinator was shut down."""
        return self.coordinator.next_step if self.coordinator.phase is Phase.STOPPED else None

    async def pause(self) -> None:
        """No steps until `start`, or the end of this process."""
        async with self._alone:
            self.coordinator.pause()

    async def start(self) -> None:
        """Steps go on."""
        async with self._alone:
            self.coordinator.start()

    async def shut_down(self) -> None:
        """Begin to end: `until_shut_down` returns."""
        async with self._alone:
            self.coordinator.shut_down()

    # -- its end

    async def until_ended(self) -> int | None:
        """Wait until all inputs have ended, and publish the outputs; the step that all members have a version at.

        Raises CoordinationError, MembersEnd, OutputError, StorageError.
        """
        return await self._until(Generation.finished)

    async def until_shut_down(self) -> int | None:
        """Wait until the coordinator was told to shut down, and publish the outputs as they are then.

        The step that all members have a version at; None, and nothing is published, if not all were there. Raises as
        `until_ended`.
        """
        return await self._until(Generation.stopped)

    async def _until(self, work: Callable[[Generation], Awaitable[int | None]]) -> int | None:
        while True:
            generation = self._now
            step: int | None = await generation.guarded(work(generation))
            if not generation.changed.is_set():
                return step
            async with self._alone:
                generation.changed.clear()
                if self._broken is not None:
                    raise self._broken


def _why(error: OSError) -> str:
    match error:
        case FileExistsError():
            return "it is a file"
        case NotADirectoryError():
            return "what should be a folder above it is a file"
    return error.strerror or str(error)
