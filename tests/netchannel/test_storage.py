"""The durable log against a model, over disks that crash, fill up, fail and forget; and the spill."""

from __future__ import annotations

import copy
import errno
import gc
import os
import signal
import subprocess
import sys
import tracemalloc
from collections.abc import Callable, Iterator
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
    PositionLost,
    SchemaMismatch,
)
from netchannel.storage import (
    Ending,
    LogBroken,
    LogDamaged,
    LogRecord,
    Outline,
    SegmentLog,
    SpillFile,
    SpillHandle,
    StorageFull,
)
from netchannel.storage.layout import folder_name
from tests.support.simulated_files import Crash, SimulatedFiles

ROOT = Path("/buffers")
FOLDER = ROOT / "flights"
CONTEXTS = (b"", b"first dictionary", bytes(range(256)))


def opened(
    files: SimulatedFiles,
    *,
    segment_bytes: int = 700,
    max_disk_bytes: int | None = None,
    create_stream: Callable[[], str] = lambda: "stream",
) -> SegmentLog:
    return SegmentLog.open(
        ROOT,
        "flights",
        create_stream=create_stream,
        codec="bytes",
        segment_bytes=segment_bytes,
        max_disk_bytes=max_disk_bytes,
        files=files,
    )


def at(directory: Path, *, max_disk_bytes: int | None = None, segment_bytes: int = 1 << 20) -> SegmentLog:
    return SegmentLog.open(
        directory,
        "flights",
        create_stream=lambda: "stream",
        max_disk_bytes=max_disk_bytes,
        segment_bytes=segment_bytes,
    )


def record(first: int, count: int, size: int, context: int, random: Random) -> LogRecord:
    return LogRecord(
        first,
        first + count,
        random.getrandbits(62) - (1 << 61),
        random.getrandbits(8),
        size,
        random.getrandbits(40),
        memoryview(random.randbytes(size)),
        CONTEXTS[context and 1],
        CONTEXTS[context],
    )


def put(log: SegmentLog, new: LogRecord) -> None:
    third = len(new.payload) // 3
    log.append(
        new.first,
        new.end,
        [bytes(new.payload[:third]), b"", bytearray(new.payload[third:])],
        timestamp=new.timestamp,
        flags=new.flags,
        size=new.size,
        rows=new.rows,
        schema=new.schema,
        context=new.context,
    )


def fill(log: SegmentLog, count: int, *, size: int = 60, seed: int = 0) -> list[LogRecord]:
    random = Random(f"{seed} {log.head}")
    made = []
    for _ in range(count):
        new = record(log.head, random.randint(1, 4), size, random.randrange(3), random)
        put(log, new)
        made.append(new)
    return made


def fill_up(log: SegmentLog, made: list[LogRecord], *, size: int) -> StorageFull:
    while True:
        try:
            made += fill(log, 1, size=size)
        except StorageFull as error:
            return error


def damage_of(files: SimulatedFiles) -> LogDamaged | tuple[list[LogRecord], Ending | None]:
    """What opening and reading the whole log gives."""
    try:
        return all_of(files)
    except LogDamaged as error:
        return error


def all_of(files: SimulatedFiles) -> tuple[list[LogRecord], Ending | None]:
    log = opened(files)
    try:
        return list(log.read(0)), log.ending
    finally:
        log.close()


# -- the model

FALLIBLE = ["pwritev", "fdatasync", "sync_directory", "create", "unlink"]


