"""Our own connectors do what everybody's must: the kit that is shipped, over files and sockets."""

from __future__ import annotations

import io
import json
import socket
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import UTC, date, datetime
from pathlib import Path
from threading import Event, Thread
from typing import Any

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest

from nebuli.connectors.testing import SinkConformance, SourceConformance
from tests.support.keeper import Keeper

Rows = list[dict[str, Any]]

COLUMNS = {"n": "int64", "word": "string", "at": "timestamp"}
AT = datetime(2024, 1, 31, 10, tzinfo=UTC)
ROWS = [{"n": number, "word": f"word {number}", "at": AT} for number in range(20_000)]
ROWS[1] = {"n": 1, "word": None, "at": None}
TABLE = pa.Table.from_pylist(ROWS)


def csv_of(table: pa.Table, **options: Any) -> bytes:
    buffer = io.BytesIO()
    pa.csv.write_csv(table, buffer, pa.csv.WriteOptions(**options))
    return buffer.getvalue()


def read_csv(data: bytes, schema: pa.Schema, **options: Any) -> Rows:
    table = pa.csv.read_csv(
        io.BytesIO(data),
        read_options=pa.csv.ReadOptions(**options),
        parse_options=pa.csv.ParseOptions(newlines_in_values=True),
        convert_options=pa.csv.ConvertOptions(
            column_types=schema, null_values=[""], strings_can_be_null=True, quoted_strings_can_be_null=False
        ),
    )
    return table.to_pylist()


class _Files:
    @pytest.fixture
    def columns(self) -> dict[str, str]:
        return COLUMNS

    @pytest.fixture
    def rows(self) -> Rows:
        return ROWS


class TestCsvSource(_Files, SourceConformance):
    @pytest.fixture
    def settings(self, tmp_path: Path) -> dict[str, Any]:
        (tmp_path / "in.csv").write_bytes(csv_of(TABLE))
        return {"type": "CSV", "path": str(tmp_path / "in.csv")}

    @pytest.fixture
    def unreadable(self, tmp_path: Path) -> list[tuple[dict[str, Any], str]]:
        (tmp_path / "bad.csv").write_text("n,word,at\n1,a,\nx,b,\n", "utf-8")
        (tmp_path / "empty.csv").touch()
        return [
            ({"type": "CSV", "path": str(tmp_path / name)}, said)
            for name, said in (
                ("absent", "absent"),
                ("bad.csv", "line 3"),
                ("empty.csv", "empty"),
                (".", "cannot be read"),
            )
        ]


class TestParquetSource(_Files, SourceConformance):
    @pytest.fixture
    def settings(self, tmp_path: Path) -> dict[str, Any]:
        pq.write_table(TABLE, tmp_path / "in.parquet")
        return {"type": "Parquet", "path": str(tmp_path / "in.parquet")}

    @pytest.fixture
    def unreadable(self, tmp_path: Path) -> list[tuple[dict[str, Any], str]]:
        (tmp_path / "text").write_text("no Parquet", "utf-8")
        return [({"type": "Parquet", "path": str(tmp_path / name)}, name) for name in ("absent", "text")]


class TestGeneratorSource(SourceConformance):
    @pytest.fixture
    def settings(self) -> dict[str, Any]:
        return {"type": "Generator", "count": 20_000, "seed": 7}

    @pytest.fixture
    def columns(self) -> dict[str, str]:
        return COLUMNS

    @pytest.fixture
    def rows(self) -> None:
        return None

    @pytest.fixture
    def waiting(self) -> tuple[dict[str, Any], Callable[[], None]]:
        return {"type": "Generator", "rows_per_s": 2.0}, lambda: None


class TestGeneratorSourceWithoutAnEnd(TestGeneratorSource):
    @pytest.fixture
    def settings(self) -> dict[str, Any]:
        return {"type": "Generator"}


