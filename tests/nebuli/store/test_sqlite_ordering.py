"""The ordering in a file: what becomes of it where the file or its disk is not as it was."""

from __future__ import annotations

import contextlib
import errno
import os
import resource
import shutil
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest

from nebuli.disk_room import lacking, what_to_do
from nebuli.store.errors import (
    EndLost,
    EntriesMissing,
    EntryDamaged,
    StoreBusy,
    StoreFull,
    StoreUnusable,
    Unclear,
)
from nebuli.store.ordering import Change
from nebuli.store.ordering.sqlite import ENDS_FILE, FILE, AppendSignal, SqliteOrdering
from tests.support.stores import fill, found


@pytest.fixture
def ordering(tmp_path: Path) -> Iterator[SqliteOrdering]:
    made = SqliteOrdering(tmp_path / "store")
    made.open()
    yield made
    made.close()


def test_a_file_that_is_gone_has_no_bell_and_that_is_said(tmp_path: Path) -> None:
    with pytest.raises(StoreUnusable, match=r"log cannot be watched: .*; it was deleted or moved"):
        AppendSignal(tmp_path / "log")


def test_another_writer_is_waited_for_so_long(tmp_path: Path, ordering: SqliteOrdering) -> None:
    hasty = SqliteOrdering(tmp_path / "store", busy_s=0.05)
    hasty.open()
    with sqlite3.connect(tmp_path / "store" / FILE, isolation_level=None) as writer:
        writer.execute("begin immediate")
        with pytest.raises(StoreBusy, match=r"was locked by other processes for 0\.05 s"):
            hasty.append([Change("a", 0, b"x")])
        assert hasty.heads(["a"]) == {"a": 0}  # who reads does not wait
        writer.execute("rollback")
    writer.close()
    hasty.append([Change("a", 0, b"x")])
    hasty.close()


@pytest.mark.parametrize("column", ["data = x'00'", "id = id + 1", "checksum = checksum + 1"])
def test_an_entry_that_is_not_as_it_was_written_is_found(
    tmp_path: Path, ordering: SqliteOrdering, column: str
) -> None:
    fill(ordering, "a", b"as it was")
    with sqlite3.connect(tmp_path / "store" / FILE) as writer:
        writer.execute(f"update entries set {column}")
    writer.close()
    with pytest.raises(
        EntryDamaged, match=r"of a in .*/ordering\.db is damaged: its checksum is [0-9a-f]{16}, but it was"
    ) as raised:
        ordering.scan("a", 0)
    assert raised.value.expected != raised.value.found


def killed(tmp_path: Path, ordering: SqliteOrdering) -> Path:
    """A store of which nothing was closed: two logs, of three entries and of one."""
    fill(ordering, "a", b"1", b"2", b"3")
    fill(ordering, "b", b"4")
    return shutil.copytree(tmp_path / "store", tmp_path / "killed")


