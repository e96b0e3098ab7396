"""Seeds of the gate's simulations: few, chosen by set cover, that together reach all that many reach.

A run reaches *transitions*: of a state machine in a state, by the kind of its event; and faults, by what they hit. The
gate runs the seeds of `seeds.json`. `make test-all` recomputes that they reach whatever `Simulator.candidates` reach;
``python -m tests.curated`` chooses them again.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

from nebuli.steps.protocol.lockstep import Lockstep
from nebuli.steps.protocol.member_machine import MemberMachine
from tests.nebuli.ingestion.recipe import simulation as ingestion
from tests.nebuli.store.collections import simulation as collections
from tests.simulator import processes, simulation
from tests.simulator.simulation import noted
from tests.support.lockstep_world import World
from tests.support.replay_world import Play

Reached = frozenset[str]

CHOSEN = Path(__file__).with_name("seeds.json")


class Simulator(NamedTuple):
    """A simulation by its seed: the transitions that a run reaches, and the seeds to choose from."""

    run: Callable[[int], Reached]
    candidates: Sequence[int]


def chosen() -> dict[str, list[int]]:
    """Read the seeds of each simulator."""
    return json.loads(CHOSEN.read_text("utf-8"))


def all_of(reached: Mapping[int, Reached]) -> Reached:
    """Return the transitions that any of the runs reaches."""
    return frozenset[str]().union(*reached.values())


def cover(reached: Mapping[int, Reached]) -> list[int]:
    """Choose seeds that reach all that is reached, each time the one that adds most: the greedy set cover."""
    left = set(all_of(reached))
    found = []
    while left:
        best = max(reached, key=lambda seed: (len(reached[seed] & left), -seed))
        found.append(best)
        left -= reached[best]
    return sorted(found)


def _channels(simulate: Callable[[int], simulation.Report]) -> Callable[[int], Reached]:
    def run(seed: int) -> Reached:
        report = simulate(seed)
        return frozenset([*map(" ".join, report.transitions), *(name for name, n in report.met.items() if n)])

    return run


def _kept_streams(seed: int) -> Reached:
    transitions: set[tuple[str, str, str]] = set()
    play = Play(seed)
    with noted(transitions):
        play.run()
    return frozenset([*map(" ".join, transitions), *play.met])


def _members(seed: int) -> Reached:
    reached: set[str] = set()
    world = World(seed)
    with ExitStack() as stack:
        stack.enter_context(_handled(Lockstep, "phase", reached))
        stack.enter_context(_handled(MemberMachine, "_phase", reached))
        world.run()
    return frozenset([*reached, *(name for name, n in world.met.items() if n)])


@contextmanager
def _handled(machine: type, phase: str, reached: set[str]) -> Iterator[None]:
    """Note the kind of each event that a machine handles, with its phase before it."""
    handle = machine.handle  # type: ignore[attr-defined]

    def noting(self: Any, event: Any, *now: float) -> Any:
        kind = type(getattr(event, "message", event)).__name__
        reached.add(f"{machine.__name__} {getattr(self, phase).value} {kind}")
        return handle(self, event, *now)

    with patch.object(machine, "handle", noting):
        yield


def _over_a_store(report: Any) -> Reached:
    """Calls that failed, each with its fate, and all else that a report counts and there was."""
    counted = {each: getattr(report, each) for each in report.__slots__ if each not in ("times", "virtual_s")}
    faults = counted.pop("faults")
    return frozenset(
        [*(name for name, n in faults.items() if n), *(name for name, n in counted.items() if n)]
    )


SIMULATORS = {
    "channels": Simulator(_channels(simulation.simulate), [*range(500), 878]),
    "collections": Simulator(lambda seed: _over_a_store(collections.simulate(seed)), [*range(24), 45]),
    "ingestion": Simulator(
        lambda seed: _over_a_store(ingestion.simulate(seed, instances=1 + seed % 3)), range(24)
    ),
    "kept streams": Simulator(_kept_streams, range(150)),
    "members": Simulator(_members, range(400)),
    "processes": Simulator(_channels(processes.simulate), range(300)),
}
