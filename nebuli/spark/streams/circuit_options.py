"""The options of the data source ``circuit``."""

from __future__ import annotations

from dataclasses import dataclass, field
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
    tls_of,
    version,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from netchannel import Tls

_MOST_STEPS = 1 << 63


def _address(value: str) -> str:
    where, _, _ = value.strip().partition("/")
    host, _, port = where.rpartition(":")
    if not host or not (port.isascii() and port.isdigit()):
        raise ValueError("HOST:PORT, or HOST:PORT/ID as nebuli status prints it")
    return value.strip()


def _start(value: str) -> int | str:
    if value.strip().lower() in ("earliest", "latest"):
        return value.strip().lower()
    return _step(value, "earliest, latest, or the number of a step")


def _end(value: str) -> int | str:
    if value.strip().lower() == "latest":
        return "latest"
    return _step(value, "latest, or the number of a step")


def _step(value: str, takes: str) -> int:
    digits = value.strip()
    if not (digits.isascii() and digits.isdigit() and len(digits) < 20 and int(digits) < _MOST_STEPS):
        raise ValueError(takes)
    return int(digits)


OPTIONS = (
    Option("circuit", _address, "address", None, READ + WRITE),
    Option("secret", exact, "text", None, READ + WRITE),
    Option("tls.certificate", text, "file", None, READ + WRITE),
    Option("tls.key", text, "file", None, READ + WRITE),
    Option("tls.authority", text, "file", None, READ + WRITE),
    Option("tls.serverName", text, "host name", None, READ + WRITE),
    Option("timeout", seconds, "seconds", "60", READ + WRITE),
    Option("output", exact, "name", None, READ),
    Option("startingStep", _start, "step", "0", READ),
    Option("endingStep", _end, "step", "latest", ("batch read",)),
    Option("maxStepsPerTrigger", count, "number", None, ("streaming read",)),
    Option("minPartitions", count, "number", None, READ),
    Option("appendOnly", boolean, "boolean", "false", READ),
    Option("input", exact, "name", None, WRITE),
    Option("txnAppId", text, "name", None, ("batch write",)),
    Option("txnVersion", version, "number", None, ("batch write",)),
)
_TABLE = OptionTable("circuit", OPTIONS)


@dataclass(frozen=True, slots=True)
class Place:
    """Where a circuit is, and how it is reached."""

    address: str
    timeout_s: float
    secret: str | None = field(repr=False)
    tls: Tls | None


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """The options of a read."""

    place: Place
    output: str
    starting: int | str
    ending: int | str
    max_steps: int | None
    min_partitions: int
    append_only: bool


@dataclass(frozen=True, slots=True)
class WriteOptions:
    """The options of a write."""

    place: Place
    input: str
    txn_app_id: str | None
    txn_version: int | None


def read_options(options: Mapping[str, str], *uses: Use) -> ReadOptions:
    """The options of a read, of which only the schema may be wanted yet. Raises OptionError."""
    given = _TABLE.parsed(options, uses or READ)
    return ReadOptions(
        place=_place(given, options),
        output=_needed(given, "output", "the name of an output of the circuit"),
        starting=given["startingStep"],
        ending=given["endingStep"],
        max_steps=given["maxStepsPerTrigger"],
        min_partitions=given["minPartitions"] or 1,
        append_only=given["appendOnly"],
    )


def write_options(options: Mapping[str, str], use: Use) -> WriteOptions:
    """The options of a write. Raises OptionError."""
    given = _TABLE.parsed(options, (use,))
    check_version(given)
    return WriteOptions(
        place=_place(given, options),
        input=_needed(given, "input", "the name of an input that programs push into"),
        txn_app_id=given["txnAppId"],
        txn_version=given["txnVersion"],
    )


def _place(given: Mapping[str, Any], options: Mapping[str, str]) -> Place:
    if any(name.lower() == "path" for name in options):
        raise OptionError(
            "the data source 'circuit' takes no path: give the options 'circuit' and either "
            "'input' or 'output'"
        )
    address = _needed(given, "circuit", "HOST:PORT, or HOST:PORT/ID as nebuli status prints it")
    return Place(address, given["timeout"], given["secret"], tls_of(given))


def _needed(given: Mapping[str, Any], name: str, what: str) -> str:
    if given[name] is None:
        raise OptionError(f"the data source 'circuit' needs the option {name!r}: {what}")
    return str(given[name])
