"""Ports of their own for data connections, one per attempt, from a range or whichever is free."""

from __future__ import annotations

import errno
import random
import socket
from typing import TYPE_CHECKING

from netchannel.core.receiving.offers import Lease

from .acceptor import Acceptor

if TYPE_CHECKING:
    from collections.abc import Iterable

    from .interface import MakeProtocol


def parse_data_ports(text: str) -> range | None:
    """Read ``"40000-40999"``, or ``"ephemeral"`` as None. Raises ValueError with what was expected."""
    if text == "ephemeral":
        return None
    low, dash, high = text.partition("-")
    if not (dash and low.isdigit() and high.isdigit() and 0 < int(low) <= int(high) <= 65535):
        raise ValueError(f"data_ports is {text!r}: expected 'ephemeral' or a range such as '40000-40999'")
    return range(int(low), int(high) + 1)


class DataPorts:
    """Opens a listening port for each data connection that is granted; the lease closes it."""

    def __init__(self, host: str, ports: range | None, make_protocol: MakeProtocol) -> None:
        self._host = host
        self._ports = ports
        self._family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._acceptor = Acceptor(make_protocol)

    def lease(self) -> Lease:
        """Listen on one more port. Raises OSError if none is free."""
        listener = self._bind()
        self._acceptor.add(listener)
        return Lease(listener.getsockname()[1], lambda: self._acceptor.remove(listener))

    def _bind(self) -> socket.socket:
        for port in self._candidates():
            try:
                return socket.create_server((self._host, port), family=self._family, backlog=16)
            except OSError as error:
                if error.errno != errno.EADDRINUSE:
                    raise
        raise OSError(errno.EADDRINUSE, f"all ports of {self._ports} are in use on {self._host}")

    def _candidates(self) -> Iterable[int]:
        if self._ports is None:
            return [0]
        return random.sample(self._ports, len(self._ports))

    async def stop(self) -> None:
        """Close what is still open, and wait until no connection is being accepted any more."""
        await self._acceptor.stop()
