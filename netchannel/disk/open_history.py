"""The history of a retained stream, opened as its `RetainPolicy` says."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from netchannel.core.link import Job, JobOwner
from netchannel.core.replay.history import MemoryHistory
from netchannel.errors import NetChannelError
from netchannel.storage import RealFiles, SegmentLog
from netchannel.storage.failures import NO_SPACE, broken, no_space
from netchannel.storage.folders import is_made, lock_folder
from netchannel.storage.layout import SEGMENT_HEADER, folder_name

from .disk_history import DiskHistory, read_state

if TYPE_CHECKING:
    from collections.abc import Callable

    from netchannel.core.link import Core
    from netchannel.core.replay.history import History
    from netchannel.policies import RetainPolicy
    from netchannel.storage import FileSystem

    Then = Callable[[History | NetChannelError, float], None]

SEGMENT_BYTES = 1 << 26
SEGMENTS = 8
"""Room comes back in whole segments: what is kept has several."""


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
        """What another process has left on disk, if it has. Waits for the disk; raises what `SegmentLog.open` does.

        Where nothing is left it is tried whether something can be kept: later nobody would be there to hear of it.
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
            segment_bytes=max(1, min(SEGMENT_BYTES, self._policy.max_bytes // SEGMENTS)),
            start=start,
            files=self._files,
        )
        try:
            state = read_state(self._files, log, is_new=bool(created))
            if stream and log.stream != stream:
                raise NetChannelError(
                    f"channel {self._channel_id!r}: another process has left stream {log.stream!r} in {log.path} "
                    f"meanwhile, and {stream!r} came: register the channel again to go on with what is there"
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
