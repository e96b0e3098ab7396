"""Who gets a channel, where the network may bring anything late, behind what came after it, again, or never."""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa
import pytest

from netchannel import NetChannelError, SchemaMismatch, Timing
from netchannel.core.client_core import ClientCore
from netchannel.core.connections import AcceptedControl
from netchannel.core.receiving.node_members import MemberControl
from netchannel.core.receiving.offers import COMING
from netchannel.core.receiving.open_requests import OpenRequests
from netchannel.core.receiving.requests import RequestControl
from netchannel.core.receiving.sessions import ReceiverControl
from netchannel.core.replay.history import MemoryHistory
from netchannel.core.replay.retained_outbound import RetainedOutbound
from netchannel.core.states import ReceiverState, SenderState
from netchannel.policies import FaultPolicy, RetainPolicy
from netchannel.wire import messages
from tests.simulator.network import FaultyWorld
from tests.support.world import Consumer, Producer, World

NUMBERS = pa.schema({"number": pa.int64()})
WORDS = pa.schema({"word": pa.string()})


def sent(producer: Producer, numbers: range) -> None:
    for number in numbers:
        producer.send(b"%d" % number)


def pair(world: World) -> tuple[Producer, Consumer]:
    consumer = world.inbox(world.receiver(), explicit=True)
    return world.open(world.sender()), consumer


@pytest.mark.parametrize("seed", range(5))
def test_an_open_behind_its_successor_changes_nothing(seed: int) -> None:
    """The sender has moved on by its next connection, when the receiver gets what it had asked on the one before."""
    world = FaultyWorld(seed, Timing())
    world.outrun_s = 3.0
    producer, consumer = pair(world)
    world.run(lambda: consumer.channel.attachments == 1)
    sent(producer, range(50))
    world.run(lambda: producer.channel.received == 50, limit_s=1.0)
    world.pass_time(10)
    assert (producer.channel.state, consumer.channel.state) == (SenderState.ATTACHED, ReceiverState.ATTACHED)
    assert consumer.channel.attachments == 1
    consumer.read()
    assert consumer.values == [b"%d" % number for number in range(50)]


@pytest.mark.parametrize("secret", [None, b"secret"])
@pytest.mark.parametrize("away", [False, True])
def test_a_control_connection_that_is_said_again_is_closed(secret: bytes | None, away: bool) -> None:
    """By whoever has listened, while the sender is there or not: it has not read what this receiver says."""
    world = FaultyWorld(1, Timing())
    receiver = world.receiver(secret=secret)
    consumer = world.inbox(receiver, explicit=True)
    producer = world.open(world.sender(secret=secret))
    sent(producer, range(50))
    world.run(lambda: producer.channel.received == 50)
    if away:
        world.crash(producer.channel.core)
    before = consumer.channel.state, consumer.channel.session
    assert world.replay()
    world.pass_time(1)
    assert (consumer.channel.state, consumer.channel.session) == before
    assert len(receiver.sessions) == (0 if away else 1)


def test_a_token_that_comes_late_ends_nothing() -> None:
    """A sender came with what it had when it was offered the channel; a successor has had it, and is further."""
    world = World(seed=3)
    producer, consumer = pair(world)
    while not world.wires(control=False):
        world.step()
    late = world.wires(control=False)[0].peer
    late.link.reading = False
    world.stalled.add(producer.channel.core)
    successor = world.open(world.sender("successor"))
    sent(successor, range(50))
    world.run(lambda: successor.channel.received == 50, limit_s=1.0)
    world.crash(successor.channel.core)
    world.run(lambda: consumer.channel.state is ReceiverState.REGISTERED, limit_s=1.0)
    late.link.reading = True
    world.settle()
    assert (consumer.channel.state, consumer.channel.expected) == (ReceiverState.REGISTERED, 50)


