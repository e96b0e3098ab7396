"""Bodies in shared memory, without a system: what is in use, what comes back, and what is against the rules."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from netchannel.core.receiving.borrower import Borrower
from netchannel.core.sending import data_sender
from netchannel.core.sending.lender import GRAIN, FreeList, Lender, Loan
from netchannel.core.sending.outbound import OutboundChannel
from netchannel.core.states import SenderState
from netchannel.errors import ProtocolError
from netchannel.wire import messages
from netchannel.wire.declarations import Message
from netchannel.wire.frames import Scattered, packed_offsets
from tests.support.world import Consumer, Producer, World

SIZE = 16 * GRAIN
BODY = 1 << 16


class Sides:
    """A sender and a receiver of one host, with ``size`` bytes in common."""

    def __init__(self, size: int = 8 * BODY, **settings: Any) -> None:
        self.world = World()
        self.sender, self.receiver = self.world.sender(), self.world.receiver()
        for core in (self.sender, self.receiver):
            self.world.share(core, size)
        self.consumer: Consumer = self.world.inbox(self.receiver, **settings)
        self.producer: Producer = self.world.open(self.sender)
        self.world.run(lambda: self.channel.state is SenderState.ATTACHED)
        self.producer.send(bytes(BODY))  # asks for the memory
        self.world.settle()
        self.consumer.read()
        self.let_go()

    @property
    def channel(self) -> OutboundChannel:
        return self.producer.channel

    @property
    def lender(self) -> Lender:
        (peer,) = self.sender.peers.values()
        assert peer.control is not None
        assert peer.control.lender is not None
        return peer.control.lender

    @property
    def free(self) -> int:
        return sum(
            end - start for start, end in zip(self.lender._free.starts, self.lender._free.ends, strict=True)
        )

    def let_go(self) -> None:
        """The consumer is done with all that it has read, and waits for more."""
        self.consumer.items.clear()
        assert self.consumer.channel.take() is None
        self.world.settle()

    def acknowledge(self) -> None:
        """Acknowledge all that was read; or let pass the time for which that is put off."""
        if self.consumer.channel.explicit:
            self.consumer.ack(self.channel.head)
        self.world.pass_time(0.01)
        assert self.channel.acknowledged == self.channel.head

    def send(self, *values: int) -> None:
        for value in values:
            self.producer.send(bytes([value]) * BODY)
            self.world.settle()
        self.consumer.read()


def test_what_the_consumer_lets_go_of_is_free_at_once() -> None:
    sides = Sides()
    sides.send(1, 2, 3)
    assert sides.free == 5 * BODY
    del sides.consumer.items[1]
    sides.world.settle()
    assert sides.free == 6 * BODY
    sides.let_go()
    assert sides.free == 8 * BODY


def test_a_lost_connection_leaves_in_use_what_is() -> None:
    """The rest is free once the receiver says so, and what is in use when that is let go of."""
    sides = Sides()
    sides.send(1, 2, 3)
    del sides.consumer.items[0]
    (data,) = sides.world.wires(control=False)
    sides.world.cut(data)
    sides.world.run(lambda: sides.channel.state is SenderState.ATTACHED and sides.free > 5 * BODY)
    assert sides.free == 6 * BODY
    sides.send(4)
    assert [body[0] for body in sides.consumer.values] == [2, 3, 4]
    sides.let_go()
    assert sides.free == 8 * BODY


def test_what_is_on_its_way_on_a_lost_connection_is_not_written_to() -> None:
    """As long as its other end may read it."""
    sides = Sides()
    (data,) = sides.world.wires(control=False)
    sides.world.stalled.add(sides.receiver)
    sides.producer.send(b"\1" * BODY)
    sides.world.settle()
    assert sides.free == 7 * BODY
    data.link.lost("reset", sides.world.now)  # and the receiver has not heard of it
    data.over = True
    sides.world.ends.remove(data)
    sides.world.pass_time(1.0)
    assert sides.free == 7 * BODY
    sides.world.stalled.clear()
    sides.world.run(lambda: sides.channel.state is SenderState.ATTACHED)
    sides.consumer.read()
    assert [body[0] for body in sides.consumer.values] == [1]
    sides.let_go()
    assert sides.free == 8 * BODY


def test_a_sender_waits_for_a_receiver_that_does_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """As a socket would be full; and goes on when it reads."""
    monkeypatch.setattr(data_sender, "AHEAD_LIMIT", 2 * BODY)
    sides = Sides()
    sides.world.stalled.add(sides.receiver)
    for value in range(6):
        sides.producer.send(bytes([value]) * BODY)
    sides.world.settle()
    assert sides.free == 5 * BODY
    assert sides.channel.link is not None
    assert sides.channel.link.held_back
    assert sides.channel.sent == 4
    sides.world.stalled.clear()
    sides.world.settle()
    sides.consumer.read()
    assert [body[0] for body in sides.consumer.values] == list(range(6))


def test_what_is_lent_counts_less_than_what_is_written(monkeypatch: pytest.MonkeyPatch) -> None:
    """A quarter of large bodies, the smallest in full, and all of what finds no room."""
    large = 16 * BODY
    monkeypatch.setattr(data_sender, "WRITE_LIMIT", large // 2)
    sides = Sides(size=7 * large)
    link = sides.channel.link
    assert link is not None
    for size in (*[large] * 6, *[BODY] * 10, large):
        sides.producer.send(bytes(size))
    writes = []
    while buffers := link.output():
        writes.append((len(buffers), sum(map(len, buffers)) > large))
    assert writes == [(2, False), (2, False), (2, False), (8, False), (4, True)]
    assert sides.channel.shared_bytes == 6 * large + 10 * BODY


def test_bodies_in_pieces_are_copied_from_where_they_are() -> None:
    said: list[Message] = []
    memory = bytearray(SIZE)
    lender = lent(memory, said)
    loan = lender.loan(b"t")
    first = lender.lend(loan, b"x" * 100)
    assert lender.lend(loan, Scattered([b"ab", memoryview(bytearray(b"cd")), b"e"])) == GRAIN
    assert (first, memory[GRAIN : GRAIN + 5]) == (0, b"abcde")


class _Known:
    """A host whose memory is there already."""

    size, place = SIZE, bytes(16)

    def __init__(self, memory: bytearray) -> None:
        self.memory = memory

    def hand_over(self, meeting: bytes, token: bytes, size: int) -> memoryview:
        return memoryview(self.memory)[:size]


def lent(memory: bytearray, said: list[Message]) -> Lender:
    lender = Lender(_Known(memory), "peer", said.append)  # type: ignore[arg-type]
    assert lender.lend(Loan(), b"x") is None
    assert said == [messages.Share(place=bytes(16))]
    lender.told(messages.Meet(meeting=bytes(16), token=bytes(16), size=SIZE))
    lender.told(messages.Shared(size=SIZE))
    return lender


WRONG_TO_SENDER = {
    "memory that nobody handed over": [messages.Shared(size=SIZE)],
    "a second meeting": [
        messages.Share(place=bytes(16)),
        messages.Meet(meeting=bytes(16), token=bytes(16), size=SIZE),
        messages.Meet(meeting=bytes(16), token=bytes(16), size=SIZE),
    ],
    "a meeting in the place of memory that is there": [
        messages.Share(place=bytes(16)),
        messages.Meet(meeting=bytes(16), token=bytes(16), size=SIZE),
        messages.Shared(size=SIZE),
        messages.Meet(meeting=bytes(16), token=bytes(16), size=GRAIN),
    ],
    "a meeting that nobody asked for": [messages.Meet(meeting=bytes(16), token=bytes(16), size=SIZE)],
    "what is not in use": [messages.Released(offsets=packed_offsets([0]))],
    "held, and not in use": [messages.Holds(token=bytes(16), offsets=packed_offsets([0]))],
}


@pytest.mark.parametrize("what", WRONG_TO_SENDER)
def test_what_a_receiver_may_not_say(what: str) -> None:
    lender = Lender(_Known(bytearray(SIZE)), "peer", lambda message: None)  # type: ignore[arg-type]
    *before, last = WRONG_TO_SENDER[what]
    for message in before:
        if isinstance(message, messages.Share):
            lender.lend(Loan(), b"x")
        else:
            lender.told(message)  # type: ignore[arg-type]
    with pytest.raises(ProtocolError, match="peer"):
        lender.told(last)  # type: ignore[arg-type]


def test_a_receiver_without_memory_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    """However often it says so, and only if it was asked; one that has memory has it."""
    caplog.set_level(logging.INFO, "netchannel")
    none = messages.Shared(size=0)
    lender = Lender(_Known(bytearray(SIZE)), "peer", lambda message: None)  # type: ignore[arg-type]
    lender.told(none)
    assert caplog.records == []
    lender.lend(Loan(), b"x")
    for _ in range(3):
        lender.told(none)
    (line,) = caplog.records
    assert line.getMessage().startswith("peer takes no messages in shared memory: ")
    caplog.clear()
    lent(bytearray(SIZE), []).told(none)
    assert [record.getMessage() for record in caplog.records] == [
        f"peer takes messages in shared memory: at most {SIZE} bytes of it"
    ]


def test_what_was_returned_is_not_returned_again() -> None:
    lender = lent(bytearray(SIZE), [])
    loan = lender.loan(b"t")
    assert lender.lend(loan, b"x") == 0
    lender.returned(loan, packed_offsets([0]))
    with pytest.raises(ProtocolError, match="which it does not hold"):
        lender.returned(loan, packed_offsets([0]))
    with pytest.raises(ProtocolError, match="8 bytes each: 7 bytes arrived"):
        lender.returned(loan, bytes(7))


def test_what_a_connection_said_may_be_read_behind_its_end() -> None:
    """That is said on the control connection, which the sender may read first."""
    lender = lent(bytearray(SIZE), [])
    loan = lender.loan(bytes(16))
    assert [lender.lend(loan, b"x"), lender.lend(loan, b"x")] == [0, GRAIN]
    lender.told(messages.Holds(token=bytes(16), offsets=packed_offsets([GRAIN])))
    lender.returned(loan, packed_offsets([0]))
    other = lender.loan(b"another connection")
    assert [lender.lend(other, b"x"), lender.lend(other, b"x")] == [0, 2 * GRAIN]


def borrower() -> Borrower:
    sides = Sides(SIZE)
    (session,) = sides.receiver.sessions
    assert session.borrower is not None
    return session.borrower


class _By:
    def release(self, offset: int) -> None:
        """Nobody is told."""


@pytest.mark.parametrize(
    ("offset", "size"),
    [(SIZE, 1), (SIZE - 64, 65), (0, SIZE + 1), (1 << 63, 1), (0, 1 << 63), (0, 0), (32, 64), (8, 8)],
)
def test_a_body_lies_within_the_memory(offset: int, size: int) -> None:
    with pytest.raises(ProtocolError, match="expected a body within the memory"):
        borrower().body(offset, size, _By())


@pytest.mark.parametrize(("offset", "size"), [(128, 64), (64, 65), (0, 1024), (192, 1), (128, 1), (0, 129)])
def test_a_body_touches_no_other(offset: int, size: int) -> None:
    here = borrower()
    kept = here.body(128, 65, _By())
    with pytest.raises(ProtocolError, match="overlaps another body in use"):
        here.body(offset, size, _By())
    assert len(kept) == 65
    assert [len(here.body(*each, _By())) for each in ((0, 128), (256, SIZE - 256))] == [128, SIZE - 256]


def test_free_parts_are_joined() -> None:
    free = FreeList(100)
    assert [free.take(size) for size in (10, 20, 30, 40, 1)] == [0, 10, 30, 60, None]
    for start, size in ((10, 20), (60, 40), (0, 10), (30, 30)):
        free.give_back(start, size)
    assert (free.starts, free.ends) == ([0], [100])
    assert free.take(100) == 0
    assert free.starts == []


def made(sides: Sides, value: int, size: int = BODY) -> memoryview:
    """A body that a producer has made in the memory of both."""
    memory = sides.channel.allocate(size)
    assert memory is not None
    view = memoryview(memory).cast("B")
    view[:] = bytes([value]) * size
    return view


def copies(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The lengths of bodies that are copied from now on."""
    lengths = []
    copied = Lender._copied

    def noted(self: Lender, memory: memoryview, loan: Loan, body: Any) -> int | None:
        lengths.append(len(body))
        return copied(self, memory, loan, body)

    monkeypatch.setattr(Lender, "_copied", noted)
    return lengths


