"""The options of the Spark data source ``netchannel``: their names, what they take, and where they hold.

Spark hands them over as texts, in lower case from most places. What is wrong with them is said in one sentence, with
the names that are known.
"""

from __future__ import annotations

import difflib
import json
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Literal, NamedTuple
from urllib.parse import unquote

from netchannel import FaultPolicy, Tls
from netchannel.servers.group_channels import NUMBERS
from netchannel.transports import schemes
from netchannel.values import NAME_LIMIT, check_channel_id, is_consumer, is_printable
from netchannel.wire.messages import TEXT_LIMIT

from .errors import OptionError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

Use = Literal["batch read", "streaming read", "batch write", "streaming write"]
READ: tuple[Use, ...] = ("batch read", "streaming read")
WRITE: tuple[Use, ...] = ("batch write", "streaming write")

SCHEME = "netchannel://"
_UNITS = {"k": 1 << 10, "m": 1 << 20, "g": 1 << 30}
_OF_SPARK = frozenset({"path", "checkpointlocation", "queryname", "outputmode"})
"""What Spark puts among the options by itself."""
_OF_TABLES = frozenset(
    {"provider", "owner", "location", "external", "comment", "collation", "is_managed_location"}
)
"""What Spark puts among the options for ``CREATE TABLE``, beside the same options once more as ``option.*``."""
_VIEW = "CREATE TEMPORARY VIEW name USING netchannel OPTIONS (endpoint 'host:port', channels 'channel')"
_STOP = (
    "a source cannot end a query that Spark runs: call spark_bridge.stop_at_end(query) instead of "
    "query.awaitTermination(), or use trigger(availableNow=True)"
)


def _text(value: str) -> str:
    if not value.strip():
        raise ValueError("a text that is not empty")
    return value.strip()


def _exact(value: str) -> str:
    if not value:
        raise ValueError("a text that is not empty")
    return value


def _consumer(value: str) -> str:
    if not is_consumer(value.strip()):
        raise ValueError(f"1 to {NAME_LIMIT} characters that can be printed")
    return value.strip()


def _application(value: str) -> str:
    name = value.strip()
    if not (is_printable(name) and 0 < len(name) <= TEXT_LIMIT):
        raise ValueError(f"1 to {TEXT_LIMIT} characters that can be printed")
    return name


def _whole(value: str, least: int) -> int:
    digits = value.strip()
    if not (digits.isascii() and digits.isdigit() and len(digits) < 20 and least <= int(digits) < NUMBERS):
        raise ValueError(f"a whole number from {least} on, below 2^63")
    return int(digits)


def _list(value: str) -> tuple[str, ...]:
    entries = tuple(entry.strip() for entry in value.split(",") if entry.strip())
    if not entries or len(set(entries)) != len(entries):
        raise ValueError("names that differ, with commas between them")
    return entries


def _bool(value: str) -> bool:
    if value.strip().lower() not in ("true", "false"):
        raise ValueError("true or false")
    return value.strip().lower() == "true"


def _count(value: str) -> int:
    return _whole(value, 1)


def _version(value: str) -> int:
    return _whole(value, 0)


def _bytes(value: str) -> int:
    text = value.strip().lower().removesuffix("b")
    unit = _UNITS.get(text[-1:], 1)
    number = text[:-1] if unit > 1 else text
    try:
        return _whole(str(_whole(number, 1) * unit), 1)
    except ValueError:
        raise ValueError("a number of bytes, such as 1048576 or 64m") from None


def _seconds(value: str) -> float:
    try:
        seconds = float(value)
    except ValueError:
        seconds = -1.0
    if not 0 < seconds < float("inf"):
        raise ValueError("a number of seconds, more than 0")
    return seconds


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
        raise ValueError("a time that is over by the clock of this machine")
    return at


class Option(NamedTuple):
    """One option: how its text is read, what holds without it, and in which uses it is known."""

    name: str
    read: Callable[[str], Any]
    takes: str
    default: str | None
    uses: tuple[Use, ...]


_STREAMING_READ: tuple[Use, ...] = ("streaming read",)
_BATCH_READ: tuple[Use, ...] = ("batch read",)
_BATCH_WRITE: tuple[Use, ...] = ("batch write",)

