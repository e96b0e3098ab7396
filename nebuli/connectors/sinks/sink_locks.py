"""A lock for a file, so that one fragment at a time writes to it, of all workers that see it.

The lock is the system's own (flock), on a hidden file that is named after the canonical path. It belongs to an open
descriptor: the worker takes it when a fragment is started, and hands it to the fragment's process, and to its successor
if that was killed. So it is free once the fragment has let go of it, or its last process is dead, however it died; the
file that a killed one leaves is taken over.
"""

from __future__ import annotations

import errno
import fcntl
import logging
import os
import stat
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

from pydantic import ValidationError

from nebuli.connectors.errors import OutputError, SinkInUse, unwritable
from nebuli.connectors.sinks.outputs import make_folder
from nebuli.connectors.sinks.overwrites import check_files
from nebuli.connectors.sinks.used_files import Holder, UsedFiles
from placement.plan import BoundSink, BoundSource, SinkOperator, SourceOperator, WindowOperator
from placement.stepped_plan import AnyFragment, MemberFragment
from topology import CsvSource, ParquetSource

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from placement import Query
    from topology import Topology
    from topology.connectors import SourceConnector

__all__ = ["SinkLock", "check_query_files", "files_of", "note_reads", "take_all", "take_files"]

_log = logging.getLogger(__name__)

_LARGEST_HOLDER = 1 << 16
_NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)


@dataclass(frozen=True, slots=True)
class SinkLock:
    """A lock that is held as long as any process has its descriptor open, and its file.

    One that ``is_shared`` had another holder before, which keeps it.
    """

    file: str
    descriptor: int
    is_shared: bool = False

    def close(self) -> None:
        """Leave it to the process that it was handed to, if that is there."""
        os.close(self.descriptor)

    def release(self) -> None:
        """Let the next one have it, if it is not shared."""
        if self.is_shared:
            self.close()
            return
        with suppress(OSError):  # a removed directory, for example: then no process finds the lock either
            Path(
                self.file
            ).unlink()  # first: a process that has opened it meanwhile sees that it is gone, and makes another
        os.close(self.descriptor)


def files_of(fragment: AnyFragment) -> Iterator[str]:
    """The files that a fragment writes to."""
    if isinstance(fragment, MemberFragment):
        for target in fragment.targets.values():
            yield from target.files
    for operator in fragment.operators:
        match operator:
            case BoundSink(target=target):
                yield from target.files
            case WindowOperator(late=str() as late):
                yield late


def _read_by(fragment: AnyFragment) -> list[str]:
    if isinstance(fragment, MemberFragment):
        return files_read(feed.source.physical for feed in fragment.feeds)
    return files_read(each.physical for each in fragment.operators if isinstance(each, BoundSource))


def files_read(physical: Iterable[SourceConnector]) -> list[str]:
    """The files that sources read, of which some are patterns."""
    return [each.path for each in physical if isinstance(each, CsvSource | ParquetSource)]


def check_query_files(topology: Topology, query: Query, directory: Path, files: Iterable[str] = ()) -> None:
    """Raise SinkIsSource if a query writes a file of this machine that it also reads, or writes it twice.

    ``files`` are read, too: those of the topology and the query.
    """
    logical = {each.logical for each in query.operators if isinstance(each, SourceOperator)}
    names = {each.sink for each in query.operators if isinstance(each, SinkOperator)}
    physical = [each for node in topology.nodes for each in node.physical if each.logical in logical]
    sinks = [each for node in topology.nodes for each in node.sinks if each.name in names]
    late = [each.late for each in query.operators if isinstance(each, WindowOperator) and each.late]
    written = [*(file for sink in sinks for file in sink.files), *late]
    check_files([*files_read(physical), *files], written, directory)


def take_all(
    fragment: AnyFragment, query: str, shared: Mapping[str, SinkLock] = MappingProxyType({})
) -> list[SinkLock]:
    """Return the locks of all files of a fragment, or none: ``SinkInUse`` names the holder of one of them.

    Those that are ``shared``, by their files, are held together with their present holders. ``OutputError`` where a
    lock cannot be made, or where the fragment reads one of the files, too.
    """
    reads = _read_by(fragment)
    check_files(reads, set(files_of(fragment)), Path())
    return take_files(files_of(fragment), query, fragment.id, fragment.node, shared=shared, reads=reads)


