"""Changes by step, or by time, as a body: JSON lines, events that a browser resumes, or an Arrow stream."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from typing import TYPE_CHECKING, NamedTuple, Protocol

import numpy as np
import pyarrow as pa
from starlette.responses import StreamingResponse

from nebuli.http.json_rows import as_json, records
from nebuli.http.problems import FAILURES, problem_of

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Sequence

    from starlette.requests import Request
    from starlette.types import Receive, Scope, Send

    from nebuli.http.problems import Failure

    Parts = AsyncGenerator["Part"]

LINES, EVENTS = "application/x-ndjson", "text/event-stream"
ARROW = "application/vnd.apache.arrow.stream"
BREAK_OFF = "nebuli.break_off"
"""In a request's scope: has a last message sent to a client that takes nothing, which may still read it, and the
connection end."""
_ALIVE_S = 10.0
"""After so long without a step events have a comment: else what is in between would close the connection."""


class Part(NamedTuple):
    """The rows of a step, or of a time; with ``more`` of it to come."""

    number: int
    batches: Sequence[pa.RecordBatch]
    more: bool = False


class Form(Protocol):
    """How parts are written."""

    kind: str
    """The type of the body."""

    def begin(self) -> bytes:
        """Before all of them."""

    def part(self, part: Part) -> bytes:
        """One; called on a thread."""

    def alive(self) -> bytes:
        """Return a sign of life while there is none."""

    def failed(self, error: Failure) -> bytes:
        """Instead of the next one. Raises the error if a body cannot express it."""

    def end(self) -> bytes:
        """Return the bytes after all of them."""


class Lines:
    """An object for each part, on a line, whose rows have their weights. ``key``: what numbers are, step or time."""

    kind = LINES

    def __init__(self, key: str) -> None:
        self._key = key

    def begin(self) -> bytes:
        """Nothing."""
        return b""

    def part(self, part: Part) -> bytes:
        """Its line."""
        return self._object(part) + b"\n"

    def _object(self, part: Part) -> bytes:
        more = {"more": True} if part.more else {}
        return as_json({self._key: part.number, "rows": records(part.batches), **more})

    def alive(self) -> bytes:
        """Nothing: a line would be a step."""
        return b""

    def failed(self, error: Failure) -> bytes:
        """Return a line with the error."""
        problem = problem_of(error)
        return as_json({"error": problem.error, "what": str(error), "do": problem.do}) + b"\n"

    def end(self) -> bytes:
        """Nothing."""
        return b""


class Events(Lines):
    """The same as server-sent events, whose ids are the numbers: a client that reconnects continues after the last."""

    kind = EVENTS

    def part(self, part: Part) -> bytes:
        """Its event. Only with what is the last of a number one has come to it."""
        id_ = b"" if part.more else b"id: %d\n" % part.number
        return b"%sevent: %s\ndata: %s\n\n" % (id_, self._key.encode(), self._object(part))

    def failed(self, error: Failure) -> bytes:
        """An event of its own kind."""
        return b"event: failed\ndata: %s\n" % super().failed(error)

    def alive(self) -> bytes:
        """A comment."""
        return b": no %s yet\n\n" % self._key.encode()


class Arrow(Lines):
    """One IPC stream, whose rows have their weight and, in a column named by the key, as in ``_step``, the number."""

    kind = ARROW

    def __init__(self, key: str, schema: pa.Schema) -> None:
        super().__init__(key)
        self._schema = schema.append(pa.field(f"_{key}", pa.uint64()))
        self._pieces = _Pieces()
        self._writer = pa.ipc.new_stream(pa.PythonFile(self._pieces, "w"), self._schema)

    def begin(self) -> bytes:
        """The schema."""
        return self._pieces.taken()

    def part(self, part: Part) -> bytes:
        """Its batches."""
        for batch in part.batches:
            numbers = pa.array(np.full(batch.num_rows, part.number, dtype=np.uint64))
            self._writer.write_batch(pa.record_batch([*batch.columns, numbers], schema=self._schema))
        return self._pieces.taken()

    def failed(self, error: Failure) -> bytes:
        """The connection is broken off."""
        raise error

    def end(self) -> bytes:
        """That it is one."""
        self._writer.close()
        return self._pieces.taken()


class _Pieces:
    """A file that is taken away as it is written."""

    closed = False

    def __init__(self) -> None:
        self._pieces: list[bytes] = []

    def write(self, piece: pa.Buffer | bytes) -> int:
        data = bytes(piece)
        self._pieces.append(data)
        return len(data)

    def flush(self) -> None:
        pass

    def close(self) -> None:
        pass

    def taken(self) -> bytes:
        pieces, self._pieces = self._pieces, []
        return b"".join(pieces)


def form_of(request: Request, key: str, schema: pa.Schema) -> Form:
    """The form that a request accepts, of Z-sets of a schema."""
    accepted = request.headers.get("accept", "*/*")
    if ARROW in accepted:
        return Arrow(key, schema)
    if EVENTS in accepted:
        return Events(key)
    return Lines(key)


async def body(parts: Parts, form: Form, until: int | None) -> AsyncGenerator[bytes]:
    """The parts below a number, or all that ever come, in a form; they are closed with it.

    Raises their errors before it has returned anything, or encodes them in its form.
    """
    begin, is_first = form.begin(), True
    beats = _beats(parts)
    try:
        async with aclosing(parts), aclosing(beats):
            async for found in beats:
                part = form.alive() if found is None else await asyncio.to_thread(form.part, found)
                if begin + part:
                    yield begin + part
                begin, is_first = b"", False
                if until is not None and found is not None and found.number + 1 >= until and not found.more:
                    break
    except FAILURES as error:
        if is_first:
            raise
        yield form.failed(error)
        return
    if end := begin + form.end():
        yield end


async def _beats(parts: Parts) -> AsyncGenerator[Part | None]:
    """The parts, and None whenever there was none for a while."""
    coming: asyncio.Task[Part | None] | None = None
    try:
        while True:
            coming = coming or asyncio.create_task(_next(parts))
            done, _ = await asyncio.wait([coming], timeout=_ALIVE_S)
            if not done:
                yield None
                continue
            finished, coming = coming, None
            if (found := finished.result()) is None:
                return
            yield found
    finally:
        if coming is not None:
            coming.cancel()
            await asyncio.gather(coming, return_exceptions=True)


async def _next(parts: Parts) -> Part | None:
    return await anext(parts, None)


class Streamed(StreamingResponse):
    """An answer with a body that is closed with it, when its end has come or the client has left.

    An error before the first part is raised before anything is sent, and is its own answer; a later one that the body
    cannot express breaks the connection off.
    """

    def __init__(self, given: AsyncGenerator[bytes], kind: str) -> None:
        super().__init__(given, media_type=kind, headers={"cache-control": "no-store"})
        self._given = given
        self._has_begun = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Give it. Not as Starlette does, which would cancel again and again what a body does at its end."""
        leaving = asyncio.create_task(self.listen_for_disconnect(receive))
        streaming = asyncio.create_task(self.stream_response(send))
        try:
            await asyncio.wait([leaving, streaming], return_when=asyncio.FIRST_COMPLETED)
        finally:
            leaving.cancel()
            streaming.cancel()
            await asyncio.gather(leaving, streaming, return_exceptions=True)
            await self._given.aclose()
        if not streaming.cancelled():
            try:
                streaming.result()
            except FAILURES:
                if not self._has_begun or BREAK_OFF not in scope:
                    raise
                scope[BREAK_OFF](b"")

    async def stream_response(self, send: Send) -> None:
        """Send all of it."""
        part = await anext(self._given, b"")
        self._has_begun = True
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        while part:
            await send({"type": "http.response.body", "body": part, "more_body": True})
            part = await anext(self._given, b"")
        await send({"type": "http.response.body", "body": b"", "more_body": False})
