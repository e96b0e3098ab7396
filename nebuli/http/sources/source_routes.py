"""The endpoints of sources: how they fare, as JSON and for Prometheus."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from nebuli.http import prometheus_text
from nebuli.http.sources.source_figures import source_metrics
from nebuli.store.collections.clock import now_ms

if TYPE_CHECKING:
    from collections.abc import Sequence

    from starlette.requests import Request

    from nebuli.http.collections.served_stores import ServedStores
    from nebuli.ingestion.source_status import SourceStatus

SHOWN = (
    *("name", "version", "active", "phase", "replicas", "remap_upper", "upper", "lag_ms"),
    *("health", "error", "last_error", "last_error_at", "undecoded"),
)
"""The fields of each in a list."""


def source_routes(stores: ServedStores) -> list[Route]:
    """The endpoints over stores."""
    found = _Endpoints(stores)
    return [
        Route("/sources", found.list, methods=["GET"]),
        Route("/sources/{name}", found.show, methods=["GET"]),
        Route("/metrics", found.metrics, methods=["GET"]),
    ]


class _Endpoints:
    def __init__(self, stores: ServedStores) -> None:
        self._stores = stores

    async def list(self, request: Request) -> Response:
        asked = request.query_params.get("store")
        found = await self._found(self._stores.names if asked is None else [asked])
        sources = [{"store": store, **{key: getattr(each, key) for key in SHOWN}} for store, each in found]
        return JSONResponse({"stores": self._stores.names, "sources": sources})

    async def show(self, request: Request) -> Response:
        sources = await self._stores.sources_of(request.query_params.get("store"))
        return JSONResponse((await sources.describe(request.path_params["name"])).to_data())

    async def metrics(self, request: Request) -> Response:
        found = await self._found(self._stores.names)
        return PlainTextResponse(source_metrics(found, now_ms()), headers=prometheus_text.TYPE)

    async def _found(self, stores: Sequence[str]) -> Sequence[tuple[str, SourceStatus]]:
        """The sources of stores, which are asked at once."""
        clients = [await self._stores.sources_of(store) for store in stores]
        found = await asyncio.gather(*(each.describe_all() for each in clients))
        return [(store, each) for store, some in zip(stores, found, strict=True) for each in some]
