"""The contract of blobs, of all that we have: whoever brings others has them pass the same."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from nebuli.store.blobs import Blobs
from nebuli.store.blobs.blob_files import FileBlobs
from nebuli.store.blobs.objects import ObjectBlobs


@pytest.fixture(params=["files", "objects"])
def blobs(request: pytest.FixtureRequest, tmp_path: Path) -> Blobs:
    if request.param == "files":
        return FileBlobs(tmp_path / "blobs")
    bucket = request.getfixturevalue("bucket")
    return ObjectBlobs(lambda: bucket)


def test_a_blob_is_what_was_put(blobs: Blobs) -> None:
    numbers = np.arange(100_000)
    blobs.put("shard/a", "1-x", [b"abc", memoryview(numbers), b""])
    assert blobs.get("shard/a", "1-x").to_pybytes() == b"abc" + numbers.tobytes()
    with pytest.raises(FileNotFoundError):
        blobs.get("shard/b", "1-x")


def test_names_are_those_of_a_folder(blobs: Blobs) -> None:
    assert blobs.names("shard/a") == []
    for folder, name in (("shard/a", "2"), ("shard/a", "1"), ("shard/a/b", "3"), ("..", "4")):
        blobs.put(folder, name, [b"x"])
    assert blobs.names("shard/a") == ["1", "2"]
    assert blobs.names("shard/a/b") == ["3"]
    assert blobs.names("..") == ["4"]


def test_deleting_does_not_need_them_to_be_there(blobs: Blobs) -> None:
    blobs.put("a", "1", [b"x"])
    blobs.delete("a", ["1", "2"])
    blobs.delete("b", ["1"])
    assert blobs.names("a") == []
