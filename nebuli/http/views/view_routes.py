"""The endpoints of views: their parameters, their requests to the view's process, and their answers."""

from __future__ import annotations

import asyncio
import json
import math
from contextlib import aclosing
from itertools import count
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import unquote

import pyarrow as pa
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from nebuli.http import output_streams as streams
from nebuli.http import prometheus_text
from nebuli.http import request_parts as parts
from nebuli.http.json_rows import as_json, plain, records
from nebuli.http.output_streams import EVENTS, Events, Lines
from nebuli.http.problems import Problem, problem_of
from nebuli.http.prometheus_text import family
from nebuli.http.views.view_places import ViewFound
from nebuli.views import LookupTimedOut, ViewsClosed, WrongKey
from nebuli.views.key_words import key_of_words, value_of_word
from nebuli.views.shown_rows import in_order

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Iterator, Mapping

    from starlette.requests import Request
    from starlette.routing import Match
    from starlette.types import Scope

    from nebuli.http.output_streams import Form, Part
    from nebuli.http.prometheus_text import Kind
    from nebuli.http.views.view_places import ViewPlaces
    from nebuli.views import ViewDescription, ViewError, Views

    Key = tuple[Any, ...]
    Found = Mapping[str, ViewFound | ViewError]

DEADLINE_S = 5.0
"""How long to wait for missing keys, unless a request sets another time."""
MAX_DEADLINE_S = 3600.0
MAX_KEYS = 1 << 16
"""So many keys are looked up by one request."""
_NAMED = 100
"""So many keys are named of those that have not come."""
_EXAMPLE = '{"keys": [["Aachen", 9], ["Bonn", 10]]}'


def view_routes(places: ViewPlaces) -> list[Route]:
    """The endpoints over views."""
    found = _Endpoints(places)
    return [
        Route("/views", found.list, methods=["GET"]),
        _AsSent("/views/{name}", found.get, methods=["GET"]),
        _AsSent("/views/{name}/get", found.get_many, methods=["POST"]),
        _AsSent("/views/{name}/watch", found.watch, methods=["GET"]),
        Route("/metrics", found.metrics, methods=["GET"]),
    ]


class _AsSent(Route):
    """Its path is compared with the address as it was sent: the name of a view may have a slash, which is %2F there."""

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        if raw := scope.get("raw_path"):
            scope = {**scope, "path": raw.decode("ascii")}
        return super().matches(scope)


class _Endpoints:
    def __init__(self, places: ViewPlaces) -> None:
        self._places = places

    async def list(self, request: Request) -> Response:
        return _json({"views": listed(await self._places.found())})

    async def metrics(self, request: Request) -> Response:
        return PlainTextResponse(view_metrics(await self._places.found()), headers=prometheus_text.TYPE)

    async def get(self, request: Request) -> Response:
        asked = await self._asked(request)
        found = await asked.look_up([asked.key_of(request)])
        return await asyncio.to_thread(lambda: _json({"view": asked.name, **asked.results(found)[0]}))

    async def get_many(self, request: Request) -> Response:
        said = (await parts.json_object(request, "a list 'keys'", _EXAMPLE)).get("keys")
        if not isinstance(said, list):
            raise parts.wrong_body("a list 'keys'", _EXAMPLE)
        if len(said) > MAX_KEYS:
            what = f"these are {len(said)} keys, but at most {MAX_KEYS} are accepted at once"
            raise Problem(413, "too_large", what, "read them with several requests")
        asked = await self._asked(request)
        found = await asked.look_up(await asyncio.to_thread(asked.keys_of, said))
        return await asyncio.to_thread(lambda: _json({"view": asked.name, "results": asked.results(found)}))

    async def watch(self, request: Request) -> Response:
        asked = await self._asked(request)
        form = form_of(request)
        changes = _changes(asked.name, asked.views.watch(asked.name, asked.key_of(request)))
        return streams.Streamed(streams.body(changes, form, None), form.kind)

    async def _asked(self, request: Request) -> _Asked:
        name = unquote(request.path_params["name"])
        views = self._places.of(name)
        deadline = parts.seconds(request, "deadline", MAX_DEADLINE_S) or DEADLINE_S
        return _Asked(name, views, await views.describe(name, deadline), deadline)


