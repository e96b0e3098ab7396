"""A staged channel in a world of its own, on a disk that outlives its receiver."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

from netchannel.core.client_core import ClientChannel, ClientCore
from netchannel.core.groups.staged_channel import StagedChannel
from netchannel.core.receiving.receiver_core import ReceiverCore
from netchannel.core.sending.outbound import OutboundChannel
from netchannel.policies import BufferPolicy, FaultPolicy, StagingPolicy
from netchannel.servers.group_channels import Tally, as_winners, open_attempt
from netchannel.storage import StagingStore
from netchannel.storage.groups.staged_files import StagedFiles
from netchannel.values import Group, Sealed
from netchannel.wire import messages
from netchannel.wire.codec import CodecName, make_decoder, make_encoder
from tests.support.simulated_files import SimulatedFiles
from tests.support.world import Consumer, Producer, World

ROOT = Path("/staged")


class Writing:
    """An attempt, as its producer has it."""

    def __init__(self, producer: Producer, partition: int) -> None:
        self.producer = producer
        self.channel: OutboundChannel = producer.channel
        self._partition = partition

    def sealed(self) -> Sealed:
        """What `GroupChannel.seal` returns."""
        tally = self.channel.packer
        assert isinstance(tally, Tally)
        digest = tally.digest.intdigest()
        return Sealed(
            self._partition, self.channel.stream, tally.count, tally.row_count, tally.size_in_all, digest
        )


class Committing:
    """Somebody who commits into a channel of the node at ``r:1``."""

    def __init__(self, world: World, channel_id: str = "c") -> None:
        self.id, self.world = channel_id, world
        self.client = ClientCore("client", world.timing, world.wall, world.random.randbytes)
        world.cores.append(self.client)
        self.asked: ClientChannel = self.client.register(channel_id, "r:1", FaultPolicy(), world.now)
        self.answers: list[Any] = []

    def commit(self, epoch: int, winners: list[Sealed], *, end: bool = False) -> None:
        """Ask for it."""
        self.ask(messages.Commit, epoch=epoch, winners=as_winners(winners), end=end)

    def ask(self, kind: type[messages.Question], **fields: Any) -> None:
        """Ask for something of the application ``app``."""
        self.asked.ask(
            kind,
            lambda answer, now: self.answers.append(answer),
            lambda error, now: self.answers.append(error),
            self.world.now,
            application="app",
            **fields,
        )

    def answer(self) -> Any:
        """The next one: a message, or what it was refused with."""
        self.world.run(lambda: bool(self.answers))
        return self.answers.pop(0)


class Staged(Committing):
    """A receiver with a staged channel on a disk that outlives it, and whoever sends and commits."""

    def __init__(
        self,
        seed: int = 0,
        *,
        world: World | None = None,
        receiver: ReceiverCore | None = None,
        channel_id: str = "c",
        codec: CodecName = "bytes",
        **policy: Any,
    ) -> None:
        super().__init__(world or World(seed), channel_id)
        self.codec = codec
        self.files = SimulatedFiles(seed)
        self.policy = StagingPolicy(ROOT, **policy)
        self.streams = 0
        self.sender = self.world.sender()
        self.inbox: Consumer
        self.receiver = receiver or self.world.receiver()
        self.register()

    def start(self, **settings: Any) -> None:
        """Another process, on the same disk."""
        self.receiver = self.world.receiver()
        self.register(**settings)

    def new_stream(self) -> str:
        self.streams += 1
        return f"stream {self.streams}"

    def register(self, **settings: Any) -> None:
        store = StagingStore.open(
            ROOT,
            self.id,
            create_stream=self.new_stream,
            codec=self.codec,
            spare_bytes=1 << 20,
            files=self.files,
        )
        self.inbox = self.world.inbox(self.receiver, self.id, codec=self.codec, **settings)
        StagedChannel(
            self.receiver,
            self.inbox.channel,
            partial(StagedFiles, store),
            self.policy,
            make_decoder=partial(make_decoder, self.codec, None),
            now=self.world.now,
        )

    def stop(self, *, power: bool = False) -> None:
        """The receiver's process is gone, or its machine."""
        self.world.crash(self.receiver)
        self.world.jobs.clear()
        (self.files.power_on if power else self.files.kill)()

    def names(self, suffix: str) -> list[str]:
        """Files on the disk."""
        return [name for name in self.files.names(ROOT / self.id) if name.endswith(suffix)]

    def open(self, *, epoch: int = 0, partition: int = 0) -> Writing:
        """An attempt."""
        group = Group("app", epoch, partition)
        opened, _, wire_id = open_attempt(BufferPolicy(), self.id, "bytes", None, group)
        producer = self.world.open(self.sender, wire_id, stream=opened.stream, prepare=opened.prepare)
        producer.encoder = make_encoder("bytes", None)
        return Writing(producer, partition)

    def begin(self, values: list[bytes], *, epoch: int = 0, partition: int = 0) -> Writing:
        """An attempt that is sent to its end."""
        writing = self.open(epoch=epoch, partition=partition)
        for value in values:
            writing.producer.send(value)
        writing.channel.finish()
        return writing

    def write(self, values: list[bytes], *, epoch: int = 0, partition: int = 0) -> Sealed:
        """An attempt, sealed."""
        writing = self.begin(values, epoch=epoch, partition=partition)
        self.world.run(lambda: writing.channel.terminal)
        assert writing.channel.error is None
        return writing.sealed()

    def read(self) -> list[bytes]:
        """All that comes."""
        self.world.settle()
        before = -1
        while before != len(self.inbox.items):
            before = len(self.inbox.items)
            self.inbox.read()
            if self.inbox.channel.error is None and self.inbox.channel.ended is None:
                self.inbox.channel.more()
            self.world.settle()
        return self.inbox.values
