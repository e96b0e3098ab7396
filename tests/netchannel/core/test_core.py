"""The two cores against each other, in virtual time and without sockets."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from enum import StrEnum
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import netchannel
from netchannel import BufferPolicy, FaultPolicy, NetChannelError, Position, Timing
from netchannel.core.receiving import inbound
from netchannel.core.receiving.data_receiver import ACK_DELAY_S
from netchannel.core.sending import outbound
from netchannel.core.states import (
    RECEIVER_TABLE,
    SENDER_TABLE,
    ReceiverState,
    SenderState,
)
from tests.support.sizes import examples
from tests.support.world import Consumer, End, Producer, World


def pair(world: World, **settings: Any) -> tuple[Producer, Consumer]:
    """A registered channel on both sides, not yet connected."""
    return world.open(world.sender()), world.inbox(world.receiver(), **settings)


def attached(world: World, **settings: Any) -> tuple[Producer, Consumer]:
    producer, consumer = pair(world, **settings)
    world.run(lambda: producer.channel.state is SenderState.ATTACHED)
    return producer, consumer


def finished(world: World, producer: Producer) -> None:
    producer.channel.finish()
    world.run(lambda: producer.channel.terminal)
    assert producer.channel.state is SenderState.ENDED


def data_wire(world: World) -> Any:
    (wire,) = world.wires(control=False)
    return wire


def control_wire(world: World) -> Any:
    (wire,) = world.wires(control=True)
    return wire


# -- the life of a channel, one scenario per way through it


def sender_first(world: World) -> None:
    """CH-REG-2: what is sent before the peer exists is delivered once it appears."""
    producer = world.open(world.sender())
    for number in range(1000):
        producer.send(b"%d" % number)
    world.pass_time(2)
    consumer = world.inbox(world.receiver())
    finished(world, producer)
    consumer.read()
    assert consumer.values == [b"%d" % number for number in range(1000)]
    assert [item.sequence for item in consumer.items] == list(range(1000))


def denied_then_registered(world: World) -> None:
    """CH-REG-4: a denied channel establishes at once when it is registered, without waiting out its backoff."""
    receiver = world.receiver()
    producer = world.open(world.sender())
    world.run(lambda: producer.channel.state is SenderState.DENIED)
    world.pass_time(30)
    registered = world.now
    world.inbox(receiver)
    world.run(lambda: producer.channel.state is SenderState.ATTACHED)
    assert world.now - registered < 0.05


def denied_and_asking_again(world: World) -> None:
    """The sender asks again by itself, and stays denied while nobody registers."""
    world.receiver()
    producer = world.open(world.sender())
    world.run(lambda: producer.channel.state is SenderState.DENIED)
    first = producer.channel.request
    world.run(lambda: producer.channel.request > first)


def sent_on_to_a_member(world: World) -> None:
    """The node's address is asked, and says which of its processes has the channel."""
    world.receiver("r:1", members="unix:node")
    consumer = world.inbox(world.receiver("r:2", node="unix:node"))
    producer = world.open(world.sender())
    producer.send(b"x")
    finished(world, producer)
    consumer.read()
    assert consumer.values == [b"x"]


def data_connection_reset(world: World) -> None:
    """CH-SEQ-2: unacknowledged messages come again after a reconnect, duplicates are dropped."""
    producer, consumer = attached(world, explicit=True)
    for number in range(100):
        producer.send(b"%d" % number)
    world.settle()
    consumer.ack(30)
    world.settle()
    world.cut(data_wire(world))
    world.run(lambda: producer.channel.state is SenderState.ATTACHED)
    producer.send(b"100")
    world.settle()
    consumer.read()
    assert consumer.values == [b"%d" % number for number in range(101)]
    assert producer.channel.acknowledged == 30


def token_lost(world: World) -> None:
    """The data connection fails before the token is taken; another one is made with another token."""
    producer, consumer = pair(world)
    while not world.wires(control=False):
        world.step()
    assert producer.channel.state is SenderState.GRANTED
    world.cut(data_wire(world))
    world.run(lambda: producer.channel.state is SenderState.ATTACHED)
    assert consumer.channel.attachments == 1


def token_unused(world: World) -> None:
    """A sender that never comes with its token has changed nothing, and the token runs out."""
    producer, consumer = pair(world)
    while producer.channel.state is not SenderState.GRANTED:
        world.step()
    world.stalled.add(producer.channel.core)
    offers = consumer.channel.core.open_requests.offers
    assert (len(offers), consumer.channel.state) == (1, ReceiverState.REGISTERED)
    for end in list(world.ends):  # its connections look alive meanwhile
        end.link.disarm()
    world.pass_time(world.timing.token_s)
    assert (len(offers), consumer.channel.state) == (0, ReceiverState.REGISTERED)


