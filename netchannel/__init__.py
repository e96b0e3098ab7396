"""Network channels: streams of Arrow batches between processes, without a broker.

Nothing is lost, doubled or reordered.
"""

from __future__ import annotations

from .core.timing import Timing
from .errors import (
    AttemptLost,
    BufferFull,
    CertificateError,
    ChannelBroken,
    ChannelClosed,
    ChannelClosedByPeer,
    ChannelFailed,
    ChannelInUse,
    ConsumerFenced,
    EndOfChannel,
    EpochRegressed,
    HandshakeError,
    MessageTooLarge,
    NetChannelError,
    PositionLost,
    ProtocolError,
    SchemaMismatch,
    StreamReplaced,
)
from .groups import GroupChannel, GroupClient
from .process import group_client, receiver_server, sender_server
from .receiver import ReceiverChannel, ReceiverServer
from .sender import SenderChannel, SenderServer
from .tls import Tls
from .values import (
    BufferPolicy,
    ChannelStatistics,
    CloseReport,
    FaultPolicy,
    Group,
    MemberStatistics,
    Message,
    PeerStatistics,
    Position,
    Sealed,
    ServerStatistics,
    StagingPolicy,
)

__all__ = [
    "AttemptLost",
    "BufferFull",
    "BufferPolicy",
    "CertificateError",
    "ChannelBroken",
    "ChannelClosed",
    "ChannelClosedByPeer",
    "ChannelFailed",
    "ChannelInUse",
    "ChannelStatistics",
    "CloseReport",
    "ConsumerFenced",
    "EndOfChannel",
    "EpochRegressed",
    "FaultPolicy",
    "Group",
    "GroupChannel",
    "GroupClient",
    "HandshakeError",
    "MemberStatistics",
    "Message",
    "MessageTooLarge",
    "NetChannelError",
    "PeerStatistics",
    "Position",
    "PositionLost",
    "ProtocolError",
    "ReceiverChannel",
    "ReceiverServer",
    "SchemaMismatch",
    "Sealed",
    "SenderChannel",
    "SenderServer",
    "ServerStatistics",
    "StagingPolicy",
    "StreamReplaced",
    "Timing",
    "Tls",
    "group_client",
    "receiver_server",
    "sender_server",
]
