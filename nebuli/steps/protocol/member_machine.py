"""A member, as the coordinator sees it: messages and outcomes in, tasks out. No clock, no I/O.

A member follows the greatest epoch that it was greeted in since it started. It refuses a smaller one, and reports which
one it follows; it does the same when it leaves one, for a coordinator that waits for an answer would wait forever. A
greater one that it was not greeted in was meant for a process that is gone, and is dropped. Outcomes of tasks of a
finished epoch are dropped, too.

Having stopped it can be greeted again, and continues as it did the first time: another one may be lost before it has
stopped. It ends when it is dismissed.

It starts no step on its own. A step, a checkpoint or a stop that does not follow from earlier messages is a bug of the
coordinator: it raises ProtocolViolated, and nothing is done.

Pause and stop go through its states. `Run` takes steps as they are issued. `Pause` has been asked to pause, and is in a
step that was issued before; when that is done it is `Paused`. `Stop` runs what is issued below a step, and commits
there; `Stopped` has nothing open, as in the beginning.

A member is never paused while other members' step needs it: a step is issued to all of them, and a member that is asked
to pause finishes it first. So all pause at the same step. If each started steps on its own, one might wait in an
exchange for another that is paused already, forever.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from nebuli.steps.protocol import member_actions as do
from nebuli.steps.protocol import messages as say
from nebuli.steps.protocol.errors import ProtocolViolated


@dataclass(frozen=True, slots=True)
class Run:
    """Open; steps are run as they are issued."""


@dataclass(frozen=True, slots=True)
class Pause:
    """A pause is requested, and a step is running."""


@dataclass(frozen=True, slots=True)
class Paused:
    """Nothing runs; ``step`` is the next one."""

    step: int


@dataclass(frozen=True, slots=True)
class Stop:
    """Going to commit before ``step``, or at it."""

    step: int


@dataclass(frozen=True, slots=True)
class Stopped:
    """Nothing is open."""


MemberState = Run | Pause | Paused | Stop | Stopped


class _Phase(Enum):
    """How far an epoch has come, at one member."""

    LOOKING = "looking"
    JOINED = "joined"
    OPENING = "opening"
    OPEN = "open"
    CLOSED = "closed"
    DISMISSED = "dismissed"
    FAILED = "failed"


class MemberMachine:
    """One process of a member of ``members``; ``incarnation`` is another for every process."""

    def __init__(self, members: int, incarnation: str, fingerprint: str, address: str) -> None:
        self.state: MemberState = Stopped()
        self.epoch = 0
        self.step = 0
        """The next one, or the one that it is in."""
        self._members = members
        self._incarnation = incarnation
        self._fingerprint = fingerprint
        self._address = address
        self._tasks: list[do.Task] = []
        self._ended = False
        self._begin_epoch()

    def _begin_epoch(self) -> None:
        self.state = Stopped()
        self._phase = _Phase.LOOKING
        self._logged_until = 0
        self._logged_ends: tuple[int, ...] = ()
        self._in_step = self._completes = False
        self._pause = 0
        self._attempt: int | None = None
        self._written = False

    def handle(self, happened: do.Happening) -> list[do.Task]:
        """Return the tasks for an event, in order."""
        self._tasks = []
        match happened:
            case do.Told(message):
                self._told(message)
            case do.HasArrived(rows):
                self._arrived(rows)
            case do.HasEnded():
                self._ended = True
                self._say_ended()
            case _ if happened.epoch == self.epoch and self._phase not in (_Phase.FAILED, _Phase.DISMISSED):
                self._came_of_it(happened)
        return self._tasks

    def _do(self, task: do.Task) -> None:
        self._tasks.append(task)

    def _say(self, message: say.FromMember) -> None:
        self._tasks.append(do.Say(message))

    # -- messages

    def _told(self, message: say.FromCoordinator) -> None:
        if message.epoch < self.epoch:
            self._say(say.Refused(self.epoch))
        elif isinstance(message, say.Greet):
            self._check(message.epoch > self.epoch, message)
            if self.epoch:
                # A deserted coordinator may be waiting for something, and send nothing.
                self._say(say.Refused(message.epoch))
            self.epoch = message.epoch
            self._begin_epoch()
            self._do(do.LookAround(self.epoch))
        elif isinstance(message, say.Dismiss):
            self._leave(message.epoch)
        elif message.epoch == self.epoch and self._phase is not _Phase.FAILED:
            self._told_to(message)

    def _leave(self, epoch: int) -> None:
        """Also where this process was not greeted in that epoch: one before it has stopped in its place."""
        if self._phase is not _Phase.DISMISSED:
            self.epoch = epoch
            self._begin_epoch()
            self._phase = _Phase.DISMISSED
            self._do(do.Leave())
        self._say(say.Left(epoch))

    def _told_to(self, message: say.FromCoordinator) -> None:
        match message:
            case say.Open(_, checkpoint, addresses):
                self._check(self._phase is _Phase.JOINED, message)
                self._phase = _Phase.OPENING
                self.step = checkpoint.step
                self._do(do.OpenState(self.epoch, checkpoint, addresses))
            case _ if self._phase is not _Phase.OPEN:
                self._check(False, message)
            case say.Step(_, step, replayed, ended):
                allowed = self.state == Run() or (isinstance(self.state, Stop) and step < self.state.step)
                self._check(allowed and step == self.step and not self._in_step, message)
                self._in_step = True
                self._do(do.RunStep(self.epoch, step, replayed, ended))
            case say.Trim(_, step):
                self._do(do.TrimLog(self.epoch, step))
            case say.Prepare() | say.Commit() | say.GiveUp():
                self._told_of_checkpoint(message)
            case _:
                self._told_to_change(message)

    def _told_of_checkpoint(self, message: say.Prepare | say.Commit | say.GiveUp) -> None:
        if isinstance(message, say.Prepare):
            between = message.step == self.step and not self._in_step
            self._check(between and self._attempt is None and not isinstance(self.state, Stop), message)
            self._attempt = message.attempt
            self._do(do.WriteState(self.epoch, message.attempt, message.step))
            return
        self._check(message.attempt == self._attempt, message)
        if isinstance(message, say.Commit):
            self._check(self._written, message)
            self._do(do.CommitState(self.epoch, message.attempt))
        else:
            self._attempt = None
            self._do(do.DropState(self.epoch, message.attempt))
        self._written = False

    def _told_to_change(self, message: say.FromCoordinator) -> None:
        match message:
            case say.AskPause(_, attempt):
                self._check(self.state == Run(), message)
                self._pause = attempt
                self.state = Pause()
            case say.AskStart():
                self._check(isinstance(self.state, Pause | Paused), message)
                self.state = Run()
            case say.AskStop(_, step, complete):
                reached = self.step + 1 if self._in_step else self.step
                self._check(not isinstance(self.state, Stop) and self._attempt is None, message)
                self._check(reached <= step, message)
                self.state = Stop(step)
                self._completes = complete
        self._settle()

    def _settle(self) -> None:
        """Between two steps: follow the last request."""
        if self._in_step:
            return
        if self.state == Pause():
            self.state = Paused(self.step)
            self._say(say.IsPaused(self.epoch, self._pause, self.step))
        elif self.state == Stop(self.step):
            self._do(do.CloseState(self.epoch, self.step, self._completes))

    def _check(self, allowed: bool, message: say.FromCoordinator) -> None:
        if not allowed:
            doing = "in" if self._in_step else "before"
            raise ProtocolViolated(
                "the coordinator",
                f"sent {message} to a member that is {self.state}, {doing} step {self.step}",
            )

    # -- what came of it

    def _came_of_it(self, happened: do.Happening) -> None:
        match happened:
            case do.Found(_, checkpoints, first, last, ended):
                self._logged_ends = ended
                self._join(checkpoints, first, last)
            case do.HasOpened(_, waiting):
                self._open(waiting)
            case do.HasStepped():
                self._say(say.Stepped(self.epoch, self.step))
                self.step += 1
                self._in_step = False
                self._settle()
            case do.HasWritten(_, attempt) if attempt == self._attempt:
                self._written = True
                self._say(say.Prepared(self.epoch, attempt))
            case do.CouldNotWrite(_, attempt, why) if attempt == self._attempt:
                self._say(say.NotPrepared(self.epoch, attempt, why))
            case do.HasCommitted(_, attempt):
                self._attempt = None
                self._say(say.Committed(self.epoch, attempt))
            case do.HasClosed():
                self.state = Stopped()
                self._phase = _Phase.CLOSED
                self._say(say.IsStopped(self.epoch, self.step))
            case do.HasFailed(_, why, lasting, of_input):
                self.state = Stopped()
                self._phase = _Phase.FAILED
                self._say(say.Aborted(self.epoch, why, lasting, of_input))

    def _join(self, checkpoints: tuple[say.Checkpoint, ...], first: int, last: int) -> None:
        self._phase = _Phase.JOINED
        self._logged_until = last
        self._say(
            say.Joined(
                self.epoch,
                self._members,
                self._incarnation,
                self._fingerprint,
                self._address,
                checkpoints,
                first,
                last,
            )
        )

    def _open(self, waiting: int) -> None:
        self._phase = _Phase.OPEN
        self.state = Run()
        if self.step < self._logged_until:
            ended = tuple(each for each in self._logged_ends if self.step <= each < self._logged_until)
            self._say(say.Replay(self.epoch, self.step, self._logged_until, ended))
        self._say(say.Opened(self.epoch, self.step))
        self._arrived(waiting)
        self._say_ended()

    def _say_ended(self) -> None:
        if self._ended and self._phase is _Phase.OPEN:
            self._say(say.Ended(self.epoch))

    def _arrived(self, rows: int) -> None:
        """They are in no step that is in the log, nor in the running one: its input may be fixed."""
        if rows and self._phase is _Phase.OPEN:
            earliest = max(self.step + 1 if self._in_step else self.step, self._logged_until)
            self._say(say.Received(self.epoch, earliest, rows))