class World:
    """One channel's log through faults, and what it must hold.

    ``records`` is all that was ever appended in this history, of which ``durable`` messages were promised.
    """

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.files = SimulatedFiles(seed)
        self.records: list[LogRecord] = []
        self.durable = 0
        self.acknowledged = 0
        self.ending: Ending | None = None
        self.ending_durable = False
        self.streams = 0
        self.stream: str | None = None
        self.promised: dict[int, LogRecord] = {}
        self.reader: Iterator[LogRecord] | None = None
        self.reading = 0
        self.faulty = False
        self.squeezed = False
        self.log: SegmentLog
        self.open()

    @property
    def head(self) -> int:
        return self.records[-1].end if self.records else 0

    def create_stream(self) -> str:
        self.streams += 1
        return f"stream {self.streams}"

    def open(self) -> bool:
        """Start a process; where it stops or fails at once, another. Whether all that was there is there still."""
        whole = True
        self.faulty = self.random.random() < 0.1
        if self.faulty:
            self.files.fail(self.random.choice(FALLIBLE), errno.EIO, after=self.random.randrange(3))
        if self.random.random() < 0.3:
            self.files.crash_at = self.random.randrange(12)
        while True:
            try:
                self.log = opened(self.files, create_stream=self.create_stream)
                break
            except Crash:
                whole = False
                self.random.choice([self.files.power_on, self.files.kill])()
            except LogBroken:
                assert self.faulty
                whole = False
                self.files.kill()
            except StorageFull:
                self.files.capacity = None
        self.stream = self.stream or self.log.stream
        assert self.log.stream == self.stream
        return whole

    def restart(self, stop: Callable[[], None], *, loses: bool) -> None:
        """``stop`` the process; what the next one finds must be what was promised, and a prefix of the rest."""
        stop()
        self.reader = None
        loses = loses or self.faulty or self.squeezed
        self.squeezed = self.files.capacity is not None
        whole = self.open()
        log, head = self.log, self.log.head
        assert self.durable <= head <= self.head
        assert head in {0, *(each.end for each in self.records)}
        assert log.durable == head
        assert log.acknowledged <= self.acknowledged
        if self.ending_durable:
            assert log.ending == self.ending
        assert log.ending in (None, self.ending)
        if whole and not loses:
            assert (head, log.ending) == (self.head, self.ending)
            assert log.acknowledged == self.acknowledged
        self.records = [each for each in self.records if each.end <= head]
        self.ending, self.ending_durable = log.ending, log.ending is not None
        self.acknowledged = log.acknowledged
        self.promise(head)
        expected = [each for each in self.records if each.end > log.acknowledged]
        assert list(log.read(log.acknowledged)) == expected
        assert list(log.outline(log.acknowledged)) == [
            Outline(each.first, each.end, each.size, each.rows) for each in expected
        ]

    def promise(self, upto: int) -> None:
        self.durable = upto
        for each in self.records:
            if each.end <= upto:
                assert self.promised.setdefault(each.first, each) == each, "a number was used twice"

    def append(self, count: int, size: int, context: int) -> None:
        new = record(self.head, count, size, context, self.random)
        if self.ending is not None:
            with pytest.raises(ChannelClosed):
                put(self.log, new)
            return
        self.records.append(new)
        try:
            put(self.log, new)
        except StorageFull:
            assert self.files.capacity is not None
            self.records.pop()
            assert self.log.head == self.head
            if self.random.random() < 0.5:
                self.files.capacity = None
        self.promise(self.log.durable)

    def finish(self, failure: str | None) -> None:
        if self.ending is None and self.random.random() < 0.2:
            self.ending = Ending(self.head, failure)
            try:
                self.log.finish(failure)
            except StorageFull:
                self.ending = None

    def sync(self) -> None:
        assert self.log.sync() == self.head
        self.promise(self.head)
        self.ending_durable = self.ending is not None

    def trim(self, part: float) -> None:
        upto = self.acknowledged + int(part * (self.durable - self.acknowledged))
        self.acknowledged = upto
        self.log.trim(upto)

    def read(self, count: int, part: float) -> None:
        """Go on with a reader that was started some time before."""
        if self.reader is None:
            self.reading = self.acknowledged + int(part * (self.durable - self.acknowledged))
            self.reader = self.log.read(self.reading)
        durable = self.log.durable
        expected = [each for each in self.records if self.reading < each.end <= durable][:count]
        for each in expected:
            try:
                assert next(self.reader) == each
            except PositionLost:
                assert self.reading < self.acknowledged
                self.reader = None
                return
            self.reading = each.end
        if self.reading == durable:
            self.reader = None

    def step(self, name: str, *arguments: object) -> None:
        match name:
            case "kill":
                self.restart(self.files.kill, loses=False)
            case "crash":
                self.restart(self.files.power_on, loses=True)
            case "close":
                self.log.close()
                self.restart(self.files.kill, loses=False)
            case "crash_at":
                self.files.crash_at = arguments[0]  # type: ignore[assignment]  # as drawn
            case "fail":
                self.faulty = True
                self.files.fail(str(arguments[0]), errno.EIO, after=self.random.randrange(3))
            case "squeeze":
                self.squeezed = True
                self.files.capacity = self.random.randrange(3000)
            case _:
                getattr(self, name)(*arguments)

    def run(self, steps: list[tuple[object, ...]]) -> None:
        for name, *arguments in steps:
            try:
                self.step(str(name), *arguments)
            except Crash:
                self.files.crash()
                self.restart(self.random.choice([self.files.power_on, self.files.kill]), loses=True)
            except LogBroken:
                assert self.faulty
                self.check_broken()
                self.restart(self.random.choice([self.files.kill, self.files.power_on]), loses=True)

    def check_broken(self) -> None:
        """Nothing is written any more, and what was durable is there."""
        log, before = self.log, self.files.operations
        for call in (log.sync, lambda: put(log, record(log.head, 1, 1, 0, self.random))):
            with pytest.raises(LogBroken) as error:
                call()
            assert error.value.errno == errno.EIO
            assert error.value.path in str(error.value)
        log.trim(self.acknowledged)
        assert self.files.operations == before
        assert log.durable >= self.durable
        kept = [each for each in self.records if log.acknowledged < each.end <= log.durable]
        assert list(log.read(log.acknowledged)) == kept


