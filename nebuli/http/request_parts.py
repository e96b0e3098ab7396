"""The contents of a request: parameters, and rows."""

from __future__ import annotations

import asyncio
import json
import math
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from nebuli.circuits.admission import Room
from nebuli.circuits.arrow_bytes import decoded_all
from nebuli.circuits.errors import InputFull
from nebuli.circuits.push_limit import MAX_BYTES, WAITING_BYTES
from nebuli.http.json_rows import rows_of_lines
from nebuli.http.output_streams import ARROW, LINES
from nebuli.http.problems import Problem

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    import pyarrow as pa
    from starlette.requests import Request

NUMBERS = 1 << 63
PUSH_S = 20.0
"""So long rows wait for room: a circuit that is paused takes none."""
_NAME_LIMIT = 256


class RowsIn:
    """Rows that requests bring, of which so many are in memory at once."""

    def __init__(self) -> None:
        self._room = Room(WAITING_BYTES)

    @asynccontextmanager
    async def of(self, request: Request, schema: pa.Schema) -> AsyncIterator[pa.RecordBatch]:
        """The rows of a request: JSON lines of a Z-set's schema, or an Arrow stream. Left, they have no room any more.

        Raises Problem, WrongRows.
        """
        kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind not in (LINES, "application/json", ARROW):
            raise Problem(
                415,
                "wrong_content_type",
                f"the rows have the type {kind or 'nothing'}, expected {LINES} or {ARROW}",
                "give the type in the header Content-Type",
            )
        said = request.headers.get("content-length", "")
        size = min(int(said), MAX_BYTES) if said.isdecimal() and len(said) < 20 else MAX_BYTES
        await self._take(size)
        try:
            data = await request.body()
            if kind == ARROW:
                yield await asyncio.to_thread(decoded_all, data)
            else:
                yield await asyncio.to_thread(rows_of_lines, data, schema)
        finally:
            self._room.give(size)

    async def _take(self, size: int) -> None:
        try:
            async with asyncio.timeout(PUSH_S):
                await self._room.take(size)
        except TimeoutError:
            raise InputFull(
                f"pushes of {self._room.taken} bytes already wait here, and the circuit processed "
                f"none of them within {PUSH_S:g} s: nothing of this push was kept"
            ) from None


def refuse_others(request: Request, taken: Sequence[str]) -> None:
    """Take no parameters but these: a misspelt one would otherwise go unnoticed. Raises Problem."""
    others = [name for name in request.query_params if name not in taken]
    if others:
        takes = f"takes {', '.join(taken)}" if taken else "takes no parameters"
        raise Problem(
            400,
            "wrong_parameter",
            f"unknown parameter {others[0][:_NAME_LIMIT]!r}: {request.method} {request.url.path} {takes}",
            "omit this parameter, or correct its name",
        )


async def json_object(request: Request, says: str, example: str) -> dict[str, Any]:
    """The body, an object that ``says`` something, as the example does. Raises Problem."""
    try:
        found = await asyncio.to_thread(json.loads, await request.body())
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise wrong_body(says, example)
    return found


def wrong_body(says: str, example: str) -> Problem:
    """The error for a body."""
    return Problem(400, "wrong_body", f"the body is not a JSON object with {says}", f"send {example}")


def text(request: Request, name: str, limit: int | None = _NAME_LIMIT) -> str:
    """A parameter that is there. Raises Problem, as all of these."""
    found = request.query_params.get(name, "")
    if not found:
        raise wrong(name, "it is missing")
    if limit is not None and len(found) > limit:
        raise wrong(name, f"it has {len(found)} characters, and the limit is {limit}")
    return found


def number(request: Request, name: str, otherwise: int | None) -> int:
    """Return a number from 0; if it is not given, the default, or, if that is None, raise Problem."""
    found = request.query_params.get(name)
    if found is None:
        if otherwise is None:
            raise wrong(name, "it is missing")
        return otherwise
    return as_number(name, found)


def number_if_given(request: Request, name: str) -> int | None:
    """A number from 0 on, or None."""
    return number(request, name, None) if name in request.query_params else None


def as_number(name: str, text: str) -> int:
    """A text as a number from 0 on."""
    if not text.isascii() or not text.isdecimal() or len(text) > 18:
        raise wrong(name, f"{text[:40]!r} is not a whole number of at least 0")
    return int(text)


def seconds(request: Request, name: str, most: float) -> float | None:
    """Seconds above 0, or None."""
    found = request.query_params.get(name)
    if found is None:
        return None
    try:
        value = float(found)
    except ValueError:
        value = math.nan
    if not 0 < value <= most:
        raise wrong(name, f"{found[:40]!r} is not a number above 0 and at most {most:g}")
    return value


def is_said(request: Request, name: str) -> bool:
    """True if a parameter is true."""
    found = request.query_params.get(name, "false").lower()
    if found not in ("true", "false"):
        raise wrong(name, f"{found[:40]!r} is neither true nor false")
    return found == "true"


def last_event(request: Request) -> int | None:
    """Return the id of the last event of a browser, which resumes after it."""
    said = request.headers.get("last-event-id", "")
    return int(said) if said.isascii() and said.isdecimal() and len(said) < 19 else None


def wrong(name: str, why: str) -> Problem:
    """The error for a parameter."""
    return Problem(
        400, "wrong_parameter", f"the parameter {name}: {why}", f"give it in the URL, as ?{name}=..."
    )
