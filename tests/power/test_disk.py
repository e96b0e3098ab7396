"""The disk keeps what was synced, and of all else anything at all; and is a file system to those who use it."""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from tests.power.disk import PAGE, ROOT, SECTOR, Disk
from tests.power.machine import machine

SEEDS = range(200)


def after_power_cuts(use: Callable[[Disk], None]) -> list[dict[str, bytes]]:
    """The files that are there, over many seeds."""
    found = []
    for seed in SEEDS:
        disk = Disk(str(seed))
        use(disk)
        disk.lose_power()
        found.append({name: contents(disk, name) for name in disk.names(ROOT)})
    return found


def contents(disk: Disk, name: str) -> bytes:
    return disk.read(disk.lookup(ROOT, name), 0, 1 << 20)


def test_what_was_synced_is_there_and_a_name_of_its_own_accord() -> None:
    def use(disk: Disk) -> None:
        for name in ("both", "contents"):
            file = disk.create(ROOT, name)
            disk.write(file, 0, b"x" * 5000)
            disk.sync(file)
            if name == "both":
                disk.sync(ROOT)

    found = after_power_cuts(use)
    assert all(each.pop("both") == b"x" * 5000 for each in found)
    assert {tuple(each.items()) for each in found} == {(), (("contents", b"x" * 5000),)}


def test_of_writes_that_were_not_synced_any_sectors_are_there() -> None:
    """Over what was synced, old and new; beyond it, also zeros and what was there before; of any length between."""

    def use(disk: Disk) -> None:
        file = disk.create(ROOT, "f")
        disk.write(file, 0, b"a" * 2 * PAGE)
        disk.sync(file)
        disk.sync(ROOT)
        disk.write(file, PAGE // 2, b"b" * 3 * PAGE)
        disk.write(file, 0, b"c" * SECTOR)

    found = [each["f"] for each in after_power_cuts(use)]
    assert {len(each) for each in found} == {2 * PAGE, 7 * PAGE // 2}
    sectors = [[each[at : at + SECTOR] for at in range(0, 2 * PAGE, SECTOR)] for each in found]
    whole = {bytes([letter]) * SECTOR for letter in b"abc"}
    assert {sector for each in sectors for sector in each} == whole
    assert any(len({each[at] for at in range(PAGE // SECTOR, 2 * PAGE // SECTOR)}) == 2 for each in sectors)
    beyond = {each[at : at + SECTOR][:1] for each in found for at in range(2 * PAGE, len(each), SECTOR)}
    assert {b"b", b"\0"} < beyond
    # Writes after the one that survived may not have, and the other way round.
    first, second = ({each[at] for each in sectors} for at in (0, PAGE // SECTOR))
    assert first == {b"a" * SECTOR, b"c" * SECTOR}
    assert second == {b"a" * SECTOR, b"b" * SECTOR}


def test_a_rename_is_there_as_a_whole_or_not() -> None:
    def use(disk: Disk) -> None:
        for name in ("old", "new"):
            file = disk.create(ROOT, name)
            disk.write(file, 0, name.encode())
            disk.sync(file)
        disk.sync(ROOT)
        disk.rename(ROOT, "new", "old")

    found = {tuple(sorted(each.items())) for each in after_power_cuts(use)}
    assert found == {(("new", b"new"), ("old", b"old")), (("old", b"new"),)}


def test_names_in_a_directory_are_as_lasting_as_the_directory() -> None:
    def use(disk: Disk) -> None:
        directory = disk.make_directory(ROOT, "d")
        disk.sync(disk.create(directory, "f"))
        disk.sync(directory)

    kept = set()
    for seed in SEEDS:
        disk = Disk(str(seed))
        use(disk)
        disk.lose_power()
        kept.add(tuple(disk.names(ROOT)))
        if disk.names(ROOT):
            assert disk.names(disk.lookup(ROOT, "d")) == ["f"]
    assert kept == {(), ("d",)}


def test_after_a_sync_that_failed_the_next_one_proves_nothing() -> None:
    """What can be read is lost all the same, in some; what is written again is not."""

    def use(disk: Disk, *, again: bool) -> None:
        file = disk.create(ROOT, "f")
        disk.sync(ROOT)
        disk.write(file, 0, b"x" * 100)
        disk.failing_syncs = 1
        with pytest.raises(OSError, match="Input/output"):
            disk.sync(file)
        assert contents(disk, "f") == b"x" * 100
        if again:
            disk.write(file, 0, b"x" * 100)
        disk.sync(file)

    assert {each["f"] for each in after_power_cuts(lambda disk: use(disk, again=False))} > {b"x" * 100}
    assert {each["f"] for each in after_power_cuts(lambda disk: use(disk, again=True))} == {b"x" * 100}


@pytest.mark.processes
def test_it_is_a_file_system_until_the_power_goes(tmp_path: Path) -> None:
    with machine(tmp_path) as power:
        power.new_disk("a seed")
        power.power_on("on")
        folder = power.place / "a" / "b"
        folder.mkdir(parents=True)
        file = os.open(folder / "f", os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
        with pytest.raises(FileExistsError):
            os.open(folder / "f", os.O_RDWR | os.O_CREAT | os.O_EXCL)
        large = os.urandom(3 << 20)
        assert os.pwritev(file, [large[:1000], large[1000:]], 10) == len(large)
        assert os.pread(file, len(large) + 20, 0) == bytes(10) + large
        os.ftruncate(file, 1010)
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        second = os.open(folder / "f", os.O_RDWR)
        with pytest.raises(BlockingIOError):
            fcntl.flock(second, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.fdatasync(file)
        (folder / "f").rename(folder / "g")
        (folder / "g2").touch()
        (folder / "g2").unlink()
        with pytest.raises(OSError, match="not empty"):
            folder.rmdir()
        for directory in (folder, folder.parent, power.place):
            descriptor = os.open(directory, os.O_RDONLY)
            os.fsync(descriptor)
            os.close(descriptor)
        assert [path.name for path in folder.iterdir()] == ["g"]
        assert os.statvfs(power.place).f_bavail > 0
        power.cut()
        for use in (lambda: os.pread(file, 1, 0), lambda: os.write(file, b"x"), lambda: os.fsync(file)):
            with pytest.raises(OSError, match=f"Errno ({errno.ENOTCONN}|{errno.ECONNABORTED})"):
                use()
        for descriptor in (file, second):
            with suppress(OSError):
                os.close(descriptor)
        assert list(power.place.iterdir()) == []
        power.power_on("again")
        assert (folder / "g").read_bytes() == bytes(10) + large[:1000]
    assert list((tmp_path / "disk").iterdir()) == []