class _Found(NamedTuple):
    """A lookup, with its keys as the view has them."""

    keys: list[Key]
    rows: pa.RecordBatch
    hits: list[bool]


class _Asked(NamedTuple):
    """A view that a request is about, its place, and the deadline."""

    name: str
    views: Views
    view: ViewDescription
    deadline: float

    def key_of(self, request: Request) -> Key:
        """Return the key in an address. Raises WrongKey."""
        return key_of_words(request.query_params.getlist("key"), self.name, self.view)

    def keys_of(self, said: list[Any]) -> list[Key]:
        """Return the keys in a body. Raises WrongKey."""
        return [key_of_json(each, self.name, self.view) for each in said]

    async def look_up(self, keys: list[Key]) -> _Found:
        """All of them, by one lookup. Raises Problem, with what was found, where some have not come in time."""
        try:
            found = await self.views.get(self.name, keys, self.deadline)
        except LookupTimedOut as error:
            raise self._timed_out(error, keys) from None
        return _Found(self._exact(keys), found.rows, found.hits)

    def _timed_out(self, error: LookupTimedOut, keys: list[Key]) -> Problem:
        missing = dict.fromkeys(map(_with_one_nan, error.missing))
        there = [
            (key, hit)
            for key, hit in zip(self._exact(keys), error.found.hits, strict=True)
            if key not in missing
        ]
        found = _Found([key for key, _ in there], error.found.rows, [hit for _, hit in there])
        problem = problem_of(error)
        problem.more["missing"] = plain([*missing][:_NAMED])
        problem.more["results"] = plain(self.results(found))
        return problem

    def results(self, found: _Found) -> list[dict[str, Any]]:
        """Return the result for each key."""
        rows: dict[Key, list[dict[str, Any]]] = {key: [] for key in found.keys}
        for row in records([in_order(found.rows)]):
            rows[_with_one_nan(tuple(row[column] for column in self.view.key))].append(row)
        return [
            {"key": key, "hit": hit, "rows": rows[key]}
            for key, hit in zip(found.keys, found.hits, strict=True)
        ]

    def _exact(self, keys: list[Key]) -> list[Key]:
        """Keys as they are in rows: 9.0 as 9, if that is the column's type."""
        columns = (
            pa.array([key[index] for key in keys], self.view.schema.field(column).type).to_pylist()
            for index, column in enumerate(self.view.key)
        )
        return [*map(_with_one_nan, zip(*columns, strict=True))]


def _with_one_nan(key: Key) -> Key:
    """A key that equals itself."""
    return tuple(math.nan if each != each else each for each in key)  # noqa: PLR0124 - NaN alone does not


async def _changes(name: str, watching: AsyncGenerator[pa.RecordBatch]) -> AsyncGenerator[streams.Part]:
    async with aclosing(watching):
        numbers = count()
        try:
            async for rows in watching:
                yield streams.Part(next(numbers), [rows])
        except ViewsClosed:
            raise ViewsClosed(f"view {name!r} is no longer served: its query has ended") from None


def _json(value: Any) -> Response:
    return Response(as_json(value), media_type="application/json", headers={"cache-control": "no-store"})


_KINDS: dict[type, str] = {bool: "true or false", int: "a number", float: "a number", str: "a text"}


def key_of_json(said: Any, name: str, view: ViewDescription) -> tuple[Any, ...]:
    """Return the key in a list, with a value for each of its columns; of one column the value alone, too.

    Raises WrongKey, which names the column, its type, and the given value.
    """
    values = said if isinstance(said, list) else [said]
    if len(values) != len(view.key):
        columns = ", ".join(f"{each} ({view.schema.field(each).type})" for each in view.key)
        raise WrongKey(
            f"view {name!r} has a key of {columns}: expected a list of {len(view.key)} values, "
            f"got {json.dumps(said)[:100]}"
        )
    return tuple(
        _value(value, view.schema.field(column)) for value, column in zip(values, view.key, strict=True)
    )


