"""Sender buffers on disk, through kills, full disks and successors."""

from __future__ import annotations

import asyncio
import errno
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import suppress
from pathlib import Path

import pyarrow as pa
import pytest

import netchannel
from netchannel import BufferPolicy, ReceiverServer, SenderServer
from netchannel.core.states import SenderState
from netchannel.errors import MessagesLost
from netchannel.storage import Buffer, RealFiles, SegmentLog
from netchannel.storage.durable_writer import keep_in
from netchannel.storage.files import RealFile
from tests.support.simulated_files import SimulatedFiles
from tests.support.sizes import in_full
from tests.support.world import World

TOTAL = 10_000
KILLS = in_full(20)

DURABLE = """
import asyncio, os, sys, netchannel
async def main():
    directory, address, total = sys.argv[1], sys.argv[2], int(sys.argv[3])
    async with netchannel.SenderServer() as sender:
        outbox = sender.register_channel(
            "c", to=address, codec="bytes", buffer=netchannel.BufferPolicy(directory=directory)
        )
        async with asyncio.timeout(60):
            await outbox.attached()
        os.write(1, f"at {outbox.position}\\n".encode())
        while (number := outbox.position) < total:
            if number % 7:
                await outbox.send(b"%d" % number)
            else:
                await outbox.send_many([b"%d" % n for n in range(number, min(number + 50, total))])
            os.write(1, f"{outbox.position}\\n".encode())
        await outbox.close()
asyncio.run(main())
"""


async def lives(directory: Path, address: str, kills: int) -> AsyncIterator[tuple[int, int]]:
    """Run the sender to its end, killed so often before; of each life, where it began and what it was told is sent."""
    drawn = random.Random(3)
    for life in range(kills + 1):
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            *("-c", DURABLE, str(directory), address, str(TOTAL)),
            stdout=subprocess.PIPE,
        )
        assert process.stdout is not None
        begun = int((await process.stdout.readline()).split()[1])
        returned, patience = begun, drawn.randrange(1, 80)
        while line := await process.stdout.readline():
            returned = int(line)
            patience -= 1
            if not patience and life < kills:
                process.send_signal(signal.SIGKILL)
        await process.wait()
        yield begun, returned


@pytest.mark.story
@pytest.mark.processes
@pytest.mark.uvloop
async def test_a_sender_is_killed_and_restarted_again_and_again(tmp_path: Path) -> None:
    """CH-DUR-1, CH-FLT-3: nothing whose `send` returned is lost, nothing is doubled, and each life attaches."""
    async with ReceiverServer() as receiver, asyncio.timeout(100):
        inbox = receiver.register_channel("c", codec="bytes")

        async def consume() -> list[bytes]:
            return [bytes(body) async for body in inbox]

        consuming = asyncio.create_task(consume())
        returned = 0
        async for begun, told in lives(tmp_path, receiver.address, KILLS):
            assert begun >= returned
            returned = told
        received = await consuming
    assert returned == TOTAL
    assert received == [b"%d" % number for number in range(TOTAL)]
    assert inbox.statistics().reconnects == KILLS
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]  # all of it is delivered


def opened(sender: SenderServer, directory: Path, to: str, **settings: object) -> netchannel.SenderChannel:
    policy = BufferPolicy(directory=directory, **settings)  # type: ignore[arg-type]
    return sender.register_channel("c", to=to, codec="bytes", buffer=policy)


async def left_by_an_exception(directory: Path, to: str) -> netchannel.SenderChannel:
    with suppress(ZeroDivisionError):
        async with SenderServer() as sender:
            outbox = opened(sender, directory, to)
            await outbox.send_many([b"0", b"1"])
            _ = 1 / 0
    return outbox


async def test_leaving_the_context_detaches_a_durable_channel(tmp_path: Path, free_address: str) -> None:
    """CH-END-7, CH-END-8: an exception leaves the stream to a successor, which goes on with the same numbers."""
    outbox = await left_by_an_exception(tmp_path, free_address)
    async with SenderServer() as sender, ReceiverServer(free_address) as receiver:
        successor = opened(sender, tmp_path, free_address)
        assert (successor.stream, successor.position) == (outbox.stream, 2)
        await successor.send(b"2", note=b"n")
        inbox = receiver.register_channel("c", codec="bytes")
        await successor.close()
        assert [bytes(body) async for body in inbox] == [b"0", b"1", b"2"]


