"""Several receiver cores at one node, in virtual time and without sockets."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import pytest

import netchannel
from netchannel import ChannelClosed, FaultPolicy, NetChannelError, Position
from netchannel.core.control_connection import FOR_CONTROL, FOR_DATA, FOR_MEMBERS, greeting
from netchannel.core.groups.epoch_ledger import EpochLedger
from netchannel.core.receiving.node_members import MemberControl
from netchannel.core.receiving.receiver_core import ReceiverCore
from netchannel.core.states import ReceiverState, SenderState
from tests.support.forged import forged
from tests.support.staged import Committing, Staged
from tests.support.world import Consumer, End, Producer, World

NODE = "unix:node"


class Site:
    """A node of three processes, at ports 1 (whose address senders know), 2 and 3; and a sender."""

    def __init__(self, seed: int = 0, secret: bytes | None = None) -> None:
        self.world = World(seed)
        self.secret = secret
        self.front = self.start_front()
        self.first, self.second = self.start_member(2), self.start_member(3)
        self.sender = self.world.sender(secret=secret)
        self.world.settle()

    def start_front(self) -> ReceiverCore:
        self.front = self.world.receiver("r:1", members=NODE, secret=self.secret)
        return self.front

    def start_member(self, port: int) -> ReceiverCore:
        return self.world.receiver(f"r:{port}", node=NODE, secret=self.secret)

    def attach(
        self, member: ReceiverCore, channel_id: str = "c", **settings: Any
    ) -> tuple[Producer, Consumer]:
        consumer = self.world.inbox(member, channel_id, **settings)
        producer = self.world.open(self.sender, channel_id)
        self.run_until_attached(producer)
        return producer, consumer

    def run_until_attached(self, producer: Producer) -> None:
        self.world.run(lambda: producer.channel.state is SenderState.ATTACHED)

    def finish(self, producer: Producer) -> None:
        producer.channel.finish()
        self.world.run(lambda: producer.channel.terminal)
        assert producer.channel.state is SenderState.ENDED
        assert producer.channel.error is None

    def controls(self) -> list[str]:
        """Where the sender has control connections to."""
        self.world.pass_time(2)
        return sorted(end.link.remote for end in self.world.wires(control=True))

    def member_wire(self, member: ReceiverCore) -> End:
        (end,) = [end for end in self.world.ends if end.link.core is member and end.link.remote == NODE]
        return end

    def members(self) -> list[tuple[str, int, int]]:
        found = [link.statistics_as_member() for link in self.front.members.links]
        return [(member.name, member.port, member.channels) for member in found]


def says(site: Site, member: ReceiverCore, *messages: dict[str, Any]) -> None:
    """What a member says to the front, as if it had."""
    site.member_wire(member).peer.inbox += b"".join(forged(message) for message in messages)
    site.world.settle()


def raised(consumer: Consumer) -> BaseException:
    assert consumer.channel.error is not None
    return consumer.channel.error


def requests_of(producer: Producer) -> list[float]:
    """When the channel was asked for, from now on."""
    asked: list[float] = []

    def changed() -> None:
        if producer.channel.state is SenderState.REQUESTED:
            asked.append(producer.channel.since)

    producer.channel.on_change = changed
    return asked


# -- the way there


def test_a_channel_is_found_at_the_process_that_has_it() -> None:
    """All three processes are reached by the node's one address; where nothing is left, no connection stays."""
    site = Site()
    channels = {"a": site.front, "b": site.first, "c": site.second}
    pairs = [site.attach(core, channel_id) for channel_id, core in channels.items()]
    assert site.controls() == ["r:1", "r:2", "r:3"]
    assert [channel.at for channel in site.sender.channels.values()] == ["r:1", "r:2", "r:3"]
    assert site.members() == [("receiver r:2", 2, 1), ("receiver r:3", 3, 1)]
    for producer, consumer in pairs:
        producer.send(b"x")
        site.finish(producer)
        consumer.read()
        assert consumer.values == [b"x"]
    assert site.controls() == []
    assert (site.sender.peers, site.sender.channels) == ({}, {})
    assert site.members() == [("receiver r:2", 2, 0), ("receiver r:3", 3, 0)]


