"""What a consumer asks of its producer: over the connection that there is, bounded, and never again by itself."""

from __future__ import annotations

import re
from typing import Any

import pytest

from netchannel import BufferPolicy, MessageTooLarge
from netchannel.core.link import Link
from netchannel.core.receiving.data_receiver import WRITE_LIMIT
from netchannel.core.receiving.sessions import ReceiverControl
from netchannel.core.sending.data_sender import SenderData
from netchannel.core.sending.outbound import Connection
from netchannel.core.sending.sender_core import SenderControl
from netchannel.core.states import ReceiverState, SenderState
from netchannel.core.upqueries import Upqueries
from netchannel.wire.frames import HEADER, HEADER_SIZE, Buffer, Kind, signal
from tests.support.world import Consumer, End, Producer, World

MIB = 1 << 20


def attached(world: World, **settings: Any) -> tuple[Producer, Consumer]:
    consumer = world.inbox(world.receiver(), **settings)
    producer = world.open(world.sender())
    world.run(lambda: producer.channel.state is SenderState.ATTACHED)
    world.settle()
    return producer, consumer


def taken(producer: Producer) -> list[bytes]:
    """All that waits for the producer."""
    link = producer.channel.link
    waiting = None if link is None else link.upqueries
    return [waiting.take() for _ in range(len(waiting))] if waiting else []


def wire_of(world: World) -> End:
    """The sender's end of the data connection."""
    (wire,) = world.wires(control=False)
    return wire


def say(link: Link, said: bytes, now: float) -> None:
    """Let ``link`` receive ``said``."""
    while said:
        buffer = link.get_buffer(len(said))
        size = min(len(buffer), len(said))
        buffer[:size] = said[:size]
        said = said[size:]
        link.received(size, now)


def kinds(said: Buffer) -> list[Kind]:
    found, at = [], 0
    while at < len(said):
        _, _, kind, _, _, length, *_ = HEADER.unpack_from(said, at)
        found.append(Kind(kind))
        at += HEADER_SIZE + length
    return found


@pytest.mark.parametrize("chunk", [1, 7, 1 << 16])
def test_they_arrive_in_order_beside_messages_and_acknowledgements(chunk: int) -> None:
    """However the bytes are cut; an empty one, and one that is received into memory of its own."""
    world = World(chunk=chunk)
    producer, consumer = attached(world)
    asked = [b"", b"k=1", bytes(range(256)) * 100, b"k=2"]
    for number, body in enumerate(asked):
        assert consumer.channel.upquery(body)
        producer.send(b"%d" % number)
    world.settle()
    world.pass_time(0.01)
    assert taken(producer) == asked
    consumer.read()
    assert consumer.values == [b"0", b"1", b"2", b"3"]
    assert producer.channel.acknowledged == 4
    assert (producer.channel.upqueries, consumer.channel.upqueries) == (4, 4)


def test_nobody_who_is_not_there_is_asked() -> None:
    """Before a sender came, while it is away, behind its end: it is said at once, and nothing is kept for later."""
    world = World()
    receiver = world.receiver()
    consumer = world.inbox(receiver, explicit=True)
    assert not consumer.channel.upquery(b"early")
    producer = world.open(world.sender())
    world.run(lambda: producer.channel.state is SenderState.ATTACHED)
    world.settle()
    world.cut(wire_of(world))
    assert not consumer.channel.upquery(b"away")
    world.run(lambda: producer.channel.state is SenderState.ATTACHED)
    world.settle()
    producer.send(b"x")
    producer.channel.finish()
    world.settle()
    assert consumer.channel.state is ReceiverState.ATTACHED
    assert not consumer.channel.upquery(b"behind the end")
    assert (producer.channel.upqueries, consumer.channel.upqueries) == (0, 0)
    consumer.ack(1)
    world.run(lambda: producer.channel.state is SenderState.ENDED)
    assert not consumer.channel.upquery(b"over")


def test_who_takes_none_is_sent_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """A smaller sender, to which the frame would be an unknown kind."""
    monkeypatch.setattr(SenderControl, "features", SenderControl.features - {"upqueries"})
    producer, consumer = attached(world := World())
    sender = producer.channel.core
    world.stalled.add(sender)
    assert not consumer.channel.upquery(b"x")
    world.settle()
    assert not wire_of(world).inbox
    assert "upqueries" not in ReceiverControl.features


