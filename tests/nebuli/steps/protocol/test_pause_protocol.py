"""All orders of events of two members that are paused and stopped, as the source document has it, and as it is here.

The document's members start steps by themselves: each takes a step when it has input, and meets the others in an
exchange. One that waits there cannot be paused, and one that is paused does not come. Here a step is issued to all, and
whoever is asked to pause finishes it first. Both are explored breadth first, so the first trace that is found is a
shortest one; ours with the state machines of production.
"""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Generic, TypeVar

import pytest

from nebuli.steps.protocol import events as ev
from nebuli.steps.protocol import member_actions as do
from nebuli.steps.protocol import messages as say
from nebuli.steps.protocol.lockstep import Lockstep, Phase
from nebuli.steps.protocol.member_machine import MemberMachine, Stopped
from nebuli.steps.protocol.triggers import TriggerSettings

State = TypeVar("State")
ROWS = (2, 1)
"""How much input the members get, A the most."""


@dataclass
class Explored(Generic[State]):
    """``stuck`` are states, with the shortest way there, in which nothing can happen and not all is over."""

    states: int
    ended: int
    stuck: list[tuple[State, list[str]]]


def explore(
    first: State,
    moves: Callable[[State], Iterator[tuple[str, State]]],
    over: Callable[[State], bool],
    key: Callable[[State], Any] = lambda state: state,
) -> Explored[State]:
    """All states that can be reached."""
    seen = {key(first)}
    found = Explored[State](0, 0, [])
    queue: deque[tuple[State, list[str]]] = deque([(first, [])])
    while queue:
        state, way = queue.popleft()
        found.states += 1
        followers = list(moves(state))
        if not followers:
            if over(state):
                found.ended += 1
            else:
                found.stuck.append((state, way))
        for what, follower in followers:
            if key(follower) not in seen:
                seen.add(key(follower))
                queue.append((follower, [*way, what]))
    return found


# -- the document's protocol


@dataclass(frozen=True)
class Worker:
    """``at``: the top of the loop, or reading there; in the circuit; in the exchange of its step; out of the loop."""

    rows: int
    state: str = "Run"
    stop: int = 0
    at: str = "top"
    step: int = 0


@dataclass(frozen=True)
class Literal:
    """``paused``: whom the coordinator has called pause on. It does not wait for one before it calls the other."""

    workers: tuple[Worker, Worker] = (Worker(ROWS[0]), Worker(ROWS[1]))
    paused: frozenset[int] = frozenset()

    def change(self, index: int, **changes: Any) -> Literal:
        workers = [*self.workers]
        workers[index] = replace(workers[index], **changes)
        return replace(self, workers=(workers[0], workers[1]))


def literal_moves(found: Literal) -> Iterator[tuple[str, Literal]]:
    for index, worker in enumerate(found.workers):
        name = "AB"[index]
        yield from _loop(found, index, name, worker)
        if index not in found.paused:
            asked = replace(found, paused=found.paused | {index})
            yield f"pause {name}", asked.change(index, state="Pause")
    a, b = found.workers
    if a.at == b.at == "exchange":
        yield "both leave", found.change(0, at="top", step=a.step + 1).change(1, at="top", step=b.step + 1)
    if a.state == b.state == "Paused":
        stop = {"state": "Stop", "stop": max(a.step, b.step)}
        yield "stop both", found.change(0, **stop).change(1, **stop)


def _loop(found: Literal, index: int, name: str, worker: Worker) -> Iterator[tuple[str, Literal]]:
    if worker.at == "circuit":
        yield f"{name} in exchange", found.change(index, at="exchange")
    if worker.at != "top":
        return
    reading = worker.state == "Run" or (worker.state == "Stop" and worker.step < worker.stop)
    if reading and worker.rows:
        yield f"{name} reads", found.change(index, at="circuit", rows=worker.rows - 1)
    if worker.state == "Pause":
        yield f"{name} paused", found.change(index, state="Paused")
    if worker.state == "Stop" and worker.step == worker.stop:
        yield f"{name} stopped", found.change(index, state="Stopped", at="out")


def _all_stopped(found: Literal) -> bool:
    return all(worker.state == "Stopped" for worker in found.workers)


def test_the_documents_pause_can_wait_for_ever() -> None:
    """A in its exchange waits for B, which is paused; B waits for the coordinator's stop, and the coordinator for A."""
    found = explore(Literal(), literal_moves, _all_stopped)
    state, way = found.stuck[0]
    assert way == ["A reads", "A in exchange", "pause A", "pause B", "B paused"]
    a, b = state.workers
    assert (a.state, a.at, b.state, b.at) == ("Pause", "exchange", "Paused", "top")
    assert found.ended, "in other orders it ends"


# -- ours


