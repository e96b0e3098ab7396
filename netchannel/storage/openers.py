"""Opens a channel's files by its policies: the store of a sender's channel, the history of a retained stream."""

from __future__ import annotations

import uuid
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa

from netchannel.core.link import Job, JobOwner
from netchannel.core.replay.history import MemoryHistory
from netchannel.errors import NetChannelError, SchemaMismatch
from netchannel.wire.codec import CodecName, make_encoder

from .disk_history import DiskHistory, read_state
from .durable_writer import keep_in
from .failures import NO_SPACE, broken, no_space
from .files import RealFiles
from .folders import is_made, lock_folder
from .layout import SEGMENT_HEADER, folder_name
from .log import SEGMENT_BYTES, SEGMENTS_PER_LIMIT, SegmentLog
from .spill_writer import spill_to
from .temporary_files import TemporaryFiles, spill_directory

if TYPE_CHECKING:
    from collections.abc import Callable

    from netchannel.core.link import Core
    from netchannel.core.replay.history import History
    from netchannel.core.sending.outbound import OutboundChannel
    from netchannel.policies import BufferPolicy, RetainPolicy
    from netchannel.wire.codec import Encoder

    from .files import FileSystem

    Then = Callable[[History | NetChannelError, float], None]


class OpenedBuffer(NamedTuple):
    """The files for a channel; ``close`` gives them back if it is not made after all."""

    stream: str
    encoder: Encoder
    prepare: Callable[[OutboundChannel], None]
    close: Callable[[], None]


def open_buffer(
    policy: BufferPolicy, channel_id: str, codec: CodecName, schema: pa.Schema | None, stream: str | None
) -> OpenedBuffer:
    """Open the files that ``policy`` asks for; those of a durable buffer may hold a stream to continue.

    Raises ChannelInUse, SchemaMismatch, NetChannelError for a stream that is not the one in the directory,
    and what `SegmentLog.open` does.
    """
    if policy.directory is not None:
        return _open_durable(policy, channel_id, codec, schema, stream)
    encoder = make_encoder(codec, schema)
    stream = stream or uuid.uuid4().hex
    if policy.when_full == "spill":
        return OpenedBuffer(stream, encoder, _spilling(policy, channel_id, stream), lambda: None)
    return OpenedBuffer(stream, encoder, lambda channel: None, lambda: None)


def _open_durable(
    policy: BufferPolicy, channel_id: str, codec: CodecName, schema: pa.Schema | None, stream: str | None
) -> OpenedBuffer:
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
                f"the buffer of channel {channel_id!r} in {log.path} holds stream {log.stream!r}, but {stream!r} "
                f"was requested: omit stream= to continue with its messages, or use another "
                f"directory"
            )
        encoder = make_encoder(codec, _stored_schema(log, codec, schema))
    except BaseException:
        log.close()
        raise
    return OpenedBuffer(log.stream, encoder, partial(keep_in, log=log), log.close)


def _stored_schema(log: SegmentLog, codec: str, schema: pa.Schema | None) -> pa.Schema | None:
    """Return the schema of the kept messages; the one that was given if there are none."""
    if codec != "arrow" or log.acknowledged == log.head:
        return schema
    stored: Any = pa.ipc.read_schema(pa.py_buffer(next(log.read(log.acknowledged)).schema))
    if schema is not None and not schema.equals(stored):
        raise SchemaMismatch(
            f"the buffer in {log.path} holds {log.head - log.acknowledged} messages of the schema "
            f"({stored.to_string(show_schema_metadata=False)}), but the channel was registered with "
            f"({schema.to_string(show_schema_metadata=False)}): register the channel with the first "
            "schema until these messages are delivered"
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


class HistoryOpener:
    """Opens the histories of one channel, of one stream after the other."""

    def __init__(
        self, core: Core, channel_id: str, codec: str, policy: RetainPolicy, files: FileSystem | None = None
    ) -> None:
        self._core = core
        self._channel_id = channel_id
        self._codec = codec
        self._policy = policy
        self._files = files or RealFiles()

    def kept(self) -> History | None:
        """Return the log that another process has left on disk, if there is one. Waits for the disk.

        Raises what `SegmentLog.open` does.

        If there is none, a test write checks that a log can be kept: a later error could not be reported.
        """
        if self._policy.directory is None:
            return None
        path = Path(self._policy.directory) / folder_name(self._channel_id)
        try:
            folder = lock_folder(self._files, path, self._channel_id)
            try:
                made = is_made(folder)
            finally:
                folder.lock.release()
        except OSError as error:
            if error.errno in NO_SPACE:
                raise no_space(path, SEGMENT_HEADER, error) from error
            raise broken(path, 0, "opening", error) from error
        return self._open("", 0) if made else None

    def begin(self, stream: str) -> History:
        """A history for a new stream, from number 0 on. Waits for the disk, and raises, likewise."""
        if self._policy.directory is None:
            return MemoryHistory(stream, self._codec, self._policy.max_bytes)
        return self._open(stream, 0)

    def replace(self, stream: str, start: int, before: History | None, then: Then, now: float) -> None:
        """Throw away the stream before, and begin another at number ``start``; gives it to ``then``."""
        if self._policy.directory is None:
            then(MemoryHistory(stream, self._codec, self._policy.max_bytes, start), now)
            return

        def open_another(now: float) -> None:
            self._core.request(_Opening(lambda: self._open(stream, start), then))

        if before is None:
            open_another(now)
        else:
            before.leave(discard=True, then=open_another, now=now, remember=True)

    def _open(self, stream: str, start: int) -> DiskHistory:
        assert self._policy.directory is not None
        created: list[str] = []

        def create_stream() -> str:
            created.append(stream)
            return stream

        log = SegmentLog.open(
            Path(self._policy.directory),
            self._channel_id,
            create_stream=create_stream,
            codec=self._codec,
            segment_bytes=max(1, min(SEGMENT_BYTES, self._policy.max_bytes // SEGMENTS_PER_LIMIT)),
            start=start,
            files=self._files,
        )
        try:
            state = read_state(self._files, log, is_new=bool(created))
            if stream and log.stream != stream:
                raise NetChannelError(
                    f"channel {self._channel_id!r}: its sender has stream {stream!r}, but another process has "
                    f"meanwhile left stream {log.stream!r} in {log.path}: register the channel again to continue with "
                    f"the messages there"
                )
            history = DiskHistory(
                self._core,
                log,
                self._files,
                state,
                codec=self._codec,
                max_bytes=self._policy.max_bytes,
            )
        except BaseException:
            log.close()
            raise
        return history


class _Opening(JobOwner, Job):
    def __init__(self, make: Callable[[], History], then: Then) -> None:
        self._make = make
        self._then = then
        self._made: History | NetChannelError

    def begin(self) -> Job | None:
        return self

    def run(self) -> None:
        try:
            self._made = self._make()
        except NetChannelError as error:
            self._made = error

    def done(self, now: float) -> None:
        self._then(self._made, now)
