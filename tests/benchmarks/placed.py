"""A contestant that sends nothing, and says on which cores it may run, how long it was to, and who runs beside it."""

from __future__ import annotations

import os
from collections.abc import Callable

import psutil

from benchmarks.work import Result, Work


def receive(work: Work, ready: Callable[[str], None]) -> Result:
    ready("nowhere")
    return Result(1, {"receiver_cores": _cores()})


def send(work: Work, address: str) -> Result:
    beside = [
        process
        for process in psutil.Process(os.getppid()).children(recursive=True)
        if any(part.endswith("company.py") for part in process.as_dict(["cmdline"], [])["cmdline"])
    ]
    group = os.getpgid(beside[0].pid) if beside else 0
    measures = {"beside": len(beside), "group": group, "seconds": work.seconds, "warm_up": work.warm_up}
    return Result(1, {"sender_cores": _cores(), **measures})


def _cores() -> int:
    """As bits."""
    return sum(1 << core for core in os.sched_getaffinity(0))
