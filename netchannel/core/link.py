"""A connection as a core sees it, and what all cores share: deadlines, connections to dial, links with work."""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from enum import Enum
from hashlib import blake2b
from typing import TYPE_CHECKING, Protocol

from netchannel.errors import ProtocolError
from netchannel.log_texts import log
from netchannel.wire.frame_memory import FrameMemory
from netchannel.wire.frame_parser import SLAB
from netchannel.wire.pool import Pool

from .timers import Timers
from .warning_limits import WarningDigest, WarningFilter

if TYPE_CHECKING:
    from collections.abc import Callable

    from netchannel.errors import HandshakeError
    from netchannel.policies import Timing
    from netchannel.wire.frames import Buffer

    from .shared_memory import SharedMemory
    from .timers import Timer


class Closing(Enum):
    """The state of a link's closing: not closing, after its output, or at once."""

    OPEN = "open"
    FLUSH = "flush"  # once everything in its output is written
    ABORT = "abort"  # at once


class Job(ABC):
    """A job that blocks, e.g. on a disk."""

    @abstractmethod
    def run(self) -> None:
        """Do it, on another thread; keeps what came of it and does not raise."""

    @abstractmethod
    def done(self, now: float) -> None:
        """Continue, on the core's own thread, once it is done."""


class JobOwner(ABC):
    """An owner of jobs, which has one now and then, one at a time."""

    @abstractmethod
    def begin(self) -> Job | None:
        """The job to run now, None if there is nothing to do."""


class Core:
    """The common part of all cores: the adapter reads these after each call into it.

    ``wall`` gives the time in microseconds since 1970 UTC, ``random`` unpredictable bytes; both are handed
    in, so that a simulation repeats itself. Peers must show that they know ``secret``, if there is one.

    While a link takes what it received, ``visit`` is there if the adapter calls its entries as soon as the
    link is done: a waiting task resumes while its data is in the CPU cache, and not after the loop has
    visited a thousand other links.
    """

    def __init__(
        self,
        name: str,
        timing: Timing,
        wall: Callable[[], int],
        random: Callable[[int], bytes],
        secret: bytes | None = None,
    ) -> None:
        self.name = name
        self.timing = timing
        self.wall = wall
        self.random = random
        self.secret = secret
        self._life = random(16)
        self.timers = Timers()
        self.slab = memoryview(bytearray(SLAB))
        self.pool = Pool()
        self.frames = FrameMemory()
        self.shared_memory: SharedMemory | None = None  # memory in common with other processes of the host
        self.sharing_is_off = False  # true if a setting has disabled it
        self.dirty: dict[Link, None] = {}
        self.dials: list[Link] = []
        self.due: dict[JobOwner, None] = {}
        self.visit: list[Callable[[], None]] | None = None
        self._warnings = WarningFilter()
        self.warning_digest = WarningDigest(self.timers)
        self.on_work: Callable[[], None] = lambda: None
        self.on_urgent: Callable[[Link], bool] = lambda link: False

    def complain(
        self, remote: str, now: float, text: str, *details: object, repeated: int = logging.DEBUG
    ) -> None:
        """Log what ``remote`` did: as a warning, or, within the same episode of its kind, at the level ``repeated``."""
        is_news = self._warnings.news(self.origin(remote), text, now)
        log.log(logging.WARNING if is_news else repeated, text, *details)

    def origin(self, remote: str) -> str:
        """Return the name of the peer at ``remote``, however often it connects."""
        return remote

    def touch(self, link: Link) -> None:
        """Ask the adapter to look at ``link``: output, reading or closing have changed."""
        if link not in self.dirty:
            if not self.dirty:
                self.on_work()
            self.dirty[link] = None

    def hurry(self, link: Link) -> None:
        """The same, and at once if the adapter can: the first bytes of ``link`` may be waited for."""
        if not self.on_urgent(link):
            self.touch(link)

    def request(self, worker: JobOwner) -> None:
        """Ask the adapter to begin a job of ``worker``, once per turn of the loop."""
        if worker not in self.due:
            self.due[worker] = None
            self.on_work()

    def line(self, *names: str) -> bytes:
        """Return an id shared by the connections of this process to one place, of these ``names``, and by no others."""
        return blake2b("\0".join(names).encode(), key=self._life, digest_size=16).digest()

    def jitter(self) -> float:
        """A factor from 0.5 to 1, so that many waiting peers do not come back together."""
        return 0.5 + int.from_bytes(self.random(2), "little") / (1 << 17)

    def dial(self, link: Link) -> None:
        """Ask the adapter to connect ``link`` to its remote."""
        self.dials.append(link)
        self.on_work()


