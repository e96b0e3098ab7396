"""Parts of a data source's options: parsers of their strings, and the places where they are known.

Their errors are reported in one sentence, with the known names.
"""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from netchannel import Tls
from netchannel.servers.group_channels import NUMBERS

from .errors import OptionError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

Use = Literal["batch read", "streaming read", "batch write", "streaming write"]
READ: tuple[Use, ...] = ("batch read", "streaming read")
WRITE: tuple[Use, ...] = ("batch write", "streaming write")

_UNITS = {"k": 1 << 10, "m": 1 << 20, "g": 1 << 30}
_OF_SPARK = frozenset({"path", "checkpointlocation", "queryname", "outputmode"})
"""Options that Spark adds on its own."""


def text(value: str) -> str:
    """A text, without the space around it. Raises ValueError, as the others do, which names the accepted values."""
    if not value.strip():
        raise ValueError("a non-empty string")
    return exact(value).strip()


def exact(value: str) -> str:
    """A text as it is."""
    if not value:
        raise ValueError("a non-empty string")
    if "\0" in value or any("\ud800" <= each <= "\udfff" for each in value):
        raise ValueError("a string without NUL and without lone surrogates")
    return value


def whole(value: str, least: int) -> int:
    """A whole number from ``least`` on."""
    digits = value.strip()
    if not (digits.isascii() and digits.isdigit() and len(digits) < 20 and least <= int(digits) < NUMBERS):
        raise ValueError(f"a whole number, at least {least} and below 2^63")
    return int(digits)


def listed(value: str) -> tuple[str, ...]:
    """Names with commas between them."""
    entries = tuple(exact(entry.strip()) for entry in value.split(",") if entry.strip())
    if not entries or len(set(entries)) != len(entries):
        raise ValueError("distinct names, separated by commas")
    return entries


def boolean(value: str) -> bool:
    """True or false."""
    if value.strip().lower() not in ("true", "false"):
        raise ValueError("true or false")
    return value.strip().lower() == "true"


def count(value: str) -> int:
    """A number from 1 on."""
    return whole(value, 1)


def version(value: str) -> int:
    """A number from 0 on."""
    return whole(value, 0)


def byte_count(value: str) -> int:
    """A number of bytes, also in units."""
    given = value.strip().lower().removesuffix("b")
    unit = _UNITS.get(given[-1:], 1)
    number = given[:-1] if unit > 1 else given
    try:
        return whole(str(whole(number, 1) * unit), 1)
    except ValueError:
        raise ValueError("a number of bytes, such as 1048576 or 64m") from None


def seconds(value: str) -> float:
    """A time, more than none."""
    try:
        found = float(value)
    except ValueError:
        found = -1.0
    if not 0 < found < float("inf"):
        raise ValueError("a number of seconds, more than 0")
    return found


class Option(NamedTuple):
    """One option: how its text is read, what holds without it, and in which uses it is known."""

    name: str
    read: Callable[[str], Any]
    takes: str
    default: str | None
    uses: tuple[Use, ...]


class OptionTable:
    """All options of a data source, by whose name errors call it."""

    def __init__(self, source: str, options: Sequence[Option]) -> None:
        self._source = source
        self._options = tuple(options)
        self._known = {option.name.lower(): option for option in options}

    def parsed(self, options: Mapping[str, str], uses: tuple[Use, ...]) -> dict[str, Any]:
        """The value of each option, by its name. Raises OptionError."""
        given = {option.name: option.default and option.read(option.default) for option in self._options}
        for name, value in options.items():
            if name.lower() in _OF_SPARK:
                continue
            option = self._find(name, uses)
            try:
                given[option.name] = option.read(value)
            except ValueError as error:
                shown = "the given value" if option.name == "secret" else repr(value)
                raise OptionError(f"the option {option.name} takes {error}, not {shown}") from None
        return given

    def _find(self, name: str, uses: tuple[Use, ...]) -> Option:
        option = self._known.get(name.lower())
        if option is not None and set(uses) & set(option.uses):
            return option
        names = [option.name for option in self._options if set(uses) & set(option.uses)]
        here = " or ".join(uses)
        if option is not None:
            what = f"the option {option.name} is for a {' or '.join(option.uses)}, but this is a {here}"
        else:
            near = difflib.get_close_matches(name.lower(), [each.lower() for each in names], 1, 0.5)
            guess = f": did you mean {self._known[near[0]].name}?" if near else ""
            what = f"the data source {self._source} has no option {name!r} for a {here}{guess}"
        raise OptionError(f"{what} (known: {', '.join(names)})")


def check_version(given: Mapping[str, Any]) -> None:
    """Raise OptionError where only one of txnAppId and txnVersion is given for a batch write."""
    if (given["txnVersion"] is None) != (given["txnAppId"] is None):
        raise OptionError(
            "txnAppId and txnVersion together identify a batch write that must happen once: give both "
            "options, with a txnVersion that grows from write to write, or neither option"
        )


def tls_of(given: Mapping[str, Any]) -> Tls | None:
    """Return the settings of the options ``tls.*``. Raises OptionError."""
    certificate, key, authority, server_name = (
        given[f"tls.{name}"] for name in ("certificate", "key", "authority", "serverName")
    )
    if not (certificate or key or authority or server_name):
        return None
    if not (certificate and key and authority):
        raise OptionError("TLS needs the options tls.certificate, tls.key and tls.authority together")
    return Tls(certificate, key, authority, server_name)
