"""The durable log against a model, over disks that crash, fill up, fail and forget."""

from __future__ import annotations

import errno
import gc
import os
import signal
import subprocess
import sys
import tracemalloc
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from random import Random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from netchannel.errors import (
    BufferFull,
    ChannelBroken,
    ChannelClosed,
    ChannelInUse,
    LogBroken,
    LogDamaged,
    MessagesLost,
    PositionLost,
    SchemaMismatch,
    StorageFull,
)
from netchannel.storage import LogRecord, NewRecord, SegmentLog
from netchannel.storage import log as storage_log
from netchannel.storage.files import write_all
from netchannel.storage.layout import folder_name
from netchannel.storage.manifest import Mark, Marks
from netchannel.values import Ending
from netchannel.wire.frames import HEADER_SIZE, alone
from tests.support.needs import leave_out
from tests.support.simulated_files import Crash, SimulatedFiles
from tests.support.sizes import examples, seeds, some
from tests.support.storage_model import (
    CONTEXTS,
    FALLIBLE,
    FOLDER,
    ROOT,
    SIZES,
    World,
    all_of,
    at,
    damage_of,
    drawn_steps,
    fill,
    fill_up,
    frame,
    opened,
)

# -- the model

STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("append"), st.integers(1, 5), st.sampled_from(SIZES), st.integers(0, 2)),
        st.tuples(st.just("append"), st.integers(1, 5), st.sampled_from(SIZES), st.integers(0, 2)),
        st.just(("sync",)),
        st.tuples(st.just("trim"), st.floats(0, 1)),
        st.tuples(st.just("read"), st.integers(1, 9), st.floats(0, 1)),
        st.sampled_from([("kill",), ("crash",), ("close",), ("squeeze",)]),
        st.tuples(st.just("crash_at"), st.integers(0, 12)),
        st.tuples(st.just("fail"), st.sampled_from(FALLIBLE)),
        st.tuples(st.just("finish"), st.sampled_from([None, "", "no more"])),
    ),
    max_size=40,
)


@settings(max_examples=examples(400), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.integers(0, 2**32), STEPS)
def test_after_any_crash_a_prefix_survives_that_holds_all_that_was_synced(
    seed: int, steps: list[tuple[object, ...]]
) -> None:
    """CH-DUR-3: no number stands for two contents."""
    world = World(seed)
    world.run(steps)
    world.run([("kill",), ("crash",)])


@pytest.mark.parametrize("start", range(0, 1000, 250))
def test_the_same_holds_in_longer_stories(start: int) -> None:
    """CH-DUR-3."""
    _run_stories(seeds(range(start, start + 250)))


def _run_stories(seeds: Sequence[int]) -> None:
    for seed in seeds:
        world = World(seed)
        world.run(drawn_steps(Random(seed)))
        world.run([("kill",), ("crash",)])


# -- damage


@pytest.mark.parametrize("ended", [False, True])
@pytest.mark.parametrize("stopped", ["closed", "killed", "marks lost"])
def test_a_flipped_byte_is_an_error_with_file_and_offset_and_never_other_data(
    stopped: str, ended: bool
) -> None:
    """CH-DUR-2, for every byte of every file."""
    files = SimulatedFiles()
    log = opened(files, segment_bytes=600)
    made = []
    for _ in range(4):
        made += fill(log, 2)
        log.sync()
    if ended:
        log.finish("broken pipe")
        log.sync()
    if stopped == "closed":
        log.close()
    files.kill()
    if stopped == "marks lost":
        files.unlink(FOLDER / "marks")
    # Without marks only the next group tells that one was durable.
    vouched = made if stopped != "marks lost" else made[:6]
    outcome = (made, Ending(made[-1].end, "broken pipe") if ended else None)
    assert all_of(files.copy()) == outcome
    assert len(files.names(FOLDER)) >= 5
    for name in files.names(FOLDER):
        data = files.bytes_of(FOLDER / name)
        for offset in some(range(len(data))):
            if name == "marks" and not any(data[offset & ~63 : offset | 63]):
                continue  # between the slots
            flipped = files.copy()
            flipped.flip(FOLDER / name, offset, 1 << offset % 8)
            found = damage_of(flipped)
            if isinstance(found, LogDamaged):
                assert found.path == str(FOLDER / name)
                assert found.offset <= offset
                assert f"{found.path} is damaged at byte {found.offset}" in str(found)
                assert name != "marks"
                continue
            records, ending = found
            if name in ("marks", "lock"):
                assert (records, ending) == outcome
            else:
                assert stopped == "marks lost"
                assert len(vouched) <= len(records)
                assert records == made[: len(records)]
                assert ending is None or (records, ending) == outcome


