"""The connectors that come with this package: files, channels, lines over TCP, the terminal, rows that are made up."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, SerializerFunctionWrapHandler, model_serializer, model_validator

from topology.access import Secret, TlsFiles
from topology.base import Address, FilePath, Text
from topology.connectors import Connectors, SinkConnector, SinkMode, SourceConnector
from topology.policies import FaultSettings
from topology.schema import DataType

Timestamps = Literal["fail", "truncate"]
"""The handling of timestamps with digits below the microsecond, the precision of columns: refuse them, or cut the
digits off."""


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
    timestamps: Timestamps = "fail"

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
    timestamps: Timestamps = "fail"

    @property
    def reads(self) -> str:
        return self.path


LineFormat = Literal["CSV", "JSON"]
"""``CSV``: the columns in the schema's order, without a header. ``JSON``: an object with the columns as its keys."""


class TcpSource(SourceConnector):
    """Lines from the server at ``address``, until that side ends the connection.

    A field in ``nulls`` is null, where lines are CSV.
    """

    implementation = "nebuli.connectors.sources.tcp_source:TcpSource"

    type: Literal["TCP"]
    address: Address
    format: LineFormat = "CSV"
    nulls: tuple[str, ...] = ("",)
    timestamps: Timestamps = "fail"

    @property
    def reads(self) -> str:
        return f"TCP {self.address}"

    @property
    def ends(self) -> Literal["perhaps"]:
        return "perhaps"


class GeneratorSource(SourceConnector):
    """Generated rows, the same for the same ``seed``: ``count`` of them, or endless.

    The first column of whole numbers counts from 0, and the first of timestamps advances by a second; all else is
    random. ``rows_per_s``: no faster than that.
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

    @property
    def grows(self) -> bool:
        return False

    @property
    def unpaced(self) -> GeneratorSource:
        return self.model_copy(update={"rows_per_s": None})


_LONGEST_NAME = 255


def _check_channel(channel: str) -> str:
    if not channel.isprintable() or not 1 <= len(channel.encode()) <= _LONGEST_NAME:
        raise ValueError(f"expected 1 to {_LONGEST_NAME} printable bytes as channel, got {channel[:60]!r}")
    return channel


def _check_name(name: str) -> str:
    if not name.isprintable() or not 1 <= len(name) <= _LONGEST_NAME:
        raise ValueError(f"expected a name of 1 to {_LONGEST_NAME} printable characters, got {name[:60]!r}")
    return name


_Name = Annotated[str, AfterValidator(_check_name)]


class ChannelSource(SourceConnector):
    """A channel that the receiver or sender at ``address`` retains, up to the end of its stream.

    It begins after the messages that ``consumer`` has acknowledged; without that name, at the oldest kept message, or
    after the last one. Messages are not freed before they are acknowledged under the name, so only with a name are the
    same rows there when it is read again. ``holder`` owns the name, and has it at once when it comes back. Files of
    ``secret`` and ``tls`` are relative to the working directory of the node's worker; ``fault`` is how long the server
    may be absent.
    """

    implementation = "nebuli.connectors.sources.channel_source:KeptChannelSource"
    repeatable = True
    columns_by_name = True

    type: Literal["Channel"]
    address: Address
    channel: Annotated[str, AfterValidator(_check_channel)]
    consumer: _Name | None = None
    holder: _Name | None = None
    begin: Annotated[Literal["beginning", "latest"], Field(alias="from")] = "beginning"
    secret: Secret | None = None
    tls: TlsFiles | None = None
    fault: FaultSettings = FaultSettings()
    timestamps: Timestamps = "fail"

    @model_validator(mode="after")
    def _goes_together(self) -> ChannelSource:
        if self.consumer is not None and self.begin == "latest":
            raise ValueError(
                f"'from: latest' contradicts consumer {self.consumer!r}, which begins after the messages that it "
                f"acknowledged; give 'from' or 'consumer', not both"
            )
        if self.holder is not None and self.consumer is None:
            raise ValueError(
                f"holder {self.holder!r} reserves a consumer's name, but no consumer is given; add the key 'consumer'"
            )
        return self

    @property
    def reads(self) -> str:
        return f"channel {self.channel} at {self.address}"

    @property
    def ends(self) -> Literal["perhaps"]:
        return "perhaps"

    @property
    def grows(self) -> bool:
        return False  # its stream ends once

    @property
    def can_be_read_again(self) -> bool:
        return self.consumer is not None


class CollectionSource(SourceConnector):
    """A collection in a ``store``, a folder or a URL: its contents, and then what changes.

    It begins ``as_of`` a time in milliseconds since 1970, or at the last one that is complete. Without ``follow`` it
    ends with the contents. Rows that a named ``reader`` has not read are kept, so only with a reader are the same rows
    there when it is read again. It is a base of views automatically. A relative folder starts at the working directory
    of the node's worker.
    """

    implementation = "nebuli.connectors.sources.collection_source:CollectionSource"
    columns_by_name = True
    dated = True

    base: bool = True
    type: Literal["Collection"]
    store: Text
    collection: _Name
    as_of: Annotated[int, Field(strict=True, ge=0)] | None = None
    follow: bool = True
    reader: _Name | None = None

    @property
    def reads(self) -> str:
        return f"collection {self.collection}"

    @property
    def ends(self) -> Literal["always", "never"]:
        return "never" if self.follow else "always"

    @property
    def retracts(self) -> bool:
        return self.follow  # its rows may be retracted, and are at a handover to another rendition

    @property
    def can_be_read_again(self) -> bool:
        return self.reader is not None

    @property
    def can_be_base(self) -> bool:
        return True  # its contents are there at any time


class _FileSink(SinkConnector):
    begins_anew = True

    path: FilePath

    @property
    def files(self) -> tuple[str, ...]:
        return (self.path,)


def _check_nulls(nulls: tuple[str, ...]) -> tuple[str, ...]:
    for null in nulls:
        if set(null) & set('",\r\n'):
            raise ValueError(
                f"values in nulls are written without quotes, so they must not contain a quote, comma or line break; "
                f"got {null!r}"
            )
        if _LIKE_A_VALUE.fullmatch(null):
            raise ValueError(f"values in nulls must not be numbers, times or bools; got {null!r}")
    return nulls


_LIKE_A_VALUE = re.compile(r"\s*([+-]?(\.?\d.*|nan|inf|infinity)|true|false)\s*", re.IGNORECASE)
_Nulls = Annotated[tuple[str, ...], Field(min_length=1), AfterValidator(_check_nulls)]
"""For a sink the first is the one that it writes, so that source and sink may have the same list."""


class CsvSink(_FileSink):
    """Writes a CSV file, a null as the first of ``nulls``, which is not in quotes as strings are.

    A relative path starts at the working directory of the node's worker.
    """

    implementation = "nebuli.connectors.sinks.outputs:csv_file"

    type: Literal["CSV"]
    nulls: _Nulls = ("",)

    @property
    def types(self) -> frozenset[DataType]:
        return super().types - {DataType.BINARY}


class ParquetSink(_FileSink):
    """Writes a Parquet file; a relative path starts at the working directory of the node's worker."""

    implementation = "nebuli.connectors.sinks.outputs:parquet_file"

    type: Literal["Parquet"]


