"""Processes for fragments: forked from a template that has everything imported, so that one is there at once."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import socket
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from types import TracebackType
    from typing import Self

__all__ = ["SpawnFailed", "Spawned", "Spawner"]

_LARGEST_MESSAGE = 4096


class SpawnFailed(Exception):
    """There is no new process; the message says why."""


class Spawned:
    """One process, from before it is there until after it has ended."""

    def __init__(self, number: int, spawner: Spawner) -> None:
        self.ended: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        """The exit code of the process, negative for a signal; or SpawnFailed."""
        self._number = number
        self._spawner = spawner

    def kill(self) -> None:
        """End it at once; harmless when it has ended."""
        if not self.ended.done():
            self._spawner.tell({"kill": self._number})


class Spawner:
    """The worker's side of its template, over the socket that `fork_worker` gave; an async context manager."""

    def __init__(self, template: socket.socket) -> None:
        template.setblocking(False)
        self._template = template
        self._numbers = itertools.count(1)
        self._children: dict[int, Spawned] = {}

    async def __aenter__(self) -> Self:
        asyncio.get_running_loop().add_reader(self._template.fileno(), self._heard)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        asyncio.get_running_loop().remove_reader(self._template.fileno())
        self._template.close()

    def spawn(self, *kept: int) -> tuple[Spawned, socket.socket, int]:
        """Ask for a process: what is known of it, its control connection, and where its standard error is read.

        Returns at once. The process has the descriptors ``kept`` as well, in their order.
        """
        ours, theirs = socket.socketpair()
        stderr_read, stderr_write = os.pipe()
        number = next(self._numbers)
        child = self._children[number] = Spawned(number, self)
        try:
            self.tell({"spawn": number}, theirs.fileno(), stderr_write, *kept)
        finally:
            theirs.close()
            os.close(stderr_write)
        return child, ours, stderr_read

    def tell(self, message: dict[str, Any], *descriptors: int) -> None:
        """Say something to the template."""
        socket.send_fds(self._template, [json.dumps(message).encode()], descriptors)

    def _heard(self) -> None:
        while True:
            try:
                data = self._template.recv(_LARGEST_MESSAGE)
            except BlockingIOError:
                return
            if not data:
                os._exit(
                    1
                )  # the template was killed, and all fragments with it: as was this process, on Linux
            message = json.loads(data)
            ended = self._children.pop(message["ended"]).ended
            if ended.cancelled():  # nobody waits for it any more
                continue
            if message["code"] is None:
                ended.set_exception(SpawnFailed(message["error"]))
            else:
                ended.set_result(message["code"])
