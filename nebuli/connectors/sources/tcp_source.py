"""Lines over TCP, from a listener: CSV without a header, or JSON objects."""

from __future__ import annotations

import socket
from collections import deque
from contextlib import suppress
from threading import Condition, Thread
from typing import TYPE_CHECKING

import numpy as np

from nebuli.connectors.endpoints import Signal, Source
from nebuli.connectors.errors import FragmentError, InputError, RowInvalid
from nebuli.connectors.formats.csv_lines import NEVER_CLOSED, CsvLines, Quotes
from nebuli.connectors.formats.json_objects import Constant, JsonRows
from nebuli.connectors.formats.message_bytes import MessageBytes
from nebuli.dataflow import zset
from nebuli.dataflow.types import arrow_schema
from netchannel.transports.tcp import keep_alive
from topology.file_kinds import kind_of

if TYPE_CHECKING:
    from collections.abc import Callable

    import pyarrow as pa

    from topology import Schema
    from topology import TcpSource as Settings
    from topology.built_in import Timestamps

__all__ = ["TcpSource", "connect"]

CONNECT_S = 10.0
_BLOCK_BYTES = 1 << 18
_QUEUED_BLOCKS = 8
_LONGEST_LINE = 1 << 24


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
        self._name = f"TCP {settings.address}"
        self._schema = arrow_schema(columns)
        self._wake = wake
        self._socket: socket.socket | None = None
        self._thread: Thread | None = None
        self._blocks: deque[bytes | Signal | FragmentError] = deque()
        self._changed = Condition()
        self._closed = False
        self._lines = 0
        self._is_csv = settings.format == "CSV"
        self._text = (
            CsvLines(self._schema, settings.nulls, settings.timestamps)
            if self._is_csv
            else _JsonLines(self._schema, settings.timestamps)
        )

    def open(self) -> None:
        """Connect, and begin to receive."""
        try:
            self._socket = connect(self._settings.address)
        except OSError as error:
            raise InputError(f"{self._name} cannot be reached ({error}): start its server first") from error
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
        try:
            self._cut(self._socket)
            self._put(Signal.END)
        except OSError as error:
            self._put(InputError(f"{self._name}: the connection failed: {error}"))
        except InputError as error:
            self._put(error)
        except Exception as error:  # noqa: BLE001 - any error: the fragment waits for this thread
            self._put(FragmentError(f"{self._name}: {type(error).__name__}: {error}"))

    def _cut(self, connection: socket.socket) -> None:
        """Put what comes in blocks of whole lines, or whole rows of CSV, in which a line may end within quotes."""
        quotes = Quotes()
        begun: list[bytes] = []  # of one whose end has not come
        size = at = lines = 0  # of what has begun: how long it is, and the bytes and lines before it
        while data := connection.recv(_BLOCK_BYTES):
            end = quotes.feed(data).last_row_end(data) if self._is_csv else data.rfind(b"\n") + 1
            if end:
                block = b"".join([*begun, data[:end]])
                self._put(block)
                at, lines = at + len(block), lines + block.count(b"\n")
                begun, size = [], 0
            begun.append(data[end:])
            size += len(data) - end
            if size > _LONGEST_LINE:
                raise InputError(
                    f"{self._name}, line {lines + 1}: a line is longer than the limit of {_LONGEST_LINE:,} "
                    f"bytes{': is a quote in it never closed?' if self._is_csv and quotes.is_open else ''}"
                )
        rest = b"".join(begun)
        if self._is_csv and quotes.is_open:
            line = lines + rest.count(b"\n", 0, quotes.opened_at - at) + 1
            raise InputError(f"{self._name}, line {line}: {NEVER_CLOSED}")
        if rest:
            self._put(rest + b"\n")

    def _put(self, item: bytes | Signal | FragmentError) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._closed or len(self._blocks) < _QUEUED_BLOCKS)
            if not self._closed:
                self._blocks.append(item)
        self._wake()

    def _rows(self, block: bytes) -> pa.RecordBatch:
        try:
            rows = self._text.read(block, begins=self._lines == 0)
        except RowInvalid as error:
            if self._lines == 0 and (kind := kind_of(block)) is not None:
                raise InputError(f"{self._name} sends no lines of {self._settings.format}: {kind}") from error
            raise InputError(f"{self._name}, line {self._lines + error.row + 1}: {error}") from error
        self._lines += block.count(b"\n")
        return rows


class _JsonLines:
    """JSON objects, one in each line."""

    def __init__(self, schema: pa.Schema, timestamps: Timestamps) -> None:
        self._rows = JsonRows(schema, Constant, timestamps)

    def read(self, block: bytes, *, begins: bool) -> pa.RecordBatch:
        """The rows of a block, which ``begins`` the stream or not. Raises RowInvalid with the line in the block."""
        lines = MessageBytes.lines(block)
        at_begin = np.zeros(len(lines), np.bool_)
        at_begin[0] = begins
        return self._rows.read(lines, at_begin)[0]
