"""`LocalRun`: a query in steps on this machine, with its coordinator in this process and its members in others."""

from __future__ import annotations

import asyncio
import secrets
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any

from nebuli.connectors.sinks.sink_locks import take_files
from nebuli.coordinator.coordinator import Coordinator
from nebuli.coordinator.events import CheckpointMade, EpochRuns
from nebuli.coordinator.lines.line import Line
from nebuli.coordinator.lockstep import Lockstep, Phase
from nebuli.dataflow import SteppedCircuit
from nebuli.disk_room import what_to_do
from nebuli.limits import DEFAULT_MAX_STATE_BYTES
from nebuli.members.calls.call_line import CallLine
from nebuli.members.delivering import Delivery
from nebuli.members.errors import FolderUnusable
from nebuli.members.local_members import LocalMembers
from nebuli.members.member_order import MemberOrder
from nebuli.members.opening import LOG
from nebuli.members.state_folder import StateFolder
from nebuli.storage import Store
from nebuli.storage.errors import StoreFull
from nebuli.storage.logs.epoch_log import EpochLog
from nebuli.storage.logs.output_log import OutputLog
from nebuli.storage.logs.remap import Remap
from netchannel import ReceiverServer, SenderServer
from placement.plan import Late

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
    from pathlib import Path
    from types import TracebackType
    from typing import Self

    from nebuli.coordinator.events import Order
    from nebuli.coordinator.triggers import TriggerSettings
    from nebuli.members.stepped_query import SteppedQuery
    from nebuli.storage.logs.remap import Offsets
    from nebuli.storage.shards.shard import Span
    from placement.stepped import SteppedPlan

_HOST = "127.0.0.1"


