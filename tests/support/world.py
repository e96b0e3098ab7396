"""Cores in a world of their own: virtual time, wires that carry bytes, nothing of the machine."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable
from typing import Any

from netchannel.core.link import Closing, Core, Job, Link
from netchannel.core.receiving.inbound import InboundChannel
from netchannel.core.receiving.queue import Item
from netchannel.core.receiving.receiver_core import ReceiverCore
from netchannel.core.replay.read_server import serve_reads
from netchannel.core.sending.outbound import OutboundChannel
from netchannel.core.sending.packer import Ticket
from netchannel.core.sending.sender_core import SenderCore
from netchannel.policies import BufferPolicy, FaultPolicy, Timing
from netchannel.values import Position
from netchannel.wire.codec import make_decoder, make_encoder
from netchannel.wire.frames import Buffer

from .shared_memory import Meetings, SimulatedMemory


class End:
    """One end of a wire."""

    def __init__(self, link: Link) -> None:
        self.link = link
        self.inbox = bytearray()
        self.peer: End
        self.over = False
        self.ends = b""
        self.hung_up = False  # the peer closed behind what is in the inbox
        link.adapter = self
        link.local = True


class World:
    """Senders and receivers by address; `run` moves bytes and time until a condition holds.

    Everything is drawn from ``seed``. ``chunk`` bounds the bytes that a read gets. At addresses ``unix:`` receivers
    take members.
    """

    def __init__(self, seed: int = 0, *, chunk: int = 1 << 16, timing: Timing | None = None) -> None:
        self.random = random.Random(seed)
        self.chunk = chunk
        self.timing = timing or Timing()
        self.now = 1000.0
        self.cores: list[Core] = []
        self.listening: dict[str, ReceiverCore] = {}
        self.ends: list[End] = []
        self.stalled: set[Core] = set()
        self.jobs: list[tuple[Core, Job]] = []
        self.disk_works = True
        self.meetings = Meetings()
        self.soon: deque[tuple[Core, Callable[[], None]]] = deque()
        self.shown = (b"", b"")  # of new connections, at who dialed and at who listens: their ends

    # -- nodes

    def share(self, core: Core, size: int, works: Callable[[], bool] = lambda: True) -> SimulatedMemory:
        """From now on ``core`` has memory in common with others that do, ``size`` bytes with each."""
        core.shared_memory = simulated = SimulatedMemory(
            self.meetings, size, later=lambda action: self.soon.append((core, action)), works=works
        )
        return simulated

    def sender(self, name: str = "sender", *, secret: bytes | None = None) -> SenderCore:
        core = SenderCore(name, self.timing, self.wall, self.random.randbytes, secret)
        core.on_urgent = self._write_now
        self.cores.append(core)
        return core

    def receiver(
        self,
        address: str = "r:1",
        *,
        secret: bytes | None = None,
        message_limit: int = 1 << 30,
        max_connections: int = 10_000,
        members: str | None = None,
        node: str | None = None,
    ) -> ReceiverCore:
        core = ReceiverCore(
            f"receiver {address}",
            self.timing,
            self.wall,
            self.random.randbytes,
            secret,
            message_limit=message_limit,
            max_connections=max_connections,
        )
        serve_reads(core)
        self.cores.append(core)
        self.listening[address] = core
        if members is not None:
            self.listening[members] = core
        if node is not None:
            core.join(node, int(address.rpartition(":")[2]), self.now)
        return core

    def crash(self, core: Core) -> None:
        """The process is gone: its connections are reset, its state is lost."""
        self.cores.remove(core)
        self.listening = {address: other for address, other in self.listening.items() if other is not core}
        for end in [end for end in self.ends if end.link.core is core]:
            self.cut(end)

    def wall(self) -> int:
        return int(self.now * 1e6)

    def open(self, core: SenderCore, channel_id: str = "c", to: str = "r:1", **settings: Any) -> Producer:
        return Producer(self, core, channel_id, to, **settings)

    def inbox(self, core: ReceiverCore, channel_id: str = "c", **settings: Any) -> Consumer:
        return Consumer(self, core, channel_id, **settings)

    # -- wires

    def cut(self, end: End, reason: str = "reset") -> None:
        """Both ends lose the connection, with everything that is on the way."""
        for one in (end, end.peer):
            if not one.over:
                one.over = True
                self.ends.remove(one)
                one.link.lost(reason, self.now)

    def wires(self, *, control: bool) -> list[End]:
        """The senders' ends of all wires of one kind."""
        return [
            end for end in self.ends if isinstance(end.link.core, SenderCore) and end.link.control is control
        ]

    def step(self) -> bool:
        """Let every core and every wire do what it can now; whether anything happened."""
        busy = False
        for core in [core for core in self.cores if core not in self.stalled]:
            core.timers.run(self.now)
            if core.due:
                due, core.due = core.due, {}
                for worker in due:
                    if (job := worker.begin()) is not None:
                        self.jobs.append((core, job))
                        busy = True
            if core.dials:
                busy = True
                dials, core.dials = core.dials, []
                for link in dials:
                    self._dial(link)
            if core.dirty:
                busy = True
                dirty, core.dirty = core.dirty, {}
                for link in dirty:
                    if link.adapter is not None and not link.adapter.over:
                        self._apply(link.adapter)
        for _ in range(len(self.soon)):
            core, action = self.soon.popleft()
            if core in self.stalled:
                self.soon.append((core, action))
            elif core in self.cores:
                action()
                busy = True
        busy = self.work() or busy
        for end in list(self.ends):
            if not end.over and end.link.core not in self.stalled and self._read(end):
                busy = True
        return busy

    def work(self) -> bool:
        """Let the disk do one of its jobs, drawn from the seed; whether there was one."""
        if not (self.jobs and self.disk_works):
            return False
        core, job = self.jobs.pop(self.random.randrange(len(self.jobs)))
        job.run()
        if core in self.cores:
            job.done(self.now)
        return True

    def _dial(self, link: Link) -> None:
        core = self.listening.get(link.remote)
        if core is None:
            link.lost("connection refused", self.now)
            return
        self._connect(link, core)

    def _connect(self, link: Link, core: ReceiverCore) -> None:
        accept = core.accept_member if link.remote.startswith("unix:") else core.accept
        here, there = End(link), End(accept(f"{link.core.name}:{len(self.ends)}"))
        here.ends, there.ends = self.shown
        self._met(here, there)
        for end in (there, here):
            end.link.connected(self.now)
            self._apply(end)

    def _met(self, here: End, there: End) -> None:
        """A connection is made."""
        here.peer, there.peer = there, here
        self.ends += [here, there]

    def _write_now(self, link: Link) -> bool:
        if link.adapter is None or link.core in self.stalled:
            return False
        self._apply(link.adapter)
        return True

    def _apply(self, end: End) -> None:
        link = end.link
        if link.closing is Closing.ABORT:
            self.cut(end)
            return
        while not end.over and (buffers := link.output()):
            self._carry(end.peer, buffers)
        if link.closing is Closing.FLUSH and not end.over:
            end.over = True
            self.ends.remove(end)
            end.peer.hung_up = True
            link.lost("closed by this side", self.now)

    def _carry(self, end: End, buffers: list[Buffer]) -> None:
        """Bring what was written to the other end."""
        for buffer in buffers:
            end.inbox += buffer

    def _read(self, end: End) -> bool:
        link = end.link
        if end.inbox and link.reading:
            size = min(len(end.inbox), self.random.randint(1, self.chunk))
            buffer = link.get_buffer(size)
            size = min(size, len(buffer))
            buffer[:size] = end.inbox[:size]
            del end.inbox[:size]
            link.received(size, self.now)
            if link.replacement is not None:
                end.link = link.replacement
            self._apply(end)
            return True
        if end.hung_up and not end.inbox:
            end.over = True
            self.ends.remove(end)
            link.lost("the other side hung up", self.now)
            return True
        return False

    # -- time

    def settle(self) -> None:
        """Until nothing more happens without time passing."""
        for _ in range(1_000_000):
            if not self.step():
                return
        raise AssertionError("the world does not come to rest")

    def run(self, until: Callable[[], bool], *, limit_s: float = 120.0) -> None:
        """Until ``until``; time jumps from deadline to deadline. Fails after ``limit_s`` virtual seconds."""
        end = self.now + limit_s
        while True:
            self.settle()
            if until():
                return
            self._pass(end)
            assert self.now < end, f"not within {limit_s} virtual seconds"

    def pass_time(self, seconds: float) -> None:
        """Let so much time pass."""
        end = self.now + seconds
        self.settle()
        while self.now < end:
            self._pass(end)
            self.settle()

    def _pass(self, end: float) -> None:
        self.now = max(self.now, min([*self._due(), end]))

    def _due(self) -> list[float]:
        """When something happens by itself."""
        return [
            when
            for core in self.cores
            if core not in self.stalled and (when := core.timers.next()) is not None
        ]