def test_channels_at_one_member_share_a_control_connection() -> None:
    site = Site()
    for channel_id in ("a", "b"):
        site.attach(site.first, channel_id)
    assert site.controls() == ["r:2"]


def test_a_denied_sender_is_told_when_a_member_registers_the_channel() -> None:
    site = Site()
    producer = site.world.open(site.sender)
    site.world.run(lambda: producer.channel.state is SenderState.DENIED)
    site.world.pass_time(30)
    registered = site.world.now
    site.world.inbox(site.first)
    site.run_until_attached(producer)
    assert site.world.now - registered < 0.05


def test_the_same_id_may_be_sent_to_a_member_by_both_of_its_addresses() -> None:
    """They are two channels to the sender; the receiver takes one of them, and the other waits."""
    site = Site()
    direct = site.world.open(site.sender, "c", "r:2", stream="direct")
    by_node = site.world.open(site.sender, "c", "r:1", stream="by node")
    consumer = site.world.inbox(site.first)
    site.world.run(lambda: SenderState.ATTACHED in (direct.channel.state, by_node.channel.state))
    first, then = (direct, by_node) if direct.channel.state is SenderState.ATTACHED else (by_node, direct)
    site.world.pass_time(5)
    assert then.channel.state is SenderState.DENIED
    site.finish(first)
    assert consumer.channel.state is ReceiverState.ENDED
    site.world.inbox(site.first)
    site.run_until_attached(then)


def test_whoever_knows_no_secret_is_sent_nowhere() -> None:
    """Each process asks for it, and so does the front of its members."""
    site = Site(secret=b"open sesame")
    producer, consumer = site.attach(site.first)
    producer.send(b"x")
    site.finish(producer)
    consumer.read()
    assert consumer.values == [b"x"]
    stranger = site.world.receiver("r:4", node=NODE, secret=b"another")
    site.world.inbox(stranger, "d")
    site.world.pass_time(3)
    assert [port for _, port, _ in site.members()] == [2, 3]
    assert stranger.node is not None
    assert stranger.node.statistics(site.world.now).state != "up"


def test_a_proof_of_a_sender_is_none_of_a_member() -> None:
    """Who takes members and who takes senders are told apart in what is proven."""
    roles = {(link.role, link.other_role) for link in _control_links(Site(secret=b"s"))}
    assert roles == {
        (b"member", b"node"), (b"node", b"member"), (b"sender", b"receiver"), (b"receiver", b"sender"),
    }  # fmt: skip


def _control_links(site: Site) -> list[Any]:
    site.attach(site.front)
    return [end.link for end in site.world.ends if end.link.control]


@pytest.mark.parametrize(
    ("at", "purpose", "welcome"),
    [
        ("r:1", FOR_MEMBERS, False),
        ("r:2", FOR_MEMBERS, False),
        (NODE, FOR_CONTROL, False),
        (NODE, FOR_DATA, False),
        (NODE, FOR_MEMBERS, True),
    ],
)
def test_members_come_by_their_own_door(at: str, purpose: int, welcome: bool) -> None:
    """Nobody becomes a member over TCP, and no channel goes by the members' socket."""
    site = Site()
    core = site.world.listening[at]
    incoming = core.accept_member("x") if at == NODE else core.accept("x")
    incoming.connected(site.world.now)
    hello = greeting(purpose)
    incoming.get_buffer(8)[:] = hello
    incoming.received(8, site.world.now)
    assert (incoming.replacement is not None) is welcome


# -- when something is not there


