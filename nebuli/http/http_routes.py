"""The endpoints of a circuit: what each takes, asks of the circuit, and gives."""

from __future__ import annotations

import asyncio
from contextlib import aclosing, nullcontext
from typing import TYPE_CHECKING, Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from nebuli.circuits.arrow_bytes import table_bytes
from nebuli.circuits.consistent_query import WITHIN_S
from nebuli.circuits.errors import UnknownInput, UnknownOutput
from nebuli.http import output_streams as streams
from nebuli.http import prometheus_text
from nebuli.http import request_parts as parts
from nebuli.http.circuit_figures import CircuitFigures
from nebuli.http.collections.collection_paths import collection_paths
from nebuli.http.collections.collection_routes import collection_routes
from nebuli.http.json_rows import as_json
from nebuli.http.openapi import described
from nebuli.http.openapi_parts import ANY, call, document
from nebuli.http.problems import FAILURES, Problem, place, problem_of
from nebuli.http.request_guard import BODY_S
from nebuli.http.sources.source_paths import source_paths
from nebuli.http.sources.source_routes import source_routes
from nebuli.http.views.view_paths import view_paths
from nebuli.http.views.view_routes import view_routes
from nebuli.python_values import values_of
from nebuli.steps.member.calls.member_figures import MAX_PROFILE_S
from nebuli.store.errors import StorageError

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
    from contextlib import AbstractContextManager

    import pyarrow as pa
    from starlette.requests import Request

    from nebuli.circuits.circuit_calls import CircuitCalls
    from nebuli.http.collections.served_stores import ServedStores
    from nebuli.http.views.view_places import ViewPlaces
    from nebuli.steps.coordinator.call_connection import CallConnection

_CATCH_UP_S = 20.0
"""So long a circuit that has begun again may take until it knows which steps it had made."""
_FORWARD_S = 5.0
"""A member that has not answered for so long has not followed the request."""


def app(calls: CircuitCalls, stores: ServedStores) -> Starlette:
    """The endpoints over a circuit, and those over the stores of collections that go with it."""
    rows_in = parts.RowsIn()
    found = _Endpoints(calls, stores, rows_in)
    routes = [
        *(Route(f"/{name}", call, methods=["POST"]) for name, call in found.controls.items()),
        Route("/query", found.query, methods=["GET", "POST"]),
        Route("/stats", found.stats, methods=["GET"]),
        Route("/metrics", found.metrics, methods=["GET"]),
        Route("/metadata", found.metadata, methods=["GET"]),
        Route("/heap_profile", found.heap_profile, methods=["GET"]),
        Route("/dump_profile", found.dump_profile, methods=["GET"]),
        Route("/offsets/{step}", found.offsets, methods=["GET"]),
        Route("/input_endpoint/{name}", found.push, methods=["POST"]),
        Route("/input_endpoint/{name}", found.next_sequence, methods=["GET"]),
        Route("/pause_input_endpoint/{name}", found.pause_input, methods=["POST"]),
        Route("/start_input_endpoint/{name}", found.start_input, methods=["POST"]),
        Route("/output_endpoint/{name}", found.output, methods=["GET"]),
        Route("/openapi.json", found.openapi, methods=["GET"]),
        *collection_routes(stores, rows_in),
    ]
    return _answering(routes, described(calls, collection_paths(stores)), calls.answering)


def app_of_stores(stores: ServedStores) -> Starlette:
    """The endpoints over stores alone: of collections, and of the sources that are ingested into them."""
    paths = {
        **collection_paths(stores),
        **source_paths(stores),
        "/openapi.json": {"get": call("This description.", ANY)},
    }
    description = document("Collections", paths)

    async def openapi(request: Request) -> Response:
        return JSONResponse(description)

    routes = [
        Route("/openapi.json", openapi, methods=["GET"]),
        *collection_routes(stores, parts.RowsIn()),
        *source_routes(stores),
    ]
    return _answering(routes, description)