def test_two_senders_of_a_stream_do_not_fence_each_other_in_turn() -> None:
    """The second is told who has the channel, and has it once that one is gone."""
    world = World(seed=4)
    first, consumer = pair(world)
    world.run(lambda: first.channel.state is SenderState.ATTACHED)
    second = world.open(world.sender("second"), replayable=True)
    for _ in range(20):
        world.pass_time(1)
        assert (first.channel.state, second.channel.state) == (SenderState.ATTACHED, SenderState.DENIED)
    assert "is in use by sender at " in second.channel.last_failure
    assert consumer.channel.attachments == 1
    world.crash(first.channel.core)
    gone = world.now
    world.run(lambda: second.channel.state is SenderState.ATTACHED)
    assert world.now - gone < 0.01


OTHERS: dict[str, dict[str, object]] = {
    "codec": {"codec": "bytes", "stream": "t"},
    "schema": {"codec": "arrow", "schema": WORDS, "stream": "t"},
    "schema of the stream": {"codec": "arrow", "schema": WORDS},
    "stream": {"codec": "arrow", "schema": NUMBERS, "stream": "t"},
}


@pytest.mark.parametrize("other", OTHERS)
@pytest.mark.parametrize("detached", [False, True])
def test_who_does_not_hold_a_channel_can_only_be_denied(other: str, detached: bool) -> None:
    """A second producer gets an error, or waits; the first one and the consumer hear nothing of it."""
    world = World(seed=5)
    consumer = world.inbox(world.receiver(), codec="arrow")
    first = world.open(world.sender(), codec="arrow", schema=NUMBERS)
    world.run(lambda: first.channel.state is SenderState.ATTACHED)
    if detached:  # its data connection is gone for a moment
        world.cut(world.wires(control=False)[0])
        world.data_blocked = True
    second = world.open(world.sender("second"), **OTHERS[other])  # type: ignore[arg-type]
    world.pass_time(5)
    if other == "stream":
        assert second.channel.state is SenderState.DENIED
    else:
        with pytest.raises(SchemaMismatch, match="refused by receiver r:1"):
            second.send(b"x" if other == "codec" else pa.record_batch({"word": ["x"]}))
    batch = pa.record_batch({"number": [1]})
    first.send(batch)
    world.run(lambda: first.channel.acknowledged == 1)
    assert not consumer.channel.terminal


@pytest.mark.parametrize("other", ["codec", "schema"])
def test_whoever_comes_to_a_channel_that_nobody_holds_is_its_sender(other: str) -> None:
    """CH-ARW-4: another codec or schema is an error on both sides, before any data; once the sender is there."""
    world = World(seed=6)
    consumer = world.inbox(world.receiver(), codec="arrow", schema=NUMBERS)
    gone = world.open(world.sender("gone"), **OTHERS[other])  # type: ignore[arg-type]
    while gone.channel.state is not SenderState.GRANTED:
        world.step()
    world.crash(gone.channel.core)
    world.pass_time(1)
    assert not consumer.channel.terminal
    there = world.open(world.sender("there"), **OTHERS[other])  # type: ignore[arg-type]
    world.run(lambda: there.channel.terminal)
    for side in (there.channel.check_open, consumer.channel.take):
        with pytest.raises(SchemaMismatch):
            side()


class Kept:
    """A stream that is kept, and a client that asks for it."""

    def __init__(self, world: FaultyWorld) -> None:
        self.world = world
        self.core = world.receiver()
        self.served = RetainedOutbound(
            self.core, "c", "bytes", RetainPolicy(), MemoryHistory("s", "bytes", 1 << 20)
        )
        self.core.offer("c", self.served)
        self.served.begin(MemoryHistory("s", "bytes", 1 << 20), world.now)
        self.client = ClientCore("client", world.timing, world.wall, world.random.randbytes)
        world.cores.append(self.client)
        self.channel = self.client.register("c", "r:1", FaultPolicy(), world.now)
        self.answers: list[messages.Answer] = []

    def ask(self, kind: type[messages.Question], **fields: object) -> None:
        def failed(error: NetChannelError, now: float) -> None:
            raise error

        self.channel.ask(
            kind, lambda answer, now: self.answers.append(answer), failed, self.world.now, **fields
        )


