"""The options of the Spark data source ``netchannel``: their names, what they take, and where they hold.

Spark hands them over as texts, in lower case from most places. Their errors are reported in one sentence, with the
known names.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import unquote

from netchannel import FaultPolicy, Tls
from netchannel.servers.group_channels import NUMBERS
from netchannel.transports import schemes
from netchannel.values import NAME_LIMIT, check_channel_id, is_consumer, is_printable
from netchannel.wire.messages import TEXT_LIMIT

from .errors import OptionError
from .option_table import (
    READ,
    WRITE,
    Option,
    OptionTable,
    Use,
    boolean,
    byte_count,
    check_version,
    count,
    exact,
    listed,
    seconds,
    text,
    tls_of,
    version,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

_OF_TABLES = frozenset(
    {"provider", "owner", "location", "external", "comment", "collation", "is_managed_location"}
)
"""Options that Spark adds for ``CREATE TABLE``, in addition to the same options again as ``option.*``."""
_VIEW = "CREATE TEMPORARY VIEW name USING netchannel OPTIONS (endpoint 'host:port', channels 'channel')"
_STOP = (
    "a source cannot end a query that Spark runs: call spark_bridge.stop_at_end(query) instead of "
    "query.awaitTermination(), or use trigger(availableNow=True)"
)


def _consumer(value: str) -> str:
    if not is_consumer(value.strip()):
        raise ValueError(f"1 to {NAME_LIMIT} printable characters")
    return value.strip()


def _application(value: str) -> str:
    name = value.strip()
    if not (is_printable(name) and 0 < len(name) <= TEXT_LIMIT):
        raise ValueError(f"1 to {TEXT_LIMIT} printable characters")
    return name


def _guarantee(value: str) -> str:
    if value.strip().lower() not in ("exactly-once", "at-least-once"):
        raise ValueError("exactly-once or at-least-once")
    return value.strip().lower()


Offset = int | str | dict[str, Any]
"""The place to start in a channel: a number, one of `_PLACES`, or ``{"stream": ..., "seq": ...}``."""
_PLACES = ("beginning", "earliest", "latest")


def _offset(value: Any) -> bool:
    match value:
        case bool() | {"seq": bool()}:
            return False
        case {"ended": ended} if not isinstance(ended, int):
            return False
        case int(number) | {"stream": str(), "seq": int(number)}:
            return 0 <= number < NUMBERS
        case {"stream": None, "seq": 0}:
            return True
    return value in _PLACES


def _offsets(value: str) -> str | dict[str, Offset]:
    if value.strip().lower() in _PLACES:
        return value.strip().lower()
    try:
        offsets = json.loads(value)
    except (ValueError, RecursionError):  # no JSON, a number of thousands of digits, thousands of brackets
        offsets = None
    if not isinstance(offsets, dict) or not all(map(_offset, offsets.values())):
        raise ValueError(
            'beginning, earliest, latest, or JSON such as {"flights": {"stream": "...", "seq": 12}} or {"flights": 12}'
        )
    return offsets


def _instant(value: str) -> datetime:
    try:
        at = datetime.fromisoformat(value.strip())
    except ValueError:
        at = None
    if at is None or at.utcoffset() is None:
        raise ValueError("a time with its zone, such as 2026-11-22T18:30:00Z or 2026-11-22 19:30:00+01:00")
    if at > datetime.now(UTC):
        raise ValueError("a time in the past, by the clock of this machine")
    return at


_STREAMING_READ: tuple[Use, ...] = ("streaming read",)
_BATCH_READ: tuple[Use, ...] = ("batch read",)
_BATCH_WRITE: tuple[Use, ...] = ("batch write",)

OPTIONS = (
    Option("endpoint", listed, "addresses", None, READ + WRITE),
    Option("channels", listed, "channel ids", None, READ + WRITE),
    Option("channel", exact, "channel id", None, READ + WRITE),
    Option("connectTimeout", seconds, "seconds", "60", READ + WRITE),
    Option("secret", exact, "text", None, READ + WRITE),
    Option("tls.certificate", text, "file", None, READ + WRITE),
    Option("tls.key", text, "file", None, READ + WRITE),
    Option("tls.authority", text, "file", None, READ + WRITE),
    Option("tls.serverName", text, "host name", None, READ + WRITE),
    Option("startingOffsets", _offsets, "offsets", "beginning", READ),
    Option("startingTimestamp", _instant, "time", None, READ),
    Option("endingOffsets", _offsets, "offsets", "latest", _BATCH_READ),
    Option("maxRowsPerTrigger", count, "rows", None, _STREAMING_READ),
    Option("maxBytesPerTrigger", byte_count, "bytes", None, _STREAMING_READ),
    Option("minPartitions", count, "number", None, READ),
    Option("failOnDataLoss", boolean, "boolean", "true", READ),
    Option("includeMetadata", boolean, "boolean", "false", READ),
    Option("columns", listed, "column names", None, READ),
    Option("consumer", _consumer, "name", "spark", _STREAMING_READ),
    Option("deliveryGuarantee", _guarantee, "guarantee", "exactly-once", WRITE),
    Option("keyColumns", listed, "column names", None, WRITE),
    Option("endOfStream", boolean, "boolean", "true", _BATCH_WRITE),
    Option("txnAppId", _application, "name", None, WRITE),
    Option("txnVersion", version, "number", None, _BATCH_WRITE),
)
_TABLE = OptionTable("netchannel", OPTIONS)


class Source(NamedTuple):
    """A channel at an endpoint. ``key`` is its name in offsets: the channel's id, with the endpoint if it needs it."""

    key: str
    endpoint: str
    channel: str


