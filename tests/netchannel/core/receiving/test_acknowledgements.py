"""When a receiver says what is acknowledged: put off where nobody waits for it, at once where somebody does."""

from __future__ import annotations

from typing import Any

import pytest

from netchannel import BufferPolicy
from netchannel.core.receiving.data_receiver import ACK_DELAY_S
from netchannel.core.sending.outbound import OutboundChannel
from netchannel.core.states import SenderState
from netchannel.wire.frames import ACK_BYTES, Kind
from tests.support.dialed import Dialed, data, frame
from tests.support.world import Consumer, Producer, World


def attached(**settings: Any) -> tuple[World, Producer, Consumer]:
    world = World()
    consumer = world.inbox(world.receiver(), explicit=settings.pop("explicit", False))
    producer = world.open(world.sender(), **settings)
    world.run(lambda: producer.channel.state is SenderState.ATTACHED)
    world.settle()
    return world, producer, consumer


def waits(channel: OutboundChannel) -> None:
    """As `flush` does."""
    channel.ack_requests.flushing += 1
    channel.want_acknowledgement()


def test_what_nobody_waits_for_is_said_with_what_follows() -> None:
    world, producer, consumer = attached()
    for number in range(1, 6):
        producer.send(b"lone")
        world.pass_time(ACK_DELAY_S / 10)
        assert len(consumer.channel.queue) == number
        assert producer.channel.acknowledged == 0
    world.pass_time(ACK_DELAY_S)
    assert producer.channel.acknowledged == 5


def test_what_somebody_waits_for_is_said_at_once() -> None:
    """No time passes; and whoever flushes each message asks with the message, without a frame of its own."""
    world, producer, _ = attached()
    producer.send(b"x")
    world.settle()
    waits(producer.channel)
    world.settle()
    assert producer.channel.acknowledged == 1
    producer.send(b"x")
    world.settle()
    assert producer.channel.acknowledged == 2
    producer.channel.ack_requests.flushing -= 1
    producer.send(b"x")
    world.settle()
    assert producer.channel.acknowledged == 3
    producer.send(b"nobody waits any more")
    world.settle()
    assert producer.channel.acknowledged == 3


def test_who_waits_for_what_the_consumer_has_not_done_hears_of_it_at_once() -> None:
    world, producer, consumer = attached(explicit=True)
    producer.send(b"x")
    waits(producer.channel)
    world.settle()
    assert (producer.channel.received, producer.channel.acknowledged) == (1, 0)
    consumer.channel.ack(1, world.now)
    world.settle()
    assert producer.channel.acknowledged == 1


def test_who_waits_is_heard_on_the_next_connection_too() -> None:
    world, producer, consumer = attached(explicit=True)
    producer.send(b"x")
    producer.send(b"y")
    waits(producer.channel)
    world.settle()
    world.cut(world.wires(control=False)[0])
    world.run(lambda: producer.channel.state is SenderState.ATTACHED)
    world.settle()
    consumer.channel.ack(1, world.now)
    world.settle()
    assert producer.channel.acknowledged == 1


def test_much_is_said_at_once() -> None:
    world, producer, _ = attached()
    producer.send(bytes(ACK_BYTES - 1))
    world.settle()
    assert producer.channel.acknowledged == 0
    producer.send(b"x")
    world.settle()
    assert producer.channel.acknowledged == 2


@pytest.mark.parametrize("bound", [{"max_messages": 4}, {"max_bytes": 4000}])
def test_a_small_buffer_is_not_kept_full(bound: dict[str, int]) -> None:
    """A policy that fails when it is full has nobody who waits: what is half full is asked for."""
    world, producer, _ = attached(buffer=BufferPolicy(when_full="fail", **bound))
    for _ in range(20):
        assert producer.channel.room(1000)
        producer.send(bytes(1000))
        world.settle()
    assert producer.channel.acknowledged >= 18


def test_nobody_waits_for_what_has_not_come() -> None:
    dialed = Dialed()
    dialed.say(dialed.data, data(b"x") + frame(Kind.ASK, sequence=1))
    assert dialed.answers()[-1] == (Kind.ACK, 1)
    dialed.say(dialed.data, frame(Kind.ASK, sequence=2))
    assert dialed.answers() == [(Kind.REFUSED, 0)]
