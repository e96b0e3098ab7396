"""``python -m tests.gate.steady``: run the gate again and again, alone and on a busy machine; this is `make steady`.

Five runs have the machine alone; five have two busy loops per core, and all time limits times four. A second call for
the same files runs what is left. The last lines list each test that ever failed.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from tests import everything

RUNS = 5
_LOOPS_PER_CORE = 2
_PATIENCE = 4
_LOOP = "import os\nparent = os.getppid()\nwhile os.getppid() == parent:\n    for _ in range(1000000):\n        pass"
"""Ends with the process that started it, whatever ends that."""


@dataclass(frozen=True, slots=True)
class Run:
    """One run of the gate: its exit code, its time, and the tests that failed and passed when they ran again."""

    busy: bool
    code: int
    took_s: float
    unsteady: tuple[str, ...]


def steady(path: Path, gate: Callable[[bool], Run], say: Callable[[str], None]) -> int:
    """Run ``gate`` until ``path`` has `RUNS` runs of each kind; return 0 if all of them were green."""
    runs = _read(path)
    for busy in (False, True):
        for _ in range(RUNS - sum(run.busy is busy for run in runs)):
            runs.append(gate(busy))
            with path.open("a", encoding="utf-8") as lines:
                lines.write(json.dumps(asdict(runs[-1])) + "\n")
    for line in _described(runs):
        say(line)
    return 1 if any(run.code for run in runs) else 0


def _read(path: Path) -> list[Run]:
    if not path.exists():
        return []
    read = map(json.loads, path.read_text("utf-8").splitlines())
    return [Run(**{**each, "unsteady": tuple(each["unsteady"])}) for each in read]


def _described(runs: Sequence[Run]) -> Iterator[str]:
    for busy, title in ((False, "alone"), (True, "on a busy machine")):
        of_kind = [run for run in runs if run.busy is busy]
        times = ", ".join(f"{run.took_s:.0f}" for run in of_kind)
        yield f"{title}: {sum(not run.code for run in of_kind)} of {len(of_kind)} green, in {times} s"
    for test, times_failed in Counter(test for run in runs for test in run.unsteady).most_common():
        yield f"  failed {times_failed} of {len(runs)} times: {test}"


def run_gate(busy: bool) -> Run:
    """Run the whole gate in a process of its own."""
    unsteady = Path(sys.prefix, "unsteady.jsonl")
    before = len(unsteady.read_text("utf-8").splitlines()) if unsteady.exists() else 0
    began = time.monotonic()
    with _loops(_LOOPS_PER_CORE * (os.cpu_count() or 1) if busy else 0):
        patience = {"GATE_PATIENCE": str(_PATIENCE)} if busy else {}
        gate = [sys.executable, "-m", "tests.gate"]
        code = subprocess.run(gate, env={**os.environ, **patience}, check=False).returncode
    lines = unsteady.read_text("utf-8").splitlines()[before:] if unsteady.exists() else []
    failed = tuple(json.loads(line)["test"] for line in lines)
    return Run(busy, code, round(time.monotonic() - began), failed)


@contextmanager
def _loops(number: int) -> Iterator[None]:
    loops = [subprocess.Popen([sys.executable, "-c", _LOOP]) for _ in range(number)]
    try:
        yield
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()


if __name__ == "__main__":
    name = everything.passed_tests().name.replace("passed", "steady").replace(".txt", ".jsonl")
    sys.exit(steady(Path(sys.prefix, name), run_gate, everything.say))
