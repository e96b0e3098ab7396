"""Values that travel through the public API, and what names and arguments may be."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

CONSUMERS_LIMIT = 1000
"""Names at one channel: each keeps what it has not acknowledged."""
NAME_LIMIT = 255
"""The longest name of a consumer, or of a holder, in characters."""
LARGEST_SIZE = (1 << 63) - 1
"""The largest size that a server may be given, in bytes: one that the system takes, and the wire can express."""


_NOT_PRINTABLE = re.compile(
    "[\\x00-\\x1f\\x7f-\\xa0\\xad\\u0600-\\u0605\\u061c\\u06dd\\u070f\\u0890\\u0891\\u08e2\\u1680\\u180e"
    "\\u2000-\\u200f\\u2028-\\u202f\\u205f-\\u206f\\u3000\\ud800-\\uf8ff\\ufeff\\ufff9-\\ufffb\\ufffe\\uffff"
    "\\U000110bd\\U000110cd\\U00013430-\\U0001343f\\U0001bca0-\\U0001bca3\\U0001d173-\\U0001d17a"
    "\\U000e0000-\\U000e00ff\\U000e01f0-\\U0010ffff]"
)
"""Control and format characters, spaces but U+0020, private use, surrogates, and unassigned code points:
fixed, where `str.isprintable` follows the Unicode that a Python knows, so that two peers would take different
names."""


def is_printable(text: str) -> bool:
    """True if all of it can be shown, in any version of Unicode."""
    return _NOT_PRINTABLE.search(text) is None


def is_consumer(name: str) -> bool:
    """True if it can be the name of a consumer, or of a holder."""
    return 0 < len(name) <= NAME_LIMIT and is_printable(name)


class Position(NamedTuple):
    """A place in a stream: ``sequence`` is the number of the next message."""

    stream: str
    sequence: int


class Heads(NamedTuple):
    """The extent of a retained stream: messages ``oldest`` to ``head`` (excluded) can be read.

    ``rows`` and ``bytes`` count all messages since number 0, so the difference of two heads is the size of the messages
    between them; a message of the codec ``bytes`` counts as one row. ``ended``: no message follows ``head``.
    ``failure`` is the producer's message if it aborted.
    """

    stream: str
    oldest: int
    head: int
    rows: int
    bytes: int
    ended: bool
    failure: str | None


class Located(NamedTuple):
    """The end of a range requested by its size (``until``, excluded), and the rows and bytes of the range."""

    until: int
    rows: int
    bytes: int


class Moment(NamedTuple):
    """The place of a time in a stream, between the earlier messages and those of that time or later.

    ``since`` is the number of the first message of that time or later, and ``before`` is the number after the last
    earlier message. Both numbers are the same, unless the sender's clock went back.
    """

    stream: str
    since: int
    before: int


class Group(NamedTuple):
    """The work that a staged attempt belongs to: a partition in an epoch of an application.

    Epochs of an application are committed in order; a partition may have any number of attempts.
    """

    application: str
    epoch: int
    partition: int


class Sealed(NamedTuple):
    """An attempt that is durable at the receiver, for `GroupClient.commit`.

    It has ``count`` messages with ``rows`` rows (a message of the codec ``bytes`` counts as one) and ``bytes`` bytes;
    ``checksum`` is XXH3-64 over the XXH3-64 checksums of all their bodies, in order, 8 bytes each (little-endian).
    """

    partition: int
    attempt: str
    count: int  # type: ignore[assignment]  # not tuple's method
    rows: int
    bytes: int
    checksum: int


class Message(NamedTuple):
    """The result of ``recv_message``.

    ``batch`` is a pyarrow.RecordBatch, or a bytes-like object with the codec ``bytes``; ``timestamp`` is the time of
    the sender's ``send``, in microseconds since 1970 UTC.
    """

    batch: Any
    note: bytes
    sequence: int
    timestamp: int


@dataclass(frozen=True, slots=True)
class CloseReport:
    """The outcome of a stream at ``close``: numbers below ``acknowledged`` were acknowledged.

    ``undelivered`` messages from number ``undelivered_from`` on were given up; None and 0 after a clean end.
    """

    acknowledged: int
    undelivered_from: int | None = None
    undelivered: int = 0


_AS = {
    "listen": ", such as '127.0.0.1:9000'",
    "to": ", such as '127.0.0.1:9000': the attribute `address` of a ReceiverServer has its address",
}


def with_article(kind: type) -> str:
    """A type's name as a sentence has it: an int, a str, bytes."""
    name = kind.__name__
    if name in ("bytes", "NoneType"):
        return name.removesuffix("Type")
    return f"{'an' if name[0] in 'aeioAEIO' else 'a'} {name}"


def check_kind(name: str, value: object, kind: type) -> None:
    """Raise TypeError if the setting ``name`` is given and is not a ``kind``."""
    if value is not None and not isinstance(value, kind):
        shown = with_article(type(value)) if name == "secret" else repr(value)
        raise TypeError(f"{name} is {shown}: expected {with_article(kind)}{_AS.get(name, '')}")


def check_given(name: str, value: object, kind: type) -> None:
    """Raise TypeError if ``name``, which must be given, is not a ``kind``."""
    if not isinstance(value, kind):
        raise TypeError(f"{name} is {value!r}: expected {with_article(kind)}{_AS.get(name, '')}")


def is_channel_id(text: str) -> bool:
    """True if it can be a channel id: 1 to 255 bytes of printable UTF-8."""
    return 1 <= len(text) <= 255 and _is_channel_id(text)


@lru_cache(1024)  # of each call's service both sides ask it
def _is_channel_id(text: str) -> bool:
    # Surrogates are not printable, so what passes can be encoded.
    return is_printable(text) and len(text.encode()) <= 255


def check_channel_id(channel_id: str) -> str:
    """A channel id is 1 to 255 bytes of printable UTF-8. Raises TypeError or ValueError otherwise."""
    if not isinstance(channel_id, str):
        raise TypeError(
            f"the channel id {channel_id!r} is not a string: expected 1 to 255 bytes of printable UTF-8"
        )
    if not is_channel_id(channel_id):
        raise ValueError(
            f"the channel id {channel_id[:60]!r} of {len(channel_id)} characters is invalid: expected 1 to 255 bytes "
            f"of printable UTF-8"
        )
    return channel_id


@dataclass(frozen=True, slots=True)
class Ending:
    """The stream is over after ``count`` messages; ``failure`` is the producer's message, None at a clean end."""

    count: int
    failure: str | None


class AttemptKey(NamedTuple):
    """The name of an attempt; ``attempt`` distinguishes those that were made for the same partition."""

    application: str
    epoch: int
    partition: int
    attempt: str

    @property
    def stream(self) -> str:
        """The identity of the attempt's numbers, in the header of its file."""
        return json.dumps(self, ensure_ascii=False)
