"""A supervisor that is started independent of its starter, which waits until its instances are there."""

from __future__ import annotations

import asyncio
import socket
import subprocess
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from nebuli.store.collections.clock import now_ms

from .supervised_process import end_process

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from nebuli.ingestion.entries import InstanceStatus
    from nebuli.ingestion.source_client import Sources

    from .supervisor_files import SupervisorFiles

_DEADLINE_S = 60.0
_STOPPED_S = 20.0
_SILENT_S = 2.0
"""Longer waits are reported."""
_STEP_S = 0.05


@dataclass(frozen=True, slots=True)
class Started:
    """The supervisor's process, if there is one, and what went wrong."""

    supervisor: int | None
    error: str | None


async def started(
    sources: Sources,
    files: SupervisorFiles,
    source: str,
    command: Sequence[str],
    *,
    replicas: int,
    say: Callable[[str], None],
) -> Started:
    """Have a supervisor, started with this ``command`` if there is none, and so many instances of a source here.

    Waits until each of them has written something, or one reports an error; for 60 s at most, and ``say`` is called
    with what it waits for. Raises OSError, StorageError.
    """
    begun, began = now_ms(), time.monotonic()
    process: subprocess.Popen[bytes] | None = None
    log = files.supervisor_log
    said_before = log.stat().st_size if log.exists() else 0
    is_silent = True
    while True:
        holder = files.supervisor.holder()
        if holder is None and process is None:
            process = _start(command, log)
        if holder is None and process is not None and (code := process.poll()) is not None:
            return Started(
                None, f"its supervisor has ended with exit code {code}{_last_said(log, said_before)}"
            )
        pid = holder.pid if holder is not None else None
        instances = [each for each in await sources.instances(source) if _is_here(each)]
        living = [each for each in instances if each.is_living(now_ms())]
        said = [each.error for each in living]
        said += [each.last_error for each in instances if _has_failed(each, begun)]
        if wrong := next((each for each in said if each is not None), None):
            return Started(pid, wrong)
        numbered = [each for each in living if each.instance.isdecimal()]
        running = [each for each in numbered if each.health == "running"]
        if pid and len(running) == len(numbered) == replicas:
            return Started(pid, None)
        passed_s = time.monotonic() - began
        if passed_s >= _DEADLINE_S:
            why = "no instance has reported an error; the instances continue if they can"
            return Started(pid, f"{_waits(numbered, replicas)}, after {_DEADLINE_S:g} s: {why}")
        if is_silent and passed_s >= _SILENT_S:
            say(f"waiting, for {_DEADLINE_S:g} s at most: {_waits(numbered, replicas)}")
            is_silent = False
        await asyncio.sleep(_STEP_S)


def _waits(living: Sequence[InstanceStatus], replicas: int) -> str:
    """Return the instances that are not as ordered."""
    if len(living) != replicas:
        return f"{len(living)} of {replicas} instances have been started"
    names = [each.instance for each in living if each.health != "running"]
    return f"instance {', '.join(names)} has written nothing yet"


def _has_failed(instance: InstanceStatus, since: int) -> bool:
    return instance.health == "ended" and (instance.last_error_at or 0) >= since


def _last_said(log: Path, before: int) -> str:
    said = log.read_bytes()[before:].decode(errors="replace").strip().splitlines()
    return f": {said[-1].removeprefix('Error: ')}" if said else ""


async def ended(files: SupervisorFiles, source: str) -> int | None:
    """End all supervised instances of a source on this host; returns one that still runs after a while. Raises OSError.

    The supervisor ends them, or this process, if there is none.
    """
    deadline = time.monotonic() + _STOPPED_S
    while there := [holder for each, _, holder in files.supervised() if each == source]:
        if time.monotonic() > deadline:
            return there[0].pid
        if files.supervisor.holder() is None:
            await asyncio.gather(*map(end_process, there))
        await asyncio.sleep(_STEP_S)
    return None


def _is_here(instance: InstanceStatus) -> bool:
    return instance.host == socket.gethostname()


def _start(command: Sequence[str], output: Path) -> subprocess.Popen[bytes]:
    """Start a process that continues when this one, its terminal and its session have ended."""
    with output.open("ab") as log:
        return subprocess.Popen(
            command, cwd="/", stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
        )