def app_of_views(places: ViewPlaces) -> Starlette:
    """The endpoints over the views of a query that runs free."""

    def description() -> dict[str, Any]:
        paths = {**view_paths(places), "/openapi.json": {"get": call("This description.", ANY)}}
        return document("Views", paths)

    async def openapi(request: Request) -> Response:
        return JSONResponse(description())

    routes = [Route("/openapi.json", openapi, methods=["GET"]), *view_routes(places)]
    return _answering(routes, description())


def _answering(
    routes: Sequence[Route],
    description: Mapping[str, Any],
    within: Callable[[], AbstractContextManager[None]] = nullcontext,
) -> Starlette:
    """An application of these endpoints, which take the parameters that a description has of them, and no others.

    Each is called ``within`` a context, which may end it with an error.
    """
    application = Starlette(
        routes=[_checked(each, description["paths"].get(each.path, {}), within) for each in routes],
        exception_handlers={
            HTTPException: _not_here,
            Problem: _is_said_as_it_is,
            **dict.fromkeys(FAILURES, _is_failed),
            TimeoutError: _is_slow,
            ClientDisconnect: _is_gone,
            Exception: _ours,
        },
    )
    application.router.redirect_slashes = False  # a user of curl would see an empty answer
    return application


def _checked(
    route: Route, described: Mapping[str, Any], within: Callable[[], AbstractContextManager[None]]
) -> Route:
    """The route of an endpoint that refuses parameters which it would else pass over."""
    known = {
        method: [each["name"] for each in said["parameters"] if each["in"] == "query"]
        for method, said in described.items()
    }

    async def endpoint(request: Request) -> Response:
        taken = known.get("get" if request.method == "HEAD" else request.method.lower())
        if taken is not None:
            parts.refuse_others(request, taken)
        with within():
            answer: Response = await route.endpoint(request)
        return answer

    return type(route)(route.path, endpoint, methods=[*(route.methods or ())])


async def _not_here(request: Request, error: Exception) -> Response:
    """There is no such path, or it is not asked so."""
    assert isinstance(error, HTTPException)
    if error.status_code == 405:
        kind, why = "wrong_method", f"expected {(error.headers or {}).get('Allow', 'another method')}"
    else:
        kind = "unknown_path"
        why = "there is no such path" + (
            ", with a slash at its end" if request.url.path != "/" and request.url.path.endswith("/") else ""
        )
    what = f"{place(request)}: {why}"
    problem = Problem(error.status_code, kind, what, "GET /openapi.json lists all paths")
    return problem.response(place(request), error.headers)


async def _is_said_as_it_is(request: Request, error: Exception) -> Response:
    assert isinstance(error, Problem)
    return error.response(place(request))


async def _is_failed(request: Request, error: Exception) -> Response:
    assert isinstance(error, FAILURES)
    return problem_of(error).response(place(request))


async def _is_slow(request: Request, error: Exception) -> Response:
    what = f"the request's body did not arrive within {BODY_S:g} s"
    return Problem(408, "too_slow", what, "send it faster, or in pieces").response(place(request))


async def _is_gone(request: Request, error: Exception) -> Response:
    return Response(status_code=400)  # no client receives it


async def _ours(request: Request, error: Exception) -> Response:
    """A mistake of this service, which is logged."""
    what = f"something went wrong in the service itself: {type(error).__name__}"
    return Problem(500, "mistake", what, "see the log of its process").response(place(request))