def note_reads(fragment: AnyFragment, query: str) -> SinkLock | None:
    """Note what a fragment will read, before another fragment of its query opens a file to write it.

    Returns the note, to be released once the fragment has its locks; None if it reads no files, or there can be no
    notes.
    """
    used = UsedFiles(
        query=query,
        fragment=fragment.id,
        node=fragment.node,
        directory=Path.cwd(),
        reads=tuple(_read_by(fragment)),
        writes=(),
        runs=False,
    )
    note = used.written()
    return None if note is None else SinkLock(*note)


def take_files(
    paths: Iterable[str],
    query: str,
    fragment: str,
    node: str,
    *,
    shared: Mapping[str, SinkLock] = MappingProxyType({}),
    reads: Iterable[str] = (),
) -> list[SinkLock]:
    """Return the locks of all these files, or none, for the holder of this name. Raises SinkInUse, OutputError.

    The last one is that of the note in which others find what is written and read.
    """
    used = UsedFiles(
        query=query,
        fragment=fragment,
        node=node,
        directory=Path.cwd(),
        reads=tuple(reads),
        writes=tuple(path for path in paths if not _is_device(path)),
    )
    taken: list[SinkLock] = []
    try:
        for path in used.writes:
            taken.append(_taken(path, used.holder(path), shared))  # noqa: PERF401 - each is released if one is not had
        if (note := used.written()) is not None:
            taken.append(SinkLock(*note))
            used.refuse_conflicts(taken[-1].file)
    except BaseException:
        for lock in taken:
            lock.release()
        raise
    return taken


def _is_device(path: str) -> bool:
    """True if it is one like /dev/null, which keeps nothing that two writers could spoil."""
    try:
        mode = Path(path).stat().st_mode
    except OSError:
        return False
    return stat.S_ISCHR(mode) or stat.S_ISBLK(mode)


def _taken(path: str, holder: Holder, shared: Mapping[str, SinkLock]) -> SinkLock:
    target = Path(os.path.realpath(path))
    make_folder(path, target)
    lock = target.with_name(f".{target.name}.lock")
    if (own := shared.get(str(lock))) is not None:
        return SinkLock(own.file, os.dup(own.descriptor), is_shared=True)
    try:
        descriptor, is_own = _locked(path, lock)
    except OSError as error:
        raise unwritable(path, error) from error
    held = SinkLock(str(lock), descriptor)
    try:
        if not is_own:
            raise OutputError(
                f"{path} cannot be written: its lock file {lock} belongs to another user: remove it"
            )
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, holder.model_dump_json().encode(), 0)
    except OSError as error:
        held.release()
        raise unwritable(path, error) from error
    except OutputError:
        held.close()
        raise
    return held


def _locked(path: str, lock: Path) -> tuple[int, bool]:
    """The descriptor of the lock's file, and whether it may be written to."""
    while True:
        descriptor, is_own = _opened(lock)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            said = _said(descriptor)
            os.close(descriptor)
            raise SinkInUse(path, said) from None
        except OSError as error:
            if error.errno not in _NO_LOCKS:
                os.close(descriptor)
                raise
            _log.warning(
                "%s: its file system has no locks, so two queries that write it at once would "
                "not be detected",
                path,
            )
        with suppress(FileNotFoundError):
            if os.path.samestat(lock.stat(), os.fstat(descriptor)):
                return descriptor, is_own
        os.close(descriptor)  # the holder has released it between the two, and removed it


def _opened(lock: Path) -> tuple[int, bool]:
    try:
        return os.open(lock, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o666), True
    except PermissionError:
        # Another user's may be read and locked: the error names its holder.
        with suppress(FileNotFoundError):
            return os.open(lock, os.O_RDONLY | os.O_NOFOLLOW), False
        raise


def _said(descriptor: int) -> str:
    try:
        return str(Holder.model_validate_json(os.pread(descriptor, _LARGEST_HOLDER, 0)))
    except (OSError, ValidationError):  # it has the lock, and has not written its name yet
        return "another query, which began at the same moment"