class Ours:
    """The coordinator and two members, from where both have opened, with messages on their way."""

    def __init__(self) -> None:
        self.lockstep = Lockstep(2, TriggerSettings(checkpoint_s=None))
        self.members = [MemberMachine(2, name, "f", f"{name}:1") for name in "AB"]
        self.to_member: list[list[say.FromCoordinator]] = [[], []]
        self.to_coordinator: list[list[say.FromMember]] = [[], []]
        self.tasks: list[list[do.Task]] = [[], []]
        self.rows = list(ROWS)
        self.exchange: set[int] = set()
        self.asked = False
        self.committed: dict[int, int] = {}
        for event in (ev.EpochClaimed(1), ev.Connected(0), ev.Connected(1)):
            self.coordinate(event)
        while any(self.to_member) or any(self.to_coordinator) or any(self.tasks):
            for move in [each for _, each in self.moves() if each.__name__ not in ("push", "ask")][:1]:
                move(self)

    def coordinate(self, event: ev.Event) -> None:
        for order in self.lockstep.handle(event, 0.0):
            if isinstance(order, ev.Tell):
                self.to_member[order.member].append(order.message)
            elif isinstance(order, ev.RecordEnd):
                self.coordinate(ev.EndRecorded())

    def happen(self, member: int, happened: do.Happening) -> None:
        for task in self.members[member].handle(happened):
            if isinstance(task, do.Say):
                self.to_coordinator[member].append(task.message)
            elif not isinstance(task, do.TrimLog | do.Leave):
                self.tasks[member].append(task)

    def moves(self) -> Iterator[tuple[str, Callable[[Ours], None]]]:
        for member in range(2):
            name = "AB"[member]
            if self.to_member[member]:
                yield f"{name} is told {type(self.to_member[member][0]).__name__}", _deliver_to(member)
            if self.to_coordinator[member]:
                said = type(self.to_coordinator[member][0]).__name__
                yield f"the coordinator hears {said} of {name}", _deliver_from(member)
            if self.tasks[member]:
                yield f"{name} does {type(self.tasks[member][0]).__name__}", _work(member)
            if self.rows[member]:
                yield f"{name} has a row", _push(member)
        if len(self.exchange) == 2:
            yield "both leave the exchange", _leave
        if not self.asked:
            yield "stop", _ask

    def key(self) -> Any:
        return repr(
            (
                [vars(each) for each in self.members],
                {
                    name: value
                    for name, value in vars(self.lockstep).items()
                    if name[1:] not in ("arrivals", "orders")
                },
                self.lockstep._arrivals.waiting(self.lockstep.next_step),
                self.to_member,
                self.to_coordinator,
                self.tasks,
                self.rows,
                sorted(self.exchange),
                self.asked,
                sorted(self.committed.items()),
            )
        )


def _deliver_to(member: int) -> Callable[[Ours], None]:
    return lambda ours: ours.happen(member, do.Told(ours.to_member[member].pop(0)))


def _deliver_from(member: int) -> Callable[[Ours], None]:
    return lambda ours: ours.coordinate(ev.Heard(member, ours.to_coordinator[member].pop(0)))


def _push(member: int) -> Callable[[Ours], None]:
    def push(ours: Ours) -> None:
        ours.rows[member] -= 1
        ours.happen(member, do.HasArrived(1))

    return push


def _work(member: int) -> Callable[[Ours], None]:
    def work(ours: Ours) -> None:
        match ours.tasks[member].pop(0):
            case do.LookAround(epoch):
                ours.happen(member, do.Found(epoch, (say.Checkpoint(0, 0),), 0, 0))
            case do.OpenState(epoch):
                ours.happen(member, do.HasOpened(epoch, 0))
            case do.RunStep():
                ours.exchange.add(member)
            case do.CloseState(epoch, step):
                ours.committed[member] = step
                ours.happen(member, do.HasClosed(epoch))

    return work


def _leave(ours: Ours) -> None:
    ours.exchange.clear()
    for member in range(2):
        ours.happen(member, do.HasStepped(1))


def _ask(ours: Ours) -> None:
    ours.asked = True
    ours.coordinate(ev.ShutdownAsked())


def our_moves(ours: Ours) -> Iterator[tuple[str, Ours]]:
    for what, move in ours.moves():
        follower = copy.deepcopy(ours)
        move(follower)
        yield what, follower


def _over(ours: Ours) -> bool:
    """Both have stopped, at the same step, and the coordinator knows."""
    return (
        ours.lockstep.phase is Phase.STOPPED
        and all(member.state == Stopped() for member in ours.members)
        and len({*ours.committed.values()}) == 1
        and len(ours.committed) == 2
    )


@pytest.mark.long
def test_ours_stops_in_every_order_and_both_at_the_same_step() -> None:
    found = explore(Ours(), our_moves, _over, Ours.key)
    assert [way for _, way in found.stuck] == []
    assert found.ended >= 3
    assert found.states > 500
