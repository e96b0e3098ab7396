"""Tables of SQLite as sources and sinks: their settings in a topology.

This is imported wherever a topology is read. The code that opens databases is imported by the workers that do.
"""

from typing import Literal

from nebuli.connectors import DataType, SinkConnector, SourceConnector


class SqliteSource(SourceConnector):
    """The rows of a table or view, which must not change while a query reads them."""

    implementation = "nebuli_sqlite.tables:TableSource"
    repeatable = True

    type: Literal["SQLite"]
    path: str
    table: str

    @property
    def reads(self) -> str:
        return f"table {self.table} of {self.path}"


class SqliteSink(SinkConnector):
    """A table that a query replaces, in one transaction: readers find the old one up to the end."""

    implementation = "nebuli_sqlite.tables:TableOutput"
    begins_anew = True

    type: Literal["SQLite"]
    path: str
    table: str

    @property
    def types(self) -> frozenset[DataType]:
        return frozenset(DataType) - {DataType.UINT64}  # SQLite's integers have signs

    @property
    def files(self) -> tuple[str, ...]:
        return (self.path,)  # one writer at a time has a database
