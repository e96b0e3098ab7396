"""What goes wrong in an exchange: each with its error, and nothing is left of it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pyarrow as pa
import pytest

import netchannel
from nebuli.steps.errors import (
    ExchangeClosed,
    ExchangeFailed,
    ExchangeLate,
    PartDamaged,
    PeerLeft,
    PeerLost,
    WrongStep,
)
from nebuli.steps.member.exchange import Exchange
from nebuli.steps.member.part_messages import LAST, NOTE, STREAM
from netchannel import ReceiverServer, SenderServer
from tests.support.chaos import UP, CutAfter, Proxy, Wire
from tests.support.members import SCHEMA, TIMING, Members, pairs, row
from tests.support.waiting import until_async

NEXT = "this epoch's exchange is closed here: recover to a common checkpoint, in a new epoch"


async def failure_of(exchange: Any) -> ExchangeFailed:
    with pytest.raises(ExchangeFailed) as caught:
        await exchange
    return caught.value


async def works(world: Members, epoch: int) -> None:
    """A new epoch's exchange on the same servers."""
    exchanges = await world.opened(epoch)
    came = await asyncio.gather(
        *(each.all_to_all(7, 0, [row(member, epoch)] * world.count) for member, each in enumerate(exchanges))
    )
    assert [pairs(parts) for parts in came] == [[(m, epoch) for m in range(world.count)]] * world.count
    await asyncio.gather(*(each.close() for each in exchanges))


async def test_members_at_different_steps_say_so_and_a_new_epoch_works_at_once() -> None:
    async with Members(2) as world:
        exchanges = await world.opened()
        first, second = await asyncio.gather(
            failure_of(exchanges[0].all_to_all(4, 0, [row(0, 4)] * 2)),
            failure_of(exchanges[1].all_to_all(5, 2, [row(1, 5)] * 2)),
        )
        # Whoever sees it first tells the other one.
        wrong = first if isinstance(first, WrongStep) else second
        assert isinstance(wrong, WrongStep)
        if wrong is first:
            assert (wrong.member, wrong.address) == (1, world.addresses[1])
            assert (wrong.came, wrong.expected) == ((5, 2), (4, 0))
            assert str(wrong) == (
                f"member 1 at {world.addresses[1]} sent step 5, exchange 2, but step 4, exchange "
                f"0 was expected; {NEXT}"
            )
        else:
            assert (wrong.came, wrong.expected) == ((4, 0), (5, 2))
        assert isinstance(first, WrongStep | PeerLeft)
        assert isinstance(second, WrongStep | PeerLeft)
        assert world.left == []
        for each in exchanges:
            with pytest.raises(ExchangeClosed, match="open the exchange of a new epoch"):
                await each.all_to_all(6, 0, [None] * 2)
        await works(world, 2)


@pytest.mark.parametrize(
    ("body", "note", "why"),
    [
        (b"", b"short", "unpack requires a buffer"),
        (b"abc", NOTE.pack(0, 4, 0, LAST | STREAM), "received 3 bytes, but the part has 4 bytes"),
        (b"abc", NOTE.pack(0, 3, 0, LAST), "it was sent before the schema of exchange 0"),
        (b"abcdefgh", NOTE.pack(0, 8, 0, LAST | STREAM), "8 bytes are not a batch"),
        (b"abc", NOTE.pack(0, 2, 0, 0), "received 3 bytes of a part of 2 bytes"),
        (b"abc", NOTE.pack(0, 1 << 62, 0, 0), "this member has no memory for 4611686018427387904 bytes"),
    ],
)
async def test_what_cannot_be_read_is_said_with_who_sent_it(body: bytes, note: bytes, why: str) -> None:
    async with Members(2) as world:
        sender, receiver = world.senders[1], world.receivers[1]
        outbox = sender.register_channel("circuit/1/1>0", to=world.addresses[0], codec="bytes")
        inbox = receiver.register_channel("circuit/1/0>1", codec="bytes")
        exchange = world.exchange(0)
        await exchange.open(5)
        await outbox.send(body, note)
        error = await failure_of(exchange.all_to_all(0, 0, [row(0, 0)] * 2))
        assert isinstance(error, PartDamaged)
        assert (
            f"member 1 at {world.addresses[1]} sent a part in step 0, exchange 0 that cannot be read"
            in str(error)
        )
        assert why in str(error)
        assert bytes(await inbox.recv())  # the member's own part
        with pytest.raises(netchannel.ChannelFailed, match="cannot be read"):
            await inbox.recv()
        with pytest.raises(netchannel.ChannelClosedByPeer, match="cannot be read"):
            await outbox.close()
        assert world.left == []
        await works(world, 2)