@dataclass(frozen=True, slots=True)
class Connection:
    """The channels, and how their servers are reached."""

    sources: tuple[Source, ...]
    timeout_s: float
    secret: str | None = field(repr=False)
    tls: Tls | None

    @property
    def settings(self) -> dict[str, Any]:
        """Return the settings for netchannel's clients."""
        return {"secret": self.secret, "tls": self.tls, "fault": FaultPolicy(retry=self.timeout_s)}


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """The options of a read."""

    connection: Connection
    starting: str | dict[str, Offset]
    since: datetime | None
    ending: str | dict[str, Offset]
    max_rows: int | None
    max_bytes: int | None
    min_partitions: int | None
    fail_on_data_loss: bool
    metadata: bool
    columns: tuple[str, ...] | None
    consumer: str


@dataclass(frozen=True, slots=True)
class WriteOptions:
    """The options of a write. ``checkpoint`` and ``query_name`` are Spark's own options, as they were written."""

    connection: Connection
    exactly_once: bool
    key_columns: tuple[str, ...] | None
    end: bool
    txn_app_id: str | None
    txn_version: int | None
    checkpoint: str | None
    query_name: str | None


def read_options(options: Mapping[str, str], *uses: Use) -> ReadOptions:
    """The options of a read, of which only the schema may be wanted yet. Raises OptionError."""
    _check_place(options)
    given = _TABLE.parsed(options, uses or READ)
    connection = _connection(given, options)
    for name in ("startingOffsets", "endingOffsets"):
        _check_offsets(name, given[name], connection.sources)
    if given["startingTimestamp"] is not None and any(name.lower() == "startingoffsets" for name in options):
        raise OptionError("give the option startingOffsets or startingTimestamp, not both")
    return ReadOptions(
        connection=connection,
        starting=given["startingOffsets"],
        since=given["startingTimestamp"],
        ending=given["endingOffsets"],
        max_rows=given["maxRowsPerTrigger"],
        max_bytes=given["maxBytesPerTrigger"],
        min_partitions=given["minPartitions"],
        fail_on_data_loss=given["failOnDataLoss"],
        metadata=given["includeMetadata"],
        columns=given["columns"],
        consumer=given["consumer"],
    )


def write_options(options: Mapping[str, str], use: Use) -> WriteOptions:
    """The options of a write. Raises OptionError."""
    _check_place(options)
    given = _TABLE.parsed(options, (use,))
    lowered = {name.lower(): value for name, value in options.items()}
    end = given["endOfStream"] and use == "batch write"
    version, application = given["txnVersion"], given["txnAppId"]
    if use == "batch write":
        check_version(given)
    if version is not None and given["deliveryGuarantee"] != "exactly-once":
        raise OptionError(
            "txnAppId and txnVersion need deliveryGuarantee=exactly-once: messages of an at-least-once write "
            "are duplicated when the write is repeated"
        )
    written = WriteOptions(
        connection=_connection(given, options),
        exactly_once=given["deliveryGuarantee"] == "exactly-once",
        key_columns=given["keyColumns"],
        end=end,
        txn_app_id=application,
        txn_version=version,
        checkpoint=lowered.get("checkpointlocation"),
        query_name=lowered.get("queryname"),
    )
    if written.key_columns and not written.exactly_once:
        raise OptionError(
            "keyColumns needs deliveryGuarantee=exactly-once: with at-least-once, every partition writes to a channel "
            "of its own"
        )
    return written


