"""Staged groups in virtual time: a receiver that stops at every point of a commit, and clients that ask again."""

from __future__ import annotations

import errno
import gc
import re
import weakref
from typing import Any

import pytest

from netchannel.core.groups.staged_channel import WINNER, StagedChannel
from netchannel.core.receiving.offers import Lease
from netchannel.core.receiving.sessions import ReceiverControl
from netchannel.core.states import ReceiverState
from netchannel.errors import AttemptLost, ChannelBroken, ChannelClosed, LogDamaged, NetChannelError
from netchannel.policies import BufferPolicy, Timing
from netchannel.servers.group_channels import open_attempt
from netchannel.values import Group
from netchannel.wire.codec import make_encoder
from netchannel.wire.messages import Answer, Commit, Drop, Epoch, Watch
from tests.support.forged import forged
from tests.support.simulated_files import Crash
from tests.support.staged import Staged, Writing
from tests.support.world import World


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
                assert staged.answers.pop().fresh is True
                if not crashed(staged, lambda staged=staged: len(staged.inbox.channel.queue) == 6):
                    continue
                staged.commit(0, winners)
            known = bool(staged.answers)
            staged.stop(power=power)
            staged.start()
            answer = staged.answer()
            assert isinstance(answer, Answer)
            fresh.append(answer.fresh)
            assert not known
            assert staged.read() == [b"%d.%d" % (p, n) for p in range(2) for n in range(3)]
            staged.commit(0, winners)
            assert staged.answer().fresh is False
    assert set(fresh) == {False, True}


@pytest.mark.parametrize("power", [False, True])
def test_an_answered_commit_survives_whatever_comes(power: bool) -> None:
    """CH-STG-4."""
    for seed in range(30):
        staged = Staged(seed)
        winners = [staged.write([b"x", b"y"])]
        staged.commit(0, winners)
        assert isinstance(staged.answer(), Answer)
        staged.stop(power=power)
        staged.start()
        assert staged.read() == [b"x", b"y"]
        staged.commit(0, winners)
        assert staged.answer().fresh is False


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
        assert isinstance(answer, Answer), answer
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
    assert isinstance(staged.answer(), Answer)
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
        assert staged.answer().fresh is False
    assert over == {False, True}


def test_a_consumer_that_has_read_all_hears_of_the_end_before_it_acknowledges() -> None:
    """CH-END-6: who acknowledges after its last message would wait for ever."""
    staged = Staged()
    staged.stop()
    staged.start(explicit=True)
    staged.commit(0, [staged.write([b"x", b"y"])], end=True)
    staged.answer()
    assert staged.read() == [b"x", b"y"]
    channel = staged.inbox.channel
    assert channel.ended == 2
    assert not channel.terminal
    staged.inbox.ack(2)
    staged.world.run(lambda: channel.terminal)
    assert channel.state is ReceiverState.ENDED


def test_a_full_disk_makes_a_commit_wait() -> None:
    staged = Staged()
    sealed = staged.write([b"x"])
    staged.files.capacity = 0
    staged.commit(0, [sealed])
    staged.world.pass_time(5)
    assert not staged.answers
    staged.files.capacity = None
    assert isinstance(staged.answer(), Answer)
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
    assert isinstance(staged.answer(), Answer)
    assert staged.read() == [b"x"]


def test_an_attempt_whose_disk_fails_is_refused_alone() -> None:
    staged = Staged()
    good = staged.write([b"x"])
    staged.files.fail("create", errno.EIO)
    with pytest.raises(AssertionError):
        staged.write([b"y"], partition=1)
    staged.commit(0, [good])
    assert isinstance(staged.answer(), Answer)
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
    assert isinstance(staged.answer(), Answer)
    assert staged.read() == [b"y"]


def test_files_to_be_written_again_are_deleted_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """They count as what the channel has on disk."""
    monkeypatch.setattr("netchannel.storage.groups.spares.LEAST_BYTES", 1)
    staged = Staged()
    for epoch, value in enumerate([b"x", b"y"]):
        sealed = staged.write([value], epoch=epoch)
        assert not staged.names(".spare")  # it is what was written again
        staged.commit(epoch, [sealed])
        staged.answer()
        staged.read()
        staged.world.pass_time(1)
        assert len(staged.names(".spare")) == 1
    assert staged.inbox.channel.disk_bytes() > 0
    staged.world.pass_time(70)
    assert not staged.names(".spare")
    assert staged.inbox.channel.disk_bytes() == 0
    assert staged.inbox.values == [b"x", b"y"]


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
    assert isinstance(staged.answer(), Answer)
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
    staged.world.run(lambda: bool(staged.receiver.services.clients))
    control = staged.asked.peer.control
    assert control is not None
    staged.world.run(lambda: control.greeted)
    control.say(Commit(channel="c", request=1, epoch=0, end=False, **fields))
    staged.world.run(lambda: staged.asked.peer.control is not control)


