"""Receiving in a task: each partition reads a channel of its own, and sends its address to the sender.

The machine of a task is not known beforehand. So a task announces its address: it sends it, as the only
message of a channel of its own, to a receiver whose address is known, normally the sender's process.
"""

from __future__ import annotations

import socket
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import netchannel
from netchannel import BufferPolicy, EndOfChannel, FaultPolicy
from netchannel.address import TcpAddress, parse_address
from netchannel.transports.schemes import scheme_of
from spark_bridge.errors import SparkBridgeError
from spark_bridge.schemas import DeclaredSchema, Normaliser, arrow_schema

from .task import complete, current_task, format_channel
from .task_sender import WAIT

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    import pyarrow as pa

    from netchannel import Message, ReceiverServer
    from netchannel.process.blocking import BlockingReceiverChannel


@contextmanager
def open_inbox(
    channel: str,
    announce: str,
    *,
    ack: Literal["receipt", "explicit"] = "receipt",
    buffer: BufferPolicy | None = None,
    fault: FaultPolicy = WAIT,
) -> Iterator[BlockingReceiverChannel]:
    """Open a channel on which the current task receives, for ``foreachPartition`` and your own functions.

    The task first announces its address to ``announce``, where `announced` waits for it. A stream can only be read from
    its beginning: a second attempt that is offered the remaining messages of a stream gets `netchannel.PositionLost`.
    Leaving the ``with`` block before the end, or by an exception, closes the channel: the producer gets
    `netchannel.ChannelClosedByPeer`.

    Args:
        channel: the channel's id; ``{partition}`` stands for the number of the partition.
        announce: the address of the receiver that waits with `announced`, as executors reach it.
        ack: a message is acknowledged once it is in this process (``receipt``), or when you call ``ack``
            (``explicit``).
        buffer: the bound of received, unread messages.
        fault: how long to wait for the receiver at ``announce``, and then for the sender.

    Raises:
        NotInTask: the call is not in a Spark task.
        ChannelTemplate: this partition would share its channel with others.
        netchannel.NetChannelError: the error that ended the channel.
    """
    name = current_task().channel(channel)
    receiver = netchannel.receiver_server(_listen_address(announce))
    inbox = receiver.register_channel(name, ack=ack, resume_from=0, buffer=buffer, fault=fault)
    try:
        _announce(name, receiver.address, announce, fault)
        yield inbox
    except GeneratorExit:
        inbox.close("its Spark task needs no more messages")
        raise
    except BaseException as error:
        inbox.close(f"its Spark task failed: {type(error).__name__}: {error}")
        raise
    inbox.close("its Spark task needs no more messages")


def _announce(channel: str, address: str, to: str, fault: FaultPolicy) -> None:
    outbox = netchannel.sender_server().register_channel(
        _announcement(channel), to, codec="bytes", stream=current_task().new_stream(), fault=fault
    )
    try:
        outbox.send(address.encode())
        outbox.close()
    except BaseException as error:
        outbox.abort(error)
        raise


def _announcement(channel: str) -> str:
    return f"address of {channel}"


def _listen_address(peer: str) -> str:
    """Any port on the interface by which this machine reaches ``peer``."""
    if scheme_of(peer) != "tcp":
        raise SparkBridgeError(
            f"{peer} is not a TCP address: expected the host:port to which tasks report their own addresses"
        )
    address = parse_address(peer)
    family, kind, _, _, target = socket.getaddrinfo(address.host, address.port, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, kind) as probe:
        probe.connect(target)
        return str(TcpAddress(probe.getsockname()[0], 0))


async def announced(receiver: ReceiverServer, channel: str) -> str:
    """Wait until a Spark task receives on ``channel``; return the address to send to.

    The sender's process calls it. Its ``receiver`` listens at the address to which tasks announce themselves. A call
    serves one attempt of a task. When that attempt fails, the sender gets `netchannel.ChannelClosedByPeer`, and can
    wait for the next attempt, to send the stream again from its beginning. A cancelled call has no effect.

    Raises:
        ChannelInUse: another call already waits for this channel.
        ChannelFailed: the task failed while it announced itself.
    """
    inbox = receiver.register_channel(_announcement(channel), codec="bytes")
    try:
        address = bytes(await inbox.recv()).decode()
        async for _ in inbox:
            pass  # to the clean end, so that the task gets the confirmation
    finally:
        await inbox.close()
    return address


@dataclass(frozen=True, slots=True)
class Receive:
    """The result of `receive`: a function for ``mapInArrow``."""

    channel: str
    announce: str
    schema: pa.Schema
    buffer: BufferPolicy | None
    fault: FaultPolicy

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield what the partition's channel brings; the partition's own rows are not looked at."""
        for _ in complete(batches):
            pass
        normalise = Normaliser(self.schema)
        with open_inbox(
            self.channel, self.announce, ack="explicit", buffer=self.buffer, fault=self.fault
        ) as inbox:
            for message in _messages(inbox):
                yield normalise(message.batch)
                # Spark has taken it: it asks for the next one.
                inbox.ack(message.sequence + 1)


def _messages(inbox: BlockingReceiverChannel) -> Iterator[Message]:
    with suppress(EndOfChannel):
        while True:
            yield inbox.recv_message()


def receive(
    channel: str,
    announce: str,
    schema: DeclaredSchema,
    *,
    buffer: BufferPolicy | None = None,
    fault: FaultPolicy = WAIT,
) -> Receive:
    """Return a function for ``mapInArrow`` that reads one channel for each partition of a DataFrame.

    ::

        slots = spark.range(0, 4, 1, numPartitions=4)
        df = slots.mapInArrow(spark_bridge.receive("flights/{partition}", announce, schema), schema)

    The sender gets the task's address from `announced`. ``schema`` is given as to ``mapInArrow``; received batches are
    converted to exactly its types, and raise `SchemaConflict` if a value would change. A batch is acknowledged once
    Spark has taken it from this function, so the producer's ``close`` does not return before that. In all other
    respects it works like `open_inbox`.
    """
    format_channel(channel, 0)
    return Receive(channel, announce, arrow_schema(schema), buffer, fault)
