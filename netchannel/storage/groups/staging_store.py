"""A staged channel on disk: attempts that are held, and what of them was committed, in the order of its numbers.

Nothing is copied: a committed group is the files of its attempts, one after the other, and a journal that
lists them.
"""

from __future__ import annotations

import json
from base64 import b64decode, b64encode
from bisect import bisect_right
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from netchannel.errors import ChannelClosed, LogBroken, LogDamaged, PositionLost, StorageFull
from netchannel.storage import folders
from netchannel.storage.failures import NO_SPACE, broken, damaged, lost, no_space, unreadable
from netchannel.storage.files import RealFiles, abandon_in_children
from netchannel.storage.layout import JOURNAL, SEALED, SEGMENT_HEADER, SPARE, UNSEALED, folder_name
from netchannel.storage.manifest import Marks
from netchannel.storage.recovery import log
from netchannel.storage.segment import WINDOW, SegmentReader
from netchannel.values import AttemptKey
from netchannel.wire.pool import Pool

from .attempt_files import AttemptFile, SealedAttempt, file_name, read_sealed
from .journal import COMMIT, FORGET, STATE, Journal, recover_journal
from .spares import Spares

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Iterator, Sequence

    from netchannel.storage.files import File, FileSystem
    from netchannel.storage.manifest import Mark
    from netchannel.storage.segment import LogRecord

    from .journal import Fields

_KNOWN = 16


class Part(NamedTuple):
    """A committed attempt: its messages have the channel's numbers from ``first`` on."""

    first: int
    sealed: SealedAttempt

    @property
    def end(self) -> int:
        """The number after its last message."""
        return self.first + self.sealed.count


@dataclass(frozen=True, slots=True)
class State:
    """The contents of the journal. ``epochs`` has the last committed one of each application."""

    stream: str
    epochs: dict[str, int]
    head: int = 0
    ended: bool = False
    schema: bytes = b""
    parts: tuple[Part, ...] = ()

    def committed(
        self, application: str, epoch: int, winners: Sequence[SealedAttempt], *, end: bool
    ) -> State:
        """The state after a commit."""
        parts, head, schema = list(self.parts), self.head, self.schema
        for sealed in winners:
            if sealed.count:
                parts.append(Part(head, sealed))
                head += sealed.count
            schema = schema or sealed.schema
        epochs = {**self.epochs, application: epoch}
        return replace(self, epochs=epochs, head=head, ended=end, schema=schema, parts=tuple(parts))


