"""`ServedStores`: the stores whose collections and sources are served, each opened when it is first asked for."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from typing import TYPE_CHECKING, Self

from nebuli.http.problems import Problem
from nebuli.ingestion.source_client import Sources
from nebuli.store.collections.collections import Collections
from nebuli.store.errors import StoreClosed

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Mapping
    from types import TracebackType

    from nebuli.store.shards.shard import Span
    from nebuli.store.store_url import StorePlace

_GRACE_S = 2.0
"""How long to wait until followers of a collection are notified that this ends."""


class ServedStores:
    """``places`` has them by their names. Entered on one event loop; left, no client follows anything any more."""

    def __init__(self, places: Mapping[str, StorePlace]) -> None:
        self._places = places
        self._open: dict[str, Collections] = {}
        self._open_sources: dict[str, Sources] = {}
        self._opening = asyncio.Lock()
        self._ending = asyncio.Event()
        self._followers: set[asyncio.Future[None]] = set()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._ending.set()
        if self._followers:
            await asyncio.wait(self._followers, timeout=_GRACE_S)
        async with self._opening:
            for collections in self._open.values():
                await collections.__aexit__(None, None, None)
            for sources in self._open_sources.values():
                await sources.__aexit__(None, None, None)

    @property
    def names(self) -> list[str]:
        """Their names, in order."""
        return sorted(self._places)

    async def of(self, name: str | None) -> Collections:
        """The collections of a store, or, without a name, of the only one. Raises Problem, StorageError."""
        name = self._named(name)
        async with self._opening:
            if self._ending.is_set():
                raise StoreClosed
            if name not in self._open:
                self._open[name] = await Collections(self._places[name]).__aenter__()
            return self._open[name]

    async def sources_of(self, name: str | None) -> Sources:
        """The sources of a store, as above."""
        name = self._named(name)
        async with self._opening:
            if self._ending.is_set():
                raise StoreClosed
            if name not in self._open_sources:
                self._open_sources[name] = await Sources(self._places[name]).__aenter__()
            return self._open_sources[name]

    def _named(self, name: str | None) -> str:
        if name is None:
            if len(self._places) != 1:
                raise Problem(
                    400,
                    "wrong_parameter",
                    f"the parameter store is missing, and there are {len(self._places)} stores: "
                    f"{', '.join(self.names)}",
                    "choose one with ?store=...",
                )
            (name,) = self._places
        if name not in self._places:
            raise Problem(
                404,
                "unknown_store",
                f"no store {name[:200]!r} is served here, only {', '.join(self.names)}",
                "GET /collections lists them",
            )
        return name

    async def followed(self, spans: AsyncGenerator[Span]) -> AsyncGenerator[Span]:
        """A subscription as long as this is there. Raises StoreClosed then, and what it raises itself."""
        over: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._followers.add(over)
        ending = asyncio.create_task(self._ending.wait())
        try:
            async with aclosing(spans):
                while (span := await _next(spans, ending)) is not None:
                    yield span
        finally:
            ending.cancel()
            self._followers.discard(over)
            over.set_result(None)


async def _next(spans: AsyncGenerator[Span], ending: asyncio.Task[bool]) -> Span | None:
    coming = asyncio.ensure_future(anext(spans, None))
    try:
        await asyncio.wait([coming, ending], return_when=asyncio.FIRST_COMPLETED)
        if not coming.done():
            raise StoreClosed
        return coming.result()
    finally:
        coming.cancel()
        await asyncio.gather(coming, return_exceptions=True)
