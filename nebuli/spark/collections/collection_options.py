"""The options of the data source ``collection``."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from spark_bridge.errors import OptionError
from spark_bridge.option_table import (
    READ,
    WRITE,
    Option,
    OptionTable,
    Use,
    boolean,
    check_version,
    count,
    exact,
    seconds,
    text,
    version,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

_BEYOND = 1 << 63


def _as_of(value: str) -> int | None:
    return None if value.strip().lower() == "latest" else _time(value, "latest, or a time")


def _start(value: str) -> int | str:
    named = value.strip().lower()
    return named if named in ("earliest", "latest") else _time(value, "earliest, latest, or a time")


def _time(value: str, takes: str) -> int:
    digits = value.strip()
    if not (digits.isascii() and digits.isdigit() and len(digits) < 20 and int(digits) < _BEYOND):
        raise ValueError(f"{takes} in milliseconds since 1970")
    return int(digits)


OPTIONS = (
    Option("store", text, "folder or URL", None, READ + WRITE),
    Option("collection", exact, "name", None, READ + WRITE),
    Option("timeout", seconds, "seconds", "60", READ),
    Option("changes", boolean, "boolean", "false", READ),
    Option("asOf", _as_of, "time", "latest", ("batch read",)),
    Option("startingTime", _start, "time", "earliest", ("streaming read",)),
    Option("reader", exact, "name", None, ("streaming read",)),
    Option("minPartitions", count, "number", None, ("streaming read",)),
    Option("txnAppId", text, "name", None, ("batch write",)),
    Option("txnVersion", version, "number", None, ("batch write",)),
)
_TABLE = OptionTable("collection", OPTIONS)


@dataclass(frozen=True, slots=True)
class Place:
    """Which collection it is, and how long its store is waited for."""

    store: str = field(repr=False)
    collection: str
    timeout_s: float

    def __str__(self) -> str:
        """As errors name it."""
        return f"collection {self.collection}"


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """The options of a read."""

    place: Place
    changes: bool
    as_of: int | None
    starting: int | str
    reader: str | None
    min_partitions: int


@dataclass(frozen=True, slots=True)
class WriteOptions:
    """The options of a write."""

    place: Place
    txn_app_id: str | None
    txn_version: int | None


def read_options(options: Mapping[str, str], *uses: Use) -> ReadOptions:
    """The options of a read, of which only the schema may be wanted yet. Raises OptionError."""
    given = _TABLE.parsed(options, uses or READ)
    return ReadOptions(
        place=_place(given, options),
        changes=given["changes"],
        as_of=given["asOf"] if isinstance(given["asOf"], int) else None,
        starting=given["startingTime"],
        reader=given["reader"],
        min_partitions=given["minPartitions"] or 1,
    )


def write_options(options: Mapping[str, str], use: Use) -> WriteOptions:
    """The options of a write. Raises OptionError."""
    given = _TABLE.parsed(options, (use,))
    check_version(given)
    return WriteOptions(_place(given, options), given["txnAppId"], given["txnVersion"])


def _place(given: Mapping[str, Any], options: Mapping[str, str]) -> Place:
    if any(name.lower() == "path" for name in options):
        raise OptionError(
            "the data source 'collection' takes no path: give the options 'store' and 'collection'"
        )
    for name, what in (
        ("store", "the folder or URL of the collection's store"),
        ("collection", "the collection's name"),
    ):
        if given[name] is None:
            raise OptionError(f"the data source 'collection' needs the option {name!r}: {what}")
    store = given["store"]
    # Tasks have other working directories than the driver.
    where = store if "://" in store else str(Path(store).absolute())
    return Place(where, given["collection"], given["timeout"])
