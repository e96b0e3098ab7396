"""From transactions of pgoutput to changes in Debezium's form, each at its address: bytes in and out.

An address is where the record begins that commits, prepares or ends a transaction: a slot that was advanced to an
address has exactly what is at it and above.
"""

from __future__ import annotations

import base64
import json
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from nebuli.ingestion.errors import AddressGone, MessageInvalid

from .pgoutput import (
    UNCHANGED,
    Begin,
    BeginPrepare,
    Commit,
    CommitPrepared,
    Delete,
    Insert,
    Prepare,
    Relation,
    RollbackPrepared,
    Truncate,
    Update,
    parse_pgoutput,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from .pgoutput import PgMessage, Values

_OF_ROWS = b"IUDT"
_ENCODE = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode


@dataclass(frozen=True, slots=True)
class Found:
    """The result of a transaction: its messages at their address, and the place after its record."""

    address: int
    end: int
    payloads: list[bytes]


@dataclass(slots=True)
class _Prepared:
    """A transaction that was prepared: where, and where it was committed or rolled back."""

    at: int
    finished: int | None = None


class TransactionChanges:
    """Reads what a slot has, any number of times from wherever the slot is, for the changes of one table.

    ``statuses``: transactions have a BEGIN and an END, or an ABORT, and the slot gives them when they are prepared. The
    BEGIN of one that is prepared is where it was, and all else where it ends: once it is rolled back, the server does
    not have its changes any more, and a reader then has to find the same. It has them though none of its changes
    is of the table, which is not known then, either.
    ``since``: what the slot was at, at any time before the first read. A transaction that was prepared below it is
    given by the server when it is committed, as it was not to be seen before the slot was.
    ``key``: columns whose old values an update has to contain if they differ.
    """

    def __init__(
        self, table: tuple[str, str], key: Sequence[str] = (), *, statuses: bool, since: int
    ) -> None:
        self._table, self._key, self._statuses, self._since = table, key, statuses, since
        self._prepared: dict[str, _Prepared] = {}

    def read(self, rows: Iterable[bytes], at: int) -> list[Found]:
        """Return the messages of a peek, at and above an address. Raises MessageInvalid, AddressGone."""
        return list(
            _Peek(
                self._table,
                self._key,
                statuses=self._statuses,
                since=self._since,
                at=at,
                prepared=self._prepared,
            ).read(rows)
        )

    def needed(self, before: int) -> int:
        """Return from where the slot has to be kept, if messages before an address are no longer needed.

        Changes delivered at the end of a transaction are known from where it was prepared.
        """
        return min([before, *(each.at for each in self._prepared.values() if _is_needed(each, before))])

    def forget(self, below: int) -> None:
        """Drop what the slot does not have any more."""
        for key in [key for key, each in self._prepared.items() if each.at < below]:
            if not _is_needed(self._prepared[key], below):
                del self._prepared[key]


def _is_needed(prepared: _Prepared, before: int) -> bool:
    return prepared.at < before and (prepared.finished is None or prepared.finished >= before)


class _Peek:
    """One pass over what a slot has; relations are sent again in each."""

    def __init__(
        self,
        table: tuple[str, str],
        key: Sequence[str],
        *,
        statuses: bool,
        since: int,
        at: int,
        prepared: dict[str, _Prepared],
    ) -> None:
        self._table, self._key, self._statuses, self._since, self._at = table, key, statuses, since, at
        self._prepared = prepared
        self._tables: dict[int, _Table] = {}
        self._begun: Begin | BeginPrepare | None = None
        self._changes: list[dict[str, Any]] = []
        self._held: dict[
            str, tuple[list[bytes], list[bytes]]
        ] = {}  # the BEGIN, if it comes as late, and the changes

    def read(self, rows: Iterable[bytes]) -> Iterable[Found]:
        for data in rows:
            if data[:1] in _OF_ROWS and not self._is_wanted(data):
                continue
            found = self._take(parse_pgoutput(data))
            if found is not None and found.address >= self._at:
                yield found

    def _is_wanted(self, data: bytes) -> bool:
        """True if a change is needed: it is of the table, and was not read yet."""
        begun = self._begun
        if begun is None:
            raise MessageInvalid("a change is outside a transaction")
        if isinstance(begun, Begin) and begun.lsn < self._at:
            return False
        return data[:1] == b"T" or int.from_bytes(data[1:5]) in self._tables

    def _take(self, message: PgMessage) -> Found | None:
        match message:
            case Relation():
                self._tables.pop(message.oid, None)
                if (message.schema, message.name) == self._table:
                    self._tables[message.oid] = _Table(message, self._key)
            case Insert() | Update() | Delete():
                self._changes.append(self._tables[message.relation].change(message))
            case Truncate():
                if any(oid in self._tables for oid in message.relations):
                    self._changes.append({"op": "t", "before": None, "after": None})
            case Prepare():
                return self._prepare(message)
            case Begin() | BeginPrepare():
                self._begun, self._changes = message, []
            case Commit():
                return self._commit(message)
            case CommitPrepared() | RollbackPrepared():
                return self._finish(message)
        return None

    def _commit(self, message: Commit) -> Found:
        begun = self._ended(message.lsn)
        assert isinstance(begun, Begin)
        key = str(begun.xid)
        payloads = self._payloads(key)
        if self._statuses and payloads:
            payloads = [_status("BEGIN", key), *payloads, _status("END", key, len(payloads))]
        return Found(message.lsn, message.end, payloads)

    def _prepare(self, message: Prepare) -> Found | None:
        self._ended(message.lsn)
        key = _key(message)
        begin = _status("BEGIN", key)
        is_late = message.lsn < self._since
        self._held[key] = [begin] if is_late else [], self._payloads(key)
        if is_late:
            return None
        self._prepared.setdefault(key, _Prepared(message.lsn))
        return Found(message.lsn, message.end, [begin])

    def _finish(self, message: CommitPrepared | RollbackPrepared) -> Found | None:
        key = _key(message)
        held, prepared = self._held.pop(key, None), self._prepared.get(key)
        if isinstance(message, RollbackPrepared):
            # The place where its record begins is not sent; nothing else is in it, and the slot is kept from before it.
            address, payloads = message.end - 1, [_status("ABORT", key)]
        elif held is not None:
            begin, changes = held
            address, payloads = message.lsn, [*begin, *changes, _status("END", key, len(changes))]
        elif message.lsn < self._at:
            return None
        else:
            raise AddressGone(
                f"the transaction {message.gid!r} ends at {message.lsn}, but the slot was "
                f"advanced to {self._since}, past the place where this transaction was prepared"
            )
        if prepared is not None:
            prepared.finished = address
        return Found(address, message.end, payloads)

    def _ended(self, lsn: int) -> Begin | BeginPrepare:
        begun, self._begun = self._begun, None
        if begun is None or begun.lsn != lsn:
            raise MessageInvalid(
                f"a transaction ends at {lsn}, but the last transaction that began is {begun}"
            )
        return begun

    def _payloads(self, key: str) -> list[bytes]:
        changes, self._changes = self._changes, []
        return [
            _ENCODE({**change, "transaction": {"id": key, "total_order": order}}).encode()
            for order, change in enumerate(changes, 1)
        ]


def _key(message: BeginPrepare | CommitPrepared | RollbackPrepared) -> str:
    """A name is free again once its transaction is over; its number is not."""
    return f"{message.gid}:{message.xid}"


def _status(status: str, key: str, count: int | None = None) -> bytes:
    counted = {} if count is None else {"event_count": count}
    return _ENCODE({"status": status, "id": key, **counted}).encode()


class _Table:
    """Rows of the table, as its columns were when they were written."""

    def __init__(self, relation: Relation, key: Sequence[str]) -> None:
        self._relation = relation
        identity = {each.name for each in relation.columns if each.is_key}
        self._unsaid = [name for name in key if name not in identity]
        """Key columns for which an update does not show a change."""
        self._columns = [(each.name, _CONVERTS.get(each.type, _text)) for each in relation.columns]
        self._keys = [each.is_key for each in relation.columns]

    def change(self, message: Insert | Update | Delete) -> dict[str, Any]:
        """One as Debezium writes it, but for its transaction."""
        match message:
            case Insert(new=new):
                return {"op": "c", "before": None, "after": self._row(new)}
            case Update(old=old, whole=whole, new=new):
                if old is None and self._unsaid:
                    raise MessageInvalid(
                        f"an update of {self._relation.schema}.{self._relation.name} does not "
                        f"have the old value of key column {self._unsaid[0]}, which was not in "
                        f"the table's replica identity at that time: drop the source, and create it again"
                    )
                new = self._known(old, whole, new)
                change = {"op": "u", "before": self._before(old, whole), "after": self._row(new)}
                unchanged = [
                    name for (name, _), value in zip(self._columns, new, strict=True) if value is UNCHANGED
                ]
                return {**change, "unchanged": unchanged} if unchanged else change
            case Delete(old=old, whole=whole):
                return {"op": "d", "before": self._before(old, whole), "after": None}

    def _before(self, old: Values | None, whole: bool) -> dict[str, object] | None:
        if old is None:
            return None
        row = self._row(old)
        return (
            row
            if whole
            else {name: row[name] for (name, _), key in zip(self._columns, self._keys, strict=True) if key}
        )

    def _known(self, old: Values | None, whole: bool, new: Values) -> Values:
        """The new row, with values that are stored apart, and stayed, as far as the old row has them."""
        if old is None or len(old) != len(new):
            return new
        has = [whole or key for key in self._keys]
        return tuple(
            was if now is UNCHANGED and is_there else now
            for was, now, is_there in zip(old, new, has, strict=True)
        )

    def _row(self, values: Sequence[Any]) -> dict[str, object]:
        if len(values) != len(self._columns):
            raise MessageInvalid(
                f"expected {len(self._columns)} columns of {self._relation.schema}.{self._relation.name}, "
                f"got {len(values)}"
            )
        try:
            return {
                name: None if value is None else convert(value)
                for (name, convert), value in zip(self._columns, values, strict=True)
                if value is not UNCHANGED
            }
        except ValueError as error:
            raise MessageInvalid(
                f"a value of {self._relation.schema}.{self._relation.name} does not have its column's type: {error}"
            ) from error


def _text(value: bytes) -> str:
    return value.decode()


def _truth(value: bytes) -> bool:
    return value == b"t"


def _float(value: bytes) -> float | str:
    """JSON has no infinity."""
    number = float(value)
    return number if math.isfinite(number) else value.decode()


def _base64(value: bytes) -> str:
    return base64.b64encode(bytes.fromhex(value.removeprefix(b"\\x").decode())).decode()


def _timestamp(value: bytes) -> str:
    """Infinity, and years before the first, stay as the server writes them."""
    return value.decode().replace(" ", "T", 1) if not value.endswith(b"BC") else value.decode()


def _moment(value: bytes) -> str:
    return f"{_timestamp(value[:-3])}Z" if value.endswith(b"+00") else value.decode()


_CONVERTS: dict[int, Callable[[bytes], object]] = {
    16: _truth,
    17: _base64,
    20: int,
    21: int,
    23: int,
    700: _float,
    701: _float,
    1114: _timestamp,
    1184: _moment,
}
"""By the OIDs of pg_type: bool, bytea, int8, int2, int4, float4, float8, timestamp, timestamptz; all else is text."""