def control_lost(world: World, state: SenderState) -> None:
    """The control connection takes everything down with it, and everything comes back."""
    receiver = world.receiver()
    consumer = None if state is SenderState.DENIED else world.inbox(receiver)
    producer = world.open(world.sender())
    while producer.channel.state is not state:
        world.step()
    world.cut(control_wire(world))
    assert producer.channel.state is SenderState.REGISTERED
    consumer = consumer or world.inbox(receiver)
    producer.send(b"x")
    world.run(lambda: producer.channel.acknowledged == 1)
    consumer.read()
    assert consumer.values == [b"x"]


def end_while_attached(world: World) -> None:
    """CH-END-1: the clean end comes after all data; reading on says so."""
    producer, consumer = attached(world)
    producer.send(b"x")
    finished(world, producer)
    consumer.read()
    assert consumer.values == [b"x"]
    with pytest.raises(netchannel.EndOfChannel):
        consumer.channel.take()


def end_lost(world: World, *, granted: bool) -> None:
    """CH-END-4: the end arrived, its acknowledgement did not: a later open is answered "finished"."""
    producer, consumer = attached(world, explicit=True)
    producer.send(b"x")
    world.settle()
    producer.channel.finish()
    world.settle()
    world.cut(data_wire(world))
    if granted:
        while producer.channel.state is not SenderState.GRANTED:
            world.step()
            world.now += 0.01
    else:
        assert producer.channel.state is SenderState.REQUESTED
    assert not consumer.channel.terminal
    consumer.ack(1)
    assert consumer.channel.state is ReceiverState.ENDED
    world.run(lambda: producer.channel.state is SenderState.ENDED)


def end_under_explicit_acknowledgement(world: World) -> None:
    """CH-END-6: closing waits for the acknowledgement of everything, and then both sides finish."""
    producer, consumer = attached(world, explicit=True)
    for _ in range(6010):
        producer.send(b"x")
    producer.channel.finish()
    world.settle()
    consumer.read()
    consumer.ack(6000)
    world.pass_time(60)
    assert len(consumer.items) == 6010
    with pytest.raises(netchannel.EndOfChannel):
        consumer.channel.take()
    assert not producer.channel.terminal
    consumer.ack(6010)
    world.run(lambda: producer.channel.state is SenderState.ENDED)
    assert consumer.channel.state is ReceiverState.ENDED


def aborted(world: World) -> None:
    """CH-END-2: the producer's failure comes after the data sent before it."""
    producer, consumer = attached(world)
    producer.send(b"x")
    producer.channel.finish("disk on fire")
    world.run(lambda: producer.channel.terminal)
    consumer.read()
    assert consumer.values == [b"x"]
    with pytest.raises(netchannel.ChannelFailed, match="disk on fire"):
        consumer.channel.take()


def closed_by_consumer(world: World, state: SenderState) -> None:
    """CH-END-3: a consumer that leaves early stops the producer, with its reason, wherever that is."""
    producer, consumer = attached(world)
    producer.send(b"x")
    world.settle()
    if state is not SenderState.ATTACHED:
        world.cut(data_wire(world))
        while producer.channel.state is not state:
            world.step()
            world.now += 0.01
    consumer.channel.close("seen enough", world.now)
    world.run(lambda: producer.channel.terminal)
    with pytest.raises(netchannel.ChannelClosedByPeer, match="seen enough"):
        producer.send(b"y")


def closed_before_anyone_came(world: World) -> None:
    """CH-END-3: a producer that comes to a closed channel is told, unless it was registered again."""
    receiver = world.receiver()
    world.inbox(receiver).channel.close("not wanted", world.now)
    late = world.open(world.sender())
    world.run(lambda: late.channel.terminal)
    with pytest.raises(netchannel.ChannelClosedByPeer, match="not wanted"):
        late.send(b"x")
    world.inbox(receiver)
    welcome = world.open(world.sender())
    world.run(lambda: welcome.channel.state is SenderState.ATTACHED)


def detached_by_consumer(world: World, state: ReceiverState) -> None:
    """CH-END-8: another consumer goes on where the first has acknowledged."""
    receiver = world.receiver()
    first = world.inbox(receiver, explicit=True)
    producer = world.open(world.sender())
    if state is not ReceiverState.REGISTERED:
        while first.channel.state is not state:
            world.step()
    producer.send(b"a")
    producer.send(b"b")
    if state is ReceiverState.ATTACHED:
        world.settle()
        first.ack(1)
        world.settle()
    first.channel.detach(world.now)
    acked = first.channel.acknowledged
    second = world.inbox(receiver, explicit=True)
    world.run(lambda: len(second.channel.queue) == 2 - acked)
    second.read()
    assert second.values == [b"a", b"b"][acked:]


