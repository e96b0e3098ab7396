"""Exchanges of members that do as they should."""

from __future__ import annotations

import asyncio

import numpy as np
import pyarrow as pa
import pytest

from nebuli.steps.errors import ExchangeBusy, ExchangeClosed, PeerLost, PeerMissing
from nebuli.steps.member.exchange import Exchange
from tests.support.arrow_memory import memory_pool
from tests.support.members import SCHEMA, Members, pairs, row
from tests.support.waiting import until_async

MIB = 1 << 20
PIECE = 1 << 18


async def rounds(exchange: Exchange, member: int, members: int, steps: range, exchanges: int) -> None:
    """Feldera's test of its exchange: each sends (sender, round) to all, and receives exactly one of each."""
    for step in steps:
        for index in range(exchanges):
            came = await exchange.all_to_all(step, index, [row(member, step * exchanges + index)] * members)
            assert pairs(came) == [(sender, step * exchanges + index) for sender in range(members)]


@pytest.mark.parametrize(
    ("members", "hosts", "steps"), [(2, 2, 100), (4, 2, 50), (8, 2, 20), (3, 3, 50), (4, 4, 50), (16, 4, 10)]
)
async def test_each_member_gets_exactly_one_message_of_each_in_member_order(
    members: int, hosts: int, steps: int
) -> None:
    """DBSP-REQ-1, DBSP-DIST-8: Feldera's matrix of members and hosts, with three exchanges in each step."""
    async with Members(members, hosts) as world:
        exchanges = await world.opened()
        await asyncio.gather(
            *(rounds(each, member, members, range(steps), 3) for member, each in enumerate(exchanges))
        )
        await asyncio.gather(*(each.close() for each in exchanges))
        assert world.left == []


async def test_sixteen_members_have_240_channels_for_four_exchanges() -> None:
    """DBSP-DIST-8: one channel for each ordered pair carries all exchanges, and not one for each exchange."""
    async with Members(16, 4) as world:
        exchanges = await world.opened()
        await asyncio.gather(
            *(rounds(each, member, 16, range(1), 4) for member, each in enumerate(exchanges))
        )
        assert world.channels == (240, 240)
        await asyncio.gather(*(each.close() for each in exchanges))


async def test_members_that_send_nothing_complete_the_step() -> None:
    """DBSP-DIST-9: what is empty comes as a batch without rows, of the schema; what is none comes as None."""
    async with Members(3) as world:
        exchanges = await world.opened()
        for step in range(3):
            given = [[row(0, step)] * 3, [row(1, 0).slice(0, 0)] * 3, [None] * 3]
            came = await asyncio.gather(
                *(each.all_to_all(step, 0, parts) for each, parts in zip(exchanges, given, strict=True))
            )
            for parts in came:
                assert pairs(parts) == [(0, step)]
                assert parts[1] is not None
                assert (parts[1].num_rows, parts[1].schema) == (0, SCHEMA)
                assert parts[2] is None
        await asyncio.gather(*(each.close() for each in exchanges))


async def test_the_own_part_comes_back_as_it_was_given() -> None:
    async with Members(2) as world:
        exchanges = await world.opened()
        own = row(0, 0)
        came, _ = await asyncio.gather(
            exchanges[0].all_to_all(0, 0, [own, None]), exchanges[1].all_to_all(0, 0, [None, None])
        )
        assert came[0] is own
        assert not [
            name
            for server in world.receivers
            for name in server.statistics().channels
            if name in ("0>0", "1>1")
        ]
        await asyncio.gather(*(each.close() for each in exchanges))


async def test_a_member_alone_has_no_channel() -> None:
    async with Members(1) as world:
        (alone,) = await world.opened()
        assert world.channels == (0, 0)
        assert pairs(await alone.all_to_all(0, 0, [row(0, 7)])) == [(0, 7)]
        await alone.close()


async def test_only_senders_send_and_only_receivers_receive() -> None:
    async with Members(3) as world:
        exchanges = await world.opened()
        before = [
            channel.received
            for server in world.receivers
            for channel in server.statistics().channels.values()
        ]
        came = await asyncio.gather(
            *(
                each.all_to_all(0, 0, [row(member, 0)] * 3, senders={0, 1}, receivers={1})
                for member, each in enumerate(exchanges)
            )
        )
        assert [pairs(parts) for parts in came] == [[], [(0, 0), (1, 0)], []]
        after = {
            name: channel.received
            for server in world.receivers
            for name, channel in server.statistics().channels.items()
        }
        assert sum(before) == 0
        assert {name for name, received in after.items() if received} == {"circuit/1/0>1"}
        await asyncio.gather(*(each.close() for each in exchanges))


