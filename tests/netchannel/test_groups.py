"""Staged groups over real connections: held back, committed whole and once, and found again after a restart."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from itertools import chain
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from xxhash import xxh3_64_intdigest

import netchannel
from netchannel import (
    AttemptLost,
    BufferPolicy,
    ChannelBroken,
    ChannelClosed,
    ChannelClosedByPeer,
    EndOfChannel,
    EpochRegressed,
    Group,
    GroupClient,
    HandshakeError,
    NetChannelError,
    PositionLost,
    ReceiverServer,
    SchemaMismatch,
    Sealed,
    SenderServer,
    StagingPolicy,
    StreamReplaced,
    Timing,
)
from tests.support.chaos import ChaosProxy
from tests.support.waiting import until_async


async def write(
    sender: SenderServer, to: str, values: list[bytes], *, epoch: int = 0, partition: int = 0
) -> Sealed:
    """An attempt with ``values``, sealed."""
    outbox = sender.register_attempt("c", to, Group("app", epoch, partition), codec="bytes")
    await outbox.send_many(values)
    return await outbox.seal()


def staged(receiver: ReceiverServer, directory: Path, **settings: Any) -> netchannel.ReceiverChannel:
    policy = StagingPolicy(directory, **settings.pop("policy", {}))
    return receiver.register_staged_channel("c", policy, codec="bytes", **settings)


async def read(inbox: netchannel.ReceiverChannel, count: int) -> list[tuple[int, bytes]]:
    messages = [await inbox.recv_message() for _ in range(count)]
    return [(message.sequence, bytes(message.batch)) for message in messages]


async def nothing_to_read(inbox: netchannel.ReceiverChannel) -> bool:
    """All that is committed has been given out, and there is nothing."""
    try:
        async with asyncio.timeout(0.05):
            await inbox.recv()
    except TimeoutError:
        return True
    return False


async def test_a_group_is_invisible_until_its_commit_and_then_whole_in_partition_order(
    sender: SenderServer, address: str, tmp_path: Path
) -> None:
    """CH-STG-1."""
    async with ReceiverServer(address) as receiver, GroupClient(receiver.address, "c") as client:
        inbox = staged(receiver, tmp_path)
        winners = [
            await write(
                sender, receiver.address, [b"%d.%d" % (partition, i) for i in range(3)], partition=partition
            )
            for partition in (2, 0, 1)
        ]
        assert await nothing_to_read(inbox)
        assert await client.commit("app", 0, winners)
        assert await read(inbox, 9) == [(n, b"%d.%d" % divmod(n, 3)) for n in range(9)]
        assert await nothing_to_read(inbox)
        assert await client.commit("app", 1, [await write(sender, receiver.address, [b"next"], epoch=1)])
        assert await read(inbox, 1) == [(9, b"next")]


async def test_an_empty_stream_has_the_schema_of_its_attempts(
    sender: SenderServer, receiver: ReceiverServer, tmp_path: Path
) -> None:
    """As one that is sent directly has that of its sender, whenever it is asked for."""
    schema = pa.schema([("a", pa.int64()), ("b", pa.list_(pa.string()))])
    policy = StagingPolicy(tmp_path)
    async with GroupClient(receiver.address, "c") as client, asyncio.timeout(30):
        inbox = receiver.register_staged_channel("c", policy, ack="explicit")
        waiting = asyncio.create_task(inbox.schema())
        for epoch, end in enumerate((False, True)):
            group = Group("app", epoch, 0)
            attempt = sender.register_attempt("c", receiver.address, group, schema=schema)
            await client.commit("app", epoch, [await attempt.seal()], end=end)
            assert await waiting == await inbox.schema() == schema
            if not end:
                await inbox.detach()
                inbox = receiver.register_staged_channel("c", policy, ack="explicit")
                assert await inbox.schema() == schema
        assert [batch async for batch in inbox] == []
        assert await inbox.schema() == schema


async def test_an_epoch_is_committed_once_and_none_below_it(
    sender: SenderServer, receiver: ReceiverServer, tmp_path: Path
) -> None:
    """CH-STG-2."""
    inbox = staged(receiver, tmp_path)
    async with GroupClient(receiver.address, "c") as client:
        assert await client.last_epoch("app") is None
        winners = [await write(sender, receiver.address, [b"x"], epoch=5)]
        assert await client.commit("app", 5, winners) is True
        assert await client.commit("app", 5, winners) is False
        with pytest.raises(EpochRegressed, match=r"epoch 4 .* below epoch 5"):
            await client.commit("app", 4, [])
        assert await client.last_epoch("app") == 5
        assert await client.commit("another", 4, []) is True
    assert await read(inbox, 1) == [(0, b"x")]
    assert await nothing_to_read(inbox)


async def test_an_application_that_is_forgotten_begins_anew(
    sender: SenderServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """CH-BAD-1: names are bounded, and who needs no more gives his back; what was committed stays."""
    monkeypatch.setattr("netchannel.core.groups.staged_channel.APPLICATIONS_LIMIT", 2)
    async with ReceiverServer() as receiver, GroupClient(receiver.address, "c") as client:
        inbox = staged(receiver, tmp_path, ack="explicit")
        await client.commit("app", 6, [await write(sender, receiver.address, [b"x"], epoch=6)])
        await client.commit("second", 5, [])
        with pytest.raises(NetChannelError, match=r"2 applications have committed .* the limit is 2"):
            await client.commit("third", 0, [])
        await client.commit("second", 6, [])
        for _ in range(2):
            await client.forget("app")
        await client.commit("third", 0, [])
        await inbox.detach()
        inbox = staged(receiver, tmp_path, ack="explicit")
        assert [await client.last_epoch(name) for name in ("app", "second", "third")] == [None, 6, 0]
        assert await read(inbox, 1) == [(0, b"x")]
        await client.forget("third")
        await client.commit("app", 0, [await write(sender, receiver.address, [b"y"])], end=True)
        assert await read(inbox, 1) == [(1, b"y")]
        await inbox.ack(2)
        with pytest.raises(ChannelClosed):
            await client.forget("app")


async def test_the_end_comes_with_its_group_and_another_stream_after_it(
    sender: SenderServer, receiver: ReceiverServer, tmp_path: Path
) -> None:
    inbox = staged(receiver, tmp_path)
    async with GroupClient(receiver.address, "c") as client:
        await client.commit("app", 0, [await write(sender, receiver.address, [b"x"])], end=True)
        with pytest.raises(ChannelClosed, match="has ended"):
            await client.commit("app", 1, [])
        assert [bytes(value) async for value in inbox] == [b"x"]
        with pytest.raises(EndOfChannel):
            await inbox.recv()
        assert await client.commit("app", 0, []) is False
        again = staged(receiver, tmp_path)
        assert again.stream != inbox.stream
        assert await client.commit("app", 0, []) is False
        await client.commit("app", 1, [await write(sender, receiver.address, [b"y"], epoch=1)])
        assert await read(again, 1) == [(0, b"y")]


async def test_what_is_acknowledged_is_deleted_and_a_restart_goes_on_there(
    sender: SenderServer, tmp_path: Path
) -> None:
    async with ReceiverServer() as receiver, GroupClient(receiver.address, "c") as client:
        inbox = staged(receiver, tmp_path, ack="explicit")
        for epoch in range(3):
            await client.commit(
                "app", epoch, [await write(sender, receiver.address, [b"%d" % epoch] * 2, epoch=epoch)]
            )
        assert len(await read(inbox, 6)) == 6
        await inbox.ack(3)
        stream = inbox.stream
    folder = next(tmp_path.iterdir())
    assert len(list(folder.glob("*.attempt"))) == 2
    async with ReceiverServer() as receiver, GroupClient(receiver.address, "c") as client:
        inbox = staged(receiver, tmp_path, ack="explicit")
        assert inbox.stream == stream
        assert await client.last_epoch("app") == 2
        assert await read(inbox, 3) == [(3, b"1"), (4, b"2"), (5, b"2")]


async def test_batches_come_as_they_were_sent(
    sender: SenderServer, receiver: ReceiverServer, tmp_path: Path
) -> None:
    schema = pa.schema({"n": pa.int64(), "word": pa.dictionary(pa.int32(), pa.string())})
    inbox = receiver.register_staged_channel("c", StagingPolicy(tmp_path))
    sent = []
    winners = []
    for partition in range(2):
        outbox = sender.register_attempt("c", receiver.address, Group("app", 1, partition))
        for size in (1, 10, 200_000):
            words = pa.array([f"{partition} {n % 3}" for n in range(size)]).dictionary_encode()
            batch = pa.record_batch([pa.array(range(size)), words], schema=schema)
            sent.append(batch)
            await outbox.send(batch, b"note %d" % size)
        winners.append(await outbox.seal())
    assert [(each.count, each.rows) for each in winners] == [(3, 200_011)] * 2
    async with GroupClient(receiver.address, "c") as client:
        await client.commit("app", 1, winners, end=True)
    got = []
    for batch in sent:
        message = await inbox.recv_message()
        assert message.note == b"note %d" % batch.num_rows
        got.append(message.batch)
    assert got == sent
    with pytest.raises(EndOfChannel):
        await inbox.recv()
    assert await inbox.schema() == schema


# -- what is never published


async def test_an_attempt_that_is_not_sealed_is_never_published(
    sender: SenderServer, receiver: ReceiverServer, tmp_path: Path
) -> None:
    """CH-STG-3: aborted, closed, left; and its file is gone."""
    inbox = staged(receiver, tmp_path)
    async with GroupClient(receiver.address, "c") as client:
        channels = [
            sender.register_attempt("c", receiver.address, Group("app", 0, partition), codec="bytes")
            for partition in range(2)
        ]
        for channel in channels:
            await channel.send(b"x")
            await channel.flush()
        await channels[0].abort("the task failed")
        await channels[1].close()
        async with SenderServer() as other:
            left = other.register_attempt("c", receiver.address, Group("app", 0, 2), codec="bytes")
            await left.send(b"x")
            await left.flush()
        for channel in (*channels, left):
            forged = Sealed(channel.group.partition, channel.stream, 1, 1, 1, 0)
            with pytest.raises(AttemptLost, match="does not exist here, is not sealed"):
                await client.commit("app", 0, [forged])
        await until_async(lambda: no_files(tmp_path), "the files are gone")
        assert await client.last_epoch("app") is None
    assert await nothing_to_read(inbox)


async def no_files(directory: Path) -> bool:
    return not [*directory.glob("*/*.unsealed"), *directory.glob("*/*.attempt")]


async def test_a_commit_takes_an_attempt_as_it_was_sealed_or_not_at_all(
    sender: SenderServer, receiver: ReceiverServer, tmp_path: Path
) -> None:
    """CH-STG-3: another count, size or checksum is another attempt."""
    inbox = staged(receiver, tmp_path)
    async with GroupClient(receiver.address, "c") as client:
        sealed = await write(sender, receiver.address, [b"one", b"two"])
        sums = [xxh3_64_intdigest(body).to_bytes(8, "little") for body in (b"one", b"two")]
        assert sealed.checksum == xxh3_64_intdigest(b"".join(sums))
        for other in (
            sealed._replace(count=1),
            sealed._replace(bytes=5),
            sealed._replace(checksum=7),
        ):
            with pytest.raises(AttemptLost, match="has 2 messages of 6 bytes"):
                await client.commit("app", 0, [other])
        for other in (sealed._replace(partition=1), sealed._replace(attempt="00" * 16)):
            with pytest.raises(AttemptLost, match="does not exist here"):
                await client.commit("app", 0, [other])
        with pytest.raises(AttemptLost):
            await client.commit("app", 1, [sealed])
        with pytest.raises(ValueError, match="two attempts for partition 0"):
            await client.commit("app", 0, [sealed, sealed])
        assert await client.commit("app", 0, [sealed])
    assert await read(inbox, 2) == [(0, b"one"), (1, b"two")]


async def test_two_attempts_at_a_partition_never_mix(
    sender: SenderServer, receiver: ReceiverServer, tmp_path: Path
) -> None:
    """CH-STG-3: sent at the same time; the loser is dropped, and its sender told."""
    inbox = staged(receiver, tmp_path)
    channels = [
        sender.register_attempt("c", receiver.address, Group("app", 0, 0), codec="bytes") for _ in range(3)
    ]
    for number in range(200):
        for index, channel in enumerate(channels):
            await channel.send(b"%d %d" % (index, number))
    sealed = [await channel.seal() for channel in channels[:2]]
    async with GroupClient(receiver.address, "c") as client:
        await client.commit("app", 0, [sealed[1]])
        with pytest.raises(ChannelClosedByPeer, match=r"epoch 0 .* is committed without this attempt"):
            await channels[2].seal()
        late = sender.register_attempt("c", receiver.address, Group("app", 0, 0), codec="bytes")
        with pytest.raises(EpochRegressed, match="epoch 0 is committed"):
            await late.seal()
        with pytest.raises(AttemptLost):
            await client.commit("app", 1, [sealed[0]])
    assert [value for _, value in await read(inbox, 200)] == [b"1 %d" % number for number in range(200)]
    assert await nothing_to_read(inbox)


async def test_dropped_attempts_are_gone(
    sender: SenderServer, receiver: ReceiverServer, tmp_path: Path
) -> None:
    staged(receiver, tmp_path)
    async with GroupClient(receiver.address, "c") as client:
        sealed = [await write(sender, receiver.address, [b"x"], epoch=epoch) for epoch in range(3)]
        writing = sender.register_attempt("c", receiver.address, Group("app", 1, 1), codec="bytes")
        await writing.send(b"y")
        await writing.flush()
        await client.drop("app", 1)
        assert len(list(tmp_path.glob("*/*.attempt"))) == 1
        with pytest.raises(ChannelClosedByPeer, match="was dropped"):
            await writing.seal()
        for epoch in range(2):
            with pytest.raises(AttemptLost):
                await client.commit("app", epoch, [sealed[epoch]])
        assert await client.commit("app", 2, [sealed[2]])


async def test_too_much_that_is_staged_fails_the_attempt_that_goes_above(
    sender: SenderServer, receiver: ReceiverServer, tmp_path: Path
) -> None:
    inbox = staged(receiver, tmp_path, policy={"max_staged_bytes": 10_000})
    async with GroupClient(receiver.address, "c") as client:
        first = await write(sender, receiver.address, [bytes(6000)])
        outbox = sender.register_attempt("c", receiver.address, Group("app", 0, 1), codec="bytes")
        await outbox.send(bytes(5000))
        with pytest.raises(
            ChannelClosedByPeer, match=r"11\d\d\d bytes are staged, .* max_staged_bytes is 10000"
        ):
            await outbox.seal()
        await client.commit("app", 0, [first])
        second = await write(sender, receiver.address, [bytes(9000)], epoch=1)
        await client.commit("app", 1, [second])
    assert len(await read(inbox, 2)) == 2


async def send_and_seal(outbox: netchannel.GroupChannel, values: list[Any]) -> None:
    await outbox.send_many(values)
    await outbox.seal()


async def test_the_bound_is_of_the_files(
    sender: SenderServer, receiver: ReceiverServer, tmp_path: Path
) -> None:
    """CH-BAD-1: empty messages and dictionaries take space, too."""
    policy = StagingPolicy(tmp_path, max_staged_bytes=200_000)
    receiver.register_staged_channel("bytes", policy, codec="bytes")
    empty = sender.register_attempt("bytes", receiver.address, Group("app", 0, 0), codec="bytes")
    with pytest.raises(ChannelClosedByPeer, match="max_staged_bytes is 200000"):
        await send_and_seal(empty, [b""] * 30_000)
    receiver.register_staged_channel("arrow", policy)
    words = sender.register_attempt("arrow", receiver.address, Group("app", 0, 0))
    arrays = [pa.array([str(number) * 10_000]).dictionary_encode() for number in range(10, 40)]
    with pytest.raises(ChannelClosedByPeer, match="max_staged_bytes is 200000"):
        await send_and_seal(words, [pa.record_batch({"word": array}) for array in arrays])


# -- restarts


async def test_a_sealed_attempt_survives_a_restart_and_another_does_not(
    sender: SenderServer, free_address: str, tmp_path: Path
) -> None:
    """CH-STG-3."""
    async with ReceiverServer(free_address) as receiver:
        staged(receiver, tmp_path)
        sealed = await write(sender, free_address, [b"x"])
        writing = sender.register_attempt("c", free_address, Group("app", 0, 1), codec="bytes")
        await writing.send(b"y")
        await writing.flush()
    async with ReceiverServer(free_address) as receiver, GroupClient(free_address, "c") as client:
        inbox = staged(receiver, tmp_path)
        with pytest.raises(
            AttemptLost, match="1 messages of the attempt were received before the receiver was"
        ):
            await writing.seal()
        assert await client.commit("app", 0, [sealed])
        assert await read(inbox, 1) == [(0, b"x")]


async def test_resuming_within_what_is_kept(sender: SenderServer, tmp_path: Path) -> None:
    async with ReceiverServer() as receiver, GroupClient(receiver.address, "c") as client:
        inbox = staged(receiver, tmp_path, ack="explicit")
        for epoch in range(2):
            values = [b"%d" % epoch] * 3
            await client.commit("app", epoch, [await write(sender, receiver.address, values, epoch=epoch)])
        await read(inbox, 6)
        await inbox.ack(4)
        position = inbox.position
        assert position is not None
        await inbox.detach()
        again = staged(receiver, tmp_path, ack="explicit", resume_from=position._replace(sequence=3))
        assert await read(again, 3) == [(3, b"1"), (4, b"1"), (5, b"1")]
        await again.detach()
        for wrong, error, match in (
            (position._replace(sequence=2), PositionLost, "oldest kept message is 3"),
            (position._replace(sequence=7), StreamReplaced, "only 6 messages were committed"),
            (position._replace(stream="another"), StreamReplaced, "'another'"),
        ):
            lost = staged(receiver, tmp_path, ack="explicit", resume_from=wrong)
            with pytest.raises(error, match=match):
                await lost.recv()  # and then its files are free
        assert await read(staged(receiver, tmp_path, ack="explicit"), 2) == [(4, b"1"), (5, b"1")]


@pytest.mark.parametrize("leave", ["detach", "server"])
async def test_what_was_not_read_is_the_successors_alone(
    sender: SenderServer, tmp_path: Path, leave: str
) -> None:
    """CH-END-8: also of a chunk that is being read."""
    values = [b"%d" % number for number in range(10)]
    async with ReceiverServer() as receiver, GroupClient(receiver.address, "c") as client:
        inbox = staged(receiver, tmp_path)
        await client.commit("app", 0, [await write(sender, receiver.address, values)])
        got = [bytes(await inbox.recv())]

        async def read_on() -> None:
            async for value in inbox:
                got.append(bytes(value))
                if len(got) == 3 and leave == "detach":
                    await inbox.detach()
                elif len(got) == 3:
                    await receiver.__aexit__(None, None, None)

        with pytest.raises(ChannelClosed):
            await read_on()
        assert got == values[:3]
        assert inbox.position == (inbox.stream, 3)
    async with ReceiverServer() as receiver:
        assert await read(staged(receiver, tmp_path), 7) == list(enumerate(values))[3:]


async def test_a_consumer_that_closes_wants_no_more(
    sender: SenderServer, receiver: ReceiverServer, tmp_path: Path
) -> None:
    inbox = staged(receiver, tmp_path)
    writing = sender.register_attempt("c", receiver.address, Group("app", 0, 0), codec="bytes")
    await writing.send(b"y")
    await writing.flush()
    await inbox.close("enough")
    with pytest.raises(ChannelClosedByPeer, match="enough"):
        await writing.seal()
    async with GroupClient(receiver.address, "c") as client:
        with pytest.raises(ChannelClosed, match="enough"):
            await client.commit("app", 0, [])
        assert not list(tmp_path.iterdir())
        staged(receiver, tmp_path)
        assert await client.commit("app", 0, [])


# -- what does not go together


async def test_groups_and_ordinary_streams_are_told_apart(
    sender: SenderServer, receiver: ReceiverServer, tmp_path: Path
) -> None:
    staged(receiver, tmp_path)
    receiver.register_channel("ordinary", codec="bytes")
    outbox = sender.register_channel("c", receiver.address, codec="bytes")
    with pytest.raises(HandshakeError, match="accepts only groups"):
        await outbox.close()
    group = sender.register_attempt("ordinary", receiver.address, Group("app", 0, 0), codec="bytes")
    with pytest.raises(HandshakeError, match="does not accept groups"):
        await group.seal()
    async with GroupClient(receiver.address, "ordinary") as client:
        with pytest.raises(NetChannelError, match="does not accept groups"):
            await client.commit("app", 0, [])


async def test_settings_that_make_no_sense_are_refused(
    sender: SenderServer, receiver: ReceiverServer, tmp_path: Path
) -> None:
    group, to = Group("app", 0, 0), receiver.address
    for settings in (
        {"buffer": BufferPolicy(directory=tmp_path)},
        {"buffer": BufferPolicy(when_full="drop_oldest")},
    ):
        with pytest.raises(ValueError, match="attempt"):
            sender.register_attempt("c", to, group, **settings)  # type: ignore[call-overload]  # on purpose
    for bad in (Group("", 0, 0), Group("app", -1, 0), Group("app", 0, 1 << 63)):
        with pytest.raises(ValueError, match="expected"):
            sender.register_attempt("c", to, bad)
    for policy in ({"max_staged_bytes": 0}, {"orphan_s": 0.0}, {"max_kept_bytes": 0}):
        with pytest.raises(ValueError, match="expected"):
            StagingPolicy(tmp_path, **policy)  # type: ignore[arg-type]  # of both kinds
    channel = sender.register_attempt("c", to, group)
    with pytest.raises(NetChannelError, match="cannot be detached, because it has no successor"):
        await channel.detach()
    client = GroupClient(to, "c")
    with pytest.raises(ChannelClosed, match="not running"):
        await client.last_epoch("app")


async def test_attempts_of_another_schema_are_refused_by_the_commit(
    sender: SenderServer, receiver: ReceiverServer, tmp_path: Path
) -> None:
    inbox = receiver.register_staged_channel("c", StagingPolicy(tmp_path))
    batches = [pa.record_batch({"n": [1]}), pa.record_batch({"word": ["x"]})]
    winners = []
    for partition, batch in enumerate(batches):
        outbox = sender.register_attempt("c", receiver.address, Group("app", 0, partition))
        await outbox.send(batch)
        winners.append(await outbox.seal())
    async with GroupClient(receiver.address, "c") as client:
        with pytest.raises(SchemaMismatch):
            await client.commit("app", 0, winners)
        await client.commit("app", 0, winners[:1])
    assert await inbox.recv() == batches[0]
    outbox = sender.register_attempt("c", receiver.address, Group("app", 1, 0))
    await outbox.send(batches[1])
    async with GroupClient(receiver.address, "c") as client:
        with pytest.raises(SchemaMismatch):
            await client.commit("app", 1, [await outbox.seal()])


async def test_the_tally_is_of_what_was_taken(
    sender: SenderServer, receiver: ReceiverServer, tmp_path: Path
) -> None:
    """Also where calls wait for room together, and one is cancelled."""
    staged(receiver, tmp_path, buffer=BufferPolicy(max_bytes=1000))
    outbox = sender.register_attempt(
        "c", receiver.address, Group("app", 0, 0), codec="bytes", buffer=BufferPolicy(max_messages=2)
    )
    tasks = [asyncio.create_task(outbox.send(b"%03d" % number)) for number in range(50)]
    await asyncio.sleep(0)
    tasks[30].cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    sealed = await outbox.seal()
    assert sealed == await outbox.seal()
    assert sealed.count == outbox.position
    assert sealed.bytes == 3 * sealed.count
    async with GroupClient(receiver.address, "c") as client:
        assert await client.commit("app", 0, [sealed])


async def test_what_was_given_up_is_not_sealed(
    sender: SenderServer, receiver: ReceiverServer, tmp_path: Path
) -> None:
    staged(receiver, tmp_path)
    for give_up in (lambda outbox: outbox.abort("no"), lambda outbox: outbox.close()):
        outbox = sender.register_attempt("c", receiver.address, Group("app", 0, 0), codec="bytes")
        await outbox.send(b"x")
        await give_up(outbox)
        with pytest.raises(ChannelClosed, match=r"was aborted .* by this side after 1 messages"):
            await outbox.seal()


async def test_an_attempt_is_given_up_in_time_though_the_receiver_is_away(
    sender: SenderServer, free_address: str
) -> None:
    outbox = sender.register_attempt("c", free_address, Group("app", 0, 0), codec="bytes")
    await outbox.send(b"x")
    async with asyncio.timeout(Timing().leave_s / 2):
        await outbox.close(grace=0.01)
    with pytest.raises(ChannelBroken, match="closed without a seal"):
        await outbox.seal()


async def test_many_groups_through_a_line_that_is_cut(
    chaos: Callable[[str], ChaosProxy], tmp_path: Path
) -> None:
    """CH-STG-1: whole, in order, once."""
    values = {
        (epoch, partition): [b"%d %d %d" % (epoch, partition, i) + bytes(200) for i in range(50)]
        for epoch in range(12)
        for partition in range(2)
    }
    async with (
        ReceiverServer() as receiver,
        chaos(receiver.address) as proxy,
        SenderServer() as sender,
        GroupClient(proxy.address, "c") as client,
    ):
        inbox = staged(receiver, tmp_path)
        for epoch in range(12):
            attempts = (
                write(sender, proxy.address, values[epoch, partition], epoch=epoch, partition=partition)
                for partition in range(2)
            )
            await client.commit("app", epoch, await asyncio.gather(*attempts), end=epoch == 11)
        assert [bytes(value) async for value in inbox] == list(chain(*values.values()))
        assert proxy.resets


async def test_the_file_of_what_was_read_is_written_again(
    sender: SenderServer, receiver: ReceiverServer, tmp_path: Path
) -> None:
    """A group of more than a MiB after the other, of all sizes, in one file; it is part of what is on the disk."""
    inbox = staged(receiver, tmp_path)
    nodes = set()
    async with GroupClient(receiver.address, "c") as client:
        for epoch, size in enumerate([3_000_000, 5_000_000, 2_000_000, 4_000_000]):
            sealed = await write(sender, receiver.address, [bytes([epoch]) * size], epoch=epoch)
            (file,) = tmp_path.rglob("*.attempt")
            nodes.add(file.stat().st_ino)
            await client.commit("app", epoch, [sealed])
            assert await read(inbox, 1) == [(epoch, bytes([epoch]) * size)]

            async def is_spare(size: int = size) -> bool:
                return [file.stat().st_size > size for file in tmp_path.rglob("*.spare")] == [True]

            await until_async(is_spare, "the file is kept")
            assert inbox.statistics().disk_bytes > size
    assert len(nodes) == 1
    await inbox.detach()
    assert not list(tmp_path.rglob("*.spare"))


async def test_servers_count_channels_and_not_attempts(
    sender: SenderServer, receiver: ReceiverServer, tmp_path: Path
) -> None:
    """CH-OBS-1: names of attempts would fill whatever keeps metrics by name."""
    inbox = staged(receiver, tmp_path)
    outbox = sender.register_attempt("c", receiver.address, Group("app", 0, 0), codec="bytes")
    await outbox.send(bytes(1000))
    await outbox.flush()
    assert sender.statistics().channels == {}
    assert list(receiver.statistics().channels) == ["c"]
    assert (outbox.statistics().sent, outbox.statistics().acknowledged) == (1, 1)
    async with GroupClient(receiver.address, "c") as client:
        await client.commit("app", 0, [await outbox.seal()])
    assert inbox.statistics().disk_bytes > 1000
    assert (outbox.id, outbox.group) == ("c", Group("app", 0, 0))


async def test_a_commit_that_cannot_be_said_is_refused_and_harms_nobody(
    receiver: ReceiverServer, sender: SenderServer, tmp_path: Path
) -> None:
    """What no receiver takes is not asked: again and again it would close the connection."""
    receiver.register_staged_channel("c", StagingPolicy(tmp_path), codec="bytes")
    outbox = sender.register_attempt("c", receiver.address, Group("app", 0, 0), codec="bytes")
    sealed = await outbox.seal()
    async with GroupClient(receiver.address, "c") as client:
        for wrong in (
            [sealed._replace(attempt="zz")],
            [sealed._replace(attempt=sealed.attempt + "00")],
            [sealed._replace(partition=-1)],
            [sealed._replace(checksum=1 << 64)],
            ["not sealed"],
        ):
            with pytest.raises(
                (ValueError, TypeError),
                match=r"expected the (?:unchanged )?result of "
                r"seal\(\)",
            ):
                await client.commit("app", 0, wrong)  # type: ignore[arg-type]
        with pytest.raises(ValueError, match="names 90000 attempts, and the limit is 80000"):
            await client.commit("app", 0, [sealed._replace(partition=n) for n in range(90_000)])
        with pytest.raises(ValueError, match="the epoch of a group is True"):
            await client.commit("app", True, [sealed])
        with pytest.raises(TypeError, match="end is 'no': expected a bool"):
            await client.commit("app", 0, [sealed], end="no")  # type: ignore[arg-type]
        assert await client.commit("app", 0, [sealed])