class _Endpoints:
    def __init__(self, calls: CircuitCalls, stores: ServedStores, rows_in: parts.RowsIn) -> None:
        self._calls = calls
        self._stores = stores
        self._figures = CircuitFigures(calls)
        self._rows_in = rows_in
        self.controls: dict[str, Callable[[Request], Awaitable[Response]]] = {
            "start": self._start,
            "pause": self._pause,
            "shutdown": self._shut_down,
            "checkpoint": self._checkpoint,
            "scale": self._scale,
        }

    # -- steps

    async def _start(self, request: Request) -> Response:
        await self._calls.start()
        return self._position()

    async def _pause(self, request: Request) -> Response:
        await self._calls.pause()
        return self._position()

    async def _checkpoint(self, request: Request) -> Response:
        return JSONResponse({"step": await self._calls.checkpoint()})

    async def _scale(self, request: Request) -> Response:
        members = parts.number(request, "members", None)
        return JSONResponse({"members": members, "step": await self._calls.scale(members)})

    async def _shut_down(self, request: Request) -> Response:
        await self._calls.shut_down()
        return JSONResponse({"next_step": self._calls.coordinator.next_step}, 202)

    def _position(self) -> Response:
        coordinator = self._calls.coordinator
        return JSONResponse({"paused": coordinator.paused, "next_step": coordinator.next_step})

    # -- what it is, and how

    async def openapi(self, request: Request) -> Response:
        return JSONResponse(described(self._calls, collection_paths(self._stores)))

    async def metadata(self, request: Request) -> Response:
        calls = self._calls
        plan = calls.run.plan
        inputs = [
            {
                "name": each.id,
                "logical": each.logical,
                "external": each.id in calls.external,
                "materialized": each.materialized,
                "columns": _columns(calls.inputs[each.id]),
            }
            for each in plan.inputs
        ]
        outputs = [{"name": name, "columns": _columns(schema)} for name, schema in calls.outputs.items()]
        content = {
            "name": plan.name,
            "members": plan.members,
            "inputs": inputs,
            "outputs": outputs,
            "tables": sorted(calls.tables),
            "plan": plan.model_dump(mode="json", by_alias=True),
        }
        return JSONResponse(content)

    async def stats(self, request: Request) -> Response:
        return JSONResponse(await self._figures.stats())

    async def metrics(self, request: Request) -> Response:
        return PlainTextResponse(await self._figures.metrics(), headers=prometheus_text.TYPE)

    async def heap_profile(self, request: Request) -> Response:
        data = await self._profile(request, "heap")
        return PlainTextResponse(data, headers={"content-type": "text/plain; charset=utf-8"})

    async def dump_profile(self, request: Request) -> Response:
        data = await self._profile(request, "calls")
        name = f'attachment; filename="member-{parts.number(request, "member", 0)}.pstats"'
        return Response(data, media_type="application/octet-stream", headers={"content-disposition": name})

    async def _profile(self, request: Request, kind: str) -> bytes:
        member, seconds = (
            parts.number(request, "member", 0),
            parts.seconds(request, "seconds", MAX_PROFILE_S) or 1.0,
        )
        lines, members = self._calls.run.calls, self._calls.run.plan.members
        if member >= members:
            raise Problem(
                404,
                "unknown_member",
                f"unknown member {member}: expected 0 to {members - 1}",
                "name one",
            )
        try:
            async with asyncio.timeout(seconds + _FORWARD_S):
                return await lines[member].profile(kind, seconds)
        except TimeoutError:
            raise _away(f"member {member} does not answer") from None
        except StorageError as error:
            raise _away(f"member {member}: {error}") from None

    # -- rows in

    async def push(self, request: Request) -> Response:
        name = self._calls.pushed(request.path_params["name"])
        producer, sequence = parts.text(request, "producer"), parts.number(request, "sequence", None)
        async with self._rows_in.of(request, self._calls.inputs[name]) as batch:
            step = await self._calls.push(name, producer, sequence, batch, parts.PUSH_S)
        return JSONResponse({"step": step})

    async def next_sequence(self, request: Request) -> Response:
        producer = parts.text(request, "producer")
        sequence = await self._calls.next_sequence(request.path_params["name"], producer)
        return JSONResponse({"sequence": sequence})

    async def pause_input(self, request: Request) -> Response:
        return await self._forwarded(request, lambda line, name: line.hold(name))

    async def start_input(self, request: Request) -> Response:
        return await self._forwarded(request, lambda line, name: line.let_go(name))

    async def _forwarded(
        self, request: Request, told: Callable[[CallConnection, str], Awaitable[None]]
    ) -> Response:
        """Send it to all members; failures are reported for each."""
        name = request.path_params["name"]
        if name not in self._calls.inputs:
            raise UnknownInput(f"there is no input {name}: the circuit has {', '.join(self._calls.inputs)}")

        async def one(member: int, line: CallConnection) -> dict[str, Any]:
            try:
                async with asyncio.timeout(_FORWARD_S):
                    await told(line, name)
            except TimeoutError:
                why = (
                    f"the member did not answer within {_FORWARD_S:g} s, and gets the request "
                    f"when it can be reached"
                )
                return {"member": member, "done": False, "why": why}
            except StorageError as error:
                return {"member": member, "done": False, "why": str(error)}
            return {"member": member, "done": True}

        members = await asyncio.gather(*(one(*each) for each in enumerate(self._calls.run.calls)))
        missing = [each["member"] for each in members if not each["done"]]
        if missing:
            raise Problem(
                503,
                "not_all_members",
                f"{len(missing)} of {len(members)} members have not executed the request: "
                f"{', '.join(map(str, missing))}",
                "'members' contains the answer of each member; repeat the request: members that have already "
                "executed it ignore it",
                members=members,
            )
        return JSONResponse({"input": name, "members": members})

    # -- rows out

    async def output(self, request: Request) -> Response:
        name = request.path_params["name"]
        if name not in self._calls.outputs:
            raise UnknownOutput(
                f"there is no output {name}: the circuit has {', '.join(self._calls.outputs)}"
            )
        follows = parts.is_said(request, "follow")
        first = parts.number(request, "from_step", 0)
        until = parts.number(request, "until_step", parts.NUMBERS)
        if (last := parts.last_event(request)) is not None:
            first = last + 1
        if not follows:
            until = await self._complete(until)
        form = streams.form_of(request, "step", self._calls.outputs[name])
        if first >= until:
            return Response(form.begin() + form.end(), media_type=form.kind)
        steps = _in_parts(self._calls.output(name, first))
        body = streams.body(steps, form, None if until == parts.NUMBERS else until)
        return streams.Streamed(body, form.kind)

    async def _complete(self, most: int) -> int:
        try:
            return await self._calls.complete(most, _CATCH_UP_S)
        except TimeoutError:
            raise Problem(
                503,
                "not_caught_up",
                "the circuit was restarted, and has not caught up with its earlier steps within "
                f"{_CATCH_UP_S:g} s",
                "GET /stats shows the state of the members; POST /start if the circuit is paused, and ask again",
            ) from None

    async def offsets(self, request: Request) -> Response:
        step = parts.as_number("step", request.path_params["step"])
        ranges = [
            {"input": handle, "member": member, "first": first, "until": until}
            for handle, member, first, until in await self._calls.offsets(step)
        ]
        return JSONResponse({"step": step, "ranges": ranges})

    # -- queries

    async def query(self, request: Request) -> Response:
        sql = parts.text(request, "sql", limit=None) if request.method == "GET" else await _sql_of(request)
        step, rows = await self._calls.query(sql, WITHIN_S)
        headers = {"nebuli-step": str(step)}
        if streams.ARROW in request.headers.get("accept", ""):
            data = await asyncio.to_thread(table_bytes, rows)
            return Response(data, media_type=streams.ARROW, headers=headers)
        data = await asyncio.to_thread(_answer, step, rows)
        return Response(data, media_type="application/json", headers=headers)


def _answer(step: int, rows: pa.Table) -> bytes:
    columns = [*map(values_of, rows.columns)]
    return as_json(
        {
            "step": step,
            "columns": _columns(rows.schema),
            "rows": [list(row) for row in zip(*columns, strict=True)],
        }
    )


async def _in_parts(steps: AsyncGenerator[tuple[int, list[pa.RecordBatch]]]) -> AsyncGenerator[streams.Part]:
    async with aclosing(steps):
        async for number, batches in steps:
            yield streams.Part(number, batches)


def _columns(schema: pa.Schema) -> list[dict[str, str]]:
    return [{"name": field.name, "type": str(field.type)} for field in schema if field.name != "_weight"]


async def _sql_of(request: Request) -> str:
    says, example = "a string 'sql'", '{"sql": "SELECT ..."}'
    sql = (await parts.json_object(request, says, example)).get("sql")
    if not isinstance(sql, str):
        raise parts.wrong_body(says, example)
    return sql


def _away(what: str) -> Problem:
    return Problem(503, "member_away", what, "GET /stats shows the state of the members; ask again")
