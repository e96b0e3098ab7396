"""Where rows are kept: a collection, and its peers. All wait for what they do, as `nebuli.blocking` does.

Each is opened by its folder, in any number of processes at once, and is a context. ``taken`` makes of a batch what
``append`` takes, before it is measured.
"""

from __future__ import annotations

import contextlib
import sqlite3
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, Self

import pyarrow as pa
import pyarrow.parquet as pq

from nebuli import blocking

from .data import SCHEMA

NAME = "rows"
POLLED_S = 0.001
WAITS_S = 60.0
"""For other writers, at most."""
AT_A_TIME = 100_000
ALL = "SELECT key, value, name FROM rows"

Pairs = Sequence[tuple[int, int]]
"""Keys and values."""


class Table(Protocol):
    """What is measured of all."""

    def __enter__(self) -> Self: ...

    def __exit__(self, *_: object) -> None: ...

    @classmethod
    def create(cls, folder: Path) -> None:
        """Make it, empty."""

    def taken(self, rows: pa.RecordBatch) -> Any:
        """The rows as ``append`` takes them."""

    def append(self, taken: Any) -> None:
        """Add rows, all at once."""

    def read(self) -> int:
        """Read all rows; how many there are."""


class Followed(Table, Protocol):
    """One that is followed while others append."""

    def follow(self) -> Iterator[Pairs]:
        """What is appended from now on, without an end; first nothing, as soon as nothing is missed any more."""


class CollectionTable(contextlib.ExitStack):
    """A collection that forgets its history at once."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self._collections = self.enter_context(blocking.Collections(folder))

    @classmethod
    def create(cls, folder: Path) -> None:
        """As of all."""
        with blocking.Collections(folder) as collections:
            collections.create(NAME, SCHEMA, keep=0)

    def taken(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """As of all."""
        return rows

    def append(self, taken: pa.RecordBatch) -> None:
        """As of all."""
        self._collections.insert(NAME, taken)

    def read(self) -> int:
        """Into an Arrow table."""
        return self._collections.snapshot(NAME).num_rows

    def keep_house(self) -> None:
        """Forget all history."""
        self._collections.keep_house([NAME])

    def follow(self) -> Iterator[Pairs]:
        """As of all."""
        spans = self._collections.subscribe(NAME, self._collections.latest(NAME))
        with contextlib.closing(spans):
            yield []
            for span in spans:
                for _, rows in span.updates:
                    yield _pairs(rows)


class SqliteTable(contextlib.ExitStack):
    """A database in WAL mode; ``synchronous`` says what is synced when a transaction returns."""

    synchronous = "FULL"

    def __init__(self, folder: Path) -> None:
        super().__init__()
        connection = sqlite3.connect(folder / "rows.db", timeout=WAITS_S, isolation_level=None)
        self._db = self.enter_context(contextlib.closing(connection))
        self._db.execute(f"PRAGMA synchronous = {self.synchronous}")

    @classmethod
    def create(cls, folder: Path) -> None:
        """As of all."""
        with cls(folder) as table:
            table._db.execute("PRAGMA journal_mode = WAL")
            table._db.execute("CREATE TABLE rows (key INTEGER, value INTEGER, name TEXT)")

    def taken(self, rows: pa.RecordBatch) -> list[tuple[Any, ...]]:
        """Tuples."""
        return list(zip(*(column.to_pylist() for column in rows.columns), strict=True))

    def append(self, taken: list[tuple[Any, ...]]) -> None:
        """A transaction."""
        self._db.execute("BEGIN IMMEDIATE")
        self._db.executemany("INSERT INTO rows VALUES (?, ?, ?)", taken)
        self._db.execute("COMMIT")

    def read(self) -> int:
        """As tuples, none of which is kept."""
        cursor, rows = self._db.execute(ALL), 0
        while some := cursor.fetchmany(AT_A_TIME):
            rows += len(some)
        return rows

    def follow(self) -> Iterator[Pairs]:
        """Ask each millisecond for the rows behind the last one."""
        (last,) = self._db.execute("SELECT coalesce(max(rowid), 0) FROM rows").fetchone()
        yield []
        while True:
            found = self._db.execute(
                "SELECT rowid, key, value FROM rows WHERE rowid > ? ORDER BY rowid", (last,)
            ).fetchall()
            if found:
                last = found[-1][0]
                yield [(key, value) for _, key, value in found]
            time.sleep(POLLED_S)


class LaxSqliteTable(SqliteTable):
    """One that a power cut may take transactions from that have returned."""

    synchronous = "NORMAL"


class DeltaTable(contextlib.ExitStack):
    """A Delta Lake table, by the package deltalake."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        import deltalake

        self._table = deltalake.DeltaTable(folder)

    @classmethod
    def create(cls, folder: Path) -> None:
        """As of all."""
        import deltalake

        deltalake.DeltaTable.create(folder, SCHEMA)

    def taken(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """As of all."""
        return rows

    def append(self, taken: pa.RecordBatch) -> None:
        """A version, with a number that other writers leave it."""
        import deltalake

        often = deltalake.CommitProperties(max_commit_retries=1_000)
        deltalake.write_deltalake(self._table, taken, mode="append", commit_properties=often)

    def read(self) -> int:
        """Into an Arrow table."""
        self._table.update_incremental()
        return self._table.to_pyarrow_table().num_rows

    def follow(self) -> Iterator[Pairs]:
        """Ask each millisecond for a newer version, and read the files that it has more."""
        known, version = set(self._table.file_uris()), self._table.version()
        yield []
        while True:
            self._table.update_incremental()
            if self._table.version() != version:
                version = self._table.version()
                now = set(self._table.file_uris())
                yield sorted(pair for file in now - known for pair in _pairs(pq.read_table(file)))
                known = now
            time.sleep(POLLED_S)


class ParquetFile(contextlib.ExitStack):
    """A single file, written once."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self._path = folder / "rows.parquet"
        self._writer: pq.ParquetWriter | None = None

    @classmethod
    def create(cls, _: Path) -> None:
        """The file is made when it is written."""

    def taken(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """As of all."""
        return rows

    def append(self, taken: pa.RecordBatch) -> None:
        """A row group; the file is one once it is closed."""
        if self._writer is None:
            self._writer = self.enter_context(pq.ParquetWriter(self._path, SCHEMA))
        self._writer.write_batch(taken)

    def read(self) -> int:
        """Into an Arrow table."""
        return pq.read_table(self._path).num_rows


FOLLOWED: Mapping[str, type[Followed]] = {
    "collection": CollectionTable,
    "SQLite, FULL": SqliteTable,
    "SQLite, NORMAL": LaxSqliteTable,
    "Delta Lake": DeltaTable,
}
TABLES: Mapping[str, type[Table]] = {**FOLLOWED, "Parquet": ParquetFile}
"""By the option ``table`` of a contestant."""


def _pairs(rows: pa.RecordBatch | pa.Table) -> Pairs:
    return list(zip(rows.column("key").to_pylist(), rows.column("value").to_pylist(), strict=True))
