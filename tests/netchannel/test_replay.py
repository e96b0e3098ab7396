"""Streams that are kept, and read any number of times: over real connections, on one loop."""

from __future__ import annotations

import asyncio
import random
import shutil
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pytest

from netchannel import (
    BufferPolicy,
    ChannelBroken,
    ChannelClosed,
    ChannelInUse,
    ChannelReader,
    ConsumerFenced,
    FaultPolicy,
    Heads,
    NetChannelError,
    Position,
    PositionLost,
    ReceiverServer,
    RetainPolicy,
    SchemaMismatch,
    SenderChannel,
    SenderServer,
    StreamReplaced,
    Timing,
)
from netchannel.core.replay.consumers import Consumers
from netchannel.core.replay.history import MemoryHistory
from netchannel.servers.client import Client
from netchannel.wire.messages import Hold, Watch
from tests.support.ports import free_addresses
from tests.support.waiting import until_async

QUICK = Timing(backoff_s=0.01, backoff_limit_s=0.05)


def batch(number: int, rows: int = 3) -> pa.RecordBatch:
    return pa.record_batch({"n": pa.array([number] * rows, pa.int64())})


class Place(NamedTuple):
    """Where a stream is kept: at a receiver, or at its sender; in memory, or in a directory."""

    at: str = "receiver"
    directory: Path | None = None


PLACES = ["receiver", "sender", "receiver, on disk", "sender, on disk"]


@pytest.fixture(params=PLACES)
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    at, _, disk = request.param.partition(", ")
    return Place(at, tmp_path if disk else None)


@asynccontextmanager
async def kept(
    bodies: list[bytes], place: Place | None = None, **retain: Any
) -> AsyncIterator[tuple[ChannelReader, Any]]:
    """A reader of a channel of ``bodies``, and who sends on it."""
    at, directory = place or Place()
    policy = RetainPolicy(directory=directory, **retain)
    async with ReceiverServer(timing=QUICK) as receiver, SenderServer("127.0.0.1:0", timing=QUICK) as sender:
        outbox: Any
        if at == "receiver":
            receiver.retain_channel("c", policy, codec="bytes")
            outbox = sender.register_channel("c", receiver.address, codec="bytes")
        else:
            outbox = sender.retain_channel("c", policy, codec="bytes")
        for body in bodies:
            await outbox.send(body, note=body[:2])
        to = receiver.address if at == "receiver" else sender.address
        async with ChannelReader(to, "c", codec="bytes", timing=QUICK) as reader:
            if bodies:
                await reader.heads(beyond=len(bodies) - 1)
            yield reader, outbox
            if at == "receiver":
                await outbox.close(grace=0)


async def read(reader: ChannelReader, first: Any, until: int) -> list[bytes]:
    return [bytes(body) async for body in reader.read(first, until)]


async def until(condition: Callable[[], bool], what: str) -> None:
    async def holds() -> bool:
        return condition()

    await until_async(holds, what)


async def oldest_is(reader: ChannelReader, number: int) -> bool:
    return (await reader.heads()).oldest == number


async def denied(outbox: SenderChannel) -> bool:
    return outbox.statistics().state == "denied"


async def begun_after(reader: ChannelReader, stream: str) -> Heads | None:
    heads = await reader.heads()
    return heads if heads.stream != stream else None


