from __future__ import annotations

import asyncio
from threading import Event

import netchannel
from nebuli.connectors.endpoints import Signal
from nebuli.connectors.errors import FragmentError, InputGone
from nebuli.connectors.sources.kept_stream import KeptStream, as_text, of_text
from tests.support.keeper import Keeper, numbers
from tests.support.waiting import until_async
from topology import ChannelSource


def test_a_position_is_the_same_behind_its_text() -> None:
    for stream in ("a", "a/b", "5/5/"):
        position = netchannel.Position(stream, 7)
        assert of_text(as_text(position), "channel c") == position


async def test_it_reads_no_more_ahead_than_is_taken() -> None:
    """60 MB are kept, of which two parts, each of some MiB at most, wait for who takes them."""
    with Keeper() as keeper:
        await asyncio.to_thread(keeper.send, *(numbers(first, 1 << 17) for first in range(60)))
        await asyncio.to_thread(keeper.end)
        settings = ChannelSource(logical="l", type="Channel", address=keeper.address, channel="c")
        woken = Event()
        reader = netchannel.ChannelReader(keeper.address, "c")
        stream = KeptStream(settings, reader, woken.set)
        running = asyncio.create_task(stream.run())

        async def two_have_come() -> bool:
            return len(stream.arrived) >= 2

        await until_async(two_have_come, "two parts")
        read = 0
        while True:
            for _ in range(200):  # so that more could come
                await asyncio.sleep(0)
            assert len(stream.arrived) <= 2
            if not stream.arrived:
                continue
            part = stream.arrived.popleft()
            assert not isinstance(part, FragmentError)
            if isinstance(part, Signal):
                break
            read += len(list(part))
            stream.taken()
        assert part is Signal.END
        assert read == 60
        stream.close()
        await running


async def test_a_keeper_that_has_lost_the_consumer_is_said_with_what_to_do() -> None:
    """As one that began anew without its directory."""
    with Keeper() as keeper:
        await asyncio.to_thread(keeper.send, numbers(0, 5), numbers(5, 5))
        settings = ChannelSource(
            logical="l", type="Channel", address=keeper.address, channel="c", consumer="q"
        )
        stream = KeptStream(settings, netchannel.ChannelReader(keeper.address, "c"), Event().set)
        running = asyncio.create_task(stream.run())

        async def has_come() -> bool:
            return bool(stream.arrived)

        await until_async(has_come, "messages")
        async with netchannel.ChannelReader(keeper.address, "c") as other:
            await other.forget("q")
        stream.release(netchannel.Position(stream.stream, 1))

        async def has_failed() -> bool:
            return isinstance(stream.arrived[-1], InputGone)

        await until_async(has_failed, "it has heard")
        assert "unknown consumer 'q'" in str(stream.arrived[-1])
        assert str(stream.arrived[-1]).endswith(
            "; restart the query from scratch, and let no other process acknowledge as consumer "
            "'q', or forget that consumer"
        )
        stream.close()
        await running
