"""The faults that the kit makes are those that it says."""

from __future__ import annotations

import asyncio
import itertools
import math

import pytest

from netchannel.testing import FaultyTransport
from netchannel.testing.deadlines import eventually
from netchannel.testing.raw_connections import Endpoint, connected

_names = itertools.count()


def address() -> str:
    return f"mem:faults{next(_names)}"


class Sized(Endpoint):
    """Keeps the sizes of its reads."""

    def __init__(self) -> None:
        super().__init__()
        self.sizes: list[int] = []

    def buffer_updated(self, nbytes: int) -> None:
        super().buffer_updated(nbytes)
        self.sizes.append(nbytes)


@pytest.mark.parametrize("life", [1, 7, 5000])
async def test_a_connection_is_cut_at_the_byte_that_was_drawn(life: int) -> None:
    """Both directions counted; the next one lives for ever."""
    async with FaultyTransport(lives=[life]) as network:
        async with connected(network.at(address())) as (here, there):
            there.transport.write(bytes(life // 2))
            await here.got(life // 2)
            here.transport.write(bytes(10_000))
            await here.over()
            await there.over()
            assert len(here.received) + len(there.received) == life
        assert (network.dialed, network.cuts, network.connections) == (1, 1, 0)
        async with connected(network.at(address())) as (here, there):
            here.transport.write(bytes(10_000))
            await there.got(10_000)
            assert network.connections == 1
        assert network.cuts == 1


async def test_pieces_are_repeated_by_their_seed() -> None:
    drawn = []
    for seed in (1, 1, 2):
        there = Sized()
        async with (
            FaultyTransport(seed=seed, piece=9) as network,
            connected(network.at(address()), there) as (here, _),
        ):
            here.transport.write(bytes(range(200)))
            await there.got(200)
            assert there.received == bytes(range(200))
        drawn.append(there.sizes)
    assert {size for sizes in drawn for size in sizes} <= set(range(1, 10))
    assert drawn[0] == drawn[1] != drawn[2]


async def test_a_stall_holds_up_bytes_and_ends() -> None:
    """One side ends the connection; the other one learns of it when the stall is over."""
    async with FaultyTransport() as network, connected(network.at(address())) as (here, there):
        network.stall()
        there.transport.write(b"to nobody")
        here.end(abort=True)
        await here.over()
        for _ in range(20):
            await asyncio.sleep(0)
        assert (there.lost, here.received) == (0, b"")
        network.resume()
        await there.over()


async def test_what_is_held_up_pauses_the_writer() -> None:
    async with FaultyTransport() as network, connected(network.at(address())) as (here, there):
        network.stall()
        written = await here.fill()
        assert written < 1 << 20
        network.resume()
        await there.got(written)
        await eventually(lambda: here.writable)


async def test_calm_ends_all_faults() -> None:
    async with (
        FaultyTransport(lives=itertools.repeat(100), piece=1, delay_s=10.0) as network,
        connected(network.at(address())) as (here, there),
    ):
        network.calm()
        here.transport.write(bytes(1000))
        await there.got(1000)
    assert network.cuts == 0


async def test_delays_keep_the_order() -> None:
    loop = asyncio.get_running_loop()
    async with (
        FaultyTransport(delay_s=0.01, lives=[math.inf]) as network,
        connected(network.at(address())) as (here, there),
    ):
        began = loop.time()
        for number in range(10):
            here.transport.write(bytes([number]))
        here.end()  # behind what was written
        await there.over()
        assert there.received == bytes(range(10))
        assert loop.time() - began > 0.01
