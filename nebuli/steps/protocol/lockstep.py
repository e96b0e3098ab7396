"""The coordinator of a circuit: events in, orders out. No clock, no I/O.

One life of the circuit is an **epoch**::

    claiming --> joining --> opening --> running --> stopping --> dismissing --> stopped
        ^           |           |           |            |
        +-----------+-----------+-----------+            +--> stopped

*Claiming.* The caller takes a number that only rises, by compare-and-append after the last one that this coordinator
had; the first time, after all existing ones. If another one was first, this one is fenced: it raises, and sends nothing
more. Members refuse a coordinator with a smaller number, and send it the greater one: so the older of two coordinators
learns of the other from every member, and no member ever follows both.

*Joining.* Every member leaves its work and reports its state. *Opening.* All open the highest checkpoint that all
have, and forget others; if there is none, this raises, and nothing was touched. Members report the steps in their logs.

*Running.* A step is issued to all members at once, and no other before all have reported that it is done: none waits in
an exchange for one that does not come. Steps that a member has in its log are issued without waiting for anything.
Checkpoints are in two phases, while steps continue. When all members have committed one, input below the older of their
two versions may go.

A member that is lost, or that another process takes the place of, ends the epoch in any phase: there is no
other way back into step, so this one is always tried. A coordinator that is started again begins in the same way.

*Stopping.* All members pause, report the same step, and commit there; this is pause and stop as the members' states
have them (`member_machine.py`). Where rows that are logged are to be stepped first, steps take them between two such
pauses. *Dismissing.* Once all have, and that is recorded, they may go (`lockstep_parts.py`).
"""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING

from nebuli.steps.protocol import messages as say
from nebuli.steps.protocol.errors import CoordinationError, Fenced, MemberFailed, ProtocolViolated
from nebuli.steps.protocol.events import (
    CheckpointAsked,
    CheckpointFailed,
    CheckpointMade,
    ClaimEpoch,
    Connected,
    EndRecorded,
    EpochClaimed,
    EpochRuns,
    EpochTaken,
    Finished,
    Heard,
    InputsEnded,
    Lost,
    PauseAsked,
    RecordEnd,
    RowsLate,
    RowsWithoutTime,
    ShutdownAsked,
    StartAsked,
    StaysOpen,
    Tell,
)
from nebuli.steps.protocol.lockstep_parts import (
    Arrivals,
    Dismissal,
    MadeSteps,
    Timings,
    TwoPhases,
    common_checkpoint,
)
from nebuli.steps.protocol.triggers import CheckpointNow, Situation, StepNow, WaitUntil, decide

if TYPE_CHECKING:
    from nebuli.steps.protocol.events import Event, Order
    from nebuli.steps.protocol.triggers import TriggerSettings


class Phase(Enum):
    """How far the coordinator has come in its epoch."""

    CLAIMING = "claiming"
    JOINING = "joining"
    OPENING = "opening"
    RUNNING = "running"
    STOPPING = "stopping"
    DISMISSING = "dismissing"
    STOPPED = "stopped"