def test_what_a_client_has_asked_on_a_connection_before_is_ignored() -> None:
    """A name that it has given up since does not come back: nothing would ever be freed any more."""
    world = FaultyWorld(7, Timing())
    kept = Kept(world)
    world.outrun_s = 3.0
    kept.ask(messages.Hold, consumer="x", holder="h", renew=False, fresh=False)
    world.run(lambda: len(kept.answers) == 1)
    kept.ask(messages.Forget, consumer="x")
    world.run(lambda: len(kept.answers) == 2)
    assert not kept.served.consumers.positions()
    world.pass_time(10)
    assert not kept.served.consumers.positions()
    assert world.replay()
    world.pass_time(10)
    assert not kept.served.consumers.positions()


# -- nobody dials without end


def hang_up(link: AcceptedControl, *_: object) -> None:
    link.close()


def hang_up_behind_ok(
    self: OpenRequests, session: ReceiverControl, request: messages.Open, now: float
) -> None:
    offer(self, session, request, now)
    session.close()


offer = OpenRequests._offer

HANGING_UP: dict[str, tuple[type, str, Callable[..., None]]] = {
    "a sender behind hello": (ReceiverControl, "established", hang_up),
    "a sender behind ok": (OpenRequests, "_offer", hang_up_behind_ok),
    "a client behind hello": (RequestControl, "established", hang_up),
    "a client behind what it asks": (RequestControl, "told", hang_up),
    "a member": (MemberControl, "told", hang_up),
}


@pytest.mark.parametrize("who", HANGING_UP)
def test_who_hangs_up_behind_the_handshake_is_dialed_ever_less(
    who: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every 1 to 2 s in the end, as who cannot be reached at all."""
    where, name, instead = HANGING_UP[who]
    monkeypatch.setattr(where, name, instead)
    world = FaultyWorld(8, Timing())
    if who.startswith("a client"):
        Kept(world).ask(messages.Watch)
    elif who == "a member":
        world.receiver("r:1", members="unix:node")
        world.receiver("r:2", node="unix:node")
    else:
        pair(world)
    dials: list[float] = []
    met = world._met
    monkeypatch.setattr(world, "_met", lambda *ends: (dials.append(world.now), met(*ends)))
    world.pass_time(120)
    assert 50 < len(dials) < 240


def test_of_those_who_ask_at_once_only_so_many_dial_at_once() -> None:
    """Of 600 that ask in one moment, more are offered theirs only as others have come."""
    world = World(seed=6)
    receiver = world.receiver()
    for n in range(600):
        world.inbox(receiver, f"c{n}")
    many = world.sender("many")
    producers = [world.open(many, f"c{n}") for n in range(600)]
    most = 0
    while world.step():
        most = max(most, len(receiver.open_requests.offers))
    assert all(each.channel.state is SenderState.ATTACHED for each in producers)
    assert most == COMING


def test_who_does_not_come_keeps_nobody_else_out() -> None:
    """A sender has asked for 990 channels, and stands still: another one has its ten at once, one after the other."""
    world = World(seed=7)
    receiver = world.receiver()
    for n in range(1000):
        world.inbox(receiver, f"c{n}")
    silent = world.sender("silent")
    for n in range(990):
        world.open(silent, f"c{n}")
    while len(receiver.open_requests.offers) < COMING:
        world.step()
    world.stalled.add(silent)
    sender = world.sender("other")
    others = [world.open(sender, f"c{n}") for n in range(990, 1000)]
    world.run(lambda: all(each.channel.state is SenderState.ATTACHED for each in others), limit_s=0.5)