STEPS = st.lists(
    st.one_of(
        st.tuples(
            st.just("append"), st.integers(1, 5), st.sampled_from([0, 1, 7, 64, 300, 900]), st.integers(0, 2)
        ),
        st.tuples(
            st.just("append"), st.integers(1, 5), st.sampled_from([0, 1, 7, 64, 300, 900]), st.integers(0, 2)
        ),
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


@settings(max_examples=400, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.integers(0, 2**32), STEPS)
def test_after_any_crash_a_prefix_survives_that_holds_all_that_was_synced(
    seed: int, steps: list[tuple[object, ...]]
) -> None:
    """CH-DUR-3: no number stands for two contents."""
    world = World(seed)
    world.run(steps)
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
    assert all_of(copy.deepcopy(files)) == outcome
    assert len(files.names(FOLDER)) >= 5
    for name in files.names(FOLDER):
        data = files.bytes_of(FOLDER / name)
        for offset in range(len(data)):
            if name == "marks" and not any(data[offset & ~63 : offset | 63]):
                continue  # between the slots
            flipped = copy.deepcopy(files)
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


def test_a_flipped_byte_of_a_record_that_was_not_synced_drops_it() -> None:
    files = SimulatedFiles()
    log = opened(files, segment_bytes=10_000)
    made = fill(log, 3)
    log.sync()
    start = len(files.bytes_of(FOLDER / f"{0:020}.segment"))
    fill(log, 1)
    files.kill()
    for offset in range(start, len(files.bytes_of(FOLDER / f"{0:020}.segment"))):
        flipped = copy.deepcopy(files)
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
        f"{path}: cut off {len(tail)} bytes after byte {size}, which were not yet durable when their writer stopped; "
        f"messages go on at number {made[4].end}"
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
        cut = copy.deepcopy(files)
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
                log.append(number, number + 1, [b"%d of " % number, stream.encode()[:3]])
                log.sync()
            paths.append(log.path / f"{0:020}.segment")
    ours, theirs = (path.read_bytes() for path in paths)
    assert len(ours) == len(theirs)
    half = 40 + (len(ours) - 40) // 2
    paths[0].write_bytes(ours[:half] + theirs[half:])
    with pytest.raises(LogDamaged, match=f"damaged at byte {half}"):
        at(tmp_path / "one")


@pytest.mark.parametrize("missing", [0, 1, 2])
def test_a_missing_segment_is_an_error(missing: int) -> None:
    files = SimulatedFiles()
    log = opened(files, segment_bytes=300)
    fill(log, 9, size=250)
    log.sync()
    log.close()
    segments = [name for name in files.names(FOLDER) if name.endswith(".segment")]
    files.unlink(FOLDER / segments[[1, 4, -1][missing]])
    with pytest.raises(LogDamaged, match="missing"):
        opened(files)


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
        log.append(first, first + 1, [bytes(4 - len(inner) % 8), inner, inner])
        log.sync()
        path, size = log.path / f"{0:020}.segment", log.disk_bytes
        log.append(first + 1, first + 2, [inner * 3])
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
        if log.room(size, schema=CONTEXTS[1], context=CONTEXTS[2]):
            made = fill(log, 1, size=size)
            appended += 1
            assert log.disk_bytes <= 4000 or log.acknowledged == made[0].first
        else:
            operations = files.operations
            with pytest.raises(StorageFull, match="max_disk_bytes=4000"):
                log.append(log.head, log.head + 1, [bytes(4000)])
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
    log.append(log.head, log.head + 1, [bytes(9000)])  # whatever its size, to an empty log
    assert not log.room(1)
    log.sync()
    log.trim(log.head)
    fill(log, 1)
    assert log.disk_bytes < 1000


def test_a_small_real_disk_fills_and_empties(tmp_path: Path) -> None:
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(tmp_path)], check=False, capture_output=True
    )
    if mounted.returncode:
        pytest.skip("mounting a tmpfs is not permitted here: the simulated disk alone was filled")
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
from pathlib import Path
from netchannel.storage import SegmentLog
log = SegmentLog.open(sys.argv[1], "flights", create_stream=lambda: "stream", segment_bytes=4096)
print("open", flush=True)
while True:
    for _ in range(3):
        log.append(log.head, log.head + 1, [b"%d;" % log.head * 40])
    print(log.sync(), flush=True)
