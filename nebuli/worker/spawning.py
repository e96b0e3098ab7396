"""Processes for fragments: forked from a template that has everything imported, so that one is there at once."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import socket
import subprocess
import sys
from contextlib import suppress
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from types import TracebackType
    from typing import Self

__all__ = ["SpawnFailed", "Spawned", "Spawner"]

_LARGEST_MESSAGE = 4096
_SINGLE_THREADED = {"OPENBLAS_NUM_THREADS": "1", "JE_ARROW_MALLOC_CONF": "background_thread:false"}
"""Libraries that start threads when they are imported are told not to: with threads, a fork is not safe."""


class SpawnFailed(Exception):
    """There is no new process; the message says why."""


class Spawned:
    """One process, from before it is there until after it has ended."""

    def __init__(self, number: int, spawner: Spawner) -> None:
        loop = asyncio.get_running_loop()
        self.pid: asyncio.Future[int] = loop.create_future()
        self.ended: asyncio.Future[int] = loop.create_future()
        """Its exit code, negative for a signal."""
        self._number = number
        self._spawner = spawner

    def kill(self) -> None:
        """End it at once; harmless when it has ended."""
        if not self.ended.done():
            self._spawner.tell({"kill": self._number})


class Spawner:
    """Starts the template with it, and ends all with it; an async context manager, on one loop."""

    def __init__(self) -> None:
        self._numbers = itertools.count(1)
        self._children: dict[int, Spawned] = {}
        self._template: subprocess.Popen[bytes] | None = None
        self._socket: socket.socket | None = None

    async def __aenter__(self) -> Self:
        self._start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._lose("the worker ends")
        if self._template is not None:
            self._template.kill()  # its children end with it
            await asyncio.to_thread(self._template.wait)

    def spawn(self) -> tuple[Spawned, socket.socket, int]:
        """Ask for a process: what is known of it, its control connection, and where its standard error is read.

        Returns at once. Where there is no template any more, there is one again.
        """
        if self._socket is None:
            self._start()
        ours, theirs = socket.socketpair()
        stderr_read, stderr_write = os.pipe()
        number = next(self._numbers)
        child = self._children[number] = Spawned(number, self)
        try:
            self.tell({"spawn": number}, theirs.fileno(), stderr_write)
        finally:
            theirs.close()
            os.close(stderr_write)
        return child, ours, stderr_read

    def tell(self, message: dict[str, Any], *descriptors: int) -> None:
        """Say something to the template; if it is gone, all its children have ended."""
        if self._socket is None:
            return
        try:
            socket.send_fds(self._socket, [json.dumps(message).encode()], descriptors)
        except OSError as error:
            self._lose(f"the process that it is forked from is gone ({error})")

    def _start(self) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            # -P, because the working directory is the user's, and its files are no modules of ours.
            self._template = subprocess.Popen(
                [
                    sys.executable,
                    "-P",
                    "-m",
                    "nebuli.worker.template",
                    str(theirs.fileno()),
                    str(os.getpid()),
                ],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                env={**os.environ, **_SINGLE_THREADED},
            )
        ours.setblocking(False)
        self._socket = ours
        asyncio.get_running_loop().add_reader(ours.fileno(), self._heard)

    def _heard(self) -> None:
        assert self._socket is not None
        while True:
            try:
                data = self._socket.recv(_LARGEST_MESSAGE)
            except BlockingIOError:
                return
            except OSError:
                data = b""
            if not data:
                self._lose("the process that it is forked from is gone")
                return
            message = json.loads(data)
            if "spawned" in message:
                self._children[message["spawned"]].pid.set_result(message["pid"])
            else:
                self._ended(self._children.pop(message["ended"]), message["code"], message.get("error"))

    def _ended(self, child: Spawned, code: int | None, error: str | None) -> None:
        for future, value in ((child.pid, 0), (child.ended, code)):
            if not future.done():
                if value is None or (future is child.pid and error):
                    future.set_exception(SpawnFailed(error or ""))
                    future.exception()  # whether anybody asks for it or not
                else:
                    future.set_result(value)

    def _lose(self, why: str) -> None:
        if self._socket is not None:
            asyncio.get_running_loop().remove_reader(self._socket.fileno())
            self._socket.close()  # the template ends by that, if it lives
            self._socket = None
        while self._children:
            self._ended(self._children.popitem()[1], None, why)
        if self._template is not None:
            with suppress(subprocess.TimeoutExpired):
                self._template.wait(0)
