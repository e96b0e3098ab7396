"""Blobs in files: what is left of those that cannot be written, and by whom they are seen."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from nebuli.store.blobs.blob_files import FileBlobs
from nebuli.store.errors import StoreFailed, StoreFull


@pytest.fixture
def blobs(tmp_path: Path) -> FileBlobs:
    return FileBlobs(tmp_path / "blobs")


def test_what_a_killed_process_began_is_named_and_can_be_deleted(blobs: FileBlobs, tmp_path: Path) -> None:
    blobs.put("a", "1", [b"x"])
    (tmp_path / "blobs" / "a" / "2.part").write_bytes(b"half of")
    assert blobs.names("a") == ["1", "2"]
    with pytest.raises(FileNotFoundError):
        blobs.get("a", "2")
    blobs.delete("a", ["2"])
    assert [path.name for path in (tmp_path / "blobs" / "a").iterdir()] == ["1"]


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (errno.ENOSPC, StoreFull),
        (errno.EDQUOT, StoreFull),
        (errno.EFBIG, StoreFull),
        (errno.EIO, StoreFailed),
    ],
)
@pytest.mark.parametrize("call", ["write", "fsync"])
def test_of_a_blob_that_cannot_be_written_nothing_is_left(
    blobs: FileBlobs, monkeypatch: pytest.MonkeyPatch, code: int, kind: type[Exception], call: str
) -> None:
    blobs.put("a", "1", [b"x"])

    def failing(*_: object) -> int:
        raise OSError(code, os.strerror(code))

    with monkeypatch.context() as patched:
        patched.setattr(os, call, failing)
        with pytest.raises(kind, match=r"blobs/a/2.*" + os.strerror(code)):
            blobs.put("a", "2", [b"y"])
    assert blobs.names("a") == ["1"]
    blobs.put("a", "2", [b"y"])


def test_a_blob_that_is_deleted_while_it_is_put_is_said_to_be(
    blobs: FileBlobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By a sweep that knows that it will not be of use."""
    fsync = os.fsync

    def deleting(descriptor: int) -> None:
        fsync(descriptor)
        blobs.delete("a", ["1"])

    monkeypatch.setattr(os, "fsync", deleting)
    with pytest.raises(FileNotFoundError):
        blobs.put("a", "1", [b"x"])
    assert blobs.names("a") == []


def test_a_folder_that_another_has_just_made_is_synced_too(
    blobs: FileBlobs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "blobs" / "a").mkdir(parents=True)
    synced: list[Path] = []
    monkeypatch.setattr("nebuli.store.blobs.blob_files.sync_directory", synced.append)
    blobs.put("a", "1", [b"x"])
    assert synced == [tmp_path / "blobs", tmp_path / "blobs" / "a"]


def test_a_write_that_is_short_is_gone_on_with(blobs: FileBlobs, monkeypatch: pytest.MonkeyPatch) -> None:
    write = os.write
    monkeypatch.setattr(os, "write", lambda descriptor, data: write(descriptor, data[:3]))
    blobs.put("a", "1", [b"more than three", b"twice"])
    assert blobs.get("a", "1").to_pybytes() == b"more than threetwice"
