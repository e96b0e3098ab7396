"""A kept channel as a source: by streams and numbers, released by whichever reader is alive; no stream is skipped."""

from __future__ import annotations

import asyncio
import socket
from contextlib import ExitStack, asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

import netchannel
from nebuli.ingestion.definition import ChannelOrigin
from nebuli.ingestion.errors import AddressGone, SourceAway, SourceUnusable
from nebuli.ingestion.message_addresses import PAYLOAD
from nebuli.ingestion.readers import kept_channel
from nebuli.ingestion.readers.kept_channel import KeptChannel
from nebuli.ingestion.testing import Expected, ReaderConformance
from tests.support.keeper import Keeper, numbers

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping

    from nebuli.ingestion.message_addresses import Addresses, Messages
    from nebuli.ingestion.source_reader import SourceReader


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept_channel, "SILENCE_S", 1.0)
    monkeypatch.setattr(kept_channel, "LOOK_S", 0.02)


@pytest.fixture
def keeper() -> Iterator[Keeper]:
    with Keeper() as keeper:
        yield keeper


def channel_of(keeper: Keeper, **keys: Any) -> KeptChannel:
    keys = {"address": keeper.address, "channel": "c", "consumer": "it", **keys}
    return KeptChannel(ChannelOrigin(type="Channel", **keys), name="orders")


@asynccontextmanager
async def opened(
    keeper: Keeper, at: Mapping[str, int] | None = None, **keys: Any
) -> AsyncIterator[KeptChannel]:
    reader = channel_of(keeper, **keys)
    try:
        await reader.open(at or {})
        yield reader
    finally:
        await reader.close()


async def following(reader: KeptChannel) -> Messages:
    return await asyncio.wait_for(reader.next(), 20)


async def oldest_is(keeper: Keeper, number: int) -> None:
    async with asyncio.timeout(20):
        while keeper.heads.oldest != number:  # noqa: ASYNC110 - it is another thread's
            await asyncio.sleep(0.005)


def free_address() -> str:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{free.getsockname()[1]}"


class TestKeptChannel(ReaderConformance):
    """Of two columns; some messages have several rows, and some none."""

    @pytest.fixture
    def make(self, keeper: Keeper) -> Callable[[], SourceReader]:
        return partial(channel_of, keeper)

    @pytest.fixture
    def add(self, keeper: Keeper) -> Callable[[], Awaitable[list[Expected]]]:
        sent = 0

        async def add() -> list[Expected]:
            nonlocal sent
            expected = []
            for rows in (1, 3, 0, 1):
                await asyncio.to_thread(keeper.send, numbers(sent * 10, rows))
                part = keeper.heads.stream
                expected += [Expected(part, sent, {"n": sent * 10 + row}) for row in range(rows)]
                sent += 1
            return expected

        return add

    @pytest.fixture
    def trim(self, keeper: Keeper) -> Callable[[], Awaitable[Addresses]]:
        async def trim() -> Addresses:
            stream = keeper.heads.stream
            async with opened(keeper, {stream: 2}) as reader:
                await reader.release({stream: 3})
                await oldest_is(keeper, 3)
            return {stream: 1}

        return trim

    @pytest.fixture
    def away(self, keeper: Keeper) -> list[Callable[[], SourceReader]]:
        return [
            partial(channel_of, keeper, address=free_address()),
            partial(channel_of, keeper, channel="none"),
            partial(channel_of, keeper, secret={"file": "/none"}),
        ]


async def test_a_channel_of_bytes_gives_payloads() -> None:
    with Keeper(codec="bytes") as keeper:
        keeper.send(b"one", b"two")
        async with opened(keeper) as reader:
            assert reader.schema.equals(pa.schema([(PAYLOAD, pa.binary())]))
            messages = await following(reader)
    assert messages.rows.to_pylist() == [{PAYLOAD: b"one"}, {PAYLOAD: b"two"}]
    assert messages.addresses.tolist() == [0, 1]


