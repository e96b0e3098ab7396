"""The store of a sender's channel, as its `BufferPolicy` says: opened before the channel is."""

from __future__ import annotations

import uuid
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa

from netchannel.errors import NetChannelError, SchemaMismatch
from netchannel.storage import SegmentLog, TemporaryFiles, spill_directory
from netchannel.wire.codec import CodecName, make_encoder

from .durable import keep_in
from .spilling import spill_to

if TYPE_CHECKING:
    from collections.abc import Callable

    from netchannel.core.sending.outbound import OutboundChannel
    from netchannel.policies import BufferPolicy
    from netchannel.wire.codec import Encoder

SEGMENT_BYTES = 1 << 26
SEGMENTS_PER_LIMIT = 8
"""Room comes back in whole segments: a limit holds several."""


class Opened(NamedTuple):
    """What a channel is made with; ``close`` gives the files back if it is not made after all."""

    stream: str
    encoder: Encoder
    prepare: Callable[[OutboundChannel], None]
    close: Callable[[], None]


def open_buffer(
    policy: BufferPolicy, channel_id: str, codec: CodecName, schema: pa.Schema | None, stream: str | None
) -> Opened:
    """Open the files that ``policy`` asks for; those of a durable buffer may hold a stream to go on with.

    Raises ChannelInUse, SchemaMismatch, NetChannelError for a stream that is not the one in the directory, and what
    `SegmentLog.open` does.
    """
    if policy.directory is not None:
        return _open_durable(policy, channel_id, codec, schema, stream)
    encoder = make_encoder(codec, schema)
    stream = stream or uuid.uuid4().hex
    if policy.when_full == "spill":
        return Opened(stream, encoder, _spilling(policy, channel_id, stream), lambda: None)
    return Opened(stream, encoder, lambda channel: None, lambda: None)


def _open_durable(
    policy: BufferPolicy, channel_id: str, codec: CodecName, schema: pa.Schema | None, stream: str | None
) -> Opened:
    assert policy.directory is not None
    log = SegmentLog.open(
        Path(policy.directory),
        channel_id,
        create_stream=lambda: stream or uuid.uuid4().hex,
        codec=codec,
        max_disk_bytes=policy.max_disk_bytes,
    )
    try:
        if stream not in (None, log.stream):
            raise NetChannelError(
                f"the buffer of channel {channel_id!r} in {log.path} holds stream {log.stream!r}, and {stream!r} was "
                f"asked for: leave stream= away to go on with what it holds, or use another directory"
            )
        encoder = make_encoder(codec, _stored_schema(log, codec, schema))
    except BaseException:
        log.close()
        raise
    return Opened(log.stream, encoder, partial(keep_in, log=log), log.close)


def _stored_schema(log: SegmentLog, codec: str, schema: pa.Schema | None) -> pa.Schema | None:
    """The schema of the messages that are kept; the one that was given if there are none."""
    if codec != "arrow" or log.acknowledged == log.head:
        return schema
    stored: Any = pa.ipc.read_schema(pa.py_buffer(next(log.read(log.acknowledged)).schema))
    if schema is not None and not schema.equals(stored):
        raise SchemaMismatch(
            f"the buffer in {log.path} holds {log.head - log.acknowledged} messages of the schema "
            f"({stored.to_string(show_schema_metadata=False)}), and the channel was registered with "
            f"({schema.to_string(show_schema_metadata=False)}): register it with the former until they are delivered"
        )
    return stored


def _spilling(policy: BufferPolicy, channel_id: str, stream: str) -> Callable[[OutboundChannel], None]:
    directory = spill_directory()
    files = TemporaryFiles(directory)
    segment_bytes = SEGMENT_BYTES
    if policy.max_disk_bytes is not None:
        segment_bytes = min(segment_bytes, policy.max_disk_bytes // SEGMENTS_PER_LIMIT)

    def open_log(start: int) -> SegmentLog:
        # A folder of its own for each run: the one before may not be acknowledged yet.
        return SegmentLog.open(
            directory / str(start),
            channel_id,
            create_stream=lambda: stream,
            segment_bytes=segment_bytes,
            start=start,
            files=files,
        )

    return partial(spill_to, open_log=open_log, close=files.close)
