"""`Vocabulary`: the messages that one side may send. Here bytes become values of checked types, and nowhere else.

A message is a frozen dataclass, and travels as its kind and its fields in order, in a MessagePack array. The types of
fields determine how each is read.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import astuple
from typing import Any, Generic, NewType, TypeVar, get_type_hints

import msgpack

from nebuli.steps.protocol.errors import MalformedMessage

_Message = TypeVar("_Message")
_Value = TypeVar("_Value")
Reader = Callable[[Any], Any]
"""From what MessagePack gives to a value. Raises ValueError, which names the expected type."""
Instant = NewType("Instant", int)
"""Microseconds since 1970."""
_NUMBERS = 1 << 64
_TEXT_LIMIT = 1 << 12


class Vocabulary(Generic[_Message]):
    """Messages by their kinds.

    ``types`` are those of fields, in addition to numbers, booleans and strings, with their readers.
    """

    def __init__(self, kinds: Mapping[str, type[_Message]], types: Mapping[Any, Reader]) -> None:
        self._kinds = dict(kinds)
        self._names = {kind: name for name, kind in kinds.items()}
        readers = {int: number, bool: truth, str: text, **types}
        self._fields = {
            kind: [(field, readers[hint]) for field, hint in get_type_hints(kind).items()]
            for kind in kinds.values()
        }

    def values(self, message: _Message) -> list[Any]:
        """The kind of a message, and its fields."""
        kind = type(message)
        return [self._names[kind], *(getattr(message, field) for field, _ in self._fields[kind])]

    def message(self, values: list[Any]) -> _Message:
        """The message of these values. Raises ValueError."""
        if not values or not isinstance(values[0], str):
            raise ValueError(f"they are {str(values)[:80]!r}, not an array that begins with a kind")
        name, *given = values
        kind = self._kinds.get(name)
        if kind is None:
            raise ValueError(f"the kind {name[:40]!r} is not known here")
        fields = self._fields[kind]
        if len(given) != len(fields):
            raise ValueError(f"{name!r} has {len(given)} fields and not {len(fields)}")
        read = []
        for (field, reader), value in zip(fields, given, strict=True):
            try:
                read.append(reader(value))
            except ValueError as error:
                raise ValueError(f"{field} of {name!r} is {str(value)[:80]!r}, {error}") from error
        return kind(*read)


def packed(values: list[Any]) -> bytes:
    """The bytes of an array; a dataclass in it is the array of its fields."""
    data: bytes = msgpack.packb(values, default=astuple)
    return data


def read(data: bytes, sender: str, parse: Callable[[list[Any]], _Value]) -> _Value:
    """Return the result of ``parse`` for the array in these bytes. Raises MalformedMessage, which names the sender."""
    try:
        return parse(_unpacked(data))
    except ValueError as error:
        raise malformed(data, sender, error) from error


def malformed(data: bytes, sender: str, error: ValueError) -> MalformedMessage:
    """Return the error of the sender of these bytes."""
    return MalformedMessage(sender, f"sent {len(data)} bytes that are not a message, {error}")


def _unpacked(data: bytes) -> list[Any]:
    try:
        values = msgpack.unpackb(data, strict_map_key=True)
    except (ValueError, msgpack.exceptions.UnpackException) as error:
        raise ValueError(f"they are not MessagePack ({str(error) or type(error).__name__})") from error
    if not isinstance(values, list):
        raise ValueError(f"they are {str(values)[:80]!r}, not an array")  # noqa: TRY004 - see truth
    return values


# -- readers


def number(value: Any) -> int:
    """A whole number, from 0 on."""
    if type(value) is not int or not 0 <= value < _NUMBERS:
        raise ValueError("not a number of 64 bits")
    return value


def numbers(value: Any) -> tuple[int, ...]:
    """An array of numbers."""
    return tuple(number(each) for each in array(value))


def instant(value: Any) -> Instant:
    """A time in microseconds since 1970, also one before."""
    if type(value) is not int or not -(_NUMBERS >> 1) <= value < _NUMBERS >> 1:
        raise ValueError("not a time in microseconds")
    return Instant(value)


def truth(value: Any) -> bool:
    """True or false."""
    if not isinstance(value, bool):
        raise ValueError("neither true nor false")  # noqa: TRY004 - one type for all that is wrong with bytes
    return value


def text(value: Any) -> str:
    """A text that is not too long."""
    if not isinstance(value, str) or len(value) > _TEXT_LIMIT:
        raise ValueError(f"not a text of at most {_TEXT_LIMIT} characters")
    return value


def array(value: Any) -> list[Any]:
    """An array of anything."""
    if not isinstance(value, list):
        raise ValueError("not an array")  # noqa: TRY004 - see truth
    return value


def texts(value: Any) -> tuple[str, ...]:
    """An array of texts."""
    return tuple(text(each) for each in array(value))
