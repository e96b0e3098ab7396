"""``python -m tests.soak_spark [--triggers 2000] [--kills 20] [--seed N]``: 1 on stderr if a promise was broken."""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from random import SystemRandom

from .rows import ROWS
from .run import SOURCES, VICTIMS, Plan, Run, Tally

MIB = 1 << 20
GROWTH = 16 * MIB
"""What a process of the driver may have more at the end than after the first fifth of its last run."""


def plan(triggers: int, kills: int, rows_per_trigger: int) -> Plan:
    """An eighth of the kills is of each kind, the rest of the driver at any point; the last third of triggers has none.

    After a driver was away, a trigger may take a message more than it was told: so there are some rows more.
    """
    messages = triggers * rows_per_trigger * 21 // 20 // len(SOURCES) // ROWS
    rows = messages * ROWS
    each = dict.fromkeys(VICTIMS, kills // 8)
    each["driver"] += kills - sum(each.values())
    return Plan(rows, rows_per_trigger, each, triggers // 3)


def growth(tally: Tally) -> dict[str, tuple[int, int]]:
    """For each process of the last driver: the memory after the first fifth of its run, and at the end."""
    names = sorted({name for each in tally.memory for name in each})
    found = {}
    for name in names:
        values = [each[name] for each in tally.memory if name in each]
        fifth = max(1, len(values) // 5)
        found[name] = (max(values[:fifth]), sorted(values[-fifth:])[fifth // 2])
    return found


def table(tally: Tally) -> str:
    """What happened, for people."""
    lines = [f"{'source':16}{'rows':>12}"]
    lines += [f"{source:16}{rows:12,}" for source, rows in tally.rows.items()]
    lines += ["", f"{'killed':32}{'times':>12}"]
    lines += [f"{name:32}{times:12,}" for name, times in sorted(tally.kills.items())]
    lines += ["", f"{'tasks':32}{'times':>12}"]
    lines += [f"{name:32}{times:12,}" for name, times in sorted(tally.tasks.items())]
    lines += ["", f"{'resident MiB':16}{'early':>12}{'late':>12}"]
    lines += [
        f"{name:16}{early / MIB:12.1f}{late / MIB:12.1f}" for name, (early, late) in growth(tally).items()
    ]
    lines += [
        "",
        f"{tally.triggers:,} triggers, {len(tally.failures)} failed queries, {tally.seconds:.0f} s",
    ]
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run, and print the table. Raises AssertionError."""
    parser = argparse.ArgumentParser(prog="python -m tests.soak_spark", description=__doc__)
    parser.add_argument("--triggers", type=int, default=2000, help="how many, at least")
    parser.add_argument("--kills", type=int, default=20, help="of all kinds of processes")
    parser.add_argument("--rows-per-trigger", type=int, default=1000, help="at most")
    parser.add_argument("--seed", type=int, help="of the faults; drawn if not given")
    given = parser.parse_args(arguments)
    seed = SystemRandom().randrange(1 << 32) if given.seed is None else given.seed
    say = lambda line: print(line, file=sys.stderr, flush=True)  # noqa: E731, T201 - a command's output
    with tempfile.TemporaryDirectory() as folder:
        try:
            run = Run(plan(given.triggers, given.kills, given.rows_per_trigger), Path(folder), seed, say)
            tally = run.run()
        except BaseException:
            say(f"broken with seed {seed}:")
            raise
    print(table(tally))  # noqa: T201 - as above
    assert tally.triggers >= given.triggers, f"{tally.triggers} triggers, and {given.triggers} were asked for"
    for name, (early, late) in growth(tally).items():
        # The JVM takes what it is allowed to take.
        assert name == "java" or late - early < GROWTH, f"{name} grows: {early} bytes, then {late}"


if __name__ == "__main__":
    main()
