"""What a server of PostgreSQL 15 wrote is read as what it meant, and what it did not write is refused."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest

from nebuli.ingestion.errors import AddressGone, MessageInvalid
from nebuli.ingestion.readers.pgoutput import (
    Begin,
    BeginPrepare,
    Column,
    Commit,
    CommitPrepared,
    Delete,
    Insert,
    OtherMessage,
    PgMessage,
    Prepare,
    Relation,
    RollbackPrepared,
    Truncate,
    Update,
    parse_pgoutput,
)
from nebuli.ingestion.readers.transaction_changes import Found, TransactionChanges

# create table t (k int primary key, a text, b float8, n numeric, w timestamptz, y bytea, o bool); and other (k int).
BEGIN = "42000000000152dc480003043bdcccf638000002d7"
RELATION = (
    "52000040007075626c6963007400640007016b0000000017ffffffff00610000000019ffffffff006200000002bdffffffff006e0000"
    "0006a4ffffffff007700000004a0ffffffff00790000000011ffffffff006f0000000010ffffffff"
)
INSERT = (
    "49000040004e00077400000001317400000001787400000003312e357400000004312e3235740000001c323032362d31312d32372030"
    "373a33343a34342e31333238342b303074000000045c786666740000000174"
)
COMMIT = "4300000000000152dc48000000000152dc780003043bdcccf638"
BEGIN_PREPARE = "62000000000152dd38000000000152de900003043bdcccfaa8000002d8673100"
PREPARED_INSERT = "49000040004e00077400000001327400000001796e6e6e6e6e"
OTHER = "52000040077075626c6963006f7468657200640001006b0000000017ffffffff"
OTHER_INSERT = "49000040074e0001740000000131"
PREPARE = "5000000000000152dd38000000000152de900003043bdcccfaa8000002d8673100"
MOVE = (
    "55000040004b00077400000001316e6e6e6e6e6e4e000774000000013574000000017a7400000003312e357400000004312e32357400"
    "00001c323032362d31312d32372030373a33343a34342e31333238342b303074000000045c786666740000000174"
)
COMMIT_PREPARED = "4b00000000000152e020000000000152e0580003043bdccd0209000002d8673100"
BEGIN_OTHER = "62000000000152e0d8000000000152e1d00003043bdccd0562000002db673200"
PREPARE_OTHER = "5000000000000152e0d8000000000152e1d00003043bdccd0562000002db673200"
ROLLBACK_PREPARED = "7200000000000152e1d0000000000152e2080003043bdccd05620003043bdccd06c3000002db673200"
DELETE = "44000040004b00077400000001356e6e6e6e6e6e"
TRUNCATE = "5400000002000000400000004007"

ROW = (b"1", b"x", b"1.5", b"1.25", b"2026-11-27 07:34:44.13284+00", b"\\xff", b"t")
COLUMNS = [("k", 23), ("a", 25), ("b", 701), ("n", 1700), ("w", 1184), ("y", 17), ("o", 16)]
MEANT: dict[str, PgMessage] = {
    BEGIN: Begin(0x152DC48, 727),
    RELATION: Relation(16384, "public", "t", tuple(Column(*each, each[0] == "k") for each in COLUMNS)),
    INSERT: Insert(16384, ROW),
    COMMIT: Commit(0x152DC48, 0x152DC78),
    BEGIN_PREPARE: BeginPrepare(0x152DD38, 0x152DE90, 728, "g1"),
    PREPARE: Prepare(0x152DD38, 0x152DE90, 728, "g1"),
    MOVE: Update(16384, (b"1", *[None] * 6), False, (b"5", b"z", *ROW[2:])),
    COMMIT_PREPARED: CommitPrepared(0x152E020, 0x152E058, 728, "g1"),
    ROLLBACK_PREPARED: RollbackPrepared(0x152E1D0, 0x152E208, 731, "g2"),
    DELETE: Delete(16384, (b"5", *[None] * 6), False),
    TRUNCATE: Truncate((16384, 16391)),
}


@pytest.mark.parametrize("written", MEANT)
def test_what_the_server_wrote_is_what_it_meant(written: str) -> None:
    assert parse_pgoutput(bytes.fromhex(written)) == MEANT[written]


@pytest.mark.parametrize("written", MEANT)
def test_what_is_cut_or_goes_on_is_no_message(written: str) -> None:
    data = bytes.fromhex(written)
    for end in range(len(data)):
        with pytest.raises(MessageInvalid, match="pgoutput"):
            parse_pgoutput(data[:end])
    with pytest.raises(MessageInvalid, match=f"at byte {len(data)}, got {len(data) + 1}"):
        parse_pgoutput(data + b"\0")


def test_bytes_that_are_none_are_a_message_or_refused() -> None:
    """With nothing else than the error that is for it."""
    drawn = random.Random(7)
    for written in list(MEANT) * 500:
        data = bytearray.fromhex(written)
        for _ in range(drawn.randint(1, 3)):
            data[drawn.randrange(len(data))] = drawn.choice((0, 1, 0x7F, 0xFF, drawn.randrange(256)))
        try:
            parse_pgoutput(bytes(data))
        except MessageInvalid:
            continue


def test_what_no_row_depends_on_is_passed_over() -> None:
    assert parse_pgoutput(b"Y\0\0@\x01public\0mood\0") == OtherMessage()


def read(*written: str, since: int = 0, at: int = 0, statuses: bool = True) -> list[tuple[int, list[Any]]]:
    changes = TransactionChanges(("public", "t"), statuses=statuses, since=since)
    return told(changes.read(map(bytes.fromhex, written), at))


def told(found: list[Found]) -> list[tuple[int, list[Any]]]:
    return [(each.address, [json.loads(payload) for payload in each.payloads]) for each in found]


AFTER = {"k": 1, "a": "x", "b": 1.5, "n": "1.25", "w": "2026-11-27T07:34:44.13284Z", "y": "/w==", "o": True}
SECOND = {**dict.fromkeys(AFTER), "k": 2, "a": "y"}


def created(transaction: str, after: dict[str, Any]) -> dict[str, Any]:
    return {"op": "c", "before": None, "after": after, "transaction": {"id": transaction, "total_order": 1}}


def test_a_transaction_is_at_the_record_of_its_commit() -> None:
    written = (BEGIN, RELATION, INSERT, COMMIT)
    assert read(*written, statuses=False) == [(0x152DC48, [created("727", AFTER)])]
    assert read(*written, at=0x152DC48, statuses=False) == [(0x152DC48, [created("727", AFTER)])]
    assert read(*written, at=0x152DC49, statuses=False) == []


def test_a_transaction_that_was_prepared_before_the_slot_was_is_there_when_it_is_committed() -> None:
    """The server gives it then; its place is that of its commit, as addresses never go down. ST-ING-4."""
    prepared = (RELATION, BEGIN_PREPARE, PREPARED_INSERT, OTHER, OTHER_INSERT, PREPARE)
    begin, change = {"status": "BEGIN", "id": "g1:728"}, created("g1:728", SECOND)
    end = {"status": "END", "id": "g1:728", "event_count": 1}
    assert read(*prepared, COMMIT_PREPARED, since=0x152DD38) == [
        (0x152DD38, [begin]),
        (0x152E020, [change, end]),
    ]
    assert read(*prepared, COMMIT_PREPARED, since=0x152DD39) == [(0x152E020, [begin, change, end])]


def test_the_slot_is_kept_for_as_long_as_an_end_has_to_be_counted() -> None:
    changes = TransactionChanges(("public", "t"), statuses=True, since=0)
    prepared = (RELATION, BEGIN_PREPARE, PREPARED_INSERT, PREPARE)
    changes.read(map(bytes.fromhex, prepared), 0)
    assert changes.needed(0x152DD38) == 0x152DD38
    assert changes.needed(0x152FFFF) == 0x152DD38
    of_others = (BEGIN_OTHER, PREPARE_OTHER, ROLLBACK_PREPARED)
    found = changes.read(map(bytes.fromhex, (*prepared, COMMIT_PREPARED, *of_others)), 0x152E020)
    end = {"status": "END", "id": "g1:728", "event_count": 1}
    rolled_back = [{"status": each, "id": "g2:731"} for each in ("BEGIN", "ABORT")]
    assert told(found) == [
        (0x152E020, [created("g1:728", SECOND), end]),
        (0x152E0D8, rolled_back[:1]),
        (0x152E207, rolled_back[1:]),
    ]
    assert changes.needed(0x152E020) == 0x152DD38
    assert changes.needed(0x152E021) == 0x152E021
    assert changes.needed(0x152E100) == 0x152E0D8
    assert changes.needed(0x152E208) == 0x152E208
    changes.forget(0x152E208)
    with pytest.raises(AddressGone, match="'g1' ends at 22208544"):
        changes.read(map(bytes.fromhex, (COMMIT_PREPARED,)), 0x152E020)


def test_what_the_server_would_not_write_is_refused() -> None:
    for written, said in (
        ((RELATION, INSERT), "outside a transaction"),
        ((COMMIT,), "ends at 22207560"),
        ((BEGIN_PREPARE, COMMIT), "ends at 22207560"),
        ((BEGIN, RELATION, INSERT[:10] + "4e0001740000000131", COMMIT), "expected 7 columns"),
        ((BEGIN, RELATION, INSERT.replace("31740", "79740", 1), COMMIT), "does not have its column's type"),
    ):
        with pytest.raises(MessageInvalid, match=said):
            read(*written)
