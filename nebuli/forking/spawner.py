"""Requests for processes, to a `Template` at the other end of a socket."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import signal
import socket
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from nebuli.forking.template import LARGEST_MESSAGE

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType
    from typing import Self

__all__ = ["SpawnFailed", "Spawned", "Spawner"]

_NUMBERS = itertools.count(1)


class SpawnFailed(Exception):
    """No process could be forked; the message is the reason."""


class Spawned:
    """One process, from before it exists until after it has ended.

    Attributes:
        pid: Process ID.
        ended: Exit code, negative for a signal; or SpawnFailed.
    """

    def __init__(self, number: int, spawner: Spawner) -> None:
        loop = asyncio.get_running_loop()
        self.pid: asyncio.Future[int] = loop.create_future()
        self.ended: asyncio.Future[int] = loop.create_future()
        self._number = number
        self._spawner = spawner

    def send_signal(self, number: signal.Signals) -> None:
        """Send a signal to the process; harmless if it has ended."""
        if not self.ended.done():
            with suppress(
                BrokenPipeError, ConnectionResetError
            ):  # the template is gone, which ends all children
                self._spawner.request({"signal": number, "child": self._number})

    def kill(self) -> None:
        """End the process at once; harmless if it has ended."""
        self.send_signal(signal.SIGKILL)


class Spawner:
    """Asynchronous context in which the template at the other end of a socket can be asked for processes.

    It may be entered several times at once, on one event loop; on another one once that is closed, also if it was not
    left there.

    If that is killed, this process kills all children by their pids, and calls ``lost``.
    """

    def __init__(self, template: socket.socket, lost: Callable[[], None] = lambda: None) -> None:
        template.setblocking(False)
        self._template = template
        self._lost = lost
        self._children: dict[int, Spawned] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        self._entered = 0
        self.is_lost = False
        """True if the template has ended."""

    async def __aenter__(self) -> Self:
        self.enter()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.leave()

    def enter(self) -> None:
        """Enter the context, on a running event loop."""
        loop = asyncio.get_running_loop()
        if self._loop is not None and self._loop.is_closed():  # a program may end a loop in the middle
            self._loop, self._entered, self._children = None, 0, {}
        if not self._entered:
            self._loop = loop
            loop.add_reader(self._template.fileno(), self._read)
        self._entered += 1

    def leave(self) -> None:
        """Leave the context."""
        self._entered -= 1
        if not self._entered:
            asyncio.get_running_loop().remove_reader(self._template.fileno())

    def spawn(self, stderr: int, *kept: int, **more: object) -> Spawned:
        """Ask for a process that has ``more`` in its request, and descriptors for standard error and ``kept``.

        Returns at once, and leaves the descriptors open here. Raises OSError if the template is gone.
        """
        number = next(_NUMBERS)
        child = self._children[number] = Spawned(number, self)
        try:
            self.request({"spawn": number, **more}, stderr, *kept)
        except OSError:
            del self._children[number]
            raise
        return child

    def request(self, message: dict[str, Any], *descriptors: int) -> None:
        """Send a request to the template."""
        socket.send_fds(self._template, [json.dumps(message).encode()], descriptors)

    def _read(self) -> None:
        while True:
            try:
                data = self._template.recv(LARGEST_MESSAGE)
            except BlockingIOError:
                return
            except ConnectionResetError:
                data = b""
            if not data:
                asyncio.get_running_loop().remove_reader(self._template.fileno())
                self.is_lost = True
                self._kill_all()
                self._lost()
                return
            self._handle(json.loads(data))

    def _handle(self, message: dict[str, Any]) -> None:
        match message:
            case {"started": number, "pid": pid}:
                child = self._children.get(number)
                if child is not None and not child.pid.done():
                    child.pid.set_result(pid)
            case {"ended": number, "code": code}:
                child = self._children.pop(number, None)
                if child is None or child.ended.cancelled():  # nothing waits for it any more
                    return
                if code is None:
                    child.ended.set_exception(SpawnFailed(message["error"]))
                else:
                    child.ended.set_result(code)

    def _kill_all(self) -> None:
        for child in self._children.values():
            if child.pid.done():
                with suppress(ProcessLookupError):
                    os.kill(child.pid.result(), signal.SIGKILL)
            if not child.ended.done():
                child.ended.set_result(-signal.SIGKILL)
        self._children.clear()
