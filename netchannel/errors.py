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

Four words are kept apart: *closed* (this side did), *broken* (the network or the peer's process), *failed*
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
    """The channel id is already registered on this server."""


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
    """The consumer closed the channel; nothing more will be taken. ``said`` is its own reason."""


class ChannelBroken(NetChannelError):
    """The channel was given up: names the peer, the time, the last sequence number and the cause."""


class ChannelFailed(_Told):
    """The producer aborted the stream, with its message, which is ``said``; all data before it was delivered."""


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
    """The epoch is below the last one of its application that was committed."""


class AttemptLost(NetChannelError):
    """An attempt to commit is missing, not sealed, or differs from what was sealed: write it again."""


class ConsumerFenced(NetChannelError):
    """Another holder has taken the consumer's name: this one can no longer acknowledge."""


class CallFailed(_Told):
    """The service raised an error, which is ``said``, or was closed before it had answered (``said`` is empty)."""


class CallTimedOut(NetChannelError):
    """There was no answer to a call before its deadline; whether it was done is not known.

    ``state`` shows why: the address was ``unreached``, the service was ``unregistered`` there, or it left the call
    ``unanswered``.
    """

    def __init__(self, message: str, state: Literal["unreached", "unregistered", "unanswered"]) -> None:
        super().__init__(message, state)
        self.state = state

    def __str__(self) -> str:
        return str(self.args[0])


class CertificateError(NetChannelError):
    """A certificate, key or authority is missing, damaged, expired, or belongs to another: names the file."""


class ProtocolError(NetChannelError):
    """The peer sent what the protocol does not allow."""


class HandshakeError(ProtocolError):
    """Two sides cannot work together, and asking again would not help: version, secret, certificate or policy."""


class StorageFull(BufferFull):
    """There is no room for a record of ``needed_bytes``. Nothing of it was kept: it can be tried again."""

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