async def test_a_member_may_be_ahead_of_others() -> None:
    """What comes for an exchange that a member is not at yet is kept until it is."""
    async with Members(3) as world:
        exchanges = await world.opened()
        gather = {"senders": {0, 2}, "receivers": {1}}

        async def all_of(member: int) -> list[list[tuple[int, int]]]:
            came = [await exchanges[member].all_to_all(0, 0, [row(member, 0)] * 3, **gather)]
            came += [
                await exchanges[member].all_to_all(0, index, [row(member, index)] * 3) for index in (1, 2)
            ]
            return [pairs(parts) for parts in came]

        ahead, behind = asyncio.create_task(all_of(0)), asyncio.create_task(all_of(1))

        async def has_early() -> bool | None:
            return world.receivers[1].statistics().channels["circuit/1/0>1"].received == 2 or None

        await until_async(has_early, "member 0 is at exchange 1 while member 1 is at exchange 0")
        assert not behind.done()
        last = await all_of(2)
        whole = [[(sender, index) for sender in range(3)] for index in (1, 2)]
        assert await ahead == last == [[], *whole]
        assert await behind == [[(0, 0), (2, 0)], *whole]
        await asyncio.gather(*(each.close() for each in exchanges))


def large(member: int, mib: int) -> pa.RecordBatch:
    rows = mib * MIB // 16
    return pa.record_batch({"a": np.arange(rows) + member, "w": np.ones(rows, dtype=np.int64)})


async def test_parts_far_larger_than_the_buffers_cross_at_the_same_time() -> None:
    """Each of four members sends 6 MiB to each over channels that hold 1 MiB, and receives meanwhile."""
    async with Members(4) as world:
        exchanges = await world.opened(buffer_bytes=MIB)
        given = [large(member, 6) for member in range(4)]
        came = await asyncio.gather(
            *(each.all_to_all(0, 0, [part] * 4) for each, part in zip(exchanges, given, strict=True))
        )
        for parts in came:
            assert all(part is not None and part.equals(of) for part, of in zip(parts, given, strict=True))
        await asyncio.gather(*(each.close() for each in exchanges))


async def test_beside_what_is_received_memory_is_bounded() -> None:
    """Of 32 MiB each way, each end of a channel has 1 MiB and a piece at most, and a part is never there twice."""
    async with Members(2) as world:
        exchanges = await world.opened(buffer_bytes=MIB)
        given = [large(member, 32) for member in range(2)]
        servers = [*world.senders, *world.receivers]
        most = 0
        with memory_pool() as counted:
            exchanges = asyncio.gather(*(each.all_to_all(0, 0, given) for each in exchanges))
            while not exchanges.done():
                channels = [
                    channel for server in servers for channel in server.statistics().channels.values()
                ]
                most = max(most, *(channel.buffered_bytes for channel in channels))
                await asyncio.sleep(0)
            came = await exchanges
            received = sum(part.nbytes for part in given)
            # What a channel receives into is of Arrow's memory too.
            assert received <= counted.max_memory() <= received + 2 * (MIB + 2 * PIECE)
        assert most <= MIB + PIECE + 4096
        for member, parts in enumerate(came):
            assert [part is not None and part.equals(given[member]) for part in parts] == [True, True]
        await asyncio.gather(*(each.close() for each in exchanges))


