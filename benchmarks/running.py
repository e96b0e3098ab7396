"""Runs of contestants: two processes each, one per core, in turns, so that what disturbs one disturbs all."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from .work import Result, Work

ROOT = Path(__file__).parent.parent
DEADLINE_S = 120
RECEIVER_CORE, SENDER_CORE = 1, 0


class Failed(Exception):
    """A contestant's process ended badly, or lost a message."""


@dataclasses.dataclass(frozen=True)
class Run:
    """Both sides of one run."""

    received: Result
    sent: Result

    def rate(self) -> float:
        """Messages a second, as the receiver saw them."""
        return self.received.rate()


def run(name: str, work: Work) -> Run:
    """Let a contestant do ``work`` once."""
    settings = json.dumps(dataclasses.asdict(work))
    with _process("receive", name, settings, core=RECEIVER_CORE) as receiver:
        address = _line(receiver, name)["address"]
        with _process("send", name, settings, address, core=SENDER_CORE) as sender:
            sent = Result(**_line(sender, name))
            received = Result(**_line(receiver, name))
    if received.messages != sent.messages:
        raise Failed(f"{name}: {sent.messages} messages were sent, {received.messages} arrived")
    return Run(received, sent)


@contextmanager
def _process(*arguments: str, core: int) -> Iterator[subprocess.Popen[str]]:
    def pin() -> None:
        os.sched_setaffinity(0, {core})

    process = subprocess.Popen(
        ["timeout", str(DEADLINE_S), sys.executable, "-m", "benchmarks.side", *arguments],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
        preexec_fn=pin if (os.cpu_count() or 1) > 1 else None,  # noqa: PLW1509 - one call, no threads yet
    )
    try:
        yield process
        process.wait(DEADLINE_S)
    finally:
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


def _line(process: subprocess.Popen[str], name: str) -> dict[str, Any]:
    assert process.stdout is not None
    line = process.stdout.readline()
    if not line:
        raise Failed(f"{name}: a process ended before it had a result (exit {process.wait()})")
    return json.loads(line)  # type: ignore[no-any-return]