async def test_who_gives_up_is_named_with_its_reason() -> None:
    async with Members(3) as world:
        exchanges = await world.opened()
        waiting = [
            asyncio.create_task(failure_of(exchanges[m].all_to_all(0, 0, [row(m, 0)] * 3))) for m in (0, 2)
        ]
        await asyncio.sleep(0)
        await exchanges[1].abort("the disk is full")
        for error in await asyncio.gather(*waiting):
            assert isinstance(error, PeerLeft)
            assert (error.member, error.said) == (1, "the disk is full")
            assert (
                f"member 1 at {world.addresses[1]} has left in step 0, exchange 0: the disk is full"
                in str(error)
            )
        with pytest.raises(ExchangeClosed, match="this member has aborted it: the disk is full"):
            await exchanges[1].all_to_all(0, 0, [None] * 3)
        assert world.left == []
        await works(world, 2)


async def test_what_fails_between_two_exchanges_is_told_by_the_next() -> None:
    async with Members(2) as world:
        exchanges = await world.opened()
        await exchanges[1].abort("out of memory")

        async def is_over() -> bool | None:
            return not world.left or None

        await until_async(is_over, "member 0 has heard it, and left")
        error = await failure_of(exchanges[0].all_to_all(0, 0, [None] * 2))
        assert isinstance(error, PeerLeft)
        assert error.said == "out of memory"
        with pytest.raises(ExchangeClosed):
            await exchanges[0].all_to_all(0, 0, [None] * 2)


async def test_who_has_ended_and_is_needed_has_left() -> None:
    async with Members(2) as world:
        exchanges = await world.opened()
        waiting = asyncio.create_task(failure_of(exchanges[0].all_to_all(0, 0, [None] * 2)))
        await asyncio.sleep(0)
        await exchanges[1].close()
        assert isinstance(await waiting, PeerLeft)
        exchanges = await world.opened(2)
        await exchanges[1].close()
        assert isinstance(await failure_of(exchanges[0].all_to_all(0, 0, [None] * 2)), PeerLeft)
        assert world.left == []


async def test_a_cancelled_exchange_leaves_nothing_behind() -> None:
    async with Members(3) as world:
        exchanges = await world.opened()
        cancelled = asyncio.create_task(exchanges[0].all_to_all(0, 0, [row(0, 0)] * 3))
        others = [
            asyncio.create_task(failure_of(exchanges[m].all_to_all(0, 0, [row(m, 0)] * 3))) for m in (1,)
        ]

        async def is_sent() -> bool | None:
            return world.receivers[2].statistics().channels["circuit/1/0>2"].received or None

        await until_async(is_sent, "the others have its parts")
        cancelled.cancel()
        with pytest.raises(asyncio.CancelledError):
            await cancelled
        for error in await asyncio.gather(
            *others, failure_of(exchanges[2].all_to_all(0, 0, [row(2, 0)] * 3))
        ):
            assert isinstance(error, PeerLeft)
            assert error.said == "a call of this member was cancelled"
        assert world.left == []
        await until_async(world.unconnected, "all connections are closed")
        with pytest.raises(ExchangeClosed, match="cancelled"):
            await exchanges[0].all_to_all(1, 0, [None] * 3)
        await works(world, 2)


async def test_a_cancelled_exchange_of_large_parts_leaves_nothing_behind() -> None:
    async with Members(3) as world:
        exchanges = await world.opened(buffer_bytes=1 << 16)
        large = pa.record_batch({"a": pa.array(range(1 << 17), pa.int64())})
        sending = asyncio.create_task(exchanges[0].all_to_all(0, 0, [large] * 3))

        async def is_stuck() -> bool | None:
            return world.receivers[2].statistics().channels["circuit/1/0>2"].buffered_bytes or None

        await until_async(is_stuck, "the channel is full")
        sending.cancel()
        with pytest.raises(asyncio.CancelledError):
            await sending
        for member in (1, 2):
            assert isinstance(await failure_of(exchanges[member].all_to_all(0, 0, [None] * 3)), PeerLeft)
        assert world.left == []


async def test_a_cancelled_open_leaves_nothing_behind() -> None:
    async with Members(2) as world:
        opening = asyncio.create_task(world.exchange(0).open(60))
        await asyncio.sleep(0.05)
        assert world.channels == (1, 1)
        opening.cancel()
        with pytest.raises(asyncio.CancelledError):
            await opening
        assert world.left == []
        await works(world, 1)


