"""``python -m benchmarks.nexmark [--query q1 ...] [--contestant NAME ...] [--part 1] [--rounds 1] [--json FILE]``.

Of a file that is there the figures of other queries and contestants are kept.
"""

from __future__ import annotations

import argparse
import json
import shlex
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.environments import version_of
from benchmarks.machine import commit, machine

from .contestants import BYTEWAX, CONTESTANTS, PATHWAY, SPARK, answered
from .figures import table
from .files import prepare
from .processes import Refused

MILLION = 1_000_000
STREAMS = {
    "q1": ("bid",),
    "q3": ("person", "auction"),
    "q4": ("auction", "bid"),
    "q5": ("bid",),
    "q8": ("person", "auction"),
}
EVENTS = {"q1": 32 * MILLION, "q3": 20 * MILLION, "q4": 4 * MILLION, "q5": 4 * MILLION, "q8": 20 * MILLION}
"""Of all three streams, of which only those are written that a query reads."""
FEWER = {(PATHWAY, query): 4 for query in STREAMS} | {(BYTEWAX, query): 4 for query in ("q3", "q4")}
"""Who is slower has so many times fewer events."""
FEWER |= {(BYTEWAX, query): 16 for query in ("q5", "q8")}  # its windows take the longer, the more are open
PACKAGES = ("pyarrow", "numpy", "pyspark", "duckdb")


def main() -> None:
    """Measure, and print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.nexmark", description=__doc__)
    parser.add_argument("--query", choices=STREAMS, action="append", help="all of them")
    parser.add_argument("--contestant", choices=CONTESTANTS, action="append", help="all of them")
    parser.add_argument("--part", type=int, default=1, help="20: a twentieth of the events, and so on")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--json", type=Path, help="where the figures of all rounds go as well")
    given = parser.parse_args()
    data = _begun(given.json)
    for query in given.query or STREAMS:
        with tempfile.TemporaryDirectory(prefix="nexmark-") as folder:
            _measure(data["nexmark"].setdefault(query, {}), query, Path(folder), given)
        if given.json:
            given.json.write_text(json.dumps(data, indent=1) + "\n", "utf-8")
    print(table(data["nexmark"]))


def _begun(path: Path | None) -> dict[str, Any]:
    """What stands in the file, with what this run stands on."""
    found = json.loads(path.read_text("utf-8"))["nexmark"] if path and path.is_file() else {}
    facts = machine(PACKAGES)
    facts["packages"] += f", {version_of('pathway')}, {version_of('bytewax')}".replace("==", " ")
    del facts["cores"], facts["congestion control"]
    command = shlex.join(["python", "-m", "benchmarks.nexmark", *sys.argv[1:]])
    return {"command": command, "commit": commit(), "machine": facts, "nexmark": found}


def _measure(figures: dict[str, Any], query: str, folder: Path, given: argparse.Namespace) -> None:
    """All contestants in turn."""
    names = given.contestant or list(CONTESTANTS)
    made: dict[int, tuple[Path, int]] = {}
    for number in range(given.rounds):
        for name in names:
            events = EVENTS[query] // FEWER.get((name, query), 1) // given.part
            if events not in made:
                place = folder / str(events)
                place.mkdir()
                made[events] = place, prepare(place, events, STREAMS[query])
            place, count = made[events]
            if number == 0:
                figures[name] = {"events": count, "rounds": []}
            with tempfile.TemporaryDirectory(dir=folder) as work:
                try:
                    figures[name]["rounds"].append(answered(name, query, place, Path(work)))
                except Refused as refused:
                    if (name, query) != (SPARK, "q4"):
                        raise
                    figures[name] = {"refused": _reason(str(refused))}
            print(f"{query}, round {number + 1}: {name}: {figures[name]}", file=sys.stderr, flush=True)


def _reason(said: str) -> str:
    """Of what it said, why not."""
    lines = [line for line in said.splitlines() if "Exception: " in line]
    return lines[-1].partition("Exception: ")[2] if lines else said


if __name__ == "__main__":
    main()
