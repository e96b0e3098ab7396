"""Network channels: streams of Arrow batches between processes, without a broker.

No message is lost, duplicated or reordered.
"""

from __future__ import annotations

from netchannel.errors import (
    AttemptLost,
    BufferFull,
    CallFailed,
    CallTimedOut,
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
from netchannel.policies import BufferPolicy, FaultPolicy, RetainPolicy, StagingPolicy, Timing
from netchannel.process.blocking import caller, channel_reader, group_client, receiver_server, sender_server
from netchannel.servers.call_client import Caller
from netchannel.servers.call_service import Service
from netchannel.servers.group_channels import GroupChannel, GroupClient
from netchannel.servers.reader import ChannelReader
from netchannel.servers.receiver import ReceiverServer
from netchannel.servers.receiver_channel import ReceiverChannel
from netchannel.servers.retained_channels import RetainedChannel, RetainedSenderChannel
from netchannel.servers.sender import SenderServer
from netchannel.servers.sender_channel import SenderChannel
from netchannel.statistics import (
    ChannelStatistics,
    MemberStatistics,
    PeerStatistics,
    ReceiverChannelStatistics,
    ReceiverServerStatistics,
    SenderChannelStatistics,
    SenderServerStatistics,
    ServerStatistics,
)
from netchannel.tls import Tls
from netchannel.values import CloseReport, Group, Heads, Located, Message, Moment, Position, Sealed

__version__ = "0.1.0"

__all__ = [
    "AttemptLost",
    "BufferFull",
    "BufferPolicy",
    "CallFailed",
    "CallTimedOut",
    "Caller",
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
    "ReceiverChannelStatistics",
    "ReceiverServer",
    "ReceiverServerStatistics",
    "RetainPolicy",
    "RetainedChannel",
    "RetainedSenderChannel",
    "SchemaMismatch",
    "Sealed",
    "SenderChannel",
    "SenderChannelStatistics",
    "SenderServer",
    "SenderServerStatistics",
    "ServerStatistics",
    "Service",
    "StagingPolicy",
    "StorageFull",
    "StreamReplaced",
    "Timing",
    "Tls",
    "caller",
    "channel_reader",
    "group_client",
    "receiver_server",
    "sender_server",
]