async def test_the_next_stream_is_the_next_part(keeper: Keeper) -> None:
    """Once the one before was read to its end and released; also for a reader that comes then."""
    keeper.send(numbers(0, 2), numbers(2, 2))
    first = keeper.heads.stream
    await asyncio.to_thread(keeper.end)
    async with opened(keeper) as reader:
        assert (await following(reader)).upper == 2
        await reader.release({first: 2})
        await asyncio.to_thread(keeper.send, numbers(4, 1))
        messages = await following(reader)
        assert (messages.part, messages.lower) == (keeper.heads.stream, 0)
        assert messages.part != first
        assert messages.rows.to_pylist() == [{"n": 4}]
        assert await reader.ends() == {first: 2, messages.part: 1}
    async with opened(keeper, {first: 2}) as reader:
        assert (await following(reader)).rows.to_pylist() == [{"n": 4}]
    async with opened(keeper, {first: 2, messages.part: 1}) as reader:
        assert await reader.ends() == {first: 2, messages.part: 1}


async def test_a_producer_that_was_killed_is_followed_by_the_next_one(keeper: Keeper) -> None:
    """Its stream has no end; a new reader goes on with the other one, as all that there was is released then."""
    keeper.send(numbers(0, 1))
    first = keeper.heads.stream
    async with opened(keeper) as reader:
        await following(reader)
        await asyncio.to_thread(keeper.leave)
        sending = asyncio.create_task(asyncio.to_thread(keeper.send, numbers(1, 1)))
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(reader.next(), 0.2)
        await reader.release({first: 1})
        await sending
        with pytest.raises(
            SourceAway, match=f"stream {first} was read up to message 1, but its end was not seen, and"
        ):
            await following(reader)
    async with opened(keeper, {first: 1}) as reader:
        assert (await following(reader)).rows.to_pylist() == [{"n": 1}]


async def test_a_stream_that_was_replaced_before_its_end_is_missed(keeper: Keeper) -> None:
    """ST-ING-6: by a reader that is slower than the one that released it, and where nothing was kept for it."""
    keeper.send(numbers(0, 1), numbers(1, 1))
    first = keeper.heads.stream
    async with opened(keeper) as slow, opened(keeper) as quick:
        await following(slow)
        keeper.send(numbers(2, 1))
        assert (await following(quick)).upper >= 2
        await asyncio.to_thread(keeper.leave)
        await asyncio.sleep(0.1)  # what there is has been told
        await quick.release({first: 3})
        await asyncio.to_thread(keeper.send, numbers(3, 1))
        with pytest.raises(
            (AddressGone, SourceAway), match=f"{first}"
        ):  # it may have heard of message 2, or not
            await following(slow)
    async with netchannel.ChannelReader(keeper.address, "c") as other:
        await other.forget("it")
    with pytest.raises(
        AddressGone, match=f"message 3 of stream {first}; it now has stream {keeper.heads.stream}"
    ):
        async with opened(keeper, {first: 3}):
            pass


async def test_a_keeper_that_has_lost_all_is_not_read_on(keeper: Keeper) -> None:
    """ST-ING-6: what it kept in memory goes with it."""
    keeper.send(numbers(0, 1), numbers(1, 1))
    first = keeper.heads.stream
    async with opened(keeper) as reader:
        await following(reader)
        await asyncio.to_thread(keeper.leave)
        await asyncio.to_thread(keeper.restart)
        await asyncio.to_thread(keeper.send, numbers(2, 1))
        with pytest.raises((AddressGone, SourceAway)):
            await following(reader)
    with pytest.raises(AddressGone, match="may have had other streams in between"):
        async with opened(keeper, {first: 2}):
            pass
    with pytest.raises(AddressGone, match=r"message 5 of stream .* but the stream has only 1"):
        async with opened(keeper, {keeper.heads.stream: 5}):
            pass


async def test_whichever_reader_is_alive_releases() -> None:
    """A lease is not waited for, which is long here."""
    with Keeper(lease_s=600.0) as keeper:
        keeper.send(numbers(0, 1))
        keeper.send(numbers(1, 1))
        keeper.send(numbers(2, 1))
        stream = keeper.heads.stream
        async with opened(keeper) as second:
            async with opened(keeper) as first:
                await first.release({stream: 1})
                await oldest_is(keeper, 1)
                await second.release({stream: 2})
                await oldest_is(keeper, 2)
            await second.release({stream: 1})
            await second.release({stream: 3})
            await oldest_is(keeper, 3)


