"""``python -m tests.simulator --seeds 2000``: run seeds, as many at a time as there are processors."""

from __future__ import annotations

import argparse
import sys
from collections import Counter

from .running import LAYERS, run


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