async def test_an_end_that_nobody_heard_is_delivered_by_a_successor(
    tmp_path: Path, free_address: str
) -> None:
    """CH-END-5: close(grace) gives up and says what was not delivered; the buffer keeps it, and the end behind it."""
    async with SenderServer() as sender:
        outbox = opened(sender, tmp_path, free_address)
        await outbox.send(b"0")
        report = await outbox.close(grace=0.05)
        assert (report.undelivered_from, report.undelivered) == (0, 1)
    async with SenderServer() as sender, ReceiverServer(free_address) as receiver:
        successor = opened(sender, tmp_path, free_address)
        with pytest.raises(netchannel.ChannelClosed, match="after 1 messages"):
            await successor.send(b"1")
        inbox = receiver.register_channel("c", codec="bytes")
        assert [bytes(body) async for body in inbox] == [b"0"]
        assert (await successor.close()).acknowledged == 1
        # CH-END-9: what was delivered is gone, and the id takes a new stream.
        renewed = opened(sender, tmp_path, free_address)
        assert renewed.position == 0
        assert renewed.stream != outbox.stream


async def test_an_abort_outlives_its_process_too(tmp_path: Path, free_address: str) -> None:
    """CH-END-2: the consumer gets what was sent before, then the failure, whoever delivers it."""
    timing = netchannel.Timing(leave_s=0.1)
    async with SenderServer(timing=timing) as sender:
        outbox = opened(sender, tmp_path, free_address)
        await outbox.send(b"0")
        await outbox.abort("the sensor is gone")
    async with SenderServer() as sender, ReceiverServer(free_address) as receiver:
        successor = opened(sender, tmp_path, free_address)
        inbox = receiver.register_channel("c", codec="bytes")
        assert bytes(await inbox.recv()) == b"0"
        with pytest.raises(netchannel.ChannelFailed, match="the sensor is gone"):
            await inbox.recv()
        await successor.close()


@pytest.mark.processes
async def test_one_buffer_has_one_owner(tmp_path: Path, free_address: str) -> None:
    """CH-DUR-4: a second opener is told who has it, in this process or another; the first is unharmed."""
    async with SenderServer() as sender, SenderServer() as other:
        outbox = opened(sender, tmp_path, free_address)
        with pytest.raises(netchannel.ChannelInUse, match="in use by process"):
            opened(other, tmp_path, free_address)
        process = await asyncio.create_subprocess_exec(
            sys.executable, *("-c", DURABLE, str(tmp_path), free_address, "1"), stderr=subprocess.PIPE
        )
        _, said = await process.communicate()
        assert b"ChannelInUse" in said
        await outbox.send(b"0")
        await outbox.detach()
        assert opened(other, tmp_path, free_address).position == 1


async def test_the_schema_is_kept_with_the_messages(tmp_path: Path, free_address: str) -> None:
    """CH-ARW-4, CH-ARW-3: a successor knows it without a batch, and takes no other; dictionaries are kept too."""
    names = pa.array(["a", "b", "a"]).dictionary_encode()
    batch = pa.record_batch({"name": names})
    policy = BufferPolicy(directory=tmp_path)
    async with SenderServer() as sender:
        outbox = sender.register_channel("c", to=free_address, buffer=policy)
        await outbox.send(batch)
    async with SenderServer() as sender, ReceiverServer(free_address) as receiver:
        with pytest.raises(netchannel.SchemaMismatch, match="holds 1 messages"):
            sender.register_channel("c", to=free_address, buffer=policy, schema=pa.schema({"x": pa.int8()}))
        with pytest.raises(netchannel.SchemaMismatch, match="'arrow'"):
            sender.register_channel("c", to=free_address, buffer=policy, codec="bytes")
        successor = sender.register_channel("c", to=free_address, buffer=policy)
        inbox = receiver.register_channel("c")
        assert await inbox.schema() == batch.schema
        await successor.send(batch)
        await successor.close()
        assert [received async for received in inbox] == [batch, batch]


