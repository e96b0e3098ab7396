"""One run: nodes, clients and faults for a while, and what the clients were told, checked."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

from .anomalies import Violation
from .checker import check
from .clients import Clients
from .cluster import Nemesis, NodeProcess
from .history import Transaction
from .outages import FAULTS

NODES = 3
CLIENTS = 10
ONE_IN = 40
"""Of so many appends one is unclear."""
_MORE_S = 20
"""So long a run goes on at most, beyond the time that was asked for, until every fault has happened."""


@dataclass
class Tally:
    """What happened."""

    transactions: Counter[str] = field(default_factory=Counter)
    faults: Counter[str] = field(default_factory=Counter)
    refusals: list[str] = field(default_factory=list)
    """What nodes said that could not read in the end."""


async def run(seed: int, seconds: float, folder: Path) -> tuple[list[Transaction], Tally]:
    """What the clients were told, and what happened, all drawn from the seed but time. Raises Violation."""
    random = Random(seed)
    faults: Counter[str] = Counter()
    names = [f"n{number}" for number in range(1, NODES + 1)]
    nodes = [NodeProcess(name, folder, Random(random.randrange(1 << 32)), ONE_IN, faults) for name in names]
    clients = Clients(nodes, Random(random.randrange(1 << 32)))
    nemesis = Nemesis(nodes, names, Random(random.randrange(1 << 32)))
    stop = asyncio.Event()
    try:
        await asyncio.gather(*(each.start(names) for each in nodes))
        async with asyncio.TaskGroup() as group:
            for _ in range(CLIENTS):
                group.create_task(clients.go_on(stop.is_set))
            group.create_task(nemesis.go_on(stop.is_set))
            await asyncio.sleep(seconds)
            for _ in range(_MORE_S):
                if missing(faults + nemesis.faults):
                    await asyncio.sleep(1)
            stop.set()
        refusals = await clients.read_all()
        for each in nodes:
            await each.stop()
    finally:
        for each in nodes:
            each.abandon()
    outcomes = Counter(each.outcome for each in clients.history)
    return clients.history, Tally(Counter(outcomes), faults + nemesis.faults, refusals)


def checked(history: list[Transaction], refusals: Sequence[str] = ()) -> None:
    """Raises Violation for one that is not strictly serializable, or that has no end."""
    anomalies = check(history)
    if anomalies:
        told = "\n".join(map(str, anomalies[:5]))
        more = f"\nand {len(anomalies) - 5} more" if len(anomalies) > 5 else ""
        raise Violation(f"{len(history)} transactions are not strictly serializable:\n{told}{more}")
    if refusals:
        raise Violation("\n".join(refusals))


def check_happened(tally: Tally) -> None:
    """Raises Violation if something never happened: then nothing is shown of it."""
    never = missing(tally.faults) + [each for each in ("ok", "info") if not tally.transactions[each]]
    if never:
        raise Violation(f"these never happened: {never}; run more seeds, or for longer")


def missing(faults: Counter[str]) -> list[str]:
    """The faults that have not happened."""
    return [each for each in ("kill -9", "SIGSTOP", *FAULTS) if not faults[each]]