@pytest.mark.parametrize("restarts_at", [2, 7])
def test_a_member_that_was_killed_is_found_again(restarts_at: int) -> None:
    """At the same port or another: exactly once, with explicit acknowledgement and a position."""
    site = Site()
    producer, consumer = site.attach(site.first, explicit=True)
    for number in range(100):
        producer.send(b"%d" % number)
    site.world.settle()
    consumer.read(60)
    consumer.ack(40)
    site.world.settle()
    done = consumer.values[:40]
    site.world.crash(site.first)
    site.world.pass_time(3)
    assert [port for _, port, _ in site.members()] == [3]
    successor = site.world.inbox(site.start_member(restarts_at), explicit=True, resume_from=Position("s", 40))
    for number in range(100, 120):
        producer.send(b"%d" % number)
    site.run_until_attached(producer)
    site.world.settle()
    successor.read()
    assert done + successor.values == [b"%d" % number for number in range(120)]
    assert producer.channel.at == f"r:{restarts_at}"


def test_a_channel_may_move_from_one_member_to_another() -> None:
    site = Site()
    producer, consumer = site.attach(site.first, explicit=True)
    producer.send(b"one")
    site.world.settle()
    consumer.read()
    consumer.ack(1)
    consumer.channel.detach(site.world.now)
    producer.send(b"two")
    successor = site.world.inbox(site.second, resume_from=Position("s", 1))
    site.finish(producer)
    successor.read()
    assert (consumer.values, successor.values) == ([b"one"], [b"two"])


def test_streams_go_on_while_the_front_is_away() -> None:
    """Those at members do; new channels open when it is back."""
    site = Site()
    producer, consumer = site.attach(site.first)
    site.world.crash(site.front)
    for number in range(10):
        producer.send(b"%d" % number)
        site.world.pass_time(1)
    consumer.read()
    assert consumer.values == [b"%d" % number for number in range(10)]
    assert producer.channel.reconnects == 0
    late = site.world.open(site.sender, "late")
    site.world.inbox(site.second, "late")
    site.world.pass_time(10)
    assert late.channel.state is SenderState.REGISTERED
    site.start_front()
    site.run_until_attached(late)
    assert producer.channel.reconnects == 0
    assert sorted(site.members()) == [("receiver r:2", 2, 1), ("receiver r:3", 3, 1)]


def test_a_member_that_stands_still_is_forgotten_and_comes_back() -> None:
    """By the heartbeats of its connection; another process may have the channel meanwhile, and keeps it."""
    site = Site()
    producer, consumer = site.attach(site.first)
    site.world.stalled.add(site.first)
    site.world.pass_time(8)
    assert [port for _, port, _ in site.members()] == [3]
    assert producer.channel.state is SenderState.DENIED
    successor = site.world.inbox(site.second)
    site.run_until_attached(producer)
    site.world.stalled.discard(site.first)
    site.world.pass_time(3)
    assert isinstance(raised(consumer), netchannel.ChannelInUse)
    producer.send(b"x")
    site.finish(producer)
    successor.read()
    assert successor.values == [b"x"]


def test_a_late_request_for_a_stream_that_has_ended_is_answered_by_the_front() -> None:
    """Its sender did not hear of the end: all its connections were cut, and it asks at the node's address."""
    site = Site()
    producer, consumer = site.attach(site.first)
    producer.send(b"x")
    producer.channel.finish()
    _run_until_ended_unheard(site, producer, consumer)
    site.world.crash(site.first)
    site.world.run(lambda: producer.channel.terminal)
    assert (producer.channel.state, producer.channel.error) == (SenderState.ENDED, None)


def test_a_front_that_is_started_anew_hears_of_streams_that_have_ended() -> None:
    site = Site()
    producer, consumer = site.attach(site.first)
    producer.channel.finish()
    _run_until_ended_unheard(site, producer, consumer)
    site.world.crash(site.front)
    for end in site.world.wires(control=True):
        site.world.cut(end)
    site.start_front()
    site.world.run(lambda: producer.channel.terminal)
    assert (producer.channel.state, producer.channel.error) == (SenderState.ENDED, None)


