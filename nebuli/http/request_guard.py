"""`Guard`: which requests are allowed, how large, and how slow, before they reach an endpoint.

On a loopback address any user of this machine may ask, but no page in a browser: such a page could give a
name of its own to the address (so the Host header is checked), or send a form there (so is the Origin). Elsewhere the
topology's certificates, or its secret as a bearer token, are asked for.
"""

from __future__ import annotations

import asyncio
import hmac
from typing import TYPE_CHECKING

from starlette.requests import Request

from nebuli.circuits.push_limit import MAX_BYTES
from nebuli.http import output_streams as streams
from nebuli.http.json_rows import as_json
from nebuli.http.problems import Problem, place

if TYPE_CHECKING:
    from collections.abc import Collection

    from starlette.types import ASGIApp, Message, Receive, Scope, Send

BODY_S = 30.0
"""Within so long a request's body has to be there."""
SEND_S = 60.0
"""A client that takes nothing of an answer for so long is dropped."""


class Guard:
    """Lets through to ``app`` what may be asked. ``hosts``: the Host headers that are let in; None: all."""

    def __init__(self, app: ASGIApp, *, hosts: Collection[str] | None, secret: str | None) -> None:
        self._app = app
        self._hosts = None if hosts is None else frozenset(hosts)
        self._secret = secret

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        if scope["type"] != "http":
            raise RuntimeError(f"a {scope['type']} arrived, and this server only accepts HTTP")
        request = Request(scope)

        sending = _Patient(scope, send)
        try:
            self._check(request)
        except Problem as problem:
            headers = {"WWW-Authenticate": "Bearer"} if problem.status == 401 else None
            await problem.response(place(request), headers)(scope, receive, sending)
            return
        try:
            await self._app(scope, _Bounded(receive), sending)
        except Exception:
            if not sending.is_given_up:
                raise

    def _check(self, request: Request) -> None:
        """Raise Problem for a client without permission."""
        host, origin = request.headers.get("host", ""), request.headers.get("origin")
        if self._hosts is not None and host.lower() not in self._hosts:
            raise Problem(
                421,
                "wrong_host",
                f"the request is for the host {host!r}, but this server is {', '.join(sorted(self._hosts))}",
                "use an address of this server",
            )
        crosses = request.headers.get("sec-fetch-site") in ("cross-site", "same-site")
        if crosses or (origin is not None and origin.partition("://")[2].lower() != host.lower()):
            raise Problem(
                403,
                "other_origin",
                f"a page of {origin or 'another site'} sent the request, and pages of other sites are "
                "refused",
                "send it from a program, or from a page of this server",
            )
        if self._secret is not None:
            kind, _, token = request.headers.get("authorization", "").partition(" ")
            known = hmac.compare_digest(token.encode(), self._secret.encode())
            if kind.lower() != "bearer" or not known:
                raise Problem(
                    401,
                    "secret_needed",
                    "the request does not have the secret of the topology",
                    "send the header 'Authorization: Bearer SECRET'",
                )


class _Patient:
    """Sends an answer, and gives up a client that takes nothing for too long: with a typed end.

    Nothing is kept for them: the next part is not made before there is room for it.
    """

    def __init__(self, scope: Scope, send: Send) -> None:
        self._scope = scope
        self._send = send
        self._kind = ""
        self._ends_a_line = True
        self.is_given_up = False

    async def __call__(self, message: Message) -> None:
        """Send a part. Raises TimeoutError."""
        if message["type"] == "http.response.start":
            self._kind = dict(message["headers"]).get(b"content-type", b"").decode().partition(";")[0]
        try:
            async with asyncio.timeout(SEND_S):
                await self._send(message)
        except TimeoutError:
            self.is_given_up = True
            if (break_off := self._scope.get(streams.BREAK_OFF)) is not None:
                break_off(self._last_word())
            raise
        if body := message.get("body", b""):
            self._ends_a_line = body.endswith(b"\n")

    def _last_word(self) -> bytes:
        what = (
            f"the client read nothing of this answer for {SEND_S:g} s: ask again, starting after "
            f"the last received line"
        )
        line = as_json({"error": "too_slow", "what": what}) + b"\n"
        rest = b"" if self._ends_a_line else b"\n"
        match self._kind:
            case streams.LINES:
                return rest + line
            case streams.EVENTS:
                return rest + b"event: failed\ndata: " + line + b"\n"
        return b""


class _Bounded:
    """The body of a request, while it is not too large and comes in time."""

    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self._size = 0
        self._is_read = False
        self._until = asyncio.get_running_loop().time() + BODY_S

    async def __call__(self) -> Message:
        if self._is_read:
            return await self._receive()  # that the other side has left, whenever it does
        async with asyncio.timeout_at(self._until):
            message = await self._receive()
        self._size += len(message.get("body", b""))
        self._is_read = not message.get("more_body", False)
        if self._size > MAX_BYTES:
            raise Problem(
                413,
                "too_large",
                f"the body has more than {MAX_BYTES} bytes, which is the limit",
                "send the rows in several requests, each with its own number",
            )
        return message
