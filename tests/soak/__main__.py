"""``python -m tests.soak --minutes 10 [--seed N] [--latency S]``: 1 and the seed on stderr if a promise was broken."""

from __future__ import annotations

import argparse
import logging
import sys
from collections.abc import Sequence
from random import SystemRandom

import uvloop

from .resources import Resources
from .run import Soak, Tally


def table(tally: Tally) -> str:
    """What happened, for people."""
    lines = [f"{'channel':24}{'messages':>12}{'reconnects':>12}"]
    lines += [f"{kind:24}{count:12,}{tally.reconnects[kind]:12,}" for kind, count in tally.messages.items()]
    lines += ["", f"{'fault':24}{'times':>12}"]
    lines += [f"{what:24}{times:12,}" for what, times in sorted(tally.faults.items())]
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
    given = parser.parse_args(arguments)
    seed = SystemRandom().randrange(1 << 32) if given.seed is None else given.seed
    logging.getLogger("netchannel").setLevel(logging.CRITICAL)
    say = lambda line: print(line, file=sys.stderr, flush=True)  # noqa: T201, E731 - a command's output
    soak = Soak(seed, given.latency, say)
    try:
        tally = uvloop.run(soak.run(60 * given.minutes))
    except BaseException:
        print(f"broken with seed {seed}:", file=sys.stderr)  # noqa: T201 - as above
        raise
    print(table(tally))  # noqa: T201 - as above


if __name__ == "__main__":
    main()
