"""Refusals: errors of a circuit, as its service answers them over gRPC."""

from __future__ import annotations

from typing import TYPE_CHECKING

import grpc

from nebuli.circuits.errors import refusal_of
from nebuli.rpc.conventions import REFUSAL_KEY

if TYPE_CHECKING:
    from grpc.aio import ServicerContext as Context

    from nebuli.circuits.errors import CircuitError

_SAID_LIMIT = 2000
"""How much of a message is said: gRPC takes 8 KiB of metadata."""


async def refuse(context: Context, error: CircuitError) -> None:
    """End the call with this error, which the client raises."""
    refusal = refusal_of(error)
    refusal.message = refusal.message[:_SAID_LIMIT]
    detail = ((REFUSAL_KEY, refusal.SerializeToString()),)
    await context.abort(grpc.StatusCode.FAILED_PRECONDITION, refusal.message, detail)