class Listener:
    """Takes connections, and has what the last one brought, if that has ended; or gives each ``data``, or nothing."""

    def __init__(self, *, data: bytes | None = None, reads: bool = True) -> None:
        self.data = data
        self.reads = reads
        self._received: bytes | None = None
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._socket.getsockname()[1]}"
        self._held: list[socket.socket] = []
        self._serving: list[Thread] = []
        self._probes: dict[int, Event] = {}
        self._thread = Thread(target=self._accept, name="listener", daemon=True)
        self._thread.start()

    def supply(self) -> None:
        """A row, for whoever waits for it."""
        self._take_all()
        self._held[-1].sendall(b'1,"a",\n')

    def received(self) -> bytes | None:
        """Of the last connection."""
        self._take_all()
        for thread in self._serving:
            thread.join(0.2)
        return None if any(thread.is_alive() for thread in self._serving) else self._received

    def _take_all(self) -> None:
        """Wait for all connections that were made before; a probe of our own is behind them."""
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            here = self._probes[probe.getsockname()[1]] = Event()
            probe.connect(self._socket.getsockname())
            assert here.wait(60)

    def close(self) -> None:
        self._socket.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        for each in (self._socket, *self._held):
            each.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                connection, (_, port) = self._socket.accept()
                if port in self._probes:
                    connection.close()
                    self._probes[port].set()
                elif self.data is not None or self.reads:
                    self._received = None
                    self._serving = [Thread(target=self._serve, args=(connection,), daemon=True)]
                    self._serving[0].start()
                else:
                    self._held.append(connection)

    def _serve(self, connection: socket.socket) -> None:
        with connection, suppress(OSError):
            if self.data is not None:
                connection.sendall(self.data)
                return
            received = bytearray()
            while data := connection.recv(1 << 20):
                received += data
            self._received = bytes(received)


@pytest.fixture
def listener() -> Iterator[Listener]:
    listener = Listener()
    yield listener
    listener.close()


@pytest.fixture
def silent() -> Iterator[Listener]:
    listener = Listener(reads=False)
    yield listener
    listener.close()


class TestTcpSource(_Files, SourceConformance):
    form = "CSV"
    data = csv_of(TABLE, include_header=False)
    bad = b"1,a,\nx,b,\n"

    @pytest.fixture
    def settings(self, listener: Listener) -> dict[str, Any]:
        listener.data = self.data
        return {"type": "TCP", "address": listener.address, "format": self.form}

    @pytest.fixture
    def waiting(self, silent: Listener) -> tuple[dict[str, Any], Callable[[], None]]:
        return {"type": "TCP", "address": silent.address}, silent.supply

    @pytest.fixture
    def unreadable(self, listener: Listener) -> list[tuple[dict[str, Any], str]]:
        return [({"type": "TCP", "address": "127.0.0.1:1"}, "127.0.0.1:1 cannot be reached")]


class TestTcpSourceOfJson(TestTcpSource):
    form = "JSON"
    data = "".join(
        f'{{"n": {row["n"]}, "word": {"null" if row["word"] is None else chr(34) + row["word"] + chr(34)}'
        + ("" if row["at"] is None else f', "at": "{row["at"].isoformat()}"')
        + "}\n"
        for row in ROWS
    ).encode()


class TestChannelSource(_Files, SourceConformance):
    consumer: str | None = None

    @pytest.fixture
    def settings(self) -> Iterator[dict[str, Any]]:
        with Keeper() as keeper:
            keeper.send(*TABLE.to_batches(max_chunksize=700))
            keeper.end()
            yield self.source(keeper.address)

    def source(self, address: str, **keys: Any) -> dict[str, Any]:
        return {"type": "Channel", "address": address, "channel": "c", "consumer": self.consumer, **keys}

    @pytest.fixture
    def waiting(self) -> Iterator[tuple[dict[str, Any], Callable[[], None]]]:
        with Keeper() as keeper:
            yield self.source(keeper.address), lambda: keeper.send(TABLE.slice(0, 1).to_batches()[0])

    @pytest.fixture
    def unreadable(self, tmp_path: Path) -> Iterator[list[tuple[dict[str, Any], str]]]:
        with Keeper() as other, Keeper() as failed:
            other.send(pa.record_batch({"n": [1]}))
            failed.send()
            failed.abort("the sensor burns")
            yield [
                (self.source(other.address), "no column word"),
                (self.source(failed.address), "the sensor burns"),
                (self.source("127.0.0.1:1", fault={"retry": 0.1}), "127.0.0.1:1"),
                (self.source("127.0.0.1:1", secret={"file": str(tmp_path / "absent")}), "absent"),
            ]