def detached_by_producer(world: World, state: SenderState) -> None:
    """CH-END-8: another producer of the same stream goes on at the receiver's next number."""
    receiver = world.receiver()
    consumer = None if state is SenderState.DENIED else world.inbox(receiver)
    first = world.open(world.sender("first"))
    while first.channel.state is not state:
        world.step()
    if state is SenderState.ATTACHED:
        first.send(b"a", b"row 1")
        world.pass_time(ACK_DELAY_S)
    first.channel.detach(world.now)
    consumer = consumer or world.inbox(receiver)
    second = world.open(world.sender("second"), replayable=True)
    world.run(lambda: second.channel.state is SenderState.ATTACHED)
    assert second.channel.head == first.channel.acknowledged
    assert second.channel.last_note == (b"row 1" if state is SenderState.ATTACHED else b"")
    second.send(b"b")
    finished(world, second)
    consumer.read()
    assert b"".join(consumer.values) == (b"ab" if state is SenderState.ATTACHED else b"b")


@pytest.mark.parametrize("explicit", [True, False])
def test_what_a_consumer_was_done_with_as_it_left_is_not_given_to_its_successor(*, explicit: bool) -> None:
    """It leaves in the turn in which it acknowledged: that is on its way before it has gone."""
    world = World()
    receiver = world.receiver()
    first = world.inbox(receiver, explicit=explicit)
    producer = world.open(world.sender())
    world.run(lambda: producer.channel.state is SenderState.ATTACHED)
    for number in range(10):
        producer.send(b"%d" % number)
    world.run(lambda: len(first.channel.queue) == 10)
    first.read()
    if explicit:
        first.channel.ack(7, world.now)
    first.channel.detach(world.now)
    second = world.inbox(receiver, explicit=explicit)
    world.run(lambda: second.channel.state is ReceiverState.ATTACHED)
    producer.send(b"10")
    world.settle()
    second.read()
    assert second.values == [b"%d" % number for number in range(7 if explicit else 10, 11)]


def test_an_acknowledgement_of_the_stream_before_is_none_of_the_new_one() -> None:
    """Its consumer was still at work on the last message that it had read, as the new one took the place."""
    world = World()
    receiver, settings = world.receiver(), {"explicit": True, "fault": FaultPolicy(accept_new_stream=True)}
    consumer = world.inbox(receiver, **settings)
    monday = world.open(world.sender("first"), stream="monday")
    for number in range(5):
        monday.send(b"monday %d" % number)
    world.settle()
    consumer.read()
    for_monday = Position("monday", 5)
    with pytest.raises(NetChannelError, match="'sunday', but the channel receives stream 'monday'"):
        consumer.channel.ack(Position("sunday", 1), world.now)
    world.crash(monday.channel.core)
    tuesday = world.open(world.sender("second"), stream="tuesday")
    for number in range(8):
        tuesday.send(b"tuesday %d" % number)
    world.run(lambda: len(consumer.channel.queue) == 8)
    consumer.channel.ack(5, world.now)
    consumer.channel.ack(for_monday, world.now)
    world.settle()
    assert tuesday.channel.acknowledged == 0
    world.crash(receiver)
    successor = world.inbox(world.receiver(), **settings)
    world.run(lambda: len(successor.channel.queue) == 8)
    successor.read(2)
    successor.channel.ack(2, world.now)
    world.pass_time(ACK_DELAY_S)
    assert tuesday.channel.acknowledged == 2


def test_what_a_predecessor_sent_and_nobody_acknowledged_is_not_passed_over() -> None:
    """Its successor went on behind it, and then the receiver that had it is gone, which had no position of its own."""
    world = World()
    receiver = world.receiver()
    world.inbox(receiver, explicit=True)
    first = world.open(world.sender("first"))
    for body in (b"a", b"b", b"c"):
        first.send(body)
    world.settle()
    first.channel.give_up("it is killed", world.now)
    second = world.open(world.sender("second"), replayable=True)
    world.run(lambda: second.channel.state is SenderState.ATTACHED)
    assert (second.channel.head, second.channel.acknowledged) == (3, 0)
    second.send(b"d")
    world.settle()
    world.crash(receiver)
    consumer = world.inbox(world.receiver(), explicit=True)
    world.run(lambda: second.channel.terminal)
    with pytest.raises(
        netchannel.PositionLost, match=r"needs number 0 .* has already continued at number 3.*replayable=True"
    ):
        second.send(b"e")
    third = world.open(world.sender("third"), replayable=True)
    world.run(lambda: third.channel.state is SenderState.ATTACHED)
    assert third.channel.head == 0
    for body in (b"a", b"b", b"c", b"d"):
        third.send(body)
    world.settle()
    consumer.read()
    assert consumer.values == [b"a", b"b", b"c", b"d"]


