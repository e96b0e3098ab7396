"""The errors that netchannel raises.

::

    NetChannelError
    ├── ChannelInUse          the id is already registered
    ├── ChannelClosed         this side closed, detached or left the channel
    ├── ChannelClosedByPeer   the consumer closed the channel
    ├── ChannelBroken         the network, or the fault policy, gave up
    │   ├── LogBroken         a write or a sync failed: nothing more will be written
    │   └── LogDamaged        durable data differs from the written data
    │       └── MessagesLost  durable messages, not acknowledged, are missing
    ├── ChannelFailed         the producer aborted the stream
    ├── EndOfChannel          the clean end was already read
    ├── BufferFull            the buffer policy is fail
    │   └── StorageFull       no room on disk; nothing was written, and the same can be tried again
    ├── PositionLost          the requested position is below the kept messages
    ├── StreamReplaced        the requested or held position belongs to another stream
    ├── SchemaMismatch        the schema or codec differs from the channel's
    ├── MessageTooLarge       the message is above the peer's limit
    ├── EpochRegressed        a later epoch of the application is already committed
    ├── AttemptLost           an attempt to commit is missing, or not as it was sealed
    ├── ConsumerFenced        another holder now acknowledges under the consumer's name
    ├── CallFailed            the service could not answer a call, or was closed
    ├── CallTimedOut          no answer to a call before its deadline
    ├── CertificateError      a file of ``tls=`` cannot be used
    └── ProtocolError         the peer broke the protocol
        └── HandshakeError    two sides cannot work together: version, secret, certificate or policy

Four words have distinct meanings: *closed* (by this side), *broken* (by the network or the peer's process), *failed*
(reported by the producer) and *end* (clean).
"""

from __future__ import annotations

from errno import EMFILE, ENFILE
from typing import Literal

__all__ = [
    "AttemptLost",
    "BufferFull",
    "CallFailed",
    "CallTimedOut",
    "CertificateError",
    "ChannelBroken",
    "ChannelClosed",
    "ChannelClosedByPeer",
    "ChannelFailed",
    "ChannelInUse",
    "ConsumerFenced",
    "EndOfChannel",
    "EpochRegressed",
    "HandshakeError",
    "LogBroken",
    "LogDamaged",
    "MessageTooLarge",
    "MessagesLost",
    "NetChannelError",
    "PositionLost",
    "ProtocolError",
    "SchemaMismatch",
    "StorageFull",
    "StreamReplaced",
]

_NO_DESCRIPTORS = frozenset({EMFILE, ENFILE})


class NetChannelError(Exception):
    """Base of all errors of this package."""


class ChannelInUse(NetChannelError):
    """The id of a channel or service is already registered, or another holder has the consumer's name."""


class _Told(NetChannelError):
    def __init__(self, message: str, said: str = "") -> None:
        super().__init__(message, said)
        self.said = said
        """The reason that a side gave, unchanged."""

    def __str__(self) -> str:
        return str(self.args[0])


class ChannelClosed(_Told):
    """The channel was closed, detached or left by this side. ``said`` is the reason, if the consumer gave one."""


class ChannelClosedByPeer(_Told):
    """The consumer closed the channel, and accepts no more messages. ``said`` is the consumer's reason."""


class ChannelBroken(NetChannelError):
    """The channel was given up. The message names the peer, the time, the last sequence number and the cause."""


class ChannelFailed(_Told):
    """The producer aborted the stream. ``said`` is its message; all data before the abort was delivered."""


class EndOfChannel(NetChannelError):
    """The stream ended cleanly, and all of it has been read."""


class BufferFull(NetChannelError):
    """The buffer is full and its policy is to fail."""


class PositionLost(NetChannelError):
    """The requested position is below the oldest kept message."""


class StreamReplaced(NetChannelError):
    """The position does not belong to the current stream."""


class SchemaMismatch(NetChannelError):
    """The batch, or the peer, has another schema or codec than the channel."""


class MessageTooLarge(NetChannelError):
    """The message is larger than the peer accepts."""


class EpochRegressed(NetChannelError):
    """The epoch is below the last committed epoch of its application."""


class AttemptLost(NetChannelError):
    """An attempt to commit is missing, not sealed, or differs from the sealed attempt: write it again."""


class ConsumerFenced(NetChannelError):
    """Another holder has taken the consumer's name, so this holder can no longer acknowledge."""


class CallFailed(_Told):
    """The service raised an error, which is ``said``, or was closed before it had answered (``said`` is empty)."""


class CallTimedOut(NetChannelError):
    """There was no answer to a call before its deadline; the call may have been executed.

    ``state`` is the reason: the address was ``unreached``, the service was ``unregistered`` there, or the service left
    the call ``unanswered``.
    """

    def __init__(self, message: str, state: Literal["unreached", "unregistered", "unanswered"]) -> None:
        super().__init__(message, state)
        self.state = state

    def __str__(self) -> str:
        return str(self.args[0])


class CertificateError(NetChannelError):
    """A certificate, key or authority is missing, damaged or expired, or does not belong to the other files.

    The message names the file.
    """


class ProtocolError(NetChannelError):
    """The peer violated the protocol."""


class HandshakeError(ProtocolError):
    """The two sides cannot work together, and a retry would not help: version, secret, certificate or policy."""


class StorageFull(BufferFull):
    """There is no space for a record of ``needed_bytes``. No part of it was kept, so the call can be repeated."""

    def __init__(self, message: str, *, needed_bytes: int = 0) -> None:
        super().__init__(message)
        self.needed_bytes = needed_bytes


class LogBroken(ChannelBroken):
    """A write or a sync failed at ``offset`` of ``path`` with ``errno``.

    Messages that were durable before can be read.
    """

    def __init__(self, message: str, *, path: str = "", offset: int = 0, errno: int | None = None) -> None:
        super().__init__(message)
        self.path = path
        self.offset = offset
        self.errno = errno

    @property
    def no_descriptors(self) -> bool:
        """True if there was no file descriptor to open it with: one may be free a little later."""
        return self.errno in _NO_DESCRIPTORS


class LogDamaged(ChannelBroken):
    """The log at ``path`` is damaged: the data at ``offset`` differs from what was durable there."""

    def __init__(self, message: str, *, path: str = "", offset: int = 0) -> None:
        super().__init__(message)
        self.path = path
        self.offset = offset


class MessagesLost(LogDamaged):
    """Messages from ``first`` to ``end`` (excluded) are gone from the folder ``path``, and were not acknowledged.

    ``end`` is None if their number is not known.
    """

    def __init__(self, message: str, *, path: str = "", first: int = 0, end: int | None = None) -> None:
        super().__init__(message, path=path)
        self.first = first
        self.end = end
