"""Staged groups through long stories: restarts, power cuts, lost connections, writers that try again."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any, cast

import pytest

from netchannel.core.groups.staged_channel import StagedChannel
from netchannel.core.receiving.inbound import InboundChannel
from netchannel.values import Position, Sealed
from netchannel.wire.messages import Committed
from tests.support.simulated_files import Crash
from tests.support.sizes import seeds
from tests.support.staged import Staged


class Story:
    """One application that commits epoch after epoch, and a consumer with a position of its own."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.staged = Staged(seed)
        self.published: list[bytes] = []
        self.position = 0  # what the consumer has committed elsewhere
        self.taken = 0  # the number behind the last message that it was given
        self.restart()

    def restart(self) -> None:
        """Another process; sometimes the machine has lost its power."""
        self.staged.stop(power=self.random.random() < 0.5)
        stream = "stream 1"
        start: Position | None = Position(stream, self.position) if self.random.random() < 0.5 else None
        self.staged.start(explicit=True, resume_from=start)
        assert self.staged.inbox.channel.error is None
        assert self.staged.inbox.channel.stream == stream
        self.taken = self.staged.inbox.channel.expected or 0
        # What was acknowledged may come again, what was not has not gone.
        assert self.taken <= self.position
        if self.random.random() < 0.3:
            self.staged.files.crash_at = self.random.randrange(40)

    def run(self, until: Callable[[], Any]) -> None:
        """Until then, through all that happens."""
        while True:
            try:
                self.staged.world.run(lambda: bool(until()))
            except Crash:
                self.restart()
            else:
                return

    def disturb(self) -> None:
        """Something happens, or nothing."""
        world = self.staged.world
        match self.random.choice(["nothing", "nothing", "cut", "stop", "read", "steps"]):
            case "cut" if world.ends:
                world.cut(self.random.choice(world.ends))
            case "stop":
                self.restart()
            case "read":
                self.read()
            case "steps":
                try:
                    for _ in range(self.random.randrange(20)):
                        world.step()
                except Crash:
                    self.restart()

    def read(self) -> None:
        """Take what is there; sometimes it is done with it."""
        self.run(lambda: True)
        inbox = self.staged.inbox
        before = len(inbox.items)
        inbox.read()
        for item in inbox.items[before:]:
            assert (item.sequence, bytes(item.body)) == (self.taken, self.published[self.taken])
            self.taken += 1
        if self.random.random() < 0.5:
            self.position = max(self.position, self.taken)
            inbox.ack(self.taken)

    def write(self, values: list[bytes], epoch: int, partition: int) -> Sealed:
        """An attempt after the other, until one is sealed."""
        while True:
            writing = self.staged.begin(values, epoch=epoch, partition=partition)
            self.disturb()
            if self.random.random() < 0.2:
                continue  # this writer is thought dead, and is not
            self.run(lambda writing=writing: writing.channel.terminal)
            if writing.channel.error is None:
                return writing.sealed()

    def publish(self, epoch: int) -> None:
        groups = [
            [b"%d.%d.%d" % (epoch, partition, number) for number in range(self.random.randrange(4))]
            for partition in range(self.random.randrange(3))
        ]
        winners = [self.write(values, epoch, partition) for partition, values in enumerate(groups)]
        # What is committed may be read before the answer is there.
        self.published += [value for values in groups for value in values]
        self.commit(epoch, winners)
        if self.random.random() < 0.3:
            assert self.commit(epoch, winners) is False

    def commit(self, epoch: int, winners: list[Sealed]) -> bool:
        """Ask until there is an answer: whether it was done then."""
        self.staged.commit(epoch, winners)
        self.disturb()
        self.run(lambda: self.staged.answers)
        answer = self.staged.answers.pop()
        assert isinstance(answer, Committed), answer
        return bool(answer.fresh)

    def tell(self) -> None:
        for epoch in range(8):
            self.publish(epoch)
            self.disturb()
        self.staged.files.crash_at = None
        while self.taken < len(self.published):
            self.run(lambda: len(self.staged.inbox.channel.queue) or self.staged.inbox.channel.terminal)
            self.read()
        assert self.staged.inbox.channel.error is None


@pytest.mark.parametrize("start", range(0, 200, 50))
def test_every_group_is_read_once_and_in_order_through_all_faults(start: int) -> None:
    """CH-STG-1, CH-STG-2, CH-STG-3, CH-STG-4."""
    for seed in seeds(range(start, start + 50)):
        Story(seed).tell()


def _tell_all() -> None:
    for seed in range(60):
        Story(seed).tell()


def test_a_story_notices_a_commit_that_is_done_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    """CH-STG-2, the negative control."""
    commit = StagedChannel._commit

    def forgetful(self: StagedChannel, client: Any, message: Any) -> Any:
        epochs = cast("dict[str, int]", self.files.epochs)
        if message.epoch == epochs.get("app"):
            del epochs["app"]
        return commit(self, client, message)

    monkeypatch.setattr(StagedChannel, "_commit", forgetful)
    with pytest.raises(AssertionError):
        _tell_all()


def test_a_story_notices_an_end_that_is_acknowledged_before_the_seal(monkeypatch: pytest.MonkeyPatch) -> None:
    """CH-STG-3, the negative control: the sender believes that what is not durable is sealed."""
    end = InboundChannel.end

    def hasty(self: InboundChannel, count: int, now: float) -> None:
        if self.core.channels.get(self.id) is not self:  # an attempt
            self.unsettled = False
        end(self, count, now)

    monkeypatch.setattr(InboundChannel, "end", hasty)
    with pytest.raises(AssertionError):
        _tell_all()
