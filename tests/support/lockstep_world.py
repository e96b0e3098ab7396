"""Coordinators and members of a circuit in one thread, with what dies and arrives late drawn from a seed.

The coordinator's and the members' side of the protocol are those that run in production. Around them are models: of a
member's disk, of a circuit whose state is all that it has ever read, of an exchange in which each waits for all, and of
connections that keep the order, until they break: what was on its way then arrives late, twice or never. Event time
comes to its end in the first step that is told to, and that is a row of its own, `END`.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count
from random import Random
from typing import Any

from nebuli.steps.protocol import events as ev
from nebuli.steps.protocol import member_actions as do
from nebuli.steps.protocol import messages as say
from nebuli.steps.protocol.errors import Fenced
from nebuli.steps.protocol.lockstep import Lockstep, Phase
from nebuli.steps.protocol.member_machine import MemberMachine, Stopped
from nebuli.steps.protocol.triggers import TriggerSettings

FAULTY_TURNS = 1000
QUIET_TURNS = 100
ENDING_TURNS = 400
"""So many turns, from where it is to end, still have faults."""
TURNS = 6_000
"""A run that has not ended after so many turns without faults hangs."""
END = -1
"""The row of the step in which event time has come to its end."""
Rows = tuple[int, ...]
State = tuple[Rows, ...]
"""Of a circuit: the rows of all members, step by step."""


class Violation(AssertionError):
    """Something that must not happen."""


@dataclass
class Disk:
    """What a member's process leaves: versions, the input log, and rows that are in no step yet."""

    versions: dict[say.Checkpoint, State] = field(default_factory=lambda: {say.Checkpoint(0, 0): ()})
    log: dict[int, Rows] = field(default_factory=dict)
    first: int = 0
    last: int = 0
    ends: list[int] = field(default_factory=list)
    """The steps of the log with which event time ended."""
    arrived: list[int] = field(default_factory=list)

    def commit(self, step: int, state: State) -> None:
        newest = max(self.versions)
        self.versions = {
            newest: self.versions[newest],
            say.Checkpoint(newest.version + 1, step): state,
        }


@dataclass(eq=False)
class Link:
    """A connection; what was sent is received in order, while it is up."""

    coordinator: Coordinator
    process: Process
    to_member: deque[say.FromCoordinator] = field(default_factory=deque)
    to_coordinator: deque[say.FromMember] = field(default_factory=deque)


