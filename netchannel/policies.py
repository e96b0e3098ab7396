"""How servers and channels behave: deadlines, and how much is kept, where, and for how long."""

from __future__ import annotations

from dataclasses import dataclass, fields
from math import inf
from typing import TYPE_CHECKING, Literal

from netchannel.values import CONSUMERS_LIMIT, NAME_LIMIT, is_consumer

if TYPE_CHECKING:
    from os import PathLike

MIB = 1024 * 1024


@dataclass(frozen=True, slots=True)
class Timing:
    """The deadlines of a server, in seconds.

    Both sides of a control connection send a heartbeat every ``heartbeat_s``, and regard the other side as dead after
    ``dead_after_s`` without a byte. A connection that does not finish its handshake within ``handshake_s`` is
    dropped; a token is valid for ``token_s``. Dialing and repeated requests back off from ``backoff_s`` to
    ``backoff_limit_s``, with jitter. Control connections without channels are closed after ``idle_s``. On leaving its
    context, a server waits at most ``leave_s`` for its peers.
    """

    heartbeat_s: float = 1.0
    dead_after_s: float = 5.0
    handshake_s: float = 5.0
    token_s: float = 10.0
    backoff_s: float = 0.05
    backoff_limit_s: float = 2.0
    idle_s: float = 1.0
    leave_s: float = 5.0

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if not 0 <= value < inf or (value == 0 and field.name != "leave_s"):
                raise ValueError(f"{field.name} is {value}: expected seconds, more than 0")


@dataclass(frozen=True, slots=True)
class BufferPolicy:
    """Bounds of a sender's unacknowledged messages, and the reaction of ``send`` to a full buffer.

    ``max_bytes`` counts message bytes, ``max_messages`` messages; None is unbounded. An empty buffer always admits one
    message, whatever its size. If the buffer is full, ``when_full`` decides. ``block`` waits. ``fail`` raises
    `BufferFull`. ``drop_oldest`` drops the oldest messages that were never sent, so that the numbers at the consumer
    have a gap; ``send`` waits while no message can be dropped. ``spill`` continues in temporary files, which are lost
    with the process.

    ``directory`` makes the buffer durable: ``send`` returns once the message is on the disk, in the channel's own
    folder, and the next process that registers the channel with the same directory continues the stream.

    If messages go to disk, ``max_bytes`` bounds those that wait in memory (None: 64 MiB); in addition, up to half of
    this amount is in transit from the disk to the connection. ``max_disk_bytes`` bounds the files, whose space is freed
    in pieces of an eighth of this bound.

    On a receiver ``max_bytes`` and ``max_messages`` bound the received, unread messages: above these bounds the
    channel's socket is not read.
    """

    max_bytes: int | None = 64 * MIB
    max_messages: int | None = None
    when_full: Literal["block", "fail", "drop_oldest", "spill"] = "block"
    directory: str | PathLike[str] | None = None
    max_disk_bytes: int | None = None

    def __post_init__(self) -> None:
        for name in ("max_bytes", "max_messages", "max_disk_bytes"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"{name} is {value}: expected at least 1, or None for no bound")
        if self.when_full not in ("block", "fail", "drop_oldest", "spill"):
            raise ValueError(
                f"when_full is {self.when_full!r}: expected 'block', 'fail', 'drop_oldest' or 'spill'"
            )
        if self.directory is not None and self.when_full in ("drop_oldest", "spill"):
            raise ValueError(
                f"when_full={self.when_full!r} cannot be combined with a directory ({self.directory}): a durable "
                f"buffer keeps all of its messages on disk; use 'block' or 'fail', or omit the directory"
            )
        if self.max_disk_bytes is not None and self.directory is None and self.when_full != "spill":
            raise ValueError(
                f"max_disk_bytes={self.max_disk_bytes} limits the size of files, but this buffer has no files: "
                f"give a directory, or when_full='spill'"
            )