def test_another_stream_does_not_slip_into_an_attempt() -> None:
    """CH-STG-3: the same channel id on the wire, and another identity; each has a file of its own."""
    staged = Staged()
    group = Group("app", 0, 0)
    writers = []
    for sender in (staged.sender, staged.world.sender("another")):
        opened, _, wire_id = open_attempt(BufferPolicy(), "c", "bytes", None, group)
        wire_id = writers[0].channel.id if writers else wire_id
        producer = staged.world.open(sender, wire_id, stream=opened.stream, prepare=opened.prepare)
        producer.encoder = make_encoder("bytes", None)
        producer.send(b"%d" % len(writers))
        writers.append(producer)
    staged.world.run(lambda: len(staged.names(".unsealed")) == 2)
    for producer in writers:
        producer.channel.finish()
        staged.world.run(lambda producer=producer: producer.channel.terminal)
        assert producer.channel.error is None
    staged.commit(0, [Writing(writers[1], 0).sealed()])
    assert isinstance(staged.answer(), Answer)
    assert staged.read() == [b"1"]


def test_an_attempt_has_its_file_to_itself() -> None:
    """CH-STG-3: the same identity under another id on the wire would write over what is sealed, and even committed."""
    staged = Staged()
    group = Group("app", 0, 0)
    opened, _, wire_id = open_attempt(BufferPolicy(), "c", "bytes", None, group)
    first = staged.world.open(staged.sender, wire_id, stream=opened.stream, prepare=opened.prepare)
    first.encoder = make_encoder("bytes", None)
    first.send(b"first")
    staged.world.run(lambda: bool(staged.names(".unsealed")))
    other, _, _ = open_attempt(BufferPolicy(), "c", "bytes", None, group)
    second = staged.world.open(staged.sender, "another", stream=opened.stream, prepare=other.prepare)
    staged.world.run(lambda: second.channel.terminal)
    assert "is being written as channel 'c 0.0 " in str(second.channel.error)
    first.channel.finish()
    staged.world.run(lambda: first.channel.terminal)
    assert first.channel.error is None
    staged.commit(0, [Writing(first, 0).sealed()])
    assert isinstance(staged.answer(), Answer)
    assert staged.read() == [b"first"]


def test_an_attempt_takes_nobody_elses_id() -> None:
    """CH-BAD-1: a channel can be registered under the id that an attempt goes by."""
    staged = Staged()
    opened, _, _ = open_attempt(BufferPolicy(), "c", "bytes", None, Group("app", 0, 0))
    staged.world.open(staged.sender, "flights", stream=opened.stream, prepare=opened.prepare)
    staged.world.settle()
    inbox = staged.world.inbox(staged.receiver, "flights")
    producer = staged.world.open(staged.world.sender("another"), "flights")
    producer.send(b"x")
    staged.world.run(lambda: bool(inbox.channel.queue))


def test_who_asks_for_an_attempt_and_does_not_come_takes_no_place(monkeypatch: pytest.MonkeyPatch) -> None:
    """CH-BAD-1: nothing is written for it, and others are not kept out."""
    monkeypatch.setattr("netchannel.core.groups.staged_channel.ATTEMPTS_LIMIT", 3)
    staged = Staged()
    staged.write([b"x"])
    (end,) = [end for end in staged.world.ends if type(end.link) is ReceiverControl]
    for number in range(3):
        end.inbox += forged(
            {
                "t": "open", "channel": f"a {number}", "request": 1 << 40, "stream": f"{number:032x}",
                "codec": "bytes", "schema": None, "lossy": False,
                "into": "c", "application": "app", "epoch": 0, "partition": number,
            }
        )  # fmt: skip
    began = staged.world.now
    assert staged.write([b"y"], partition=1).count == 1
    assert staged.world.now - began < 1
    assert len(staged.receiver.open_requests.offers) == 3
    staged.world.pass_time(staged.world.timing.token_s)
    assert len(staged.receiver.open_requests.offers) == 0


