"""The ends of fragments on channels, in one process: what they acknowledge, and what they do not take."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import AsyncIterator
from contextlib import suppress
from functools import partial
from itertools import pairwise
from typing import Any

import pyarrow as pa
import pytest

import netchannel
from nebuli.connectors.endpoints import Signal
from nebuli.connectors.errors import FragmentError, InputLost
from nebuli.connectors.network import HAS_ALL, ChannelSink, NetworkChannelSource
from nebuli.connectors.positions import END, Lineage, Span, as_note, of_note
from nebuli.connectors.provider import Provider
from nebuli.dataflow import zset
from nebuli.dataflow.rows import MAX_BATCH_ROWS
from nebuli.free.neighbour_notices import fail_output
from nebuli.free.runner import FragmentRunner
from nebuli.rpc.status import FragmentState
from placement.plan import Fragment, NetworkSink, NetworkSource
from tests.support.waiting import until_async
from topology import BufferSettings, Column

COLUMNS = (Column(name="n", type="int64"),)


class Edge:
    def __init__(
        self,
        receiver: netchannel.ReceiverServer,
        sender: netchannel.SenderServer,
        lineage: Lineage | None,
        **keys: Any,
    ) -> None:
        operator = NetworkSource(id="in", channel="c", address=receiver.address, schema=COLUMNS, **keys)
        self.source = NetworkChannelSource(operator, receiver, lambda: None, lineage)
        self.outbox = sender.register_channel("c", to=receiver.address)

    async def send(self, begin: int, end: int) -> None:
        rows = 0 if end == END else end - begin
        batch = zset.insertions(pa.record_batch({"n": pa.array(range(rows), pa.int64())}))
        await self.outbox.send(batch, as_note(Span(begin, end)))

    async def poll(self) -> pa.RecordBatch | Signal:
        async def something() -> list[pa.RecordBatch | Signal]:
            found = self.source.poll()
            return [] if found is Signal.LATER else [found]

        return (await until_async(something, "something to read"))[0]

    async def poll_times(self, count: int) -> None:
        for _ in range(count):
            await self.poll()

    async def until_acknowledged(self, count: int) -> None:
        async def so_many() -> bool:
            return self.outbox.statistics().acknowledged == count

        await until_async(so_many, f"{count} messages are acknowledged")

    async def until_received(self, count: int) -> None:
        async def so_many() -> bool:
            return self.outbox.statistics().received == count

        await until_async(so_many, f"{count} messages are received")


async def _is(what: bool) -> bool:
    return what


@pytest.fixture
async def servers() -> AsyncIterator[tuple[netchannel.ReceiverServer, netchannel.SenderServer]]:
    async with netchannel.ReceiverServer() as receiver, netchannel.SenderServer() as sender:
        yield receiver, sender


async def test_what_was_made_of_an_input_is_acknowledged_before_it(servers) -> None:
    """DP-7: nothing is acknowledged when it is received, or read; only when all output made from it is."""
    lineage = Lineage()
    edge = Edge(*servers, lineage)
    for begin, end in ((0, 10), (10, 30), (30, 35)):
        await edge.send(begin, end)
    for rows in (10, 20, 5):
        assert (await edge.poll()).num_rows == rows
    await edge.until_received(3)
    assert lineage.done == 30  # the third is still worked on
    assert edge.outbox.statistics().acknowledged == 0
    lineage.acknowledge(30)
    await edge.until_acknowledged(2)
    await edge.send(35, END)
    closing = asyncio.create_task(edge.outbox.close())
    assert await edge.poll() is Signal.END
    assert not closing.done()
    lineage.acknowledge(END)
    assert (await closing).acknowledged == 4


async def test_what_a_predecessor_has_done_is_passed_over(servers) -> None:
    lineage = Lineage()
    lineage.start = 30
    edge = Edge(*servers, lineage)
    for begin, end in ((0, 10), (10, 30), (30, 35)):
        await edge.send(begin, end)
    assert (await edge.poll()).num_rows == 5


async def test_a_message_without_rows_is_acknowledged_too(servers) -> None:
    """It may be what a successor has sent to learn that all before it is acknowledged."""
    lineage = Lineage()
    done = []
    edge = Edge(*servers, lineage)
    await edge.send(0, 10)
    assert (await edge.poll()).num_rows == 10
    assert edge.source.poll() is Signal.LATER
    lineage.advanced = lambda: done.append(lineage.done)
    await edge.send(10, 10)
    assert (await edge.poll()).num_rows == 0
    assert done == []
    assert edge.source.poll() is Signal.LATER
    assert done == [10]
    lineage.acknowledge(10)
    await edge.until_acknowledged(2)


@pytest.mark.parametrize(
    ("start", "spans", "message"),
    [
        (0, [(10, 20)], "continues at row 10 of the origin, but this fragment has 0 rows"),
        (0, [(0, 10), (20, 30)], "continues at row 20 of the origin, but this fragment has 10 rows"),
        (
            15,
            [(0, 10), (10, 20)],
            "contains rows 10 to 20 of the origin, but rows below 15 are already processed",
        ),
    ],
)
async def test_a_gap_is_an_error_and_never_passed_over(servers, start: int, spans, message: str) -> None:
    """DP-7: where two neighbours were lost at once, it is said."""
    lineage = Lineage()
    lineage.start = start
    edge = Edge(*servers, lineage)
    for begin, end in spans:
        await edge.send(begin, end)
    with pytest.raises(InputLost, match=message):
        await edge.poll_times(len(spans))


async def test_a_successor_with_nothing_new_to_send_acknowledges_what_it_passes_over(servers) -> None:
    """DP-7: whoever sends to it may have room for nothing else. Nothing is acknowledged before the reader has."""
    receiver, sender = servers
    inbox = receiver.register_channel("out", ack="explicit")
    schema = zset.weighted(pa.schema({"n": pa.int64()}))
    before = sender.register_channel("out", to=receiver.address, schema=schema, stream="out")
    await before.send(zset.empty(schema), as_note(Span(0, 30)))
    await inbox.ack((await inbox.recv_message()).sequence + 1)
    await before.detach()
    lineage, acknowledged = Lineage(), []
    lineage.acknowledge = acknowledged.append
    operator = NetworkSink(id="out", input="in", channel="out", address=receiver.address)
    sink = ChannelSink(operator, sender, lineage, resumed=True)
    await asyncio.to_thread(sink.open, schema)
    assert lineage.start == 30
    lineage.advanced()
    probe = await inbox.recv_message()
    assert (probe.batch.num_rows, of_note(probe.note)) == (0, (Span(30, 30), None))
    assert acknowledged == []
    await inbox.ack(probe.sequence + 1)

    async def is_acknowledged() -> bool:
        return set(acknowledged) == {30}

    await until_async(is_acknowledged, "what was passed over is acknowledged")
    await asyncio.to_thread(sink.abort, "the test is over")


@pytest.mark.long
@pytest.mark.parametrize("itself", [True, False])
async def test_a_reader_that_is_away_is_not_dialed_for_ever_to_be_told(servers, *, itself: bool) -> None:
    """Nor by the worker, for a fragment whose process is dead."""
    _, sender = servers
    operator = NetworkSink(id="out", input="in", channel="out", address="127.0.0.1:1")
    if itself:
        sink = ChannelSink(operator, sender)
        await asyncio.to_thread(sink.open, zset.weighted(pa.schema({"n": pa.int64()})))
        await asyncio.to_thread(sink.abort, "the test is over")
    else:
        source = NetworkSource(id="in", channel="in", address="127.0.0.1:1", schema=COLUMNS)
        fragment = Fragment(id="f", node="127.0.0.1:1", operators=(source, operator))
        await fail_output(fragment, sender, "the test is over")
    assert sender.statistics().channels == {}


async def test_a_sink_whose_reader_has_all_is_done(servers) -> None:
    receiver, sender = servers
    operator = NetworkSink(id="out", input="in", channel="out", address=receiver.address)
    sink = ChannelSink(operator, sender)
    await asyncio.to_thread(sink.open, zset.weighted(pa.schema({"n": pa.int64()})))
    await receiver.register_channel("out").close(HAS_ALL)
    assert await asyncio.to_thread(sink.finish) == 0


async def test_a_sink_whose_reader_has_all_in_the_middle_is_done_and_so_is_its_source(servers) -> None:
    """It makes again, after a kill, what its reader has had from its predecessor."""
    receiver, sender = servers
    lineage, acknowledged = Lineage(), []
    lineage.acknowledge = acknowledged.append
    operator = NetworkSink(id="out", input="in", channel="out", address=receiver.address)
    sink = ChannelSink(operator, sender, lineage)
    rows = zset.insertions(pa.record_batch({"n": pa.array(range(10), pa.int64())}))
    await asyncio.to_thread(sink.open, rows.schema)
    await receiver.register_channel("out").close(HAS_ALL)
    lineage.position = 10

    async def is_done() -> bool:
        await asyncio.to_thread(sink.write, rows)
        return lineage.start == END

    await until_async(is_done, "the sink hears that its reader has all")
    assert await asyncio.to_thread(sink.finish) == 0
    assert acknowledged[-1] == END


async def test_a_source_of_what_is_done_has_ended_and_its_producer_is_done(servers) -> None:
    lineage = Lineage()
    edge = Edge(*servers, lineage)
    await edge.send(0, 10)
    lineage.start = END
    assert edge.source.poll() is Signal.END
    lineage.acknowledge(END)
    await asyncio.to_thread(edge.source.close, "it has ended")
    with pytest.raises(netchannel.ChannelClosedByPeer, match=HAS_ALL):
        await edge.outbox.close()


async def test_a_successor_whose_producer_is_gone_hears_that_its_reader_has_all(servers) -> None:
    """Nothing comes any more, and so it sends nothing to which it would be told."""
    receiver, sender = servers
    inbox = receiver.register_channel("out", ack="explicit")
    woken = asyncio.Event()
    lineage = Lineage()
    source = NetworkSource(id="in", channel="in", address=receiver.address, schema=COLUMNS)
    loop = asyncio.get_running_loop()
    ends = NetworkChannelSource(source, receiver, lambda: loop.call_soon_threadsafe(woken.set), lineage)
    operator = NetworkSink(id="out", input="in", channel="out", address=receiver.address)
    sink = ChannelSink(operator, sender, lineage, resumed=True)
    await asyncio.to_thread(sink.open, zset.weighted(pa.schema({"n": pa.int64()})))
    assert ends.poll() is Signal.LATER
    await inbox.recv_message()
    await inbox.close(HAS_ALL)
    async with asyncio.timeout(60):
        await woken.wait()
    assert ends.poll() is Signal.END
    assert await asyncio.to_thread(sink.finish) == 0
    await asyncio.to_thread(ends.close, "it has ended")


async def test_a_successor_waits_until_the_end_that_was_sent_before_is_taken(servers) -> None:
    """Its reader has received it, and not acknowledged it: it may be gone before it has done anything with it."""
    receiver, sender = servers
    inbox = receiver.register_channel("out", ack="explicit")
    schema = zset.weighted(pa.schema({"n": pa.int64()}))
    before = sender.register_channel("out", to=receiver.address, schema=schema, stream="out")
    await before.send(zset.empty(schema), as_note(Span(30, END)))
    message = await inbox.recv_message()
    before.core.detach(time.monotonic())  # as a kill does: nothing is flushed
    lineage, acknowledged = Lineage(), []
    lineage.acknowledge = acknowledged.append
    operator = NetworkSink(id="out", input="in", channel="out", address=receiver.address)
    sink = ChannelSink(operator, sender, lineage, resumed=True)
    await asyncio.to_thread(sink.open, schema)
    assert lineage.start == END
    began = asyncio.Event()
    loop = asyncio.get_running_loop()

    def finish() -> int:
        loop.call_soon_threadsafe(began.set)
        return sink.finish()

    finishing = asyncio.create_task(asyncio.to_thread(finish))
    await began.wait()
    receiver.register_channel("beside")
    beside = sender.register_channel("beside", to=receiver.address, schema=schema)
    for number in range(30):  # each takes longer than it would take to finish without waiting
        await beside.send(zset.empty(schema), as_note(Span(number, number + 1)))
        await beside.flush()
    assert not finishing.done()
    assert acknowledged == []
    await inbox.ack(message.sequence + 1)
    assert await finishing == 0
    assert set(acknowledged) == {END}
    with pytest.raises(netchannel.EndOfChannel):
        await inbox.recv_message()


async def test_two_neighbours_that_go_on_at_once_finish_where_their_reader_has_all(servers) -> None:
    """The first makes all of it again, which the second passes over: neither has anything to wait for."""
    receiver, sender = servers
    await receiver.register_channel("c").close(HAS_ALL)
    few = BufferSettings(max_messages=2)
    ended, runners = [asyncio.Event() for _ in range(2)], []
    loop = asyncio.get_running_loop()
    for (read, written), event in zip(("ab", "bc"), ended, strict=True):
        operators = (
            NetworkSource(id="in", channel=read, address=receiver.address, schema=COLUMNS),
            NetworkSink(id="out", input="in", channel=written, address=receiver.address, buffer=few),
        )
        fragment = Fragment(id=read, node=receiver.address, operators=operators)
        on_end = partial(loop.call_soon_threadsafe, event.set)
        runners.append(FragmentRunner(read, fragment, on_end, max_state_bytes=1 << 20, resumed=True))
        runners[-1].start(Provider(receiver, sender))
    producer = sender.register_channel("a", to=receiver.address)
    batch = zset.insertions(pa.record_batch({"n": pa.array([1], pa.int64())}))
    try:
        async with asyncio.timeout(60):
            with suppress(netchannel.ChannelClosedByPeer):  # it may hear early that nothing is wanted
                for n in range(10):
                    await producer.send(batch, as_note(Span(n, n + 1)))
            for event in ended:
                await event.wait()
            with pytest.raises(netchannel.ChannelClosedByPeer, match=HAS_ALL):
                await producer.close()
    finally:
        for runner in runners:
            runner.stop()
    assert [runner.status.state for runner in runners] == [FragmentState.FINISHED] * 2


async def test_a_reader_with_a_state_finds_gaps_too(servers) -> None:
    edge = Edge(*servers, None)
    await edge.send(0, 10)
    await edge.send(11, 12)
    assert (await edge.poll()).num_rows == 10
    with pytest.raises(InputLost, match="continues at row 11 of the origin, but this fragment has 10 rows"):
        await edge.poll()


async def test_what_a_sender_may_give_up_is_not_missed(servers) -> None:
    edge = Edge(*servers, None, lossy=True)
    for begin, end in ((5, 10), (11, 12), (12, END)):
        await edge.send(begin, end)
    rows = 0
    while rows < 6:
        rows += (await edge.poll()).num_rows
    assert rows == 6


async def test_what_has_come_is_one_batch_up_to_a_bound(servers) -> None:
    """A fragment with a state does much once per batch; an exact one has to know what was made of each."""
    edge = Edge(*servers, None)
    sizes = [7] * 500 + [MAX_BATCH_ROWS] * 2 + [7]
    ends = list(itertools.accumulate(sizes))
    for begin, end in pairwise([0, *ends]):
        await edge.send(begin, end)
    await until_async(lambda: _is(len(edge.source._queue) >= 501), "all small batches are queued")
    assert (await edge.poll()).num_rows == 3500 + MAX_BATCH_ROWS
    rows = 3500 + MAX_BATCH_ROWS
    while rows < ends[-1]:
        rows += (await edge.poll()).num_rows
    assert rows == ends[-1]


async def test_an_exact_fragment_takes_batches_as_they_come(servers) -> None:
    edge = Edge(*servers, Lineage())
    for begin in range(3):
        await edge.send(begin, begin + 1)
    await edge.until_received(3)
    assert [(await edge.poll()).num_rows for _ in range(3)] == [1, 1, 1]


async def test_large_batches_do_not_queue_without_a_bound(servers) -> None:
    edge = Edge(*servers, None)
    rows = 1 << 17  # 2 MiB with the weights
    for number in range(12):
        await edge.send(number * rows, (number + 1) * rows)
    await until_async(lambda: _is(len(edge.source._queue) >= 4), "four batches are queued")
    await asyncio.sleep(0)
    assert len(edge.source._queue) == 4


async def test_a_message_without_a_position_is_from_no_worker(servers) -> None:
    edge = Edge(*servers, None)
    await edge.outbox.send(zset.insertions(pa.record_batch({"n": pa.array([1], pa.int64())})))
    with pytest.raises(
        FragmentError, match="a note has 0 bytes, but a worker's note has 16 or 25: another program"
    ):
        await edge.poll()
