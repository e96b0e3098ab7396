"""Staged groups in virtual time: a receiver that stops at every point of a commit, and clients that ask again."""

from __future__ import annotations

import errno
from typing import Any

import pytest

from netchannel.core.groups import WINNER, StagedChannel
from netchannel.core.states import ReceiverState
from netchannel.errors import AttemptLost, ChannelBroken
from netchannel.groups import open_attempt
from netchannel.storage import LogDamaged
from netchannel.values import BufferPolicy, Group
from tests.support.simulated_files import Crash
from tests.support.staged import Staged


def crashed(staged: Staged, until: Any) -> bool:
    """Run until then, or until the receiver's machine stops."""
    try:
        staged.world.run(until)
    except Crash:
        return True
    return False


@pytest.mark.parametrize("power", [False, True])
def test_a_commit_is_done_or_not_wherever_the_receiver_stops(power: bool) -> None:
    """CH-STG-4: it is asked again, and the answer tells which; the group is there once."""
    fresh = []
    for seed in range(10):
        for crash_at in range(12):
            staged = Staged(seed)
            winners = [staged.write([b"%d.%d" % (p, n) for n in range(3)], partition=p) for p in range(2)]
            staged.files.crash_at = crash_at
            staged.commit(0, winners)
            if not crashed(staged, lambda staged=staged: bool(staged.answers)):
                assert staged.answers.pop()["fresh"] is True  # type: ignore[index]  # it is no error
                if not crashed(staged, lambda staged=staged: len(staged.inbox.channel.queue) == 6):
                    continue
                staged.commit(0, winners)
            known = bool(staged.answers)
            staged.stop(power=power)
            staged.start()
            answer = staged.answer()
            assert isinstance(answer, dict)
            fresh.append(answer["fresh"])
            assert not known
            assert staged.read() == [b"%d.%d" % (p, n) for p in range(2) for n in range(3)]
            staged.commit(0, winners)
            assert staged.answer()["fresh"] is False  # type: ignore[index]  # it is no error
    assert set(fresh) == {False, True}


@pytest.mark.parametrize("power", [False, True])
def test_an_answered_commit_survives_whatever_comes(power: bool) -> None:
    """CH-STG-4."""
    for seed in range(30):
        staged = Staged(seed)
        winners = [staged.write([b"x", b"y"])]
        staged.commit(0, winners)
        assert isinstance(staged.answer(), dict)
        staged.stop(power=power)
        staged.start()
        assert staged.read() == [b"x", b"y"]
        staged.commit(0, winners)
        assert staged.answer()["fresh"] is False  # type: ignore[index]  # it is no error


def test_an_answer_that_is_sent_too_early_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """CH-STG-4, the negative control: without the sync, an answered commit is lost."""
    monkeypatch.setattr("netchannel.storage.tail.Tail.sync", lambda self: None)
    with pytest.raises((AssertionError, LogDamaged)):
        test_an_answered_commit_survives_whatever_comes(True)


@pytest.mark.parametrize("power", [False, True])
def test_a_seal_is_durable_before_it_is_said(power: bool) -> None:
    """CH-STG-3, CH-STG-4."""
    for seed in range(30):
        staged = Staged(seed)
        sealed = staged.write([b"x"] * 3)
        staged.stop(power=power)
        staged.start()
        staged.commit(0, [sealed])
        answer = staged.answer()
        assert isinstance(answer, dict), answer
        assert staged.read() == [b"x"] * 3


def test_what_was_sealed_is_compared_with_what_is_committed(monkeypatch: pytest.MonkeyPatch) -> None:
    """CH-STG-3, with its negative control: without the comparison, a truncated attempt is published."""
    staged = Staged()
    sealed = staged.write([b"x"] * 3)
    for other in (sealed._replace(count=5), sealed._replace(checksum=0), sealed._replace(bytes=5)):
        staged.commit(0, [other])
        assert isinstance(staged.answer(), AttemptLost)
    monkeypatch.setattr(StagedChannel, "_objections", lambda self, keys, winners: iter(()))
    staged.commit(0, [sealed._replace(count=5)])
    assert isinstance(staged.answer(), dict)
    assert staged.read() == [b"x"] * 3


@pytest.mark.parametrize("explicit", [False, True])
def test_the_end_is_kept_until_it_has_been_read(explicit: bool) -> None:
    """A receiver that stops at any point gives the end again, and what was not acknowledged, or has a new stream."""
    over = set()
    for crash_at in range(30):
        staged = Staged(crash_at)
        staged.stop()
        staged.start(explicit=explicit)
        stream = staged.inbox.channel.stream
        staged.commit(0, [staged.write([b"x", b"y"])], end=True)
        staged.answer()
        staged.files.crash_at = crash_at
        try:
            staged.world.run(lambda staged=staged: bool(staged.inbox.channel.queue))
            staged.inbox.read()
            if explicit:
                staged.inbox.ack(2)
            else:
                staged.inbox.channel.more()
            staged.world.run(lambda staged=staged: staged.inbox.channel.terminal)
            assert staged.inbox.channel.state is ReceiverState.ENDED
        except Crash:
            pass
        staged.stop()
        staged.start(explicit=explicit)
        again = staged.inbox.channel
        over.add(again.stream != stream)
        if again.stream == stream:
            staged.world.settle()
            staged.inbox.read()
            assert staged.inbox.values in ([b"x", b"y"], [])
        staged.commit(0, [])
        assert staged.answer()["fresh"] is False  # type: ignore[index]  # it is no error
    assert over == {False, True}


