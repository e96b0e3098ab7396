"""Hundreds of runs through every fault; and that each safeguard is one: without it, a run or a test fails."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from netchannel import NetChannelError, Position
from netchannel.core.control_connection import FOR_DATA, greeting
from netchannel.core.receiving.data_receiver import ReceiverData
from netchannel.core.receiving.inbound import InboundChannel
from netchannel.core.receiving.offers import Offer, Offers
from netchannel.core.receiving.tombstones import Tombstones
from netchannel.core.sending.data_sender import SenderData
from netchannel.core.sending.lender import Lender, Loan
from netchannel.core.sending.outbound import OutboundChannel
from netchannel.core.sending.packer import Ticket
from netchannel.core.sending.send_buffer import Record, SendBuffer
from netchannel.core.states import RECEIVER_TABLE, SENDER_TABLE, ReceiverState, SenderState
from netchannel.core.upqueries import Upqueries
from netchannel.storage import SegmentLog
from netchannel.storage.durable_writer import DurableWriter
from netchannel.storage.tail import Tail
from netchannel.wire import frame_parser
from netchannel.wire.frames import Frame, Kind, signal, unpack
from tests.simulator import simulate
from tests.simulator.oracle import Violation
from tests.simulator.running import run
from tests.simulator.simulation import FAULT_TABLE, MESSAGES
from tests.support.world import World

NOTICED_BY = {
    "fencing": 1191,
    "tombstone": 30,
    "checksum": 77,
    "sync": 36,
    "memory in use": 41,
    "memory in use of a lost session": 30,
}
"""Seeds that noticed that a safeguard was missing when they were last looked for: the search begins there."""
MET_BY = {("sender", "granted", "detach"): 878}
"""Of transitions that are met once in some thousand runs, who did so."""
SEEDS = [*range(500), *sorted(seed for seed in {*NOTICED_BY.values(), *MET_BY.values()} if seed >= 500)]
"""`make simulate` runs any number."""
CLASSES = {
    "an acknowledgement is lost",
    "messages in flight are lost",
    "a frame is torn",
    "an end is lost",
    "a stall outlives the heartbeat budget",
    "a peer vanishes without a word",
    "a write is torn by a power cut",
    "the sender dies before its end is acknowledged",
    "a receiver crashes after its acknowledgement",
    "a receiver crashes with messages that it had acknowledged",
    "references in flight are lost",
    "a body is in use as its memory goes",
    "upqueries arrive",
    "upqueries are lost",
}

RARE = {("sender", "granted", "finished")}
"""Met once in some thousand runs; `test_core` has it."""


@pytest.mark.processes
@pytest.mark.timeout(300)
def test_hundreds_of_runs_keep_every_promise() -> None:
    """CH-SEQ-2, CH-SEQ-3, CH-DUR-3, CH-END-4, CH-CTL-4: and they meet every transition, fault and class of failure."""
    assert MESSAGES >= 200
    reports, violations = run(SEEDS)
    assert violations == []
    assert min(report.faults for report in reports) >= 5
    met: Counter[str] = sum((report.met for report in reports), Counter())
    assert {fault.__name__ for fault in FAULT_TABLE} | CLASSES <= set(met)
    transitions = set().union(*[report.transitions for report in reports])
    tables = {"sender": SENDER_TABLE, "receiver": RECEIVER_TABLE}
    assert transitions | RARE == {
        (side, str(state), str(event)) for side, table in tables.items() for state, event in table
    }


@pytest.mark.parametrize("seed", [11, 64, 1424])
def test_a_run_is_repeated_by_its_seed(seed: int) -> None:
    """The same messages at the same virtual times, and the same transitions."""
    assert simulate(seed) == simulate(seed)


# -- each safeguard is taken out in turn


def without_dedup(self: InboundChannel, frame: Frame) -> None:
    """Every message of a frame is taken as new."""
    self._due(frame.sequence)
    bodies, notes, _ = unpack(frame)
    expected, self.expected = self.expected, frame.sequence
    self.take_in(bodies, notes, frame.timestamp)
    self._received_to(max(expected or 0, frame.sequence + frame.items))


def without_resending(self: SendBuffer) -> Record | None:
    """What was sent is forgotten."""
    record = self.unsent.popleft() if self.unsent else None
    if isinstance(record, Record):
        self.memory -= record.size
        return record
    return None


def without_sync(self: Tail) -> None:
    """The disk is believed without asking."""
    self.synced = True


def without_waiting_for_the_disk(
    self: DurableWriter, record: Record, ticket: Ticket, taken_bytes: int
) -> None:
    """A record goes out at once, and to the disk beside that."""
    take(self, record, ticket, taken_bytes)
    self.upto = record.end
    self.channel.send_buffer.add(record)


take = DurableWriter.take


def any_token(self: Offers, token: bytes) -> Offer | None:
    """Whoever comes is taken for the one that is waited for."""
    return take_token(self, next(iter(self._offers), token))


take_token = Offers.take


def returned_when_lost(self: Lender, token: bytes) -> None:
    """What was lent over a connection is written to as soon as this side has lost it."""
    loan = self._loans.pop(token, Loan())
    for offset, size in loan.sizes.items():
        self._free.give_back(offset, size)
    loan.sizes.clear()
    loan.over = True


def returned_when_over(self: Lender, token: bytes, packed: bytes) -> None:
    """The same, once the other side has lost it, whatever is in use there."""
    holds(self, token, packed)
    for offset, size in self._left.sizes.items():
        self._free.give_back(offset, size)
    self._left.sizes.clear()


holds = Lender._holds


def given_back_in_use(self: Lender) -> None:
    """With the control connection, all of the memory goes."""
    self._over = True
    memory, self._memory = self._memory, None
    if memory is not None:
        self._shared_memory.give_back(memory, 0, len(memory))


def kept_over_connections(self: SenderData, channel: OutboundChannel, body: bytes) -> None:
    """What a consumer asks waits with the channel, whichever connection it came on."""
    self.upqueries = channel.__dict__.setdefault("waiting upqueries", Upqueries())
    channel.on_upquery(self.upqueries, body)


def nothing(*_: Any) -> None:
    """The safeguard does nothing."""


SAFEGUARDS: dict[str, list[tuple[Any, str, Callable[..., Any]]]] = {
    "fencing": [(ReceiverData, "supersede", nothing)],
    "retain until acknowledged": [(SendBuffer, "next_record", without_resending)],
    "tombstone": [(Tombstones, "bury", nothing)],
    "checksum": [(frame_parser, "_compare", nothing)],
    "sync": [(Tail, "sync", without_sync)],
    "sync before send": [
        (DurableWriter, "take", without_waiting_for_the_disk),
        (DurableWriter, "_keep", nothing),
        (SegmentLog, "trim", nothing),  # which refuses what is acknowledged and not durable
    ],
    "upqueries of a lost connection": [(SenderData, "_asked", kept_over_connections)],
    "memory of a lost connection": [(Lender, "lost", returned_when_lost)],
    "memory in use": [(Lender, "_holds", returned_when_over)],
    "memory in use of a lost session": [(Lender, "close", given_back_in_use)],
}


@pytest.mark.parametrize("safeguard", SAFEGUARDS)
def test_a_run_notices_what_is_missing(safeguard: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Negative controls: without it, one of the runs of the test above breaks a promise."""
    for where, name, instead in SAFEGUARDS[safeguard]:
        monkeypatch.setattr(where, name, instead)
    assert any(broken(seed) for seed in (NOTICED_BY.get(safeguard, 0), *SEEDS))