def test_more_than_a_mebibyte_is_not_asked_for() -> None:
    _, consumer = attached(World())
    assert consumer.channel.upquery(bytes(MIB))
    with pytest.raises(
        MessageTooLarge, match=r"upquery of 1048577 bytes on channel 'c': the limit is 1048576"
    ):
        consumer.channel.upquery(bytes(MIB + 1))


def test_a_consumer_that_does_not_read_can_still_ask() -> None:
    """Its connection is full of messages in the other direction."""
    world = World()
    producer, consumer = attached(world, buffer=BufferPolicy(max_messages=1))
    for _ in range(100):
        producer.send(bytes(10_000))
    world.settle()
    assert consumer.channel.link is not None
    assert not consumer.channel.link.reading
    assert consumer.channel.upquery(b"k=1")
    world.settle()
    assert taken(producer) == [b"k=1"]


def test_acknowledgements_go_in_front_of_what_is_not_written_yet() -> None:
    """Of four mebibytes, a write takes one; with the next write goes what was acknowledged meanwhile, and first."""
    world = World()
    producer, consumer = attached(world, explicit=True)
    producer.send(b"x")
    producer.channel.want_acknowledgement()
    world.settle()
    link: Any = consumer.channel.link
    assert [consumer.channel.upquery(bytes(MIB)) for _ in range(5)] == [True] * 4 + [False]
    first = b"".join(link.output())
    assert link.more
    assert len(first) == HEADER_SIZE + WRITE_LIMIT
    consumer.ack(1)
    assert kinds(b"".join(link.output())) == [Kind.ACK, Kind.UPQUERY]


def test_nothing_follows_the_last_word() -> None:
    world = World()
    producer, consumer = attached(world)
    world.stalled.add(producer.channel.core)
    assert consumer.channel.upquery(b"k=1")
    consumer.channel.close("enough", world.now)
    world.settle()
    assert kinds(wire_of(world).inbox)[-1] is Kind.CLOSED


# -- connections that are lost


def asked_over_a_cut() -> list[bytes]:
    """What a producer is given that has taken nothing of its first connection as that is cut."""
    world = World()
    producer, consumer = attached(world)
    assert consumer.channel.upquery(b"of the first")
    world.settle()
    assert producer.channel.upqueries == 1
    world.cut(wire_of(world))
    world.run(lambda: producer.channel.state is SenderState.ATTACHED)
    world.settle()
    assert consumer.channel.upquery(b"of the second")
    world.settle()
    return taken(producer)


def test_what_was_not_taken_goes_with_its_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    """And with one queue for all connections, it would not."""
    assert asked_over_a_cut() == [b"of the second"]
    monkeypatch.setattr(Connection, "upqueries", Upqueries())
    assert asked_over_a_cut() == [b"of the first", b"of the second"]


def asked_late() -> tuple[int, list[bytes]]:
    """What reaches a producer of bytes that its first connection gives out when the second is attached."""
    world = World()
    producer, _ = attached(world)
    first: Any = producer.channel.link
    world.cut(wire_of(world))
    world.run(lambda: producer.channel.state is SenderState.ATTACHED)
    assert producer.channel.link is not first
    say(first, signal(Kind.UPQUERY, payload=b"late"), world.now)
    return producer.channel.upqueries, taken(producer)


