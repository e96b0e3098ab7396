"""The connectors that come with this package: files, lines over TCP, the terminal, rows that are made up."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from topology.base import Address, FilePath
from topology.connectors import Connectors, SinkConnector, SourceConnector
from topology.schema import DataType


class CsvSource(SourceConnector):
    """A CSV file with a header, plain or the only file of a zip archive; a field in ``nulls`` is null.

    A relative path starts at the working directory of the node's worker.
    """

    implementation = "nebuli.connectors.sources.csv_source:CsvSource"
    repeatable = True
    columns_by_name = True

    type: Literal["CSV"]
    path: FilePath
    nulls: tuple[str, ...] = ("",)

    @property
    def reads(self) -> str:
        return self.path


class ParquetSource(SourceConnector):
    """A Parquet file; a relative path starts at the working directory of the node's worker."""

    implementation = "nebuli.connectors.sources.parquet_source:ParquetSource"
    repeatable = True
    columns_by_name = True

    type: Literal["Parquet"]
    path: FilePath

    @property
    def reads(self) -> str:
        return self.path


LineFormat = Literal["CSV", "JSON"]
"""``CSV``: the columns in the schema's order, without a header. ``JSON``: an object with the columns as its keys."""


class TcpSource(SourceConnector):
    """Lines from whoever listens at ``address``, until that side ends the connection.

    A field in ``nulls`` is null, where lines are CSV.
    """

    implementation = "nebuli.connectors.sources.tcp_source:TcpSource"

    type: Literal["TCP"]
    address: Address
    format: LineFormat = "CSV"
    nulls: tuple[str, ...] = ("",)

    @property
    def reads(self) -> str:
        return f"TCP {self.address}"

    @property
    def ends(self) -> Literal["perhaps"]:
        return "perhaps"


class GeneratorSource(SourceConnector):
    """Rows that are made up, the same for the same ``seed``: ``count`` of them, or without an end.

    The first column of whole numbers counts from 0, and the first of timestamps goes on by a second; all else is
    drawn. ``rows_per_s``: no faster than that.
    """

    implementation = "nebuli.connectors.sources.generator_source:GeneratorSource"
    repeatable = True

    type: Literal["Generator"]
    count: Annotated[int, Field(strict=True, ge=0)] | None = None
    rows_per_s: Annotated[float, Field(gt=0)] | None = None
    seed: int = 0

    @property
    def reads(self) -> str:
        return "a generator"

    @property
    def ends(self) -> Literal["always", "never"]:
        return "never" if self.count is None else "always"


class _FileSink(SinkConnector):
    begins_anew = True

    path: FilePath

    @property
    def files(self) -> tuple[str, ...]:
        return (self.path,)


class CsvSink(_FileSink):
    """Writes a CSV file; a relative path starts at the working directory of the node's worker."""

    implementation = "nebuli.connectors.sinks.outputs:csv_file"

    type: Literal["CSV"]


class ParquetSink(_FileSink):
    """Writes a Parquet file; a relative path starts at the working directory of the node's worker."""

    implementation = "nebuli.connectors.sinks.outputs:parquet_file"

    type: Literal["Parquet"]


class PrintSink(SinkConnector):
    """Prints rows on the worker's standard output."""

    implementation = "nebuli.connectors.sinks.outputs:Terminal"

    type: Literal["Print"]


class TcpSink(SinkConnector):
    """Lines to whoever listens at ``address``."""

    implementation = "nebuli.connectors.sinks.tcp_output:TcpOutput"

    type: Literal["TCP"]
    address: Address
    format: LineFormat = "CSV"

    @property
    def types(self) -> frozenset[DataType]:
        return super().types - ({DataType.BINARY} if self.format == "JSON" else set())


class NullSink(SinkConnector):
    """Drops all rows; the worker counts them."""

    implementation = "nebuli.connectors.sinks.outputs:Nothing"
    begins_anew = True

    type: Literal["Null"]


SOURCES = Connectors("source", SourceConnector, (CsvSource, ParquetSource, TcpSource, GeneratorSource))
SINKS = Connectors("sink", SinkConnector, (CsvSink, ParquetSink, PrintSink, TcpSink, NullSink))
