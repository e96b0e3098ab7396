"""`Admission`: pushes are read from their connections as long as what waits in this process is not too much.

A call whose message is not read is held back by its connection's flow control, at its sender. How large a message is,
is known once it has been read: so there has to be room for the largest before one is, and what it does not need is
given back.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, Any

import grpc
import grpc.aio

from nebuli.circuits.errors import InputFull, refusal_of
from nebuli.circuits.push_limit import MESSAGE_BYTES, WAITING_BYTES
from nebuli.rpc.circuit_pb2 import DESCRIPTOR, PushRequest, StageRequest
from nebuli.rpc.conventions import REFUSAL_KEY

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from grpc.aio import ServicerContext as Context

    from nebuli.circuits.errors import CircuitError

_SAID_LIMIT = 2000
"""How much of a message is sent: gRPC takes 8 KiB of metadata."""


async def refuse(context: Context, error: CircuitError) -> None:
    """End the call with this error, which the client raises."""
    refusal = refusal_of(error)
    refusal.message = refusal.message[:_SAID_LIMIT]
    detail = ((REFUSAL_KEY, refusal.SerializeToString()),)
    await context.abort(grpc.StatusCode.FAILED_PRECONDITION, refusal.message, detail)


_LARGE = {f"/{DESCRIPTOR.services_by_name['Circuit'].full_name}/{each}" for each in ("Push", "Stage")}
"""The methods that bring rows."""
MARGIN_S = 0.5
"""How long before a caller's deadline it gets the reason why nothing happened: later, the answer would be lost."""


class Room:
    """So many bytes, which are taken in turn."""

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self.taken = 0
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()

    async def take(self, size: int) -> None:
        """Wait until there is room for so many bytes after all that came before, and take it."""
        if not self._waiting and self.taken + size <= self.max_bytes:
            self.taken += size
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((size, turn))
        try:
            await turn
        except asyncio.CancelledError:
            if not turn.cancelled():
                self.give(size)  # it had been its turn
            elif (size, turn) in self._waiting:
                self._waiting.remove((size, turn))
                self._admit()  # it may have stood before smaller ones
            raise

    def give(self, size: int) -> None:
        """Give room back."""
        self.taken -= size
        self._admit()

    def _admit(self) -> None:
        while self._waiting and self.taken + self._waiting[0][0] <= self.max_bytes:
            size, turn = self._waiting.popleft()
            if not turn.cancelled():
                self.taken += size
                turn.set_result(None)


class Admission(grpc.aio.ServerInterceptor):  # type: ignore[misc]  # gRPC has no types
    """Has pushes wait for room before they are read, to be asked first of all interceptors.

    One that finds none before its deadline is refused with InputFull.
    """

    def __init__(self, max_bytes: int = WAITING_BYTES) -> None:
        self.room = Room(max_bytes)

    async def intercept_service(
        self, continuation: Callable[[Any], Awaitable[Any]], handler_call_details: Any
    ) -> Any:
        """The method's handler; of a push one that reads the message itself."""
        handler = await continuation(handler_call_details)
        if handler is None or handler_call_details.method not in _LARGE:
            return handler

        async def admitted(requests: AsyncIterator[Any], context: Any) -> Any:
            await self._admitted(context)
            size = MESSAGE_BYTES
            try:
                request = await anext(requests)
                size = request.ByteSize() if isinstance(request, PushRequest | StageRequest) else len(request)
                self.room.give(MESSAGE_BYTES - size)
                return await handler.unary_unary(request, context)
            finally:
                self.room.give(size)

        return grpc.stream_unary_rpc_method_handler(
            admitted, handler.request_deserializer, handler.response_serializer
        )

    async def _admitted(self, context: Any) -> None:
        left = context.time_remaining()
        try:
            async with asyncio.timeout(None if left is None else max(left - MARGIN_S, 0.0)):
                await self.room.take(MESSAGE_BYTES)
        except TimeoutError:
            await refuse(
                context,
                InputFull(
                    f"{self.room.taken} of at most {self.room.max_bytes} bytes of pushes already wait here, and "
                    f"none of them was processed in time: nothing of this push was kept; start the circuit if it "
                    f"is paused, or let fewer producers push at once; then send this push again"
                ),
            )