def test_without_marks_later_records_vouch_for_those_before_them() -> None:
    files = SimulatedFiles()
    log = opened(files, segment_bytes=10_000)
    made, groups = [], []
    for _ in range(3):
        made += fill(log, 2)
        log.sync()
        groups.append(log.disk_bytes)
    files.kill()
    files.unlink(FOLDER / "marks")
    path = FOLDER / f"{0:020}.segment"
    for offset in range(groups[-1]):
        flipped = files.copy()
        flipped.flip(path, offset)
        found = damage_of(flipped)
        if offset < groups[1]:
            assert isinstance(found, LogDamaged)
            assert found.path == str(path)
        else:
            assert found in ((made[:4], None), (made[:5], None))


def test_a_flipped_byte_of_a_record_that_was_not_synced_drops_it() -> None:
    files = SimulatedFiles()
    log = opened(files, segment_bytes=10_000)
    made = fill(log, 3)
    log.sync()
    start = len(files.bytes_of(FOLDER / f"{0:020}.segment"))
    fill(log, 1)
    files.kill()
    for offset in range(start, len(files.bytes_of(FOLDER / f"{0:020}.segment"))):
        flipped = files.copy()
        flipped.flip(FOLDER / f"{0:020}.segment", offset)
        assert all_of(flipped) == (made, None)