async def test_what_is_early_and_large_waits_where_it_comes_from() -> None:
    async with Members(2) as world:
        exchanges = await world.opened(buffer_bytes=MIB)
        ahead = asyncio.create_task(exchanges[0].all_to_all(0, 0, [None, large(0, 16)]))
        inbox = lambda: world.receivers[1].statistics().channels["circuit/1/0>1"]  # noqa: E731
        outbox = lambda: world.senders[0].statistics().channels["circuit/1/0>1", world.addresses[1]]  # noqa: E731

        async def is_full() -> bool | None:
            return (inbox().buffered_bytes >= MIB and outbox().buffered_bytes > MIB // 2) or None

        await until_async(is_full, "the channel is full")
        for _ in range(100):
            await asyncio.sleep(0)
        assert inbox().bytes <= 2 * MIB
        assert not ahead.done()
        came = await exchanges[1].all_to_all(0, 0, [None, None])
        assert came[0] is not None
        assert came[0].equals(large(0, 16))
        assert await ahead == [None, None]
        await asyncio.gather(*(each.close() for each in exchanges))


async def test_members_may_close_in_order_while_others_still_exchange() -> None:
    async with Members(3) as world:
        exchanges = await world.opened()
        at_last = {"senders": {0, 2}, "receivers": {1}}
        await exchanges[0].all_to_all(0, 0, [row(0, 0)] * 3, **at_last)
        waiting = asyncio.create_task(exchanges[1].all_to_all(0, 0, [row(1, 0)] * 3, **at_last))
        await exchanges[0].close()

        async def is_over() -> bool | None:
            return "circuit/1/0>1" not in world.receivers[1].statistics().channels or None

        await until_async(is_over, "member 1 has heard it")
        await asyncio.sleep(0.25)  # so long that it looks after member 0
        assert not waiting.done()
        await exchanges[2].all_to_all(0, 0, [row(2, 0)] * 3, **at_last)
        assert pairs(await waiting) == [(0, 0), (2, 0)]
        await asyncio.gather(*(each.close() for each in exchanges))


async def test_a_second_exchange_beside_the_first_is_refused_and_harms_nothing() -> None:
    async with Members(2) as world:
        exchanges = await world.opened()
        first = asyncio.create_task(exchanges[0].all_to_all(3, 1, [row(0, 0)] * 2))
        await asyncio.sleep(0)
        with pytest.raises(ExchangeBusy, match=r"step 3, exchange 2 .* step 3, exchange 1 is under way"):
            await exchanges[0].all_to_all(3, 2, [row(0, 0)] * 2)
        await exchanges[1].all_to_all(3, 1, [row(1, 0)] * 2)
        assert pairs(await first) == [(0, 0), (1, 0)]
        await asyncio.gather(*(each.close() for each in exchanges))


async def test_what_is_no_next_exchange_is_refused_and_harms_nothing() -> None:
    async with Members(1) as world:
        (alone,) = await world.opened()
        await alone.all_to_all(3, 1, [None])
        for at in ((3, 1), (3, 0), (2, 9)):
            with pytest.raises(
                ValueError, match=f"step {at[0]}, exchange {at[1]} is not after step 3, exchange 1"
            ):
                await alone.all_to_all(*at, [None])
        with pytest.raises(ValueError, match="2 parts for 1 members"):
            await alone.all_to_all(4, 0, [None, None])
        await alone.all_to_all(4, 0, [None])
        await alone.close()
        with pytest.raises(ExchangeClosed, match="circuit/1 is closed: this member has closed it"):
            await alone.all_to_all(5, 0, [None])


async def test_what_is_not_open_does_not_exchange_and_opens_once() -> None:
    async with Members(1) as world:
        alone = world.exchange(0)
        with pytest.raises(ExchangeClosed, match="not opened"):
            await alone.all_to_all(0, 0, [None])
        await alone.open(1)
        with pytest.raises(ExchangeClosed, match="opened before"):
            await alone.open(1)
        await alone.close()
        with pytest.raises(ValueError, match="member 0 of 0"):
            world.exchange(0, addresses=[])


async def test_whose_deadline_is_later_hears_who_has_not_come() -> None:
    async with Members(3) as world:
        opening = (world.exchange(0).open(0.2), world.exchange(2).open(60))
        first, second = await asyncio.gather(*opening, return_exceptions=True)
        assert isinstance(first, PeerMissing)
        assert isinstance(second, PeerLost)
        assert (first.member, second.member, second.address) == (1, 1, world.addresses[1])
        assert "did not open circuit/1 within 0.2 s (seen by member 0)" in str(second)


async def test_who_does_not_come_is_named_and_nothing_is_left() -> None:
    async with Members(3) as world:
        here = [world.exchange(0), world.exchange(2)]
        failed = await asyncio.gather(*(each.open(0.2) for each in here), return_exceptions=True)
        assert any(isinstance(error, PeerMissing) for error in failed)
        for error in failed:
            assert isinstance(error, PeerMissing | PeerLost), (
                "whose time is over a little later has heard of it"
            )
            assert (error.member, error.address) == (1, world.addresses[1])
            assert "did not open circuit/1 within 0.2 s" in str(error)
        assert world.left == []
        await until_async(world.unconnected, "all connections are closed")