"""


@pytest.mark.processes
def test_another_process_is_refused_until_kill_9_and_all_that_it_synced_is_there(tmp_path: Path) -> None:
    """CH-DUR-1 and CH-DUR-4, for the log alone."""
    promised = 0
    random = Random(3)
    for _ in range(4):
        with subprocess.Popen(
            [sys.executable, "-c", _WRITER, str(tmp_path)], stdout=subprocess.PIPE, text=True
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
            (number, b"%d;" % number * 40) for number in range(log.head)
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
        assert channel_id in (log.path / "manifest").read_text()
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


def test_equal_contexts_are_stored_once_per_segment_and_read_as_one_object(tmp_path: Path) -> None:
    schema, context = os.urandom(3000), os.urandom(30_000)
    with at(tmp_path, segment_bytes=100_000) as log:
        for number in range(1000):
            log.append(number, number + 1, [bytes(200)], schema=bytes(bytearray(schema)), context=context)
        log.sync()
        segments = len(list(log.path.glob("*.segment")))
        assert log.disk_bytes < segments * 34_000 + 1000 * 300
        records = list(log.read(0))
        assert segments > 3
    assert {each.schema for each in records} == {schema}
    assert len({id(each.context) for each in records}) == 1


def test_large_payloads_are_not_copied(tmp_path: Path) -> None:
    payload = memoryview(os.urandom(1 << 25)).cast("Q")
    with at(tmp_path) as log:
        gc.collect()
        tracemalloc.start()
        log.append(0, 1, [payload, b"end"])
        log.sync()
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert peak < 1 << 20
        assert next(log.read(0)).payload == payload.tobytes() + b"end"


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
        with pytest.raises(ValueError, match=f"where number {log.head} is due"):
            log.append(first, end, [b""])
    with pytest.raises(ValueError, match="0 are durable"):
        log.trim(1)
    log.close()
    with pytest.raises(ChannelClosed, match="was closed"):
        log.append(log.head, log.head + 1, [b""])


# -- the spill


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