def test_what_is_made_in_the_memory_is_not_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor is its beginning; it is free once it is acknowledged, and nobody has it at either end."""
    sides = Sides()
    copied = copies(monkeypatch)
    sides.producer.send(made(sides, 1))
    sides.producer.send(made(sides, 2, 2 * BODY)[: BODY + 7])
    assert sides.free == 5 * BODY
    sides.world.settle()
    sides.consumer.read()
    assert sides.consumer.values == [b"\1" * BODY, b"\2" * (BODY + 7)]
    assert sides.channel.shared_bytes == 2 * BODY + 7
    assert copied == []
    sides.let_go()
    sides.acknowledge()
    assert sides.free == 8 * BODY


def test_what_is_never_sent_is_given_back() -> None:
    sides = Sides()
    parts = [made(sides, value) for value in range(8)]
    assert sides.channel.allocate(BODY) is None
    del parts[2:]
    sides.world.settle()
    assert sides.free == 6 * BODY
    sides.channel.finish()
    sides.world.settle()
    parts.clear()
    sides.world.settle()
    assert sides.free == 8 * BODY


def test_what_the_receiver_lets_go_of_first_is_its_producers() -> None:
    """Until it is acknowledged, too: it may have to be sent again."""
    sides = Sides(explicit=True)
    sides.acknowledge()
    sides.producer.send(made(sides, 1))
    sides.world.settle()
    sides.consumer.read()
    sides.let_go()
    assert sides.free == 7 * BODY
    sides.acknowledge()
    assert sides.free == 8 * BODY


def test_what_its_producer_has_is_free_last() -> None:
    """And first what the receiver has."""
    sides = Sides()
    body = made(sides, 1)
    sides.producer.send(body)
    sides.world.settle()
    sides.consumer.read()
    sides.let_go()
    sides.acknowledge()
    assert sides.free == 7 * BODY
    del body
    sides.world.settle()
    assert sides.free == 8 * BODY


def test_what_is_read_there_is_copied_if_it_is_sent_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """No two bodies in use touch each other; and once it is not read any more, it goes from where it is."""
    sides = Sides()
    copied = copies(monkeypatch)
    body = made(sides, 1, BODY + 64)
    for part in (body, body, body[64:]):
        sides.producer.send(part)
        sides.world.settle()
    assert copied == [BODY + 64, BODY]
    sides.consumer.read()
    assert sides.consumer.values == [b"\1" * (BODY + 64)] * 2 + [b"\1" * BODY]
    sides.let_go()
    sides.producer.send(body[64:])
    sides.world.settle()
    assert copied == [BODY + 64, BODY]
    sides.consumer.read()
    assert sides.consumer.values == [b"\1" * BODY]


@pytest.mark.parametrize("start", [1, 32, 3 * GRAIN])
def test_what_begins_elsewhere_is_copied(start: int, monkeypatch: pytest.MonkeyPatch) -> None:
    sides = Sides()
    copied = copies(monkeypatch)
    sides.producer.send(made(sides, 1, 2 * BODY)[start:])
    sides.world.settle()
    assert copied == [2 * BODY - start]


def test_a_lost_connection_leaves_its_producers_body(monkeypatch: pytest.MonkeyPatch) -> None:
    """What was on its way is sent again from where it is, once its other end reads it no more."""
    sides = Sides()
    copied = copies(monkeypatch)
    (data,) = sides.world.wires(control=False)
    sides.world.stalled.add(sides.receiver)
    sides.producer.send(made(sides, 1))
    sides.world.settle()
    sides.world.cut(data)
    sides.world.stalled.clear()
    sides.world.run(lambda: sides.channel.state is SenderState.ATTACHED)
    sides.world.settle()
    sides.consumer.read()
    assert sides.consumer.values == [b"\1" * BODY]
    assert copied == []
    sides.let_go()
    sides.acknowledge()
    assert sides.free == 8 * BODY


def test_a_new_control_connection_has_other_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """What was made in the old one is sent by the socket, or copied."""
    sides = Sides()
    old = made(sides, 1)
    lender = sides.lender
    (control,) = sides.world.wires(control=True)
    sides.world.cut(control)
    sides.world.run(lambda: sides.channel.state is SenderState.ATTACHED)
    assert sides.lender is not lender
    sides.send(0)
    sides.let_go()
    copied = copies(monkeypatch)
    sides.producer.send(old)
    sides.world.settle()
    sides.consumer.read()
    assert copied == [BODY]
    assert sides.consumer.values == [b"\1" * BODY]
    del old
    sides.let_go()
    sides.acknowledge()
    assert sides.free == 8 * BODY


def test_small_bodies_are_made_elsewhere() -> None:
    sides = Sides()
    assert sides.channel.allocate(BODY - 1) is None
    assert sides.channel.allocate(8 * BODY + 1) is None
    assert sides.free == 8 * BODY
