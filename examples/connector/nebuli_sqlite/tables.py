"""Readers of tables, and writers that replace them."""

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa

from nebuli.connectors import FragmentStopped, InputError, Output, OutputError, Schema, Signal, Source
from nebuli.dataflow import arrow_schema, insertions
from nebuli_sqlite import SqliteSink, SqliteSource

BATCH_ROWS = 10_000
BUSY_S = 2.0
"""How long another one's transaction is waited for."""


class Database:
    """A connection that is used by one thread, and may be interrupted by another one."""

    interrupted = False
    connection: sqlite3.Connection | None = None

    def connect(self, path: str, mode: str) -> sqlite3.Connection:
        where = f"{Path(path).absolute().as_uri()}?mode={mode}"
        self.connection = sqlite3.connect(where, timeout=BUSY_S, isolation_level=None, uri=True)
        return self.connection

    def disconnect(self) -> None:
        if self.connection is not None:
            self.connection.close()

    def interrupt(self) -> None:
        self.interrupted = True
        if self.connection is not None:
            with suppress(sqlite3.ProgrammingError):  # it is closed
                self.connection.interrupt()

    @contextmanager
    def errors(self, what: str, kind: type[InputError | OutputError]) -> Iterator[None]:
        if self.interrupted:
            raise FragmentStopped("stopped")
        try:
            yield
        except sqlite3.Error as error:
            if self.interrupted:
                raise FragmentStopped("stopped") from error
            raise kind(f"{what}: {error}") from error


class TableSource(Database, Source):
    """Reads with a cursor, so that memory is that of a batch, however large the table is."""

    def __init__(self, settings: SqliteSource, columns: Schema, wake: Callable[[], None]) -> None:
        self.settings = settings
        self.schema = arrow_schema(columns)
        self.cursor: sqlite3.Cursor | None = None
        self.rows = 0

    def open(self) -> None:
        with self.errors(f"{self.settings.reads} cannot be read", InputError):
            connection = self.connect(self.settings.path, "ro")
            found = connection.execute("SELECT name FROM pragma_table_info(?)", [self.settings.table])
            names = [name for (name,) in found]
            if missing := [name for name in self.schema.names if name not in names]:
                has = f"its columns are {', '.join(names)}" if names else "there is no such table"
                raise InputError(f"{self.settings.reads} has no column {', '.join(missing)}: {has}")
            columns = ", ".join(map(quoted, self.schema.names))
            self.cursor = connection.execute(f"SELECT {columns} FROM {quoted(self.settings.table)}")

    def poll(self) -> pa.RecordBatch | Signal:
        assert self.cursor is not None
        with self.errors(f"{self.settings.reads} cannot be read", InputError):
            rows = self.cursor.fetchmany(BATCH_ROWS)
        if not rows:
            return Signal.END
        by_column = zip(*rows, strict=True)
        columns = [self.column(field, values) for field, values in zip(self.schema, by_column, strict=True)]
        self.rows += len(rows)
        return insertions(pa.RecordBatch.from_arrays(columns, schema=self.schema))

    def close(self, reason: str) -> None:
        if self.cursor is not None:
            self.cursor.close()  # or it would hold the file, though the connection is closed
            self.cursor = None
        self.disconnect()

    def column(self, field: pa.Field, values: tuple[Any, ...]) -> pa.Array:
        try:
            return from_sqlite(values, field.type)
        except UNFIT:
            for row, value in enumerate(values, start=self.rows + 1):
                try:
                    from_sqlite([value], field.type)
                except UNFIT:
                    where = f"{self.settings.reads}, row {row}, column {field.name}"
                    raise InputError(f"{where}: {value!r:.80} is not a valid {field.type}") from None
            raise


class TableOutput(Database, Output):
    """Writes in a transaction that begins with the query, and is committed at its clean end, or never."""

    def __init__(self, settings: SqliteSink) -> None:
        self.settings = settings
        self.failed = f"table {settings.table} of {settings.path} cannot be written"

    @property
    def directory(self) -> Path:
        return Path(self.settings.path).parent

    def open(self, schema: pa.Schema) -> None:
        table = quoted(self.settings.table)
        self.insert = f"INSERT INTO {table} VALUES ({', '.join('?' * len(schema))})"
        with self.errors(self.failed, OutputError):
            connection = self.connect(self.settings.path, "rwc")
            connection.execute("BEGIN IMMEDIATE")  # no other process writes from here on
            connection.execute(f"DROP TABLE IF EXISTS {table}")
            connection.execute(f"CREATE TABLE {table} ({', '.join(map(quoted, schema.names))})")

    def write(self, batch: pa.RecordBatch) -> None:
        assert self.connection is not None
        rows = zip(*map(to_sqlite, batch.columns), strict=True)
        with self.errors(self.failed, OutputError):
            self.connection.executemany(self.insert, rows)

    def publish(self) -> None:
        assert self.connection is not None
        with self.errors(self.failed, OutputError):
            self.connection.execute("COMMIT")
        self.disconnect()

    def discard(self) -> None:
        self.disconnect()  # and what was not committed is not there


def quoted(name: str) -> str:
    doubled = name.replace('"', '""')
    return f'"{doubled}"'


def to_sqlite(column: pa.Array) -> list[Any]:
    """Dates and timestamps become text, in the form that SQLite's own functions read."""
    values = column.to_pylist()
    is_text = pa.types.is_date(column.type) or pa.types.is_timestamp(column.type)
    return [None if value is None else str(value) for value in values] if is_text else values


UNFIT = (ValueError, TypeError, pa.ArrowException)
"""Errors for a value that does not match the type of the logical source: SQLite itself takes any."""


def from_sqlite(values: Any, type_: pa.DataType) -> pa.Array:
    if pa.types.is_date(type_):
        values = [None if value is None else date.fromisoformat(value) for value in values]
    elif pa.types.is_timestamp(type_):
        values = [None if value is None else instant(value) for value in values]
    elif pa.types.is_boolean(type_):
        values = [{0: False, 1: True}.get(value, value) for value in values]
    return pa.array(values, type_)


def instant(text: str) -> datetime:
    """Without a zone it is UTC."""
    found = datetime.fromisoformat(text)
    return found if found.tzinfo else found.replace(tzinfo=UTC)