def _run_until_ended_unheard(site: Site, producer: Producer, consumer: Consumer) -> None:
    """The stream is over at the member, which has told the front; the sender does not know."""
    world = site.world
    world.stalled.add(site.sender)
    (data,) = world.wires(control=False)
    site.sender.timers.run(world.now)
    for link in list(site.sender.dirty):
        if link.adapter is not None:
            world._apply(link.adapter)
    world.settle()
    assert consumer.channel.state is ReceiverState.ENDED
    for end in [data, *world.wires(control=True)]:
        if not end.over:
            end.inbox.clear()
            world.cut(end)
    world.stalled.discard(site.sender)
    assert not producer.channel.terminal


def test_a_channel_that_was_closed_before_a_sender_came_is_closed_at_the_node() -> None:
    """Until somebody registers it again, in whichever process."""
    site = Site()
    consumer = site.world.inbox(site.first)
    consumer.channel.close("not today", site.world.now)
    site.world.settle()
    producer = site.world.open(site.sender)
    site.world.run(lambda: producer.channel.terminal)
    assert isinstance(producer.channel.error, netchannel.ChannelClosedByPeer)
    site.world.inbox(site.second)
    site.world.settle()
    site.run_until_attached(site.world.open(site.sender, stream="another"))


def test_a_channel_that_was_not_wanted_at_one_member_is_another_ones_to_have() -> None:
    """Also when the first connects again while the other is between two consumers."""
    site = Site()
    site.world.inbox(site.first).channel.close("not needed here", site.world.now)
    site.world.settle()
    producer, consumer = site.attach(site.second)
    producer.send(b"a")
    site.world.settle()
    consumer.channel.detach(site.world.now)
    site.world.settle()
    (end,) = [end for end in site.world.ends if end.link is site.first.node.link]
    site.world.cut(end)
    site.world.pass_time(3)
    assert not producer.channel.terminal
    producer.send(b"b")
    successor = site.world.inbox(site.second)
    site.world.run(lambda: len(successor.channel.queue) > 0)
    successor.read()
    assert [*consumer.values, *successor.values] == [b"b"]


def test_a_member_that_cannot_be_reached_is_asked_for_with_backoff(caplog: pytest.LogCaptureFixture) -> None:
    """A firewall, say: no running in circles, one warning that names both addresses, and open once there is a way."""
    site = Site()
    site.world.inbox(site.first)
    site.world.listening.pop("r:2")
    producer = site.world.open(site.sender)
    asked = requests_of(producer)
    with caplog.at_level(logging.WARNING, "netchannel"):
        site.world.pass_time(60)
    assert len(asked) < 60
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "r:2, named by r:1, failed: connection refused" in caplog.text
    site.world.listening["r:2"] = site.first
    site.run_until_attached(producer)


def test_a_channel_that_gives_up_does_so_on_the_way_too() -> None:
    site = Site()
    site.world.inbox(site.first)
    site.world.listening.pop("r:2")
    producer = site.world.open(site.sender, fault=FaultPolicy(retry=3))
    site.world.run(lambda: producer.channel.terminal, limit_s=3.1)
    assert isinstance(producer.channel.error, netchannel.ChannelBroken)
    assert "named by r:1" in str(producer.channel.error)


def _registered_without_saying_so(site: Site) -> None:
    """The front believes that a member has the channel, which does not."""
    says(site, site.first, {"t": "claim", "channel": "c", "number": 9, "held": False})


def _at_a_member_that_points_on(site: Site) -> None:
    """A member of a node is the front of another, to which it sends senders on."""
    _registered_without_saying_so(site)
    _lies(site.first, site.front)


def _at_a_member_that_points_back(site: Site) -> None:
    _registered_without_saying_so(site)
    _lies(site.first, site.first)


