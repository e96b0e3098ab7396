"""Every test of channels on both loops, and nothing left behind by any."""

from __future__ import annotations

import asyncio
import itertools
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest

from netchannel import ReceiverServer, SenderServer, Tls
from netchannel.transports import memory
from tests.support import sizes
from tests.support.authority import Authority
from tests.support.chaos import ChaosProxy
from tests.support.loops import new_uvloop
from tests.support.ports import free_addresses
from tests.support.sockets import sockets

_names = itertools.count()


def pytest_asyncio_loop_factories(item: pytest.Item) -> dict[str, Callable[[], asyncio.AbstractEventLoop]]:
    """Both loops, but for what is long and has the loop in no part that counts, or where little is run of all."""
    if item.get_closest_marker("uvloop") is not None or sizes.ONE_IN > 1:
        return {"uvloop": new_uvloop}
    return {"asyncio": asyncio.SelectorEventLoop, "uvloop": new_uvloop}


@pytest.fixture(params=["tcp", "unix", "memory"])
def address(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Somewhere to listen, over each transport."""
    return {"tcp": "127.0.0.1:0", "unix": f"unix:{tmp_path}/s", "memory": f"mem:{next(_names)}"}[
        request.param
    ]


@pytest.fixture(autouse=True)
def nothing_left_behind() -> Iterator[None]:
    """No socket, thread or listener outlives its test."""
    descriptors, threads = len(sockets()), set(threading.enumerate())
    yield
    started = set(threading.enumerate()) - threads
    # asyncio's own, which wait for the test's processes, end a little after these.
    assert [thread for thread in started if not thread.name.startswith("asyncio-waitpid")] == []
    assert memory._listeners == {}
    assert len(sockets()) <= descriptors


@pytest.fixture
async def receiver() -> AsyncIterator[ReceiverServer]:
    async with ReceiverServer() as server:
        yield server


@pytest.fixture
async def sender() -> AsyncIterator[SenderServer]:
    before = asyncio.all_tasks()
    async with SenderServer() as server:
        yield server
    left = [task for task in asyncio.all_tasks() - before if "netchannel" in task.get_name()]
    assert left == []


@pytest.fixture(scope="session")
def tls(tmp_path_factory: pytest.TempPathFactory) -> Tls:
    """A certificate for this host, of an authority that its owner trusts."""
    return Authority(tmp_path_factory.mktemp("certificates")).issue("node")


@pytest.fixture
def free_address() -> str:
    """An address where nobody listens yet."""
    return free_addresses(1)[0]


@pytest.fixture
def chaos() -> Callable[[str], ChaosProxy]:
    """A proxy in front of an address that resets connections at random bytes."""
    return lambda target: ChaosProxy(target, seed=7, mean_bytes=20_000, max_resets=200)
