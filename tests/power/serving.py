"""The process that a disk is in: mounts it, counts what changes it, and has the power go.

``python -m tests.power.serving PLACE DESCRIPTOR``. On the socket come lines of JSON, each a command with its settings,
and each is answered by a line.
"""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any

from .disk import Disk
from .fuse import Mounted, PowerOff

_MOST = 120
"""Changes of a process that is to end: files of one kind may not change so often as it was drawn."""


class _Power:
    """What the kernel asks a disk for, until at one of the changes the power goes, or only the processes end."""

    def __init__(self, disk: Disk, seed: str, kill: Callable[[], None]) -> None:
        self._disk = disk
        self._random = Random(f"power {seed}")
        self.operations = self.changes = 0
        self.at: int | None = None
        self.of = ""
        self.spared = False
        self.kill = kill
        self.fault: dict[str, int] = {}

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._disk, name)
        return (
            method
            if name in ("lookup", "size", "is_memory", "names", "space", "read")
            else self._counted(method)
        )

    def _counted(self, method: Any) -> Any:
        def changing(number: int, *more: Any) -> Any:
            arguments = number, *more
            self.changes += 1
            self.operations += self._disk.name_of(number).endswith(self.of)
            self._trouble()
            if self.at is None or (self.operations < self.at and self.changes < _MOST):
                return method(*arguments)
            if self.spared:
                self.at = None
                self.kill()
                return method(*arguments)
            # It may have been done, and nobody hears of it.
            if self._random.random() < 0.5:
                with suppress(OSError):
                    method(*arguments)
            raise PowerOff

        return changing

    def _trouble(self) -> None:
        """What the fault is, from one change to another."""
        fault, disk = self.fault, self._disk
        if fault and self.changes >= fault["from"]:
            if "failing_syncs" in fault:
                disk.failing_syncs = fault.pop("failing_syncs")
            if "until" in fault:
                disk.is_full = self.changes < fault["until"]


class Serving:
    """One disk after the other, at a place."""

    def __init__(self, place: Path, control: socket.socket) -> None:
        self._place = place
        self._control = control
        self._lines = control.makefile("r")
        self._disk = Disk("")
        self._power = _Power(self._disk, "", self._end)
        self._mounted: Mounted | None = None
        self._processes: list[int] = []

    def serve(self) -> None:
        """Until the socket is closed."""
        while True:
            watched: list[Any] = [self._control]
            if self._mounted is not None:
                watched.append(self._mounted)
            ready = select.select(watched, [], [])[0]
            if self._mounted in ready and self._mounted is not None:
                try:
                    self._mounted.answer()
                except PowerOff:
                    self._cut()
            elif self._control in ready and not self._obey():
                break
        if self._mounted is not None:
            self._mounted.abort()

    def _obey(self) -> bool:
        line = self._lines.readline()
        if not line:
            return False
        command = json.loads(line)
        try:
            answer = getattr(self, command.pop("do"))(**command)
        except OSError as error:
            answer = {"error": str(error), "errno": error.errno}
        self._control.sendall(json.dumps(answer).encode() + b"\n")
        return True

    def _end(self) -> None:
        for process in self._processes:
            with suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
        self._processes = []

    def _cut(self) -> None:
        self._end()
        assert self._mounted is not None
        self._mounted.abort()
        self._mounted = None
        self._disk.lose_power()

    # -- commands

    def new(self, seed: str, **settings: Any) -> dict[str, Any]:
        """Another disk, with nothing on it."""
        if self._mounted is not None:
            self._mounted.abort()
            self._mounted = None
        self._disk = Disk(seed)
        for name, value in settings.items():
            setattr(self._disk, name, set(value) if name == "lies" else value)
        return {}

    def power_on(self, seed: str) -> dict[str, Any]:
        """Mount what survived, if it is not."""
        if self._mounted is not None:
            return {}
        self._power = _Power(self._disk, seed, self._end)
        self._mounted = Mounted(self._power, self._place)
        return {}

    def arm(
        self, kill: list[int], at: int | None, of: str, spared: bool, fault: dict[str, int]
    ) -> dict[str, Any]:
        """From now on, have these processes end at that change, and the power go, unless it is spared.

        Of changes those count that are to files whose names end so, or to directories; of all there are `_MOST`.
        """
        self._processes = kill
        self._disk.failing_syncs, self._disk.is_full = 0, False
        power = self._power
        power.operations = power.changes = 0
        power.at, power.of, power.spared, power.fault = at, of, spared, fault
        return {}

    def cut(self) -> dict[str, Any]:
        """Have it go now, if it has not."""
        if self._mounted is not None:
            self._cut()
        return {}


if __name__ == "__main__":
    with socket.socket(fileno=int(sys.argv[2])) as given:
        Serving(Path(sys.argv[1]), given).serve()