class Process:
    """One of a member."""

    def __init__(self, world: World, member: int) -> None:
        self.world = world
        self.member = member
        self.disk = world.disks[member]
        self.name = f"{member}/{next(world.names)}"
        self.following = MemberMachine(world.members, self.name, "f", f"host-{member}:1")
        self.jobs: list[do.Task] = []
        self.state: State = ()
        self.taken: tuple[int, int, State] | None = None
        """Attempt, step and state of a checkpoint that is being written."""
        self.in_exchange: do.RunStep | None = None
        self.link: Link | None = None
        self.ended = False
        """Its inputs have; in every process of a member they do so anew."""
        self.leaving = False
        """It may end, and no process follows it."""

    def happen(self, happened: do.Happening, link: Link | None = None) -> None:
        before = self.following.epoch
        tasks = self.following.handle(happened)
        told = happened.message if isinstance(happened, do.Told) else None
        dismissed = isinstance(told, say.Dismiss) and told.epoch == self.following.epoch
        if self.following.epoch != before or dismissed:
            self.link = link
        for task in tasks:
            match task:
                case do.Say(say.Refused() as message):
                    for each in self.world.coordinators:
                        to = each.links.get(self.member)
                        if to is not None and to.process is self:
                            self.world.answer(to, message)
                case do.Say(message):
                    self.world.answer(self.link, message)
                case do.LookAround():
                    self.jobs = [task]
                    self.taken = self.in_exchange = None
                case do.WriteState(_, attempt, step):
                    newest = max(self.disk.versions)
                    self.disk.versions = {newest: self.disk.versions[newest]}
                    self.taken = attempt, step, self.state
                    self.jobs.append(task)
                case do.Leave():
                    self.leaving = True
                case do.DropState():
                    self.taken = None  # what writes it may end all the same
                case _:
                    self.jobs.append(task)

    def work(self, job: do.Task) -> None:
        """Do one of the jobs, or the first half of a step."""
        self.jobs.remove(job)
        match job:
            case do.LookAround(epoch):
                found = tuple(sorted(self.disk.versions))
                self.happen(do.Found(epoch, found, self.disk.first, self.disk.last, tuple(self.disk.ends)))
            case do.OpenState(epoch, checkpoint, addresses):
                self._open(epoch, checkpoint, addresses)
            case do.RunStep():
                self._enter(job)
            case do.WriteState(epoch, attempt, _):
                if self.world.faulty and self.world.random.random() < 0.1:
                    self.happen(do.CouldNotWrite(epoch, attempt, "the disk is full"))
                else:
                    self.happen(do.HasWritten(epoch, attempt))
            case do.CommitState(epoch, attempt):
                self._commit(attempt)
                self.happen(do.HasCommitted(epoch, attempt))
            case do.TrimLog(_, step):
                self.disk.first = max(self.disk.first, step)
                self.disk.log = {each: rows for each, rows in self.disk.log.items() if each >= step}
            case do.CloseState(epoch, step):
                if len(self.state) != step:
                    raise Violation(f"{self.name} closes at step {step} with the state of {len(self.state)}")
                self.disk.commit(step, self.state)
                self.happen(do.HasClosed(epoch))

    def _open(self, epoch: int, checkpoint: say.Checkpoint, addresses: tuple[str, ...]) -> None:
        if checkpoint not in self.disk.versions:
            raise Violation(f"{self.name} is to open {checkpoint}, and has {sorted(self.disk.versions)}")
        assert addresses == tuple(f"host-{n}:1" for n in range(self.world.members))
        self.state = self.disk.versions[checkpoint]
        self.disk.versions = {checkpoint: self.state}
        self.happen(do.HasOpened(epoch, len(self.disk.arrived)))

    def _commit(self, attempt: int) -> None:
        if self.taken is None or self.taken[0] != attempt:
            raise Violation(f"{self.name} commits attempt {attempt}, and has taken {self.taken}")
        _, step, state = self.taken
        self.disk.commit(step, state)
        self.taken = None

    def _enter(self, job: do.RunStep) -> None:
        """Fix the input of a step, and wait for the others in the exchange."""
        world, disk, step = self.world, self.disk, job.step
        if (job.epoch, step) not in world.issued:
            raise Violation(
                f"{self.name} enters step {step}, which was not issued to all in epoch {job.epoch}"
            )
        if step == disk.last:
            rows = () if job.replayed else tuple(disk.arrived)
            disk.log[step] = rows
            if job.ended:
                disk.ends.append(step)
            disk.last += 1
            if rows:
                disk.arrived.clear()
        if step not in disk.log or len(self.state) != step:
            raise Violation(f"{self.name} enters step {step}: its log has {disk.first} up to {disk.last}")
        world.exchanges.setdefault((job.epoch, step), {})[self.member] = disk.log[step]
        self.in_exchange = job

    def can_leave(self) -> bool:
        """The exchange: all are in it."""
        job = self.in_exchange
        return job is not None and len(self.world.exchanges[job.epoch, job.step]) == self.world.members

    def leave(self) -> None:
        job, self.in_exchange = self.in_exchange, None
        assert job is not None
        rows = tuple(
            sorted(row for each in self.world.exchanges[job.epoch, job.step].values() for row in each)
        )
        if job.ended:
            rows += (END,)
        self.state += (rows,)
        self.world.made[self.member] = max(self.world.made[self.member], job.step + 1)
        before = self.world.outputs.setdefault(job.step, rows)
        if before != rows:
            raise Violation(f"{self.name}: step {job.step} gave {before}, and now {rows}")
        self.happen(do.HasStepped(job.epoch))