@pytest.mark.parametrize("tail", [b"\0" * 5000, b"\x15", b"\x15\x9e\x3c\x7a" * 500, b"garbage" * 99])
def test_a_tail_of_zeros_or_garbage_is_cut_off_with_one_line(
    tail: bytes, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with at(tmp_path) as log:
        made = fill(log, 5)
        log.sync()
        path = log.path / f"{0:020}.segment"
    size = path.stat().st_size
    with path.open("ab") as file:
        file.write(tail)
    with at(tmp_path) as log:
        assert list(log.read(0)) == made
        made += fill(log, 2)
        log.sync()
    said = (
        f"{path}: cut off {len(tail)} bytes after byte {size}, which were not yet durable when their writer "
        f"stopped; messages continue at number {made[4].end}"
    )
    assert [line.getMessage() for line in caplog.records] == [said]
    with at(tmp_path) as log:
        assert list(log.read(0)) == made


def test_a_last_record_cut_at_any_byte_is_dropped_unless_it_was_durable() -> None:
    files = SimulatedFiles()
    log = opened(files, segment_bytes=10_000)
    made = fill(log, 2)
    log.sync()
    path = FOLDER / f"{0:020}.segment"
    durable = len(files.bytes_of(path))
    fill(log, 1)
    files.kill()
    for size in range(len(files.bytes_of(path))):
        cut = files.copy()
        cut.open(path).truncate(size)
        found = damage_of(cut)
        if size >= durable:
            assert found == (made, None)
        else:
            assert isinstance(found, LogDamaged)
            assert found.path == str(path)
            assert found.offset <= size


def test_an_entry_of_another_stream_is_not_taken_for_one_of_ours(tmp_path: Path) -> None:
    paths = []
    for stream in ("one", "another"):
        with SegmentLog.open(tmp_path / stream, "flights", create_stream=lambda name=stream: name) as log:
            for number in range(2):
                log.append([NewRecord(number, number + 1, [frame(b"%d of " % number + stream.encode()[:3])])])
                log.sync()
            paths.append(log.path / f"{0:020}.segment")
    ours, theirs = (path.read_bytes() for path in paths)
    assert len(ours) == len(theirs)
    half = 40 + (len(ours) - 40) // 2
    paths[0].write_bytes(ours[:half] + theirs[half:])
    with pytest.raises(LogDamaged, match=f"damaged at byte {half}"):
        at(tmp_path / "one")


def _segments(files: SimulatedFiles) -> list[str]:
    return [name for name in files.names(FOLDER) if name.endswith(".segment")]


def _number(name: str) -> int:
    return int(name.removesuffix(".segment"))


@pytest.mark.parametrize("trimmed", [0, 2])
@pytest.mark.parametrize("stop", [SegmentLog.close, SegmentLog.abandon])
def test_a_missing_segment_is_an_error_that_names_what_is_lost(
    stop: Callable[[SegmentLog], None], trimmed: int
) -> None:
    """CH-DUR-2: each of them, the first and the last too; what is trimmed is not missed."""
    files = SimulatedFiles()
    log = opened(files, segment_bytes=300)
    made = fill(log, 9, size=250)
    log.sync()
    log.trim(made[trimmed].first)
    acknowledged = log.acknowledged
    stop(log)
    files.power_on()
    assert all_of(files.copy(), acknowledged)[0] == made[trimmed:]
    names = _segments(files)
    assert len(names) == 9 - trimmed
    for name, following in pairwise([*names, ""]):
        harmed = files.copy()
        harmed.lose(FOLDER / name)
        with pytest.raises(
            MessagesLost, match=f"missing in {FOLDER}.*restore.*or move the folder away"
        ) as error:
            opened(harmed)
        first, end = _number(name), _number(following) if following else None
        assert (error.value.path, error.value.first, error.value.end) == (str(FOLDER), first, end)
        assert (f"messages {first} to {(end or 0) - 1} are" if end else f"from number {first} on") in str(
            error.value
        )
    for name in names:
        files.lose(FOLDER / name)
    with pytest.raises(MessagesLost, match=f"messages from number {acknowledged} on are missing"):
        opened(files)


def test_what_is_trimmed_is_never_taken_for_lost_wherever_the_power_goes() -> None:
    """CH-DUR-2, CH-DUR-3: and what is lost never for trimmed; at every step of the disk, with every part of a write."""
    story: list[tuple[object, ...]] = []
    for part in (0.5, 0.9, 1.0, 0.5):
        story += [("append", 2, 300, 1), ("sync",), ("append", 1, 300, 2), ("append", 1, 7, 0), ("sync",)]
        story += [("trim", part)]
    for crash_at in range(70):
        for seed in range(6):
            World(seed).run([("crash_at", crash_at), *story, ("crash",)])


def _unsettled(patch: pytest.MonkeyPatch) -> None:
    def careless(self: Marks, mark: Mark) -> bool:
        self.write(mark)
        return True

    patch.setattr(Marks, "settle", careless)


def _unasked(patch: pytest.MonkeyPatch) -> None:
    def careless(files: SimulatedFiles, folder: Path, stream: str, mark: Mark) -> object:
        bases = [_number(name) for name in files.names(folder) if name.endswith(".segment")]
        return recover(
            files, folder, stream, mark._replace(acknowledged=max([mark.acknowledged, *bases[:1]]))
        )

    recover = storage_log.recover
    patch.setattr(storage_log, "recover", careless)


@pytest.mark.parametrize("careless", [_unsettled, _unasked])
def test_the_model_notices_what_is_left_out(careless: Callable[[pytest.MonkeyPatch], None]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        careless(patch)
        with pytest.raises((AssertionError, LogDamaged, PositionLost)):
            _run_stories(range(1000))


def _trimmed() -> tuple[SimulatedFiles, list[LogRecord]]:
    """A log whose first segments are gone, and what it holds."""
    files = SimulatedFiles()
    log = opened(files, segment_bytes=300)
    made = fill(log, 6, size=250)
    log.sync()
    log.trim(made[3].first)
    log.close()
    return files, made[3:]


def test_any_bad_byte_of_the_marks_leaves_what_is_trimmed_trimmed() -> None:
    files, kept = _trimmed()
    for offset in range(len(files.bytes_of(FOLDER / "marks"))):
        flipped = files.copy()
        flipped.flip(FOLDER / "marks", offset)
        assert all_of(flipped, kept[0].first) == (kept, None)


def test_without_marks_it_is_said_that_they_are_missing() -> None:
    """Nothing else tells what is trimmed from what is lost."""
    files, kept = _trimmed()
    files.lose(FOLDER / "marks")
    with pytest.raises(
        LogDamaged, match=f"messages below number {kept[0].first} were acknowledged or are lost"
    ) as error:
        opened(files)
    assert error.value.path == str(FOLDER / "marks")


def test_an_emptied_folder_is_not_a_new_one() -> None:
    files, _ = _trimmed()
    for name in set(files.names(FOLDER)) - {"lock"}:
        files.lose(FOLDER / name)
    with pytest.raises(
        LogDamaged, match="manifest is damaged at byte 0: it is missing, and so are all messages"
    ):
        opened(files)


def test_a_segment_of_another_stream_is_an_error_under_any_name_and_stays() -> None:
    files, _ = _trimmed()
    foreign = SimulatedFiles()
    log = opened(foreign, segment_bytes=300, create_stream=lambda: "another")
    fill(log, 9, size=250)
    log.sync()
    log.close()
    names = _segments(files)
    for source in _segments(foreign):
        data = foreign.bytes_of(FOLDER / source)
        for name in {source, *names, f"{99:020}.segment"}:
            harmed = files.copy()
            harmed.lose(FOLDER / name)
            write_all(harmed.create(FOLDER / name), [data], 0)
            with pytest.raises(LogDamaged) as error:
                opened(harmed)
            assert error.value.path == str(FOLDER / name)
            assert "another stream or another first number; take it out of the folder" in str(error.value)
            assert harmed.bytes_of(FOLDER / name) == data
    write_all(files.create(FOLDER / "copy.segment"), [b""], 0)
    with pytest.raises(
        LogDamaged, match=r"copy.segment is damaged at byte 0: its name is not the name of a segment"
    ):
        opened(files)


def test_a_segment_that_goes_missing_is_told_from_one_that_was_acknowledged() -> None:
    """Its messages are lost, and whoever reads them must not take that for what somebody is done with."""
    files = SimulatedFiles()
    log = opened(files, segment_bytes=300)
    fill(log, 9, size=250)
    log.sync()
    reading = log.read(0)
    next(reading)
    log.trim(6)
    with pytest.raises(PositionLost):
        list(reading)
    (*_, last) = [name for name in files.names(FOLDER) if name.endswith(".segment")]
    files.unlink(FOLDER / last)
    with pytest.raises(LogDamaged, match=f"{last} is damaged at byte 0: it is missing"):
        list(log.read(6))


def test_segments_without_a_manifest_are_an_error() -> None:
    files = SimulatedFiles()
    log = opened(files)
    fill(log, 1)
    log.sync()
    log.close()
    files.unlink(FOLDER / "manifest")
    with pytest.raises(LogDamaged, match="manifest is damaged at byte 0: it is missing"):
        opened(files)


def test_a_segment_inside_a_payload_is_not_taken_for_entries(tmp_path: Path) -> None:
    with at(tmp_path) as log:
        fill(log, 4)
        log.sync()
        inner = (log.path / f"{0:020}.segment").read_bytes()
        first = log.head
        log.append([NewRecord(first, first + 1, [frame(bytes(-len(inner) % 8) + inner + inner)])])
        log.sync()
        path, size = log.path / f"{0:020}.segment", log.disk_bytes
        log.append([NewRecord(first + 1, first + 2, [frame(inner * 3)])])
        log.abandon()
    data = bytearray(path.read_bytes())
    data[size] ^= 1
    path.write_bytes(data)
    with at(tmp_path) as log:
        assert log.head == first + 1


# -- fullness and failures


def test_a_full_disk_takes_back_the_record_and_goes_on_when_there_is_room() -> None:
    files = SimulatedFiles(1, capacity=20_000)
    log = opened(files, segment_bytes=2000)
    made: list[LogRecord] = []
    full = fill_up(log, made, size=300)
    assert isinstance(full, BufferFull)
    assert "no space is left on the disk of /buffers/flights" in str(full)
    assert 300 <= full.needed_bytes < 1000
    assert f"{full.needed_bytes} bytes" in str(full)
    head = log.head
    assert log.sync() == head == made[-1].end
    for _ in range(50):
        log.trim(log.head)
        made += fill(log, 3, size=300)
        log.sync()
    assert list(log.read(log.acknowledged)) == [each for each in made if each.end > log.acknowledged]
    files.power_on()
    assert opened(files).head == made[-1].end


def test_a_disk_filled_by_a_single_segment_is_of_use_again_once_that_is_acknowledged() -> None:
    """CH-DUR-3: however often, and wherever a crash interrupts it; numbers go on."""
    for crash_at in range(16):
        for seed in range(8):
            files = SimulatedFiles(seed, capacity=12_000)
            log = opened(files, segment_bytes=1 << 20)
            made: list[LogRecord] = []
            for _ in range(3):
                fill_up(log, made, size=300)
                log.sync()
                log.trim(log.head)
            acknowledged = log.head
            assert [name for name in files.names(FOLDER) if name.endswith("segment")] > [f"{0:020}.segment"]
            files.crash_at = crash_at
            survived = acknowledged
            with suppress(Crash):
                made = fill(log, 2, size=300)
                survived = log.sync()
            files.power_on()
            log = opened(files, segment_bytes=1 << 20)
            assert log.head >= survived
            found = [each for each in log.read(log.acknowledged) if each.end > acknowledged]
            assert [each.end for each in found][-1:] == ([log.head] if log.head > acknowledged else [])
            assert found == made[: len(found)] or survived == acknowledged
            log.trim(log.head)
            fill(log, 1, size=300)


@pytest.mark.parametrize("code", [errno.EIO, errno.ENOSPC])
def test_a_failed_sync_is_final_and_what_was_durable_is_readable(code: int) -> None:
    files = SimulatedFiles()
    log = opened(files, segment_bytes=10_000)
    made = fill(log, 3)
    log.sync()
    durable = log.disk_bytes
    fill(log, 2)
    files.fail("fdatasync", code)
    for call in (log.sync, log.sync, lambda: fill(log, 1), log.finish, log.discard):
        with pytest.raises(
            LogBroken, match=rf"at byte {durable} failed: .* \(errno {code}\).*check the disk"
        ) as error:
            call()
        assert isinstance(error.value, ChannelBroken)
        assert (error.value.errno, error.value.offset) == (code, durable)
        assert error.value.path == str(FOLDER / f"{0:020}.segment")
    assert list(log.read(0)) == made
    log.close()


def test_what_a_failed_sync_left_in_the_cache_is_written_before_it_counts() -> None:
    for seed in range(30):
        files = SimulatedFiles(seed)
        log = opened(files)
        fill(log, 3)
        log.sync()
        fill(log, 3)
        files.fail("fdatasync", errno.EIO)
        with pytest.raises(LogBroken):
            log.sync()
        log.close()
        log = opened(files)
        seen = list(log.read(0))
        files.power_on()
        assert all_of(files) == (seen, None)


def test_a_disk_limit_is_kept_and_room_comes_back_by_trimming() -> None:
    files = SimulatedFiles()
    log = opened(files, segment_bytes=1 << 20, max_disk_bytes=4000)
    random = Random(0)
    appended = 0
    for _ in range(300):
        size = random.choice([10, 200, 500])
        if log.room(size + 2 * HEADER_SIZE, schema=CONTEXTS[1], context=CONTEXTS[2]):
            made = fill(log, 1, size=size)
            appended += 1
            assert log.disk_bytes <= 4000 or log.acknowledged == made[0].first
        else:
            operations = files.operations
            with pytest.raises(StorageFull, match="max_disk_bytes=4000"):
                log.append([NewRecord(log.head, log.head + 1, [frame(bytes(4000))])])
            assert files.operations == operations
            log.sync()
            log.trim(random.randint(log.acknowledged, log.durable))
        files_bytes = sum(
            len(files.bytes_of(FOLDER / name)) for name in files.names(FOLDER) if name.endswith("segment")
        )
        assert files_bytes == log.disk_bytes
    assert appended > 100
    log.sync()
    log.trim(log.head)
    log.append(
        [NewRecord(log.head, log.head + 1, [frame(bytes(9000))])]
    )  # whatever its size, to an empty log
    assert not log.room(1)
    log.sync()
    log.trim(log.head)
    fill(log, 1)
    assert log.disk_bytes < 1000


@pytest.mark.processes
def test_a_small_real_disk_fills_and_empties(tmp_path: Path) -> None:
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(tmp_path)], check=False, capture_output=True
    )
    if mounted.returncode:
        leave_out("mounting a tmpfs is not permitted here", "run the tests as root")
    try:
        with at(tmp_path, segment_bytes=1 << 18) as log:
            made: list[LogRecord] = []
            full = fill_up(log, made, size=50_000)
            assert f"disk of {log.path}" in str(full)
            assert "No space left on device" in str(full)
            assert log.sync() == made[-1].end
        with at(tmp_path, segment_bytes=1 << 18) as log:
            assert list(log.read(0)) == made
            log.trim(made[len(made) // 2].first)
            made += fill(log, 5, size=50_000)
            log.sync()
            assert list(log.read(log.acknowledged)) == [each for each in made if each.end > log.acknowledged]
    finally:
        subprocess.run(["umount", str(tmp_path)], check=True)


# -- one opener


def test_a_second_opener_in_the_same_process_is_refused(tmp_path: Path) -> None:
    """CH-DUR-4."""
    with at(tmp_path) as log:
        with pytest.raises(ChannelInUse, match=f"{log.path} is in use by process {os.getpid()};"):
            at(tmp_path)
        fill(log, 1)
    at(tmp_path).close()
    log = at(tmp_path)
    log.abandon()
    at(tmp_path).discard()
    assert list(tmp_path.iterdir()) == []


_WRITER = """
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from netchannel.storage import NewRecord, SegmentLog
from netchannel.wire.frames import Kind, signal
log = SegmentLog.open(sys.argv[1], "flights", create_stream=lambda: "stream", segment_bytes=4096)
print("open", flush=True)
while True:
    for _ in range(3):
        payload = b"%d;" % log.head * 40
        log.append([NewRecord(log.head, log.head + 1, [signal(Kind.DATA, payload=payload)])])
    print(log.sync(), flush=True)
"""


@pytest.mark.processes
def test_another_process_is_refused_until_kill_9_and_all_that_it_synced_is_there(tmp_path: Path) -> None:
    """CH-DUR-1 and CH-DUR-4, for the log alone."""
    promised = 0
    random = Random(3)
    for _ in range(4):
        with subprocess.Popen(
            [sys.executable, "-c", _WRITER, str(tmp_path)], stdout=subprocess.PIPE, encoding="utf-8"
        ) as writer:
            assert writer.stdout is not None
            assert writer.stdout.readline() == "open\n"
            with pytest.raises(ChannelInUse, match=f"process {writer.pid};"):
                at(tmp_path)
            for _ in range(random.randrange(50)):
                promised = int(writer.stdout.readline())
            writer.send_signal(signal.SIGKILL)
            promised = max([promised, *(int(line) for line in writer.stdout if line.endswith("\n"))])
        with at(tmp_path) as log:
            assert log.head >= promised
            records = list(log.read(0))
        assert [(each.first, bytes(each.payload)) for each in records] == [
            (number, frame(b"%d;" % number * 40)) for number in range(log.head)
        ]


# -- names, restarts, reading

IDS = st.text(st.characters(codec="utf-8", exclude_categories=("C", "Z")), min_size=1, max_size=255).filter(
    lambda each: len(each.encode()) <= 255
) | st.sampled_from([".", "..", "a/b", "a%2Fb", "~", "é" * 127, "\u20ac" * 85, "x" * 255])


@given(IDS, IDS)
def test_ids_have_folder_names_of_their_own(one: str, other: str) -> None:
    for each in (one, other):
        name = folder_name(each)
        assert len(name.encode()) <= 255
        assert name not in (".", "..")
        assert "/" not in name
    assert (folder_name(one) == folder_name(other)) == (one == other)


@pytest.mark.parametrize("channel_id", [".", "..", "a/b", "~", "\u20ac" * 85, "x" * 255, "lock"])
def test_an_id_of_any_kind_is_kept_inside(channel_id: str, tmp_path: Path) -> None:
    def one() -> SegmentLog:
        return SegmentLog.open(tmp_path / "made" / "here", channel_id, create_stream=lambda: "stream")

    with one() as log:
        made = fill(log, 2)
        log.sync()
        assert log.path.parent == tmp_path / "made" / "here"
        assert channel_id in (log.path / "manifest").read_text("utf-8")
    with one() as log:
        assert list(log.read(0)) == made


def test_long_ids_that_start_alike_are_kept_apart(tmp_path: Path) -> None:
    for index in range(3):
        with SegmentLog.open(tmp_path, "x" * 254 + str(index), create_stream=lambda i=index: f"s{i}") as log:
            assert log.stream == f"s{index}"


def test_a_log_of_another_codec_is_refused() -> None:
    files = SimulatedFiles()
    opened(files).close()
    with pytest.raises(SchemaMismatch, match="of codec 'bytes', not 'arrow'"):
        SegmentLog.open(ROOT, "flights", create_stream=lambda: "stream", codec="arrow", files=files)


def test_twenty_restarts_go_on_where_the_last_stopped(tmp_path: Path) -> None:
    made: list[LogRecord] = []
    streams = iter(range(99))
    acknowledged = 0
    random = Random(20)
    for restart in range(20):
        log = SegmentLog.open(
            tmp_path, "flights", create_stream=lambda: f"stream {next(streams)}", segment_bytes=5000
        )
        assert (log.stream, log.head) == ("stream 0", made[-1].end if made else 0)
        assert log.acknowledged == acknowledged
        kept = [each for each in made if each.end > acknowledged]
        assert list(log.read(acknowledged)) == kept
        made += fill(log, 20, size=100, seed=restart)
        log.sync()
        acknowledged = random.randint(acknowledged, log.head)
        log.trim(acknowledged)
        if restart % 2:
            log.close()
        else:
            log.abandon()
    assert len(list((tmp_path / "flights").glob("*.segment"))) < 10
    lost = rf"number {acknowledged - 1} of stream 'stream 0'.*at {acknowledged}"
    with at(tmp_path) as log, pytest.raises(PositionLost, match=lost):
        log.read(acknowledged - 1)


def test_random_reads_by_number_while_appending(tmp_path: Path) -> None:
    random = Random(5)
    with at(tmp_path, segment_bytes=1 << 19) as log:
        made: list[LogRecord] = []
        for _ in range(40):
            made += fill(log, 10, size=random.choice([50, 5000, 20_000]))
            log.sync()
            fill_unsynced = made[-1].end
            for _ in range(5):
                sequence = random.randrange(log.head)
                index = next(i for i, each in enumerate(made) if each.end > sequence)
                reader = log.read(sequence)
                assert [next(reader) for _ in made[index : index + 3]] == made[index : index + 3]
            assert list(log.read(fill_unsynced)) == []
        made += fill(log, 1)
        assert list(log.read(fill_unsynced)) == []
        with pytest.raises(ValueError, match=f"{fill_unsynced} are durable"):
            log.read(log.head)


def test_an_iterator_sees_what_becomes_durable_and_survives_the_deletion_of_its_segment() -> None:
    files = SimulatedFiles()
    log = opened(files, segment_bytes=500)
    made = fill(log, 3, size=50)
    log.sync()
    reader = log.read(0)
    assert next(reader) == made[0]
    made += fill(log, 30, size=50)
    log.sync()
    assert next(reader) == made[1]
    segment_end = int(sorted(name for name in files.names(FOLDER) if "segment" in name)[1].split(".")[0])
    log.trim(log.head)
    while made[2].end <= segment_end:
        assert next(reader) == made[2]
        del made[2]
    with pytest.raises(PositionLost):
        next(reader)


def test_another_thread_reads_while_this_one_writes(tmp_path: Path) -> None:
    seen: list[LogRecord] = []
    with at(tmp_path, segment_bytes=20_000) as log, ThreadPoolExecutor(1) as pool:

        def read() -> None:
            while not seen or seen[-1].end < 5000:
                seen.extend(log.read(seen[-1].end if seen else 0))

        reading = pool.submit(read)
        made: list[LogRecord] = []
        while log.durable < 5000:
            made += fill(log, 20, size=50)
            log.sync()
            log.trim(min(seen[-1].end if seen else 0, log.durable))
        reading.result(60)
    assert seen == made[: len(seen)]
    assert seen[-1].end >= 5000


def test_equal_contexts_are_stored_once_per_segment_and_read_as_one_object(tmp_path: Path) -> None:
    schema, context = os.urandom(3000), os.urandom(30_000)
    with at(tmp_path, segment_bytes=100_000) as log:
        for number in range(1000):
            same = bytes(bytearray(schema))
            log.append([NewRecord(number, number + 1, [frame(bytes(200))], schema=same, context=context)])
        log.sync()
        segments = len(list(log.path.glob("*.segment")))
        assert log.disk_bytes < segments * 34_000 + 1000 * 340
        records = list(log.read(0))
        assert segments > 3
    assert {each.schema for each in records} == {schema}
    assert len({id(each.context) for each in records}) == 1


def test_large_payloads_are_not_copied(tmp_path: Path) -> None:
    payload = os.urandom(1 << 25)
    with at(tmp_path) as log:
        gc.collect()
        tracemalloc.start()
        log.append([NewRecord(0, 1, alone(payload, b"", 0, 0))])
        log.sync()
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert peak < 1 << 20
        assert next(log.read(0)).payload[-len(payload) :] == payload


# -- the end


@pytest.mark.parametrize("failure", [None, "", "the source was lost \u2603"])
def test_the_end_is_known_after_a_restart(failure: str | None) -> None:
    files = SimulatedFiles()
    log = opened(files)
    made = fill(log, 2)
    log.finish(failure)
    log.sync()
    files.power_on()
    log = opened(files)
    assert log.ending == Ending(made[-1].end, failure)
    for call in (lambda: fill(log, 1), log.finish):
        with pytest.raises(ChannelClosed, match=f"ended after {made[-1].end} messages"):
            call()
    assert list(log.read(0)) == made


def test_a_stream_without_messages_can_end() -> None:
    files = SimulatedFiles()
    log = opened(files)
    log.finish()
    assert log.sync() == 0
    files.power_on()
    assert opened(files).ending == Ending(0, None)


def test_a_log_is_discarded_as_a_whole_wherever_a_crash_interrupts_it() -> None:
    outcomes = set()
    for seed in range(20):
        for crash_at in range(20):
            files = SimulatedFiles(seed)
            log = opened(files, segment_bytes=300)
            made = fill(log, 6, size=200)
            log.finish()
            log.sync()
            files.crash_at = crash_at
            try:
                log.discard()
            except Crash:
                files.power_on()
            files.crash_at = None
            log = opened(files, create_stream=lambda: "another")
            left = (log.stream, list(log.read(0)))
            assert left in (("stream", made), ("another", []))
            outcomes.add(log.stream)
    assert outcomes == {"stream", "another"}


def test_numbers_that_are_not_due_are_refused() -> None:
    log = opened(SimulatedFiles())
    fill(log, 1)
    for first, end in ((log.head + 1, log.head + 2), (0, 1), (log.head, log.head)):
        with pytest.raises(ValueError, match=f"where number {log.head} was expected"):
            log.append([NewRecord(first, end, [frame(b"")])])
    with pytest.raises(ValueError, match="0 are durable"):
        log.trim(1)
    log.close()
    with pytest.raises(ChannelClosed, match="was closed"):
        log.append([NewRecord(log.head, log.head + 1, [frame(b"")])])
