"""``python -m tests.soak_steps [--on workers] [--seeds 20] [--first N] [--faults 8]``: 1 if a promise was broken."""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from random import SystemRandom

import uvloop

from .fleet_story import FLEET_FAULTS, tell_of_fleet
from .story import FAULTS, tell

_STORIES = {"machine": (tell, FAULTS), "workers": (tell_of_fleet, FLEET_FAULTS)}


def main(arguments: Sequence[str] | None = None) -> int:
    """Tell the stories, and print what happened; the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.soak_steps", description=__doc__)
    parser.add_argument("--on", choices=_STORIES, default="machine", help="where members are")
    parser.add_argument("--seeds", type=int, default=20, help="how many stories")
    parser.add_argument("--first", type=int, help="the seed of the first one; drawn if not given")
    parser.add_argument("--faults", type=int, default=8, help="in each of them")
    given = parser.parse_args(arguments)
    first = SystemRandom().randrange(1 << 32) if given.first is None else given.first
    say = lambda line: print(line, file=sys.stderr, flush=True)  # noqa: E731, T201 - a command's output
    tally: Counter[str] = Counter()
    tell_one, faults = _STORIES[given.on]
    for seed in range(first, first + given.seeds):
        with tempfile.TemporaryDirectory() as folder:
            try:
                story = uvloop.run(tell_one(seed, Path(folder).resolve(), faults=given.faults))
            except BaseException:
                say(
                    f"broken in story {seed}; to tell it again: make soak-steps ON={given.on} SEEDS=1 FIRST={seed}"
                )
                raise
        say(f"story {seed}: {dict(story.tally)}")
        tally += story.tally
    for name, times in sorted(tally.items()):
        print(f"{name:28}{times:12,}")  # noqa: T201 - as above
    missing = [name for name in faults if not tally[name]]
    if missing and given.seeds >= len(faults):
        say(f"never happened: {missing}")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
