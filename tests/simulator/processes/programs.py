"""What runs in a process: a server, the applications on it, and exceptions that leave its context."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from typing import Any

from netchannel import ReceiverServer, SenderServer, Timing, Tls

from .receiving import Receiving
from .sending import Sending


class Left(Exception):
    """The program leaves its server by this."""


class Program(ABC):
    """Makes a server and works with it, and does so again whenever it was left by an exception."""

    def __init__(self) -> None:
        self._work: asyncio.Task[None] | None = None
        self._leaving = False

    @abstractmethod
    async def run(self) -> None:
        """Until there is nothing left to do."""

    def leave(self) -> bool:
        """Have it leave its server by an exception; whether it is in it."""
        if self._work is None or self._work.done() or self._leaving:
            return False
        self._leaving = True
        self._work.cancel()
        return True

    def killed(self) -> None:
        """Its process is gone."""
        self._work, self._leaving = None, False

    async def _do(self, programs: Sequence[Callable[[], Coroutine[Any, Any, None]]]) -> None:
        """Run them within the server's context. Raises Left."""
        self._work = asyncio.ensure_future(_all(programs))
        try:
            await self._work
        except asyncio.CancelledError:
            if not self._leaving:
                raise
            raise Left from None
        finally:
            self._leaving = False


class SendingProgram(Program):
    """Producers, until all have closed their channels."""

    def __init__(self, sending: Sequence[Sending], timing: Timing, tls: Tls | None = None) -> None:
        super().__init__()
        self._sending = sending
        self._timing = timing
        self._tls = tls

    async def run(self) -> None:
        while True:
            try:
                async with SenderServer(timing=self._timing, tls=self._tls) as server:
                    try:
                        await self._do([partial(each.run, server) for each in self._sending])
                    except Left:
                        for each in self._sending:
                            each.leaving()
                        raise
            except Left:
                for each in self._sending:
                    each.left_behind()
            else:
                return


class ReceivingProgram(Program):
    """Consumers, until they are left when there is nothing more to hear."""

    def __init__(
        self,
        receiving: Sequence[Receiving],
        timing: Timing,
        listen: str,
        all_heard: Callable[[], bool],
        tls: Tls | None = None,
    ) -> None:
        super().__init__()
        self._tls = tls
        self._receiving = receiving
        self._timing = timing
        self._listen = listen
        self._all_heard = all_heard

    async def run(self) -> None:
        while not self._all_heard():
            try:
                async with ReceiverServer(self._listen, timing=self._timing, tls=self._tls) as server:
                    await self._do([partial(each.run, server) for each in self._receiving])
            except Left:
                for each in self._receiving:
                    each.crashed()


async def _all(programs: Sequence[Callable[[], Coroutine[Any, Any, None]]]) -> None:
    """Run all; the first that fails cancels the others, and so does a cancel, in an order that is always the same."""
    tasks = [asyncio.ensure_future(program()) for program in programs]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
    finally:
        for task in tasks:
            task.cancel()
        while not all(task.done() for task in tasks):
            await asyncio.wait(tasks)
    for task in tasks:
        task.result()