def test_a_successor_has_flushed_what_its_predecessor_sent_once_that_is_acknowledged() -> None:
    """And room for as many messages as any other producer, though it does not keep these."""
    world = World()
    consumer = world.inbox(world.receiver(), explicit=True)
    first = world.open(world.sender("first"))
    for body in (b"a", b"b", b"c"):
        first.send(body)
    world.settle()
    first.channel.give_up("it is killed", world.now)
    second = world.open(world.sender("second"), replayable=True, buffer=BufferPolicy(max_messages=2))
    world.run(lambda: second.channel.state is SenderState.ATTACHED)
    world.settle()
    assert (second.channel.head, second.channel.acknowledged) == (3, 0)
    second.send(b"d")
    assert second.channel.room(1)
    second.send(b"e")
    assert not second.channel.room(1)
    world.settle()
    consumer.read()
    consumer.channel.ack(3, world.now)
    world.settle()
    assert second.channel.acknowledged == 3
    assert not second.channel.room(1)
    consumer.channel.ack(4, world.now)
    world.settle()
    assert second.channel.room(1)


def given_up_by_sender(world: World, state: SenderState) -> None:
    """CH-FLT-1: after the time of its policy the sender says who, and what was not delivered."""
    if state is not SenderState.REGISTERED:
        receiver = world.receiver()
        if state is not SenderState.DENIED:
            world.inbox(receiver)
    producer = world.open(world.sender(), fault=FaultPolicy(retry=7.0))
    producer.send(b"x")
    while producer.channel.state is not state:
        world.step()
    if state in (SenderState.REQUESTED, SenderState.GRANTED, SenderState.ATTACHED):
        # What waits in these states has a shorter deadline of its own; the owner may still give up, by close(grace).
        producer.channel.give_up("no connection for 7.0 s", world.now)
    else:
        world.pass_time(6.9)
        assert not producer.channel.terminal
    world.run(lambda: producer.channel.terminal, limit_s=8)
    with pytest.raises(netchannel.ChannelBroken, match=r"r:1.*no connection for 7\.0 s.*[01] were not"):
        producer.send(b"y")


def given_up_by_receiver(world: World, state: ReceiverState) -> None:
    """CH-FLT-1: the same on the receiver's side, counted from registration or the last loss."""
    consumer = world.inbox(world.receiver(), fault=FaultPolicy(retry=7.0))
    if state is not ReceiverState.REGISTERED:
        world.open(world.sender())
        while consumer.channel.state is not state:
            world.step()
        # An attachment has a deadline of its own; what fails it (a schema) is final.
        consumer.channel.fail(netchannel.ChannelBroken("7.0 s passed"), world.now)
    world.run(lambda: consumer.channel.terminal, limit_s=8)
    with pytest.raises(netchannel.ChannelBroken, match=r"7\.0 s passed"):
        consumer.channel.take()


def closed_while(world: World, state: ReceiverState) -> None:
    """A consumer may close at any time."""
    receiver = world.receiver()
    consumer = world.inbox(receiver)
    if state is not ReceiverState.REGISTERED:
        world.open(world.sender())
        while consumer.channel.state is not state:
            world.step()
    consumer.channel.close("done", world.now)
    with pytest.raises(netchannel.ChannelClosed):
        consumer.channel.take()
    world.inbox(receiver)  # the id is free again


def lost_unseen(world: World, end: End) -> None:
    """The sender sees a reset, the receiver nothing."""
    end.over = True
    world.ends.remove(end)
    end.link.lost("reset", world.now)


def newer_connection(world: World) -> None:
    """Of two data connections of one sender the newer one counts."""
    producer, consumer = attached(world)
    lost_unseen(world, data_wire(world))
    producer.send(b"x")
    world.run(lambda: producer.channel.acknowledged == 1)
    consumer.read()
    assert (consumer.values, consumer.channel.attachments) == ([b"x"], 2)


def newer_attempt(world: World, state: SenderState) -> None:
    """A sender that lost its connection, unseen by the receiver, is attached anew; the old one is void."""
    producer, consumer = pair(world)
    while producer.channel.state is not state:
        world.step()
    before = consumer.channel.attachments
    for end in world.wires(control=False) + world.wires(control=True):
        lost_unseen(world, end)
    producer.send(b"x")
    world.run(lambda: producer.channel.acknowledged == 1)
    assert consumer.channel.attachments == before + 1
    consumer.read()
    assert consumer.values == [b"x"]


