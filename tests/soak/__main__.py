"""``python -m tests.soak --minutes 10 [--seed N] [--latency S] [--senders N --channels N]``: 1 on stderr if it broke.

The seed is said at the start, and with the command that runs it again if a promise was broken, or if a fault that was
asked for never happened, or had no effect. With ``--senders`` it is a crowd of those, whose ``--channels`` are all cut
at once, and whose receiver is killed.
"""

from __future__ import annotations

import argparse
import logging
import sys
from collections.abc import Sequence
from random import SystemRandom

import uvloop

from .crowd import Run
from .crowd import table as crowd_table
from .resources import Resources
from .run import Soak, Tally


def table(tally: Tally) -> str:
    """What happened, for people."""
    lines = [f"{'channel':24}{'messages':>12}{'reconnects':>12}"]
    lines += [f"{kind:24}{count:12,}{tally.reconnects[kind]:12,}" for kind, count in tally.messages.items()]
    lines += ["", f"{'fault':24}{'times':>12}{'effects':>12}"]
    lines += [
        f"{what:24}{times:12,}{tally.effects[what]:12,}" for what, times in sorted(tally.faults.items())
    ]
    lines += ["", f"{'held by the process':24}{'before':>12}{'after':>12}"]
    assert tally.before is not None
    assert tally.after is not None
    for name in Resources._fields:
        before, after = (getattr(held, name) for held in (tally.before, tally.after))
        if name == "resident":
            lines.append(f"{'resident MiB':24}{before / (1 << 20):12.1f}{after / (1 << 20):12.1f}")
        else:
            lines.append(f"{name:24}{before:12,}{after:12,}")
    moved = f"{tally.bytes_moved / 1e6:,.0f} MB received over {tally.connections:,} connections"
    lines += ["", f"{tally.rounds} rounds, {moved}, {tally.restarts} restarts of a killed process"]
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run, and print the table. Raises Violation, in groups."""
    parser = argparse.ArgumentParser(prog="python -m tests.soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=10.0, help="how long")
    parser.add_argument("--seed", type=int, help="of everything but time; drawn if not given")
    parser.add_argument(
        "--latency", type=float, default=0.0, help="of a connection's direction at most, in s"
    )
    parser.add_argument("--senders", type=int, default=0, help="of a crowd, which runs in place of the rest")
    parser.add_argument("--channels", type=int, default=10_000, help="of all senders of the crowd")
    parser.add_argument("--processes", type=int, default=8, help="that the senders of the crowd are in")
    given = parser.parse_args(arguments)
    seed = SystemRandom().randrange(1 << 32) if given.seed is None else given.seed
    say = lambda line: print(line, file=sys.stderr, flush=True)  # noqa: T201, E731 - a command's output
    say(f"seed {seed}")
    try:
        if given.senders:
            crowd = Run(seed, given.senders, given.channels, given.processes, say)
            lines = crowd_table(uvloop.run(crowd.run(60 * given.minutes)))
        else:
            lines = table(uvloop.run(Soak(seed, given.latency, say).run(60 * given.minutes)))
    except BaseException:
        again = f"make soak MINUTES={given.minutes} LATENCY={given.latency} SEED={seed}"
        if given.senders:
            again += f" SENDERS={given.senders} CHANNELS={given.channels}"
        say(f"broken with seed {seed}; to run it again: {again}")
        raise
    print(lines)  # noqa: T201 - as above


if __name__ == "__main__":
    logging.getLogger("netchannel").setLevel(logging.CRITICAL)
    main()