def test_a_place_that_a_port_was_missing_for_is_free_again() -> None:
    staged = Staged()
    leases = []

    def no_port() -> Lease:
        leases.append(1)
        raise OSError(errno.EADDRINUSE, "in use")

    staged.receiver.open_requests.offers.lease = no_port
    writing = staged.begin([b"x"])
    staged.world.run(lambda: len(leases) > 2)
    staged.receiver.open_requests.offers.lease = None
    staged.world.run(lambda: writing.channel.terminal)
    assert writing.channel.error is None


def test_an_attempt_that_may_have_gaps_is_refused() -> None:
    """CH-STG-3."""
    staged = Staged()
    opened, _, wire_id = open_attempt(BufferPolicy(), "c", "bytes", None, Group("app", 0, 0))
    buffer = BufferPolicy(when_full="drop_oldest")
    producer = staged.world.open(
        staged.sender, wire_id, stream=opened.stream, prepare=opened.prepare, buffer=buffer
    )
    staged.world.run(lambda: producer.channel.terminal)
    assert "may drop messages" in str(producer.channel.error)


def test_a_process_without_descriptors_reads_its_groups_later(caplog: pytest.LogCaptureFixture) -> None:
    """CH-BAD-3: as senders do; nothing is given up, and nothing spins."""
    staged = Staged()
    staged.commit(0, [staged.write([b"x"])])
    staged.files.fail("open", errno.EMFILE, times=5)
    began = staged.world.now
    assert isinstance(staged.answer(), Answer)
    staged.world.run(lambda: bool(staged.inbox.channel.queue))
    assert 5 <= staged.world.now - began <= 7
    assert staged.read() == [b"x"]
    assert len([each for each in caplog.records if each.levelname == "WARNING"]) == 1


def test_batches_without_their_schema_are_no_attempt(caplog: pytest.LogCaptureFixture) -> None:
    """CH-STG-3: a peer that breaks this rule would end the channel for its consumer, after each restart again."""
    staged = Staged(codec="arrow")
    opened, _, wire_id = open_attempt(BufferPolicy(), "c", "arrow", None, Group("app", 0, 0))
    producer = staged.world.open(
        staged.sender, wire_id, stream=opened.stream, prepare=opened.prepare, codec="arrow"
    )
    producer.encoder = make_encoder("bytes", None)
    producer.send(b"x")
    producer.channel.finish()
    staged.world.run(lambda: "a batch arrived before its schema" in caplog.text)
    assert producer.channel.acknowledged == 0
    assert not staged.names(".attempt")


def test_a_drop_that_its_channel_left_undone_is_asked_again() -> None:
    """It is said to be done once it is, here by the successor."""
    staged = Staged()
    sealed = staged.write([b"x"])
    staged.write([b"y"], epoch=1)
    staged.world.disk_works = False
    staged.commit(0, [sealed])
    staged.asked.ask(
        Drop,
        lambda message, now: staged.answers.append(message),
        lambda error, now: staged.answers.append(error),
        staged.world.now,
        application="app",
        epoch=1,
    )
    staged.world.settle()
    staged.inbox.channel.detach(staged.world.now)
    staged.world.disk_works = True
    assert staged.answer().fresh is True
    staged.world.pass_time(5)
    assert not staged.answers
    assert len(staged.names(".attempt")) == 2
    staged.register()
    assert staged.answer().kind == "dropped"
    assert len(staged.names(".attempt")) == 1


def test_a_commit_waits_while_too_much_is_kept() -> None:
    """A slow consumer holds back who commits, as it does a sender; a group that is larger comes alone."""
    world = World(timing=Timing(backoff_limit_s=1000.0))  # so that it is asked again when it is told to only
    staged = Staged(world=world, max_kept_bytes=10_000)
    staged.stop()
    staged.start(explicit=True)

    def fresh(epoch: int, size: int, *, end: bool = False) -> bool | None:
        winners = [staged.write([bytes(size)], epoch=epoch)] if size else []
        staged.commit(epoch, winners, end=end)
        world.pass_time(5)
        return staged.answers.pop().fresh if staged.answers else None

    assert fresh(0, 20_000) is True
    assert fresh(0, 0) is False
    assert fresh(1, 6000) is None
    assert staged.read() == [bytes(20_000)]
    world.pass_time(5)
    assert not staged.answers
    staged.inbox.ack(1)
    assert staged.answer().fresh is True
    assert fresh(2, 2000) is True
    assert fresh(3, 4000) is None
    staged.read()
    staged.inbox.ack(2)
    assert staged.answer().fresh is True
    assert fresh(4, 0, end=True) is True
    assert staged.read() == [bytes(size) for size in (20_000, 6000, 2000, 4000)]
    staged.inbox.ack(4)
    world.run(lambda: staged.inbox.channel.terminal)


