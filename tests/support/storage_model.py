"""What a durable log must hold, through faults of all kinds; and records to put into one."""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random

import pytest

from netchannel.errors import (
    ChannelClosed,
    LogBroken,
    LogDamaged,
    MessagesLost,
    PositionLost,
    StorageFull,
)
from netchannel.storage import Buffer, LogRecord, NewRecord, Outline, SegmentLog
from netchannel.values import Ending
from netchannel.wire.frames import HEADER_SIZE, Kind, signal
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
        0,
        size,
        random.getrandbits(40),
        memoryview(b"".join(frame(random.randbytes(each)) for each in (size // 2, size - size // 2))),
        CONTEXTS[context and 1],
        CONTEXTS[context],
    )


def frame(payload: bytes) -> bytes:
    """A frame with any payload: what is in it, the log does not ask."""
    return signal(Kind.DATA, payload=payload)


def new(kept: LogRecord) -> NewRecord:
    """It as it is appended: two frames, each in several pieces."""
    frames: list[Buffer] = []
    half = HEADER_SIZE + kept.size // 2
    for data in (bytes(kept.payload[:half]), bytes(kept.payload[half:])):
        cut = HEADER_SIZE + (len(data) - HEADER_SIZE) // 3
        frames += [data[:cut], b"", bytearray(data[cut:])] if cut < len(data) else [data]
    return NewRecord(
        kept.first, kept.end, frames, kept.timestamp, kept.size, kept.rows, kept.schema, kept.context
    )


def put(log: SegmentLog, *records: LogRecord) -> None:
    """Append them, with as many calls as it takes."""
    done = 0
    while done < len(records):
        done += log.append(map(new, records[done:]))


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


def all_of(files: SimulatedFiles, first: int = 0) -> tuple[list[LogRecord], Ending | None]:
    log = opened(files)
    try:
        return list(log.read(first)), log.ending
    finally:
        log.close()


def what_is_left(files: SimulatedFiles, first: int) -> MessagesLost | tuple[list[LogRecord], int]:
    """The records from ``first`` on and the head; or the error that opening gives."""
    try:
        with opened(files) as log:
            return list(log.read(first)), log.head
    except MessagesLost as error:
        return error


SIZES = [0, 1, 7, 64, 300, 900]
_STEPS = ["append"] * 8 + ["sync"] * 3 + ["trim", "read"] * 2
_STEPS += ["kill", "crash", "close", "squeeze", "crash_at", "fail", "finish"]
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
        self.ever_acknowledged = 0
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
        self.check_loss()
        self.reader = None
        loses = loses or self.faulty or self.squeezed
        self.squeezed = self.files.capacity is not None
        whole = self.open()
        log, head = self.log, self.log.head
        assert self.durable <= head <= self.head
        assert head in {0, *(each.end for each in self.records)}
        assert log.durable == head
        # Of earlier processes too: a mark that a crash had torn can come back whole, and is true.
        assert log.acknowledged <= self.ever_acknowledged
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
            Outline(each.first, each.end, each.size, each.rows, each.timestamp) for each in expected
        ]

    def check_loss(self) -> None:
        """One segment goes missing: what nobody has acknowledged of it is missed, by its numbers, and nothing else is.

        A disk that fails may have kept to itself what it should remember.
        """
        names = [name for name in self.files.names(FOLDER) if name.endswith(".segment")]
        if not names or self.faulty:
            return
        whole, harmed = self.files.copy(), self.files.copy()
        whole.capacity = harmed.capacity = None
        with opened(whole) as log:
            acknowledged, head = log.acknowledged, log.head
            kept = list(log.read(acknowledged))
        at = self.random.randrange(len(names))
        harmed.lose(FOLDER / names[at])
        base, following = (int(name.removesuffix(".segment")) for name in [*names, f"{head}"][at : at + 2])
        outcome = what_is_left(harmed, acknowledged)
        if isinstance(outcome, MessagesLost):
            last = at == len(names) - 1
            lost = (base if at else acknowledged, None if last else following)
            assert (outcome.path, outcome.first, outcome.end) == (str(FOLDER), *lost)
            assert last or at or following > acknowledged, "it was acknowledged"
        else:
            found, head = outcome
            assert found == kept[: len(found)]
            assert head == (found[-1].end if found else acknowledged) >= self.durable

    def promise(self, upto: int) -> None:
        self.durable = upto
        for each in self.records:
            if each.end <= upto:
                assert self.promised.setdefault(each.first, each) == each, "a number was used twice"

    def append(self, count: int, size: int, context: int) -> None:
        """One record, or several at once."""
        records: list[LogRecord] = []
        for _ in range(self.random.choice([1, 1, 1, 2, 5])):
            first = records[-1].end if records else self.head
            records.append(record(first, count, size, context, self.random))
        if self.ending is not None:
            with pytest.raises(ChannelClosed):
                put(self.log, *records)
            return
        self.records += records
        try:
            put(self.log, *records)
        except StorageFull:
            assert self.files.capacity is not None
            while self.records and self.records[-1].end > self.log.head:
                self.records.pop()
                records.pop()
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
        upto = self.acknowledged + round(part * (self.durable - self.acknowledged))
        self.acknowledged = upto
        self.ever_acknowledged = max(upto, self.ever_acknowledged)
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


def drawn_steps(random: Random) -> list[tuple[object, ...]]:
    """Steps for `World.run`, of which most append: longer stories than a search for short ones tells."""
    steps: list[tuple[object, ...]] = []
    for _ in range(random.randrange(60)):
        name = random.choice(_STEPS)
        match name:
            case "append":
                steps.append((name, random.randint(1, 5), random.choice(SIZES), random.randrange(3)))
            case "trim":
                steps.append((name, random.choice([0.3, 0.7, 1.0])))
            case "read":
                steps.append((name, random.randint(1, 9), random.random()))
            case "crash_at":
                steps.append((name, random.randrange(13)))
            case "fail":
                steps.append((name, random.choice(FALLIBLE)))
            case "finish":
                steps.append((name, random.choice([None, "", "no more"])))
            case _:
                steps.append((name,))
    return steps