SCENARIOS: list[Callable[[World], None]] = [
    sender_first,
    denied_then_registered,
    denied_and_asking_again,
    sent_on_to_a_member,
    data_connection_reset,
    token_lost,
    token_unused,
    newer_connection,
    closed_before_anyone_came,
    end_while_attached,
    end_under_explicit_acknowledgement,
    aborted,
]
VARIANTS: list[tuple[Callable[..., None], str, list[Any]]] = [
    (
        control_lost,
        "state",
        [SenderState.REQUESTED, SenderState.DENIED, SenderState.GRANTED, SenderState.ATTACHED],
    ),
    (end_lost, "granted", [False, True]),
    (closed_by_consumer, "state", [SenderState.REQUESTED, SenderState.GRANTED, SenderState.ATTACHED]),
    (
        detached_by_consumer,
        "state",
        [ReceiverState.REGISTERED, ReceiverState.ATTACHED],
    ),
    (detached_by_producer, "state", [s for s in SenderState if (s, "detach") in SENDER_TABLE]),
    (given_up_by_sender, "state", [s for s in SenderState if (s, "give up") in SENDER_TABLE]),
    (given_up_by_receiver, "state", [s for s in ReceiverState if (s, "give up") in RECEIVER_TABLE]),
    (closed_while, "state", [s for s in ReceiverState if (s, "close") in RECEIVER_TABLE]),
    (newer_attempt, "state", [SenderState.GRANTED, SenderState.ATTACHED]),
]


def scenarios() -> Iterator[Any]:
    for scenario in SCENARIOS:
        yield pytest.param(scenario, id=scenario.__name__)
    for scenario, name, values in VARIANTS:
        for value in values:
            yield pytest.param(
                lambda world, scenario=scenario, setting={name: value}: scenario(world, **setting),
                id=f"{scenario.__name__}-{value}",
            )


@pytest.mark.parametrize("chunk", [1, 1 << 16], ids=["bytewise", "chunks"])
@pytest.mark.parametrize("scenario", list(scenarios()))
def test_life_of_a_channel(scenario: Callable[[World], None], chunk: int) -> None:
    """CH-REG, CH-END, CH-FLT and CH-SEQ rows as scenarios, each also with reads of a single byte."""
    scenario(World(seed=1, chunk=chunk))


class Recorder(dict[tuple[StrEnum, StrEnum], StrEnum]):
    """A table that notes what is asked of it."""

    def __init__(self, table: Any) -> None:
        super().__init__(table)
        self.asked: set[tuple[StrEnum, StrEnum]] = set()

    def __getitem__(self, pair: tuple[StrEnum, StrEnum]) -> StrEnum:
        self.asked.add(pair)
        return super().__getitem__(pair)


def test_every_transition_of_the_tables_happens(monkeypatch: pytest.MonkeyPatch) -> None:
    """The scenarios above go through each transition of both tables; none is there for show."""
    sender, receiver = Recorder(SENDER_TABLE), Recorder(RECEIVER_TABLE)
    monkeypatch.setattr(outbound, "SENDER_TABLE", sender)
    monkeypatch.setattr(inbound, "RECEIVER_TABLE", receiver)
    for parameters in scenarios():
        parameters.values[0](World(seed=1))
    assert sender.asked == set(SENDER_TABLE)
    assert receiver.asked == set(RECEIVER_TABLE)


def test_the_policy_counts_from_the_last_loss() -> None:
    """CH-FLT-1: either side gives up so long after it lost the other."""
    world = World()
    sender, receiver = world.sender(), world.receiver()
    consumer = world.inbox(receiver, fault=FaultPolicy(retry=9.0))
    producer = world.open(sender, fault=FaultPolicy(retry=7.0))
    world.pass_time(60)
    assert producer.channel.state is SenderState.ATTACHED
    del world.listening["r:1"]
    world.cut(control_wire(world))
    lost = world.now
    world.run(lambda: producer.channel.terminal)
    assert world.now - lost == pytest.approx(7.0)
    world.run(lambda: consumer.channel.terminal)
    assert world.now - lost == pytest.approx(9.0)


def test_a_channel_that_waits_on_says_so_once_for_each_loss(caplog: pytest.LogCaptureFixture) -> None:
    """CH-FLT-1: either side, however long the other is away; then it goes on where it was."""
    world = World()
    receiver, waits = world.receiver(), FaultPolicy(retry=7.0, on_failure="wait")
    consumer, producer = world.inbox(receiver, fault=waits), world.open(world.sender(), fault=waits)
    sent: list[bytes] = []

    def warnings() -> list[str]:
        return [
            text for text in caplog.messages if "still waiting" in text or "has not been attached" in text
        ]

    for _ in range(2):
        world.run(lambda: producer.channel.state is SenderState.ATTACHED)
        caplog.clear()
        listener = world.listening.pop("r:1")
        world.cut(control_wire(world))
        sent.append(b"%d" % len(sent))
        producer.send(sent[-1])
        world.pass_time(6.9)
        assert warnings() == []
        world.pass_time(600)
        assert sorted(text.partition(" for 7.0 s")[0] for text in warnings()) == [
            "channel c had no sender",
            "channel c to r:1 had no connection",
        ]
        world.listening["r:1"] = listener

    def has_all() -> bool:
        consumer.read()
        return consumer.values == sent

    world.run(has_all)


