"""Lines over TCP, to somebody who listens."""

from __future__ import annotations

import io
import json
import socket
from contextlib import suppress
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.csv

from nebuli.worker.errors import FragmentStopped, OutputError
from nebuli.worker.tcp_source import connect

if TYPE_CHECKING:
    from topology import TcpSink

__all__ = ["TcpOutput"]


class TcpOutput:
    """Writes as fast as the other side reads. Ends the connection at a clean end, and resets it at any other."""

    directory = None

    def __init__(self, settings: TcpSink) -> None:
        self._settings = settings
        self._socket: socket.socket | None = None
        self._interrupted = False

    def open(self, schema: pa.Schema) -> None:
        """Connect."""
        try:
            self._socket = connect(self._settings.address)
        except OSError as error:
            raise OutputError(
                f"TCP {self._settings.address} cannot be reached ({error}): start what listens there first"
            ) from error
        self._socket.settimeout(None)

    def write(self, batch: pa.RecordBatch) -> None:
        """Write a line for each row."""
        assert self._socket is not None
        try:
            self._socket.sendall(_csv(batch) if self._settings.format == "CSV" else _json(batch))
        except OSError as error:
            if self._interrupted:
                raise FragmentStopped("stopped") from None
            raise OutputError(f"TCP {self._settings.address}: the connection failed: {error}") from error

    def publish(self) -> None:
        """The last line is out; the other side sees the end."""
        assert self._socket is not None
        self._socket.close()

    def discard(self) -> None:
        """The other side sees that this is not the end."""
        if self._socket is not None:
            with suppress(OSError):
                linger = b"\x01\x00\x00\x00\x00\x00\x00\x00"
                self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
            self._socket.close()

    def interrupt(self) -> None:
        """From another thread: a write that waits for the other side ends."""
        self._interrupted = True
        if self._socket is not None:
            with suppress(OSError):
                self._socket.shutdown(socket.SHUT_RDWR)


def _csv(batch: pa.RecordBatch) -> bytes:
    buffer = io.BytesIO()
    pa.csv.write_csv(batch, buffer, pa.csv.WriteOptions(include_header=False))
    return buffer.getvalue()


def _json(batch: pa.RecordBatch) -> bytes:
    lines = (json.dumps(row, default=str, ensure_ascii=False) for row in batch.to_pylist())
    return "".join(f"{line}\n" for line in lines).encode()
