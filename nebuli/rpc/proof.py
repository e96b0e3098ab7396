"""Proofs that a worker's caller knows the secret: one with each call, good for that call only.

It goes as metadata: the time, a random number, and an HMAC-SHA-256 over these two, the worker's name, the method and
the request. So an eavesdropper learns nothing that is good for another call, worker or request. A worker takes
proofs of clocks that differ from its own by five minutes at most, as Kerberos does, and remembers them for as long.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
import time
from collections import deque
from typing import TYPE_CHECKING, Any

import grpc
import grpc.aio

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from google.protobuf.message import Message

__all__ = ["PROOF_KEY", "Checking", "Proofs", "ProvingOne", "ProvingSeveral", "checked", "prove"]

PROOF_KEY = "nebuli-proof"
WINDOW_S = 300.0
_CONTEXT = b"nebuli worker 1"
_OPEN = "/grpc.health.v1.Health/"
"""Reports only if the worker serves: for load balancers and the like, which have no secret."""


def prove(secret: str, worker: str, method: str, request: bytes, now: float) -> str:
    """A proof that is good for one call."""
    once = f"{now:.3f} {secrets.token_hex(16)}"
    return f"{once} {_mac(secret, worker, method, request, once)}"


def _mac(secret: str, worker: str, method: str, request: bytes, once: str) -> str:
    parts = (_CONTEXT, worker.encode(), method.encode(), once.encode(), request)
    # Each part's length before it: no two calls give the same text.
    text = b"".join(len(part).to_bytes(8, "little") + part for part in parts)
    return hmac.new(secret.encode(), text, hashlib.sha256).hexdigest()


class Proofs:
    """The worker's side of proofs: the secret, and the proofs that it has seen.

    ``now`` is given: no clock is read here.

    ``called`` is what it is called in refusals, if it is not a worker.
    """

    def __init__(self, secret: str, worker: str, called: str | None = None) -> None:
        self._secret = secret
        self._worker = worker
        self._called = called or f"worker {worker}"
        self._seen: set[str] = set()
        self._order: deque[tuple[float, str]] = deque()

    def refusal(self, proof: str | bytes | None, method: str, request: bytes, now: float) -> str | None:
        """Why a call is refused, in a sentence; None if it is not."""
        if not isinstance(proof, str):
            return f"{self._called} requires a secret, and the call has none: set one in the topology"
        once, _, mac = proof.rpartition(" ")
        wanted = _mac(self._secret, self._worker, method, request, once)
        if not hmac.compare_digest(mac.encode(), wanted.encode()):
            return f"{self._called} has another secret: give all workers and commands the same secret"
        # From here on the caller knows the secret: its strings are well-formed.
        behind = now - float(once.partition(" ")[0])
        if abs(behind) > WINDOW_S:
            where = "ahead of" if behind > 0 else "behind"
            return (
                f"the clock of {self._called} is {abs(behind):.0f} s {where} the caller's, and "
                f"the limit is {WINDOW_S:.0f} s: set both by NTP"
            )
        self._forget(now)
        if once in self._seen:
            return f"{self._called} has seen this call before: it is a replay"
        self._seen.add(once)
        self._order.append((now, once))
        return None

    def _forget(self, now: float) -> None:
        # A stamp may be ahead by the window, and is accepted until it is as far in the past.
        while self._order and self._order[0][0] < now - 2 * WINDOW_S:
            self._seen.discard(self._order.popleft()[1])


class Checking(grpc.aio.ServerInterceptor):  # type: ignore[misc]  # gRPC has no types
    """Refuses calls without a proof. Methods that begin with ``but`` are checked elsewhere."""

    def __init__(self, proofs: Proofs, but: str | None = None) -> None:
        self._proofs = proofs
        self._but = but

    async def intercept_service(
        self, continuation: Callable[[Any], Awaitable[Any]], handler_call_details: Any
    ) -> Any:
        """The method's handler, with the check before it; gRPC asks for it with each call."""
        handler = await continuation(handler_call_details)
        method = handler_call_details.method
        if handler is None or method.startswith(_OPEN) or (self._but and method.startswith(self._but)):
            return handler
        return checked(handler, self._proofs, handler_call_details)


def checked(handler: Any, proofs: Proofs, details: Any) -> Any:
    """The handler of a call of these details, with the check before it."""
    method, proof = details.method, dict(details.invocation_metadata).get(PROOF_KEY)

    async def check(request: bytes, context: Any) -> None:
        refusal = proofs.refusal(proof, method, request, time.time())
        if refusal is not None:
            await context.abort(grpc.StatusCode.UNAUTHENTICATED, refusal)

    return _guarded(handler, check)


def _guarded(handler: Any, check: Callable[[bytes, Any], Awaitable[None]]) -> Any:
    if handler.unary_unary is not None:

        async def one(request: Message | bytes, context: Any) -> Any:
            await check(_bytes(request), context)
            return await handler.unary_unary(request, context)

        return handler._replace(unary_unary=one)
    if handler.unary_stream is not None:

        async def several(request: Message | bytes, context: Any) -> AsyncIterator[Any]:
            await check(_bytes(request), context)
            async for answer in handler.unary_stream(request, context):
                yield answer

        return handler._replace(unary_stream=several)

    async def any_number(requests: Any, context: Any) -> AsyncIterator[Any]:
        await check(b"", context)  # requests that come later have no proof
        async for answer in handler.stream_stream(requests, context):
            yield answer

    return handler._replace(stream_stream=any_number)


def _bytes(request: Message | bytes) -> bytes:
    """The request as it travels, if it has no maps."""
    return request if isinstance(request, bytes) else request.SerializeToString(deterministic=True)


class _Proving:
    def __init__(self, secret: str, worker: str) -> None:
        self._secret = secret
        self._worker = worker

    def _proven(self, details: Any, request: Message) -> Any:
        method = details.method.decode() if isinstance(details.method, bytes) else details.method
        proof = prove(self._secret, self._worker, method, _bytes(request), time.time())
        metadata = grpc.aio.Metadata(*(details.metadata or ()), (PROOF_KEY, proof))
        return details._replace(metadata=metadata)


class ProvingOne(_Proving, grpc.aio.UnaryUnaryClientInterceptor):  # type: ignore[misc]  # gRPC has no types
    """Adds a proof to each call with one answer."""

    async def intercept_unary_unary(self, continuation: Any, client_call_details: Any, request: Any) -> Any:
        """Make the call with a proof; called by gRPC."""
        return await continuation(self._proven(client_call_details, request), request)


class ProvingSeveral(_Proving, grpc.aio.UnaryStreamClientInterceptor):  # type: ignore[misc]  # gRPC has no types
    """Adds a proof to each call with several answers. It is apart, as gRPC takes an interceptor for one kind only."""

    async def intercept_unary_stream(self, continuation: Any, client_call_details: Any, request: Any) -> Any:
        """Make the call with a proof; called by gRPC."""
        return await continuation(self._proven(client_call_details, request), request)