async def test_nothing_is_freed_before_it_is_released(keeper: Keeper) -> None:
    """Other consumers free nothing that this one has not released."""
    keeper.send(numbers(0, 1))
    async with opened(keeper), netchannel.ChannelReader(keeper.address, "c") as other:
        await other.ack("other", 1)
        assert keeper.heads.oldest == 0
    async with opened(keeper) as reader:
        assert (await following(reader)).lower == 0


async def test_a_name_that_somebody_else_has_is_left_to_him(
    keeper: Keeper, caplog: pytest.LogCaptureFixture
) -> None:
    """It reads all the same, says so once, and releases when the name is free."""
    keeper.send(numbers(0, 1))
    stream = keeper.heads.stream
    async with netchannel.ChannelReader(keeper.address, "c") as other:
        await other.hold("it", holder="somebody")
        async with opened(keeper) as reader:
            assert (await following(reader)).upper == 1
            await reader.release({stream: 1})
            await reader.release({stream: 1})
            assert keeper.heads.oldest == 0
            assert len([each for each in caplog.messages if "'somebody'" in each]) == 1
            await other.close()
            async with asyncio.timeout(20):
                while keeper.heads.oldest == 0:
                    await reader.release({stream: 1})
                    await asyncio.sleep(0.02)


async def test_a_source_that_is_over_is_forgotten(keeper: Keeper) -> None:
    """By a reader that was never opened; then others free what it would have had."""
    keeper.send(numbers(0, 1))
    async with opened(keeper) as reader, netchannel.ChannelReader(keeper.address, "c") as other:
        await other.ack("other", 1)
        await reader.close()
        forgetting = channel_of(keeper)
        await forgetting.forget()
        await forgetting.close()
        await other.ack("other", 1)
        await oldest_is(keeper, 1)


async def test_a_producer_that_has_failed_is_told_of_and_the_next_one_waited_for(
    keeper: Keeper, caplog: pytest.LogCaptureFixture
) -> None:
    keeper.send(numbers(0, 1))
    first = keeper.heads.stream
    async with opened(keeper) as reader:
        await following(reader)
        await asyncio.to_thread(keeper.abort, "no more\npaper")
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(reader.next(), 0.5)
        assert len([each for each in caplog.messages if "no more; paper" in each]) == 1
        await reader.release({first: 1})
        await asyncio.to_thread(keeper.send, numbers(1, 1))
        with pytest.raises(SourceAway, match=r"stream .* its end was not seen"):
            await following(reader)
    async with opened(keeper, {first: 1}) as reader:
        assert (await following(reader)).rows.to_pylist() == [{"n": 1}]


async def test_a_keeper_that_goes_is_away() -> None:
    with ExitStack() as stack:
        keeper = stack.enter_context(Keeper())
        keeper.send(numbers(0, 1))
        async with opened(keeper) as reader:
            await following(reader)
            await asyncio.to_thread(stack.close)
            with pytest.raises(SourceAway, match=r"orders \(channel 'c' at"):
                await following(reader)


async def test_what_cannot_be_ingested_is_refused(keeper: Keeper) -> None:
    """Changes with weights; another schema in the next stream."""
    keeper.send(numbers(0, 1))
    first = keeper.heads.stream
    await asyncio.to_thread(keeper.end)
    async with opened(keeper) as reader:
        await following(reader)
        await reader.release({first: 1})
        weighted = pa.record_batch({"n": [1], "_weight": [1]})
        await asyncio.to_thread(keeper.send, weighted)
        with pytest.raises(
            SourceUnusable, match=r"has the columns .*_weight.* all earlier messages have the columns"
        ):
            await following(reader)
    with pytest.raises(SourceUnusable, match="a column _weight, so it contains changes"):
        async with opened(keeper, {first: 1}):
            pass


async def test_a_wrong_secret_is_said(tmp_path: Any) -> None:
    (tmp_path / "secret").write_text("wrong", "utf-8")
    with Keeper(secret="right") as keeper, pytest.raises(SourceUnusable, match="secret"):
        async with opened(keeper, secret={"file": str(tmp_path / "secret")}):
            pass