def test_a_policy_of_no_retries_gives_up_at_the_first_loss() -> None:
    """CH-FLT-1: fail at once, on both sides."""
    world = World()
    consumer = world.inbox(world.receiver(), fault=FaultPolicy(retry=0))
    producer = world.open(world.sender(), fault=FaultPolicy(retry=0))
    world.run(lambda: producer.channel.state is SenderState.ATTACHED)
    world.cut(data_wire(world))
    assert producer.channel.state is SenderState.BROKEN
    assert consumer.channel.state is ReceiverState.BROKEN


def test_a_consumer_that_waits_for_a_sender_that_never_came_is_told_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Who is waited for may not exist, and then nobody else says anything; who came once is told of otherwise."""
    world = World()
    receiver = world.receiver()
    for name in ("awaited", "unasked", "came"):
        channel = world.inbox(receiver, name).channel
        if name != "unasked":
            channel.waiting += 1
            channel.miss_sender(world.now)
    world.open(world.sender(), "came")
    world.pass_time(4.9)
    assert caplog.messages == []
    world.pass_time(600)
    channel.miss_sender(world.now)
    world.pass_time(600)
    (told,) = caplog.messages
    assert told.startswith(
        "channel awaited: its consumer waits, but no sender has requested the channel in 5 s"
    )


def test_a_consumer_that_waits_for_another_stream_of_a_channel_is_not_told_that_nobody_asks(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """As whoever takes a message from each of several senders, one stream after the other: they know the way."""
    world = World()
    receiver, sender = world.receiver(), world.sender()
    first = world.inbox(receiver, "greetings")
    producer = world.open(sender, "greetings")
    producer.send(b"x")
    producer.channel.finish()
    world.run(lambda: first.channel.ended == 1)
    first.read()
    first.channel.close("the next one is heard under a new registration", world.now)
    second = world.inbox(receiver, "greetings").channel
    second.waiting += 1
    second.miss_sender(world.now)
    world.pass_time(600)
    assert caplog.messages == []


def test_a_channel_that_does_not_come_about_is_named_once(caplog: pytest.LogCaptureFixture) -> None:
    """One warning per episode, with the reason: nobody listens, then nobody has registered the channel."""
    caplog.set_level("INFO")
    world = World()
    producer = world.open(world.sender(), "numbers")
    world.pass_time(60)
    receiver = world.receiver()
    nums = world.inbox(receiver, "nums")
    world.pass_time(60)
    told = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert len(told) == 1
    assert "channel numbers to r:1 has not been attached" in told[0]
    assert "connection refused" in told[0]
    assert sum("denied" in record.getMessage() for record in caplog.records) <= 1
    nums.channel.close("wrong name", world.now)
    world.inbox(receiver, "numbers")
    world.run(lambda: producer.channel.state is SenderState.ATTACHED)
    world.crash(receiver)
    world.pass_time(60)
    assert sum("has not been attached" in record.getMessage() for record in caplog.records) == 2


def test_a_thousand_channels_whose_peer_is_away_are_a_few_lines(caplog: pytest.LogCaptureFixture) -> None:
    """At either side, each time that they are; some are named, with the reason, the others counted."""
    world = World()
    receiver, sender = world.receiver(), world.sender()
    producers = [world.open(sender, f"sent-{number}", to="nobody:1") for number in range(1000)]
    for number in range(500):
        channel = world.inbox(receiver, f"awaited-{number}").channel
        channel.waiting += 1
        channel.miss_sender(world.now)
    world.pass_time(60)
    assert not any(each.channel.terminal for each in producers)
    sent = [text for text in caplog.messages if "has not been attached" in text]
    awaited = [text for text in caplog.messages if "its consumer waits" in text]
    assert len(sent) == len(awaited) == 4
    assert sent[3].startswith("997 more channels within 1 s, the last of them: channel sent-")
    assert awaited[3].startswith("497 more channels within 1 s, the last of them: channel awaited-")


# -- positions and streams


def test_a_position_of_another_stream_is_refused() -> None:
    """CH-ACK-4: a restarted sender never gives number 350 of other data."""
    world = World()
    consumer = world.inbox(world.receiver(), resume_from=Position("old", 350))
    producer = world.open(world.sender(), stream="new")
    for _ in range(400):
        producer.send(b"x")
    world.run(lambda: consumer.channel.terminal)
    with pytest.raises(netchannel.StreamReplaced, match=r"350.*'old'.*'new'"):
        consumer.channel.take()


def test_a_consumer_resumes_at_its_position() -> None:
    """CH-ACK-2: `resume_from=n` gives n, n+1, ...; what is forgotten is a typed error with both numbers."""
    world = World()
    receiver = world.receiver()
    first = world.inbox(receiver, explicit=True)
    producer = world.open(world.sender())
    for number in range(10):
        producer.send(b"%d" % number)
    world.settle()
    first.ack(4)
    world.settle()
    first.channel.detach(world.now)
    second = world.inbox(receiver, explicit=True, resume_from=Position("s", 6))
    world.run(lambda: len(second.channel.queue) == 4)
    second.read()
    assert second.values == [b"6", b"7", b"8", b"9"]
    second.channel.detach(world.now)
    lost = world.inbox(receiver, explicit=True, resume_from=Position("s", 2))
    world.run(lambda: lost.channel.terminal)
    with pytest.raises(netchannel.PositionLost, match=r"number 2 .*oldest kept message is 6"):
        lost.channel.take()


def test_a_sender_that_forgot_its_stream_is_an_error_at_the_consumer() -> None:
    """A sender that comes back as a new stream while the old one is unfinished is never a silent gap."""
    world = World()
    receiver = world.receiver()
    consumer = world.inbox(receiver)
    sender = world.sender("first")
    producer = world.open(sender, stream="old")
    producer.send(b"x")
    world.run(lambda: len(consumer.channel.queue) == 1)
    world.crash(sender)
    restarted = world.open(world.sender("second"), stream="new")
    restarted.send(b"y")
    world.run(lambda: consumer.channel.terminal)
    consumer.read()
    with pytest.raises(netchannel.StreamReplaced, match=r"'old'.*'new'"):
        consumer.channel.take()
    again = world.inbox(receiver)
    world.run(lambda: len(again.channel.queue) == 1)


def test_two_live_senders_do_not_fence_each_other() -> None:
    """CH-FLT-3: the second live sender is denied with the holder's name, the first one is unharmed."""
    world = World()
    consumer = world.inbox(world.receiver())
    first = world.open(world.sender("first"), stream="1")
    first.send(b"x")
    world.run(lambda: len(consumer.channel.queue) == 1)
    second = world.open(world.sender("second"), stream="2")
    world.pass_time(60)
    assert second.channel.state is SenderState.DENIED
    assert first.channel.attachments == 1
    finished(world, first)
    world.inbox(world.listening["r:1"])  # Monday's stream has ended, Tuesday's is welcome (CH-END-9)
    world.run(lambda: second.channel.state is SenderState.ATTACHED)


