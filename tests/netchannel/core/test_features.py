"""What a smaller peer says in its hello that it cannot do: it is not sent that, and who wanted to is told."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from netchannel.core.receiving.offers import Lease
from netchannel.core.receiving.sessions import ReceiverControl
from netchannel.core.sending.outbound import OutboundChannel
from netchannel.core.sending.sender_core import SenderControl
from netchannel.core.states import SenderState
from netchannel.errors import HandshakeError, MessageTooLarge
from netchannel.policies import BufferPolicy
from netchannel.wire.frames import WHOLE_LIMIT
from tests.support.world import Producer, World

WORDS = pa.record_batch({"d": pa.array(["x", "y", "x"]).dictionary_encode()})


def without(monkeypatch: pytest.MonkeyPatch, side: type, *features: str) -> None:
    monkeypatch.setattr(side, "features", side.features - set(features))  # type: ignore[attr-defined]


def connected(world: World, **settings: Any) -> tuple[Producer, Any]:
    consumer = world.inbox(world.receiver(), codec=settings.get("codec", "bytes"))
    producer = world.open(world.sender(), **settings)
    world.run(lambda: producer.channel.state in {SenderState.ATTACHED, SenderState.BROKEN})
    return producer, consumer


def gave_up(channel: OutboundChannel) -> str:
    assert channel.state is SenderState.BROKEN
    assert isinstance(channel.error, HandshakeError)
    return str(channel.error)


def test_who_joins_no_pieces_is_sent_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """A message that would go in pieces is an error at `send`, and what goes in one frame arrives."""
    without(monkeypatch, ReceiverControl, "parts")
    producer, consumer = connected(world := World())
    with pytest.raises(MessageTooLarge, match=f"{WHOLE_LIMIT + 1} bytes.*{WHOLE_LIMIT}"):
        producer.send(bytes(WHOLE_LIMIT + 1))
    producer.send(bytes(WHOLE_LIMIT))
    world.settle()
    consumer.read()
    assert [len(value) for value in consumer.values] == [WHOLE_LIMIT]


@pytest.mark.parametrize("size", [1, WHOLE_LIMIT + 1])
def test_who_takes_no_notes_is_sent_none(monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    """The channel is given up with a sentence; what was sent before arrives, and nothing without its note."""
    without(monkeypatch, ReceiverControl, "notes")
    producer, consumer = connected(world := World())
    producer.send(b"before")
    world.settle()
    producer.send(bytes(size), note=b"n")
    world.settle()
    assert "receiver r:1 at r:1 does not accept notes" in gave_up(producer.channel)
    consumer.read()
    assert consumer.values == [b"before"]


def test_who_takes_no_dictionaries_is_sent_none(monkeypatch: pytest.MonkeyPatch) -> None:
    without(monkeypatch, ReceiverControl, "contexts")
    producer, consumer = connected(world := World(), codec="arrow")
    producer.send(WORDS)
    world.settle()
    assert "does not accept dictionaries" in gave_up(producer.channel)
    assert not consumer.channel.queue


def test_who_takes_no_gaps_is_sent_none(monkeypatch: pytest.MonkeyPatch) -> None:
    without(monkeypatch, ReceiverControl, "gaps")
    producer, _ = connected(World(), buffer=BufferPolicy(when_full="drop_oldest"))
    assert "does not accept gaps" in gave_up(producer.channel)


def test_who_takes_all_is_sent_all() -> None:
    """What the others rest on."""
    producer, consumer = connected(
        world := World(), codec="arrow", buffer=BufferPolicy(when_full="drop_oldest")
    )
    producer.send(WORDS, note=b"n")
    world.settle()
    consumer.read()
    assert consumer.items[0].note == b"n"


def test_who_dials_no_other_port_comes_to_the_one_that_it_knows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where channels have ports of their own."""
    ports: list[int] = []

    def lease() -> Lease:
        ports.append(4)
        return Lease(4, lambda: None)

    def attempt(world: World) -> SenderState:
        receiver = world.receiver()
        receiver.open_requests.offers.lease = lease
        world.inbox(receiver)
        producer = world.open(world.sender())
        world.pass_time(1)
        return producer.channel.state

    assert attempt(World()) is not SenderState.ATTACHED  # nobody listens at port 4 here
    assert set(ports) == {4}
    ports.clear()
    without(monkeypatch, SenderControl, "ports")
    assert attempt(World()) is SenderState.ATTACHED
    assert ports == []


def test_who_goes_nowhere_else_is_told_where_to_ask(monkeypatch: pytest.MonkeyPatch) -> None:
    """A sender that does not follow is denied, with the port; it is there that it has to be started."""
    without(monkeypatch, SenderControl, "elsewhere")
    world = World()
    world.receiver("r:1", members="unix:m")
    member = world.receiver("r:2", node="unix:m")
    world.settle()
    world.inbox(member)
    world.settle()
    producer = world.open(world.sender())
    world.pass_time(1)
    assert producer.channel.state is SenderState.DENIED
    assert "call port 2" in producer.channel.last_failure


def test_large_messages_without_notes_go_to_who_takes_pieces_and_no_notes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    without(monkeypatch, ReceiverControl, "notes", "contexts", "gaps")
    producer, consumer = connected(world := World())
    producer.send(bytes(WHOLE_LIMIT + 1))
    world.settle()
    consumer.read()
    assert [len(value) for value in consumer.values] == [WHOLE_LIMIT + 1]