@dataclass(frozen=True, slots=True)
class FaultPolicy:
    """How long a channel without a connection is retried.

    ``retry`` is ``"forever"``, a number of seconds counted from registration or from the last loss, or 0 to
    give up at the first loss. ``on_failure`` is the reaction after that time: the channel fails, or logs one warning
    and keeps waiting. ``accept_new_stream`` lets a receiver continue with a new stream of a sender that lost its old
    stream, which may leave a gap.
    """

    retry: Literal["forever"] | float = "forever"
    accept_new_stream: bool = False
    on_failure: Literal["fail", "wait"] = "fail"

    def __post_init__(self) -> None:
        if self.retry != "forever" and not (isinstance(self.retry, int | float) and self.retry >= 0):
            raise ValueError(f"retry is {self.retry!r}: expected 'forever' or seconds, 0 or more")
        if self.on_failure not in ("fail", "wait"):
            raise ValueError(f"on_failure is {self.on_failure!r}: expected 'fail' or 'wait'")
        if self.on_failure == "wait" and self.retry in ("forever", 0):
            raise ValueError(
                f"on_failure='wait' cannot be combined with retry={self.retry!r}: expected a number of seconds "
                f"above 0, after which a warning reports that the channel still waits"
            )


@dataclass(frozen=True, slots=True)
class RetainPolicy:
    """Bounds and place of a stream that is kept for repeated reading.

    ``max_bytes`` bounds the kept messages, in message bytes and a small overhead per message: at that bound the
    producer waits. One message is always admitted if none is kept. ``directory`` keeps them on disk, in the channel's
    own folder, from which the next process that registers the channel with the same directory continues; None keeps
    them in memory. A consumer's name stays reserved for its holder for ``lease_s`` after the holder's connection is
    lost. The names in ``consumers`` are known before they are first used: all of each stream is kept for them, until
    they have acknowledged it or are forgotten.
    """

    max_bytes: int = 1 << 30
    directory: str | PathLike[str] | None = None
    lease_s: float = 10.0
    consumers: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        names = self.consumers
        if (
            not isinstance(names, tuple)
            or len(names) > CONSUMERS_LIMIT
            or not all(isinstance(name, str) and is_consumer(name) for name in names)
        ):
            raise ValueError(
                f"consumers is {str(names)[:200]}: expected a tuple of at most {CONSUMERS_LIMIT} names, each of 1 to "
                f"{NAME_LIMIT} printable characters"
            )
        if not isinstance(self.max_bytes, int) or self.max_bytes < 1:
            raise ValueError(f"max_bytes is {self.max_bytes!r}: expected a number of bytes, at least 1")
        if not 0 <= self.lease_s < inf:
            raise ValueError(f"lease_s is {self.lease_s}: expected seconds, 0 or more")


@dataclass(frozen=True, slots=True)
class StagingPolicy:
    """The directory in which a receiver holds staged attempts, and bounds of its files.

    ``directory`` has a folder for each channel, with held attempts and committed, unacknowledged groups.
    ``max_staged_bytes`` bounds the files of uncommitted attempts: an attempt that exceeds it fails. A sealed,
    uncommitted attempt is dropped ``orphan_s`` seconds after the last attempt of its group was sealed, unless an
    attempt of the group is being written. So is an attempt whose sender is gone for that time. ``max_kept_bytes``
    (None: no bound) bounds the files of committed, unacknowledged groups: a commit that would exceed it waits, and a
    group larger than the bound waits until nothing is kept. Files that are no longer needed are kept for reuse for up
    to a minute, at most a fourth of ``max_staged_bytes``, while the disk has at least the same amount free.
    """

    directory: str | PathLike[str]
    max_staged_bytes: int = 4 << 30
    orphan_s: float = 3600.0
    max_kept_bytes: int | None = None

    def __post_init__(self) -> None:
        if self.max_kept_bytes is not None and self.max_kept_bytes < 1:
            raise ValueError(f"max_kept_bytes is {self.max_kept_bytes}: expected at least 1, or None")
        if self.max_staged_bytes < 1:
            raise ValueError(f"max_staged_bytes is {self.max_staged_bytes}: expected at least 1")
        if not self.orphan_s > 0:
            raise ValueError(f"orphan_s is {self.orphan_s}: expected seconds, more than 0")
