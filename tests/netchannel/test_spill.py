"""The spill: what was put in comes out, and nothing stays behind."""

from __future__ import annotations

import errno
from pathlib import Path
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from netchannel.storage import (
    LogBroken,
    SpillFile,
    SpillHandle,
    StorageFull,
)
from tests.support.simulated_files import SimulatedFiles

ROOT = Path("/spill")


@settings(deadline=None)
@given(st.integers(0, 2**32), st.integers(1, 5000) | st.none())
def test_a_spill_gives_back_what_was_put_in_any_order(seed: int, limit: int | None) -> None:
    random = Random(seed)
    spill = SpillFile(ROOT, max_disk_bytes=limit, segment_bytes=1000, files=SimulatedFiles(seed))
    live: list[tuple[SpillHandle, bytes]] = []
    for _ in range(100):
        if random.random() < 0.6:
            pieces = [random.randbytes(random.randrange(200)) for _ in range(random.randrange(3))]
            data = b"".join(pieces)
            if spill.room(len(data)):
                live.append((spill.append(pieces), data))
            else:
                with pytest.raises(StorageFull, match=f"max_disk_bytes={limit}"):
                    spill.append(pieces)
        elif live:
            handle, data = live.pop(0 if random.random() < 0.9 else random.randrange(len(live)))
            assert spill.read(handle) == data
            spill.free(handle)
        assert sum(len(data) for _, data in live) <= spill.disk_bytes
        assert limit is None or spill.disk_bytes <= max(limit, 400)
    for handle, data in live:
        assert spill.read(handle) == data
        spill.free(handle)
    assert spill.disk_bytes == 0
    spill.close()


def test_a_spill_leaves_no_names_and_gives_descriptors_back(tmp_path: Path) -> None:
    before = len(list(Path("/proc/self/fd").iterdir()))
    spill = SpillFile(tmp_path, segment_bytes=1 << 16)
    handles = [spill.append([bytes([index]) * 10_000]) for index in range(50)]
    assert list(tmp_path.iterdir()) == []
    assert len(list(Path("/proc/self/fd").iterdir())) > before + 5
    for index, handle in enumerate(handles[:-1]):
        assert spill.read(handle) == bytes([index]) * 10_000
        spill.free(handle)
    assert len(list(Path("/proc/self/fd").iterdir())) == before + 1
    spill.close()
    assert len(list(Path("/proc/self/fd").iterdir())) == before


def test_a_spill_bears_a_full_disk_and_breaks_with_a_failing_one() -> None:
    files = SimulatedFiles()
    spill = SpillFile(ROOT, files=files)
    kept = spill.append([b"kept"])
    files.fail("pwritev", errno.ENOSPC)
    with pytest.raises(StorageFull, match="for a record of 9 bytes"):
        spill.append([b"no room", b"!!"])
    after = spill.append([b"room"])
    files.fail("pwritev", errno.EIO)
    for _ in range(2):
        with pytest.raises(LogBroken, match="errno 5"):
            spill.append([b"more"])
    assert (spill.read(kept), spill.read(after)) == (b"kept", b"room")
