"""The ports at which the processes of a worker's fragments take data: of a range, or any that are free."""

from __future__ import annotations

import errno
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import netchannel
from nebuli.connectors.errors import FragmentError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from nebuli.rpc.trust import Trust

__all__ = ["Ports", "member"]


@dataclass(frozen=True, slots=True)
class Ports:
    """The ports from ``first`` to ``last``, both included; 0 is any that is free.

    ``data`` is where data connections go, one each, if not there too: a range, or ``ephemeral``.
    """

    host: str
    first: int = 0
    last: int = 0
    data: str | None = None


@asynccontextmanager
async def member(ports: Ports, node: str, trust: Trust) -> AsyncIterator[netchannel.ReceiverServer]:
    """A server at the first of the ports that is free, of the node whose members meet at ``node``.

    ``FragmentError`` where none is.
    """
    async with AsyncExitStack() as stack:
        for port in range(ports.first, ports.last + 1):
            server = netchannel.ReceiverServer(
                f"{ports.host}:{port}",
                node=node,
                data_ports=ports.data,
                tls=trust.tls,
                secret=trust.secret,
            )
            try:
                await stack.enter_async_context(server)
            except OSError as error:
                if error.errno != errno.EADDRINUSE:
                    raise
            else:
                yield server
                return
    raise FragmentError(
        f"none of the ports {ports.first} to {ports.last} at {ports.host} is free, but each "
        f"running fragment takes one: stop a query, or give the worker more ports "
        f"(--fragment-ports)"
    )
