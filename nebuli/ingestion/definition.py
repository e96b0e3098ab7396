"""A user's definition of a source, in YAML.

Where messages come from, how they are decoded, and which changes they are.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import AfterValidator, Field, ValidationError, model_validator
from pydantic_core import PydanticCustomError

from nebuli.dataflow.types import arrow_schema
from nebuli.durations import seconds_of
from nebuli.limits import DEFAULT_KEEP, MAX_KEEP_S
from topology.access import Access, Secret, TlsFiles
from topology.base import Address, FilePath, Model, Text
from topology.mistakes import MISPLACED, Location, Mistake, in_file_order
from topology.schema import Column
from topology.validation import validation_mistakes
from topology.yaml_document import parse_yaml

from .errors import DefinitionInvalid
from .message_addresses import PLACE

if TYPE_CHECKING:
    import pyarrow as pa

_LONGEST_NAME = 120
_OWN = "_weight", "_time"
"""Columns that the store adds to those of a collection."""
_SOURCE_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]{0,79}")


def _wrong(at: Location, what: str) -> PydanticCustomError:
    """Return the error of a definition as a whole, and its place in the document."""
    return PydanticCustomError(MISPLACED, "{what}", {"at": at, "what": what})


def _check_source_name(name: str) -> str:
    if not _SOURCE_NAME.fullmatch(name):
        raise ValueError(
            f"expected as name at most 80 letters, digits, _, . and -, beginning with a letter or _, "
            f"got {name[:90]!r}"
        )
    return name


def _check_keep(keep: str | float) -> str | float:
    if not 0 <= seconds_of(keep) <= MAX_KEEP_S:
        raise ValueError(f"expected 0 to {MAX_KEEP_S:,} s, got {keep!r}")
    return keep


def _check_name(name: str) -> str:
    if not name.isprintable() or not 1 <= len(name) <= _LONGEST_NAME or name != name.strip():
        raise ValueError(f"expected a name of 1 to {_LONGEST_NAME} printable characters, got {name[:60]!r}")
    return name


_Name = Annotated[str, AfterValidator(_check_name)]


# -- where messages come from


class FileOrigin(Model):
    """Files of lines, which may grow: one, or all that match a pattern, also those that come later."""

    type: Literal["File"]
    path: FilePath


class ParquetOrigin(Model):
    """Parquet files: one, or all that match a pattern, also those that come later."""

    type: Literal["Parquet"]
    path: FilePath


class ChannelOrigin(Model):
    """A channel that is kept at ``address``, for its ``consumer``."""

    type: Literal["Channel"]
    address: Address
    channel: _Name
    consumer: _Name
    secret: Secret | None = None
    tls: TlsFiles | None = None


class NatsOrigin(Model):
    """A stream of a NATS server with JetStream; of all its subjects, or of those that match.

    ``purge``: messages that are no longer needed are purged from the stream, which must have no other readers then.
    """

    type: Literal["NATS"]
    url: Text
    stream: _Name
    subject: Text | None = None
    purge: bool = False


class PostgresOrigin(Model):
    """Changes of a publication's tables, by logical replication from a slot, which is made if it is not there.

    ``table`` is the one whose rows are meant, as in public.orders. ``two_phase``: transactions have a BEGIN and an END,
    and of those that are prepared it is known from then on; the slot is made so.
    """

    type: Literal["Postgres"]
    url: Text
    publication: _Name
    slot: _Name
    table: Text
    two_phase: bool = False


class CollectionOrigin(Model):
    """A collection of the same store, which is reclocked already."""

    type: Literal["Collection"]
    collection: _Name


Origin = Annotated[
    FileOrigin | ParquetOrigin | ChannelOrigin | NatsOrigin | PostgresOrigin | CollectionOrigin,
    Field(discriminator="type"),
]


# -- how they are decoded


class CsvFormat(Model):
    """Lines of CSV; the first one of each part has the names, unless ``header`` is false; ``nulls`` are null."""

    type: Literal["CSV"]
    header: bool = True
    nulls: tuple[str, ...] = ("",)


class JsonFormat(Model):
    """An object in each message."""

    type: Literal["JSON"]


class AvroFormat(Model):
    """Avro with the number of its schema before it, as registries have it."""

    type: Literal["Avro"]
    registry: Text


class ArrowFormat(Model):
    """An Arrow IPC stream in each message, of which each row is one."""

    type: Literal["Arrow"]


Format = Annotated[CsvFormat | JsonFormat | AvroFormat | ArrowFormat, Field(discriminator="type")]


# -- what they change


class AppendEnvelope(Model):
    """Each row is added."""

    type: Literal["append"]


class UpsertEnvelope(Model):
    """Each row takes the place of the one with its ``key``; one whose column ``deleted`` is true takes it away."""

    type: Literal["upsert"]
    key: Annotated[tuple[Text, ...], Field(min_length=1)]
    deleted: Text | None = None


class DebeziumEnvelope(Model):
    """Changes as Debezium writes them, of rows with a ``key``.

    ``transactions``: a row is there once the whole transaction is; ``ordered``, and all that began before it.
    ``metadata`` is where their begins and ends come from, where they are not among the changes.
    """

    type: Literal["debezium"]
    key: Annotated[tuple[Text, ...], Field(min_length=1)]
    transactions: Literal["complete", "ordered"] | None = None
    metadata: Origin | None = None

    @model_validator(mode="after")
    def _goes_together(self) -> DebeziumEnvelope:
        if self.metadata is not None and self.transactions is None:
            raise ValueError("'metadata' requires 'transactions'; expected transactions: complete or ordered")
        return self


EnvelopeSettings = Annotated[AppendEnvelope | UpsertEnvelope | DebeziumEnvelope, Field(discriminator="type")]

_CARRIES_BYTES = ("File", "NATS", "Postgres")


class Definition(Model):
    """A source, which is ingested into the collection of its name.

    ``raw``: the messages are kept as they are, too, in the collection NAME.raw, so that the other can be rebuilt
    without the source. ``keep`` is how long it can be read back. ``on_error``: a message that cannot be decoded goes
    into the collection NAME.errors, and nothing waits (``collect``); or all later ones wait for it (``wait``), which
    transactions want, as one would be incomplete without it.
    """

    name: Annotated[str, AfterValidator(_check_source_name)]
    origin: Annotated[Origin, Field(alias="from")]
    format: Format | None = None
    envelope: EnvelopeSettings = AppendEnvelope(type="append")
    columns: Annotated[tuple[Column, ...], Field(alias="schema", min_length=1)]
    raw: bool = False
    shards: Annotated[int, Field(strict=True, ge=1, le=256)] = 1
    keep: Annotated[str | float, AfterValidator(_check_keep)] = DEFAULT_KEEP
    on_error: Literal["collect", "wait"] | None = None

    @model_validator(mode="after")
    def _has_columns_that_can_be(self) -> Definition:
        names = [each.name for each in self.columns]
        for place, name in enumerate(names):
            at: Location = ("schema", place, "name")
            if name in names[:place]:
                raise _wrong(at, f"column {name!r} is in the schema twice; expected each name once")
            if name in _OWN or (self.raw and self.format is None and name in PLACE):
                raise _wrong(
                    at,
                    f"a column cannot be named {name}, which the source adds itself; expected another name",
                )
        if isinstance(self.envelope, UpsertEnvelope | DebeziumEnvelope):
            for place, name in enumerate(self.envelope.key):
                at = "envelope", "key", place
                if name in self.envelope.key[:place]:
                    raise _wrong(at, f"the key has column {name!r} twice; expected each column once")
                if name not in names:
                    raise _wrong(
                        at, f"the key has the unknown column {name!r}; expected one of {', '.join(names)}"
                    )
        return self

    @model_validator(mode="after")
    def _has_what_its_origin_wants(self) -> Definition:
        kind = self.origin.type
        if self.format is not None and kind not in (*_CARRIES_BYTES, "Collection", "Channel"):
            raise _wrong(("format",), f"messages of {kind} have columns already; expected no 'format'")
        if self.format is None and kind in _CARRIES_BYTES and kind != "Postgres":
            raise _wrong(
                ("from",), f"messages of {kind} are bytes; expected a format: CSV, JSON, Avro or Arrow"
            )
        if isinstance(self.format, ArrowFormat) and kind == "File":
            raise _wrong(
                ("format",), "a line of a file cannot contain an Arrow stream; expected CSV, JSON or Avro"
            )
        metadata = self.envelope.metadata if isinstance(self.envelope, DebeziumEnvelope) else None
        if "Collection" in (kind if metadata is not None else "", getattr(metadata, "type", "")):
            raise _wrong(
                ("envelope", "metadata"),
                "with 'metadata', neither the changes nor the metadata can come from a collection; "
                "expected another origin",
            )
        if self.raw and kind == "Collection":
            raise _wrong(
                ("raw",), "the origin is a collection, which already keeps its rows; expected no 'raw'"
            )
        return self

    @model_validator(mode="after")
    def _has_what_postgres_wants(self) -> Definition:
        if not isinstance(self.origin, PostgresOrigin):
            return self
        if self.format is not None or not isinstance(self.envelope, DebeziumEnvelope):
            at = ("envelope",) if self.format is None else ("format",)
            raise _wrong(
                at, "a Postgres source reads changes; expected the envelope 'debezium', and no 'format'"
            )
        if (self.envelope.transactions is not None) != self.origin.two_phase:
            raise _wrong(
                ("from",),
                "'transactions' needs 'two_phase', which makes Postgres mark where transactions "
                "begin and end; expected both of these options, or neither",
            )
        return self

    @model_validator(mode="after")
    def _has_whole_transactions(self) -> Definition:
        if self.on_error == "collect" and self._has_transactions:
            raise _wrong(
                ("on_error",),
                "a transaction that lacks one of its messages would never be complete; expected "
                "on_error: wait, or no 'on_error'",
            )
        return self

    @property
    def _has_transactions(self) -> bool:
        return isinstance(self.envelope, DebeziumEnvelope) and self.envelope.transactions is not None

    @property
    def collects_errors(self) -> bool:
        """True if messages that cannot be decoded go into a collection, and delay nothing."""
        return self.on_error != "wait" and not self._has_transactions

    @property
    def schema(self) -> pa.Schema:
        """The columns of the collection."""
        return arrow_schema(self.columns)

    def below(self, directory: Path) -> Definition:
        """The same, with relative paths of files, also of certificates and secrets, below a directory."""
        changed: dict[str, Any] = {"origin": _origin_below(self.origin, directory)}
        if isinstance(self.envelope, DebeziumEnvelope) and self.envelope.metadata is not None:
            metadata = _origin_below(self.envelope.metadata, directory)
            changed["envelope"] = self.envelope.model_copy(update={"metadata": metadata})
        return self.model_copy(update=changed)

    def to_json(self) -> str:
        """The same as text, to be kept."""
        return self.model_dump_json(by_alias=True, exclude_defaults=True)


def _origin_below(origin: Origin, directory: Path) -> Origin:
    match origin:
        case FileOrigin() | ParquetOrigin():
            return origin.model_copy(update={"path": str(directory / origin.path)})
        case ChannelOrigin():
            access = Access(tls=origin.tls, secret=origin.secret).below(directory)
            return origin.model_copy(update={"tls": access.tls, "secret": access.secret})
    return origin


def parse_definition(text: str, file: str | None = None) -> Definition:
    """Read a definition from a YAML document. Raises DefinitionInvalid with all that is wrong, and where.

    Relative paths in a ``file`` begin at its folder.
    """
    document = parse_yaml(text, file, "a source")
    if document.broken:
        raise DefinitionInvalid(_lines(document.mistakes))
    mistakes = [*document.mistakes]
    try:
        definition = Definition.model_validate(_whole(document.data))
    except ValidationError as error:
        mistakes += validation_mistakes(error, Definition, document.marks)
    else:
        if not mistakes:
            return definition if file is None else definition.below(Path(file).absolute().parent)
    raise DefinitionInvalid(_lines(in_file_order(mistakes)))


def _whole(data: Any) -> Any:
    """The document with short forms spelt out: ``format: JSON``, and ``envelope: append``."""
    if not isinstance(data, dict):
        return data
    spelt = {key: {"type": data[key]} for key in ("format", "envelope") if isinstance(data.get(key), str)}
    return {**data, **spelt}


def _lines(mistakes: list[Mistake]) -> str:
    return "\n".join(str(each) for each in mistakes)