@pytest.mark.parametrize("accept_new_stream", [False, True])
def test_an_end_that_is_not_acknowledged_is_not_taken_over(accept_new_stream: bool) -> None:
    """CH-END-6: another stream waits until all of one that is here to its end is acknowledged."""
    world = World()
    receiver, sender = world.receiver(), world.sender("first")
    fault = FaultPolicy(accept_new_stream=accept_new_stream)
    consumer = world.inbox(receiver, explicit=True, fault=fault)
    producer = world.open(sender, stream="old")
    producer.send(b"x")
    producer.channel.finish()
    world.run(lambda: consumer.channel.ended == 1)
    consumer.read()
    world.crash(sender)
    other = world.open(world.sender("second"), stream="new")
    other.send(b"y")
    world.pass_time(10)
    assert other.channel.state is SenderState.DENIED
    with pytest.raises(netchannel.EndOfChannel):
        consumer.channel.take()
    consumer.ack(1)
    again = world.inbox(receiver)
    world.run(lambda: len(again.channel.queue) == 1)


def test_a_stream_that_ended_before_is_not_acknowledged_for_another_length() -> None:
    """CH-END-9: who sends under the name of a stream that is over is told so, unless it is the same again."""
    world = World()
    receiver = world.receiver()
    world.inbox(receiver)
    first = world.open(world.sender("first"))
    first.send(b"x")
    finished(world, first)
    longer = repeated(world, 2)
    assert longer.channel.acknowledged == 0
    with pytest.raises(netchannel.ChannelClosed, match=r"already ended .*, after 1 messages.* 2 messages"):
        longer.send(b"x")
    same = repeated(world, 1)
    assert same.channel.error is None
    counters = (same.channel.sent, same.channel.received, same.channel.acknowledged)
    assert counters == (1, 1, 1)


def repeated(world: World, count: int) -> Producer:
    """Somebody sends ``count`` messages under the name of a stream that is over, to the end."""
    producer = world.open(world.sender())
    for _ in range(count):
        producer.send(b"x")
    producer.channel.finish()
    world.run(lambda: producer.channel.terminal)
    return producer


# -- flow


def test_a_queue_above_its_mark_stops_the_reading_of_its_own_connection() -> None:
    """CH-BP-1: the receiver reads a channel's connection only while its queue is below the mark."""
    world = World()
    sender, receiver = world.sender(), world.receiver()
    slow = world.inbox(receiver, "slow", buffer=BufferPolicy(max_messages=10))
    fast = world.inbox(receiver, "fast")
    producers = [world.open(sender, name) for name in ("slow", "fast")]
    world.run(lambda: all(producer.channel.state is SenderState.ATTACHED for producer in producers))
    for producer in producers:
        for _ in range(100):
            producer.send(bytes(1000))
            world.settle()
    assert len(fast.channel.queue) == 100
    assert len(slow.channel.queue) < 20
    while len(slow.items) < 100:
        slow.read(5)
        world.settle()
    assert [item.sequence for item in slow.items] == list(range(100))


