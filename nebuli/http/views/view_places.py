"""`ViewPlaces`: the views that are served, each with the node that has it."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, NamedTuple, Self

from nebuli.http.problems import Problem
from nebuli.views import UnknownView, ViewError, Views

if TYPE_CHECKING:
    from collections.abc import Mapping
    from types import TracebackType

    from nebuli.rpc.status import ViewStatus
    from nebuli.rpc.trust import Trust
    from nebuli.views import ViewDescription

_LIST_S = 2.0
"""The views of a node that does not answer for so long are away."""


class ViewPlace(NamedTuple):
    """Where a view is: the data address of its node, and what that is shown."""

    node: str
    trust: Trust


class ViewFound(NamedTuple):
    """How a view is."""

    description: ViewDescription
    status: ViewStatus


class ViewPlaces:
    """Views by their names. Entered on one event loop; left, readers and watchers are notified that it is over."""

    def __init__(self) -> None:
        self._places: dict[str, ViewPlace] = {}
        self._nodes: dict[str, Views] = {}
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self._stack.aclose()

    async def add(self, places: Mapping[str, ViewPlace]) -> None:
        """Add these; one call after the other."""
        for node, trust in places.values():
            if node not in self._nodes:
                views = Views(node, tls=trust.tls, secret=trust.secret)
                self._nodes[node] = await self._stack.enter_async_context(views)
        self._places |= places

    @property
    def names(self) -> list[str]:
        """Their names, in order."""
        return sorted(self._places)

    def of(self, name: str) -> Views:
        """Return the place of a view. Raises Problem if there is none of that name."""
        if name not in self._places:
            raise Problem(
                404,
                "unknown_view",
                f"unknown view {name[:200]!r}: expected one of {', '.join(self.names)}",
                "GET /views lists them",
            )
        return self._nodes[self._places[name].node]

    async def found(self) -> dict[str, ViewFound | ViewError]:
        """How each view is, in the order of their names, or why that is not known: all nodes are asked at once."""
        listed = await asyncio.gather(*map(_listed, self._nodes.values()))
        statuses = dict(zip(self._nodes, listed, strict=True))
        found = (self._found(name, statuses[self._places[name].node]) for name in self.names)
        return dict(zip(self.names, await asyncio.gather(*found), strict=True))

    async def _found(self, name: str, statuses: dict[str, ViewStatus] | ViewError) -> ViewFound | ViewError:
        if isinstance(statuses, ViewError):
            return statuses
        if name not in statuses:
            return UnknownView(f"the node at {self._places[name].node} has no view {name!r} now")
        try:
            return ViewFound(await self.of(name).describe(name, _LIST_S), statuses[name])
        except ViewError as error:
            return error


async def _listed(views: Views) -> dict[str, ViewStatus] | ViewError:
    try:
        return {each.name: each for each in await views.statuses(_LIST_S)}
    except ViewError as error:
        return error