async def test_batches_of_all_sizes_share_a_sync(tmp_path: Path, free_address: str) -> None:
    """CH-ARW-1, CH-BUF-3: those that are sent from where they are, too, together with small ones and alone."""
    rows = [1, 20_000, 3, 25_000, 40_000, 2, 17_000, 17_001, 0, 200_000]
    batches = [pa.record_batch({"n": pa.array(range(count), pa.int64())}) for count in rows]
    policy = BufferPolicy(directory=tmp_path)
    async with SenderServer() as sender:
        outbox = sender.register_channel("c", to=free_address, buffer=policy)
        await outbox.send_many(batches)
        for batch in batches:
            await outbox.send(batch)
    async with SenderServer() as sender, ReceiverServer(free_address) as receiver:
        inbox = receiver.register_channel("c")
        await sender.register_channel("c", to=free_address, buffer=policy).close()
        assert [received async for received in inbox] == 2 * batches


async def test_another_stream_than_the_one_on_disk(tmp_path: Path, free_address: str) -> None:
    """CH-ACK-4: a stream that was asked for by name is not exchanged for the one that is there."""
    async with SenderServer() as sender:
        outbox = opened(sender, tmp_path, free_address)
        await outbox.detach()
        with pytest.raises(netchannel.NetChannelError, match=outbox.stream):
            sender.register_channel(
                "c", to=free_address, codec="bytes", stream="x", buffer=BufferPolicy(directory=tmp_path)
            )
        with pytest.raises(ValueError, match="replayable"):
            sender.register_channel(
                "c", to=free_address, replayable=True, buffer=BufferPolicy(directory=tmp_path)
            )


