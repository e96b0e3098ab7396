"""The endpoints of durable collections: what each takes, asks of a store, and gives.

A command is durable before it is answered.
"""

from __future__ import annotations

import asyncio
from contextlib import aclosing, suppress
from itertools import pairwise
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from nebuli.dataflow.types import arrow_schema
from nebuli.dataflow.zset import weighted
from nebuli.http import output_streams as streams
from nebuli.http import request_parts as parts
from nebuli.http.problems import Problem
from nebuli.limits import DEFAULT_KEEP
from nebuli.store.collections.errors import CollectionUnknown
from topology import Column

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Sequence

    import pyarrow as pa
    from starlette.requests import Request

    from nebuli.http.collections.served_stores import ServedStores
    from nebuli.store.collections.collections import Collections
    from nebuli.store.shards.shard import Span

_WAIT_S = 20.0
"""So long a time that has not come yet is waited for."""
_PIECE_ROWS = 8192
"""Rows of one part of an answer: no more of a large collection are made into bytes at once."""
MAX_LEASE_S = 10**9
_DURABLE = {"durable": True}


class _New(BaseModel):
    """A collection that is to be made."""

    model_config = ConfigDict(extra="forbid")

    name: str
    columns: Annotated[tuple[Column, ...], Field(min_length=1, alias="schema")]
    shards: Annotated[int, Field(strict=True)] = 1
    timed: Literal["store", "writers"] = "store"
    keep: str | float = DEFAULT_KEEP


def collection_routes(stores: ServedStores, rows_in: parts.RowsIn) -> list[Route]:
    """The endpoints over stores; none where there are no stores."""
    if not stores.names:
        return []
    found = _Endpoints(stores, rows_in)
    return [
        Route("/collections", found.names, methods=["GET"]),
        Route("/collections", found.create, methods=["POST"]),
        Route("/collections/{name}", found.describe, methods=["GET"]),
        Route("/collections/{name}", found.drop, methods=["DELETE"]),
        Route("/collections/{name}/rows", found.rows, methods=["GET"]),
        Route("/collections/{name}/rows", found.insert, methods=["POST"]),
        Route("/collections/{name}/sequence", found.next_sequence, methods=["GET"]),
        Route("/collections/{name}/renditions", found.new_rendition, methods=["POST"]),
        Route("/collections/{name}/renditions/{rendition}", found.drop_rendition, methods=["DELETE"]),
        Route("/collections/{name}/handover", found.handover, methods=["POST"]),
        Route("/collections/{name}/holds", found.holds, methods=["GET"]),
        Route("/collections/{name}/holds", found.hold, methods=["POST"]),
        Route("/collections/{name}/holds/{hold}", found.release, methods=["DELETE"]),
    ]