class PrintSink(SinkConnector):
    """Prints rows on the worker's standard output: as a table for people, or as CSV."""

    implementation = "nebuli.connectors.sinks.outputs:printed"

    type: Literal["Print"]
    format: Literal["table", "CSV"] = "table"

    @model_serializer(mode="wrap")
    def _without_table(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Without the key ``format`` where it is a table: what was written before there was one stays the same."""
        written: dict[str, Any] = handler(self)
        if self.format == "table":
            written.pop("format", None)
        return written


class TcpSink(SinkConnector):
    """Lines to the server at ``address``; in CSV a null is the first of ``nulls``."""

    implementation = "nebuli.connectors.sinks.tcp_output:TcpOutput"

    type: Literal["TCP"]
    address: Address
    format: LineFormat = "CSV"
    nulls: _Nulls = ("",)

    @property
    def types(self) -> frozenset[DataType]:
        return super().types - {DataType.BINARY}


class CollectionSink(SinkConnector):
    """Writes a collection in a ``store``, a folder or a URL; it is created if it is missing.

    A query in steps writes at the times up to which it has read other collections, as do others that write the same
    collection. It may write a ``rendition`` that the collection is to become. Any other query inserts: rows as they
    come, or in mode ``final`` its result, once under the query's id. A relative folder starts at the working directory
    of the node's worker.
    """

    implementation = "nebuli.connectors.sinks.collection_output:CollectionOutput"
    dated = True

    mode: Annotated[SinkMode, Field(validate_default=True)] = "changes"
    type: Literal["Collection"]
    store: Text
    collection: _Name
    rendition: _Name | None = None

    @model_validator(mode="after")
    def _goes_together(self) -> CollectionSink:
        if self.rendition is not None and self.mode == "final":
            raise ValueError(
                f"rendition {self.rendition!r} cannot be combined with mode final: only queries in steps write a "
                f"rendition, in mode changes or append; remove rendition, or change mode"
            )
        return self

    @property
    def writes(self) -> str:
        """Its target, as messages name it."""
        return f"collection {self.collection}"


class NullSink(SinkConnector):
    """Drops all rows; the worker counts them."""

    implementation = "nebuli.connectors.sinks.outputs:Nothing"
    begins_anew = True

    type: Literal["Null"]


SOURCES = Connectors(
    "source",
    SourceConnector,
    (CsvSource, ParquetSource, TcpSource, GeneratorSource, ChannelSource, CollectionSource),
)
SINKS = Connectors(
    "sink", SinkConnector, (CsvSink, ParquetSink, PrintSink, TcpSink, CollectionSink, NullSink)
)
