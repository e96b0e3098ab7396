"""The files of a staged channel against a model, over disks that crash, fill up, fail and forget."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from netchannel.errors import (
    ChannelClosed,
    ChannelInUse,
    LogBroken,
    LogDamaged,
    MessagesLost,
    NetChannelError,
    PositionLost,
    SchemaMismatch,
    StorageFull,
)
from netchannel.storage import SegmentLog, StagingStore
from netchannel.storage.groups.journal import Journal
from netchannel.storage.groups.spares import Spares
from netchannel.storage.manifest import Marks
from netchannel.storage.tail import Tail
from netchannel.values import AttemptKey
from tests.support.simulated_files import SimulatedFiles
from tests.support.sizes import examples, seeds, some
from tests.support.staging_model import (
    FOLDER,
    STEPS,
    Record,
    World,
    contents,
    drawn_records,
    drawn_steps,
    opened,
    put,
    written,
)


@settings(max_examples=examples(300), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.integers(0, 2**32), st.lists(st.sampled_from(STEPS), max_size=40))
def test_after_any_crash_a_commit_is_there_whole_or_not_at_all(seed: int, steps: list[str]) -> None:
    """CH-STG-4: and what was answered is there."""
    world = World(seed)
    world.run(steps)
    world.run(["kill", "crash"])


@pytest.mark.parametrize("start", range(0, 1000, 250))
def test_the_same_holds_in_longer_stories(start: int) -> None:
    """CH-STG-4."""
    _run_stories(seeds(range(start, start + 250)))


# -- negative controls


def _unsynced_attempts(patch: Any) -> None:
    patch.setattr(Tail, "sync", lambda self: None)


def _unsynced_journal(patch: Any) -> None:
    append = Journal.append

    def careless(self: Journal, kind: int, fields: Any) -> None:
        with pytest.MonkeyPatch.context() as inner:
            inner.setattr(Tail, "sync", lambda self: None)
            append(self, kind, fields)

    patch.setattr(Journal, "append", careless)


def _unnamed_attempts(patch: Any) -> None:
    patch.setattr(SimulatedFiles, "sync_directory", lambda self, path: None)


def _unsettled_marks(patch: Any) -> None:
    def careless(self: Marks, mark: Any) -> bool:
        self.write(mark)
        return True

    patch.setattr(Marks, "settle", careless)


def _unsynced_spares(patch: Any) -> None:
    remove = Spares.remove

    def careless(self: Spares, gone: Any, *, durably: bool) -> None:
        with pytest.MonkeyPatch.context() as inner:
            if not durably:
                inner.setattr(SimulatedFiles, "sync_directory", lambda self, path: None)
            remove(self, gone, durably=durably)

    patch.setattr(Spares, "remove", careless)


def _uncut_spares(patch: Any) -> None:
    patch.setattr(Tail, "take_back", lambda self: None)


@pytest.mark.parametrize(
    "careless",
    [
        _unsynced_attempts,
        _unsynced_journal,
        _unnamed_attempts,
        _unsettled_marks,
        _unsynced_spares,
        _uncut_spares,
    ],
)
def test_the_model_notices_what_is_left_out(careless: Callable[[Any], None]) -> None:
    """CH-STG-4: each of these syncs is needed."""
    with pytest.MonkeyPatch.context() as patch:
        careless(patch)
        with pytest.raises((AssertionError, LogDamaged)):
            _run_stories(range(1000))


def _run_stories(seeds: Sequence[int]) -> None:
    for seed in seeds:
        world = World(seed)
        world.run(drawn_steps(Random(seed)))
        world.run(["kill", "crash"])


# -- damage


def _filled(files: SimulatedFiles) -> tuple[StagingStore, list[tuple[int, Record]]]:
    """Two groups of two attempts, and one that is not committed."""
    random, store = Random(1), opened(files)
    committed: list[tuple[int, Record]] = []
    head = 0
    for epoch in range(2):
        winners = []
        for partition in range(2):
            records = drawn_records(random) or [(1, b"x", b"")]
            winners.append(written(store, AttemptKey("a", epoch, partition, f"{epoch}{partition}"), records))
            for record in records:
                committed.append((head, record))
                head += record[0]
        store.commit("a", epoch, winners, end=False)
    written(store, AttemptKey("a", 2, 0, "held"), [(1, b"held", b"")])
    return store, committed


def test_a_flipped_byte_is_an_error_with_its_file_and_never_other_data() -> None:
    """CH-STG-3, for every byte of every file; of an attempt that is not committed, it is given up."""
    files = SimulatedFiles()
    store, committed = _filled(files)
    store.close()
    files.kill()
    assert contents(opened(files.copy())) == committed
    for name in files.names(FOLDER):
        for offset in some(range(len(files.bytes_of(FOLDER / name)))):
            flipped = files.copy()
            flipped.flip(FOLDER / name, offset, 1 << offset % 8)
            found = _outcome(flipped)
            if isinstance(found, LogDamaged):
                assert name in found.path
                assert found.path in str(found)
            else:
                assert found[:2] == (committed, {"a": 1})
                assert found[2] in (["held"], [])


def _outcome(
    files: SimulatedFiles,
) -> LogDamaged | tuple[list[tuple[int, Record]], dict[str, int], list[str]]:
    try:
        store = opened(files)
        return contents(store), store.state.epochs, [sealed.key.attempt for sealed in store.found]
    except LogDamaged as error:
        return error


def test_a_missing_file_is_an_error_that_names_it() -> None:
    """CH-STG-3: each attempt that is committed and not acknowledged, by its numbers; no other is missed."""
    files = SimulatedFiles()
    store, committed = _filled(files)
    done, *parts = store.state.parts
    store.acknowledge(done.end)
    store.close()
    files.kill()
    assert done.sealed.path.name not in files.names(FOLDER)
    assert contents(opened(files.copy()), done.end) == [each for each in committed if each[0] >= done.end]
    for part in parts:
        harmed = files.copy()
        harmed.lose(part.sealed.path)
        with pytest.raises(
            MessagesLost, match=f"{part.sealed.path.name}, which contained them, is missing"
        ) as error:
            opened(harmed)
        assert (error.value.path, error.value.first, error.value.end) == (str(FOLDER), part.first, part.end)
    for name in ("journal", "manifest"):
        harmed = files.copy()
        harmed.lose(FOLDER / name)
        with pytest.raises(LogDamaged, match=name):
            opened(harmed)
    for name in set(files.names(FOLDER)) - {"lock"}:
        files.lose(FOLDER / name)
    with pytest.raises(LogDamaged, match="the folder was emptied"):
        opened(files)


# -- what it does


def test_an_attempt_that_is_not_sealed_is_gone_after_a_restart() -> None:
    """CH-STG-3."""
    files = SimulatedFiles()
    store = opened(files)
    file = store.attempt(AttemptKey("a", 0, 0, "torn"))
    put(file, [(2, b"some", b"")])
    assert any(name.endswith(".unsealed") for name in files.names(FOLDER))
    files.kill()
    assert opened(files).found == []
    assert not any(name.endswith(".unsealed") for name in files.names(FOLDER))


def test_an_attempt_does_not_take_the_name_of_another() -> None:
    """CH-STG-3: also where the epochs of its application begin anew, and the same identity comes again."""
    files = SimulatedFiles()
    store, committed = _filled(files)
    store.forget("a")
    key = store.state.parts[0].sealed.key
    with pytest.raises(LogBroken, match="File exists"):
        written(store, key, [(1, b"another", b"")])
    assert contents(store) == committed
    files.power_on()
    assert contents(opened(files)) == committed


def test_what_is_acknowledged_is_deleted_attempt_by_attempt() -> None:
    files = SimulatedFiles()
    store, _committed = _filled(files)
    parts = store.state.parts
    for part in parts:
        store.acknowledge(part.end - 1)
        assert part.sealed.path.name in files.names(FOLDER)
        store.acknowledge(part.end)
        assert part.sealed.path.name not in files.names(FOLDER)
        assert store.oldest == part.end
    with pytest.raises(PositionLost, match=f"start at {store.state.head}"):
        contents(store)
    assert store.disk_bytes == 0
    files.power_on()
    assert opened(files).acknowledged == store.state.head


def test_the_journal_stays_small() -> None:
    files = SimulatedFiles()
    store = opened(files)
    for epoch in range(3000):
        winners = [written(store, AttemptKey("a", epoch, 0, str(epoch)), [(1, b"x", b"")])]
        store.commit("a", epoch, winners, end=False)
        store.acknowledge(epoch)
    assert len(files.bytes_of(FOLDER / "journal")) < 1 << 17
    files.power_on()
    store = opened(files)
    assert store.state.head == 3000
    assert len(store.state.parts) <= 2


def test_a_journal_that_cannot_be_written_anew_goes_on_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """CH-BAD-3: in a moment without descriptors; it is written anew once there are some."""
    monkeypatch.setattr("netchannel.storage.groups.journal._SMALL", 1)
    monkeypatch.setattr("netchannel.storage.groups.journal._GROWTH", 0)
    files = SimulatedFiles()
    store, committed = _filled(files)
    for epoch in (2, 3):
        before = files.bytes_of(FOLDER / "journal")
        files.fail("create", errno.EMFILE)
        store.commit("a", epoch, [], end=False)
        assert files.bytes_of(FOLDER / "journal").startswith(before)
    store.commit("a", 4, [], end=False)
    assert not files.bytes_of(FOLDER / "journal").startswith(before)
    files.power_on()
    store = opened(files)
    assert store.state.epochs == {"a": 4}
    assert contents(store) == committed


@pytest.mark.parametrize("power", [False, True])
def test_a_journal_that_may_have_been_replaced_loses_nothing(
    power: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """CH-STG-4: which of two is found is not known, and what is acknowledged meanwhile belongs to neither."""
    monkeypatch.setattr("netchannel.storage.groups.journal._SMALL", 1)
    monkeypatch.setattr("netchannel.storage.groups.journal._GROWTH", 0)
    for seed in range(20):
        files = SimulatedFiles(seed)
        store, committed = _filled(files)
        sealed = written(store, AttemptKey("a", 2, 0, "last"), [(1, b"y", b"")])
        files.fail("sync_directory", errno.EIO)
        store.commit("a", 2, [sealed], end=False)
        for part in store.state.parts:
            store.acknowledge(part.first)
        (files.power_on if power else files.kill)()
        store = opened(files)
        assert store.state.epochs == {"a": 2}
        assert contents(store) == [*committed, (store.state.head - 1, (1, b"y", b""))]


def test_a_full_disk_refuses_a_commit_and_nothing_has_changed() -> None:
    files = SimulatedFiles()
    store, committed = _filled(files)
    (held,) = [AttemptKey("a", 2, 0, "held")]
    sealed = written(store, held._replace(attempt="another"), [(1, b"y", b"")])
    files.capacity = 0
    with pytest.raises(Exception, match="no space is left"):
        store.commit("a", 2, [sealed], end=False)
    assert contents(store) == committed
    files.capacity = None
    store.commit("a", 2, [sealed], end=False)
    assert contents(store)[:-1] == committed


def test_after_a_sync_that_failed_nothing_is_promised() -> None:
    files = SimulatedFiles()
    store, _ = _filled(files)
    files.fail("fdatasync", errno.EIO)
    with pytest.raises(LogBroken, match="journal"):
        store.commit("a", 2, [], end=False)
    with pytest.raises(LogBroken):
        store.commit("a", 3, [], end=False)


def test_it_belongs_to_one_and_to_its_codec(tmp_path: Path) -> None:
    store = StagingStore.open(tmp_path, "c", create_stream=lambda: "s", codec="bytes")
    with pytest.raises(ChannelInUse, match="in use by process"):
        StagingStore.open(tmp_path, "c", create_stream=lambda: "s", codec="bytes")
    store.close()
    with pytest.raises(ChannelClosed):
        store.commit("a", 0, [], end=False)
    with pytest.raises(SchemaMismatch, match="'staged bytes', not 'staged arrow'"):
        StagingStore.open(tmp_path, "c", create_stream=lambda: "s", codec="arrow")


def test_all_of_it_is_discarded_or_nothing() -> None:
    outcomes = set()
    for seed in range(20):
        for crash_at in range(20):
            files = SimulatedFiles(seed)
            store, committed = _filled(files)
            files.crash_at = crash_at
            try:
                store.discard()
            except BaseException:  # noqa: BLE001 - the crash is none of Exception's
                files.power_on()
            files.crash_at = None
            store = opened(files, lambda: "another")
            left = (store.stream, contents(store))
            assert left in (("stream", committed), ("another", []))
            outcomes.add(store.stream)
    assert outcomes == {"stream", "another"}


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO])
@pytest.mark.parametrize("kind", [StagingStore, SegmentLog])
@pytest.mark.parametrize(
    "operation", ["create", "pwritev", "fdatasync", "rename", "sync_directory", "pread", "size"]
)
def test_what_cannot_be_opened_leaves_no_file_open(operation: str, kind: Any, code: int) -> None:
    """Wherever the disk fails: whoever tries again until it works has descriptors then."""
    failed = 0
    for after in range(12):
        files = SimulatedFiles()
        files.fail(operation, code, after=after)
        try:
            kind.open("/", "c", create_stream=lambda: "s", codec="bytes", files=files).close()
        except NetChannelError:
            failed += 1
        assert all(handle.closed for handle in files.handles), after
    assert failed > 0


@pytest.fixture
def spares_of_any_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("netchannel.storage.groups.spares.LEAST_BYTES", 1)


def _committed(store: StagingStore, epoch: int, size: int) -> Record:
    record = 1, bytes([epoch]) * size, b""
    store.commit("a", epoch, [written(store, AttemptKey("a", epoch, 0, str(epoch)), [record])], end=False)
    return record


def _spares(files: SimulatedFiles) -> list[str]:
    return [name for name in files.names(FOLDER) if name.endswith(".spare")]


@pytest.mark.usefixtures("spares_of_any_size")
def test_what_is_acknowledged_is_written_again_and_its_reader_does_not_see_it() -> None:
    """Whoever has read all of a file still has it open, and goes on with the next."""
    files = SimulatedFiles()
    store = opened(files, spare_bytes=1 << 20)
    record = _committed(store, 0, 500_000)
    reading = store.read(0)
    assert bytes(next(reading).payload) == record[1]
    store.acknowledge(1)
    (spare,) = _spares(files)
    contents_before = files.bytes_of(FOLDER / spare)
    attempt = store.attempt(AttemptKey("a", 1, 0, "1"))
    attempt.append(1, [b"short"], size=5)
    assert _spares(files) == []
    (name,) = (name for name in files.names(FOLDER) if name.endswith(".unsealed"))
    assert files.bytes_of(FOLDER / name)[-100:] == contents_before[-100:]
    store.commit("a", 1, [attempt.seal(0)], end=False)
    assert [bytes(each.payload) for each in reading] == [b"short"]
    files.power_on()
    assert [record[1] for _, record in contents(opened(files), 1)] == [b"short"]


@pytest.mark.usefixtures("spares_of_any_size")
def test_files_to_be_written_again_take_room_that_nobody_needs() -> None:
    """Up to their bound, until they have not been taken for a while, and until the folder is closed, or opened."""
    files = SimulatedFiles()
    store = opened(files)
    for epoch in range(5):
        _committed(store, epoch, 450)
    store.acknowledge(5)
    assert len(_spares(files)) == 2  # of 2000 bytes
    assert store.spares.bytes == sum(len(files.bytes_of(FOLDER / name)) for name in _spares(files))
    store.age()
    _committed(store, 5, 450)
    store.acknowledge(6)
    assert len(_spares(files)) == 2
    store.age()
    assert len(_spares(files)) == 1
    store.age()
    assert _spares(files) == []
    for epoch, stop in ((6, store.close), (7, files.kill)):
        _committed(store, epoch, 450)
        store.acknowledge(epoch + 1)
        assert len(_spares(files)) == 1
        stop()
        assert len(_spares(files)) == (stop == files.kill)
        files.kill()
        store = opened(files)
        assert _spares(files) == []


@pytest.mark.usefixtures("spares_of_any_size")
@pytest.mark.parametrize("operation", ["rename", "sync_directory", "free_bytes"])
def test_what_cannot_be_kept_to_be_written_again_is_deleted(operation: str) -> None:
    """As in a moment without descriptors: nothing takes up space that is not counted."""
    files = SimulatedFiles()
    store = opened(files)
    for epoch in range(3):
        _committed(store, epoch, 450)
        files.fail(operation, errno.EMFILE)
        store.acknowledge(store.state.head)
        assert store.spares.bytes == sum(len(files.bytes_of(FOLDER / name)) for name in _spares(files))
        assert not [name for name in files.names(FOLDER) if name.endswith((".attempt", ".unsealed"))]


def test_a_small_attempt_leaves_the_large_files_to_others(tmp_path: Path) -> None:
    store = StagingStore.open(tmp_path, "c", create_stream=lambda: "s", codec="bytes", spare_bytes=1 << 24)
    for epoch, size in enumerate([3 << 20, 1000, 3 << 20]):
        attempt = store.attempt(AttemptKey("app", epoch, 0, str(epoch)))
        attempt.append(1, [bytes(size)], size=size)
        spare = list(tmp_path.rglob("*.spare"))
        assert len(spare) == (epoch == 1)
        # What a file that was taken has behind the attempt's last entry counts still.
        assert store.spares.bytes - sum(each.stat().st_size for each in spare) in (0, 112)
        store.commit("app", epoch, [attempt.seal(0)], end=False)
        assert [len(each.payload) for each in store.read(epoch)] == [size]
        store.acknowledge(epoch + 1)
    store.close()


@pytest.mark.usefixtures("spares_of_any_size")
@pytest.mark.parametrize("what", ["attempt", "commit"])
def test_a_full_disk_has_room_while_there_are_files_to_be_written_again(what: str) -> None:
    """CH-BAD-3: where one is not large enough, the others go."""
    files = SimulatedFiles()
    store = opened(files)
    for epoch in range(2):
        _committed(store, epoch, 500)
    sealed = written(store, AttemptKey("a", 2, 0, "2"), [(1, b"x", b"")])
    store.acknowledge(2)
    assert len(_spares(files)) == 2
    files.capacity = sum(len(files.bytes_of(FOLDER / name)) for name in files.names(FOLDER))
    if what == "attempt":
        sealed = written(store, sealed.key._replace(attempt="larger"), [(1, b"y" * 900, b"")])
    store.commit("a", 2, [sealed], end=False)
    assert _spares(files) == []
    assert len(contents(store, 2)) == 1
    with pytest.raises(StorageFull):
        written(store, sealed.key._replace(epoch=3), [(1, b"z" * 2000, b"")])


@pytest.mark.parametrize("refused", [False, True], ids=["hastens", "cannot"])
def test_an_attempt_goes_to_the_disk_while_it_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refused: bool
) -> None:
    """Each byte is announced once, in order, and what is left for the end is little; that it fails does not matter."""
    announced: list[tuple[int, int]] = []

    def advise(descriptor: int, offset: int, size: int, advice: int) -> None:
        announced.append((offset, size))
        if refused:
            raise OSError(errno.ESPIPE, "not here")

    monkeypatch.setattr(os, "posix_fadvise", advise)
    store = StagingStore.open(tmp_path, "c", create_stream=lambda: "s", codec="bytes")
    attempt = store.attempt(AttemptKey("app", 0, 0, "0" * 32))
    bodies = [bytes([number]) * 300_000 for number in range(20)]
    for body in bodies:
        attempt.append(1, [body], size=len(body))
    assert attempt.size - sum(size for _, size in announced) < 1 << 20
    assert [offset for offset, _ in announced] == [
        sum(size for _, size in announced[:number]) for number in range(len(announced))
    ]
    store.commit("app", 0, [attempt.seal(0)], end=False)
    assert [bytes(each.payload) for each in store.read(0)] == bodies
    store.close()


FORKS = """
import os, sys
from netchannel.storage import StagingStore
from netchannel.values import AttemptKey
store = StagingStore.open(sys.argv[1], "c", create_stream=lambda: "s", codec="bytes")
for number in range(2):
    attempt = store.attempt(AttemptKey("app", 0, number, "%032x" % number))
    attempt.append(1, [b"x"], size=1)
    if number == 0:
        store.commit("app", 0, [attempt.seal(0)], end=False)
reading = store.read(0)
next(reading)
def left():
    links = [f"/proc/self/fd/{fd}" for fd in os.listdir("/proc/self/fd")]
    return [name for link in links if os.path.islink(link) and (name := os.readlink(link)).startswith(sys.argv[1])]
print(len(left()), flush=True)
if os.fork():
    os.wait()
    attempt.append(1, [b"y"], size=1)
else:
    print(left(), flush=True)
"""


@pytest.mark.processes
def test_a_forked_child_keeps_no_file_open(tmp_path: Path) -> None:
    """What its parent deletes would take up space as long as the child lives."""
    arguments = [sys.executable, "-c", FORKS, str(tmp_path)]
    done = subprocess.run(arguments, capture_output=True, encoding="utf-8", timeout=30, check=True)
    assert done.stdout.split("\n")[:2] == ["5", "[]"]
