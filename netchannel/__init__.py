"""Network channels: streams of Arrow batches between processes, without a broker.

Nothing is lost, doubled or reordered.
"""

from __future__ import annotations

from netchannel.core.timing import Timing
from netchannel.errors import (
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
    LogBroken,
    LogDamaged,
    MessagesLost,
    MessageTooLarge,
    NetChannelError,
    PositionLost,
    ProtocolError,
    SchemaMismatch,
    StorageFull,
    StreamReplaced,
)
from netchannel.process.blocking import channel_reader, group_client, receiver_server, sender_server
from netchannel.servers.group_channels import GroupChannel, GroupClient
from netchannel.servers.reader import ChannelReader
from netchannel.servers.receiver import ReceiverServer
from netchannel.servers.receiver_channel import ReceiverChannel
from netchannel.servers.retained_channels import RetainedChannel, RetainedSenderChannel
from netchannel.servers.sender import SenderServer
from netchannel.servers.sender_channel import SenderChannel
from netchannel.tls import Tls
from netchannel.values import (
    BufferPolicy,
    ChannelStatistics,
    CloseReport,
    FaultPolicy,
    Group,
    Heads,
    Located,
    MemberStatistics,
    Message,
    Moment,
    PeerStatistics,
    Position,
    RetainPolicy,
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
    "ChannelReader",
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
    "Heads",
    "Located",
    "LogBroken",
    "LogDamaged",
    "MemberStatistics",
    "Message",
    "MessageTooLarge",
    "MessagesLost",
    "Moment",
    "NetChannelError",
    "PeerStatistics",
    "Position",
    "PositionLost",
    "ProtocolError",
    "ReceiverChannel",
    "ReceiverServer",
    "RetainPolicy",
    "RetainedChannel",
    "RetainedSenderChannel",
    "SchemaMismatch",
    "Sealed",
    "SenderChannel",
    "SenderServer",
    "ServerStatistics",
    "StagingPolicy",
    "StorageFull",
    "StreamReplaced",
    "Timing",
    "Tls",
    "channel_reader",
    "group_client",
    "receiver_server",
    "sender_server",
]