def _value(value: Any, column: pa.Field) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        raise WrongKey(
            f"a number beyond the range of a double is not a {column.name} ({column.type}): give it as a "
            f"string"
        )
    if value is None or type(value) in _exact_kinds(column.type):
        return value
    if isinstance(value, str):  # also a number for which the other side has no exact type
        return value_of_word(value, column)
    kind = _KINDS.get(type(value), "a list or an object")
    raise WrongKey(f"{json.dumps(value)[:100]} ({kind}) is not a valid {column.name} ({column.type})")


def _exact_kinds(type_: pa.DataType) -> tuple[type, ...]:
    """Return the Python types that are a value of a type as they are.

    Not True for 1, which Python takes for a number.
    """
    if pa.types.is_boolean(type_):
        return (bool,)
    if pa.types.is_integer(type_) or pa.types.is_floating(type_):
        return (int, float)
    return (str,) if pa.types.is_string(type_) else ()


def form_of(request: Request) -> Form:
    """The form that a request accepts."""
    return _RowEvents("rows") if EVENTS in request.headers.get("accept", "") else _RowLines("rows")


def _object(part: Part) -> bytes:
    return as_json({"rows": records([*map(in_order, part.batches)])})


class _RowLines(Lines):
    """All rows of the key, on a line, whenever they are others."""

    def part(self, part: Part) -> bytes:
        """Its line."""
        return _object(part) + b"\n"


class _RowEvents(Events):
    """The same as server-sent events, without ids: a client that reconnects begins with the current rows."""

    def part(self, part: Part) -> bytes:
        """Its event."""
        return b"event: rows\ndata: %s\n\n" % _object(part)

    def alive(self) -> bytes:
        """A comment."""
        return b": no other rows\n\n"


_COUNTED: dict[str, tuple[Kind, str]] = {
    "keys": ("gauge", "keys that a partial view has now"),
    "bytes": ("gauge", "bytes of memory for the keys that a view has"),
    "lookups": ("counter", "keys that were looked up"),
    "hits": ("counter", "looked-up keys that were in memory"),
    "upqueries": ("counter", "upqueries that a view has sent, each for one or more keys"),
    "evictions": ("counter", "keys that were evicted"),
}
"""The counters of a view, since its fragment's process began."""


def listed(found: Found) -> list[dict[str, Any]]:
    """All views; of one that is away its name, and why."""
    return [_listed(name, each) for name, each in found.items()]


def _listed(name: str, found: ViewFound | ViewError) -> dict[str, Any]:
    if not isinstance(found, ViewFound):
        return {"name": name, "away": True, "why": str(found)}
    view, status = found
    return {
        "name": name,
        "away": False,
        "key": view.key,
        "columns": [{"name": field.name, "type": str(field.type)} for field in view.schema],
        "state": "partial" if view.is_partial else "full",
        **{each: getattr(status, each) for each in _COUNTED},
    }


def view_metrics(found: Found) -> str:
    """The same for Prometheus. Unknown figures of a view that is away have no value."""
    return "".join(f"{line}\n" for line in _lines(found))


def _lines(found: Found) -> Iterator[str]:
    there = {name: each.status for name, each in found.items() if isinstance(each, ViewFound)}
    yield from family(
        "nebuli_view_up",
        "gauge",
        "whether a view answers",
        [({"view": name}, int(name in there)) for name in found],
    )
    for each, (kind, text) in _COUNTED.items():
        name = f"nebuli_view_{each}" + ("_total" if kind == "counter" else "")
        series = [({"view": view}, getattr(status, each)) for view, status in there.items()]
        yield from family(name, kind, text, series)
