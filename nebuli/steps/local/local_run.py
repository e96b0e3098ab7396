"""`LocalRun`: a query in steps with its coordinator in this process and its members in others."""

from __future__ import annotations

import asyncio
import secrets
from contextlib import AsyncExitStack
from pathlib import Path
from typing import TYPE_CHECKING

from nebuli.cancellation import cancelled
from nebuli.connectors.sinks.sink_locks import files_read, take_files
from nebuli.disk_room import what_to_do
from nebuli.limits import DEFAULT_MAX_STATE_BYTES
from nebuli.steps.coordinator.circuit_run import CircuitRun
from nebuli.steps.coordinator.run_record import RunRecord
from nebuli.steps.errors import FolderUnusable, NotScaled
from nebuli.steps.local.kept_roster import KeptRoster, Surroundings
from nebuli.steps.local.kept_state import KeptState
from nebuli.steps.local.local_members import ThisMachine
from nebuli.steps.local.skipped_steps import SkippedSteps
from nebuli.store import Store
from nebuli.store.errors import StoreFull
from netchannel import ReceiverServer, SenderServer
from placement.plan import Late

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from types import TracebackType
    from typing import Self

    from nebuli.steps.coordinator.member_homes import Home, Members
    from nebuli.steps.local.skipped_steps import SkippedRows
    from nebuli.steps.protocol.events import Order
    from nebuli.steps.protocol.triggers import TriggerSettings
    from nebuli.steps.stepped_query import SteppedQuery
    from nebuli.store.store_url import StorePlace

NEVER_ENDED = "its query has not finished"
"""Why sinks are left without their results."""
_TRIES, _AGAIN_S = 3, 1.0
"""How often a run scales at its start, and the seconds between."""


class LocalRun(CircuitRun[int]):
    """Entered, it has begun; left, all its processes have ended. Its state is at ``state``, and continues there.

    ``directory`` is where paths of sources start. ``home`` is where members live; None: in processes of this machine,
    which listen at its addresses ``hosts``, in turn. ``observe`` is called with the coordinator's instructions,
    ``scaled`` with how many members there are, at first and whenever that changes. ``late``: what is done about rows
    whose window is over. ``keep_output_bytes``: how much each member keeps of the output that its sinks have had;
    None: all. ``keep_contents_bytes``: of what each output adds up to, for queries; None: a quarter of
    ``max_state_bytes``. ``skip_steps``: rows of these are left out from now on. ``closes``: event time ends at the end
    of all inputs, or of the run, even if a later one may have more of them. Where the folder has the state of another
    number of members than the query's, the run continues with these, and, if it ``scales``, with the query's.

    Entering raises StateOfAnother, StateInUse, StateGone, FolderUnusable, FolderOfOthers, NotScaled, StepNotSkipped,
    StorageError, OutputError.
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
        skip_steps: Sequence[int] = (),
        closes: bool = False,
    ) -> None:
        super().__init__(
            RunRecord(),
            settings,
            query.plan,
            query.external,
            observe,
            closes=closes or not query.grows,
        )
        self._awaits_growth = query.ends and not closes
        self._folder = KeptState(state.absolute() if isinstance(state, Path) else state)
        self._directory = directory
        self._home = ThisMachine(directory) if home is None else home
        self._scaled = scaled
        self._scales = scales
        self._hosts = tuple(hosts)
        self._max_state_bytes = max_state_bytes
        self._late = late
        self._keep_output_bytes = keep_output_bytes
        self._keep_contents_bytes = keep_contents_bytes
        self._skip_steps = skip_steps
        self.skipped: Sequence[SkippedRows] = ()
        """Rows left out of steps, by this run or one before."""
        self._wanted = query
        self._stack = AsyncExitStack()
        self._running: asyncio.Task[int | None] | None = None

    @property
    def members(self) -> Members:
        """Those that there are now."""
        return self.generation.members

    async def __aenter__(self) -> Self:
        try:
            await self.begin(await self._roster_of_state())
            self._running = asyncio.create_task(self.run())
            if self._scales and self.plan.members != self._wanted.plan.members:
                await self._scale_at_start(self._wanted.plan.members)
        except BaseException as error:
            await self.__aexit__(type(error), error, None)
            raise
        return self

    async def _scale_at_start(self, members: int) -> None:
        """Continue with so many members. A process that is killed meanwhile does not end the run: it tries again.

        Raises what has ended the run meanwhile.
        """
        assert self._running is not None, "it runs"
        for further in reversed(range(_TRIES)):
            try:
                await self.scale(members)
            except NotScaled:
                if self._broken.done():
                    raise
                # The lost member is started again.
                await asyncio.wait([self._running], timeout=_AGAIN_S)
                if self._running.done():
                    self._running.result()
                if not further or self._running.done():
                    raise
            else:
                return

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._running is not None:
            await cancelled([self._running])
        await self.close(NEVER_ENDED if error is None else str(error))
        await self._stack.aclose()

    async def _roster_of_state(self) -> KeptRoster:
        try:
            self._stack.enter_context(self._folder.lock())
            query, generation = await self._folder.claim(self._wanted)
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
        for place in self._folder.members(generation, query.plan.members):  # before that of the coordinator
            await asyncio.to_thread(Store.make, place)
        await self._leave_out(query, generation)
        epochs = await self._stack.enter_async_context(Store.at(self._folder.coordinator))
        around = Surroundings(
            home=self._home,
            hosts=self._hosts,
            max_state_bytes=self._max_state_bytes,
            late=self._late,
            keep_output_bytes=self._keep_output_bytes,
            keep_contents_bytes=self._keep_contents_bytes,
            left_out=tuple(each.rule for each in self.skipped),
            awaits_growth=self._awaits_growth,
            sender=sender,
            receiver=receiver,
            secret=secret,
        )
        return KeptRoster(
            self._folder, query, generation, epochs=epochs, surroundings=around, scaled=self._scaled
        )

    async def _leave_out(self, query: SteppedQuery, generation: int) -> None:
        place = self._folder.place
        steps = SkippedSteps(self._folder.notes, place if isinstance(place, Path) else self._directory)
        self.skipped = await steps.add(
            self._skip_steps, query, self._folder.members(generation, query.plan.members)
        )

    def _lock_sinks(self) -> None:
        """No other query is to write to the same files, nor to those that are read."""
        query = self._wanted
        paths = [path for target in query.targets.values() for path in target.files]
        reads = files_read(feed.source.physical for feeds in query.feeds for feed in feeds)
        for lock in take_files(paths, query.plan.name, "all members", str(self._folder), reads=reads):
            self._stack.callback(lock.release)

    # -- its end

    async def until_ended(self) -> int | None:
        """Wait until all inputs have ended, and outputs are published: the step that all members have a version at.

        Raises CoordinationError, MembersEnd, OutputError, StorageError.
        """
        self.ends_with_inputs.set()
        return await self.until_shut_down()

    async def until_shut_down(self) -> int | None:
        """Wait until the circuit was shut down, and outputs are published as they are then; the same step.

        Raises as `until_ended`.
        """
        assert self._running is not None, "it was entered"
        return await asyncio.shield(self._running)


def _why(error: OSError) -> str:
    match error:
        case FileExistsError():
            return "it is a file"
        case NotADirectoryError():
            return "one of its parents is a file, not a folder"
    return error.strerror or str(error)
