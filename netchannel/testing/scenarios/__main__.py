"""``python -m netchannel.testing.scenarios FILE...``: run scenarios.

Exit codes: 0 all went as their files say, 1 one did not, 2 a file has mistakes (then nothing is started).
"""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

from .model import ScenarioError, ScenarioFailed
from .running import run
from .scenario_file import load

if TYPE_CHECKING:
    from .model import Mistake, Scenario


def main(arguments: list[str] | None = None) -> int:
    """Run the scenarios in the files that are named; the exit code."""
    parser = argparse.ArgumentParser(prog="python -m netchannel.testing.scenarios", description=__doc__)
    parser.add_argument("files", metavar="FILE", nargs="+", help="a scenario, in YAML")
    files: list[str] = parser.parse_args(arguments).files
    scenarios: list[Scenario] = []
    mistakes: list[Mistake] = []
    for file in files:
        try:
            scenarios.append(load(file))
        except ScenarioError as error:
            mistakes += error.mistakes
    if mistakes:
        sys.stderr.write("".join(f"{mistake}\n" for mistake in mistakes))
        return 2
    for scenario in scenarios:
        sys.stdout.write(f"{scenario.file}\n")
        try:
            counts = run(scenario, report=_say)
        except ScenarioFailed as error:
            sys.stderr.write(f"{error}\n")
            return 1
        for sink, count in counts.items():
            _say(f"{sink}: {count} messages, each once and in order")
    return 0


def _say(line: str) -> None:
    sys.stdout.write(f"  {line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
