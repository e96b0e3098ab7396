"""Messages of PostgreSQL's plugin pgoutput, of protocol versions 1 to 3 and nothing streamed: bytes in, values out.

Chapter "Logical Replication Message Formats" of PostgreSQL's manual.
"""

from __future__ import annotations

from dataclasses import dataclass
from struct import Struct
from struct import error as StructError  # noqa: N812 - it is a class, with a name of a function's
from typing import TYPE_CHECKING, Final

from nebuli.ingestion.errors import MessageInvalid

if TYPE_CHECKING:
    from collections.abc import Callable

UNCHANGED: Final = ...
"""In place of a value that is stored apart, and that an update left as it was."""
Values = tuple[object, ...]
"""A row, by the order of its relation's columns: text in the client's encoding, None, or `UNCHANGED`."""


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a relation; ``type`` is the OID."""

    name: str
    type: int
    is_key: bool


@dataclass(frozen=True, slots=True)
class Relation:
    """A table as it was for later changes; sent before its first change, and again when it is altered."""

    oid: int
    schema: str
    name: str
    columns: tuple[Column, ...]


@dataclass(frozen=True, slots=True)
class Begin:
    """A transaction that was committed by the record at ``lsn``; its changes follow."""

    lsn: int
    xid: int


@dataclass(frozen=True, slots=True)
class Commit:
    """The end of its changes; ``end`` is after the record at ``lsn``."""

    lsn: int
    end: int


@dataclass(frozen=True, slots=True)
class BeginPrepare:
    """A transaction that was prepared by the record at ``lsn``; its changes follow."""

    lsn: int
    end: int
    xid: int
    gid: str


@dataclass(frozen=True, slots=True)
class Prepare(BeginPrepare):
    """The end of its changes; whether they hold comes later."""


@dataclass(frozen=True, slots=True)
class CommitPrepared:
    """A transaction that was prepared, and is committed by the record at ``lsn``."""

    lsn: int
    end: int
    xid: int
    gid: str


@dataclass(frozen=True, slots=True)
class RollbackPrepared:
    """A transaction that was prepared, and is rolled back by the record before ``end``."""

    prepared_end: int
    end: int
    xid: int
    gid: str


@dataclass(frozen=True, slots=True)
class Insert:
    """A row that is new."""

    relation: int
    new: Values


@dataclass(frozen=True, slots=True)
class Update:
    """A row that is another one. ``old`` is what identified it, if that changed, or all of it if it is ``whole``."""

    relation: int
    old: Values | None
    whole: bool
    new: Values


@dataclass(frozen=True, slots=True)
class Delete:
    """A row that is gone; ``old`` as in `Update`."""

    relation: int
    old: Values
    whole: bool


@dataclass(frozen=True, slots=True)
class Truncate:
    """All rows of these are gone."""

    relations: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class OtherMessage:
    """Messages that no row depends on: origins, types and messages of programs."""


PgMessage = (
    Relation
    | Begin
    | Commit
    | BeginPrepare
    | Prepare
    | CommitPrepared
    | RollbackPrepared
    | Insert
    | Update
    | Delete
    | Truncate
    | OtherMessage
)

_BEGIN, _COMMIT = Struct(">qqI"), Struct(">Bqqq")
_BEGIN_PREPARE, _PREPARED = Struct(">qqqI"), Struct(">BqqqI")
_ROLLED_BACK = Struct(">BqqqqI")
_OID, _COUNT, _COLUMN, _LENGTH = Struct(">I"), Struct(">h"), Struct(">Ii"), Struct(">i")
_TRUNCATE = Struct(">iB")
_IS_KEY = 1


def parse_pgoutput(data: bytes) -> PgMessage:
    """Read a message. Raises MessageInvalid if it is malformed, too short, or too long."""
    parse = _PARSERS.get(data[:1])
    if parse is None:
        raise MessageInvalid(f"expected a message of pgoutput, got one that begins with {data[:1]!r}")
    reading = _Reading(data)
    try:
        message = parse(reading)
    except (StructError, IndexError, ValueError) as error:
        raise MessageInvalid(
            f"expected a message {data[:1].decode()!r} of pgoutput, got {len(data)} malformed bytes: {error}"
        ) from error
    if reading.at != len(data):
        raise MessageInvalid(
            f"expected a message {data[:1].decode()!r} of pgoutput that ends at byte {reading.at}, got "
            f"{len(data)} bytes"
        )
    return message


class _Reading:
    """A place in a message."""

    __slots__ = ("at", "data")

    def __init__(self, data: bytes) -> None:
        self.data, self.at = data, 1

    def take(self, struct: Struct) -> tuple[int, ...]:
        found = struct.unpack_from(self.data, self.at)
        self.at += struct.size
        return found

    def byte(self) -> bytes:
        self.at += 1
        return self.data[self.at - 1 : self.at]

    def text(self) -> str:
        end = self.data.index(0, self.at)
        found = self.data[self.at : end].decode()
        self.at = end + 1
        return found

    def values(self) -> Values:
        data = self.data
        (count,) = self.take(_COUNT)
        at, found = self.at, list[object]()
        for _ in range(count):
            kind = data[at]
            at += 1
            if kind == _TEXT:
                (length,) = _LENGTH.unpack_from(data, at)
                at += 4 + length
                if length < 0 or at > len(data):
                    raise ValueError(f"a value of {length} bytes ends at byte {at} of {len(data)}")
                found.append(data[at - length : at])
            elif kind == _NULL:
                found.append(None)
            elif kind == _SAME:
                found.append(UNCHANGED)
            else:
                raise ValueError(f"a value of the kind {chr(kind)!r}, which was not requested")
        self.at = at
        return tuple(found)

    def old(self) -> tuple[Values, bool] | None:
        """Return the old key of a row, or the old row, if it is here."""
        if (kind := self.data[self.at : self.at + 1]) not in (b"K", b"O"):
            return None
        self.at += 1
        return self.values(), kind == b"O"

    def new(self) -> Values:
        if (kind := self.byte()) != b"N":
            raise ValueError(f"expected b'N' before a new row, got {kind!r}")
        return self.values()


_TEXT, _NULL, _SAME = b"tnu"


def _relation(reading: _Reading) -> Relation:
    (oid,) = reading.take(_OID)
    schema, name = reading.text(), reading.text()
    reading.byte()  # the replica identity, which follows from the flags of columns
    (count,) = reading.take(_COUNT)
    columns = []
    for _ in range(count):
        flags = reading.byte()[0]
        column = reading.text()
        kind, _ = reading.take(_COLUMN)
        columns.append(Column(column, kind, is_key=bool(flags & _IS_KEY)))
    return Relation(oid, schema or "pg_catalog", name, tuple(columns))


def _begin(reading: _Reading) -> Begin:
    lsn, _, xid = reading.take(_BEGIN)
    return Begin(lsn, xid)


def _commit(reading: _Reading) -> Commit:
    _, lsn, end, _ = reading.take(_COMMIT)
    return Commit(lsn, end)


def _begin_prepare(reading: _Reading) -> BeginPrepare:
    lsn, end, _, xid = reading.take(_BEGIN_PREPARE)
    return BeginPrepare(lsn, end, xid, reading.text())


def _prepare(reading: _Reading) -> Prepare:
    _, lsn, end, _, xid = reading.take(_PREPARED)
    return Prepare(lsn, end, xid, reading.text())


def _commit_prepared(reading: _Reading) -> CommitPrepared:
    _, lsn, end, _, xid = reading.take(_PREPARED)
    return CommitPrepared(lsn, end, xid, reading.text())


def _rollback_prepared(reading: _Reading) -> RollbackPrepared:
    _, prepared_end, end, _, _, xid = reading.take(_ROLLED_BACK)
    return RollbackPrepared(prepared_end, end, xid, reading.text())


def _insert(reading: _Reading) -> Insert:
    (oid,) = reading.take(_OID)
    return Insert(oid, reading.new())


def _update(reading: _Reading) -> Update:
    (oid,) = reading.take(_OID)
    old = reading.old()
    values, whole = (None, False) if old is None else old
    return Update(oid, values, whole, reading.new())


def _delete(reading: _Reading) -> Delete:
    (oid,) = reading.take(_OID)
    old = reading.old()
    if old is None:
        raise ValueError("the message does not identify the deleted row")
    return Delete(oid, *old)


def _truncate(reading: _Reading) -> Truncate:
    count, _ = reading.take(_TRUNCATE)
    return Truncate(tuple(reading.take(_OID)[0] for _ in range(count)))


def _aside(reading: _Reading) -> OtherMessage:
    reading.at = len(reading.data)
    return OtherMessage()


_PARSERS: dict[bytes, Callable[[_Reading], PgMessage]] = {
    b"R": _relation,
    b"B": _begin,
    b"C": _commit,
    b"b": _begin_prepare,
    b"P": _prepare,
    b"K": _commit_prepared,
    b"r": _rollback_prepared,
    b"I": _insert,
    b"U": _update,
    b"D": _delete,
    b"T": _truncate,
    b"O": _aside,
    b"Y": _aside,
    b"M": _aside,
}