def test_late_bytes_of_an_old_connection_ask_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also if it were still read: what it carries waits apart. With neither rule, they would."""
    assert asked_late() == (0, [])

    def still_read(self: Link, reason: str, now: float) -> None:
        """The connection is over, and does not know it."""
        channel = self.channel  # type: ignore[attr-defined]
        lost(self, reason, now)
        self.channel, self.closing = channel, self.closing.OPEN  # type: ignore[attr-defined]

    lost = Link.lost
    monkeypatch.setattr(SenderData, "lost", still_read)
    assert asked_late() == (1, [])
    monkeypatch.setattr(Connection, "upqueries", Upqueries())
    assert asked_late() == (1, [b"late"])


def test_none_is_sent_again() -> None:
    """What a lost connection carried is not on the next one."""
    world = World()
    producer, consumer = attached(world)
    world.stalled.add(producer.channel.core)
    assert consumer.channel.upquery(b"under way")
    world.settle()
    world.cut(wire_of(world))
    world.stalled.clear()
    world.run(lambda: producer.channel.state is SenderState.ATTACHED)
    world.pass_time(10)
    assert producer.channel.upqueries == 0


# -- peers that flood, and what is against the rules


def flooded(world: World, count: int, size: int) -> list[bytes]:
    """What a producer is given that took nothing while so many came from a peer that keeps to no bound."""
    producer, _ = attached(world)
    for number in range(count):
        wire_of(world).inbox += signal(Kind.UPQUERY, payload=number.to_bytes(4, "little") + bytes(size - 4))
        world.settle()
    assert producer.channel.upqueries == count
    given = taken(producer)
    assert producer.channel.upqueries_dropped == count - len(given)
    return given


@pytest.mark.parametrize(("size", "kept"), [(4, 1024), (4096, 1024), (4097, 1023), (MIB, 4)])
def test_a_flood_is_bounded(
    size: int, kept: int, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """1 024 and 4 MiB are kept, of the latest; one warning says so. Without the bound, all are."""
    count = kept + 200
    given = flooded(World(), count, size)
    assert [int.from_bytes(each[:4], "little") for each in given] == list(range(200, count))
    assert len([each for each in caplog.records if "drops upqueries" in each.message]) == 1
    monkeypatch.setattr(Upqueries, "fits", lambda self, body: True)
    assert len(flooded(World(), count, size)) == count


def test_a_consumer_that_floods_is_told() -> None:
    """Where its connection takes nothing, what it asks piles up to the same bound, and not beyond."""
    world = World()
    producer, consumer = attached(world)
    world.stalled.add(consumer.channel.core)
    assert [consumer.channel.upquery(b"k") for _ in range(1030)] == [True] * 1024 + [False] * 6
    world.stalled.clear()
    world.settle()
    assert len(taken(producer)) == 1024


WRONG = {
    "too large": (signal(Kind.UPQUERY, payload=bytes(MIB + 1)), "upquery of 1048577 bytes .* 1048576"),
    "changed on the way": (
        signal(Kind.UPQUERY, payload=b"k=1")[:-1] + b"2",
        "it was corrupted in transit",
    ),
    "a changed length": (
        signal(Kind.UPQUERY, payload=b"k=1")[:12] + b"\x04" + signal(Kind.UPQUERY, payload=b"k=1")[13:],
        "does not match its check",
    ),
}


@pytest.mark.parametrize("how", WRONG)
def test_what_is_against_the_rules_ends_the_connection(how: str, caplog: pytest.LogCaptureFixture) -> None:
    """Nothing of it is given out; the channel goes on over the next connection, with every message once."""
    said, why = WRONG[how]
    world = World()
    producer, consumer = attached(world)
    producer.send(b"before")
    wire_of(world).inbox += said
    world.run(lambda: producer.channel.reconnects == 1)
    producer.send(b"behind")
    world.settle()
    assert taken(producer) == []
    consumer.read()
    assert consumer.values == [b"before", b"behind"]
    assert re.search(why, caplog.text)


def test_none_comes_in_front_of_the_answer_to_a_token(caplog: pytest.LogCaptureFixture) -> None:
    world = World()
    world.inbox(world.receiver())
    producer = world.open(world.sender())
    while producer.channel.state is not SenderState.GRANTED:
        world.step()
    link: Any = producer.channel.link
    say(link, signal(Kind.UPQUERY, payload=b"k=1"), world.now)
    assert "UPQUERY at the wrong time" in caplog.text
    assert producer.channel.upqueries == 0


def test_what_is_put_back_is_next_if_there_is_room() -> None:
    waiting = Upqueries()
    for number in range(1024):
        waiting.add(b"%d" % number)
    first = waiting.take()
    assert waiting.put_back(first)
    assert waiting.take() == b"0"
    waiting.add(b"1024")
    assert not waiting.put_back(b"0")
    assert [waiting.take() for _ in range(len(waiting))] == [b"%d" % number for number in range(1, 1025)]