def test_a_bit_of_the_write_ahead_log_that_changes_is_no_torn_write(
    tmp_path: Path, ordering: SqliteOrdering
) -> None:
    """SQLite drops the frame, and all that follow, without an error."""
    folder = killed(tmp_path, ordering)
    log = folder / f"{FILE}-wal"
    content = bytearray(log.read_bytes())
    content[len(content) * 9 // 10] ^= 1
    log.write_bytes(content)
    with pytest.raises(
        EndLost, match=rf"{folder}/{FILE} has lost its end: entry 1 of log 2 was acknowledged"
    ):
        SqliteOrdering(folder).open()


@pytest.mark.parametrize("gone", [FILE, f"{FILE}-wal"])
def test_a_file_that_is_gone_is_not_made_from_nothing(
    tmp_path: Path, ordering: SqliteOrdering, gone: str
) -> None:
    folder = killed(tmp_path, ordering)
    (folder / gone).unlink()
    for _ in range(2):
        with pytest.raises(EndLost, match="has lost its end"):
            SqliteOrdering(folder).open()


def test_ends_are_noted_for_a_store_that_has_none_noted(tmp_path: Path, ordering: SqliteOrdering) -> None:
    folder = killed(tmp_path, ordering)
    (folder / ENDS_FILE).write_bytes(b"damaged" * 100)
    again = SqliteOrdering(folder)
    again.open()
    assert again.heads(["a", "b"]) == {"a": 3, "b": 1}
    again.close()
    assert (folder / ENDS_FILE).read_bytes()[32:96] == (tmp_path / "store" / ENDS_FILE).read_bytes()[32:96], (
        "two slots"
    )
    (folder / FILE).unlink()
    with pytest.raises(EndLost):
        SqliteOrdering(folder).open()


@pytest.mark.parametrize("key", ["c", ""])
def test_a_log_whose_key_changed_is_found(tmp_path: Path, ordering: SqliteOrdering, key: str) -> None:
    fill(ordering, "a", b"1")
    with sqlite3.connect(tmp_path / "store" / FILE) as writer:
        writer.execute("update logs set key = ?", (key,))
    writer.close()
    with pytest.raises(EndLost, match="entry 1 of"):
        SqliteOrdering(tmp_path / "store").open()


def test_entries_that_are_gone_from_the_middle_are_missed(tmp_path: Path, ordering: SqliteOrdering) -> None:
    fill(ordering, "a", b"1", b"2", b"3")
    ordering.truncate("a", 2)
    assert [each.sequence for each in ordering.scan("a", 0)] == [2, 3], "which are truncated"
    fill(ordering, "b", b"1", b"2", b"3")
    with sqlite3.connect(tmp_path / "store" / FILE) as writer:
        writer.execute("delete from entries where data = x'32' and id > (2 << 40)")
    writer.close()
    with pytest.raises(EntriesMissing, match="the last entry of b is 3, but only 2 "):
        ordering.scan("b", 0)


def test_entries_can_be_looked_at_by_their_keys(tmp_path: Path, ordering: SqliteOrdering) -> None:
    fill(ordering, "a", b"1", b"2")
    fill(ordering, "b", b"3")
    with sqlite3.connect(tmp_path / "store" / FILE) as reader:
        rows = reader.execute("select key, sequence, data from log").fetchall()
    reader.close()
    assert rows == [("a", 1, b"1"), ("a", 2, b"2"), ("b", 1, b"3")]


@pytest.mark.parametrize(
    ("statement", "said"),
    [("pragma user_version = 7", "has format 7"), ("pragma application_id = 1", "application 0x1")],
)
def test_a_file_of_another_format_is_left_alone(
    tmp_path: Path, ordering: SqliteOrdering, statement: str, said: str
) -> None:
    ordering.close()
    with sqlite3.connect(tmp_path / "store" / FILE) as writer:
        writer.execute(statement)
    writer.close()
    with pytest.raises(StoreUnusable, match=said):
        ordering.open()


def test_a_file_that_is_damaged_is_left_alone(tmp_path: Path, ordering: SqliteOrdering) -> None:
    ordering.close()
    (tmp_path / "store" / FILE).write_bytes(b"no database at all" * 100)
    with pytest.raises(StoreUnusable, match="cannot be used as a store: file is not a database"):
        ordering.open()


def test_a_folder_that_cannot_be_made_is_no_store(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StoreUnusable, match="cannot be used as a store"):
        SqliteOrdering(tmp_path / "file" / "store").open()


@contextlib.contextmanager
def limited(size: int) -> Iterator[None]:
    """As below ``ulimit -f``: no file may have more bytes."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_where_a_file_may_not_grow_it_says_which_and_what_to_do(
    tmp_path: Path, ordering: SqliteOrdering
) -> None:
    """SQLite says of it that there was an I/O error, and nothing more."""
    new = SqliteOrdering(tmp_path / "new")
    with limited(1000):
        said = (
            rf"{tmp_path}/new/{FILE} \(File too large\): raise the limit .* \(ulimit -f, 1,000 bytes here\)"
        )
        with pytest.raises(StoreFull, match=f"no space is left for {said}, and try again"):
            new.open()
    fill(ordering, "a", b"x")
    with limited(100_000):
        with pytest.raises(
            Unclear, match=rf"writing {tmp_path}/store/{FILE} failed.*: raise the limit .*ulimit -f"
        ):
            fill(ordering, "a", *[bytes(10_000)] * 20)
        assert ordering.heads(["b"]) == {"b": 0}, "what is there can be read"
    (head,) = ordering.heads(["a"]).values()
    fill(ordering, "a", b"y")
    assert found(ordering, "a", head) == [(head + 1, b"y")]
    assert not list(tmp_path.glob("**/.room-*"))


@pytest.mark.parametrize(
    ("code", "remedy"),
    [
        (errno.ENOSPC, "free some space"),
        (errno.EDQUOT, "free some space, or have the quota raised"),
        (errno.EIO, None),
    ],
)
def test_what_is_in_the_way_is_tried_where_a_library_does_not_say_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int, remedy: str | None
) -> None:
    def failing(descriptor: int) -> None:
        raise OSError(code, os.strerror(code))

    assert lacking(tmp_path, [tmp_path / "a"]) is None
    monkeypatch.setattr(os, "fsync", failing)
    error = lacking(tmp_path, [tmp_path / "a"])
    assert (None if error is None else what_to_do(error)) == remedy
    assert not list(tmp_path.iterdir())
