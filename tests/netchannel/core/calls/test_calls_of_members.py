"""Services that other processes of a node have: calls to the node's address find them."""

from __future__ import annotations

import pytest

from netchannel.core.receiving.node_members import MemberControl
from netchannel.core.receiving.receiver_core import ReceiverCore
from netchannel.errors import CallTimedOut, ChannelInUse
from tests.support.calling import Called, Calling
from tests.support.world import World

NODE = "unix:/node"


class Site:
    """A node of three processes, at ports 1 (whose address callers know), 2 and 3; and a caller."""

    def __init__(self, seed: int = 0) -> None:
        self.world = World(seed)
        self.front = self.start_front()
        self.first, self.second = self.start_member(2), self.start_member(3)
        self.caller = Calling(self.world)
        self.world.settle()

    def start_front(self) -> ReceiverCore:
        self.front = self.world.receiver("r:1", members=NODE)
        return self.front

    def start_member(self, port: int) -> ReceiverCore:
        return self.world.receiver(f"r:{port}", node=NODE)

    def called(self, core: ReceiverCore, service_id: str = "s") -> Called:
        service = Called(core, service_id)
        self.world.settle()
        return service

    def dialed(self) -> list[str]:
        """Where the caller is connected to."""
        return sorted(end.link.remote for end in self.caller.ends())


def test_a_call_goes_to_the_process_that_has_the_service() -> None:
    """And calls that follow go there at once."""
    site = Site()
    services = [
        site.called(core, name) for core, name in ((site.front, "a"), (site.first, "b"), (site.second, "c"))
    ]
    for service in services:
        for _ in range(3):
            assert site.caller.answered(service_id=service.callee.id) == b"x"
    assert [len(service.got) for service in services] == [3, 3, 3]
    assert site.dialed() == ["r:1", "r:2", "r:3"]
    asked = site.caller.core.routes["r:1", "b"]
    assert asked.address == "r:2"


def test_a_call_that_was_there_first_goes_on_when_a_member_has_the_service() -> None:
    site = Site()
    call = site.caller.call(deadline_s=100)
    site.world.pass_time(3)
    site.called(site.first)
    registered = site.world.now
    site.world.run(lambda: call.over)
    assert call.answer == b"x"
    assert site.world.now - registered < 0.2


def test_a_service_and_a_channel_may_have_the_same_id() -> None:
    """At one process, and at two."""
    site = Site()
    site.called(site.first, "c")
    site.world.inbox(site.second, "c")
    producer = site.world.open(site.world.sender(), "c")
    assert site.caller.answered(service_id="c") == b"x"
    producer.send(b"1")
    site.world.settle()
    assert site.second.channels["c"].expected == 1


@pytest.mark.parametrize("to", ["member", "front"])
def test_a_service_that_moves_is_found_again(to: str) -> None:
    site = Site()
    before = site.called(site.first)
    assert site.caller.answered() == b"x"
    site.first.withdraw(before.callee)
    site.world.settle()
    after = site.called(site.second if to == "member" else site.front)
    assert site.caller.answered(deadline_s=1) == b"x"
    assert len(after.got) == 1


def test_calls_go_on_when_a_member_is_killed_and_started_again() -> None:
    site = Site()
    site.called(site.first).silent = True
    calls = [site.caller.call(b"%d" % number, deadline_s=100) for number in range(20)]
    site.world.settle()
    site.world.crash(site.first)
    site.world.pass_time(2)
    again = site.called(site.start_member(2))
    site.world.run(lambda: all(call.over for call in calls))
    assert [call.answer for call in calls] == [call.body for call in calls]
    assert sorted(again.got) == sorted(call.body for call in calls)


def test_calls_go_on_when_the_front_is_killed_and_started_again() -> None:
    """Those of a service that was found before do not even notice."""
    site = Site()
    service = site.called(site.first)
    assert site.caller.answered() == b"x"
    site.world.crash(site.front)
    site.world.settle()
    assert site.caller.answered(deadline_s=1) == b"x"
    site.start_front()
    other = site.called(site.second, "other")
    assert site.caller.answered(service_id="other", deadline_s=60) == b"x"
    assert (len(service.got), len(other.got)) == (2, 1)


def test_connections_that_are_cut_at_random_lose_no_call() -> None:
    for seed in range(10):
        site = Site(seed)
        site.called(site.first, "a")
        site.called(site.second, "b")
        calls = [
            site.caller.call(b"%d" % number, site.world.random.choice("ab"), deadline_s=200)
            for number in range(40)
        ]
        for _ in range(15):
            for _ in range(site.world.random.randrange(20)):
                site.world.step()
            if site.world.ends:
                site.world.cut(site.world.random.choice(site.world.ends))
            site.world.pass_time(site.world.random.random() / 10)
        site.world.run(lambda calls=calls: all(call.over for call in calls), limit_s=300)  # type: ignore[misc]
        assert [call.answer for call in calls] == [call.body for call in calls]
        assert not any(peer.calls for peer in site.caller.core.peers.values())


def test_each_service_has_one_process() -> None:
    """Who comes second is told: at once, where that is known, or as soon as the front hears of it."""
    site = Site()
    first = site.called(site.first)
    with pytest.raises(ChannelInUse, match="service 's' is already registered at this node, by receiver r:2"):
        Called(site.front)
    second = site.called(site.second)
    assert "service 's' is already registered at this node, by receiver r:2" in second.taken
    assert site.second.callees.registered == {}
    with pytest.raises(ChannelInUse, match="service 's' is already registered in this process"):
        Called(site.first)
    assert site.caller.answered() == b"x"
    assert len(first.got) == 1
    site.first.withdraw(first.callee)
    site.world.settle()
    Called(site.front)
    third = site.called(site.second)
    assert "by receiver r:1" in third.taken


def test_a_caller_that_does_not_follow_is_told_where_to_ask(monkeypatch: pytest.MonkeyPatch) -> None:
    from netchannel.core.calls.caller_core import CallerControl

    monkeypatch.setattr(CallerControl, "features", frozenset())
    site = Site()
    site.called(site.first)
    error = site.caller.error(deadline_s=1)
    assert isinstance(error, CallTimedOut)
    assert "service 's' is in another process of this node: call port 2" in str(error)


def test_a_front_that_knows_no_services_is_told_of_none(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A member of a newer version stays its member, and says that calls do not find it."""
    monkeypatch.setattr(MemberControl, "features", frozenset())
    site = Site()
    early = site.start_member(4)
    Called(early, "early")
    site.world.settle()
    service = site.called(site.first)
    assert "the node at unix:/node does not support services" in caplog.text
    assert len(site.front.members.links) == 3
    assert isinstance(site.caller.error(deadline_s=1), CallTimedOut)
    site.first.withdraw(service.callee)
    site.world.settle()
    assert len(site.front.members.links) == 3
