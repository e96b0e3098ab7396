"""Calls, as who makes them sees them: answered once, made again after a loss, ended by their deadline."""

from __future__ import annotations

from typing import Any

import pytest

from netchannel.core.calls.callees import BODIES_LIMIT, CALLS_LIMIT
from netchannel.core.calls.caller_core import CallerControl
from netchannel.errors import (
    CallFailed,
    CallTimedOut,
    HandshakeError,
    MessageTooLarge,
    NetChannelError,
)
from netchannel.wire import messages
from netchannel.wire.envelope import encode
from netchannel.wire.messages import CALL_LIMIT, PIECE_LIMIT
from tests.support.calling import Called, Calling
from tests.support.world import World


def test_calls_are_answered_each_with_its_own() -> None:
    """In whatever order."""
    world = World()
    service, caller = Called(world.receiver(), silent=True), Calling(world)
    calls = [caller.call(b"%d" % number) for number in range(10)]
    world.run(lambda: len(service.work) == 10)
    service.work.reverse()
    service.answer_all()
    world.settle()
    assert [call.answer for call in calls] == [b"%d" % number for number in range(10)]
    assert [call.answer for call in caller.over] == [b"%d" % number for number in reversed(range(10))]


@pytest.mark.parametrize(
    "size", [0, 1, PIECE_LIMIT, PIECE_LIMIT + 1, 3 * PIECE_LIMIT + 7, CALL_LIMIT], ids=str
)
def test_bodies_of_all_sizes_go_and_come(size: int) -> None:
    world = World(chunk=1 << 20)
    Called(world.receiver())
    body = (bytes(range(251)) * (size // 251 + 1))[:size]
    assert Calling(world).answered(body) == body


def test_what_is_small_does_not_wait_for_what_is_large() -> None:
    """Neither calls, nor answers: each is answered before the large one that was there first."""
    world = World()
    receiver = world.receiver()
    Called(receiver)
    caller = Calling(world)
    caller.answered()
    caller.over.clear()
    large = caller.call(bytes(CALL_LIMIT))
    small = [caller.call(b"small") for _ in range(10)]
    world.run(lambda: large.over and all(call.over for call in small))
    assert caller.over[-1] is large


# -- other sides that say too much


def test_answers_to_what_nobody_has_asked_are_passed_over() -> None:
    """Unknown numbers, answers that come twice, those that come too late: and the connection stays."""
    world = World()
    service, caller = Called(world.receiver(), silent=True), Calling(world)
    first = caller.call(b"first", deadline_s=1)
    world.run(lambda: first.over)
    assert isinstance(first.error, CallTimedOut)
    second = caller.call(b"second")
    world.run(lambda: len(service.work) == 2)
    link = caller.control
    strange = messages.Returned(request=second.request + 1000, size=1, body=b"?")
    late = messages.Returned(request=first.request, size=4, body=b"late")
    piece = messages.CallPiece(request=second.request + 1000, body=b"?")
    right = messages.Returned(request=second.request, size=5, body=b"right")
    wrong = messages.Returned(request=second.request, size=5, body=b"wrong")
    caller.hears(*map(encode, (strange, piece, late, late, right, wrong)))
    assert (second.answer, second.error) == (b"right", None)
    assert caller.over == [first, second]
    assert caller.control is link


@pytest.mark.parametrize(
    ("said", "why"),
    [
        (
            [messages.Returned(request=1, size=3, body=b"a"), messages.CallPiece(request=1, body=b"bcd")],
            "a body of 3 bytes arrived in pieces of 4 bytes in total",
        ),
        ([messages.CallPiece(request=1, body=b"b")], "more bytes of an answer to call 1 than announced"),
        ([messages.Returned(request=1, size=3, body=b"a")] * 2, "began to answer call 1 twice"),
        ([messages.Ready(channel="c")], "does not send to a caller"),
    ],
    ids=str,
)
def test_answers_against_the_rules_end_the_connection_and_not_the_call(said: list[Any], why: str) -> None:
    world = World()
    service, caller = Called(world.receiver(), silent=True), Calling(world)
    call = caller.call()
    world.run(lambda: bool(service.work))
    link = caller.control
    assert call.request == 1
    caller.hears(*map(encode, said))
    world.run(lambda: len(service.got) == 2)  # made again
    assert why in link.cause
    service.answer_all()
    world.run(lambda: call.over)
    assert call.answer == b"x"


def of_an_old_connection(world: World) -> tuple[bytes, bytes]:
    """Two calls are made, one on a connection that is then given up; what it has to say comes when both are out."""
    service, caller = Called(world.receiver(), silent=True), Calling(world)
    old_call = caller.call(b"old")
    world.run(lambda: bool(service.work))
    old = caller.control
    world.cut(caller.ends()[0])
    caller.core.give_up(old_call, NetChannelError("not wanted any more"))
    new_call = caller.call(b"new")
    world.run(lambda: len(service.work) == 2)
    late = encode(messages.Returned(request=old_call.request, size=3, body=b"old"))
    late += encode(messages.Returned(request=new_call.request, size=3, body=b"OLD"))
    old.closing = type(old.closing).OPEN  # as if it were still read, which is the last line of defence
    old.get_buffer(len(late))[: len(late)] = late
    old.received(len(late), world.now)
    service.answer_all()
    world.run(lambda: new_call.over)
    return new_call.answer, new_call.body


def test_an_answer_of_an_old_connection_is_not_taken_for_one_to_a_new_call() -> None:
    answer, body = of_an_old_connection(World())
    assert answer == body


def test_the_test_above_finds_connections_that_share_their_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    """A negative control."""
    shared: dict[int, Any] = {}
    make = CallerControl.__init__

    def sharing(self: CallerControl, peer: Any) -> None:
        make(self, peer)
        self._unanswered = shared

    monkeypatch.setattr(CallerControl, "__init__", sharing)
    answer, body = of_an_old_connection(World())
    assert answer != body


# -- losses, refusals, deadlines


def test_a_call_whose_connection_is_lost_is_made_again() -> None:
    """So that it may be done twice; the work on the first is stopped."""
    world = World()
    service, caller = Called(world.receiver(), silent=True), Calling(world)
    call = caller.call(bytes(3 * PIECE_LIMIT))
    world.run(lambda: bool(service.work))
    world.cut(caller.ends()[0])
    world.run(lambda: len(service.work) == 2)
    assert service.stopped == 1
    service.work[0].answer(b"of the first connection")
    service.work[1].answer(b"of the second")
    world.run(lambda: call.over)
    assert call.answer == b"of the second"


@pytest.mark.parametrize("seed", range(5))
def test_calls_are_answered_over_connections_that_are_cut_again_and_again(seed: int) -> None:
    world = World(seed, chunk=100_000)
    Called(world.receiver())
    caller = Calling(world)
    calls = [
        caller.call(world.random.randbytes(world.random.choice((10, 100_000, 600_000))), deadline_s=100)
        for _ in range(30)
    ]
    for _ in range(20):
        for _ in range(world.random.randrange(40)):
            world.step()
        for end in caller.ends()[:1]:
            world.cut(end)
        world.pass_time(world.random.random())
    world.run(lambda: all(call.over for call in calls))
    assert [call.answer for call in calls] == [call.body for call in calls]
    assert not any(peer.calls for peer in caller.core.peers.values())


def test_a_call_waits_for_the_receiver_and_for_the_service() -> None:
    """And is made as soon as there is one."""
    world = World()
    caller = Calling(world)
    call = caller.call(deadline_s=100)
    world.pass_time(3)
    receiver = world.receiver()
    world.run(lambda: any(link.calls.waiting for link in receiver.services.clients))
    Called(receiver)
    registered = world.now
    world.run(lambda: call.over)
    assert call.answer == b"x"
    assert world.now - registered < 0.05


def test_a_deadline_says_who_has_not_answered() -> None:
    world = World()
    caller = Calling(world)
    error = caller.error(b"123", deadline_s=2)
    assert isinstance(error, CallTimedOut)
    assert error.state == "unreached"
    assert str(error) == (
        "service 's' at r:1 gave no answer to a call of 3 bytes within 2 s: no process answers at r:1: "
        "connection refused"
    )
    receiver = world.receiver()
    error = caller.error(deadline_s=5)
    assert isinstance(error, CallTimedOut)
    assert error.state == "unregistered"
    assert "service 's' is not registered there with register_service" in str(error)
    service = Called(receiver, silent=True)
    error = caller.error(deadline_s=5)
    assert isinstance(error, CallTimedOut)
    assert error.state == "unanswered"
    assert service.stopped == 1  # it was told


def test_a_deadline_passes_while_the_node_is_away_again() -> None:
    world = World()
    receiver = world.receiver()
    Called(receiver, silent=True)
    caller = Calling(world)
    call = caller.call(deadline_s=5)
    world.pass_time(1)
    world.crash(receiver)
    world.run(lambda: call.over)
    assert isinstance(call.error, CallTimedOut)
    assert call.error.state == "unreached"


def test_a_service_that_cannot_answer_says_why() -> None:
    world = World()
    service, caller = Called(world.receiver(), silent=True), Calling(world)
    failing, closed, large = caller.call(b"1"), caller.call(b"2"), caller.call(b"3")
    world.run(lambda: len(service.work) == 3)
    service.work[0].refuse("raised", "KeyError: 'no such key'")
    service.work[1].refuse("closed", "it was closed")
    service.work[2].answer(bytes(CALL_LIMIT + 1))
    world.run(lambda: len(caller.over) == 3)
    assert isinstance(failing.error, CallFailed)
    assert failing.error.said == "KeyError: 'no such key'"
    assert str(failing.error) == "service 's' at r:1 failed: KeyError: 'no such key'"
    assert isinstance(closed.error, CallFailed)
    assert closed.error.said == ""
    assert isinstance(large.error, MessageTooLarge)
    assert f"{CALL_LIMIT + 1} bytes: the limit is {CALL_LIMIT}" in str(large.error)


def test_another_secret_is_told_at_once_and_a_later_call_tries_again() -> None:
    world = World()
    receiver = world.receiver(secret=b"right")
    Called(receiver)
    caller = Calling(world, secret=b"wrong")
    begun = world.now
    assert isinstance(caller.error(deadline_s=60), HandshakeError)
    assert world.now - begun < 1
    world.pass_time(10)
    assert not caller.ends()  # it does not dial in vain, for ever
    caller.core.secret = b"right"
    assert caller.answered() == b"x"


def test_a_receiver_that_takes_no_calls_is_not_sent_any() -> None:
    world = World()
    receiver = world.receiver()
    Called(receiver)
    caller = Calling(world)
    world.settle()
    caller.control.peer_features = frozenset()
    caller.core.peers["r:1", "r:1"]._open = False
    error = caller.error(deadline_s=1)
    assert isinstance(error, CallTimedOut)
    assert error.state == "unregistered"
    assert "does not support calls: start a newer version of it" in str(error)


# -- what waits here


def test_calls_beyond_what_the_other_side_takes_wait_here() -> None:
    """And take their turn, those that nobody waits for any more left out."""
    world = World()
    service, caller = Called(world.receiver(), silent=True), Calling(world)
    calls = [caller.call(b"%d" % number, deadline_s=100) for number in range(CALLS_LIMIT + 10)]
    world.settle()
    assert len(service.work) == CALLS_LIMIT == caller.control.unanswered
    late = caller.call(b"late", deadline_s=1)
    world.run(lambda: late.over)
    assert isinstance(late.error, CallTimedOut)
    assert f"{CALLS_LIMIT} earlier calls to services at " in str(late.error)
    service.silent = False
    service.answer_all()
    world.run(lambda: all(call.over for call in calls))
    assert [call.answer for call in calls] == [call.body for call in calls]
    assert b"late" not in service.got


def test_bodies_beyond_what_the_other_side_takes_wait_here() -> None:
    world = World(chunk=1 << 20)
    service, caller = Called(world.receiver(), silent=True), Calling(world)
    calls = [caller.call(bytes(BODIES_LIMIT // 2), deadline_s=100) for _ in range(3)]
    world.settle()
    assert len(service.work) == 2
    service.answer_all()
    world.run(lambda: len(service.work) == 1)
    service.answer_all()
    world.run(lambda: all(call.over for call in calls))


def test_a_call_that_is_cancelled_takes_room_until_its_work_has_stopped() -> None:
    """As the other side counts it, too."""
    world = World()
    service, caller = Called(world.receiver(), silent=True), Calling(world)
    call = caller.call()
    world.run(lambda: bool(service.work))
    caller.core.give_up(call, NetChannelError("not wanted any more"))
    world.settle()
    assert service.stopped == 1
    assert caller.control.unanswered == 1
    service.work[0].refuse(*service.work[0].stopped_by)  # type: ignore[misc]  # it was stopped
    world.settle()
    assert caller.control.unanswered == 0


def test_a_large_call_that_is_cancelled_before_it_is_said_takes_no_room() -> None:
    world = World()
    service, caller = Called(world.receiver()), Calling(world)
    caller.answered()
    call = caller.call(bytes(CALL_LIMIT))
    caller.core.give_up(call, NetChannelError("not wanted any more"))
    assert caller.control.unanswered == 0
    assert caller.answered(b"next") == b"next"
    assert service.got == [b"x", b"next"]


def test_nothing_is_left_of_calls_that_are_over() -> None:
    """However they ended, and wherever they waited."""
    world = World()
    caller = Calling(world)
    for _ in range(100):
        caller.call(deadline_s=0.1)  # nobody is there
    world.pass_time(1)
    receiver = world.receiver()
    for _ in range(100):
        caller.call(deadline_s=0.1)  # nobody has it
    world.pass_time(3)
    Called(receiver)
    for _ in range(100):
        caller.call()
    world.pass_time(10)
    assert len(caller.over) == 300
    (peer,) = caller.core.peers.values()
    assert [peer.calls, peer._small, caller.control.unanswered] == [{}, {}, 0]
    assert not any(peer._refused.values())
    caller.core.leave("r:1", world.now)
    world.pass_time(10)
    assert [caller.core.peers, caller.ends()] == [{}, []]
