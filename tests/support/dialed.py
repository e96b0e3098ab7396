"""A sender of our own making that is attached to a channel, and the pieces of what it may say."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from netchannel.core.control_connection import FOR_CONTROL, FOR_DATA, greeting
from netchannel.core.link import Closing, Link
from netchannel.core.receiving.inbound import InboundChannel
from netchannel.core.states import ReceiverState
from netchannel.wire import frames, messages
from netchannel.wire.codec import CodecName
from netchannel.wire.envelope import MessageParser
from netchannel.wire.frames import HEAD, HEADER, Kind, blob, pack, signal
from tests.support.forged import forged, proof
from tests.support.world import Consumer, World

LIMIT = 1 << 20
"""The receiver's ``message_limit``."""


def schema_of(batch: pa.RecordBatch) -> bytes:
    return bytes(batch.schema.serialize())


def body_of(batch: pa.RecordBatch) -> bytes:
    return bytes(batch.serialize())


def streamed(batch: pa.RecordBatch, compression: str | None = None) -> list[bytes]:
    """The messages of an IPC stream of one batch, as pyarrow writes them."""
    sink = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression=compression)
    with pa.ipc.new_stream(sink, batch.schema, options=options) as writer:
        writer.write_batch(batch)
    return [bytes(each.serialize()) for each in pa.ipc.MessageReader.open_stream(sink.getvalue())]


def frame(kind: Kind, payload: bytes = b"", **fields: int) -> bytes:
    return frames._joined(frames._fields(kind, len(payload), **fields), payload)


def pieces(kind: Kind, whole: bytes) -> bytes:
    return b"".join(bytes(each) for each in blob(kind, whole))


def data(*bodies: bytes, first: int = 0, notes: dict[int, bytes] | None = None) -> bytes:
    return b"".join(bytes(each) for each in pack(bodies, notes or {}, first, 0))


class Dialed:
    """A channel, and a sender that is attached to it and may say anything."""

    def __init__(
        self,
        codec: CodecName = "bytes",
        *,
        explicit: bool = False,
        schema: bytes | None = None,
        **settings: Any,
    ) -> None:
        self.world = World()
        self.core = self.world.receiver(message_limit=LIMIT)
        self.consumer: Consumer = self.world.inbox(self.core, codec=codec, explicit=explicit)
        self.channel: InboundChannel = self.consumer.channel
        self.control = self._linked(FOR_CONTROL)
        hello: dict[str, Any] = {
            "t": "hello",
            "version": 1,
            "node": "n",
            "dead_after_ms": 5000,
            "nonce": bytes(16),
            "secret": False,
        }
        opening = {"t": "open", "channel": "c", "request": 1, "stream": "s", "codec": codec, "schema": schema}
        opening |= {"lossy": False} | settings
        self.say(self.control, forged(hello))
        shown = proof(hello["nonce"], self.said(self.control))
        self.say(self.control, shown + forged(opening))
        (ok,) = [
            each
            for each in MessageParser().received(self.said(self.control))
            if isinstance(each, messages.Ok)
        ]
        self.data = self._linked(FOR_DATA)
        self.say(self.data, signal(Kind.ATTACH, payload=ok.token + HEAD.pack(5)))
        assert self.channel.state is ReceiverState.ATTACHED
        if schema is not None:
            self.say(self.data, pieces(Kind.SCHEMA, schema))
        self.said(self.data)

    def _linked(self, purpose: int) -> Link:
        link: Link = self.core.accept("somebody")
        link.connected(self.world.now)
        self.say(link, greeting(purpose))
        assert link.replacement is not None
        return link.replacement

    def say(self, link: Link, said: bytes) -> None:
        while said and link.closing is Closing.OPEN:
            buffer = link.get_buffer(len(said))
            size = min(len(buffer), len(said))
            buffer[:size] = said[:size]
            link.received(size, self.world.now)
            said = said[size:]

    def said(self, link: Link) -> memoryview:
        return memoryview(b"".join(bytes(each) for each in link.output()))

    def answers(self) -> list[tuple[Kind, int]]:
        """What the receiver says to what has come: kinds, and numbers."""
        found, said = [], self.said(self.data)
        while said:
            _, _, kind, _, _, length, sequence, *_ = HEADER.unpack_from(said)
            found.append((Kind(kind), sequence))
            said = said[HEADER.size + length :]
        return found