async def test_an_epoch_that_is_open_is_not_opened_again() -> None:
    async with Members(2) as world:
        exchanges = await world.opened()
        with pytest.raises(netchannel.ChannelInUse):
            await world.exchange(0).open(1)
        assert world.channels == (2, 2)
        came = await asyncio.gather(
            *(each.all_to_all(0, 0, [row(m, 0)] * 2) for m, each in enumerate(exchanges))
        )
        assert [pairs(parts) for parts in came] == [[(0, 0), (1, 0)]] * 2
        await asyncio.gather(*(each.close() for each in exchanges))


async def test_what_an_old_epoch_still_sends_enters_no_new_one() -> None:
    """A member that does not know yet that the epoch is over goes on sending, by the old channel and by a new one."""
    async with Members(2) as world:
        old = await world.opened()
        late = asyncio.create_task(failure_of(old[1].all_to_all(0, 0, [row(1, 666)] * 2)))

        async def has_come() -> bool | None:
            return world.receivers[0].statistics().channels["circuit/1/1>0"].received or None

        await until_async(has_come, "data of the old epoch is in member 0's queue")
        await old[0].abort("recovery")
        assert isinstance(await late, PeerLeft)
        async with SenderServer(timing=TIMING) as stale:
            outbox = stale.register_channel("circuit/1/1>0", to=world.addresses[0], codec="bytes")
            await outbox.send(b"", NOTE.pack(0, 0, 0, LAST))
            new = [world.exchange(0, 2), world.exchange(1, 2)]
            opening = asyncio.create_task(new[0].open(5))
            # Behind this one's answer, the stale one has been asked for too, if it is to be.
            other = world.receivers[0].register_channel("other", codec="bytes")
            await stale.register_channel("other", to=world.addresses[0], codec="bytes").attached()
            await asyncio.gather(opening, new[1].open(5), other.close())
            for step in range(3):
                came = await asyncio.gather(
                    *(each.all_to_all(step, 0, [row(m, step)] * 2) for m, each in enumerate(new))
                )
                assert [pairs(parts) for parts in came] == [[(0, step), (1, step)]] * 2
            assert outbox.statistics().received == 0
            await outbox.close(0)
        await asyncio.gather(*(each.close() for each in new))


async def test_another_process_in_a_members_place_is_found_out() -> None:
    """The channel is replaced: what the other stream sends is not taken for the first one's."""
    async with Members(2) as world:
        first = SenderServer(timing=TIMING)
        await first.__aenter__()
        inbox = world.receivers[1].register_channel("circuit/1/0>1", codec="bytes")
        one = first.register_channel("circuit/1/1>0", to=world.addresses[0], codec="bytes")
        exchange = world.exchange(0, away_s=0.5)
        await exchange.open(5)
        await one.attached()
        other = world.senders[1].register_channel("circuit/1/1>0", to=world.addresses[0], codec="bytes")
        await other.send(b"", NOTE.pack(0, 0, 0, LAST | 4))
        waiting = asyncio.create_task(failure_of(exchange.all_to_all(0, 0, [row(0, 0)] * 2)))
        await first.__aexit__(None, None, None)
        error = await waiting
        assert isinstance(error, PeerLeft)
        assert "producer left without closing" in error.said
        assert other.statistics().received == 0
        await other.close(0)
        await inbox.close()


async def test_an_exchange_that_is_late_says_who_is_missing() -> None:
    async with Members(3) as world:
        exchanges = [world.exchange(0, deadline_s=0.2), world.exchange(1), world.exchange(2)]
        await asyncio.gather(*(each.open(5) for each in exchanges))
        there = asyncio.create_task(failure_of(exchanges[1].all_to_all(9, 1, [row(1, 0)] * 3)))

        async def is_there() -> bool | None:
            return world.receivers[0].statistics().channels["circuit/1/1>0"].received or None

        await until_async(is_there, "member 0 has the part of member 1")
        error = await failure_of(exchanges[0].all_to_all(9, 1, [row(0, 0)] * 3))
        assert isinstance(error, ExchangeLate)
        assert (error.member, error.missing) == (2, (2,))
        assert (
            "is late in step 9, exchange 1: after 0.2 s, 2 of 3 parts have arrived; the parts of members "
            "[2] are missing" in str(error)
        )
        assert isinstance(await there, PeerLeft)
        await exchanges[2].abort("over")
        assert world.left == []


async def test_an_exchange_whose_parts_nobody_takes_is_late_too() -> None:
    async with Members(2) as world:
        exchanges = await world.opened(deadline_s=0.2, buffer_bytes=1 << 16)
        large = pa.record_batch({"a": pa.array(range(1 << 17), pa.int64())})
        error = await failure_of(exchanges[0].all_to_all(0, 0, [None, large], senders={0}, receivers={1}))
        assert isinstance(error, ExchangeLate)
        assert (error.member, error.missing) == (1, ())
        await exchanges[1].abort("over")
        assert world.left == []