class StagingStore:
    """The files of a staged channel; made by `StagingStore.open`.

    Writing methods (`commit`, `forget`, `acknowledge`, `start_over`, `remove`, `close`) are called by one
    thread at a time. Attempts are written by others meanwhile, each by one, and so is what `read` gives read
    by one. ``found`` are the attempts that were sealed before it was opened, and not committed.
    """

    def __init__(
        self,
        folder: folders.Folder,
        identity: str,
        marks: Marks,
        journal: Journal,
        *,
        state: State,
        acknowledged: int,
        spare_bytes: int,
    ) -> None:
        self.path = folder.path
        self.state = state
        self.acknowledged = acknowledged
        self.found: list[SealedAttempt] = []
        self.spares = Spares(folder.files, folder.path, spare_bytes)
        self._folder = folder
        self._files = folder.files
        self._identity = identity
        self._marks = marks
        self._journal = journal
        self._closed = False
        self._known: dict[bytes, bytes] = {}
        self._read_from: set[File] = set()
        abandon_in_children(self)

    @classmethod
    def open(
        cls,
        directory: str | Path,
        channel_id: str,
        *,
        create_stream: Callable[[], str],
        codec: str = "",
        spare_bytes: int = 0,
        files: FileSystem | None = None,
    ) -> StagingStore:
        """Open the files of ``channel_id`` below ``directory``, or make them, for the stream ``create_stream()``.

        Files of up to ``spare_bytes`` that are no longer needed are kept, to be written again.
        Raises ChannelInUse if it is open already, in this process or another; LogDamaged if something durable
        is missing or wrong; SchemaMismatch if it holds another codec; StorageFull and LogBroken.
        """
        files = files or RealFiles()
        path = Path(directory) / folder_name(channel_id)
        try:
            folder = folders.lock_folder(files, path, channel_id)
            try:
                manifest = folders.claim(folder, channel_id, f"staged {codec}", create_stream)
                marks = Marks(files, path, manifest.stream)
                try:
                    return cls._recovered(folder, manifest.stream, marks, spare_bytes)
                except BaseException:
                    marks.close()
                    raise
            except BaseException:
                folder.lock.release()
                raise
        except OSError as error:
            if error.errno in NO_SPACE:
                raise no_space(path, SEGMENT_HEADER, error) from error
            raise broken(path, 0, "opening", error) from error

    @classmethod
    def _recovered(
        cls, folder: folders.Folder, identity: str, marks: Marks, spare_bytes: int
    ) -> StagingStore:
        files, path = folder.files, folder.path
        names = files.list_directory(path)
        sealed = {name for name in names if name.endswith(SEALED)}
        if JOURNAL in names:
            journal, entries = recover_journal(files, path, identity, marks)
        elif sealed or marks.last.base:
            raise damaged(path / JOURNAL, 0, "it is missing, although the folder has, or had, attempts")
        else:
            state = State(identity, {})
            journal = Journal.create(files, path, identity, marks, _fields(state, 0))
            entries = [(STATE, _fields(state, 0))]
        try:
            known = marks.last.acknowledged if marks.last.base == journal.mark.base else 0
            acknowledged, state = _replayed(files, path, entries, known)
            store = cls(
                folder,
                identity,
                marks,
                journal,
                state=state,
                acknowledged=acknowledged,
                spare_bytes=spare_bytes,
            )
            store._tidy({name for name in names if name.endswith((UNSEALED, SPARE))}, sealed)
        except BaseException:
            journal.close()
            raise
        return store

    def _tidy(self, left: set[str], sealed: set[str]) -> None:
        """Remove attempts that can never be named; those that may still be named are `found`."""
        settled = self._settle()
        for name in left:
            with suppress(FileNotFoundError):  # a writer whose channel is over may remove it just now
                self._files.unlink(self.path / name)
        for name in sorted(sealed - {part.sealed.path.name for part in self.state.parts}):
            path = self.path / name
            try:
                attempt = read_sealed(self._files, path)
            except LogDamaged as error:
                log.warning("an attempt that was not yet committed is discarded: %s", error)
                self._files.unlink(path)
                continue
            if attempt.key.epoch > self.state.epochs.get(attempt.key.application, -1):
                self.found.append(attempt)
            elif settled:
                self._files.unlink(path)

    # -- what there is

    @property
    def stream(self) -> str:
        """The identity of the stream that its numbers belong to."""
        return self.state.stream

    @property
    def oldest(self) -> int:
        """The first message that can be read."""
        return self.state.parts[0].first if self.state.parts else self.state.head

    @property
    def disk_bytes(self) -> int:
        """The size of what is committed and kept."""
        return sum(part.sealed.segment.size for part in self.state.parts)

    @property
    def doubtful(self) -> bool:
        """True if rewriting the journal failed: nothing is written, or deleted, any more."""
        return self._journal.doubtful

    def attempt(self, key: AttemptKey) -> AttemptFile:
        """A file for an attempt, yet to be written."""
        return AttemptFile(self._files, self.path, key, self.spares)

    # -- what is promised

    def commit(self, application: str, epoch: int, winners: Sequence[SealedAttempt], *, end: bool) -> None:
        """Append the attempts to the channel, in the order in which they are given; on the disk when it returns.

        Raises StorageFull, and nothing has changed; LogBroken, and whether it is done shows after a restart.
        """
        self._check_open()
        state = self.state.committed(application, epoch, winners, end=end)
        fields: Fields = {
            "application": application,
            "epoch": epoch,
            "end": end,
            "attempts": [
                [sealed.key.partition, sealed.key.attempt, sealed.count, sealed.size, sealed.checksum]
                for sealed in winners
            ],
        }
        if state.schema != self.state.schema:
            fields["schema"] = b64encode(state.schema).decode()
        self._append(COMMIT, fields, state)
        self.remove([sealed for sealed in winners if not sealed.count])

    def forget(self, application: str) -> None:
        """Know no more which epoch of ``application`` was committed last; raises as `commit`."""
        self._check_open()
        epochs = {name: epoch for name, epoch in self.state.epochs.items() if name != application}
        self._append(FORGET, {"application": application}, replace(self.state, epochs=epochs))

    def _append(self, kind: int, fields: Fields, state: State) -> None:
        self._with_room(partial(self._journal.append, kind, fields))
        self.state = state
        if self._journal.overgrown:
            # The written data stays, even if this fails: the next write to it gets the error.
            with suppress(StorageFull, LogBroken):
                self._rewrite(self.state, self.acknowledged)

    def _with_room(self, write: Callable[[], None]) -> None:
        """``write``, and again where there may be room for it without what is kept to be written again."""
        try:
            write()
        except StorageFull:
            self.spares.clear()
            write()

    def acknowledge(self, upto: int) -> None:
        """Note that everything below ``upto`` is done: attempts that hold nothing else are deleted.

        The number itself gets to the disk when the kernel sees fit, at the latest by `close`: after a crash of the
        machine an older one may be found.
        """
        self._check_open()
        self.acknowledged = max(upto, self.acknowledged)
        if self.doubtful:
            return  # a mark is of one journal: with the other one, files deleted by it would look missing
        kept = [part for part in self.state.parts if part.end > upto]
        if len(kept) == len(self.state.parts):
            self._marks.write(self._mark)
        elif self._settle():
            done = self.state.parts[: -len(kept) or None]
            self.state = replace(self.state, parts=tuple(kept))
            self.remove([part.sealed for part in done])

    def start_over(self, stream: str) -> None:
        """A new stream takes the place of one that has ended, and whose messages are all done. Epochs stay.

        Raises StorageFull, LogBroken.
        """
        self._check_open()
        left = self.state.parts
        state = State(stream, self.state.epochs)
        self._rewrite(state, 0)
        self.state = state
        self.remove([part.sealed for part in left])

    def remove(self, attempts: Iterable[SealedAttempt], *, durably: bool = False) -> None:
        """Remove the files of attempts that will not be named: any that remain are found at the next `open`."""
        try:
            self.spares.remove([(each.path, each.segment.size) for each in attempts], durably=durably)
        except OSError as error:
            log.warning(
                "attempts in %s cannot be deleted (%s), and still take up disk space", self.path, error
            )

    def age(self) -> None:
        """Delete files that were to be written again, and have not been since the last time."""
        self.spares.age()

    def _rewrite(self, state: State, acknowledged: int) -> None:
        fields = _fields(state, acknowledged)
        self._with_room(partial(self._journal.replace, self._identity, fields))
        self.acknowledged = acknowledged
        self._marks.write(self._mark)

    @property
    def _mark(self) -> Mark:
        return self._journal.mark._replace(acknowledged=self.acknowledged)

    def _settle(self) -> bool:
        """True if the acknowledged number is durable: files that are gone without that would look like damage.

        In place, so that a full disk does not keep them.
        """
        return self._marks.settle(self._mark)

    # -- reading

    def read(self, sequence: int) -> Generator[LogRecord, None, None]:
        """The committed records from the one that holds ``sequence``, and those that are committed meanwhile.

        Raises LogDamaged, LogBroken; PositionLost below what is kept.
        """
        while sequence < self.state.head:
            parts = self.state.parts
            index = bisect_right(parts, sequence, key=lambda part: part.first) - 1
            if index < 0 or parts[index].end <= sequence:
                raise PositionLost(
                    f"number {sequence} was requested, but the messages in {self.path} start at {self.oldest}"
                )
            for record in self._read(parts[index], sequence):
                yield record
                sequence = record.end

    def _read(self, part: Part, sequence: int) -> Iterator[LogRecord]:
        path, offset = part.sealed.path, part.first
        try:
            file = self._files.open(path)
        except FileNotFoundError:
            raise damaged(path, 0, "it is missing") from None
        except OSError as error:
            raise unreadable(path, 0, error) from error
        self._read_from.add(file)
        try:
            reader = SegmentReader(file, part.sealed.segment, self._known, WINDOW, Pool())
            for at, entry in reader.headers(sequence - offset):
                record = reader.record(at, entry)
                yield record._replace(first=offset + record.first, end=offset + record.end)
                if record.end == part.sealed.count:
                    return  # all of it may be acknowledged by now, and the file be another attempt's
        finally:
            self._read_from.discard(file)
            file.close()
            if len(self._known) > _KNOWN:
                self._known.clear()

    # -- the end

    def close(self) -> None:
        """Give the files and the lock back."""
        if self._closed:
            return
        self._closed = True
        self._marks.sync()
        self.spares.clear()
        self._close_files()
        self._folder.lock.release()

    def abandon(self) -> None:
        """Close the descriptors and do nothing else: for a forked child, whose parent continues with them."""
        self._closed = True
        self._close_files()
        for file in self._read_from:
            file.close()
        self._folder.lock.abandon()

    def discard(self) -> None:
        """Close it and remove all of it from the disk. A crash leaves all of it or nothing. Raises LogBroken."""
        self._check_open()
        self._closed = True
        self._close_files()
        try:
            folders.discard(self._folder)
        except OSError as error:
            raise broken(self.path, 0, "removing", error) from error
        finally:
            self._folder.lock.release()

    def _close_files(self) -> None:
        self._journal.close()
        self._marks.close()

    def _check_open(self) -> None:
        if self._closed:
            raise ChannelClosed(f"the staged channel in {self.path} was closed at number {self.state.head}")