async def test_one_sync_for_all_of_send_many(
    tmp_path: Path, free_address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A thousand messages cost a few syncs, not a thousand; so do many producers that wait together."""
    syncs = 0
    sync = SegmentLog.sync

    def counted(log: SegmentLog) -> int:
        nonlocal syncs
        syncs += 1
        return sync(log)

    monkeypatch.setattr(SegmentLog, "sync", counted)
    async with SenderServer() as sender:
        outbox = opened(sender, tmp_path, free_address)
        await outbox.send_many([b"%d" % number for number in range(1000)])
        assert syncs < 20
        syncs = 0
        await asyncio.gather(*(outbox.send(b"%d" % number) for number in range(1000)))
        assert syncs < 20
        assert outbox.position == 2000
        syncs = 0
        await outbox.send_many([bytes(1000)] * 4000)
        assert syncs == 1, "while more is at hand, the disk is not waited for"


async def test_a_slow_generator_does_not_keep_what_it_has_given(tmp_path: Path, free_address: str) -> None:
    """What `send_many` has taken is on disk after a little while, though more is to come."""
    async with SenderServer() as sender, asyncio.timeout(60):
        outbox = opened(sender, tmp_path, free_address)
        store = outbox.core.durable
        assert store is not None
        seen: list[int] = []

        def slow() -> Iterator[bytes]:
            while len({*seen}) < 3 and len(seen) < 200:  # a slow disk takes its time
                time.sleep(0.005)
                seen.append(store.upto)
                yield bytes(300_000)

        await outbox.send_many(slow())
        assert len({*seen}) == 3
        assert store.upto == len(seen)


async def test_a_full_durable_buffer_blocks_until_something_is_acknowledged(
    tmp_path: Path, free_address: str
) -> None:
    """CH-BUF-2: `max_disk_bytes` holds the producer back, and its messages arrive all the same."""
    async with SenderServer() as sender:
        outbox = opened(sender, tmp_path, free_address, max_disk_bytes=1 << 20)
        producing = asyncio.create_task(produce(outbox, 200, 20_000))
        while outbox.statistics().disk_bytes < 900_000:
            await outbox.changes.wait()
        assert not producing.done()
        async with ReceiverServer(free_address) as receiver:
            inbox = receiver.register_channel("c", codec="bytes")
            sizes = [len(body) async for body in inbox]
            await producing
    assert sizes == [20_000] * 200


async def produce(outbox: netchannel.SenderChannel, count: int, size: int) -> None:
    for _ in range(count):
        await outbox.send(bytes(size))
    await outbox.close()


async def test_a_full_durable_buffer_may_fail(tmp_path: Path, free_address: str) -> None:
    """CH-BUF-2: with `fail` the message took no number, and what was taken before stays."""
    async with SenderServer() as sender:
        outbox = opened(sender, tmp_path, free_address, max_disk_bytes=100_000, when_full="fail")
        with pytest.raises(netchannel.BufferFull, match="100000"):
            await outbox.send_many([b"%06d" % number + bytes(9_994) for number in range(1000)])
        taken = outbox.position
        assert 5 <= taken <= 10
        async with ReceiverServer(free_address) as receiver:
            inbox = receiver.register_channel("c", codec="bytes")
            await outbox.close()
            assert [int(bytes(body[:6])) async for body in inbox] == list(range(taken))


async def test_memory_is_bounded_and_the_rest_comes_from_disk(tmp_path: Path, free_address: str) -> None:
    """CH-BUF-1: a durable buffer keeps what its `max_bytes` allows in memory, and sends the rest from its files."""
    async with SenderServer() as sender:
        outbox = opened(sender, tmp_path, free_address, max_bytes=1 << 20)
        bodies = [b"%d" % number + bytes(number * 997 % 60_000) for number in range(1000)]
        for start in range(0, 1000, 50):
            await outbox.send_many(bodies[start : start + 50])
            assert outbox.statistics().buffered_bytes <= 1 << 20
        async with ReceiverServer(free_address) as receiver:
            inbox = receiver.register_channel("c", codec="bytes")
            closing = asyncio.create_task(outbox.close())
            assert [bytes(body) async for body in inbox] == bodies
            await closing


async def test_a_disk_that_fails_breaks_the_channel_by_name(
    tmp_path: Path, free_address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """CH-DUR-3: after a failed sync nothing is sent, and `send` says which file and why."""

    def failing(self: object) -> None:
        raise OSError(errno.EIO, "Input/output error")

    async with SenderServer() as sender:
        outbox = opened(sender, tmp_path, free_address)
        await outbox.send(b"0")
        monkeypatch.setattr("netchannel.storage.files.RealFile.fdatasync", failing)
        with pytest.raises(netchannel.ChannelBroken, match=r"syncing .*segment.*errno 5"):
            await outbox.send(b"1")
        monkeypatch.undo()
        again = opened(sender, tmp_path, free_address)
        assert again.stream == outbox.stream


async def test_what_a_cancelled_send_has_taken_stays_taken(
    tmp_path: Path, free_address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """CH-CAN-1, CH-BUF-2: `position` said so; with `fail` too, a full disk gives its number to no other."""
    full, at_work = True, threading.Event()
    pwritev = RealFile.pwritev

    def failing(file: RealFile, buffers: Sequence[Buffer], offset: int) -> int:
        at_work.set()
        if full:
            raise OSError(errno.ENOSPC, "No space left on device")
        return pwritev(file, buffers, offset)

    async with SenderServer() as sender:
        outbox = opened(sender, tmp_path, free_address, when_full="fail")
        await outbox.send(b"0")
        monkeypatch.setattr(RealFile, "pwritev", failing)
        with pytest.raises(netchannel.BufferFull):
            await outbox.send(b"refused")
        assert outbox.position == 1
        assert outbox.statistics().bytes == 1
        at_work.clear()
        sending = asyncio.create_task(outbox.send(b"1"))
        await asyncio.sleep(0)
        sending.cancel()
        with suppress(asyncio.CancelledError):
            await sending
        assert outbox.position == 2
        await asyncio.to_thread(at_work.wait)
        full = False
        while outbox.position == 2:
            with suppress(netchannel.BufferFull):
                await outbox.send(b"2")
        async with ReceiverServer(free_address) as receiver:
            inbox = receiver.register_channel("c", codec="bytes")
            await outbox.close()
            assert [bytes(body) async for body in inbox] == [b"0", b"1", b"2"]


async def test_an_end_is_kept_though_the_disk_was_at_work_when_time_ran_out(
    tmp_path: Path, free_address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """CH-END-8: `close(grace=...)` leaves the end to a successor, also where it comes to the disk after the time."""
    stalled, at_work, goes_on = False, threading.Event(), threading.Event()
    fdatasync = RealFile.fdatasync

    def stalling(file: RealFile) -> None:
        if stalled:
            at_work.set()
            goes_on.wait()
        fdatasync(file)

    monkeypatch.setattr(RealFile, "fdatasync", stalling)
    async with SenderServer() as sender:
        outbox = opened(sender, tmp_path, free_address)
        await outbox.send(b"0")
        stalled = True
        sending = asyncio.create_task(outbox.send(b"1"))
        await asyncio.to_thread(at_work.wait)
        closing = asyncio.create_task(outbox.close(grace=0))
        while outbox.statistics().state != "broken":
            await outbox.changes.wait()
        goes_on.set()
        assert (await closing).undelivered == 2
        with suppress(netchannel.ChannelBroken):
            await sending
        async with ReceiverServer(free_address) as receiver:
            inbox = receiver.register_channel("c", codec="bytes")
            opened(sender, tmp_path, free_address)
            async with asyncio.timeout(60):
                assert [bytes(body) async for body in inbox] == [b"0", b"1"]


async def test_reading_waits_for_descriptors(
    tmp_path: Path, free_address: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """CH-BUF-1: what is on disk is read when there are some again, and said once."""
    opening, none_left = RealFiles.open, threading.Event()

    def failing(files: RealFiles, path: Path) -> RealFile:
        none_left.set()
        raise OSError(errno.EMFILE, "Too many open files")

    async with SenderServer() as sender:
        outbox = opened(sender, tmp_path, free_address, max_bytes=20_000)
        for _ in range(10):
            await outbox.send(bytes(10_000))
        monkeypatch.setattr(RealFiles, "open", failing)
        async with ReceiverServer(free_address) as receiver:
            inbox = receiver.register_channel("c", codec="bytes")
            await asyncio.to_thread(none_left.wait)
            monkeypatch.setattr(RealFiles, "open", opening)
            closing = asyncio.create_task(outbox.close())
            async with asyncio.timeout(60):
                assert [len(body) async for body in inbox] == [10_000] * 10
            await closing
    assert [
        record.message.count("Too many open files") for record in caplog.records if "again" in record.message
    ] == [1]


def test_nothing_goes_out_before_its_record_is_durable() -> None:
    """CH-DUR-3: what the disk has not confirmed is on no wire, however long that takes."""
    world = World()
    log = SegmentLog.open(Path("/d"), "c", create_stream=lambda: "s", codec="bytes", files=SimulatedFiles())
    producer = world.open(world.sender(), prepare=lambda channel: keep_in(channel, log))
    consumer = world.inbox(world.receiver())
    world.run(lambda: producer.channel.state is SenderState.ATTACHED)
    world.disk_works = False
    producer.send(b"x")
    producer.channel.finish()
    world.pass_time(10)
    assert (consumer.channel.expected, consumer.channel.ended) == (0, None)
    world.disk_works = True
    world.settle()
    assert (consumer.channel.expected, consumer.channel.ended) == (1, 1)


async def test_a_segment_that_is_missing_is_said_when_the_buffer_is_opened(
    tmp_path: Path, free_address: str
) -> None:
    """CH-DUR-2: each of them, the first too: a producer that goes on would leave out what nobody has received."""
    async with SenderServer() as sender:
        outbox = opened(sender, tmp_path, free_address, max_disk_bytes=1 << 20)
        for number in range(8):
            await outbox.send(b"%d" % number * 100_000)
        await outbox.detach()
        segments = sorted(tmp_path.rglob("*.segment"))
        assert [int(file.stem) for file in segments] == list(range(8))
        for number, file in enumerate(segments):
            content = file.read_bytes()
            file.unlink()
            with pytest.raises(
                MessagesLost, match=f"missing in {file.parent}, although they were not acknow"
            ) as error:
                opened(sender, tmp_path, free_address, max_disk_bytes=1 << 20)
            assert error.value.first == number
            file.write_bytes(content)
        async with ReceiverServer(free_address) as receiver:
            inbox = receiver.register_channel("c", codec="bytes")
            whole = opened(sender, tmp_path, free_address, max_disk_bytes=1 << 20)
            await whole.close()
            assert [bytes(body)[:1] async for body in inbox] == [b"%d" % number for number in range(8)]
