"""`CircuitProxy` hands requests of a worker's HTTP server to the coordinators' processes, and their answers back.

The first part of a path is the id of a query, as in ``/ID/stats``. Traffic is neither read nor kept: a slow client
slows down the process that answers.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING

import h11
from starlette.requests import Request

from nebuli.http.problems import Problem, place

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

    from starlette.types import Message, Receive, Scope, Send

    Headers = list[tuple[bytes, bytes]]

_OF_ONE_CONNECTION = {b"connection", b"keep-alive", b"te", b"trailer", b"transfer-encoding", b"upgrade"}
_FOR_THE_WORKER = {b"authorization", b"expect"}
_OF_THE_WORKER = {b"date", b"server"}
_READ_BYTES = 1 << 16


class CircuitProxy:
    """An ASGI app. ``socket_of`` returns the socket of a query's process; raises Problem if there is none."""

    def __init__(self, socket_of: Callable[[str], Path]) -> None:
        self._socket_of = socket_of

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        request = Request(scope)
        query, _, path = scope["raw_path"].lstrip(b"/").partition(b"/")
        try:
            reader, writer = await self._connected(query.decode(errors="replace"))
        except Problem as problem:
            await problem.response(place(request))(scope, receive, send)
            return
        try:
            answered = await _Passage(reader, writer).run(scope, path, receive, send)
        finally:
            writer.close()
            with suppress(OSError):
                await writer.wait_closed()
        if not answered:
            await _away("its process has ended before it answered").response(place(request))(
                scope, receive, send
            )

    async def _connected(self, query: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        try:
            return await asyncio.open_unix_connection(self._socket_of(query), limit=_READ_BYTES)
        except OSError as error:
            raise _away(f"its process is being started ({error.strerror or error})") from error


def _away(why: str) -> Problem:
    return Problem(503, "coordinator_away", f"the query's coordinator does not answer: {why}", "ask again")


class _Passage:
    """One request, on a connection of its own."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._protocol = h11.Connection(h11.CLIENT)

    async def run(self, scope: Scope, path: bytes, receive: Receive, send: Send) -> bool:
        """Pass on, and back; False if nothing came back."""
        asking = asyncio.create_task(self._ask(scope, path, receive))
        try:
            return await self._answer(send)
        finally:
            asking.cancel()
            await asyncio.gather(asking, return_exceptions=True)

    async def _ask(self, scope: Scope, path: bytes, receive: Receive) -> None:
        """Yield the request, and then that the client has left, which ends the answer."""
        headers: Headers = list(scope["headers"])
        has_body = any(name in (b"content-length", b"transfer-encoding") for name, _ in headers)
        headers = _without(headers, _OF_ONE_CONNECTION | _FOR_THE_WORKER)
        headers.append((b"connection", b"close"))
        if has_body and not any(name == b"content-length" for name, _ in headers):
            headers.append((b"transfer-encoding", b"chunked"))
        target = b"/" + path + (b"?" + scope["query_string"] if scope["query_string"] else b"")
        try:
            await self._say(h11.Request(method=scope["method"], target=target, headers=headers))
            while (message := await receive())["type"] == "http.request":
                if body := message.get("body", b""):
                    await self._say(h11.Data(data=body))
                if not message.get("more_body", False):
                    await self._say(h11.EndOfMessage())
        except ConnectionError:
            return  # it may have answered without all of it
        except BaseException:
            self._writer.transport.abort()  # what came is not all, and is not to be taken for it
            raise
        self._writer.transport.abort()

    async def _say(self, event: h11.Request | h11.Data | h11.EndOfMessage) -> None:
        if data := self._protocol.send(event):
            self._writer.write(data)
            await self._writer.drain()

    async def _answer(self, send: Send) -> bool:
        begun = False
        while True:
            event = self._protocol.next_event()
            match event:
                case h11.NEED_DATA:
                    try:
                        self._protocol.receive_data(await self._reader.read(_READ_BYTES))
                    except ConnectionError:
                        return begun
                case h11.Response():
                    headers = _without(event.headers, _OF_ONE_CONNECTION | _OF_THE_WORKER)
                    await send(_head(event.status_code, headers))
                    begun = True
                case h11.Data():
                    await send({"type": "http.response.body", "body": bytes(event.data), "more_body": True})
                case h11.EndOfMessage():
                    await send({"type": "http.response.body", "body": b"", "more_body": False})
                    return True
                case _:
                    return begun  # where it had begun, the connection is broken off


def _without(headers: Iterable[tuple[bytes, bytes]], names: set[bytes]) -> Headers:
    return [(name, value) for name, value in headers if name.lower() not in names]


def _head(status: int, headers: Headers) -> Message:
    return {"type": "http.response.start", "status": status, "headers": headers}