def broken(seed: int) -> bool:
    """Whether a promise was, or a core or the log found something that cannot be."""
    try:
        simulate(seed)
    except (Violation, KeyError, NetChannelError):
        return True
    return False


def go_on_within_a_frame() -> list[bytes]:
    """What a successor is given where its predecessor has read and acknowledged 7 of 20 messages of one frame."""
    world = World()
    producer, receiver = world.open(world.sender()), world.receiver()
    for number in range(20):
        producer.send(bytes([number]))
    first = world.inbox(receiver, explicit=True)
    world.settle()
    first.read(7)
    first.channel.ack(7, world.now)
    world.settle()
    first.channel.detach(world.now)
    second = world.inbox(receiver, explicit=True, resume_from=Position("s", 7))
    world.pass_time(5.0)
    second.read()
    return [*first.values, *second.values]


def test_what_was_read_of_a_frame_is_not_given_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """CH-SEQ-2: though the whole frame is sent once more; and with the check of numbers taken out, it is."""
    each_once = [bytes([number]) for number in range(20)]
    assert go_on_within_a_frame() == each_once
    monkeypatch.setattr(InboundChannel, "deliver", without_dedup)
    assert go_on_within_a_frame() == [*each_once[:7], *each_once]


def attach_with_a_guess() -> ReceiverState:
    """A stranger presents a token of its own while the channel is granted to another; where that leaves it."""
    world = World()
    producer, consumer = world.open(world.sender()), world.inbox(world.receiver())
    while producer.channel.state is not SenderState.GRANTED:
        world.step()
    stranger = consumer.channel.core.accept("stranger")
    for data in (greeting(FOR_DATA), signal(Kind.ATTACH, payload=bytes(16))):
        link = stranger.replacement or stranger
        link.get_buffer(len(data))[: len(data)] = data
        link.received(len(data), world.now)
    return consumer.channel.state


def test_a_guessed_token_attaches_nowhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """CH-DATA-3: and with the check of tokens taken out, it does."""
    assert attach_with_a_guess() is ReceiverState.REGISTERED
    monkeypatch.setattr(Offers, "take", any_token)
    assert attach_with_a_guess() is ReceiverState.ATTACHED
