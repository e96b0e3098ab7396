"""Lines over TCP, from somebody who listens: CSV without a header, or JSON objects."""

from __future__ import annotations

import io
import re
import socket
from collections import deque
from contextlib import suppress
from threading import Condition, Thread
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.csv
import pyarrow.json

from nebuli.connectors.endpoints import Signal, Source
from nebuli.connectors.errors import FragmentError, InputError, short
from nebuli.connectors.sources.instants import instants
from nebuli.dataflow import zset
from nebuli.dataflow.types import arrow_schema
from netchannel.transports.tcp import keep_alive

if TYPE_CHECKING:
    from collections.abc import Callable

    from topology import Schema
    from topology import TcpSource as Settings

__all__ = ["TcpSource", "connect"]

CONNECT_S = 10.0
_BLOCK_BYTES = 1 << 18
_QUEUED_BLOCKS = 8
_LONGEST_LINE = 1 << 24
_LONGEST_REASON = 300
_ARROWS_ROW = re.compile(r"Row #\d+: | in row \d+")
"""Arrow's mention of a row, which it counts from where it began to read."""


def connect(address: str) -> socket.socket:
    """A connection to ``host:port``, whose end is noticed also where that host is just gone. Raises OSError."""
    host, _, port = address.rpartition(":")
    connection = socket.create_connection((host.strip("[]"), int(port)), CONNECT_S)
    keep_alive(connection)
    return connection


class TcpSource(Source):
    """Reads until the other side ends the connection; what it has sent by then is all there is.

    A thread of its own receives, at most some MB ahead: then the other side is held back. A connection that fails
    fails the fragment, for what was on the way is lost.
    """

    def __init__(self, settings: Settings, columns: Schema, wake: Callable[[], None]) -> None:
        self._settings = settings
        self._schema = arrow_schema(columns)
        self._wake = wake
        self._socket: socket.socket | None = None
        self._thread: Thread | None = None
        self._blocks: deque[bytes | Signal | FragmentError] = deque()
        self._changed = Condition()
        self._closed = False
        self._lines = 0

    def open(self) -> None:
        """Connect, and begin to receive."""
        try:
            self._socket = connect(self._settings.address)
        except OSError as error:
            raise InputError(
                f"TCP {self._settings.address} cannot be reached ({error}): start what listens there first"
            ) from error
        self._socket.settimeout(None)
        self._thread = Thread(target=self._receive, name=f"lines from {self._settings.address}", daemon=True)
        self._thread.start()

    def poll(self) -> pa.RecordBatch | Signal:
        """The rows of a block of whole lines, each with weight 1."""
        with self._changed:
            if not self._blocks:
                return Signal.LATER
            block = self._blocks.popleft()
            self._changed.notify()
        match block:
            case Signal():
                return block
            case FragmentError():
                raise block
        return zset.insertions(self._rows(block))

    def close(self, reason: str) -> None:
        """Hang up, and wait for the thread, which ends with that."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        if self._socket is not None:
            with suppress(OSError):
                self._socket.shutdown(socket.SHUT_RDWR)
            if self._thread is not None:
                self._thread.join()
            self._socket.close()

    def _receive(self) -> None:
        assert self._socket is not None
        begun = b""  # of a line whose end has not come
        try:
            while data := self._socket.recv(_BLOCK_BYTES):
                lines, end, rest = (begun + data).rpartition(b"\n")
                if end:
                    self._put(lines + end)
                begun = rest
                if len(begun) > _LONGEST_LINE:
                    raise InputError(
                        f"TCP {self._settings.address}: a line is longer than {_LONGEST_LINE:,} bytes, the most that "
                        f"is read"
                    )
            if begun:
                self._put(begun + b"\n")
            self._put(Signal.END)
        except OSError as error:
            self._put(InputError(f"TCP {self._settings.address}: the connection failed: {error}"))
        except InputError as error:
            self._put(error)
        except Exception as error:  # noqa: BLE001 - whatever it is, the fragment waits for this thread
            what = f"{type(error).__name__}: {error}"
            self._put(FragmentError(f"TCP {self._settings.address}: {what}"))

    def _put(self, item: bytes | Signal | FragmentError) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._closed or len(self._blocks) < _QUEUED_BLOCKS)
            if not self._closed:
                self._blocks.append(item)
        self._wake()

    def _rows(self, block: bytes) -> pa.RecordBatch:
        try:
            rows = self._read(block)
        except pa.ArrowException as error:
            raise self._blame(block.split(b"\n")[:-1]) from error
        self._lines += block.count(b"\n")
        return rows

    def _read(self, block: bytes) -> pa.RecordBatch:
        return self._typed(
            self._from_csv(block) if self._settings.format == "CSV" else self._from_json(block)
        )

    def _blame(self, lines: list[bytes]) -> InputError:
        """The first of the lines with which they cannot be read, by halves, and what is said of it alone."""
        good, bad = 0, len(lines)  # so many can be read; so many cannot
        while bad - good > 1:
            middle = (good + bad) // 2
            if self._complaint(lines[:middle]) is None:
                good = middle
            else:
                bad = middle
        reason = self._complaint(lines[good:bad]) or self._complaint(lines[:bad])
        return InputError(f"TCP {self._settings.address}, line {self._lines + bad}: {reason}")

    def _complaint(self, lines: list[bytes]) -> str | None:
        block = b"".join(line + b"\n" for line in lines)
        if not block.strip():  # blank lines, which are passed over
            return None
        try:
            self._read(block)
        except pa.ArrowException as error:
            return short(_ARROWS_ROW.sub("", str(error)), _LONGEST_REASON)
        return None

    def _parsed(self) -> dict[str, pa.DataType]:
        """The types to parse; timestamps are read as texts, with a zone or without."""
        return {
            field.name: pa.string() if pa.types.is_timestamp(field.type) else field.type
            for field in self._schema
        }

    def _from_csv(self, block: bytes) -> pa.Table:
        return pa.csv.read_csv(
            io.BytesIO(block),
            read_options=pa.csv.ReadOptions(column_names=self._schema.names, use_threads=False),
            convert_options=pa.csv.ConvertOptions(
                column_types=self._parsed(),
                null_values=list(self._settings.nulls),
                strings_can_be_null=True,
            ),
        )

    def _from_json(self, block: bytes) -> pa.Table:
        return pa.json.read_json(
            io.BytesIO(block),
            read_options=pa.json.ReadOptions(use_threads=False, block_size=max(len(block), 1 << 16)),
            parse_options=pa.json.ParseOptions(
                explicit_schema=pa.schema(self._parsed().items()), unexpected_field_behavior="ignore"
            ),
        )

    def _typed(self, table: pa.Table) -> pa.RecordBatch:
        whole = table.combine_chunks()
        columns = []
        for field in self._schema:
            column = whole.column(field.name)
            column = column.chunk(0) if column.num_chunks else pa.array([], column.type)
            columns.append(instants(column, field.type) if pa.types.is_timestamp(field.type) else column)
        return pa.RecordBatch.from_arrays(columns, schema=self._schema)
