import sqlite3
from datetime import UTC, datetime

import pyarrow as pa
import pytest
from nebuli_sqlite.tables import from_sqlite, quoted

from nebuli.connectors.testing import SinkConformance, SourceConformance

AT = datetime(2024, 1, 31, 10, tzinfo=UTC)


class TestSource(SourceConformance):
    @pytest.fixture
    def path(self, tmp_path):
        with sqlite3.connect(tmp_path / "shop.db") as database:
            database.execute("CREATE TABLE sales (shop TEXT, amount REAL, at TEXT, paid INT)")
            row = ("north", 12.5, "2024-01-31 10:00", 1)
            database.executemany("INSERT INTO sales VALUES (?, ?, ?, ?)", [row] * 20_000 + [(None,) * 4])
            database.execute("CREATE TABLE bad AS SELECT shop, 'many' AS amount, at, paid FROM sales")
        database.close()
        return str(tmp_path / "shop.db")

    @pytest.fixture
    def settings(self, path):
        return {"type": "SQLite", "path": path, "table": "sales"}

    @pytest.fixture
    def columns(self):
        return {"paid": "bool", "shop": "string", "amount": "float64", "at": "timestamp"}

    @pytest.fixture
    def rows(self):
        row = {"shop": "north", "amount": 12.5, "at": AT, "paid": True}
        return [row] * 20_000 + [dict.fromkeys(row)]

    @pytest.fixture
    def unreadable(self, path):
        return [
            ({"type": "SQLite", "path": f"{path}.absent", "table": "sales"}, "unable to open"),
            ({"type": "SQLite", "path": path, "table": "sails"}, "there is no such table"),
            (
                {"type": "SQLite", "path": path, "table": "bad"},
                "row 1, column amount: 'many' is not a valid double",
            ),
        ]


class TestSink(SinkConformance):
    whole_modes = ("final", "changes", "append")

    @pytest.fixture
    def settings(self, tmp_path):
        return {"type": "SQLite", "path": str(tmp_path / "out.db"), "table": "totals"}

    @pytest.fixture
    def published(self, settings):
        def read(schema):
            database = sqlite3.connect(settings["path"])
            try:
                if not database.execute("SELECT 1 FROM sqlite_schema WHERE name = 'totals'").fetchall():
                    return None
                columns = ", ".join(map(quoted, schema.names))
                rows = database.execute(f"SELECT {columns} FROM totals").fetchall()
            finally:
                database.close()
            values = zip(*rows, strict=True) if rows else [()] * len(schema)
            arrays = [from_sqlite(each, field.type) for each, field in zip(values, schema, strict=True)]
            return pa.Table.from_arrays(arrays, schema=schema).to_pylist()

        return read

    @pytest.fixture
    def unwritable(self, tmp_path):
        (tmp_path / "text").write_text("no database, and too long for the beginning of one" * 10, "utf-8")
        return [
            ({"type": "SQLite", "path": f"{tmp_path}/absent/out.db", "table": "t"}, "unable to open"),
            ({"type": "SQLite", "path": str(tmp_path / "text"), "table": "t"}, "not a database"),
        ]
