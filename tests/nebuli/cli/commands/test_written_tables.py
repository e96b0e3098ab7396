"""``nebuli run``: what a sink writes in CSV, Parquet, or JSON over TCP, a source reads back in another run."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from threading import Thread
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from hypothesis import Phase, given, seed, settings

from tests.nebuli.connectors.test_round_trip import shown, tables
from tests.support.commands import nebuli
from tests.support.ports import free_addresses
from topology import Column

pytestmark = [pytest.mark.processes, pytest.mark.long, pytest.mark.timeout(300)]

TABLES = 10
"""So many are written and read back in each of three formats: 30 round trips."""
PARQUET = [{"type": "Parquet", "path": f"{name}.parquet"} for name in ("in", "back")]


class Peer:
    """Listens for one connection after the other: takes what a sink writes, and gives it to a source."""

    def __init__(self) -> None:
        self._written = b""

    def __enter__(self) -> Peer:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._listener.settimeout(60)
        self.address = "{}:{}".format(*self._listener.getsockname())
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.close()

    @contextmanager
    def meanwhile(self, work: Callable[[socket.socket], None]) -> Iterator[None]:
        def connected() -> None:
            with self._listener.accept()[0] as connection:
                connection.settimeout(60)
                work(connection)

        thread = Thread(target=connected)
        thread.start()
        try:
            yield
        finally:
            thread.join()

    def take(self, connection: socket.socket) -> None:
        self._written = b"".join(iter(lambda: connection.recv(1 << 16), b""))

    def give(self, connection: socket.socket) -> None:
        connection.sendall(self._written)


def copy(folder: Path, columns: tuple[Column, ...], source: dict[str, Any], sink: dict[str, Any]) -> None:
    """Run a query that copies a source into a sink."""
    schema = [column.model_dump(mode="json") for column in columns]
    node = {
        "address": free_addresses(1)[0],
        "physical": [{"logical": "rows", **source}],
        "sinks": [{"name": "out", **sink}],
    }
    topology = {"logical": [{"name": "rows", "schema": schema}], "nodes": [node]}
    (folder / "topology.yaml").write_text(yaml.safe_dump(topology), "utf-8")
    operators = [
        {"id": "rows", "type": "source", "logical": "rows"},
        {"id": "out", "type": "sink", "input": "rows", "sink": "out"},
    ]
    (folder / "query.json").write_text(json.dumps({"operators": operators}), "utf-8")
    ended = nebuli("run", folder / "topology.yaml", folder / "query.json", directory=folder)
    assert ended.exit_code == 0, ended.stderr


@pytest.mark.parametrize("kind", ["CSV", "TCP JSON", "Parquet"])
def test_what_a_sink_of_the_command_writes_its_source_reads_back(
    kind: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Tables of odd texts, the ends of all types, NaN and nulls, the same in each run."""

    @seed(0)
    @settings(max_examples=TABLES, deadline=None, database=None, phases=[Phase.generate])
    @given(drawn=tables(kind))
    def check(drawn: tuple[tuple[Column, ...], list[pa.RecordBatch]]) -> None:
        columns, batches = drawn
        folder = tmp_path_factory.mktemp("table")
        whole = pa.Table.from_batches(batches)
        pq.write_table(whole, folder / "in.parquet")
        with Peer() as peer:
            is_tcp = kind == "TCP JSON"
            tcp = {"type": "TCP", "format": "JSON", "address": peer.address}
            written = tcp if is_tcp else {"type": kind, "path": "written"}
            with peer.meanwhile(peer.take) if is_tcp else nullcontext():
                copy(folder, columns, PARQUET[0], written)
            with peer.meanwhile(peer.give) if is_tcp else nullcontext():
                copy(folder, columns, written, PARQUET[1])
        found = pq.read_table(folder / "back.parquet")
        assert sorted(shown(found)) == sorted(shown(whole))
        assert found.schema.names == whole.schema.names

    check()