def test_a_group_whose_commit_waits_is_no_orphan() -> None:
    """A client that asks for it again and again has not forgotten it; one that is gone has."""
    staged = Staged(max_kept_bytes=10_000, orphan_s=6.0)

    def commit_two(first: int) -> None:
        for epoch in (first, first + 1):
            staged.commit(epoch, [staged.write([bytes(6000)], epoch=epoch)])
            staged.world.pass_time(1)
        staged.world.pass_time(30)
        (committed,) = staged.answers
        assert committed.fresh is True
        staged.answers.clear()
        assert len(staged.names(".attempt")) == 2

    commit_two(0)
    assert staged.read() == [bytes(6000)] * 2
    assert staged.answer().fresh is True
    commit_two(2)
    staged.world.crash(staged.client)
    staged.world.pass_time(20)
    assert len(staged.names(".attempt")) == 1


def test_what_a_commit_would_wait_for_is_said_before_it() -> None:
    """Of the attempts at a partition it takes one."""
    staged = Staged(max_kept_bytes=10_000)
    staged.stop()
    staged.start(explicit=True)

    def full() -> str | None:
        staged.ask(Epoch)
        return staged.answer().full

    staged.commit(0, [staged.write([bytes(3000)], epoch=0)])
    assert staged.answer().fresh is True
    winners = [staged.write([bytes(size)], epoch=1, partition=1) for size in (2000, 6000)]
    assert full() is None
    winners.append(staged.write([bytes(1000)], epoch=1, partition=2))
    assert re.search(
        r"bytes of groups are not yet .* 7\d\d\d more would exceed max_kept_bytes, 10000: ", full() or ""
    )
    staged.commit(1, winners[1:])
    staged.world.pass_time(5)
    assert not staged.answers
    staged.read()
    staged.inbox.ack(1)
    assert staged.answer().fresh is True
    assert full() is None


def test_a_commit_does_not_wait_for_room_that_nobody_makes(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a journal that may be another one nothing is deleted: the commit fails, and the successor takes it."""
    monkeypatch.setattr("netchannel.storage.groups.journal._SMALL", 1)
    monkeypatch.setattr("netchannel.storage.groups.journal._GROWTH", 0)
    staged = Staged(max_kept_bytes=10_000)
    winners = [[staged.write([bytes(6000)], epoch=epoch)] for epoch in range(2)]
    staged.files.fail("sync_directory", errno.EIO)
    staged.commit(0, winners[0])
    assert isinstance(staged.answer(), Answer)
    staged.commit(1, winners[1])
    assert isinstance(staged.answer(), ChannelBroken)
    staged.world.settle()
    staged.register()
    staged.commit(1, winners[1])
    assert staged.read() == [bytes(6000)] * 2
    assert staged.answer().fresh is True


def test_a_channel_that_is_over_takes_no_memory_of_who_asks_it() -> None:
    """But for what was committed, which is answered as before."""
    staged = Staged()
    gone = weakref.ref(staged.receiver.registry.staged["c"])
    staged.commit(0, [staged.write([b"x"])], end=True)
    assert staged.read() == [b"x"]
    assert not staged.receiver.registry.staged
    del staged.inbox
    gc.collect()
    assert gone() is None
    (client,) = staged.receiver.services.clients
    assert client.asks == 0
    staged.answers.clear()
    for epoch, kind in ((0, Answer), (1, ChannelClosed)):
        staged.commit(epoch, [])
        assert isinstance(staged.answer(), kind)
    staged.ask(Drop, epoch=5)
    assert isinstance(staged.answer(), Answer)
    staged.ask(Epoch)
    assert staged.answer().epoch == 0
    staged.asked.ask(
        Watch, lambda *_: None, lambda error, now: staged.answers.append(error), staged.world.now
    )
    assert isinstance(staged.answer(), NetChannelError)