class LocalRun:
    """Entered, it has begun; left, all its processes have ended. What it keeps is in ``folder``, which goes on there.

    ``directory`` is where paths of sources start. ``observe`` hears what the coordinator orders. ``hosts`` are the
    addresses of this machine that members listen at, in turn. ``late``: what is done about rows whose window is over.
    ``keep_output_bytes``: how much each member keeps of the output that its sinks have had; None: all.

    Entering raises StateOfAnother, StateInUse, StateGone, FolderUnusable, FolderOfOthers, StorageError, OutputError.
    """

    def __init__(
        self,
        query: SteppedQuery,
        folder: Path,
        directory: Path,
        settings: TriggerSettings,
        *,
        observe: Callable[[Order], None] = lambda order: None,
        hosts: Sequence[str] = (_HOST,),
        max_state_bytes: int = DEFAULT_MAX_STATE_BYTES,
        late: Late = Late.COUNT,
        keep_output_bytes: int | None = None,
    ) -> None:
        self._folder = StateFolder(folder)
        self._directory = directory
        self._settings = settings
        self._observe = observe
        self._hosts = tuple(hosts)
        self._max_state_bytes = max_state_bytes
        self._late = late
        self._keep_output_bytes = keep_output_bytes
        self._stack = AsyncExitStack()
        self._deliveries: dict[str, Delivery] = {}
        self.query = query
        self.outputs: dict[str, OutputLog] = {}
        """The logs of what comes out, by output."""
        self.remaps: list[Remap] = []
        """What counts for which step, by member."""
        self.calls: list[CallLine] = []
        """The ways into the members' input logs."""
        self._coordinating: asyncio.Task[int | None]
        self.coordinator: Coordinator
        self.members: LocalMembers

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
        reason = "its query did not come to its end" if error is None else str(error)
        for delivery in self._deliveries.values():
            await delivery.abort(reason)
        await self._stack.aclose()

    async def _begin(self) -> None:
        try:
            self._stack.enter_context(self._folder.lock())
            await self._folder.claim(self.query)
        except OSError as error:
            path = str(self._folder.path)
            if (remedy := what_to_do(error)) is not None:
                raise StoreFull(path, error.strerror, remedy) from error
            raise FolderUnusable(path, _why(error)) from error
        self._lock_sinks()
        for member in range(self.query.plan.members):
            store = await self._stack.enter_async_context(Store.at(self._folder.member(member)))
            self.remaps.append(await Remap.open(store, LOG, {}))
            await self._open_outputs(member, store)
        secret = secrets.token_urlsafe()
        receiver = await self._stack.enter_async_context(ReceiverServer(f"{_HOST}:0", secret=secret))
        sender = await self._stack.enter_async_context(SenderServer(secret=secret))
        circuit, plan = self.query.circuit, self.query.plan
        self.calls = [CallLine(circuit, member, sender, receiver) for member in range(plan.members)]
        lines = [
            Line(circuit, member, None, sender, receiver, beside=calls)
            for member, calls in enumerate(self.calls)
        ]
        store = await self._stack.enter_async_context(Store.at(self._folder.coordinator))
        epochs = await EpochLog.open(store, circuit)
        self.coordinator = Coordinator(Lockstep(plan.members, self._settings), epochs, lines, self._hear)
        orders = [self._order(member, secret) for member in range(plan.members)]
        self.members = LocalMembers(orders, lines, self._directory, lambda: self.coordinator.done)
        await self._stack.enter_async_context(self.members)
        for calls in self.calls:
            await self._stack.enter_async_context(calls)
        self._coordinating = asyncio.create_task(self.coordinator.run())
        self._stack.push_async_callback(_ended, self._coordinating)

    def _hear(self, order: Order) -> None:
        for delivery in self._deliveries.values():
            match order:
                case EpochRuns():
                    delivery.open_now()
                case CheckpointMade():
                    delivery.keep_soon()
        self._observe(order)

    def _lock_sinks(self) -> None:
        """No other query is to write to the same files."""
        paths = [path for target in self.query.targets.values() for path in target.files]
        for lock in take_files(paths, self.query.plan.name, "all members", str(self._folder.path)):
            self._stack.callback(lock.release)

    def _order(self, member: int, secret: str) -> MemberOrder:
        return MemberOrder(
            circuit=self.query.circuit,
            member=member,
            plan=self.query.plan,
            feeds=self.query.feeds[member],
            external=bool(self.query.external),
            store=self._folder.member(member).absolute(),
            listen=f"{self._hosts[member % len(self._hosts)]}:0",
            secret=secret,
            max_state_bytes=self._max_state_bytes,
            late=self._late,
            keep_output_bytes=self._keep_output_bytes,
        )

    async def _open_outputs(self, member: int, store: Store) -> None:
        plan = self.query.plan
        schemas = SteppedCircuit(plan, 0).outputs
        own = {key: schema for key, schema in schemas.items() if plan.homes[key] == member}
        if not own:
            return
        log = await OutputLog.open(store, LOG, own)
        for key, schema in own.items():
            self.outputs[key] = log
            delivery = self._deliveries[key] = Delivery(key, self.query.targets[key])
            await delivery.begin(log, schema)

    # -- as a `nebuli.circuits.running_circuit.Running`

    @property
    def plan(self) -> SteppedPlan:
        """The query's."""
        return self.query.plan

    @property
    def external(self) -> Sequence[str]:
        """The inputs that are pushed into."""
        return self.query.external

    def follow(self, output: str, first: int) -> AsyncIterator[Span]:
        """An output from a step on, from the log itself: also while its member is away."""
        return self.outputs[output].follow(output, first)

    async def offsets(self, member: int, step: int) -> Offsets:
        """What counts for a step at a member. Raises StepOutOfRange."""
        await self.remaps[member].refresh()
        return await self.remaps[member].offsets(step)

    def process(self, member: int) -> int | None:
        """The process id of a member, while it has one."""
        return self.members.process(member)

    @property
    def over(self) -> int | None:
        """The step that nothing follows, once the coordinator was shut down."""
        return self.coordinator.next_step if self.coordinator.phase is Phase.STOPPED else None

    async def pause(self) -> None:
        """No steps until `start`, or the end of this process."""
        self.coordinator.pause()

    async def start(self) -> None:
        """Steps go on."""
        self.coordinator.start()

    async def shut_down(self) -> None:
        """Begin to end: `until_shut_down` returns."""
        self.coordinator.shut_down()

    # -- its end

    async def until_ended(self) -> int | None:
        """Wait until all inputs have ended, and publish the outputs; the step that all members have a version at.

        Raises CoordinationError, MembersEnd, OutputError, StorageError.
        """
        step: int | None = await self._guarded(self._finish())
        return step

    async def until_shut_down(self) -> int | None:
        """Wait until the coordinator was told to shut down, and publish the outputs as they are then.

        The step that all members have a version at; None, and nothing is published, if not all were there. Raises as
        `until_ended`.
        """
        step: int | None = await self._guarded(self._stopped())
        return step

    async def _finish(self) -> int | None:
        await self._publish(await self.coordinator.inputs_ended())
        self.coordinator.shut_down()
        return await asyncio.shield(self._coordinating)

    async def _stopped(self) -> int | None:
        step = await asyncio.shield(self._coordinating)
        if step is not None:
            await self._publish(step)
        return step

    async def _publish(self, step: int) -> None:
        for delivery in self._deliveries.values():
            await delivery.finish(step)

    async def _guarded(self, work: Awaitable[Any]) -> Any:
        """Do ``work`` as long as nothing that it needs has failed."""
        guards = [self.members.failed(), *(each.failed() for each in self._deliveries.values())]
        task = asyncio.ensure_future(work)
        watching = [asyncio.create_task(each) for each in guards]
        try:
            await asyncio.wait([task, *watching, self._coordinating], return_when=asyncio.FIRST_COMPLETED)
            for each in (self._coordinating, *watching):
                if each.done():
                    each.result()
            return await task
        finally:
            for each in (task, *watching):
                each.cancel()
            await asyncio.gather(task, *watching, return_exceptions=True)


def _why(error: OSError) -> str:
    match error:
        case FileExistsError():
            return "it is a file"
        case NotADirectoryError():
            return "what should be a folder above it is a file"
    return error.strerror or str(error)


async def _ended(task: asyncio.Task[Any]) -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