@asynccontextmanager
async def behind(
    world: Members, make_wire: Callable[[int], Wire], **settings: Any
) -> AsyncIterator[tuple[Proxy, list[Exchange]]]:
    """Two members, of which the first reaches the second through a proxy."""
    async with Proxy(world.addresses[1], make_wire) as proxy:
        first = world.exchange(0, addresses=[world.addresses[0], proxy.address], **settings)
        exchanges = [first, world.exchange(1)]
        await asyncio.gather(*(each.open(5) for each in exchanges))
        yield proxy, exchanges


async def test_a_connection_that_is_cut_is_made_anew() -> None:
    async with Members(2) as world, behind(world, lambda _: Wire()) as (proxy, exchanges):
        for step in range(5):
            for wire in proxy.wires:
                wire.cut()
            came = await asyncio.gather(
                *(each.all_to_all(step, 0, [row(m, step)] * 2) for m, each in enumerate(exchanges))
            )
            assert [pairs(parts) for parts in came] == [[(0, step), (1, step)]] * 2
        await asyncio.gather(*(each.close() for each in exchanges))


async def test_a_member_that_stays_without_a_connection_is_lost() -> None:
    """It listens, and no connection to it lives."""
    async with Members(2) as world:
        healthy = True
        async with behind(world, lambda _: Wire() if healthy else CutAfter(UP, 0), away_s=0.5) as (
            proxy,
            exchanges,
        ):
            healthy = False
            for wire in proxy.wires:
                wire.cut()
            error = await failure_of(exchanges[0].all_to_all(2, 0, [row(0, 0)] * 2))
            assert isinstance(error, PeerLost)
            assert (error.member, error.address) == (1, proxy.address)
            assert "is lost in step 2, exchange 0: there was no connection to it for 0.5 s" in str(error)
            lost = await failure_of(exchanges[1].all_to_all(2, 0, [row(1, 0)] * 2))
            assert isinstance(lost, PeerLeft)  # it is the one that was given up itself
            assert lost.member == 0
        assert world.left == []


@pytest.mark.timed
async def test_who_does_not_answer_is_not_waited_for_when_it_is_left() -> None:
    """Its connections are there, and nothing passes."""
    async with Members(2) as world:
        async with behind(world, lambda _: Wire(), deadline_s=0.2) as (proxy, exchanges):
            for wire in proxy.wires:
                wire.swallows = True
            begun = time.monotonic()
            error = await failure_of(exchanges[0].all_to_all(0, 0, [row(0, 0)] * 2))
            assert isinstance(error, ExchangeLate)
            assert time.monotonic() - begun < TIMING.leave_s / 2
            assert world.senders[0].statistics().channels == {}
            await exchanges[1].abort("over")
        assert world.left == []


async def test_a_member_where_nobody_listens_any_more_is_lost_and_all_others_name_it() -> None:
    """DBSP-REQ-2: also who waits for another one, and also who has heard of it from another one."""
    async with Members(4) as world:
        proxy = Proxy(world.addresses[2])
        await proxy.__aenter__()
        seen = [*world.addresses]
        seen[2] = proxy.address
        exchanges = [world.exchange(m, addresses=seen if m < 2 else world.addresses) for m in range(4)]
        await asyncio.gather(*(each.open(5) for each in exchanges))
        for step in range(2):
            await asyncio.gather(
                *(each.all_to_all(step, 0, [row(m, step)] * 4) for m, each in enumerate(exchanges))
            )
        # Only member 3 sends: nobody waits for what member 2 sends.
        waiting = [
            asyncio.create_task(failure_of(exchanges[m].all_to_all(2, 0, [None] * 4, senders={3})))
            for m in (0, 1)
        ]
        await asyncio.sleep(0)
        await proxy.__aexit__(None, None, None)
        for error in [
            *await asyncio.gather(*waiting),
            await failure_of(exchanges[3].all_to_all(2, 0, [None] * 4, senders={3}, receivers={2})),
        ]:
            assert isinstance(error, PeerLost)
            assert error.member == 2
            assert "nothing listens there any more" in str(error)
        assert isinstance(await failure_of(exchanges[2].all_to_all(2, 0, [None] * 4, senders={3})), PeerLeft)
        assert world.left == []


async def test_who_comes_with_another_codec_is_no_member() -> None:
    async with Members(2) as world:
        sender: SenderServer = world.senders[1]
        receiver: ReceiverServer = world.receivers[1]
        inbox = receiver.register_channel("circuit/1/0>1", codec="arrow", schema=SCHEMA)
        with pytest.raises(PeerLost, match="before the first step"):
            await world.exchange(0).open(5)
        await inbox.close()
        assert sender.statistics().channels == {}