OPTIONS = (
    Option("endpoint", _list, "addresses", None, READ + WRITE),
    Option("channels", _list, "channel ids", None, READ + WRITE),
    Option("channel", _exact, "channel id", None, READ + WRITE),
    Option("connectTimeout", _seconds, "seconds", "60", READ + WRITE),
    Option("secret", _exact, "text", None, READ + WRITE),
    Option("tls.certificate", _text, "file", None, READ + WRITE),
    Option("tls.key", _text, "file", None, READ + WRITE),
    Option("tls.authority", _text, "file", None, READ + WRITE),
    Option("tls.serverName", _text, "host name", None, READ + WRITE),
    Option("startingOffsets", _offsets, "offsets", "beginning", READ),
    Option("startingTimestamp", _instant, "time", None, READ),
    Option("endingOffsets", _offsets, "offsets", "latest", _BATCH_READ),
    Option("maxRowsPerTrigger", _count, "rows", None, _STREAMING_READ),
    Option("maxBytesPerTrigger", _bytes, "bytes", None, _STREAMING_READ),
    Option("minPartitions", _count, "number", None, READ),
    Option("failOnDataLoss", _bool, "boolean", "true", READ),
    Option("includeMetadata", _bool, "boolean", "false", READ),
    Option("columns", _list, "column names", None, READ),
    Option("consumer", _consumer, "name", "spark", _STREAMING_READ),
    Option("deliveryGuarantee", _guarantee, "guarantee", "exactly-once", WRITE),
    Option("keyColumns", _list, "column names", None, WRITE),
    Option("endOfStream", _bool, "boolean", "true", _BATCH_WRITE),
    Option("txnAppId", _application, "name", None, WRITE),
    Option("txnVersion", _version, "number", None, _BATCH_WRITE),
)
_KNOWN = {option.name.lower(): option for option in OPTIONS}


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
        """What netchannel's clients take."""
        return {"secret": self.secret, "tls": self.tls, "fault": FaultPolicy(retry=self.timeout_s)}


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """What a read was given."""

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
    """What a write was given. ``checkpoint`` and ``query_name`` are Spark's own options, as they were written."""

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
    given = _parse(options, uses or READ)
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
    given = _parse(options, (use,))
    lowered = {name.lower(): value for name, value in options.items()}
    end = given["endOfStream"] and use == "batch write"
    version, application = given["txnVersion"], given["txnAppId"]
    if use == "batch write" and (version is None) != (application is None):
        raise OptionError(
            "a batch write is done once under its txnAppId and txnVersion: give both options, the version as a "
            "number that grows from write to write, or neither"
        )
    if version is not None and given["deliveryGuarantee"] != "exactly-once":
        raise OptionError(
            "txnAppId and txnVersion need deliveryGuarantee=exactly-once: what is sent at least once is there again "
            "when the write is done again"
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


def _parse(options: Mapping[str, str], uses: tuple[Use, ...]) -> dict[str, Any]:
    _check_place(options)
    given = {option.name: option.default and option.read(option.default) for option in OPTIONS}
    for name, text in options.items():
        if name.lower() in _OF_SPARK:
            continue
        option = _find(name, uses)
        try:
            given[option.name] = option.read(text)
        except ValueError as error:
            shown = "what was given" if option.name == "secret" else repr(text)
            raise OptionError(f"the option {option.name} takes {error}, not {shown}") from None
    return given


def _check_place(options: Mapping[str, str]) -> None:
    """Raise OptionError for what Spark says of a table in a catalog, and for an option that no source can have."""
    names = {name.lower() for name in options}
    if names & _OF_TABLES:
        raise OptionError(
            f"channels are no tables of a catalog, which would keep their options, with the secret, and give them to "
            f"nobody who reads the table: instead of CREATE TABLE use a temporary view, {_VIEW}"
        )
    if "stopatend" in names:
        raise OptionError(f"the data source netchannel has no option stopAtEnd: {_STOP}")


def _find(name: str, uses: tuple[Use, ...]) -> Option:
    option = _KNOWN.get(name.lower())
    if option is not None and set(uses) & set(option.uses):
        return option
    names = [option.name for option in OPTIONS if set(uses) & set(option.uses)]
    here = " or ".join(uses)
    if option is not None:
        what = f"the option {option.name} is one of a {' or '.join(option.uses)}, and this is a {here}"
    else:
        near = difflib.get_close_matches(name.lower(), [each.lower() for each in names], 1, 0.5)
        guess = f": did you mean {_KNOWN[near[0]].name}?" if near else ""
        what = f"the data source netchannel has no option {name!r} for a {here}{guess}"
    raise OptionError(f"{what} (known: {', '.join(names)})")


def _connection(given: dict[str, Any], options: Mapping[str, str]) -> Connection:
    endpoints, channels = _where(given, options)
    for endpoint in endpoints:
        try:
            schemes.check(endpoint)
        except ValueError as error:
            raise OptionError(f"{endpoint!r} is no endpoint: {error}") from None
    sources = _sources(endpoints, channels, whole=given["channel"] is not None)
    for source in sources:
        try:
            check_channel_id(source.channel)
        except ValueError as error:
            raise OptionError(f"the option channels: {error}") from None
    return Connection(sources, given["connectTimeout"], given["secret"], _tls(given))


def _where(given: dict[str, Any], options: Mapping[str, str]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    path = next((value for name, value in options.items() if name.lower() == "path"), None)
    endpoints, channels = given["endpoint"], given["channels"]
    if given["channel"] is not None:
        if channels is not None:
            raise OptionError("give the option channel or channels, not both")
        channels = (given["channel"],)
    if path is not None:
        if endpoints is not None or channels is not None:
            raise OptionError(f"give the URL {path} or the options endpoint and channels, not both")
        endpoints, channels = _from_url(path)
    if not endpoints:
        raise OptionError(
            "the data source netchannel needs the option endpoint, the host:port of a server that keeps the "
            "channels, or a URL as path: netchannel://host:port/channel1,channel2"
            + (
                f". A table of Spark's catalog has no options: use a temporary view, {_VIEW}"
                if not options
                else ""
            )
        )
    if not channels:
        raise OptionError(
            f"the data source netchannel needs the option channels, the ids of channels at {', '.join(endpoints)}"
        )
    return endpoints, channels


def _from_url(path: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The endpoints and channels of a URL. Spark may have taken one of the slashes away."""
    hosts, slash, names = path.removeprefix("netchannel:").lstrip("/").partition("/")
    if not path.startswith("netchannel:/") or not slash or not names or not hosts:
        raise OptionError(f"the path {path!r} is no URL such as netchannel://host:port/channel1,channel2")
    try:
        return _list(hosts), tuple(unquote(name) for name in _list(names))
    except ValueError as error:
        raise OptionError(f"the URL {path!r} needs {error}") from None


def _sources(endpoints: tuple[str, ...], channels: tuple[str, ...], *, whole: bool) -> tuple[Source, ...]:
    """Every channel at every endpoint, but those that say where they are: ``id@endpoint``; not if ids are ``whole``."""
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
        raise OptionError("the option channels names a channel twice")
    return tuple(sorted(sources))


def _tls(given: dict[str, Any]) -> Tls | None:
    certificate, key, authority, server_name = (
        given[f"tls.{name}"] for name in ("certificate", "key", "authority", "serverName")
    )
    if not (certificate or key or authority or server_name):
        return None
    if not (certificate and key and authority):
        raise OptionError("TLS needs the options tls.certificate, tls.key and tls.authority together")
    return Tls(certificate, key, authority, server_name)


def _check_offsets(name: str, offsets: str | dict[str, Offset], sources: tuple[Source, ...]) -> None:
    if isinstance(offsets, str):
        if name == "endingOffsets" and offsets != "latest":
            raise OptionError(f"the option endingOffsets takes latest or JSON, not {offsets!r}")
        return
    keys = [source.key for source in sources]
    unknown = sorted(set(offsets) - set(keys))
    if unknown:
        raise OptionError(
            f"the option {name} names {unknown[0]!r}, which is none of the channels that are read: {', '.join(keys)}"
        )
