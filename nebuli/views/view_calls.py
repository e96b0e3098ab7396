"""Messages between clients of views and the processes that have them: the bodies of calls.

A question is a msgpack array that begins with its kind, an answer one that begins with a number for the outcome. Keys
and rows are Arrow record batch messages without their schema, which `Description` has. So a request for keys names the
description by which they were written, and if the view has another one now, that is the answer.
"""

from __future__ import annotations

import hashlib
from dataclasses import astuple, dataclass
from enum import IntEnum
from typing import TYPE_CHECKING, Any, ClassVar

import msgpack
import pyarrow as pa

from nebuli.rpc.status import ViewStatus
from nebuli.views.errors import ViewFailed

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = [
    "ADDING",
    "FREE",
    "LISTING",
    "NEVER",
    "Answer",
    "Away",
    "Changed",
    "Describe",
    "Description",
    "Found",
    "Get",
    "Question",
    "Watch",
    "added_bytes",
    "added_of",
    "adding_bytes",
    "adding_of",
    "answer_of",
    "batch_of",
    "bytes_of",
    "listed_bytes",
    "listed_of",
    "question_of",
    "service_of",
]

VERSION = 2
FREE = -1
"""The step in answers of a query that runs free and has none."""
LISTING = "views"
"""The service of a node that lists its views; its requests are empty."""


ADDING = "views/add"
"""The service of a run query that gives it more views."""


def service_of(view: str) -> str:
    """The service of the node that reads of a view are asked of."""
    return f"view/{view}"


@dataclass(frozen=True, slots=True)
class Describe:
    """Asks for the view's description."""

    kind: ClassVar[str] = "describe"


@dataclass(frozen=True, slots=True)
class Get:
    """The rows of these keys, each given once. If all are missing, some of them are waited for so long.

    In steps the members that have them are waited for so long. ``again``: they have been asked for before, and were
    counted then. ``known`` is the description by which the keys were written.
    """

    keys: bytes
    within_s: float
    again: bool
    known: int
    kind: ClassVar[str] = "get"


NEVER = -1
"""The version of a watcher that has not seen the key yet."""


@dataclass(frozen=True, slots=True)
class Watch:
    """The rows of one key, once they are others than those of ``version``, or after so long all the same.

    ``known`` is the description by which the key was written.
    """

    keys: bytes
    version: int
    within_s: float
    known: int
    kind: ClassVar[str] = "watch"


Question = Describe | Get | Watch


class Told(IntEnum):
    """How it went."""

    DESCRIBED = 0
    FOUND = 1
    CHANGED = 2
    WRONG_KEY = 3
    AWAY = 4


@dataclass(frozen=True, slots=True)
class Description:
    """A view: its query and id there, the schema of its rows, and which of the columns are its key.

    ``in_steps``: its query runs so, and answers have the step.
    """

    query: str
    view: str
    schema: bytes
    key: tuple[str, ...]
    is_partial: bool
    in_steps: bool = False
    told: ClassVar[Told] = Told.DESCRIBED

    @property
    def known(self) -> int:
        """A number that is another one, almost surely, where keys or rows are written otherwise."""
        said = msgpack.packb([self.schema, self.key, self.in_steps])
        return int.from_bytes(hashlib.blake2b(said, digest_size=8).digest(), "little")


@dataclass(frozen=True, slots=True)
class Found:
    """The rows of keys, in the order of these.

    For each key ``counts`` has how many rows it has (int32, little-endian; -1: it is missing), and ``hits`` one byte, 1
    where it was there at once. They are as all steps below ``step`` have made them, and no other.
    """

    counts: bytes
    hits: bytes
    rows: bytes
    step: int = FREE
    told: ClassVar[Told] = Told.FOUND


@dataclass(frozen=True, slots=True)
class Changed:
    """The rows of a key that is watched, before a ``step``; nothing else than before if it has the same version."""

    version: int
    rows: bytes
    step: int = FREE
    told: ClassVar[Told] = Told.CHANGED


@dataclass(frozen=True, slots=True)
class Refused:
    """The value is not a key of the view, and why."""

    why: str
    told: ClassVar[Told] = Told.WRONG_KEY


@dataclass(frozen=True, slots=True)
class Away:
    """In steps: not all members that have the keys have answered in time; their names, and the circuit's state."""

    why: str
    told: ClassVar[Told] = Told.AWAY