def test_a_full_disk_makes_a_commit_wait() -> None:
    staged = Staged()
    sealed = staged.write([b"x"])
    staged.files.capacity = 0
    staged.commit(0, [sealed])
    staged.world.pass_time(5)
    assert not staged.answers
    staged.files.capacity = None
    assert isinstance(staged.answer(), dict)
    assert staged.read() == [b"x"]


def test_a_disk_that_fails_breaks_the_channel_and_tells_the_client() -> None:
    staged = Staged()
    sealed = staged.write([b"x"])
    staged.files.fail("fdatasync", errno.EIO)
    staged.commit(0, [sealed])
    answer = staged.answer()
    assert isinstance(answer, ChannelBroken)
    assert "journal" in str(answer)
    staged.world.settle()
    assert isinstance(staged.inbox.channel.error, ChannelBroken)
    staged.commit(0, [sealed])
    staged.world.pass_time(3)
    staged.files.kill()
    staged.register()
    assert isinstance(staged.answer(), dict)
    assert staged.read() == [b"x"]


def test_an_attempt_whose_disk_fails_is_refused_alone() -> None:
    staged = Staged()
    good = staged.write([b"x"])
    staged.files.fail("create", errno.EIO)
    with pytest.raises(AssertionError):
        staged.write([b"y"], partition=1)
    staged.commit(0, [good])
    assert isinstance(staged.answer(), dict)
    assert staged.read() == [b"x"]


def test_a_sender_that_is_gone_for_long_loses_its_attempt() -> None:
    staged = Staged(orphan_s=10.0)
    producer = staged.open().producer
    producer.send(b"x")
    staged.world.run(lambda: producer.channel.acknowledged == 1)
    assert len(staged.names(".unsealed")) == 1
    staged.world.crash(staged.sender)
    staged.world.pass_time(20)
    assert not staged.names(".unsealed")
    assert list(staged.receiver.channels) == ["c"]


def test_an_attempt_that_nobody_names_is_dropped_in_time() -> None:
    staged = Staged(orphan_s=60.0)
    first = staged.write([b"x"])
    staged.world.pass_time(40)
    second = staged.write([b"y"], epoch=1)
    staged.world.pass_time(30)
    assert len(staged.names(".attempt")) == 1
    staged.commit(0, [first])
    assert isinstance(staged.answer(), AttemptLost)
    # Its time begins anew with the process: nobody knows how long it was away.
    staged.stop()
    staged.start()
    staged.world.pass_time(50)
    staged.commit(1, [second])
    assert isinstance(staged.answer(), dict)
    assert staged.read() == [b"y"]


def test_attempts_wait_for_those_of_their_group_that_take_long() -> None:
    staged = Staged(orphan_s=60.0)
    first = staged.write([b"x"])
    staged.world.pass_time(40)
    second = staged.write([b"y"], partition=1)
    staged.world.pass_time(40)
    writing = staged.begin([b"z"], partition=2)
    staged.world.run(lambda: writing.channel.terminal)
    staged.world.pass_time(50)
    assert len(staged.names(".attempt")) == 3
    staged.commit(0, [first, second, writing.sealed()])
    assert isinstance(staged.answer(), dict)
    assert staged.read() == [b"x", b"y", b"z"]


def test_attempts_wait_for_one_that_is_being_written_and_for_none_that_is_gone() -> None:
    staged = Staged(orphan_s=60.0)
    staged.write([b"x"])
    producer = staged.open(partition=1).producer
    producer.send(b"y")
    staged.world.run(lambda: producer.channel.acknowledged == 1)
    staged.world.pass_time(200)
    assert len(staged.names(".attempt")) == 1
    staged.world.crash(staged.sender)
    staged.world.pass_time(200)
    assert staged.names(".attempt") == staged.names(".unsealed") == []


def test_an_end_that_was_not_heard_is_answered_again_after_a_restart() -> None:
    """The sender asks for a sealed attempt: it is told that it is over, not that it is lost."""
    staged = Staged()
    producer = staged.begin([b"x"]).producer
    while not staged.names(".attempt"):
        staged.world.step()
    assert not producer.channel.terminal
    staged.stop()
    staged.start()
    staged.world.run(lambda: producer.channel.terminal)
    assert producer.channel.error is None


@pytest.mark.parametrize(
    "fields",
    [{"winners": b"\0" * (WINNER.size - 1), "application": "app"}, {"winners": b"", "application": ""}],
)
def test_requests_that_make_no_sense_end_the_connection(fields: dict[str, Any]) -> None:
    staged = Staged()
    staged.world.run(lambda: bool(staged.receiver.clients))
    control = staged.asked.peer.control
    assert control is not None
    staged.world.run(lambda: control.greeted)
    control.say("commit", channel="c", request=1, epoch=0, end=False, **fields)
    staged.world.run(lambda: staged.asked.peer.control is not control)


def test_another_stream_does_not_slip_into_an_attempt() -> None:
    """CH-STG-3: the same channel id on the wire, and another identity."""
    staged = Staged()
    group = Group("app", 0, 0)
    opened, wire_id, _ = open_attempt(BufferPolicy(), "c", "bytes", None, group)
    first = staged.world.open(staged.sender, wire_id, stream=opened.stream, prepare=opened.prepare)
    staged.world.run(lambda: bool(staged.receiver.channels.get(wire_id)))
    other = staged.world.sender("another")
    opened, _, _ = open_attempt(BufferPolicy(), "c", "bytes", None, group)
    second = staged.world.open(other, wire_id, stream=opened.stream, prepare=opened.prepare)
    staged.world.run(lambda: second.channel.terminal)
    assert "another one than this attempt" in str(second.channel.error)
    first.channel.finish()
    staged.world.run(lambda: first.channel.terminal)
    assert first.channel.error is None