class _Endpoints:
    def __init__(self, stores: ServedStores, rows_in: parts.RowsIn) -> None:
        self._stores = stores
        self._rows_in = rows_in

    async def _asked(self, request: Request) -> tuple[Collections, str]:
        """The store and the name of the collection that a request is about."""
        return await self._store(request), request.path_params["name"]

    async def _store(self, request: Request) -> Collections:
        return await self._stores.of(request.query_params.get("store"))

    # -- what there is

    async def names(self, request: Request) -> Response:
        asked = request.query_params.get("store")
        found = []
        for store in self._stores.names if asked is None else [asked]:
            collections = await self._stores.of(store)
            for name in await collections.list():
                with suppress(CollectionUnknown):  # it was dropped meanwhile
                    each = await collections.describe(name)
                    keys = ("name", "active", "since", "upper")
                    found.append({"store": store, **{key: getattr(each, key) for key in keys}})
        return JSONResponse({"stores": self._stores.names, "collections": found})

    async def create(self, request: Request) -> Response:
        collections = await self._store(request)
        try:
            new = _New.model_validate_json(await request.body())
        except ValidationError as error:
            raise _wrong_body(error) from None
        await collections.create(
            new.name, arrow_schema(new.columns), shards=new.shards, timed=new.timed, keep=new.keep
        )
        return JSONResponse({"name": new.name, **_DURABLE}, 201)

    async def describe(self, request: Request) -> Response:
        collections, name = await self._asked(request)
        return JSONResponse((await collections.describe(name)).to_data())

    async def drop(self, request: Request) -> Response:
        collections, name = await self._asked(request)
        await collections.drop(name)
        return JSONResponse({"name": name, **_DURABLE})

    # -- rows in

    async def insert(self, request: Request) -> Response:
        collections, name = await self._asked(request)
        producer, sequence = _numbered(request)
        schema = (await collections.describe(name)).schema
        async with self._rows_in.of(request, weighted(schema)) as rows:
            at = await collections.insert(name, rows, producer=producer, sequence=sequence)
            return JSONResponse({"time": at, "rows": rows.num_rows, **_DURABLE})

    async def next_sequence(self, request: Request) -> Response:
        collections, name = await self._asked(request)
        producer = parts.text(request, "producer")
        return JSONResponse({"sequence": await collections.next_sequence(name, producer)})

    # -- rows out

    async def rows(self, request: Request) -> Response:
        collections, name = await self._asked(request)
        follows = parts.is_said(request, "follow")
        as_of, first = parts.number_if_given(request, "as_of"), parts.number_if_given(request, "from")
        if follows and (last := parts.last_event(request)) is not None:
            as_of, first = None, last + 1
        if follows and as_of is not None and first is not None:
            raise parts.wrong(
                "from",
                "with follow, give only one of as_of and from: the answer begins with rows or with changes",
            )
        schema = weighted((await collections.describe(name)).schema)
        form, until = streams.form_of(request, "time", schema), None
        if first is None:
            spans = collections.subscribe(name, as_of, snapshot=True)
            if not follows:
                spans = _first(spans, name, as_of)
        else:
            # Without a time, begin with the contents at the first one.
            spans = collections.subscribe(name, max(first - 1, 0), snapshot=not first)
            if not follows:
                latest = await collections.latest(name)
                until = 1 + (latest if as_of is None else min(as_of, latest))
                if first >= until:
                    return Response(form.begin() + form.end(), media_type=form.kind)
        found = _in_parts(self._stores.followed(spans), until)
        return streams.Streamed(streams.body(found, form, until), form.kind)

    # -- renditions

    async def new_rendition(self, request: Request) -> Response:
        collections, name = await self._asked(request)
        rendition, shards = parts.text(request, "rendition"), parts.number(request, "shards", 1)
        await collections.new_rendition(name, rendition=rendition, shards=shards)
        return JSONResponse({"rendition": rendition, **_DURABLE}, 201)

    async def handover(self, request: Request) -> Response:
        collections, name = await self._asked(request)
        rendition, built_from = (
            parts.text(request, "rendition"),
            parts.number_if_given(request, "built_from"),
        )
        at = parts.number_if_given(request, "at")
        begin = await collections.handover(name, rendition, at, built_from=built_from)
        return JSONResponse({"time": begin, "rendition": rendition, **_DURABLE})

    async def drop_rendition(self, request: Request) -> Response:
        collections, name = await self._asked(request)
        rendition = request.path_params["rendition"]
        await collections.drop_rendition(name, rendition)
        return JSONResponse({"rendition": rendition, **_DURABLE})

    # -- holds

    async def holds(self, request: Request) -> Response:
        collections, name = await self._asked(request)
        found = (await collections.describe(name)).to_data()
        return JSONResponse({"since": found["since"], "holds": found["holds"]})

    async def hold(self, request: Request) -> Response:
        collections, name = await self._asked(request)
        hold, at = parts.text(request, "hold"), parts.number(request, "at", None)
        lease_s = parts.seconds(request, "lease_s", MAX_LEASE_S)
        await collections.hold(name, hold, at, lease_s=lease_s)
        return JSONResponse({"hold": hold, **_DURABLE}, 201)

    async def release(self, request: Request) -> Response:
        collections, name = await self._asked(request)
        hold = request.path_params["hold"]
        await collections.release(name, hold)
        return JSONResponse({"hold": hold, **_DURABLE})


def _numbered(request: Request) -> tuple[str | None, int | None]:
    """The producer of rows and its number for them: both, or neither."""
    if {"producer", "sequence"} & request.query_params.keys():
        return parts.text(request, "producer"), parts.number(request, "sequence", None)
    return None, None


def _wrong_body(error: ValidationError) -> Problem:
    first = error.errors(include_url=False, include_input=False)[0]
    where = ".".join(map(str, first["loc"]))
    return Problem(
        400,
        "wrong_body",
        f"the body does not describe a collection: {where and where + ': '}{first['msg']}",
        'send {"name": "sales", "schema": [{"name": "shop", "type": "string"}]}',
    )


# -- spans as parts of an answer


async def _first(spans: AsyncGenerator[Span], name: str, as_of: int | None) -> AsyncGenerator[Span]:
    """The contents at a time, which is waited for if it has not come yet."""
    async with aclosing(spans):
        try:
            async with asyncio.timeout(_WAIT_S):
                found = await anext(spans)
        except TimeoutError:
            raise Problem(
                409,
                "not_yet",
                f"collection {name} is not yet written up to {as_of}, after a wait of {_WAIT_S:g} s",
                "ask again, or ask for an earlier time",
            ) from None
        yield found


async def _in_parts(spans: AsyncGenerator[Span], until: int | None) -> AsyncGenerator[streams.Part]:
    """Yield the changes at each time below one, and after each span the time up to which they are complete."""
    async with aclosing(spans):
        async for span in spans:
            upper = span.upper if until is None else min(span.upper, until)
            found = [(at, each) for at, rows in span.updates if at < upper for each in _pieces(rows)]
            for (at, piece), (next_at, _) in pairwise([*found, (upper, None)]):
                yield streams.Part(at, [piece], more=next_at == at)
            if not found or found[-1][0] < upper - 1:
                yield streams.Part(upper - 1, [])


def _pieces(rows: pa.RecordBatch) -> Sequence[pa.RecordBatch]:
    return [rows.slice(first, _PIECE_ROWS) for first in range(0, rows.num_rows, _PIECE_ROWS)]