class Producer:
    """The application's side of a sender's channel."""

    def __init__(
        self,
        world: World,
        core: SenderCore,
        channel_id: str,
        to: str,
        *,
        stream: str = "s",
        codec: Any = "bytes",
        schema: Any = None,
        buffer: BufferPolicy | None = None,
        fault: FaultPolicy | None = None,
        replayable: bool = False,
        prepare: Callable[[OutboundChannel], None] = lambda channel: None,
    ) -> None:
        self.world = world
        self.encoder = make_encoder(codec, schema)
        self.channel: OutboundChannel = core.register(
            channel_id,
            to,
            stream=stream,
            codec=codec,
            schema=self.encoder.schema if codec == "arrow" else None,
            buffer=buffer or BufferPolicy(),
            fault=fault or FaultPolicy(),
            replayable=replayable,
            now=world.now,
            prepare=prepare,
        )

    def send(self, value: Any, note: bytes = b"") -> Ticket | None:
        body = self.encoder.encode(value)
        if not note and self.channel.packer.take(body):
            return self.channel.packer.ticket
        self.channel.admit(body, self.encoder.context)
        if self.channel.schema is None and self.encoder.schema:
            self.channel.schema = self.encoder.schema
        context = self.encoder.context
        return self.channel.append(body, note, context, self.channel.cost(body, note, context))


class Consumer:
    """The application's side of a receiver's channel; reads what is there when asked."""

    def __init__(
        self,
        world: World,
        core: ReceiverCore,
        channel_id: str,
        *,
        codec: Any = "bytes",
        schema: Any = None,
        explicit: bool = False,
        resume_from: Position | int | None = None,
        buffer: BufferPolicy | None = None,
        fault: FaultPolicy | None = None,
    ) -> None:
        self.world = world
        self.decoder = make_decoder(codec, schema)
        self.channel: InboundChannel = core.register(
            channel_id,
            codec=codec,
            decoder=self.decoder,
            explicit=explicit,
            resume_from=resume_from,
            buffer=buffer or BufferPolicy(),
            fault=fault or FaultPolicy(),
            now=world.now,
        )
        self.items: list[Item] = []

    @property
    def values(self) -> list[bytes]:
        return [bytes(item.body) for item in self.items]

    def read(self, limit: int = 1 << 30) -> None:
        """Take what is queued; stops at what ended the channel, which then stays to be raised by `take`."""
        while limit and self.channel.queue:
            item = self.channel.take()
            assert item is not None
            self.items.append(item)
            limit -= 1

    def ack(self, upto: int) -> None:
        self.channel.ack(upto, self.world.now)