def test_the_buffer_counts_what_is_not_acknowledged() -> None:
    """CH-BUF-1: bytes and messages are bounded; room comes back with the acknowledgement."""
    world = World()
    consumer = world.inbox(world.receiver(), explicit=True)
    producer = world.open(world.sender(), buffer=BufferPolicy(max_bytes=1000, max_messages=3))
    channel = producer.channel
    assert channel.room(5000)  # an empty buffer takes one message of any size
    producer.send(bytes(600))
    assert not channel.room(500)
    assert channel.room(400)
    producer.send(b"")
    producer.send(b"")
    assert not channel.room(0)
    world.run(lambda: len(consumer.channel.queue) == 3)
    assert not channel.room(0)
    consumer.ack(3)
    world.settle()
    assert channel.room(1000)


# -- liveness


def test_a_silent_peer_is_dead_after_its_budget_and_comes_back() -> None:
    """CH-CTL-3: nothing is lost or doubled over the death."""
    world = World()
    producer, consumer = attached(world)
    world.stalled.add(consumer.channel.core)
    producer.send(b"x")
    stopped = world.now
    world.run(lambda: producer.channel.state is not SenderState.ATTACHED, limit_s=10)
    assert world.now - stopped <= world.timing.dead_after_s + world.timing.heartbeat_s
    world.stalled.clear()
    producer.send(b"y")
    world.run(lambda: producer.channel.acknowledged == 2)
    consumer.read()
    assert consumer.values == [b"x", b"y"]


def test_a_stall_of_our_own_is_no_death_of_the_peer() -> None:
    """CH-CTL-4: after a stall we read our backlog before we judge."""
    world = World(timing=Timing(heartbeat_s=1.0, dead_after_s=5.0))
    producer, consumer = attached(world)
    world.stalled = {producer.channel.core, consumer.channel.core}
    world.pass_time(15)
    world.stalled.clear()
    world.pass_time(10)
    assert producer.channel.attachments == 1
    assert producer.channel.state is SenderState.ATTACHED


def test_an_idle_control_connection_is_closed() -> None:
    """CH-CTL-5: with its last channel over, a node is left alone."""
    world = World()
    producer, _ = attached(world)
    finished(world, producer)
    world.pass_time(world.timing.idle_s + 0.1)
    assert world.ends == []
    assert producer.channel.core.peers == {}


def test_senders_that_say_nothing_are_dropped() -> None:
    """CH-BAD-2: after the handshake deadline."""
    world = World()
    receiver = world.receiver()
    silent = receiver.accept("somebody")
    silent.connected(world.now)
    world.pass_time(world.timing.handshake_s + 0.1)
    assert silent.closing is not silent.closing.OPEN


# -- a random life against what must hold


@settings(max_examples=examples(150), deadline=None)
@given(st.integers(0, 2**32), st.booleans(), st.lists(st.sampled_from("sdcrapf"), min_size=5, max_size=60))
def test_any_faults_leave_the_sequence_exact(seed: int, explicit: bool, script: list[str]) -> None:
    """CH-SEQ-2, CH-SEQ-3: sends, cuts of either connection at any byte, flipped bits, reads, acks, in any order."""
    world = World(seed, chunk=100)
    producer, consumer = pair(world, explicit=explicit, buffer=BufferPolicy(max_bytes=2000))
    sent = []
    for action in script:
        match action:
            case "s":
                sent.append(world.random.randbytes(world.random.choice([0, 1, 7, 300, 70_000])))
                producer.send(sent[-1], b"note %d" % len(sent) if len(sent) % 3 else b"")
            case "d" | "c":
                for wire in world.wires(control=action == "c"):
                    world.cut(wire)
            case "r":
                consumer.read(world.random.randint(1, 5))
            case "f":
                for end in world.ends:
                    if end.inbox:
                        end.inbox[world.random.randrange(len(end.inbox))] ^= 1 << world.random.randrange(8)
            case "a" if explicit:
                consumer.ack(consumer.items[-1].sequence + 1 if consumer.items else 0)
            case _:
                world.pass_time(world.random.random())
        for _ in range(world.random.randint(0, 50)):
            world.step()
    producer.channel.finish()

    def drained() -> bool:
        consumer.read()
        if explicit and consumer.items:
            consumer.ack(consumer.items[-1].sequence + 1)
        return producer.channel.terminal

    world.run(drained)
    assert consumer.values == sent
    assert [item.sequence for item in consumer.items] == list(range(len(sent)))
    assert [item.note for item in consumer.items] == [
        b"note %d" % n if n % 3 else b"" for n in range(1, len(sent) + 1)
    ]
    assert producer.channel.state is SenderState.ENDED
    assert consumer.channel.state is ReceiverState.ENDED