class Adapter(Protocol):
    """Moves the bytes of a link.

    ``ends`` is ENDS_SIZE bytes that both ends of the connection know, and no party between them: if the other
    end knows the same, the transport vouches for the bytes. Empty where there is no such thing.
    """

    @property
    def ends(self) -> bytes: ...

    def apply(self) -> None:
        """Do what the link wants: write, read or not, close."""

    def abort(self) -> None:
        """Close at once, whatever the link has requested."""


class Link(ABC):
    """One connection. The adapter calls the verbs below and reads the attributes after each of them.

    ``connected`` comes at most once and first, ``lost`` exactly once and last, for a dial that failed too.
    While ``writable`` the adapter writes `output`, and again if there is ``more``; ``reading`` shows whether
    it is to read at all. ``cause`` is the error for which this side closes it; it takes precedence over the
    adapter's reason.
    """

    control = False

    def __init__(self, core: Core, remote: str) -> None:
        self.core = core
        self.remote = remote
        self.adapter: Adapter | None = None
        self.local = False  # whether it stays on this host
        self.writable = True
        self.reading = True
        self.closing = Closing.OPEN
        self.cause = ""
        self.more = False  # whether `output` has more than it gave
        self.replacement: Link | None = None
        self.deadline: Timer | None = None
        self._output: list[Buffer] = []

    def connected(self, now: float) -> None:  # noqa: B027 - not every link sends first
        """The connection is made."""

    @abstractmethod
    def get_buffer(self, hint: int) -> memoryview:
        """Memory for the next bytes that are received; valid until the next call."""

    def received(self, n: int, now: float) -> None:
        """``n`` bytes are in the buffer."""
        if self.closing is not Closing.OPEN:
            return
        try:
            self._received(n, now)
        except ProtocolError as error:
            self.violated(error, now)

    def lost(self, reason: str, now: float) -> None:
        """The connection is gone, or was never made; ``reason`` names the cause."""
        self.closing = Closing.ABORT
        self.disarm()
        self._lost(self.cause or reason, now)

    def refused(self, error: HandshakeError, now: float) -> None:  # noqa: B027 - for sides that would try again
        """The other side will not talk to us, or this one not to it, for good; `lost` is still to come."""

    def output(self) -> list[Buffer]:
        """Buffers to write now, in order; empty when there is nothing more."""
        output, self._output = self._output, []
        return output

    @property
    def ends(self) -> bytes:
        """Bytes that distinguish this connection from every other, at both of its ends; empty if there are none."""
        return b"" if self.adapter is None else self.adapter.ends

    def is_direct(self, shown: bytes) -> bool:
        """True if the other end, which has ``shown`` its `ends`, is that of this very connection."""
        return bool(shown) and shown == self.ends

    def send(self, *buffers: Buffer) -> None:
        """Queue buffers for the next write."""
        if self.closing is Closing.OPEN:
            self._output += buffers
            self.core.touch(self)

    def send_later(self, *buffers: Buffer) -> None:
        """Queue buffers for a write that is to come without this."""
        if self.closing is Closing.OPEN:
            self._output += buffers

    def send_now(self, *buffers: Buffer) -> None:
        """Queue buffers, and have them written at once if that can be, with all that is queued."""
        if self.closing is Closing.OPEN:
            self._output += buffers
            self.core.hurry(self)

    def close(self, cause: str = "") -> None:
        """Close after what was queued is written."""
        self.cause = self.cause or cause
        if self.closing is Closing.OPEN:
            self.closing = Closing.FLUSH
            self.core.touch(self)

    def abort(self, cause: str = "") -> None:
        """Close at once."""
        self.cause = self.cause or cause
        self.closing = Closing.ABORT
        self.core.touch(self)

    def arm(self, when: float, action: Callable[[float], None]) -> None:
        """Set this link's one deadline."""
        self.disarm()
        self.deadline = self.core.timers.at(when, action)

    def disarm(self) -> None:
        """Cancel the deadline."""
        if self.deadline is not None:
            self.deadline.cancel()
            self.deadline = None

    def violated(self, error: ProtocolError, now: float) -> None:
        """The peer broke the protocol."""
        self.complain_of(error, now)
        self.abort(str(error))

    def complain_of(self, error: ProtocolError, now: float) -> None:
        """Log that the peer broke the protocol."""
        text = "%s: connection with %s closed: %s"
        self.core.complain(self.remote, now, text, self.core.name, self.remote, error)

    @abstractmethod
    def _received(self, n: int, now: float) -> None: ...

    @abstractmethod
    def _lost(self, reason: str, now: float) -> None: ...
