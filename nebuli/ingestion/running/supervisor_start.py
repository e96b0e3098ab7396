"""A supervisor that is started apart from whoever starts it, which waits until its instances are there."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from nebuli.store.collections.clock import now_ms

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from nebuli.ingestion.entries import InstanceStatus
    from nebuli.ingestion.source_client import Sources

    from .supervisor_files import SupervisorFiles

_DEADLINE_S = 60.0
_STOPPED_S = 20.0
_SILENT_S = 2.0
"""What is waited for longer is said."""
_STEP_S = 0.05


@dataclass(frozen=True, slots=True)
class Started:
    """The supervisor's process, if there is one, and what went wrong."""

    supervisor: int | None
    error: str | None


async def started(
    sources: Sources,
    files: SupervisorFiles,
    command: Sequence[str],
    replicas: int,
    say: Callable[[str], None],
) -> Started:
    """Have a supervisor, where there is none by this ``command``, and so many instances of this host that run.

    Waits until each of them has written something, or one says what hinders it; for 60 s at most, and what it waits for
    is told to ``say``. Raises OSError, StorageError.
    """
    begun, began = now_ms(), time.monotonic()
    process: subprocess.Popen[bytes] | None = None
    said_before = files.log.stat().st_size if files.log.exists() else 0
    is_silent = True
    while True:
        holder = files.holder()
        if holder is None and process is None:
            process = _start(command, files)
        if holder is None and process is not None and (code := process.poll()) is not None:
            return Started(
                None, f"its supervisor has ended with exit code {code}{_last_said(files, said_before)}"
            )
        instances = [each for each in await sources.instances(files.source) if _is_here(each)]
        living = [each for each in instances if each.is_living(now_ms()) and _is_there(each.pid)]
        said = [each.error for each in living]
        said += [each.last_error for each in instances if _has_failed(each, begun)]
        if wrong := next((each for each in said if each is not None), None):
            return Started(holder, wrong)
        running = [each for each in living if each.health == "running"]
        if holder and len(running) == len(living) == replicas:
            return Started(holder, None)
        passed_s = time.monotonic() - began
        if passed_s >= _DEADLINE_S:
            why = "none has said what hinders it; they go on, if they can"
            return Started(holder, f"{_waits(living, replicas)}, after {_DEADLINE_S:g} s: {why}")
        if is_silent and passed_s >= _SILENT_S:
            say(f"waiting, for {_DEADLINE_S:g} s at most: {_waits(living, replicas)}")
            is_silent = False
        await asyncio.sleep(_STEP_S)


def _waits(living: Sequence[InstanceStatus], replicas: int) -> str:
    """What is not as it is to be."""
    if len(living) != replicas:
        return f"{len(living)} of {replicas} instances have been started"
    names = [each.instance for each in living if each.health != "running"]
    return f"instance {', '.join(names)} has written nothing yet"


def _has_failed(instance: InstanceStatus, since: int) -> bool:
    return instance.health == "ended" and (instance.last_error_at or 0) >= since


def _last_said(files: SupervisorFiles, before: int) -> str:
    try:
        said = files.log.read_bytes()[before:].decode(errors="replace").strip().splitlines()
    except FileNotFoundError:  # the source was dropped meanwhile
        return ""
    return f": {said[-1].removeprefix('Error: ')}" if said else ""


async def ended(files: SupervisorFiles) -> bool:
    """Whether there is no supervisor on this host, for which is waited as long. Raises OSError."""
    deadline = time.monotonic() + _STOPPED_S
    while files.holder() is not None:
        if time.monotonic() > deadline:
            return False
        await asyncio.sleep(_STEP_S)
    return True


def _is_here(instance: InstanceStatus) -> bool:
    return instance.host == socket.gethostname()


def _is_there(pid: int) -> bool:
    """One that was killed has not said that it has ended."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:  # of another account
        return True
    return True


def _start(command: Sequence[str], files: SupervisorFiles) -> subprocess.Popen[bytes]:
    """A process that goes on when this one, its terminal and its session have ended."""
    with files.log.open("ab") as log:
        return subprocess.Popen(
            command, cwd="/", stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
        )
