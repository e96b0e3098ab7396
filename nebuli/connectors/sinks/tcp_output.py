"""Lines over TCP, to a listener."""

from __future__ import annotations

import fcntl
import io
import json
import math
import os
import socket
import struct
import sys
import termios
import time
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv

from nebuli.connectors.endpoints import Output
from nebuli.connectors.errors import FragmentStopped, OutputError
from nebuli.connectors.sinks.writable_values import ValueUnwritable, check_texts, check_times
from nebuli.connectors.sources.tcp_source import connect

if TYPE_CHECKING:
    from topology import TcpSink

__all__ = ["TcpOutput"]

_LOOK_S = 0.2
"""How often a write that waits for the other side looks whether it is interrupted."""
_LOOK_AGAIN_S = 0.01
"""How often it is looked whether the other side has what was written."""
_NO_NUMBERS = {math.inf: "Infinity", -math.inf: "-Infinity"}
_END_S = 2.0
"""How long the other side is waited for, to end the connection too."""


class TcpOutput(Output):
    """Writes as fast as the other side reads. Ends the connection at a clean end, and resets it at any other.

    From the start it would be reset by any end, that of this process too; only `publish` changes that.
    """

    def __init__(self, settings: TcpSink) -> None:
        self._settings = settings
        self._socket: socket.socket | None = None
        self._interrupted = False
        self._written = 0

    def open(self, schema: pa.Schema) -> None:
        """Connect."""
        try:
            self._socket = connect(self._settings.address)
        except OSError as error:
            raise OutputError(
                f"TCP {self._settings.address} cannot be reached ({error}): start its server first"
            ) from error
        self._linger(resets=True)
        self._socket.settimeout(_LOOK_S)

    def write(self, batch: pa.RecordBatch) -> None:
        """Write a line for each row."""
        try:
            check_texts(batch)
            check_times(batch)
        except ValueUnwritable as error:
            raise error.at(f"TCP {self._settings.address}", self._written) from None
        is_csv = self._settings.format == "CSV"
        lines = memoryview(_csv(batch, self._settings.nulls[0]) if is_csv else _json(batch))
        self._written += batch.num_rows
        try:
            while lines:
                lines = lines[self._send(lines) :]
        except OSError as error:
            raise self._failed(error) from error

    def resume(self, position: str) -> None:
        """Continue, with the current listener."""

    def sync(self) -> str:
        """Wait until the other machine has all that was written; whether it is read there, this side cannot know."""
        while self._unacknowledged():
            if self._interrupted:
                raise FragmentStopped("stopped")
            time.sleep(_LOOK_AGAIN_S)
        return ""

    def _unacknowledged(self) -> int:
        """Return how many bytes the other machine has not acknowledged."""
        assert self._socket is not None
        try:
            error = self._socket.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
            if error:
                raise OSError(error, os.strerror(error))
            answer = fcntl.ioctl(self._socket, termios.TIOCOUTQ, b"\0" * 4)
        except (OSError, ValueError) as error:  # closed meanwhile it has no descriptor
            raise OutputError(f"TCP {self._settings.address}: the connection failed: {error}") from error
        return int.from_bytes(answer, sys.byteorder)

    def publish(self) -> None:
        """The last line is out; the other side sees the end.

        It may have sent something, too: closed with that unread, the connection would be reset, after the last lines.
        """
        assert self._socket is not None
        self._linger(resets=False)
        deadline = time.monotonic() + _END_S
        try:
            self._socket.shutdown(socket.SHUT_WR)
            while time.monotonic() < deadline and self._has_more():
                pass
        except OSError as error:
            raise self._failed(error) from error
        self._socket.close()

    def discard(self) -> None:
        """The other side sees that this is not the end."""
        if self._socket is not None:
            self._socket.close()

    def interrupt(self) -> None:
        """End a write that waits for the other side; called from another thread."""
        self._interrupted = True

    def _send(self, lines: memoryview) -> int:
        """How many bytes of them were taken."""
        assert self._socket is not None
        if self._interrupted:
            raise FragmentStopped("stopped")
        try:
            return self._socket.send(lines)
        except TimeoutError:
            return 0

    def _has_more(self) -> bool:
        """Pass over what the other side has sent; False once it has ended the connection."""
        assert self._socket is not None
        try:
            return bool(self._socket.recv(1 << 16))
        except TimeoutError:
            return not self._interrupted

    def _linger(self, *, resets: bool) -> None:
        assert self._socket is not None
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", resets, 0))

    def _failed(self, error: OSError) -> OutputError:
        return OutputError(f"TCP {self._settings.address}: the connection failed: {error}")


def _csv(batch: pa.RecordBatch, null: str) -> bytes:
    buffer = io.BytesIO()
    pa.csv.write_csv(batch, buffer, pa.csv.WriteOptions(include_header=False, null_string=null))
    return buffer.getvalue()


def _json(batch: pa.RecordBatch) -> bytes:
    columns = [_json_values(column) for column in batch.columns]
    rows = (dict(zip(batch.schema.names, row, strict=True)) for row in zip(*columns, strict=True))
    return "".join(f"{json.dumps(row, default=str, ensure_ascii=False)}\n" for row in rows).encode()


def _json_values(column: pa.Array) -> list[Any]:
    """The values of a column; JSON has no numbers NaN and Infinity, which are texts here as elsewhere."""
    values: list[Any] = column.to_pylist()
    if not pa.types.is_floating(column.type) or pc.all(pc.is_finite(column)).as_py() is not False:
        return values
    return [
        value if value is None or math.isfinite(value) else _NO_NUMBERS.get(value, "NaN") for value in values
    ]
