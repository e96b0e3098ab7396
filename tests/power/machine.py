"""A machine whose power can be cut: a disk, and processes on it, each in a process of its own."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.support.needs import leave_out

_DEADLINE_S = 120.0
KILLED = -9


@dataclass
class Process:
    """One of the machine's, and the file with what it says."""

    pid: int
    file: Path

    def said(self) -> list[list[Any]]:
        """All of it, so far; a line that it was killed in is none."""
        whole = self.file.read_text("utf-8").rpartition("\n")[0] if self.file.exists() else ""
        return [json.loads(line) for line in whole.splitlines()]


class _Helper:
    """A process that is told what to do by lines, and answers each."""

    def __init__(self, module: str, *arguments: str) -> None:
        self._socket, theirs = socket.socketpair()
        self._socket.settimeout(_DEADLINE_S)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", module, *arguments, str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                cwd=Path(__file__).parents[2],
            )
        self._lines = self._socket.makefile("r")

    def ask(self, command: dict[str, Any]) -> Any:
        self._socket.sendall(json.dumps(command).encode() + b"\n")
        return json.loads(self._lines.readline())

    def close(self) -> None:
        self._lines.close()
        self._socket.close()
        self._process.wait(_DEADLINE_S)


class Machine:
    """Its disk is mounted at ``place`` while there is power. Methods wait, two minutes at most."""

    def __init__(self, place: Path, disk: _Helper, actors: _Helper, notes: Path) -> None:
        self.place = place
        self._disk = disk
        self._actors = actors
        self._notes = notes
        self._processes = 0

    def new_disk(self, seed: str, **settings: Any) -> None:
        """Another disk with nothing on it, not mounted yet. ``settings`` are attributes of `tests.power.disk.Disk`."""
        self._tell("new", seed=seed, **settings)

    def power_on(self, seed: str) -> None:
        """Mount what is there, if it is not."""
        self._tell("power_on", seed=seed)

    def start(
        self, actor: str, end_at: int | None, of: str, spared: bool, fault: dict[str, int], **arguments: Any
    ) -> Process:
        """A process, and the change to the disk at which it is killed, if it is; the power goes, unless it is spared.

        Changes are counted that are to files whose names end like ``of``, all of them if it is empty, to directories
        if it is ``/``. ``fault`` has the change, of all, ``from`` when on ``failing_syncs`` fail, or ``until`` when
        nothing can grow.
        """
        self._processes += 1
        file = self._notes / f"process {self._processes}"
        pid = self._actors.ask({"actor": actor, "said": str(file), "arguments": arguments})
        self._tell("arm", kill=[pid], at=end_at, of=of, spared=spared, fault=fault)
        self._actors.ask({"begin": pid})
        return Process(pid, file)

    def repair(self) -> None:
        """From now on nothing fails, and nobody is killed."""
        self._tell("arm", kill=[], at=None, of="", spared=False, fault={})

    def cut(self) -> None:
        """Have the power go now, if it has not."""
        self._tell("cut")

    def ended(self, process: Process, within_s: float = _DEADLINE_S / 2) -> int:
        """The exit code of a process; one that does not end is killed (`tests.power.actors.HUNG`)."""
        return int(self._actors.ask({"wait": process.pid, "within_s": within_s}))

    def _tell(self, what: str, **settings: Any) -> dict[str, Any]:
        answer: dict[str, Any] = self._disk.ask({"do": what, **settings})
        if "error" in answer:
            raise OSError(answer["errno"], answer["error"])
        return answer


@contextmanager
def machine(folder: Path) -> Iterator[Machine]:
    """A machine that is switched off; it leaves nothing mounted."""
    if os.geteuid() != 0 or not os.access("/dev/fuse", os.R_OK | os.W_OK):
        leave_out(
            "no disk of our own can be mounted here (/dev/fuse)",
            "run the tests as root, with FUSE in the kernel",
        )
    place, notes = folder / "disk", folder / "said"
    place.mkdir()
    notes.mkdir()
    with ExitStack() as stack:
        disk = _Helper("tests.power.serving", str(place))
        stack.callback(disk.close)
        actors = _Helper("tests.power.actors")
        stack.callback(actors.close)
        made = Machine(place, disk, actors, notes)
        try:
            made.power_on("")
        except PermissionError as error:
            leave_out(f"no disk of our own can be mounted here: {error}", "run the tests as root")
        yield made