def _lies(core: ReceiverCore, other: ReceiverCore) -> None:
    """``core`` sends everybody on to port 1 or 3."""
    link = MemberControl(core, core.connections, core.members, "somebody")
    link.port = 1 if core is other else 3
    core.members._holders["c"] = link


def _at_itself(site: Site) -> None:
    _lies(site.front, site.front)


def _at_no_port(site: Site) -> None:
    """Against the protocol: the sender hangs up each time, and is denied nothing."""
    _lies(site.front, site.front)
    site.front.members._holders["c"].port = 65_536


@pytest.mark.parametrize(
    "lie",
    [
        _registered_without_saying_so,
        _at_a_member_that_points_on,
        _at_a_member_that_points_back,
        _at_itself,
        _at_no_port,
    ],
)
def test_no_sender_runs_in_circles(lie: Callable[[Site], None]) -> None:
    """Whatever the processes say, it asks as seldom as one that is denied; and comes through in the end."""
    site = Site()
    lie(site)
    producer = site.world.open(site.sender)
    asked = requests_of(producer)
    site.world.pass_time(60)
    assert 20 < len(asked) < 120  # twice per round
    for core in (site.front, site.first):
        core.members._holders.clear()
    site.world.inbox(site.second)
    site.run_until_attached(producer)


def test_a_sender_without_ports_is_not_sent_on() -> None:
    """One that came to the node by an address that has none."""
    site = Site()
    site.world.listening["mem:front"] = site.front
    site.world.inbox(site.first)
    producer = site.world.open(site.sender, to="mem:front")
    site.world.pass_time(10)
    assert producer.channel.state is SenderState.DENIED
    assert "mem:front redirected the request to port 2" in producer.channel.last_failure


# -- one channel, one process


def test_what_a_member_has_the_front_cannot_register() -> None:
    """CH-REG-3: at once, and it names who has it; when that has released it, it is free."""
    site = Site()
    consumer = site.world.inbox(site.first)
    site.world.settle()
    with pytest.raises(
        netchannel.ChannelInUse, match="'c' is already registered at this node, by receiver r:2 at"
    ):
        site.world.inbox(site.front)
    consumer.channel.detach(site.world.now)
    site.world.settle()
    site.world.inbox(site.front)
    site.run_until_attached(site.world.open(site.sender))


@pytest.mark.parametrize("having", ["front", "second"])
def test_what_another_process_has_fails_at_a_member(having: str) -> None:
    """CH-REG-3: as soon as the front says so; the other's stream goes on, and the id is free afterwards."""
    site = Site()
    producer, consumer = site.attach(getattr(site, having))
    late = site.world.inbox(site.first)
    site.world.settle()
    assert isinstance(raised(late), netchannel.ChannelInUse)
    assert f"by receiver {'r:1' if having == 'front' else 'r:3'}" in str(raised(late))
    assert "c" not in site.first.channels
    producer.send(b"x")
    site.finish(producer)
    consumer.read()
    assert consumer.values == [b"x"]
    successor = site.world.inbox(site.first)
    site.world.settle()
    assert successor.channel.error is None
    site.run_until_attached(site.world.open(site.sender, stream="another"))


@pytest.mark.parametrize("newcomer", ["front", "second"])
def test_a_stream_that_goes_on_keeps_its_channel_when_the_front_is_started_anew(newcomer: str) -> None:
    """Also if another process has registered the id meanwhile, and says so first."""
    site = Site()
    producer, consumer = site.attach(site.first)
    site.world.crash(site.front)
    site.world.stalled.add(site.first)
    site.start_front()
    core = getattr(site, newcomer)
    late = site.world.inbox(core)
    site.world.pass_time(3)
    assert late.channel.error is None
    site.world.stalled.discard(site.first)
    site.world.pass_time(3)
    assert isinstance(raised(late), netchannel.ChannelInUse)
    assert "by receiver r:2" in str(raised(late))
    producer.send(b"x")
    site.finish(producer)
    consumer.read()
    assert consumer.values == [b"x"]
    assert producer.channel.reconnects == 0


