"""`Service` answers the calls of others, by a function of its process."""

from __future__ import annotations

import asyncio
import inspect
import logging
from functools import partial
from typing import TYPE_CHECKING, Any, Self

from netchannel.core.calls.callees import Callee
from netchannel.core.warning_limits import WarningFilter
from netchannel.errors import ChannelInUse, NetChannelError
from netchannel.log_texts import log
from netchannel.values import check_channel_id, with_article

from .identity import shown
from .waiter import check_loop

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from types import TracebackType

    from netchannel.core.calls.callees import IncomingCall
    from netchannel.core.receiving.receiver_core import ReceiverCore
    from netchannel.transports.runner import Runner


class Service:
    """A service of a `ReceiverServer`; an async context manager that closes it."""

    def __init__(
        self,
        core: ReceiverCore,
        runner: Runner,
        service_id: str,
        answer: Callable[[bytes], bytes | Awaitable[bytes]],
        services: dict[str, Service],
    ) -> None:
        if not callable(answer):
            raise TypeError(f"answer is {answer!r}: expected a function that takes bytes and returns bytes")
        self._id = service_id
        self._core = core
        self._runner = runner
        self._answer = answer
        self._callee = Callee(check_channel_id(service_id), self._begin)
        self._callee.on_taken = self._taken
        self._tasks: dict[asyncio.Future[Any], IncomingCall] = {}
        self._warnings = WarningFilter()
        self._error: NetChannelError | None = None
        self._services = services  # of the server, of which it is one until it is over
        core.provide(self._callee)
        services[service_id] = self

    def __repr__(self) -> str:
        return shown(self, repr(self.id), "answering" if self._answers else "closed")

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    @property
    def id(self) -> str:
        """The id of the service."""
        return self._id

    @property
    def error(self) -> NetChannelError | None:
        """The error that stopped the service without a `close`: another process of the node has its id. Else None."""
        return self._error

    async def close(self) -> None:
        """Stop answering: notify callers that wait for an answer, and cancel the running calls.

        Waits for the cancelled calls to end, 5 s at most (`Timing.leave_s`).
        """
        check_loop(self._runner.loop)
        why = f"service {self.id!r} was closed before it had answered"
        self._end("closed", why)
        for task in await self._ended():
            self._tasks[task].refuse("closed", why)

    async def detach(self) -> None:
        """Stop answering; callers that wait for an answer repeat their calls, possibly at a successor."""
        self._end("unregistered", f"service {self.id!r} is no longer registered there")
        await self._ended()

    @property
    def _answers(self) -> bool:
        return self._services.get(self.id) is self

    def _end(self, code: str, why: str) -> None:
        if not self._answers:
            return
        del self._services[self.id]
        self._core.withdraw(self._callee)
        for call in list(self._callee.calls):
            if call.working:
                call.cancel(code, why)
            else:  # it was not begun, and is for the next owner of the service
                call.cancel("unregistered", f"service {self.id!r} was closed there")

    async def _ended(self) -> set[asyncio.Future[Any]]:
        """Wait until no work is done any more; returns what does not end."""
        if not self._tasks:
            return set()
        leave_s = self._core.timing.leave_s
        _, left = await asyncio.wait(self._tasks, timeout=leave_s)
        if left:
            log.warning(
                "service %s: %d answers have not ended %.0f s after they were cancelled",
                self.id, len(left), leave_s,
            )  # fmt: skip
        return left

    def _taken(self, message: str) -> None:
        """Another process of the node has it."""
        self._error = ChannelInUse(message)
        log.error("service %s no longer answers here: %s", self.id, message)
        self._end("closed", message)

    def _begin(self, call: IncomingCall) -> None:
        """Have a call answered: at once, where that can be."""
        try:
            answer = self._answer(call.body)
        except Exception as error:  # noqa: BLE001 - it is passed to the caller
            self._failed(call, error)
            return
        if type(answer) is bytes:
            call.answer(answer)
        elif inspect.isawaitable(answer):
            task = asyncio.ensure_future(answer)
            self._tasks[task] = call
            call.stop = task.cancel
            task.add_done_callback(partial(self._done, call))
        else:
            self._failed(call, _no_bytes(answer))

    def _done(self, call: IncomingCall, task: asyncio.Future[Any]) -> None:
        del self._tasks[task]
        if task.cancelled() or call.stopped_by is not None:
            if not task.cancelled():
                task.exception()  # is not wanted any more
            call.refuse(*(call.stopped_by or ("raised", "CancelledError: the answer was cancelled")))
        elif (error := task.exception()) is not None:
            self._failed(call, error)
        elif type(answer := task.result()) is bytes:
            call.answer(answer)
        else:
            self._failed(call, _no_bytes(answer))

    def _failed(self, call: IncomingCall, error: BaseException) -> None:
        text = f"{type(error).__name__}: {error}"
        call.refuse("raised", text)
        is_news = self._warnings.news(self.id, text[:200], self._runner.clock())
        level = logging.WARNING if is_news else logging.DEBUG
        trace = None if isinstance(error, NetChannelError) else error  # which has the full message
        log.log(level, "service %s failed to answer: %s", self.id, text, exc_info=trace)


def _no_bytes(answer: object) -> TypeError:
    return TypeError(f"the answer is {with_article(type(answer))}: expected bytes")
