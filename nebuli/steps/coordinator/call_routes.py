"""`CallRoutes`: the ways to all members of a circuit, which may be others later."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING

from nebuli.steps.member.calls.call_messages import log_name, owner

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator, Sequence

    from nebuli.steps.coordinator.call_connection import CallConnection


class CallRoutes:
    """Lead to the members that there are, none at first."""

    def __init__(self, lines: Sequence[CallConnection] = ()) -> None:
        self._lines = tuple(lines)
        self._inside = 0
        self._open, self._left = asyncio.Event(), asyncio.Event()
        self._open.set()
        self.closed = False
        """True if pushes are refused, as the circuit is shut down."""
        self.seen = 0
        """A client has seen the results of all steps below this one: later answers include them."""

    def has_seen(self, step: int) -> None:
        """A client has seen the results of all steps below this one."""
        self.seen = max(self.seen, step)

    def __iter__(self) -> Iterator[CallConnection]:
        return iter(self._lines)

    def __getitem__(self, member: int) -> CallConnection:
        return self._lines[member]

    def lead(self, lines: Sequence[CallConnection]) -> None:
        """Lead to these members from now on; `held`, if there were others.

        Inputs that were held there are held here.
        """
        for line in lines:
            line.hold_from_the_first(frozenset().union(*(each.held for each in self._lines)))
        self._lines = tuple(lines)

    @asynccontextmanager
    async def to(self, handle: str, producer: str, within_s: float) -> AsyncIterator[CallConnection]:
        """The way to the member that has all of a producer's rows for an input, as long as the context is.

        Raises TimeoutError where they are held for so long.
        """
        if not self._open.is_set():
            async with asyncio.timeout(within_s):
                await self._open.wait()
        self._inside += 1
        try:
            yield self._lines[owner(log_name(handle, producer), len(self._lines))]
        finally:
            self._inside -= 1
            self._left.set()

    @asynccontextmanager
    async def held(self, within_s: float) -> AsyncIterator[None]:
        """No call is on its way to a member within the context. Raises TimeoutError: one was for too long."""
        self._open.clear()
        try:
            async with asyncio.timeout(within_s):
                await self._empty()
            yield
        finally:
            self._open.set()

    def close(self) -> None:
        """Have pushes refused from now on."""
        self.closed = True

    async def emptied(self, within_s: float) -> None:
        """Wait until no call is on its way to a member, for so long at most."""
        with suppress(TimeoutError):
            async with asyncio.timeout(within_s):
                await self._empty()

    async def _empty(self) -> None:
        while self._inside:
            self._left.clear()
            await self._left.wait()