class TestChannelSourceOfAConsumer(TestChannelSource):
    consumer = "job"


class TestCsvSink(SinkConformance):
    @pytest.fixture
    def path(self, tmp_path: Path) -> Path:
        return tmp_path / "out" / "result.csv"

    @pytest.fixture
    def settings(self, path: Path) -> dict[str, Any]:
        return {"type": "CSV", "path": str(path)}

    @pytest.fixture
    def published(self, path: Path) -> Callable[[pa.Schema], Rows | None]:
        return lambda schema: read_csv(path.read_bytes(), schema) if path.exists() else None

    @pytest.fixture
    def unwritable(self, tmp_path: Path) -> list[tuple[dict[str, Any], str]]:
        (tmp_path / "file").touch()
        return [
            ({"type": "CSV", "path": path}, said)
            for path, said in (
                (str(tmp_path), "it is a directory"),
                (str(tmp_path / "file" / "x.csv"), "is not a directory"),
                ("/dev/full", "/dev/full"),
            )
        ]


class TestParquetSink(SinkConformance):
    whole_modes = ("final", "changes", "append")

    @pytest.fixture
    def settings(self, tmp_path: Path) -> dict[str, Any]:
        return {"type": "Parquet", "path": str(tmp_path / "result.parquet")}

    @pytest.fixture
    def published(self, tmp_path: Path) -> Callable[[pa.Schema], Rows | None]:
        def read(schema: pa.Schema) -> Rows | None:
            path = tmp_path / "result.parquet"
            return pq.read_table(path).to_pylist() if path.exists() else None

        return read


class TestTcpSink(SinkConformance):
    form = "CSV"

    @pytest.fixture
    def settings(self, listener: Listener) -> dict[str, Any]:
        return {"type": "TCP", "address": listener.address, "format": self.form}

    @pytest.fixture
    def published(self, listener: Listener) -> Callable[[pa.Schema], Rows | None]:
        def read(schema: pa.Schema) -> Rows | None:
            data = listener.received()
            return None if data is None else self.parsed(data, schema)

        return read

    def parsed(self, data: bytes, schema: pa.Schema) -> Rows:
        return read_csv(data, schema, column_names=schema.names) if data else []

    @pytest.fixture
    def stalled(self, silent: Listener) -> dict[str, Any]:
        return {"type": "TCP", "address": silent.address, "format": self.form}

    @pytest.fixture
    def unwritable(self) -> list[tuple[dict[str, Any], str]]:
        return [({"type": "TCP", "address": "127.0.0.1:1"}, "127.0.0.1:1 cannot be reached")]


class TestTcpSinkOfJson(TestTcpSink):
    form = "JSON"

    def parsed(self, data: bytes, schema: pa.Schema) -> Rows:
        read_as = {pa.date32(): date.fromisoformat, pa.timestamp("us", "UTC"): datetime.fromisoformat}
        given = {field.name: read_as.get(field.type, lambda value: value) for field in schema}
        rows = map(json.loads, data.splitlines())
        return [
            {name: None if value is None else given[name](value) for name, value in row.items()}
            for row in rows
        ]


class TestPrintSink(SinkConformance):
    @pytest.fixture
    def settings(self) -> dict[str, Any]:
        return {"type": "Print"}

    @pytest.fixture
    def published(self) -> None:
        return None


class TestNullSink(TestPrintSink):
    @pytest.fixture
    def settings(self) -> dict[str, Any]:
        return {"type": "Null"}
