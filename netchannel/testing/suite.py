"""Shared parts of the kit: fixtures, and a time limit for each test."""

from __future__ import annotations

import asyncio
import inspect
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import pytest
import pytest_asyncio

from netchannel import ReceiverServer, SenderServer, Timing
from netchannel.transports import schemes

from .deadlines import limited, within

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

QUICK = Timing(backoff_s=0.002, backoff_limit_s=0.05, idle_s=0.05)
"""Timing for tests that lose connections often."""


_SOCKET_BYTES = 1 << 26
"""Size of a socket's buffers if the system does not report their limit."""


def _largest(name: str) -> int:
    """Return the largest size of one buffer of a TCP socket, by the settings of Linux."""
    try:
        return int(Path("/proc/sys/net/ipv4", name).read_text("utf-8").split()[2])
    except (OSError, IndexError, ValueError):
        return _SOCKET_BYTES


@pytest.mark.asyncio
class Suite:
    """Tests over one transport: that of ``address``."""

    time_limit_s: ClassVar[float] = 20.0

    def held_by_system(self) -> int:
        """Bytes that the system keeps at most of a connection that is not read, beyond this process: Linux's sockets.

        To be overridden for a transport that keeps more.
        """
        return sum(_largest(name) for name in ("tcp_rmem", "tcp_wmem"))

    def __init_subclass__(cls, **settings: Any) -> None:
        super().__init_subclass__(**settings)
        for name, member in list(vars(cls).items()):
            if name.startswith("test_") and inspect.iscoroutinefunction(member):
                setattr(cls, name, limited(member))

    @pytest.fixture
    def address(self) -> str:
        """An address to listen at; the same or another one in each test, at which nothing listens. To be overridden."""
        raise NotImplementedError(f"{type(self).__name__} has no fixture 'address': define it")

    @pytest_asyncio.fixture
    async def receiver(self, address: str) -> AsyncIterator[ReceiverServer]:
        """A receiver at ``address``."""
        server = await ReceiverServer(address, timing=QUICK).__aenter__()
        yield server
        await within(self.time_limit_s, server.__aexit__(None, None, None))

    @pytest_asyncio.fixture
    async def sender(self) -> AsyncIterator[SenderServer]:
        """A sender, of which no task is left afterwards."""
        before = asyncio.all_tasks()
        server = await SenderServer(timing=QUICK).__aenter__()
        yield server
        await within(self.time_limit_s, server.__aexit__(None, None, None))
        assert [task for task in asyncio.all_tasks() - before if "netchannel" in task.get_name()] == []

    @pytest_asyncio.fixture
    async def vacant(self, address: str) -> str:
        """An address at which nothing listens, but a server can; unlike ``address`` it can be dialed."""
        listener = await schemes.listen(address, asyncio.BufferedProtocol)
        listener.close()
        await listener.stop()
        return listener.address
