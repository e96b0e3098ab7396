"""The views of a query that runs here, at one address for readers on this machine."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING

import netchannel
from nebuli.rpc import worker_pb2 as wire
from nebuli.rpc.worker_client import WorkerRefused, WorkerUnreachable
from nebuli.views.view_calls import (
    ADDING,
    LISTING,
    added_bytes,
    adding_of,
    listed_bytes,
    listed_of,
    service_of,
)
from placement.errors import QueryError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Mapping

    from nebuli.rpc.trust import Trust
    from placement.plan import ViewOperator

    Views = Mapping[str, tuple[str, ViewOperator]]
    """Views by their names, each with the address of its node."""

__all__ = ["served_views"]

_LIST_S = 5.0
_CALL_S = 3700.0
"""Longer than any view lets a question wait; the caller has a deadline of its own, at which the call is cancelled."""


@asynccontextmanager
async def served_views(
    address: str,
    trust: Trust,
    views: Views,
    workers: Mapping[str, Trust],
    add: Callable[[str, str | None], Awaitable[Views]],
) -> AsyncIterator[str]:
    """Answer for views as their nodes do; yields the address; ``workers`` has the credentials shown to these, by node.

    ``trust`` is required of readers. ``add`` adds the views in a text to the query, and returns their names.
    Raises OSError where the address cannot be bound.
    """
    # The target of forwarded calls stays until there are no more calls: otherwise each call would end as a failure
    # here.
    async with (
        AsyncExitStack() as callers,
        netchannel.ReceiverServer(address, tls=trust.tls, secret=trust.secret) as receiver,
    ):
        served = _Served(receiver, workers, add, callers)
        await served.begin(views)
        yield receiver.address


class _Served:
    def __init__(
        self,
        receiver: netchannel.ReceiverServer,
        workers: Mapping[str, Trust],
        add: Callable[[str, str | None], Awaitable[Views]],
        stack: AsyncExitStack,
    ) -> None:
        self._receiver = receiver
        self._workers = workers
        self._add = add
        self._stack = stack
        self._callers: dict[str, netchannel.Caller] = {}
        self._names: set[str] = set()
        self._adding = asyncio.Lock()

    async def begin(self, views: Views) -> None:
        await self._serve(views)
        self._receiver.register_service(LISTING, self._list)
        self._receiver.register_service(ADDING, self._added)

    async def _serve(self, views: Views) -> None:
        for name, (node, _) in views.items():
            if name in self._names:
                continue
            if node not in self._callers:
                shown = self._workers[node]
                caller = netchannel.Caller(node, tls=shown.tls, secret=shown.secret)
                self._callers[node] = await self._stack.enter_async_context(caller)
            self._receiver.register_service(service_of(name), partial(_pass_on, self._callers[node], name))
            self._names.add(name)

    async def _list(self, _: bytes) -> bytes:
        calls = (caller.call(LISTING, b"", deadline_s=_LIST_S) for caller in self._callers.values())
        answers = await asyncio.gather(*calls)
        return listed_bytes(view for answer in answers for view in listed_of(answer))

    async def _added(self, body: bytes) -> bytes:
        text, file = adding_of(body)
        async with self._adding:
            try:
                views = await self._add(text, file)
            except QueryError as error:
                return added_bytes(why=str(error))
            except WorkerRefused as error:
                again = error.refusal.reason == wire.Refusal.REASON_NOT_ADDED
                return added_bytes(why=str(error), again=again)
            except WorkerUnreachable as error:
                return added_bytes(why=f"{error}; then add the view again", again=True)
            await self._serve(views)
        return added_bytes(views)


async def _pass_on(caller: netchannel.Caller, name: str, body: bytes) -> bytes:
    return bytes(await caller.call(service_of(name), body, deadline_s=_CALL_S))
