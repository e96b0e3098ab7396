"""`Member`: does the tasks of a `MemberMachine`, with a circuit, its logs and versions, and an exchange."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from nebuli.connectors.errors import FragmentError, InputError, RowsLate, RowsWithoutTime
from nebuli.dataflow import DataflowError, Sending, SteppedCircuit
from nebuli.dataflow.errors import StateTooLarge, StateUnusable
from nebuli.steps.errors import ExchangeFailed, MemberError, StepFailed, WindowsWritten
from nebuli.steps.logs.output_log import time_row
from nebuli.steps.member.calls.pins import Pins
from nebuli.steps.member.exchange import Exchange
from nebuli.steps.member.inputs.step_inputs import LeftOutRows, StepInputs
from nebuli.steps.protocol import member_actions as do
from nebuli.steps.protocol.errors import CoordinationError
from nebuli.steps.protocol.member_machine import MemberMachine
from nebuli.steps.protocol.messages import Dismiss, Instant, Late, Refused, WindowsOpen, WithoutTime
from nebuli.store.errors import (
    BeyondEnd,
    Locked,
    LogTaken,
    NotYet,
    OutputDiffers,
    StorageError,
    StoreBusy,
    Unclear,
)
from netchannel import NetChannelError
from placement.plan import window_times
from placement.stepped_plan import TIME

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Generator, Iterable, Mapping, Sequence

    import pyarrow as pa

    from nebuli.dataflow import Offload
    from nebuli.dataflow.placed_operators import OperatorStatistics
    from nebuli.dataflow.state import Run
    from nebuli.dataflow.steps.exchange_parts import Received
    from nebuli.dataflow.steps.saved_runs import Saved
    from nebuli.steps.logs.input_log import InputLog
    from nebuli.steps.logs.output_log import OutputLog
    from nebuli.steps.member.coordinator_connections import CoordinatorConnection, CoordinatorConnections
    from nebuli.steps.member.inputs.step_inputs import LeftOut, ReplayableSources
    from nebuli.steps.member.saved_state import SavedState
    from nebuli.steps.protocol.member_machine import MemberState
    from nebuli.steps.protocol.messages import FromCoordinator, FromMember
    from netchannel import ReceiverServer, SenderServer
    from placement.stepped_plan import SteppedPlan

_log = logging.getLogger("nebuli.steps.member")
_OPEN_S = 60.0
"""How long members wait for one another when an exchange is opened: the others may have much to load."""
_PASSING = (Locked, LogTaken, NotYet, StoreBusy, Unclear)
"""Errors that may go away on a retry, in a new epoch."""


class Member:
    """One process of a member, from `run` on. All of it is on one event loop, and the circuit on its thread."""

    completes = False
    """True if the run ends with the stop that it was asked for last."""

    def __init__(
        self,
        circuit: str,
        plan: SteppedPlan,
        member: int,
        incarnation: str,
        *,
        sender: SenderServer,
        receiver: ReceiverServer,
        log: InputLog,
        outputs: OutputLog | None,
        state: SavedState,
        readings: ReplayableSources,
        max_state_bytes: int,
        address: str | None = None,
        fails_late: bool = False,
        keep_output_bytes: int | None = None,
        keep_contents_bytes: int | None = None,
        left_out: Iterable[LeftOut] = (),
    ) -> None:
        self.number = member
        self.address = address or receiver.address
        """Where others reach it."""
        self._name = circuit
        self._plan = plan
        self.sender = sender
        self.receiver = receiver
        self._log = log
        self._outputs = outputs
        self._state = state
        self.readings = readings
        """Its sources that can be read again."""
        self.step_inputs = StepInputs(log, readings, LeftOutRows(plan, left_out))
        """The input of its steps, and the room for more."""
        self._max_state_bytes = max_state_bytes
        self._fails_late = fails_late
        self._keep_output_bytes = keep_output_bytes
        self._keep_contents_bytes = keep_contents_bytes
        self._circuit = self._new_circuit()
        self.pins = Pins(self._circuit.tables, self._contents)
        """The contents of its inputs and outputs that are held for readers."""
        self._following = MemberMachine(plan.members, incarnation, self._circuit.fingerprint, self.address)
        self._lines: CoordinatorConnections | None = None
        self._line: CoordinatorConnection | None = None
        self._exchange: Exchange | None = None
        self._tasks: asyncio.Queue[do.Task] = asyncio.Queue()
        self._life: asyncio.Task[None] | None = None
        self._writing: asyncio.Task[None] | None = None
        self._saved: Saved | None = None
        self._taken_over: LogTaken | None = None
        self.failure: Exception | None = None
        """Why its inputs cannot be read, if they cannot."""
        self.before_close: Callable[[int], Awaitable[None]] = _nothing
        """Called for the outputs below a step before the last version is made at it."""
        self.on_opening: Callable[[], None] = _ignored
        """Called when all members have a checkpoint to continue from, and this one has loaded it."""
        self.on_checkpoint: Callable[[], None] = _ignored
        """Called when all members have a new version."""
        self.on_dismissal: Callable[[], None] = _ignored
        """Called before the coordinator gets the confirmation, and so may end."""
        self.greeted = asyncio.Event()
        """Set once a coordinator has begun an epoch with this process."""
        self.closed = asyncio.Event()
        """Set while it is stopped: its last version is made, and no epoch has begun after it."""
        self.dismissed = asyncio.Event()
        """Set once all members have stopped, and nothing is wanted of this one any more."""

    def _new_circuit(self) -> SteppedCircuit:
        return SteppedCircuit(
            self._plan,
            self.number,
            max_state_bytes=self._max_state_bytes,
            keep_contents_bytes=self._keep_contents_bytes,
        )

    def _contents(self, table: str) -> Sequence[Run] | None:
        return self._circuit.contents(table)  # of the circuit that there is then

    @property
    def inputs(self) -> Mapping[str, pa.Schema]:
        """The inputs that can be pushed into: Z-sets of this schema, by input."""
        return self._circuit.inputs

    @property
    def circuit(self) -> SteppedCircuit:
        """Its copy, for inspection between two steps."""
        return self._circuit

    @property
    def log(self) -> InputLog:
        """The log of what came in."""
        return self._log

    @property
    def outputs(self) -> OutputLog | None:
        """The log of the outputs whose rows it has, if there are any."""
        return self._outputs

    @property
    def waiting_rows(self) -> int:
        """How many rows have come in and count for no step yet."""
        return self.step_inputs.waiting_rows

    async def is_saved(self) -> bool:
        """True if its newest version has all steps of its log."""
        return (await self._state.checkpoints())[-1].step == self._log.last

    @property
    def late(self) -> Mapping[str, int]:
        """Rows that came when their window was over, by operator, since the first step, with the state."""
        return {key: each.late_rows for key, each in self._circuit.statistics().items() if each.late_rows}

    @property
    def without_time(self) -> Mapping[str, int]:
        """Rows whose time was null, by window, since the first step, with the state."""
        counted = self._circuit.statistics()
        return {key: each.rows_without_time for key, each in counted.items() if each.rows_without_time}

    @property
    def statistics(self) -> Mapping[str, OperatorStatistics]:
        """Return the counters of each operator in this epoch."""
        return self._circuit.statistics()

    @property
    def step(self) -> int:
        """The next step, or the one that it is in."""
        return self._following.step

    @property
    def state(self) -> MemberState:
        """Run, Pause, Paused, Stop or Stopped."""
        return self._following.state

    async def run(self, lines: CoordinatorConnections) -> None:
        """Follow coordinators until it is cancelled. Raises what is a mistake of theirs or ours."""
        self._lines = lines
        try:
            await lines.run()
        finally:
            if self._life is not None:
                self._life.cancel()
                await asyncio.wait([self._life])

    def told(self, message: FromCoordinator, line: CoordinatorConnection) -> None:
        """A coordinator has sent a message on this line.

        Raises LogTaken once another process has the member's log: it would read the log on where that one is.
        """
        if self._taken_over is not None:
            raise self._taken_over
        before = self._following.epoch
        tasks = self._following.handle(do.Told(message))
        dismissed = isinstance(message, Dismiss) and message.epoch == self._following.epoch
        if self._following.epoch != before or dismissed:
            self._line = line
            self.greeted.set()
        self._do_all(tasks)

    def arrived(self, rows: int) -> None:
        """So many rows more are logged."""
        self._happen(do.HasArrived(rows))

    def ended(self) -> None:
        """All inputs of this member have ended."""
        self._happen(do.HasEnded())

    def failed(self, error: Exception) -> None:
        """An input cannot be read, and could not if it were tried again."""
        self.failure = error
        self._happen(_failed(self._following.epoch, error))

    # -- tasks

    def _happen(self, happened: do.Happening) -> None:
        self._do_all(self._following.handle(happened))

    def _do_all(self, tasks: Sequence[do.Task]) -> None:
        for task in tasks:
            match task:
                case do.Say(message):
                    self._say(message)
                case do.Leave():
                    self.on_dismissal()
                    self.dismissed.set()
                case do.LookAround(epoch):
                    self.closed.clear()
                    self._life = asyncio.create_task(self._live(epoch, self._life))
                case do.WriteState(epoch, attempt, step):
                    self._saved = self._circuit.save()
                    self._writing = asyncio.create_task(self._write(epoch, attempt, step, self._saved))
                case _:
                    self._tasks.put_nowait(task)

    def _say(self, message: FromMember) -> None:
        if isinstance(message, Refused) and self._lines is not None:
            self._lines.say_to_all(message)
        elif self._line is not None:
            self._line.say(message)

    async def _live(self, epoch: int, before: asyncio.Task[None] | None) -> None:
        """Leave the epoch before, and do what is to be done in this one, in order."""
        if before is not None:
            before.cancel()
            await asyncio.wait([before])
        self._tasks = asyncio.Queue()
        try:
            try:
                if self.failure is not None:
                    raise self.failure
                await self._look_around(epoch)
                while True:
                    await self._work(await self._tasks.get())
            except Exception as error:
                if not _lasts(error):
                    raise
                # Before this member leaves: others notice that, and a new epoch would drop the reason.
                self._happen(_failed(epoch, error))
            finally:
                await self._leave()
        except asyncio.CancelledError:
            raise
        except LogTaken as error:
            self._taken_over = error
            self._happen(_failed(epoch, error))
        except Exception as error:  # noqa: BLE001 - any error: the coordinator waits for the outcome
            self._happen(_failed(epoch, error))

    async def _leave(self) -> None:
        await self._stop_writing()
        self.pins.leave()
        self._state.close()
        self.readings.leave_replay()
        exchange, self._exchange = self._exchange, None
        if exchange is not None:
            await exchange.abort("this member leaves the epoch")

    async def _look_around(self, epoch: int) -> None:
        log = self._log
        found = await self._state.checkpoints()
        if found[-1].step > log.last:
            await log.refresh()
        if found[-1].step > log.last:
            raise BeyondEnd(
                f"the checkpoint of member {self.number}", found[-1].step, f"input log {log.name}", log.last
            )
        self.step_inputs.check_whose()
        self._happen(do.Found(epoch, found, log.first, log.last, await log.ends()))

    async def _work(self, task: do.Task) -> None:
        match task:
            case do.OpenState(epoch, checkpoint, addresses):
                self._circuit = self._new_circuit()
                self._circuit.load(await self._state.open(checkpoint.version))
                self.on_opening()  # not before: if the state is not this member's, sinks stay as they are
                if len(addresses) > 1:
                    self._exchange = Exchange(
                        self.sender, self.receiver, self._name, epoch, self.number, addresses
                    )
                    await self._exchange.open(_OPEN_S)
                self.pins.open(epoch, checkpoint.step, self._log.last)
                self._happen(do.HasOpened(epoch, self.waiting_rows))
            case do.RunStep(epoch, step, replayed, ended):
                await self._step(step, replayed=replayed, ended=ended)
                self.pins.between(step + 1)
                self._happen(do.HasStepped(epoch))
            case do.CommitState(epoch, attempt):
                await self._commit()
                self._say_dropped(epoch)
                self._happen(do.HasCommitted(epoch, attempt))
            case do.DropState():
                await self._stop_writing()
                self._state.close()
            case do.TrimLog(_, step):
                self.on_checkpoint()
                await self._trim(step)
            case do.CloseState(epoch, step, complete):
                self.completes = complete
                await self._close(epoch, step)
                self._say_dropped(epoch)
                self._happen(do.HasClosed(epoch))
                self.closed.set()

    # -- steps

    async def _step(self, step: int, *, replayed: bool, ended: bool) -> None:
        inputs, sources = await self.step_inputs.of(step, replayed=replayed, ended=ended)
        closes = ended and not self.step_inputs.keeps_time_open(step)
        try:
            outputs = await self._exchanged(step, self._circuit.step(inputs, sources, ended=closes))
            if self._outputs is not None and step >= self._outputs.last:  # before they are there for good
                self._circuit.check_sinks(outputs)
        except StateTooLarge:
            raise
        except DataflowError as error:
            inputs_of_it = inputs_below(self._plan, error.operator)
            raise StepFailed(step, str(error), inputs_of_it, closes=closes) from error
        if self._fails_late:  # before any output is visible
            if late := self.late:
                raise RowsLate(late)
            if without_time := self.without_time:
                raise RowsWithoutTime(without_time, window_times(self._plan.operators))
        if self._outputs is not None:
            if TIME in self._outputs.schemas:
                outputs = {**outputs, TIME: time_row(await self.readings.time(step))}
            if step < self._outputs.last and self.step_inputs.leaves_out(step) and closes == ended:
                return  # what came of the rows that are left out stays there, and the run names the output
            await self._put_out(step, outputs, stays_open=closes != ended)

    async def _put_out(self, step: int, outputs: Mapping[str, pa.RecordBatch], *, stays_open: bool) -> None:
        assert self._outputs is not None, "it has outputs"
        try:
            await self._outputs.write(step, outputs)
        except OutputDiffers as error:
            if stays_open:
                raise WindowsWritten(step, error.outputs) from None
            raise

    async def _exchanged(
        self, step: int, work: Generator[Sending | Offload | None, Received | None, dict[str, pa.RecordBatch]]
    ) -> Mapping[str, pa.RecordBatch]:
        """Do the work of a step. Outputs whose rows are at other members have none here."""
        came: Sequence[pa.RecordBatch] | None = None
        try:
            while True:
                sending = work.send(came)
                if not isinstance(sending, Sending):
                    came = None
                    # Others are answered meanwhile.
                    await (asyncio.sleep(0) if sending is None else asyncio.to_thread(sending.do))
                    continue
                assert self._exchange is not None, "a single member has no other to send to"
                parts = await self._exchange.all_to_all(
                    step, sending.index, sending.parts, sending.senders, sending.receivers
                )
                came = [
                    sent.slice(0, 0) if part is None else part
                    for part, sent in zip(parts, sending.parts, strict=True)
                ]
        except StopIteration as stop:
            outputs: dict[str, pa.RecordBatch] = stop.value
        return outputs

    def _say_dropped(self, epoch: int) -> None:
        for operator, rows in self.late.items():
            self._say(Late(epoch, operator, rows))
        times = window_times(self._plan.operators)
        for operator, rows in self.without_time.items():
            self._say(WithoutTime(epoch, operator, times[operator], rows))

    # -- checkpoints

    async def _write(self, epoch: int, attempt: int, step: int, saved: Saved) -> None:
        """Write while steps continue."""
        try:
            await self._state.write(saved, step)
        except (StorageError, OSError) as error:
            self._happen(do.CouldNotWrite(epoch, attempt, _reason(error)))
        else:
            self._happen(do.HasWritten(epoch, attempt))

    async def _stop_writing(self) -> None:
        writing, self._writing = self._writing, None
        if writing is not None:
            writing.cancel()
            await asyncio.wait([writing])

    async def _commit(self) -> None:
        await self._state.commit()
        assert self._saved is not None, "it was taken before"
        self._saved.kept()
        self._saved = None

    async def _trim(self, step: int) -> None:
        """Forget data that is not needed to continue from a step, or a later one."""
        await self._log.trim(step)
        self._log.staging.forget_old()
        await self.readings.release(step)
        if self._outputs is not None and self._keep_output_bytes is not None:
            await self._outputs.trim(step, keep_bytes=self._keep_output_bytes)

    async def _close(self, epoch: int, step: int) -> None:
        """The last version: nothing else runs meanwhile."""
        try:
            self._circuit.check_sums()
        except DataflowError as error:
            raise StepFailed(None, str(error), inputs_below(self._plan, error.operator)) from error
        self._saved = self._circuit.save()
        if self.completes and self._plan.closings:
            await self._show_open(epoch, step)
        await self.before_close(step)
        await self._state.write(self._saved, step)
        await self._commit()
        if self._exchange is not None:
            exchange, self._exchange = self._exchange, None
            await exchange.close()

    async def _show_open(self, epoch: int, step: int) -> None:
        """Keep what windows that stay open have for outputs that show them, and report these windows."""
        self.pins.leave()
        try:
            shown = await self._exchanged(step, self._circuit.show_open())
        except DataflowError as error:
            raise StepFailed(None, str(error), inputs_below(self._plan, error.operator)) from error
        if self._outputs is not None:
            await self._outputs.show_open(step, shown)
        for operator, (begin, end) in self._circuit.open_windows.items():
            self._say(WindowsOpen(epoch, operator, Instant(begin), Instant(end)))


def inputs_below(plan: SteppedPlan, operator: str | None) -> list[str]:
    """The inputs whose rows reach an operator; all inputs if it is not in the plan."""
    children = {each.id: each.children for each in plan.operators}
    found, waiting = set(), [operator] if operator in children else [*children]
    while waiting:
        id_ = waiting.pop()
        if id_ not in found:
            found.add(id_)
            waiting += children[id_]
    return sorted(each.id for each in plan.inputs if each.id in found)


async def _nothing(step: int) -> None:
    """Do nothing: no process takes the outputs."""


def _ignored() -> None:
    """Do nothing."""


def _failed(epoch: int, error: Exception) -> do.HasFailed:
    return do.HasFailed(epoch, _reason(error), _lasts(error), isinstance(error, (InputError, StepFailed)))


def _reason(error: Exception) -> str:
    if isinstance(error, ExchangeFailed):
        return error.happened  # what comes next, the coordinator knows
    known = (MemberError, StorageError, NetChannelError, FragmentError, CoordinationError)
    if isinstance(error, (*known, DataflowError, StateUnusable, StepFailed, WindowsWritten)):
        return str(error)
    _log.error("something went wrong in the member itself", exc_info=error)
    return f"{type(error).__name__}: {error}"


def _lasts(error: Exception) -> bool:
    """True if it would be the same in a new epoch."""
    return not isinstance(error, (MemberError, NetChannelError, *_PASSING))
