"""Stores that may not be written to: readers, which keep holds there, are refused with the remedy."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from nebuli.blocking import Collections
from nebuli.store.errors import StoreReadOnly
from nebuli.store.ordering import Change
from nebuli.store.ordering.sqlite import SqliteOrdering
from tests.support.needs import leave_out

ROWS = pa.record_batch({"n": [1, 2]})
REMEDY = r"readers must also write their holds there; mount it writable, .* or read a copy of it$"


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of its own."""
    place = tmp_path / "disk"
    place.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", str(place)]
    if subprocess.run(command, check=False, capture_output=True).returncode:
        leave_out("mounting a tmpfs is not permitted here", "run the tests as root")
    try:
        yield place
    finally:
        subprocess.run(["umount", str(place)], check=True)


def remount(place: Path, how: str) -> None:
    subprocess.run(["mount", "-o", f"remount,{how}", str(place)], check=True)


@pytest.mark.processes
def test_a_store_on_a_disk_that_is_mounted_read_only_is_read_from_a_copy(disk: Path, tmp_path: Path) -> None:
    with Collections(disk / "store") as collections:
        collections.create("c", ROWS.schema)
        collections.insert("c", ROWS)
    remount(disk, "ro")
    with pytest.raises(StoreReadOnly, match=rf"{disk}/store cannot be written \(.*Read-only .*\): {REMEDY}"):
        Collections(disk / "store").__enter__()
    shutil.copytree(disk / "store", tmp_path / "copy")
    remount(disk, "rw")
    for each in (tmp_path / "copy", disk / "store"):
        with Collections(each) as collections:
            assert collections.snapshot("c").to_pylist() == ROWS.to_pylist()


def test_a_file_that_may_not_be_written_any_more_is_named_with_the_remedy(tmp_path: Path) -> None:
    """As SQLite opens one for reading whose permissions are for that; root is not held to them."""
    ordering = SqliteOrdering(tmp_path / "store")
    ordering.open()
    try:
        ordering.append([Change("log", 0, b"1")])
        ordering._connection.execute("pragma query_only = on")
        with pytest.raises(StoreReadOnly, match=rf"SQLITE_READONLY\)\): {REMEDY}"):
            ordering.append([Change("log", 1, b"2")])
        assert ordering.heads(["log"]) == {"log": 1}
        ordering._connection.execute("pragma query_only = off")
        ordering.append([Change("log", 1, b"2")])
    finally:
        ordering.close()
