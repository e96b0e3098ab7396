"""`RowGroups`: the batches of a Parquet file, in order, while threads read its row groups next to each other."""

from __future__ import annotations

from collections import deque
from concurrent.futures import ThreadPoolExecutor
from os import cpu_count
from threading import Condition
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = ["RowGroups", "opened"]

_BATCH_ROWS = 65_536
_AHEAD = 2
"""Batches of the row group that is due which may wait, however much of other row groups does."""
_AHEAD_BYTES = 1 << 26
_THREADS = min(cpu_count() or 1, 4)


def opened(file: pa.NativeFile, metadata: pa.parquet.FileMetaData | None = None) -> pa.parquet.ParquetFile:
    """Return a reader of an open file, which reads only what it is asked for. Raises OSError, ArrowInvalid."""
    return pa.parquet.ParquetFile(file, metadata=metadata, pre_buffer=False, coerce_int96_timestamp_unit="us")


class RowGroups:
    """Reads the ``columns`` of all row groups of ``file``, which has this ``metadata``, from the start on.

    A thread reads one row group at a time, and calls ``convert`` with each batch. At most 64 MiB are read ahead, or two
    batches of the row group that is due. The file stays open for the caller to close. No other file is opened: there
    may be another one at the path by now.
    """

    def __init__(
        self,
        file: pa.NativeFile,
        metadata: pa.parquet.FileMetaData,
        columns: Sequence[str],
        convert: Callable[[pa.RecordBatch], pa.RecordBatch],
    ) -> None:
        self._file = file
        self._metadata = metadata
        self._names = [*columns]
        self._convert = convert
        self._groups = metadata.num_row_groups
        self._read: dict[int, deque[pa.RecordBatch | Exception | None]] = {}
        """By row group: batches, and at its end an error or None."""
        self._begun = self._due = self._bytes = 0
        self._closed = False
        self._changed = Condition()
        self._threads = ThreadPoolExecutor(_THREADS, "nebuli-parquet")
        for _ in range(min(_THREADS, self._groups)):
            self._threads.submit(self._read_groups)

    def next(self) -> pa.RecordBatch | None:
        """Return the next batch; None at the end. Raises what was raised by reading it, or by converting it."""
        with self._changed:
            while self._due < self._groups:
                while not self._read.get(self._due):  # without a deadline: a thread reads it, or has an error
                    self._changed.wait()
                found = self._read[self._due].popleft()
                if isinstance(found, pa.RecordBatch):
                    self._bytes -= found.nbytes
                    self._changed.notify_all()
                    return found
                if found is not None:
                    self._read[self._due].append(found)
                    raise found
                del self._read[self._due]
                self._due += 1
                self._changed.notify_all()
        return None

    def close(self) -> None:
        """Stop reading."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        self._threads.shutdown()

    def _read_groups(self) -> None:
        reader: pa.parquet.ParquetFile | None = None
        while (group := self._begin()) is not None:
            try:
                reader = reader or opened(self._file, self._metadata)
                batches = reader.iter_batches(
                    _BATCH_ROWS, row_groups=[group], columns=self._names, use_threads=self._groups == 1
                )
                for batch in batches:
                    if not self._put(group, self._convert(batch)):
                        break
                self._put(group, None)
            except Exception as error:  # noqa: BLE001 - `next` raises it where its rows are due
                self._put(group, error)

    def _begin(self) -> int | None:
        with self._changed:
            if self._closed or self._begun == self._groups:
                return None
            self._begun += 1
            self._read[self._begun - 1] = deque()
            return self._begun - 1

    def _put(self, group: int, found: pa.RecordBatch | Exception | None) -> bool:
        """Wait until there is room for it; false once it is closed."""
        with self._changed:
            waiting = self._read[group]
            self._changed.wait_for(
                lambda: (
                    self._closed
                    or not isinstance(found, pa.RecordBatch)
                    or self._bytes < _AHEAD_BYTES
                    or (group == self._due and len(waiting) < _AHEAD)
                )
            )
            if isinstance(found, pa.RecordBatch):
                self._bytes += found.nbytes
            waiting.append(found)
            self._changed.notify_all()
            return not self._closed