class Lockstep:
    """The coordinator of ``members`` members, which it knows by their indices. Begins when its first epoch is claimed.

    ``over``: a coordinator before it has recorded that all have stopped there, and they are dismissed. ``closes``:
    event time ends when all inputs have ended, and at the end of the run. ``made``: the steps that were made with
    coordinators before it in this process. `handle` raises CoordinationError if the circuit cannot continue, and from
    then on for every event.
    """

    def __init__(
        self,
        members: int,
        settings: TriggerSettings,
        *,
        paused: bool = False,
        over: int | None = None,
        closes: bool = True,
        made: MadeSteps | None = None,
    ) -> None:
        self.members = members
        self.phase = Phase.CLAIMING
        self.epoch = 0
        self.made = MadeSteps() if made is None else made
        """Those that all members have made, in whatever epoch."""
        self.next_step = self.made.complete
        """The one that is issued next, in an epoch; before the first one, as far as this process knows."""
        self.timings = Timings()
        """How long they and the checkpoints took."""
        self.paused = paused
        self.quiet = False
        """Paused, and all members have reported that nothing runs any more."""
        self._settings = settings
        self._closes = closes
        self._error: CoordinationError | None = None
        self.shutting_down = False
        """True if it was asked to end."""
        self._draining = self._completes = False
        """True if rows that were logged before the request to end may be left; true if the run ends with its stop."""
        self._over = over
        self._dismissal: Dismissal | None = None
        self._connected: set[int] = set()
        self._requests: tuple[int, ...] = ()
        self._checkpoint_at: float | None = None
        self._orders: list[Order] = []
        self._now = 0.0
        self._begin_epoch()

    def _begin_epoch(self) -> None:
        self._joined: dict[int, say.Joined] = {}
        self._kept: tuple[say.Checkpoint, ...] = ()
        self._opened: set[int] = set()
        self._stepping: set[int] = set()
        self._pausing: set[int] = set()
        self._stopping: set[int] = set()
        self._arrivals = Arrivals(self.members)
        self._attempt = 0
        self._pauses = 0
        self._round: TwoPhases | None = None
        self._stepped_at = 0.0
        self._ending = self._concluded = False
        """True if all inputs had ended in the last issued step; true if that was reported."""
        self.quiet = False

    def handle(self, event: Event, now: float) -> list[Order]:
        """Return the instructions for an event, in order."""
        if self._error is not None:
            raise self._error
        self._now = now
        self._orders = []
        try:
            if self.phase is not Phase.STOPPED:
                self._handle(event)
                self._go_on()
        except CoordinationError as error:
            self._error = error
            raise
        return self._orders

    def deadline(self) -> float | None:
        """When `TimePassed` would make a difference."""
        if self.phase is Phase.DISMISSING and self._dismissal is not None:
            return self._dismissal.until
        if self.phase is not Phase.RUNNING or self._stepping or self.shutting_down:
            return None
        found = decide(self._settings, self._situation())
        return found.at if isinstance(found, WaitUntil) else None

    @property
    def checkpoints(self) -> tuple[say.Checkpoint, ...]:
        """Those that all members have, while it is running: one or two."""
        return self._kept

    @property
    def caught_up(self) -> bool:
        """True if it is running, and no step is left that is in a log and was not repeated."""
        return self.phase is Phase.RUNNING and not self._arrivals.replays(self.next_step)

    def _handle(self, event: Event) -> None:
        match event:
            case Heard(member, message):
                self._heard(member, message)
            case Connected(member):
                self._connect(member)
            case Lost(member, why):
                self._lose(member, why)
            case EpochClaimed(epoch):
                self._claimed(epoch)
            case EpochTaken(epoch):
                raise Fenced(self.epoch, epoch)
            case EndRecorded():
                self._dismiss(self.next_step)
            case _:
                self._asked(event)

    def _asked(self, event: Event) -> None:
        match event:
            case PauseAsked():
                self._pause()
            case StartAsked():
                self._start()
            case CheckpointAsked(request):
                self._requests += (request,)
            case ShutdownAsked(drain):
                self._shut_down(drain)

    def _tell(self, member: int, message: say.FromCoordinator) -> None:
        self._orders.append(Tell(member, message))

    def _tell_all(self, message: say.FromCoordinator) -> None:
        for member in range(self.members):
            self._tell(member, message)

    # -- epochs

    def _claimed(self, epoch: int) -> None:
        if self.phase is not Phase.CLAIMING or epoch <= self.epoch:
            raise ValueError(f"epoch {epoch} was claimed, {self.phase.value} epoch {self.epoch}")
        self.epoch = epoch
        if self._over is not None:
            self.next_step = self._over
            self.made.reached(self._over)  # more, where they stopped before they had made all again
            self._dismiss(self._over)
            return
        self.phase = Phase.JOINING
        for member in sorted(self._connected):
            self._tell(member, say.Greet(epoch))

    def _connect(self, member: int) -> None:
        if member in self._connected:
            self._lose(member, "another process took its place")
        self._connected.add(member)
        if self.phase is Phase.JOINING:
            self._tell(member, say.Greet(self.epoch))
        elif self._dismissal is not None and self._dismissal.awaits(member):
            self._tell(member, say.Dismiss(self.epoch))

    def _lose(self, member: int, why: str) -> None:
        if member in self._connected:
            self._connected.remove(member)
            needed = self.phase is not Phase.STOPPING or member in self._stopping
            if needed and self._dismissal is None:
                self._end_epoch(f"member {member} was lost: {why}")

    def _end_epoch(self, why: str) -> None:
        if self.phase is Phase.CLAIMING:
            return
        if self.shutting_down:
            self._finish(None)
            return
        self.phase = Phase.CLAIMING
        if self._round is not None:
            self._requests = self._round.requests + self._requests
        self._begin_epoch()
        self._orders.append(ClaimEpoch(self.epoch, why))

    def _heard(self, member: int, message: say.FromMember) -> None:
        if message.epoch > self.epoch:
            raise Fenced(self.epoch, message.epoch)
        if message.epoch < self.epoch or self.phase is Phase.CLAIMING:
            return  # of an epoch that is over
        match message:
            case say.Joined():
                self._join(member, message)
            case say.Replay(_, first, last, ended):
                opening = self.phase is Phase.OPENING and member not in self._opened
                self._check(opening and first == self.next_step and first < last, member, message)
                self._arrivals.replay(member, range(first, last), ended)
            case say.Opened(_, step):
                self._open(member, step, message)
            case say.Received() | say.Ended():
                self._check(member in self._opened, member, message)
                self._heard_of_input(member, message)
            case say.Aborted():
                self._aborted(member, message)
            case say.Refused():
                pass  # a message to an older coordinator, or to this one in an older epoch
            case _:
                self._heard_of_work(member, message)

    def _aborted(self, member: int, said: say.Aborted) -> None:
        if self._dismissal is not None:
            return  # it has stopped before, and nothing more is wanted of it
        if said.lasting:
            raise MemberFailed(member, said.why, of_input=said.of_input)
        self._end_epoch(f"member {member} has given up the step: {said.why}")

    def _heard_of_input(self, member: int, message: say.Received | say.Ended) -> None:
        match message:
            case say.Received(_, step, rows):
                self._arrivals.received(member, step, rows, self._now)
            case say.Ended():
                self._arrivals.end(member)

    def _heard_of_work(self, member: int, message: say.FromMember) -> None:
        match message:
            case say.Stepped(_, step):
                self._check(member in self._stepping and step == self.next_step - 1, member, message)
                self._stepping.remove(member)
                if not self._stepping:
                    self.made.reached(self.next_step)
                    self.timings.stepped(self._now - self._stepped_at)
            case say.Prepared(_, attempt):
                self._prepared(member, attempt)
            case say.NotPrepared(_, attempt, why):
                self._not_prepared(member, attempt, why)
            case say.Committed(_, attempt):
                self._committed(member, attempt, message)
            case say.IsPaused(_, attempt, step):
                self._is_paused(member, attempt, step, message)
            case say.IsStopped(_, step):
                self._is_stopped(member, step, message)
            case say.Left():
                self._leave(member, message)
            case say.Late() | say.WithoutTime() | say.WindowsOpen():
                self._orders.append(_observed(member, message))

    def _check(self, allowed: bool, member: int, message: say.FromMember) -> None:
        if not allowed:
            raise ProtocolViolated(
                f"member {member}",
                f"sent {message} while the coordinator was {self.phase.value}, with "
                f"{self.next_step} as the next step",
            )

    # -- joining and opening

    def _join(self, member: int, said: say.Joined) -> None:
        before = self._joined.get(member)
        if before is not None and before.incarnation != said.incarnation:
            self._end_epoch(f"member {member} was lost: process {said.incarnation} took its place")
            return
        self._check(self.phase is Phase.JOINING and before is None, member, said)
        self._joined[member] = said
        if len(self._joined) == self.members:
            common = common_checkpoint(self._joined)
            self.phase = Phase.OPENING
            self._kept = (common,)
            self.next_step = common.step
            self.made.found(self._joined, common)
            addresses = tuple(self._joined[each].address for each in range(self.members))
            self._tell_all(say.Open(self.epoch, common, addresses))

    def _open(self, member: int, step: int, message: say.Opened) -> None:
        allowed = self.phase is Phase.OPENING and member not in self._opened and step == self.next_step
        self._check(allowed, member, message)
        self._opened.add(member)
        if len(self._opened) == self.members:
            self._run()

    def _run(self) -> None:
        self.phase = Phase.RUNNING
        self._stepped_at = self._now
        if self._checkpoint_at is None:
            self._checkpoint_at = self._now
        self._orders.append(EpochRuns(self.epoch, self.next_step))
        self._trim()
        if self.paused:
            self._ask_pause()

    # -- running

    def input_lag(self, now: float) -> float:
        """For how many seconds the oldest row that is in no step yet has waited."""
        rows, since = self._arrivals.waiting(self.next_step)
        return max(now - since, 0.0) if any(rows) else 0.0

    def _situation(self) -> Situation:
        rows, since = self._arrivals.waiting(self.next_step)
        assert self._checkpoint_at is not None
        return Situation(
            now=self._now,
            rows=rows,
            rows_since=since,
            stepped_at=self._stepped_at,
            checkpoint_at=self._checkpoint_at,
            wanted=bool(self._requests),
            checkpointing=self._round is not None,
            replaying=self._arrivals.replays(self.next_step),
            ending=self._arrivals.have_ended and (not self._ending or any(rows)),
            paused=self.paused,
        )

    def _go_on(self) -> None:
        """Do the work that is due between two steps."""
        if self._dismissal is not None and self._dismissal.over(self._now):
            self._finish(self._dismissal.step)
        while self.phase is Phase.RUNNING and not self._stepping:
            if self.shutting_down:
                if self.quiet and self._round is None:
                    self._drain_or_stop()
                return
            self._conclude()
            match decide(self._settings, self._situation()):
                case CheckpointNow():
                    self._prepare()
                case StepNow(replayed, ended):
                    self._issue(replayed=replayed, ended=ended)
                case WaitUntil():
                    return

    def _issue(self, *, replayed: bool, ended: bool) -> None:
        step = self.next_step
        # A step by the clock after the end is one, too.
        ended = ended or (self._ending and self._arrivals.have_ended)
        closing = self._arrivals.ends(step) if replayed else ended and self._closes
        self._ending, self._concluded = ended or closing, False
        self.next_step += 1
        self._stepped_at = self._now
        self._stepping = set(range(self.members))
        if not replayed:
            self.timings.rows += sum(self._arrivals.waiting(step)[0])
            self._arrivals.issued(step)
        self._tell_all(say.Step(self.epoch, step, replayed, closing))

    def _conclude(self) -> None:
        """Report, once, that all inputs have ended, if the end has been issued, and nothing of them is left."""
        done = self._ending and self._arrivals.have_ended and not self._concluded
        rows, _ = self._arrivals.waiting(self.next_step)
        if done and not any(rows) and not self._arrivals.replays(self.next_step):
            self._concluded = True
            self._orders.append(InputsEnded(self.next_step))

    # -- checkpoints

    def _prepare(self) -> None:
        self._attempt += 1
        self._round = TwoPhases(self._attempt, self.next_step, self.members, self._requests)
        self._requests = ()
        self._checkpoint_at = self._now
        self._tell_all(say.Prepare(self.epoch, self._attempt, self.next_step))

    def _prepared(self, member: int, attempt: int) -> None:
        if self._round is None or attempt != self._round.attempt:
            return  # of one that was given up meanwhile
        if self._round.prepared(member):
            self._tell_all(say.Commit(self.epoch, attempt))

    def _not_prepared(self, member: int, attempt: int, why: str) -> None:
        failed = self._round
        if failed is None or attempt != failed.attempt:
            return
        failed.not_prepared(member)
        self._round = None
        self.timings.failed_checkpoints += 1
        self._tell_all(say.GiveUp(self.epoch, attempt))
        self._orders.append(
            CheckpointFailed(failed.step, f"member {member} could not write it: {why}", failed.requests)
        )

    def _committed(self, member: int, attempt: int, message: say.Committed) -> None:
        made = self._round
        if made is None or attempt != made.attempt:
            self._check(False, member, message)
        elif made.committed(member):
            self._round = None
            self._keep(made.step)
            self._trim()
            assert self._checkpoint_at is not None
            self.timings.saved(self._checkpoint_at, self._now)
            self._orders.append(CheckpointMade(made.step, made.requests))

    def _keep(self, step: int) -> None:
        """All have a new version, and the one before it."""
        newest = self._kept[-1]
        self._kept = (newest, say.Checkpoint(newest.version + 1, step))

    def _trim(self) -> None:
        """The older version rules: a member that returns to it needs all later input."""
        self._tell_all(say.Trim(self.epoch, self._kept[0].step))

    # -- pause, start, shutdown

    def _pause(self) -> None:
        if not self.paused:
            self.paused = True
            if self.phase is Phase.RUNNING and not self.shutting_down:
                self._ask_pause()

    def _ask_pause(self) -> None:
        self._pauses += 1
        self._pausing = set(range(self.members))
        self._tell_all(say.AskPause(self.epoch, self._pauses))

    def _is_paused(self, member: int, attempt: int, step: int, message: say.IsPaused) -> None:
        if attempt != self._pauses or not (self.paused or self.shutting_down):
            return  # it was started again meanwhile
        self._check(member in self._pausing and step == self.next_step, member, message)
        self._pausing.remove(member)
        self.quiet = not self._pausing

    def _start(self) -> None:
        if self.paused and not self.shutting_down:
            if self.phase is Phase.RUNNING:
                self._resume()
            self.paused = False

    def _shut_down(self, drain: bool) -> None:
        if self.shutting_down:
            return
        self.shutting_down, self._draining, self._completes = True, drain, drain
        if self.phase is not Phase.RUNNING:
            if self._over is None:  # otherwise it ends on its own
                self._finish(None)
        elif not self.paused:
            self._ask_pause()
        elif drain:
            self._resume()
            self._ask_pause()

    def _drain_or_stop(self) -> None:
        """Continue once all have paused.

        Then they have reported all rows that they had logged at the time of the request.

        A member reports both on the same connection, in order. More may come from sources meanwhile: one step takes
        the rows that wait when all replays are done, and rows that come later are left for the next run.
        """
        step = self._left() if self._draining else None
        if step is None:
            self._stop()
            return
        self._draining = step.replayed or self._arrivals.have_ended
        self._resume()
        self._issue(replayed=step.replayed, ended=step.ended)
        self._ask_pause()

    def _left(self) -> StepNow | None:
        """The step that takes what is left; None if nothing is."""
        found = self._situation()
        if found.replaying:
            return StepNow(replayed=True)
        if found.ending:
            return StepNow(ended=not any(found.rows))
        if (
            self._closes and not self._ending
        ):  # with the rows that wait: more may come of inputs without an end
            return StepNow(ended=True)
        return StepNow() if any(found.rows) else None

    def _resume(self) -> None:
        self.paused = self.quiet = False
        self._tell_all(say.AskStart(self.epoch))

    def _stop(self) -> None:
        self.phase = Phase.STOPPING
        self._stopping = set(range(self.members))
        self._tell_all(say.AskStop(self.epoch, self.next_step, self._completes))

    def _is_stopped(self, member: int, step: int, message: say.IsStopped) -> None:
        self._check(member in self._stopping and step == self.next_step, member, message)
        self._stopping.remove(member)
        if not self._stopping:
            self._keep(step)
            self._orders += [CheckpointMade(step, self._requests), RecordEnd(step)]
            self._requests = ()

    def _dismiss(self, step: int) -> None:
        self.phase = Phase.DISMISSING
        self._dismissal = Dismissal(step, self.members, self._now)
        for member in sorted(self._connected):
            self._tell(member, say.Dismiss(self.epoch))

    def _leave(self, member: int, message: say.Left) -> None:
        self._check(self._dismissal is not None, member, message)
        if self._dismissal is not None:
            self._dismissal.left(member)

    def _finish(self, step: int | None) -> None:
        self.phase = Phase.STOPPED
        requests = self._requests if self._round is None else self._round.requests + self._requests
        if step is None and requests:
            why = "the circuit was shut down without a checkpoint"
            self._orders.append(CheckpointFailed(self.next_step, why, requests))
        self._orders.append(Finished(step))


def _observed(
    member: int, said: say.Late | say.WithoutTime | say.WindowsOpen
) -> RowsLate | RowsWithoutTime | StaysOpen:
    match said:
        case say.Late(_, operator, rows):
            return RowsLate(member, operator, rows)
        case say.WithoutTime(_, operator, column, rows):
            return RowsWithoutTime(member, operator, column, rows)
        case say.WindowsOpen(_, operator, begin, end):
            return StaysOpen(member, operator, begin, end)