@pytest.mark.parametrize("having", ["front", "second"])
def test_of_two_that_have_a_sender_the_first_keeps_the_channel(having: str) -> None:
    """One came by the member's own address, while the front was away."""
    site = Site()
    producer, _ = site.attach(getattr(site, having))
    if having == "second":
        site.world.crash(site.front)
        site.start_front()
        site.world.pass_time(3)
    site.world.stalled.add(site.front)
    site.world.cut(site.member_wire(site.first))
    late = site.world.inbox(site.first)
    site.run_until_attached(site.world.open(site.sender, "c", "r:2", stream="direct"))
    site.world.stalled.discard(site.front)
    site.world.pass_time(3)
    assert isinstance(raised(late), netchannel.ChannelInUse)
    assert producer.channel.reconnects == 0


def test_an_answer_to_an_earlier_claim_harms_no_later_one() -> None:
    """The id was released and registered again while the answer was on its way."""
    site = Site()
    first = site.world.inbox(site.first)
    site.world.settle()
    wire = site.member_wire(site.first)
    first.channel.detach(site.world.now)
    again = site.world.inbox(site.first)
    wire.inbox += forged({"t": "taken", "channel": "c", "number": 1, "message": "somebody"})
    site.world.settle()
    assert again.channel.error is None
    wire.inbox += forged({"t": "taken", "channel": "c", "number": 2, "message": "somebody"})
    site.world.settle()
    assert "somebody" in str(raised(again))


def test_a_late_word_of_an_end_does_not_close_what_another_process_has() -> None:
    """A member that lost the channel to another closes it before it hears of that."""
    site = Site()
    consumer = site.world.inbox(site.second)
    site.world.settle()
    over = {"t": "over", "channel": "c", "stream": "", "count": 0, "reason": "closed", "message": "x"}
    says(site, site.first, over)
    producer = site.world.open(site.sender)
    site.run_until_attached(producer)
    assert consumer.channel.state is ReceiverState.ATTACHED


# -- the connection of a member