Answer = Description | Found | Changed | Refused | Away
_QUESTIONS: dict[str, type[Question]] = {each.kind: each for each in (Describe, Get, Watch)}
_ANSWERS: dict[int, type[Answer]] = {
    int(each.told): each for each in (Description, Found, Changed, Refused, Away)
}
_TYPES: dict[str, tuple[type, ...]] = {
    "bytes": (bytes,),
    "float": (float, int),
    "int": (int,),
    "str": (str,),
    "bool": (bool,),
    "tuple[str, ...]": (tuple,),
}
_FIELDS: dict[type[Question | Answer], list[tuple[type, ...]]] = {
    kind: [_TYPES[name] for name in kind.__annotations__.values() if name in _TYPES]
    for kind in (*_QUESTIONS.values(), *_ANSWERS.values())
}
"""The types of each one's fields."""


def bytes_of(said: Question | Answer) -> bytes:
    """Return the bytes for the wire."""
    first = said.kind if isinstance(said, Describe | Get | Watch) else int(said.told)
    packed: bytes = msgpack.packb([VERSION, first, *[getattr(said, name) for name in said.__slots__]])
    return packed


def question_of(body: bytes) -> Question:
    """Parse a question. Raises ViewFailed."""
    said = _parsed(body, _QUESTIONS)
    assert isinstance(said, Describe | Get | Watch)
    return said


def answer_of(body: bytes) -> Answer:
    """Parse an answer. Raises ViewFailed."""
    said = _parsed(body, _ANSWERS)
    assert isinstance(said, Description | Found | Changed | Refused | Away)
    return said


def _parsed(body: bytes, kinds: Any) -> Any:
    try:
        version, first, *fields = msgpack.unpackb(body, use_list=False)
        if version != VERSION:
            raise ViewFailed(_other_version(version))
        kind = kinds[first]
        types = _FIELDS[kind]
        if len(fields) != len(types) or not all(map(isinstance, fields, types)):
            raise ValueError(f"{kind.__name__} with {[type(each).__name__ for each in fields]}")
        return kind(*fields)
    except (ValueError, KeyError, TypeError, msgpack.UnpackException) as error:
        raise ViewFailed(f"{len(body)} bytes that are not a message about views: {error!r}") from error


def listed_bytes(views: Iterable[ViewStatus]) -> bytes:
    """The answer of `LISTING`."""
    packed: bytes = msgpack.packb([VERSION, *(astuple(view) for view in views)])
    return packed


def listed_of(body: bytes) -> list[ViewStatus]:
    """Parse an answer. Raises ViewFailed."""
    try:
        version, *views = msgpack.unpackb(body, use_list=False)
        if version != VERSION:
            raise ViewFailed(_other_version(version))
        return [ViewStatus(*view) for view in views]
    except (ValueError, TypeError, msgpack.UnpackException) as error:
        raise ViewFailed(f"{len(body)} bytes that do not list views: {error!r}") from error


def adding_bytes(text: str, file: str | None) -> bytes:
    """The question of `ADDING`: operators as JSON, and the name of their file."""
    packed: bytes = msgpack.packb([VERSION, text, file])
    return packed


def adding_of(body: bytes) -> tuple[str, str | None]:
    """Parse a question. Raises ViewFailed."""
    try:
        version, text, file = msgpack.unpackb(body)
        if version != VERSION:
            raise ViewFailed(_other_version(version))
        if not isinstance(text, str) or not isinstance(file, str | None):
            raise TypeError(
                f"the text has the type {type(text).__name__}, and the file name the type {type(file).__name__}"
            )
    except (ValueError, TypeError, msgpack.UnpackException) as error:
        raise ViewFailed(f"{len(body)} bytes that do not list the views to add: {error}") from error
    return text, file


def added_bytes(views: Iterable[str] = (), why: str = "", *, again: bool = False) -> bytes:
    """The answer: the views that were added, or why none were; and whether it may be otherwise a moment later."""
    packed: bytes = msgpack.packb([VERSION, [*views], why, again])
    return packed


def added_of(body: bytes) -> tuple[list[str], str, bool]:
    """Parse an answer. Raises ViewFailed."""
    try:
        version, views, why, again = msgpack.unpackb(body)
        if version != VERSION:
            raise ViewFailed(_other_version(version))
        return [str(view) for view in views], str(why), bool(again)
    except (ValueError, TypeError, msgpack.UnpackException) as error:
        raise ViewFailed(f"the answer of {len(body)} bytes is not a list of added views: {error}") from error


def _other_version(version: object) -> str:
    return f"the other side uses version {version} of the protocol for views, and this side {VERSION}"


def batch_of(data: bytes, schema: pa.Schema) -> pa.RecordBatch:
    """Rows, or keys. Raises ViewFailed."""
    try:
        batch = pa.ipc.read_record_batch(pa.py_buffer(data), schema)
        batch.validate()
    except (pa.ArrowException, OSError, EOFError) as error:
        raise ViewFailed(f"{len(data)} bytes are not rows of the view: {error}") from error
    return batch