def hours_later(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ask for names from now on as if it were hours later."""
    hold: Callable[..., Any] = Consumers.hold

    def later(
        consumers: Consumers, name: str, holder: str, at: object, where: str, now: float, **asked: Any
    ) -> Any:
        return hold(consumers, name, holder, at, where, now + 7200, **asked)

    monkeypatch.setattr(Consumers, "hold", later)


def bodies(count: int, seed: int = 1) -> list[bytes]:
    draw = random.Random(seed)
    sizes = [0, 1, 7, 100, 1000, 40_000, 70_000, 2_000_000]
    weights = [1, 2, 2, 8, 8, 2, 2, 0.1]
    return [draw.randbytes(size) for size in draw.choices(sizes, weights, k=count)]


async def test_a_range_is_read_any_number_of_times(place: Place) -> None:
    """CH-REP-1: from a receiver, and from a sender that listens."""
    sent = bodies(400)
    draw = random.Random(2)
    async with kept(sent, place) as (reader, _):
        for _ in range(20):
            first = draw.randrange(len(sent))
            until = draw.randrange(first, len(sent) + 1)
            got = [message async for message in reader.read_messages(first, until)]
            assert [bytes(message.batch) for message in got] == sent[first:until]
            assert [message.sequence for message in got] == list(range(first, until))
            assert [message.note for message in got] == [body[:2] for body in sent[first:until]]


async def test_ranges_at_once_share_nothing(place: Place) -> None:
    """CH-REP-1."""
    sent = bodies(300, seed=3)
    async with kept(sent, place) as (reader, _):
        found = await asyncio.gather(*(read(reader, first, 300) for first in range(0, 300, 30)))
        assert found == [sent[first:] for first in range(0, 300, 30)]


async def test_heads_are_pushed_with_rows_and_bytes() -> None:
    """CH-REP-2."""
    async with SenderServer("127.0.0.1:0") as sender:
        outbox = sender.retain_channel("c", RetainPolicy())
        async with ChannelReader(sender.address, "c") as reader:
            first = await reader.heads()
            assert (first.head, first.rows, first.bytes, first.ended) == (0, 0, 0, False)
            assert first.stream == outbox.stream
            for number in range(10):
                await outbox.send(batch(number, rows=number))
                heads = await reader.heads(beyond=number)
                assert (heads.head, heads.rows) == (number + 1, sum(range(number + 1)))
            assert heads.bytes == sum(len(batch(n, n).serialize()) for n in range(10))
            assert reader.latest == heads
            assert await reader.schema() == batch(0).schema
            closing = asyncio.create_task(outbox.close())
            assert (await reader.heads(beyond=10)).ended
            await reader.ack("me", 10)
            assert (await closing).acknowledged == 10


async def test_locate_cuts_by_rows_and_bytes(place: Place) -> None:
    """CH-REP-2: exactly as a loop over all messages does."""
    sent = bodies(200, seed=4)
    draw = random.Random(5)
    async with kept(sent, place) as (reader, _):
        for _ in range(100):
            first = draw.randrange(len(sent) + 1)
            max_rows = draw.choice([None, 1, 2, 10, 1000])
            max_bytes = draw.choice([None, 1, 100, 5000, 100_000, 10_000_000])
            until, rows, size = first, 0, 0
            for body in sent[first:]:
                more = len(body) + len(body[:2])
                over = (max_rows and rows + 1 > max_rows) or (max_bytes and size + more > max_bytes)
                if over and until > first:
                    break
                until, rows, size = until + 1, rows + 1, size + more
            assert await reader.locate(first, max_rows=max_rows, max_bytes=max_bytes) == (until, rows, size)


async def test_below_what_is_acknowledged_nothing_is_read(place: Place) -> None:
    """CH-REP-3."""
    async with kept(bodies(100), place) as (reader, _):
        await reader.ack("me", 40)
        with pytest.raises(PositionLost, match=r"number 39 .* starts at 40"):
            await read(reader, 39, 50)
        with pytest.raises(PositionLost):
            await reader.locate(39, max_rows=1)
        assert await read(reader, 40, 100) == bodies(100)[40:]
        await until_async(lambda: oldest_is(reader, 40), "the heads have been pushed")


async def test_beyond_the_head_nothing_is_read(place: Place) -> None:
    async with kept(bodies(10), place) as (reader, _):
        with pytest.raises(NetChannelError, match=r"messages 5 to 11 .* 0 to 10 are kept"):
            await read(reader, 5, 11)
        with pytest.raises(ValueError, match="not a valid range"):
            await read(reader, 5, 4)
        assert await read(reader, 10, 10) == []


async def test_another_stream_is_not_read(place: Place) -> None:
    """CH-REP-3."""
    async with kept(bodies(10), place) as (reader, _):
        elsewhere = Position("another", 3)
        with pytest.raises(StreamReplaced, match="another"):
            await read(reader, elsewhere, 5)
        with pytest.raises(StreamReplaced):
            await reader.locate(elsewhere, max_rows=1)
        with pytest.raises(StreamReplaced):
            await reader.ack("me", elsewhere)
        here = Position((await reader.heads()).stream, 3)
        assert await read(reader, here, 5) == bodies(10)[3:5]


async def test_a_new_stream_waits_for_all_consumers_of_the_one_before() -> None:
    """CH-REP-3: and a reader of the old one hears of it."""
    async with ReceiverServer(timing=QUICK) as receiver, SenderServer(timing=QUICK) as sender:
        receiver.retain_channel("c", RetainPolicy(), codec="bytes")
        outbox = sender.register_channel("c", receiver.address, codec="bytes")
        async with ChannelReader(receiver.address, "c", codec="bytes", timing=QUICK) as reader:
            await reader.hold("me")
            await outbox.send_many(bodies(10))
            await outbox.close()
            old = await reader.heads(beyond=10)
            assert old.ended
            again = sender.register_channel("c", receiver.address, codec="bytes")
            await again.send(b"new")
            await until_async(lambda: denied(again), "the new stream is denied")
            assert await read(reader, 0, 10) == bodies(10)
            await reader.ack("me", 10)
            await again.flush()
            await until_async(lambda: begun_after(reader, old.stream), "the new stream has begun")
            new = await reader.heads(beyond=0)
            assert (new.oldest, new.head, new.ended) == (0, 1, False)
            with pytest.raises(StreamReplaced):
                await read(reader, Position(old.stream, 0), 10)
            assert await read(reader, 0, 1) == [b"new"]
            assert await reader.hold("me") == 0
            await again.close()


async def test_a_stream_waits_for_the_consumers_that_it_is_kept_for(place: Place) -> None:
    """CH-REP-4: before they have come for the first time; what they have not acknowledged is kept, and the end too."""
    async with kept(bodies(10), place, consumers=("early", "late")) as (reader, outbox):
        await reader.ack("early", 10)
        assert (await reader.heads()).oldest == 0
        closing = asyncio.ensure_future(outbox.close())
        assert (await reader.heads(beyond=10)).ended
        assert await reader.hold("late") == 0
        assert await read(reader, 0, 10) == bodies(10)
        if place.at == "sender":
            assert not closing.done()
        await reader.ack("late", 10)
        assert (await closing).acknowledged == 10


async def test_a_new_stream_does_not_replace_one_that_a_consumer_is_to_come_for() -> None:
    """Though nobody has ever come, and all has been sent; who is forgotten is not waited for."""
    async with ReceiverServer(timing=QUICK) as receiver, SenderServer(timing=QUICK) as sender:
        receiver.retain_channel("c", RetainPolicy(consumers=("me",)), codec="bytes")
        for number in range(2):
            outbox = sender.register_channel("c", receiver.address, codec="bytes")
            await outbox.send(b"%d" % number)
            if number:
                await until_async(lambda outbox=outbox: denied(outbox), "the new stream is denied")
                async with ChannelReader(receiver.address, "c", codec="bytes", timing=QUICK) as reader:
                    assert await read(reader, 0, 1) == [b"0"]
                    await reader.forget("me")
                    await outbox.flush()
            await outbox.close()


async def test_a_stream_without_an_end_is_replaced_once_it_is_read() -> None:
    """Where any stream is taken: what its producer left behind as it was killed is its consumers' first."""
    async with ReceiverServer(timing=QUICK) as receiver, SenderServer(timing=QUICK) as sender:
        fault = FaultPolicy(accept_new_stream=True)
        receiver.retain_channel("c", RetainPolicy(consumers=("me",)), codec="bytes", fault=fault)
        outbox = sender.register_channel("c", receiver.address, codec="bytes")
        await outbox.send_many(bodies(10))
        async with ChannelReader(receiver.address, "c", codec="bytes", timing=QUICK) as reader:
            old = await reader.heads(beyond=9)
            await outbox.detach()
            again = sender.register_channel("c", receiver.address, codec="bytes")
            await again.send(b"new")
            await until_async(lambda: denied(again), "the new stream is denied")
            await reader.ack("me", 9)
            assert await read(reader, 9, 10) == bodies(10)[9:]
            assert (await reader.heads()).stream == old.stream
            await reader.ack("me", Position(old.stream, 10))
            await again.flush()
            await until_async(lambda: begun_after(reader, old.stream), "the new stream has begun")
            assert await read(reader, 0, 1) == [b"new"]
            await reader.ack("me", 1)
            await again.close()


async def test_a_stream_that_was_replaced_says_what_takes_the_new_one() -> None:
    """A channel that retains has no position to be registered without."""
    async with ReceiverServer(timing=QUICK) as receiver, SenderServer(timing=QUICK) as sender:
        receiver.retain_channel("c", RetainPolicy(), codec="bytes")
        for stream in ("old", "new"):
            outbox = sender.register_channel("c", receiver.address, codec="bytes", stream=stream)
            await outbox.send(b"x")
            if stream == "old":
                await outbox.detach()
        async with ChannelReader(receiver.address, "c", codec="bytes", timing=QUICK) as reader:
            told = (await reader.heads(beyond=1)).failure
            assert told is not None
            assert "again, with FaultPolicy(accept_new_stream=True)" in told


async def test_what_is_kept_is_the_minimum_over_consumers(place: Place) -> None:
    """CH-REP-4."""
    async with kept(bodies(100), place) as (reader, _):
        assert await reader.hold("slow") == 0
        await reader.ack("fast", 80)
        assert await read(reader, 0, 100) == bodies(100)
        await reader.ack("slow", 30)
        assert await read(reader, 30, 100) == bodies(100)[30:]
        with pytest.raises(PositionLost):
            await read(reader, 29, 100)
        await reader.forget("slow")
        with pytest.raises(PositionLost):
            await read(reader, 79, 100)
        assert await reader.hold("late") == 80


async def test_a_lease_that_has_expired_frees_nothing_and_fences(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """CH-REP-4."""
    async with kept(bodies(100), place, lease_s=3600.0) as (mine, _):
        async with ChannelReader(mine.to, "c", codec="bytes", timing=QUICK) as theirs:
            assert await theirs.hold("name", holder="theirs") == 0
            await theirs.ack("name", 10)
            with pytest.raises(ChannelInUse, match=r"'theirs'.*is connected"):
                await mine.hold("name")
            with pytest.raises(ConsumerFenced, match="theirs"):
                await mine.ack("name", 20)
        with pytest.raises(ChannelInUse, match=r"for 3[56]\d\d\.\d s"):
            await mine.hold("name")
        hours_later(monkeypatch)
        assert await mine.hold("name", holder="mine") == 10
        assert await read(mine, 10, 100) == bodies(100)[10:]
        async with ChannelReader(mine.to, "c", codec="bytes", timing=QUICK) as back:
            back._held["name"] = "theirs"
            with pytest.raises(ConsumerFenced, match="'mine'"):
                await back.ack("name", 30)
            with pytest.raises(ConsumerFenced):
                await back.ack("name", 30)
        await mine.ack("name", 50)


async def test_a_holder_that_comes_back_under_its_name_has_it_at_once() -> None:
    async with kept(bodies(10)) as (reader, _):
        async with ChannelReader(reader.to, "c", codec="bytes", timing=QUICK) as one:
            await one.hold("name", holder="job 7")
            await one.ack("name", 3)
        async with ChannelReader(reader.to, "c", codec="bytes", timing=QUICK) as two:
            assert await two.hold("name", holder="job 7") == 3


async def test_messages_are_found_by_when_they_were_sent(place: Place) -> None:
    async with kept(bodies(5), place) as (reader, outbox):
        messages = [each async for each in reader.read_messages(0, 5)]
        await until(lambda: time.time_ns() // 1000 > messages[-1].timestamp, "the clock goes on")
        between = datetime.now(UTC)
        await until(lambda: datetime.now(UTC) > between, "the clock goes on")
        for body in bodies(3):
            await outbox.send(body)
        await reader.heads(beyond=7)
        assert await reader.moment(between) == (outbox.stream, 5, 5)
        assert await reader.moment(between - timedelta(days=1)) == (outbox.stream, 0, 0)
        assert await reader.moment(between + timedelta(days=1)) == (outbox.stream, 8, 8)
        assert await reader.moment(datetime(1, 1, 1, tzinfo=UTC)) == (outbox.stream, 0, 0)
        with pytest.raises(ValueError, match="has no time zone"):
            await reader.moment(datetime(2026, 1, 1))
        await reader.ack("me", 6)
        assert await reader.moment(between) == (outbox.stream, 6, 6)


async def test_whoever_begins_afresh_gets_no_name_that_another_has_used(place: Place) -> None:
    """As long as nothing was acknowledged under it, a name is nobody's work; then it is, also over a restart."""
    async with kept(bodies(10), place, lease_s=0.0) as (reader, _):
        async with ChannelReader(reader.to, "c", codec="bytes", timing=QUICK) as one:
            await one.hold("name", holder="first", fresh=True)
        await reader.hold("name", holder="second", fresh=True)
        await reader.ack("name", 3)
        assert await reader.hold("name", holder="second", fresh=True) == 3
        async with ChannelReader(reader.to, "c", codec="bytes", timing=QUICK) as other:
            with pytest.raises(ConsumerFenced, match=r"'second'.* acknowledged everything below 3: .*forget"):
                await other.hold("name", holder="third", fresh=True)
            await other.forget("name")
            assert await other.hold("name", holder="third", fresh=True) == 3


async def test_a_consumer_that_is_away_is_named_where_it_holds_the_producer_back(
    place: Place, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once, with what to do; and forgetting it is what helps."""
    monkeypatch.setattr("netchannel.core.replay.retained_service.ABSENT_S", 0.1)

    def said(why: str) -> list[str]:
        return [text for each in caplog.records if why in (text := each.getMessage())]

    async with kept([], place, max_bytes=100_000, lease_s=0.0) as (reader, outbox):

        async def produce() -> None:
            for number in range(200):
                await outbox.send(bytes(10_000) + number.to_bytes(1))

        producing = asyncio.create_task(produce())
        await until(lambda: said("no consumer has connected yet"), "it is full")
        async with ChannelReader(reader.to, "c", codec="bytes", timing=QUICK) as gone:
            await gone.hold("gone")
            await gone.ack("gone", 2)
        text = "consumer 'gone' has acknowledged everything below 2 of"
        await until(lambda: said(text), "it is said who is away")
        await reader.hold("here")
        await reader.forget("gone")
        for number in range(200):
            await reader.heads(beyond=number)
            await reader.ack("here", number + 1)
        await producing
        assert len(said(text)) == len(said("no consumer has connected yet")) == 1
        assert "channel c is full with" in said(text)[0]
        assert "ChannelReader.forget('gone')" in said(text)[0]


async def test_a_hold_that_is_cancelled_locks_nobody_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """It has the name all the same: who asked can ask again, and on closing gives it back."""
    async with kept([b"one"], lease_s=0.05) as (other, _), Client() as client:
        reader = ChannelReader.from_client(client, other.to, "c", codec="bytes", fault=None)
        unanswered: list[Any] = []
        async with reader:
            await reader.heads()
            with monkeypatch.context() as patched:
                patched.setattr(MemoryHistory, "settle", lambda self, then, now: unanswered.append(then))
                for count, ask in enumerate((reader.hold("me"), reader.ack("you", 0)), 1):
                    asking = asyncio.ensure_future(ask)
                    await until(lambda count=count: len(unanswered) == count, "the name is taken")
                    asking.cancel()
                    await asyncio.wait([asking])
            for name in ("me", "you"):
                with pytest.raises(ChannelInUse):
                    await other.hold(name)
                await reader.ack(name, 0)
            with monkeypatch.context() as patched:
                patched.setattr(MemoryHistory, "settle", lambda self, then, now: unanswered.append(then))
                asking = asyncio.ensure_future(reader.hold("third"))
                await until(lambda: len(unanswered) == 3, "the name is taken")
                asking.cancel()
                await asyncio.wait([asking])

        async def taken(name: str) -> bool:
            try:
                return await other.hold(name) == 0
            except ChannelInUse:
                return False

        for name in ("me", "you", "third"):
            await until_async(lambda name=name: taken(name), "the lease has expired")


async def test_a_name_is_renewed_by_one_question_however_long_the_receiver_is_away(free_address: str) -> None:
    lost = 0
    async with ChannelReader(free_address, "c", codec="bytes", timing=QUICK) as reader:
        async with SenderServer(free_address, timing=QUICK) as sender:
            sender.retain_channel("c", RetainPolicy(), codec="bytes")
            for name in ("me", "you"):
                await reader.hold(name)
        renew = reader._channel.on_lost

        def count(reason: str, now: float) -> None:
            nonlocal lost
            lost += 1
            renew(reason, now)

        reader._channel.on_lost = count
        await until(lambda: lost >= 5, "it was dialed in vain")
        assert [question.kind for question in reader._channel.questions.values()] == [Watch, Hold, Hold]
        async with SenderServer(free_address, timing=QUICK) as sender:
            sender.retain_channel("c", RetainPolicy(), codec="bytes")
            await until(lambda: len(reader._fenced) == 2, "both questions are answered")
            assert not reader._renewing
            with pytest.raises(ConsumerFenced, match="forgotten"):
                await reader.ack("me", 0)


async def test_a_full_history_holds_the_producer_back(place: Place) -> None:
    """CH-REP-5: and nothing is lost."""
    body = bytes(50_000)
    at, directory = place
    policy = RetainPolicy(max_bytes=1_000_000, directory=directory)
    async with ReceiverServer(timing=QUICK) as receiver, SenderServer("127.0.0.1:0", timing=QUICK) as sender:
        to = receiver.address if at == "receiver" else sender.address
        outbox: Any
        if at == "receiver":
            buffer = BufferPolicy(max_bytes=500_000)
            receiver.retain_channel("c", policy, codec="bytes", buffer=buffer)
            outbox = sender.register_channel("c", to, codec="bytes", buffer=buffer)
        else:
            outbox = sender.retain_channel("c", policy, codec="bytes")

        async def produce() -> None:
            for number in range(400):
                await outbox.send(body + number.to_bytes(4, "little"))

        producing = asyncio.create_task(produce())
        async with ChannelReader(to, "c", codec="bytes", timing=QUICK) as reader:
            await reader.hold("me")
            heads = await reader.heads(beyond=15)
            await asyncio.wait(
                {producing}, timeout=1.0
            )  # many times as long as all of it takes where nothing stops it
            assert not producing.done()
            assert outbox.position < 100
            assert heads.bytes <= 1_000_000
            done = 0
            while done < 400:
                heads = await reader.heads(beyond=done)
                for number, got in enumerate(await read(reader, done, heads.head), done):
                    assert got[-4:] == number.to_bytes(4, "little")
                done = heads.head
                await reader.ack("me", done)
            await producing
            await outbox.close()


async def test_an_abort_ends_the_stream_with_its_reason_and_all_before_it(place: Place) -> None:
    async with kept(bodies(20), place) as (reader, outbox):
        await outbox.abort("out of paper")
        heads = await reader.heads(beyond=20)
        assert (heads.ended, heads.failure, heads.head) == (True, "out of paper", 20)
        assert await read(reader, 0, 20) == bodies(20)


async def test_a_producer_that_leaves_without_closing_says_so() -> None:
    async with SenderServer("127.0.0.1:0") as sender:
        outbox = sender.retain_channel("c", RetainPolicy(), codec="bytes")
        await outbox.send(b"one")
        async with ChannelReader(sender.address, "c", codec="bytes") as reader:
            await reader.heads(beyond=0)
            await sender.__aexit__(None, None, None)
            heads = await reader.heads(beyond=5)
            assert heads.failure == "producer left without closing"


async def test_arrow_batches_with_dictionaries() -> None:
    words = pa.array(["a", "b", "a"]).dictionary_encode()
    others = pa.array(["x", "y", "x"]).dictionary_encode()
    batches = [pa.record_batch({"w": words if n // 5 % 2 else others}) for n in range(40)]
    async with ReceiverServer() as receiver, SenderServer() as sender:
        receiver.retain_channel("c", RetainPolicy())
        outbox = sender.register_channel("c", receiver.address)
        await outbox.send_many(batches)
        await outbox.flush()
        async with ChannelReader(receiver.address, "c") as reader:
            heads = await reader.heads(beyond=39)
            assert heads.rows == 120
            for first, until in ((0, 40), (13, 17), (7, 8), (4, 26)):
                got = [found async for found in reader.read(first, until)]
                assert got == batches[first:until]
        await outbox.close()


async def test_another_codec_is_refused() -> None:
    async with kept(bodies(1)) as (reader, _), ChannelReader(reader.to, "c", timing=QUICK) as other:
        with pytest.raises(SchemaMismatch, match="'bytes'"):
            await other.heads()
        with pytest.raises(SchemaMismatch):
            await other.hold("me")


async def test_an_ordinary_channel_is_not_read() -> None:
    async with ReceiverServer() as receiver:
        receiver.register_channel("c")
        async with ChannelReader(receiver.address, "c") as reader:
            with pytest.raises(NetChannelError, match="retain_channel"):
                await reader.heads()


async def test_nobody_there_is_waited_for_and_given_up_by_the_policy(free_address: str) -> None:
    async with ChannelReader(free_address, "c", fault=FaultPolicy(retry=0.3), timing=QUICK) as reader:
        with pytest.raises(ChannelBroken, match=r"gave no answer within 0.3 s"):
            await reader.heads()


async def test_a_reader_that_is_closed_says_so() -> None:
    async with kept(bodies(1)) as (reader, _):
        pass
    with pytest.raises(ChannelClosed):
        await reader.heads()


async def test_a_reading_that_is_given_up_leaves_the_others() -> None:
    sent = [bytes(100_000)] * 300
    async with kept(sent) as (reader, _):
        async for _body in reader.read(0, 300):
            break
        assert len(await read(reader, 0, 300)) == 300


async def test_statistics_tell_what_is_kept_and_who_asks(place: Place) -> None:
    """CH-OBS-1."""
    async with ReceiverServer(timing=QUICK) as receiver, SenderServer("127.0.0.1:0", timing=QUICK) as sender:
        policy = RetainPolicy(directory=place.directory)
        outbox: Any
        if place.at == "receiver":
            receiver.retain_channel("c", policy, codec="bytes")
            outbox = sender.register_channel("c", receiver.address, codec="bytes")
        else:
            outbox = sender.retain_channel("c", policy, codec="bytes")
        await outbox.send_many([b"x" * 10] * 100)
        server: Any = receiver if place.at == "receiver" else sender
        async with ChannelReader(server.address, "c", codec="bytes", timing=QUICK) as reader:
            await reader.heads(beyond=99)
            await reader.ack("me", 30)
            statistics = server.statistics()
            (channel,) = statistics.channels.values()
            assert (channel.received, channel.acknowledged, channel.bytes) == (100, 30, 1000)
            assert channel.buffered_messages == 70
            assert (channel.disk_bytes > 1000) is (place.directory is not None)
            assert [peer.channels for peer in statistics.peers if peer.name.startswith("client")] == [1]
        await outbox.close(grace=0)


async def test_a_schema_that_is_too_large_for_heads_is_read() -> None:
    """CH-REP-2: of 2 MiB."""
    schema = pa.schema([pa.field("n", pa.int64(), metadata={"about": "x" * (2 << 20)})])
    async with SenderServer("127.0.0.1:0") as sender:
        outbox = sender.retain_channel("c", RetainPolicy(), schema=schema)
        await outbox.send(pa.record_batch([pa.array([1, 2, 3])], schema=schema))
        async with ChannelReader(sender.address, "c") as reader:
            found = await reader.schema()
            assert found.equals(schema, check_metadata=True)
            assert [each.num_rows async for each in reader.read(0, 1)] == [3]


@pytest.mark.parametrize(
    "ask",
    [
        lambda reader: reader.locate(0, max_rows=1 << 64),
        lambda reader: reader.locate(0, max_rows=1.5),
        lambda reader: reader.locate(1 << 64),
        lambda reader: reader.locate(Position("x" * 5000, 0)),
        lambda reader: reader.locate(Position("here", -1)),
        lambda reader: reader.begin(0, 1 << 64),
        lambda reader: reader.begin(0, 2.0),
        lambda reader: reader.begin(Position("here", 1 << 64), 1 << 64),
        lambda reader: reader.begin(Position("\ud800", 0), 1),
        lambda reader: reader.hold("x" * 5000),
        lambda reader: reader.hold("me", holder="\ud800"),
        lambda reader: reader.hold("known", holder="x" * 300),
        lambda reader: reader.ack("known", 1 << 64),
        lambda reader: reader.forget(None),
    ],
)
async def test_what_cannot_be_asked_is_refused_and_harms_nobody(ask: Any) -> None:
    """A question that no peer takes is not asked: again and again it would close the connection of all others."""
    async with ReceiverServer("127.0.0.1:0") as receiver, SenderServer() as sender:
        receiver.retain_channel("c", RetainPolicy(), codec="bytes")
        outbox = sender.register_channel("c", to=receiver.address, codec="bytes")
        await outbox.send_many([b"a", b"b"])
        async with ChannelReader(receiver.address, "c", codec="bytes", timing=QUICK) as reader:
            await reader.heads(beyond=1)
            await reader.hold("known")
            before = reader._channel.peer.control
            with pytest.raises(
                (TypeError, ValueError), match=r"number|invalid request|characters|expected an? "
            ):
                await ask(reader)
            assert [bytes(message) async for message in reader.read(0, 2)] == [b"a", b"b"]
            assert reader._channel.peer.control is before  # no connection was lost meanwhile
            assert len(reader._channel.questions) == 1  # the watch


async def test_a_directory_that_cannot_be_is_refused_at_once(tmp_path: Path) -> None:
    """Who keeps a stream may never look again: what is wrong is said where the channel is registered."""
    (tmp_path / "file").touch()
    async with ReceiverServer("127.0.0.1:0") as receiver, SenderServer("127.0.0.1:0") as sender:
        for server in (receiver, sender):
            with pytest.raises(ChannelBroken, match=r"opening .*file"):
                server.retain_channel("c", RetainPolicy(directory=tmp_path / "file"))
        receiver.retain_channel("c", RetainPolicy(directory=tmp_path / "fine"))


async def test_a_directory_that_goes_away_is_told_to_all(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Its owner by a warning, the sender by the refusal, clients by an error: nobody waits without a reason."""
    async with ReceiverServer("127.0.0.1:0", timing=QUICK) as receiver, SenderServer(timing=QUICK) as sender:
        receiver.retain_channel("c", RetainPolicy(directory=tmp_path / "d"), codec="bytes")
        shutil.rmtree(tmp_path / "d")
        (tmp_path / "d").touch()
        outbox = sender.register_channel(
            "c", to=receiver.address, codec="bytes", fault=FaultPolicy(retry=0.5)
        )
        await outbox.send(b"a")
        with pytest.raises(ChannelBroken, match="not registered there any more: opening"):
            await outbox.flush()
        assert "channel c retains no more messages: opening" in caplog.text
        async with ChannelReader(receiver.address, "c", codec="bytes", timing=QUICK) as reader:
            with pytest.raises(ChannelBroken, match="channel 'c' has no stream: opening"):
                await reader.hold("me")


async def test_a_reader_is_closed_on_its_own_loop() -> None:
    """From elsewhere it is refused, and goes on."""
    async with ReceiverServer("127.0.0.1:0") as receiver:
        receiver.retain_channel("c", RetainPolicy(), codec="bytes")
        async with ChannelReader(receiver.address, "c", codec="bytes") as reader:
            with pytest.raises(NetChannelError, match="another event loop"):
                await asyncio.to_thread(lambda: asyncio.run(reader.close()))
            await reader.hold("me")


@pytest.mark.parametrize("how", ["close", "detach"])
async def test_a_reader_that_is_connected_sees_a_channel_that_is_registered_again(
    how: str, tmp_path: Path
) -> None:
    policy = RetainPolicy(directory=tmp_path)
    async with (
        SenderServer("127.0.0.1:0", timing=QUICK) as sender,
        ChannelReader(sender.address, "c", codec="bytes", timing=QUICK) as reader,
    ):
        outbox = sender.retain_channel("c", policy, codec="bytes")
        await outbox.send(b"a")
        assert (await reader.heads()).stream == outbox.stream
        await reader.ack("reader", 1)
        await getattr(outbox, how)()
        again = sender.retain_channel("c", policy, codec="bytes")
        assert (again.stream == outbox.stream) == (how == "detach")
        await again.send(b"b")

        async def seen() -> bool:
            return reader.latest is not None and reader.latest[:3] == (
                again.stream,
                again.position - 1,
                again.position,
            )

        await until_async(seen, "the heads of the channel that is registered again")


async def test_a_reader_gives_up_on_a_channel_that_is_not_registered_any_more(tmp_path: Path) -> None:
    async with SenderServer("127.0.0.1:0", timing=QUICK) as sender:
        outbox = sender.retain_channel("c", RetainPolicy(directory=tmp_path), codec="bytes")
        await outbox.send(b"a")
        async with ChannelReader(
            sender.address, "c", codec="bytes", fault=FaultPolicy(retry=0.2), timing=QUICK
        ) as reader:
            await reader.heads()
            await outbox.detach()
            await until_async(lambda: asyncio.sleep(0, reader.error), "the reader's end")
            with pytest.raises(ChannelBroken, match=r"within 0.2 s: .* is not registered there"):
                await reader.heads()


async def test_a_stream_that_comes_back_with_another_schema_ends_its_readers_and_no_others() -> None:
    """All of them share a connection."""
    (address,) = free_addresses(1)
    async with Client(timing=QUICK) as client:

        def reading(channel: str) -> ChannelReader:
            return ChannelReader.from_client(
                client, address, channel, codec="arrow", fault=FaultPolicy(retry=20.0)
            )

        async with reading("c") as reader, reading("other") as other:
            async with SenderServer(address, timing=QUICK) as sender:
                await sender.retain_channel("c", RetainPolicy(), stream="s").send(batch(1))
                assert (await reader.heads()).head == 1
            async with SenderServer(address, timing=QUICK) as sender:
                changed = pa.record_batch({"n": ["text"]})
                await sender.retain_channel("c", RetainPolicy(), stream="s").send(changed)
                await sender.retain_channel("other", RetainPolicy(), stream="t").send(batch(1))
                async with asyncio.timeout(60):
                    assert (await other.heads()).stream == "t"
                    with pytest.raises(SchemaMismatch, match=r"stream 's' has changed: .*string.*int64"):
                        await reader.heads(beyond=1)
