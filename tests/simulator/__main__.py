"""``python -m tests.simulator --seeds 2000``: run seeds, as many at a time as there are processors."""

from __future__ import annotations

import argparse
import faulthandler
import os
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial

from . import processes, simulation
from .oracle import Violation
from .simulation import Report

LAYERS: dict[str, Callable[[int], Report]] = {"core": simulation.simulate, "runner": processes.simulate}
"""What of netchannel is run: its cores alone, or all that stands on them, through the public API."""
LONGEST_S = 120
"""What a run may take, on a machine however busy: most are over within a second."""


def attempt(layer: str, seed: int) -> Report | str:
    """The report, or what was violated. The process ends, and says where it is, if that takes minutes."""
    faulthandler.dump_traceback_later(LONGEST_S, exit=True, file=sys.__stderr__)
    try:
        return LAYERS[layer](seed)
    except Violation as error:
        return f"{error}\nagain: python -m tests.simulator --layer {layer} --first {seed} --seeds 1"
    finally:
        faulthandler.cancel_dump_traceback_later()


def run(seeds: Sequence[int], layer: str = "core") -> tuple[list[Report], list[str]]:
    """The reports of all seeds that went well, and what the others violated."""
    with ProcessPoolExecutor(min(os.cpu_count() or 1, len(seeds))) as pool:
        results = list(pool.map(partial(attempt, layer), seeds, chunksize=20))
    reports = [result for result in results if isinstance(result, Report)]
    return reports, [result for result in results if isinstance(result, str)]


def main() -> int:
    """Print what was met; 1 if a seed failed."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulator", description=__doc__)
    parser.add_argument(
        "--layer", choices=LAYERS, default="core", help="what is simulated: %(default)s, or runner"
    )
    parser.add_argument("--seeds", type=int, default=2000, help="how many")
    parser.add_argument("--first", type=int, default=0, help="the first one")
    arguments = parser.parse_args()
    reports, violations = run(range(arguments.first, arguments.first + arguments.seeds), arguments.layer)
    met: Counter[str] = sum((report.met for report in reports), Counter())
    for what, times in sorted(met.items()):
        print(f"{times:8} {what}")  # noqa: T201 - a command's output
    hours = sum(report.virtual_s for report in reports) / 3600
    print(  # noqa: T201 - as above
        f"{len(reports)} seeds went well, {len(violations)} did not: {sum(r.delivered for r in reports)} messages in "
        f"{hours:.0f} virtual hours, {len(set().union(*[r.transitions for r in reports]))} transitions"
    )
    for violation in violations:
        print(violation, file=sys.stderr)  # noqa: T201 - as above
    return 1 if violations else 0


if __name__ == "__main__":
    raise SystemExit(main())