def _fields(state: State, acknowledged: int) -> Fields:
    """The state as the journal begins with it."""
    return {
        "stream": state.stream,
        "epochs": state.epochs,
        "head": state.head,
        "acknowledged": acknowledged,
        "ended": state.ended,
        "schema": b64encode(state.schema).decode(),
        "parts": [
            [part.first, *part.sealed.key, part.sealed.count, part.sealed.size, part.sealed.checksum]
            for part in state.parts
        ],
    }


class _Promise(NamedTuple):
    """A committed attempt, as the journal describes it."""

    first: int
    key: AttemptKey
    messages: int
    size: int
    checksum: int


def _replayed(
    files: FileSystem, path: Path, entries: Sequence[tuple[int, Fields]], acknowledged: int
) -> tuple[int, State]:
    """Return the result of the entries: the acknowledged number, and the state. Raises LogDamaged."""
    kinds = [kind for kind, _ in entries]
    if kinds[0] != STATE or set(kinds[1:]) - {COMMIT, FORGET}:
        raise damaged(path / JOURNAL, SEGMENT_HEADER, f"it contains entries of the wrong kinds {kinds}")
    began = entries[0][1]
    acknowledged = max(acknowledged, began["acknowledged"])
    promises = [_Promise(first, AttemptKey(*rest[:4]), *rest[4:]) for first, *rest in began["parts"]]
    epochs, head, ended, schema = dict(began["epochs"]), began["head"], began["ended"], began["schema"]
    for kind, fields in entries[1:]:
        application = fields["application"]
        if kind == FORGET:
            del epochs[application]
            continue
        epoch = fields["epoch"]
        for partition, attempt, count, size, checksum in fields["attempts"]:
            if count:
                key = AttemptKey(application, epoch, partition, attempt)
                promises.append(_Promise(head, key, count, size, checksum))
                head += count
        epochs[application], ended = epoch, fields["end"]
        schema = fields.get("schema", schema)
    if acknowledged > head:
        raise damaged(
            path / JOURNAL,
            0,
            f"its messages end at {head}, but messages below {acknowledged} are acknowledged",
        )
    parts = tuple(
        _part(files, path, promise) for promise in promises if promise.first + promise.messages > acknowledged
    )
    return acknowledged, State(began["stream"], epochs, head, ended, b64decode(schema), parts)


def _part(files: FileSystem, folder: Path, promise: _Promise) -> Part:
    path = folder / (file_name(promise.key) + SEALED)
    try:
        sealed = read_sealed(files, path)
    except FileNotFoundError:
        end = promise.first + promise.messages
        raise lost(folder, promise.first, end, f"{path.name}, which contained them, is missing") from None
    found, wanted = (sealed.key, sealed.count, sealed.size, sealed.checksum), tuple(promise[1:])
    if found != wanted:
        raise damaged(path, 0, f"it contains {json.dumps(found)}, but {json.dumps(wanted)} was committed")
    return Part(promise.first, sealed)