def _check_place(options: Mapping[str, str]) -> None:
    """Raise OptionError for Spark's options of a table in a catalog, and for an option that no source can have."""
    names = {name.lower() for name in options}
    if names & _OF_TABLES:
        raise OptionError(
            f"channels cannot be tables of a catalog: the catalog would store the options, including the secret, and "
            f"not pass them to readers. Instead of CREATE TABLE use a temporary view, {_VIEW}"
        )
    if "stopatend" in names:
        raise OptionError(f"the data source 'netchannel' has no option 'stopAtEnd': {_STOP}")


def _connection(given: dict[str, Any], options: Mapping[str, str]) -> Connection:
    endpoints, channels = _where(given, options)
    for endpoint in endpoints:
        try:
            schemes.check(endpoint)
        except ValueError as error:
            raise OptionError(f"{endpoint!r} is not an endpoint: {error}") from None
    sources = _sources(endpoints, channels, whole=given["channel"] is not None)
    for source in sources:
        try:
            check_channel_id(source.channel)
        except ValueError as error:
            raise OptionError(f"the option 'channels' is invalid: {error}") from None
    return Connection(sources, given["connectTimeout"], given["secret"], tls_of(given))


def _where(given: dict[str, Any], options: Mapping[str, str]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    path = next((value for name, value in options.items() if name.lower() == "path"), None)
    endpoints, channels = given["endpoint"], given["channels"]
    if given["channel"] is not None:
        if channels is not None:
            raise OptionError("give the option 'channel' or 'channels', not both")
        channels = (given["channel"],)
    if path is not None:
        if endpoints is not None or channels is not None:
            raise OptionError(f"give the URL {path} or the options 'endpoint' and 'channels', not both")
        endpoints, channels = _from_url(path)
    if not endpoints:
        raise OptionError(
            "the data source 'netchannel' needs the option 'endpoint', the host:port of a server that keeps the "
            "channels, or a URL as path: netchannel://host:port/channel1,channel2"
            + (
                f". A table of Spark's catalog has no options: use a temporary view, {_VIEW}"
                if not options
                else ""
            )
        )
    if not channels:
        raise OptionError(
            f"the data source 'netchannel' needs the option 'channels', with the ids of channels at "
            f"{', '.join(endpoints)}"
        )
    return endpoints, channels


def _from_url(path: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The endpoints and channels of a URL. Spark may have taken one of the slashes away."""
    hosts, slash, names = path.removeprefix("netchannel:").lstrip("/").partition("/")
    if not path.startswith("netchannel:/") or not slash or not names or not hosts:
        raise OptionError(f"the path {path!r} is not a URL such as netchannel://host:port/channel1,channel2")
    try:
        return listed(hosts), tuple(unquote(name) for name in listed(names))
    except ValueError as error:
        raise OptionError(f"the URL {path!r} needs {error}") from None


def _sources(endpoints: tuple[str, ...], channels: tuple[str, ...], *, whole: bool) -> tuple[Source, ...]:
    """Every channel at every endpoint, except those with their own endpoint: ``id@endpoint``.

    Not if ids are ``whole``.
    """
    places = []
    for channel in channels:
        name, _, at = ("", "", "") if whole else channel.rpartition("@")
        places += [(name, at)] if name and at in endpoints else [(channel, each) for each in endpoints]
    count = [channel for channel, _ in places]
    sources = [
        Source(channel if count.count(channel) == 1 else f"{channel}@{endpoint}", endpoint, channel)
        for channel, endpoint in places
    ]
    if len(set(sources)) != len(sources):
        raise OptionError("the option 'channels' contains a channel twice")
    return tuple(sorted(sources))


def _check_offsets(name: str, offsets: str | dict[str, Offset], sources: tuple[Source, ...]) -> None:
    if isinstance(offsets, str):
        if name == "endingOffsets" and offsets != "latest":
            raise OptionError(f"the option 'endingOffsets' takes 'latest' or JSON, not {offsets!r}")
        return
    keys = [source.key for source in sources]
    unknown = sorted(set(offsets) - set(keys))
    if unknown:
        raise OptionError(
            f"the option {name!r} names channel {unknown[0]!r}, which is not one of the channels to read: "
            f"{', '.join(keys)}"
        )