class Coordinator:
    """One process of it."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.lockstep = Lockstep(
            world.members, world.settings, paused=world.random.random() < 0.1, over=world.over
        )
        self.links: dict[int, Link] = {}
        self.claiming: int | None = -1
        """After which epoch to claim the next one; -1: after any; None: it has one."""
        self.recording: int | None = None
        """The end that is being recorded."""
        self.finished = False
        self.inputs_ended = False
        self.answered: set[int] = set()
        self.complete = 0
        """The step below which it has said that all are made."""

    def happen(self, event: ev.Event) -> None:
        try:
            orders = self.lockstep.handle(event, self.world.now)
        except Fenced:
            self.world.met["fenced"] += 1
            self.world.end_coordinator(self)
            return
        steps = Counter(
            order.message
            for order in orders
            if isinstance(order, ev.Tell) and isinstance(order.message, say.Step)
        )
        for message, number in steps.items():
            if number != self.world.members or self.lockstep.paused:
                raise Violation(f"{message} for {number} members, paused: {self.lockstep.paused}")
            self.world.issued.add((message.epoch, message.step))
        self.world.check_complete(self)
        for order in orders:
            self._do(order)

    def _do(self, order: ev.Order) -> None:
        match order:
            case ev.Tell(member, message):
                if member in self.links:
                    self.links[member].to_member.append(message)
            case ev.ClaimEpoch(after):
                self.claiming = after
                self.world.met["epochs ended"] += 1
            case ev.CheckpointMade(step, requests):
                self.answered |= {*requests}
                self.world.met["checkpoints"] += 1
                self.world.check_made(step)
            case ev.CheckpointFailed(_, _, requests):
                self.answered |= {*requests}
                self.world.met["checkpoints failed"] += 1
            case ev.InputsEnded(step):
                self.inputs_ended = True
                self.world.met["inputs ended"] += 1
                self.world.check_ended(step)
            case ev.RecordEnd(step):
                self.recording = step
            case ev.Finished(step):
                self.finished = step is not None

    def record_end(self) -> None:
        self.world.over, self.recording = self.recording, None
        self.happen(ev.EndRecorded())

    def claim(self) -> None:
        after, self.claiming = self.claiming, None
        if after not in (-1, self.world.epoch):
            self.happen(ev.EpochTaken(self.world.epoch))
            return
        self.world.epoch += 1
        self.happen(ev.EpochClaimed(self.world.epoch))


class World:
    """All of it. `run` goes through faults, and then to the end without any; `check` is called after every turn."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.names = count()
        self.members = self.random.choice([1, 2, 2, 3])
        self.settings = TriggerSettings(
            rows=self.random.choice([1, 1, 3]),
            delay_s=0.5,
            tick_s=self.random.choice([None, None, 1.0]),
            checkpoint_s=self.random.choice([None, 0.3, 3.0]),
        )
        self.now = 0.0
        self.epoch = 0
        self.over: int | None = None
        """Where all have stopped, once a coordinator has recorded it."""
        self.dismissed: set[int] = set()
        """Members that have ended, and are not started again."""
        self.faulty = self.pushing = True
        self.ends_at = self.random.choice([self.random.randrange(FAULTY_TURNS), FAULTY_TURNS + QUIET_TURNS])
        """The turn from which on inputs end, at each member by itself."""
        self.more = self.random.choice([0, 0, 3])
        """Rows that an input has all the same when its member's process is started again: its file has grown."""
        self.drains = self.random.random() < 0.3
        """It is told to end while rows still come: those that are logged by then are in a step."""
        self.logged_before_the_end: set[int] | None = None
        self.turns = 0
        self.disks = [Disk() for _ in range(self.members)]
        self.processes: list[Process | None] = [None] * self.members
        self.coordinators: list[Coordinator] = []
        self.broken: list[Link] = []
        """Of which the coordinator has not heard yet, or whose messages may still come."""
        self.late: list[tuple[int, Any]] = []
        """Messages of connections that are gone, with the member that they were from or for."""
        self.issued: set[tuple[int, int]] = set()
        self.exchanges: dict[tuple[int, int], dict[int, Rows]] = {}
        self.outputs: dict[int, Rows] = {}
        self.made = [0] * self.members
        """The step below which each member has made all, in whatever epoch."""
        self.complete = 0
        """The step below which all are made, as a coordinator has said."""
        self.pushed = 0
        self.met: Counter[str] = Counter()

    # -- the run

    def run(self) -> None:
        for _ in range(FAULTY_TURNS):
            self._turn(self.random.choice(self._faults()) if self.random.random() < 0.03 else None)
        self.faulty = False
        self.late.clear()
        for _ in range(QUIET_TURNS):
            self._turn(None)
        while len(self.coordinators) > 1:
            self.end_coordinator(self.coordinators[0])
        if not self.drains:
            self._go_on_until("all rows are in a step, and a checkpoint is made", self._all_is_done)
        self.more = 0
        for _ in range(ENDING_TURNS):
            if self._is_over():
                break
            self._turn(self.random.choice(self._last_faults()) if self.random.random() < 0.1 else None)
        self._go_on_until("it is shut down", self._is_over)
        self._check_end()

    def _is_over(self) -> bool:
        """As whoever runs a coordinator has it end: once all inputs have ended, and again where a member was lost."""
        for coordinator in self.coordinators:
            if coordinator.finished:
                return True
            phase = coordinator.lockstep.phase
            if self.drains and phase is Phase.RUNNING:
                self._end_with_what_is_logged(coordinator)
                break
            coordinator.happen(ev.StartAsked())
            if phase is Phase.STOPPED:
                self.end_coordinator(coordinator)
                self.met["lost while stopping"] += 1
            elif phase is Phase.RUNNING and coordinator.inputs_ended:
                coordinator.happen(ev.ShutdownAsked())
            break
        return False

    def _end_with_what_is_logged(self, coordinator: Coordinator) -> None:
        """As a program ends it; a pause does not keep rows from their step."""
        if self.logged_before_the_end is None:
            self.logged_before_the_end = {row for disk in self.disks for row in disk.arrived}
            self.met["drained"] += 1
            self.met["drained while paused"] += coordinator.lockstep.paused
        coordinator.happen(ev.ShutdownAsked(drain=True))

    def _last_faults(self) -> list[Callable[[], None]]:
        live = [each for each in self.processes if each is not None]
        found: list[Callable[[], None]] = [lambda: self._kill(self.random.choice(live))] if live else []
        for coordinator in self.coordinators:
            if coordinator.lockstep.phase is Phase.DISMISSING:
                self.met["faults while dismissing"] += 1
            found.append(lambda at=coordinator: self.end_coordinator(at))
            if coordinator.links:
                links = [*coordinator.links.values()]
                found.append(lambda links=links: self._break(self.random.choice(links)))
        return found or [self._tick]

    def _all_is_done(self) -> bool:
        if not self.coordinators:
            return False
        coordinator = self.coordinators[0]
        coordinator.happen(ev.StartAsked())
        if not coordinator.inputs_ended or not all(each and each.ended for each in self.processes):
            return False
        if sum(map(len, self.outputs.values())) < self.pushed + 1:
            return False
        if -1 not in coordinator.answered and self.random.random() < 0.1:
            coordinator.happen(ev.CheckpointAsked(-1))
        return -1 in coordinator.answered

    def _go_on_until(self, what: str, done: Callable[[], bool]) -> None:
        for _ in range(TURNS):
            if done():
                return
            self._turn(None)
        phases = [each.lockstep.phase.value for each in self.coordinators]
        states = [each and each.following.state for each in self.processes]
        raise Violation(f"it hangs before {what}: coordinators {phases}, members {states}")

    def _check_end(self) -> None:
        if any(each.following.state != Stopped() for each in self.processes if each):
            raise Violation("not all members have stopped")
        if len({max(disk.versions) for disk in self.disks}) > 1:
            raise Violation(f"they stopped at {[max(disk.versions) for disk in self.disks]}")
        given = sorted(row for step in self.outputs.values() for row in step)
        rows = [row for row in given if row != END]
        if self.logged_before_the_end is not None:
            if lost := self.logged_before_the_end - {*rows}:
                raise Violation(f"{lost} were logged before it was told to end, and did not come out")
            if len({*rows}) < len(rows):
                raise Violation(f"some came out twice: {rows}")
        elif rows != [*range(self.pushed)] or END not in given:
            raise Violation(f"of {self.pushed} rows and the end {given} came out")

    def _turn(self, fault: Callable[[], None] | None) -> None:
        self.turns += 1
        self.pushing = self.turns < self.ends_at
        actions = self._actions()
        (fault or (self.random.choice(actions) if actions else self._tick))()
        self.check()

    def _actions(self) -> list[Callable[[], None]]:
        """All that may happen now, one of which does."""
        found: list[Callable[[], None]] = [self._tick]
        if self.pushing and self.random.random() < 0.3:
            found.append(self._push)
        if not self.coordinators:
            found.append(self._start_coordinator)
        for member, process in enumerate(self.processes):
            if process is None:
                if member not in self.dismissed:
                    found.append(lambda member=member: self._start(member))
                continue
            if process.leaving:
                found.append(lambda process=process: self._leave(process))
            if not self.pushing and not process.ended:
                found.append(lambda process=process: self._end_inputs(process))
            found += [lambda job=job, process=process: process.work(job) for job in process.jobs]
            if process.can_leave():
                found.append(process.leave)
            found += [
                lambda at=each, to=process: self._connect(at, to)
                for each in self.coordinators
                if process.member not in each.links
            ]
        for coordinator in self.coordinators:
            if coordinator.claiming is not None:
                found.append(coordinator.claim)
            if coordinator.recording is not None:
                found.append(coordinator.record_end)
            for link in coordinator.links.values():
                found += self._deliveries(link)
        found += [lambda link=link: self._notice(link) for link in self.broken]
        return found

    def _deliveries(self, link: Link) -> list[Callable[[], None]]:
        found: list[Callable[[], None]] = []
        if link.to_member and link not in self.broken:
            found.append(lambda: link.process.happen(do.Told(link.to_member.popleft()), link))
        if link.to_coordinator:
            member = link.process.member
            found.append(lambda: link.coordinator.happen(ev.Heard(member, link.to_coordinator.popleft())))
        return found

    def _tick(self) -> None:
        self.now += self.random.choice([0.01, 0.1, 0.3])
        for coordinator in [*self.coordinators]:
            at = coordinator.lockstep.deadline()
            if at is not None and at <= self.now:
                coordinator.happen(ev.TimePassed())

    def _push(self) -> None:
        self._push_to(self.random.randrange(self.members))

    def _push_to(self, member: int) -> None:
        self.disks[member].arrived.append(self.pushed)
        self.pushed += 1
        process = self.processes[member]
        if process is not None:
            process.happen(do.HasArrived(1))

    def _end_inputs(self, process: Process) -> None:
        process.ended = True
        process.happen(do.HasEnded())

    def _start(self, member: int) -> None:
        self.processes[member] = Process(self, member)
        if self.more and not self.pushing:
            self.more -= 1
            self._push_to(member)

    def _start_coordinator(self) -> None:
        self.coordinators.append(Coordinator(self))

    def _connect(self, coordinator: Coordinator, process: Process) -> None:
        coordinator.links[process.member] = Link(coordinator, process)
        coordinator.happen(ev.Connected(process.member))

    # -- faults

    def _faults(self) -> list[Callable[[], None]]:
        found: list[Callable[[], None]] = []
        live = [each for each in self.processes if each is not None]
        if live:
            found += [
                lambda: self._kill(self.random.choice(live)),
                lambda: self._fail(self.random.choice(live)),
            ]
        if self.coordinators:
            some = self.random.choice(self.coordinators)
            found.append(lambda: self._ask(some))
            found.append(lambda: self._ask(some))
            if self.random.random() < 0.5:
                found.append(lambda: self.end_coordinator(some))
            if some.links:
                found.append(lambda: self._break(self.random.choice([*some.links.values()])))
        if len(self.coordinators) < 2 and self.random.random() < 0.3:
            found.append(self._start_coordinator)
        if self.late:
            found += [self._deliver_late] * 4
        return found or [self._tick]

    def _ask(self, coordinator: Coordinator) -> None:
        asked = [ev.PauseAsked(), ev.StartAsked(), ev.StartAsked(), ev.CheckpointAsked(next(self.names))]
        coordinator.happen(self.random.choice(asked))

    def _kill(self, process: Process) -> None:
        """In the middle of a commit, it happened or it did not."""
        self.met["killed"] += 1
        for job in process.jobs:
            if self.random.random() < 0.5:
                if isinstance(job, do.CommitState):
                    process._commit(job.attempt)
                    self.met["killed in a commit"] += 1
                elif isinstance(job, do.CloseState):
                    process.disk.commit(job.step, process.state)
        self._gone(process)

    def _leave(self, process: Process) -> None:
        """It ends by itself; what it said last may be lost."""
        self.dismissed.add(process.member)
        self._gone(process)

    def _gone(self, process: Process) -> None:
        self.processes[process.member] = None
        for coordinator in self.coordinators:
            for link in coordinator.links.values():
                if link.process is process and link not in self.broken:
                    self._break(link)

    def _fail(self, process: Process) -> None:
        """A disk that is full in the middle of something, a peer that is gone."""
        if process.jobs or process.in_exchange:
            process.jobs.clear()
            process.taken = process.in_exchange = None
            process.happen(do.HasFailed(process.following.epoch, "the other end is gone"))

    def _break(self, link: Link) -> None:
        if link not in self.broken:
            self.broken.append(link)
            self.late += [(link.process.member, each) for each in link.to_member]

    def _notice(self, link: Link) -> None:
        """The coordinator hears of it, after what had arrived."""
        self.broken.remove(link)
        coordinator, member = link.coordinator, link.process.member
        self.late += [(member, each) for each in link.to_coordinator]
        if link.process.link is link:
            link.process.link = None
        if coordinator in self.coordinators:
            del coordinator.links[member]
            coordinator.happen(ev.Lost(member, "it is gone"))

    def end_coordinator(self, coordinator: Coordinator) -> None:
        """What it said may still arrive."""
        self.met["coordinators ended"] += 1
        self.coordinators.remove(coordinator)
        self.broken = [link for link in self.broken if link.coordinator is not coordinator]
        for link in coordinator.links.values():
            self.late += [(link.process.member, each) for each in (*link.to_member, *link.to_coordinator)]
            if link.process.link is link:
                link.process.link = None

    def answer(self, link: Link | None, message: say.FromMember) -> None:
        """To a coordinator that may be gone."""
        if link is not None and link.coordinator in self.coordinators and link not in self.broken:
            link.to_coordinator.append(message)

    def _deliver_late(self) -> None:
        """A message of an epoch that is over where it arrives; it may arrive again."""
        at = self.random.randrange(len(self.late))
        member, message = self.late[at]
        if self.random.random() < 0.5:
            del self.late[at]
        if isinstance(message, say.FromMember):
            for coordinator in self.coordinators:
                own = coordinator.lockstep.epoch
                if message.epoch < own or (
                    message.epoch == own and coordinator.lockstep.phase is Phase.CLAIMING
                ):
                    self.met["late"] += 1
                    coordinator.happen(ev.Heard(member, message))
                    return
            return
        process = self.processes[member]
        if process is not None and (process.following.epoch == 0 or message.epoch < process.following.epoch):
            self.met["late"] += 1
            process.happen(do.Told(message))

    # -- what always holds

    def check(self) -> None:
        kept = [set(disk.versions) for disk in self.disks]
        common = set.intersection(*kept)
        if not common:
            raise Violation(f"the members share no checkpoint: {kept}")
        for disk in self.disks:
            if not 1 <= len(disk.versions) <= 2:
                raise Violation(f"{len(disk.versions)} versions")
            needed = min(each.step for each in (*disk.versions, max(common)))
            if disk.first > needed:
                raise Violation(f"the log begins at {disk.first}, and a version needs step {needed}")
            if any(len(state) != each.step for each, state in disk.versions.items()):
                raise Violation(f"versions {sorted(disk.versions)} have other steps in them")
        for each in common:
            if len({disk.versions[each] for disk in self.disks}) > 1:
                raise Violation(f"members have different states in {each}")
        steps: dict[int, set[int]] = {}
        for checkpoint in set.union(*kept):
            steps.setdefault(checkpoint.version, set()).add(checkpoint.step)
        if any(len(found) > 1 for found in steps.values()):
            raise Violation(f"members committed one version at different steps: {steps}")

    def check_ended(self, step: int) -> None:
        """All that was pushed where the end has come is out, and the end with it."""
        waiting = {row for disk in self.disks for row in disk.arrived}
        known = sorted(row for at, rows in self.outputs.items() if at < step for row in rows)
        late = set(range(self.pushed)) - waiting - {*known}
        if END not in known or late:
            raise Violation(f"inputs have ended below step {step}, where {late} and {END in known} came out")

    def check_complete(self, coordinator: Coordinator) -> None:
        made, before = coordinator.lockstep.made, coordinator.complete
        if not before <= made.complete <= min(self.made):
            raise Violation(f"{before} steps were made, then {made.complete}; members have made {self.made}")
        newest = coordinator.lockstep.epoch == self.epoch
        if newest and made.known and made.complete < self.complete:
            raise Violation(f"{made.complete} steps are said to be all, and {self.complete} were made before")
        coordinator.complete = made.complete
        self.complete = max(self.complete, made.complete)
        self.met["caught up"] += newest and made.known and before < made.complete == self.complete
        self.met["behind"] += made.complete < self.complete

    def check_made(self, step: int) -> None:
        if any(step not in {each.step for each in disk.versions} for disk in self.disks):
            raise Violation(f"a checkpoint was made at {step}, and not all members have it")