def test_a_member_without_a_front_warns_once_an_episode_and_joins_when_it_comes(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """It is a receiver meanwhile: senders that know its own address are served."""
    world = World()
    member = world.receiver("r:2", node=NODE)
    world.inbox(member, "c")
    direct = world.open(world.sender(), "c", "r:2")
    for _ in range(2):
        with caplog.at_level(logging.WARNING, "netchannel"):
            world.pass_time(60)
        assert [record.levelname for record in caplog.records] == ["WARNING"]
        assert f"the node at {NODE} has not been reached" in caplog.text
        assert f"Start the process that has members={NODE!r}" in caplog.text
        caplog.clear()
        front = world.receiver("r:1", members=NODE)
        world.pass_time(5)
        assert [link.port for link in front.members.links] == [2]
        world.crash(front)
    assert direct.channel.state is SenderState.ATTACHED
    assert direct.channel.reconnects == 0


def test_what_is_known_of_the_connection_to_the_node() -> None:
    site = Site()
    site.world.inbox(site.first)
    site.world.pass_time(3)
    assert site.first.node is not None
    up = site.first.node.statistics(site.world.now)
    assert (up.address, up.name, up.state, up.channels) == (NODE, "receiver r:1", "up", 1)
    site.world.crash(site.front)
    site.world.pass_time(0.01)
    waiting = site.first.node.statistics(site.world.now)
    assert (waiting.name, waiting.state, waiting.channels) == ("", "waiting", 1)


def test_a_member_that_comes_back_before_the_front_missed_it_keeps_its_channels() -> None:
    """Its old connection is still there, to one side: the new one, from the same port, takes its place."""
    site = Site()
    consumer = site.world.inbox(site.first)
    site.world.settle()
    wire = site.member_wire(site.first)
    wire.over = True
    site.world.ends.remove(wire)
    wire.link.lost("reset", site.world.now)
    site.world.pass_time(3)
    assert consumer.channel.error is None
    assert sorted(site.members()) == [("receiver r:2", 2, 1), ("receiver r:3", 3, 0)]
    site.run_until_attached(site.world.open(site.sender))


def test_two_members_with_one_port_are_named(caplog: pytest.LogCaptureFixture) -> None:
    """Such as two containers that advertise the same: a warning an episode, and nobody else is disturbed."""
    site = Site()
    producer, consumer = site.attach(site.second)
    with caplog.at_level(logging.WARNING, "netchannel"):
        site.start_member(2)
        site.world.pass_time(3)
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "connected with the same port 2, but each process needs its own port" in caplog.text
    producer.send(b"x")
    site.finish(producer)
    consumer.read()
    assert consumer.values == [b"x"]


CLAIM = {"t": "claim", "channel": "c", "number": 1, "held": False}
OVER = {"t": "over", "channel": "c", "stream": "s", "count": 0, "reason": "end", "message": ""}


@pytest.mark.parametrize(
    "message",
    [
        {"t": "member", "port": 9},
        CLAIM | {"channel": ""},
        {"t": "release", "channel": "\n"},
        OVER | {"reason": "boredom"},
        OVER | {"channel": "x" * 256},
        {"t": "ready", "channel": "c"},
    ],
    ids=str,
)
def test_a_member_that_breaks_the_protocol_loses_its_connection(message: dict[str, Any]) -> None:
    """And its channels with it, until it comes back."""
    site = Site()
    site.world.inbox(site.first)
    site.world.settle()
    before = site.member_wire(site.first)
    says(site, site.first, message)
    assert before.over
    site.world.pass_time(3)
    assert sorted(site.members()) == [("receiver r:2", 2, 1), ("receiver r:3", 3, 0)]


def test_a_node_that_says_what_only_members_say_loses_its_member() -> None:
    site = Site()
    before = site.member_wire(site.first)
    before.inbox += forged(CLAIM)
    site.world.settle()
    assert before.over


# -- clients


def ended(site: Site, receiver: ReceiverCore) -> Staged:
    """A staged channel that is over, with its epoch 0 committed."""
    staged = Staged(world=site.world, receiver=receiver)
    staged.commit(0, [staged.write([b"x"])], end=True)
    assert staged.read() == [b"x"]
    site.world.run(lambda: isinstance(receiver.services.ledgers.get("c"), EpochLedger))
    assert staged.answer().fresh is True
    return staged


def test_what_a_front_remembers_of_a_channel_does_not_hide_who_has_it_now() -> None:
    site = Site()
    ended(site, site.front)
    again = Staged(world=site.world, receiver=site.second)
    site.world.settle()
    again.commit(1, [again.write([b"y"], epoch=1)])
    assert again.answer().fresh is True
    assert again.read() == [b"y"]


def test_a_member_that_a_channel_was_over_at_is_asked_what_was_committed() -> None:
    """By whoever asks the node, as if the front had had it; until somebody has the channel anew."""
    site = Site()
    ended(site, site.first)
    for _ in range(2):
        late = Committing(site.world)
        late.commit(0, [])
        assert late.answer().fresh is False
        late.commit(1, [])
        assert isinstance(late.answer(), ChannelClosed)
        site.world.cut(site.member_wire(site.first))  # and told again
        site.world.pass_time(5)
    site.world.inbox(site.second)
    site.world.settle()
    late = Committing(site.world)
    late.commit(0, [])
    answer = late.answer()
    assert isinstance(answer, NetChannelError)
    assert "does not accept groups" in str(answer)


def test_a_member_that_is_gone_is_not_asked() -> None:
    site = Site()
    ended(site, site.first)
    site.world.crash(site.first)
    site.world.settle()
    late = Committing(site.world)
    late.commit(0, [])
    site.world.run(lambda: any("c" in client.waiting for client in site.front.services.clients))
