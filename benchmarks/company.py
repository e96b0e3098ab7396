"""Who else keeps the machine busy while a contestant is measured: ``python -m benchmarks.company KIND``.

It begins once a contestant's processes are there, so that nobody waits for how long they take to start in company, and
says so once it is there itself. It goes when its standard input ends, so that it is never left behind.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

ONE_LOOP, TWO_LOOPS = "one busy loop per core", "two busy loops per core"
PAIRS = "a dozen pairs that wake each other"
MEMORY = "one process per core that fills memory"
COMPANIES = (ONE_LOOP, TWO_LOOPS, PAIRS, MEMORY)
LOOPS = {ONE_LOOP: 1, TWO_LOOPS: 2}
"""Per core; all else is pinned to none."""

COPIED_BYTES = 256 << 20
WAKING = 12
BEGINS = b"."

Job = Callable[[], None]


def _busy() -> None:
    while True:
        pass


def _filling() -> None:
    source, target = bytearray(COPIED_BYTES), memoryview(bytearray(COPIED_BYTES))
    while True:
        target[:] = source


def _waking(reads: int, writes: int) -> Job:
    def play() -> None:
        while True:
            os.write(writes, os.read(reads, 1))

    return play


def _on(core: int, job: Job) -> Job:
    def pinned() -> None:
        os.sched_setaffinity(0, {core})
        job()

    return pinned


def _jobs(kind: str) -> list[Job]:
    cores = sorted(os.sched_getaffinity(0))
    if kind in LOOPS:
        return [_on(core, _busy) for core in cores * LOOPS[kind]]
    if kind == MEMORY:
        return [_filling] * len(cores)
    jobs = []
    for _ in range(WAKING):
        (one, other), (back, forth) = os.pipe(), os.pipe()
        os.write(other, BEGINS)
        jobs += [_waking(one, forth), _waking(back, other)]
    return jobs


def main() -> None:
    """Start all, say so, and end all, which are a group of processes, with this one."""
    for job in _jobs(sys.argv[1]):
        if os.fork() == 0:
            job()
    print("busy", flush=True)
    sys.stdin.read()
    os.killpg(0, signal.SIGKILL)


@contextmanager
def company(kind: str) -> Iterator[None]:
    """Keep the machine busy in that way within the context; not at all if there is no ``kind``."""
    if not kind:
        yield
        return
    command = [sys.executable, "-S", str(Path(__file__)), kind]  # without the packages that it has no use for
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, process_group=0) as process:
        assert process.stdout is not None
        assert process.stdout.readline(), f"{kind}: nobody came"
        yield


if __name__ == "__main__":
    main()
