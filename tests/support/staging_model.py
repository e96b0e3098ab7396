"""What the files of a staged channel must hold, through faults of all kinds."""

from __future__ import annotations

import errno
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest

from netchannel.errors import LogBroken, StorageFull
from netchannel.storage import AttemptFile, LogRecord, SealedAttempt, StagingStore
from netchannel.storage.groups import journal, spares, staging_store
from netchannel.values import AttemptKey
from tests.support.simulated_files import Crash, SimulatedFiles

ROOT = Path("/staged")
FOLDER = ROOT / "flights"
SCHEMA = b"the schema"
CONTEXTS = (b"", b"first dictionary", bytes(range(256)))
APPLICATIONS = ("a", "b")
SPARE_BYTES = 2000
FALLIBLE = ["pwritev", "fdatasync", "sync_directory", "create", "unlink", "rename"]

Record = tuple[int, bytes, bytes]
"""How many messages, their payload, and what it needs."""


def opened(
    files: SimulatedFiles,
    create_stream: Callable[[], str] = lambda: "stream",
    spare_bytes: int = SPARE_BYTES,
) -> StagingStore:
    return StagingStore.open(
        ROOT, "flights", create_stream=create_stream, codec="bytes", spare_bytes=spare_bytes, files=files
    )


def put(file: AttemptFile, records: list[Record]) -> None:
    for count, payload, context in records:
        half = len(payload) // 2
        file.append(
            count, [payload[:half], payload[half:]], size=len(payload), schema=SCHEMA, context=context
        )


def written(store: StagingStore, key: AttemptKey, records: list[Record]) -> SealedAttempt:
    file = store.attempt(key)
    put(file, records)
    return file.seal(checksum_of(records), SCHEMA)


def checksum_of(records: list[Record]) -> int:
    return sum(map(len, (payload for _, payload, _ in records)))


def drawn_records(random: Random) -> list[Record]:
    return [
        (random.randint(1, 4), random.randbytes(random.choice([0, 1, 64, 300])), random.choice(CONTEXTS))
        for _ in range(random.randrange(4))
    ]


def contents(store: StagingStore, start: int = 0) -> list[tuple[int, Record]]:
    def shown(record: LogRecord) -> tuple[int, Record]:
        return record.first, (record.end - record.first, bytes(record.payload), record.context)

    return [shown(record) for record in store.read(start)]


class World:
    """One staged channel through faults. ``records`` is all that was committed, with the channel's numbers."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.files = SimulatedFiles(seed)
        self.records: list[tuple[int, Record]] = []
        self.head = 0
        self.ended = False
        self.epochs: dict[str, int] = {}
        self.acknowledged = 0
        self.ever_acknowledged = 0
        self.sealed: dict[AttemptKey, SealedAttempt] = {}
        self.attempts: dict[AttemptKey, list[Record]] = {}  # of all that were ever written
        self.removed: set[AttemptKey] = set()
        self.names = 0
        self.stream = ""
        self.committing: tuple[AttemptKey | tuple[str, int], list[AttemptKey], bool] | None = None
        self.forgetting: str | None = None
        self.faulty = False
        self.squeezed = False
        self.store: StagingStore
        self.open()
        self.stream = self.store.stream

    def open(self) -> None:
        """Start a process; where it stops or fails at once, another."""
        self.faulty = self.random.random() < 0.1
        if self.faulty:
            self.files.fail(self.random.choice(FALLIBLE), errno.EIO, after=self.random.randrange(3))
        if self.random.random() < 0.3:
            self.files.crash_at = self.random.randrange(12)
        while True:
            try:
                self.store = opened(self.files, self.new_name)
            except Crash:
                self.random.choice([self.files.power_on, self.files.kill])()
            except LogBroken:
                assert self.faulty
                self.files.kill()
            except StorageFull:
                self.files.capacity = None
            else:
                return

    def new_name(self) -> str:
        self.names += 1
        return f"stream {self.names}"

    # -- what is checked

    def restart(self, stop: Callable[[], None]) -> None:
        stop()
        self.squeezed = self.files.capacity is not None
        self.open()
        store = self.store
        if self.committing is not None:
            self.settle_commit()
        if self.forgetting is not None and self.forgetting not in store.state.epochs:
            del self.epochs[self.forgetting]
        self.forgetting = None
        if store.stream != self.stream:
            assert self.ended
            assert self.acknowledged == self.head
            self.began_anew()
        assert store.state.epochs == self.epochs
        assert (store.state.head, store.state.ended) == (self.head, self.ended)
        assert store.acknowledged <= self.ever_acknowledged
        self.acknowledged = store.acknowledged
        assert store.oldest <= store.acknowledged
        expected = [each for each in self.records if each[0] + each[1][0] > store.acknowledged]
        assert contents(store, store.acknowledged) == expected
        self.check_found()

    def check_found(self) -> None:
        """What was sealed is there, unless its epoch is over; and what is there is whole."""
        found = {sealed.key: sealed for sealed in self.store.found}
        wanted = {key for key in self.sealed if key.epoch > self.epochs.get(key.application, -1)}
        assert wanted <= set(found)
        for key, sealed in found.items():
            records = self.attempts[key]
            assert sealed.count == sum(count for count, _, _ in records)
            assert sealed.checksum == checksum_of(records)
            assert sealed.size == checksum_of(records)
            assert sealed.schema == SCHEMA
            assert key.epoch > self.epochs.get(key.application, -1)
        self.sealed = found

    def settle_commit(self) -> None:
        """A commit was interrupted: all or nothing, and the epochs tell which."""
        assert self.committing is not None
        (application, epoch), keys, end = self.committing[0], self.committing[1], self.committing[2]  # type: ignore[misc]
        self.committing = None
        if self.store.state.epochs.get(application) == epoch:
            self.committed(application, epoch, keys, end=end)

    def committed(self, application: str, epoch: int, keys: list[AttemptKey], *, end: bool) -> None:
        for key in keys:
            for record in self.attempts[key]:
                self.records.append((self.head, record))
                self.head += record[0]
            self.sealed.pop(key, None)
        self.epochs[application], self.ended = epoch, end

    def began_anew(self) -> None:
        self.stream = self.store.stream
        self.records, self.head, self.ended, self.acknowledged, self.ever_acknowledged = [], 0, False, 0, 0

    # -- steps

    def write(self) -> None:
        application = self.random.choice(APPLICATIONS)
        epoch = self.epochs.get(application, -1) + self.random.choice([1, 1, 1, 2])
        self.names += 1
        key = AttemptKey(application, epoch, self.random.randrange(3), f"attempt {self.names}")
        self.attempts[key] = drawn_records(self.random)
        file = self.store.attempt(key)
        try:
            put(file, self.attempts[key])
            if self.random.random() < 0.8:
                self.sealed[key] = file.seal(checksum_of(self.attempts[key]), SCHEMA)
        except (StorageFull, LogBroken):
            assert self.faulty or self.squeezed
            file.discard()
            if self.random.random() < 0.5:
                self.files.capacity = None

    def commit(self) -> None:
        application = self.random.choice(APPLICATIONS)
        if self.ended:
            return
        epochs = sorted({key.epoch for key in self.sealed if key.application == application})
        epoch = epochs[0] if epochs else self.epochs.get(application, -1) + 1
        one_each = {
            key.partition: key for key in self.sealed if (key.application, key.epoch) == (application, epoch)
        }
        keys = [one_each[partition] for partition in sorted(one_each)]
        end = self.random.random() < 0.1
        self.committing = ((application, epoch), keys, end)
        if self.random.random() < 0.05:
            self.faulty = True
            self.files.fail("sync_directory", errno.EIO)
        try:
            self.store.commit(application, epoch, [self.sealed[key] for key in keys], end=end)
        except StorageFull:
            assert self.squeezed
            self.committing = None
            self.files.capacity = None
            return
        self.committing = None
        self.committed(application, epoch, keys, end=end)
        losers = [key for key in self.sealed if key.application == application and key.epoch <= epoch]
        self.store.remove([self.sealed.pop(key) for key in losers])

    def acknowledge(self) -> None:
        upto = self.random.randint(self.acknowledged, self.head)
        self.ever_acknowledged = max(upto, self.ever_acknowledged)
        self.acknowledged = upto
        self.store.acknowledge(upto)

    def forget(self) -> None:
        if not self.epochs:
            return
        self.forgetting = self.random.choice(sorted(self.epochs))
        try:
            self.store.forget(self.forgetting)
        except StorageFull:
            assert self.squeezed
            self.files.capacity = None
        else:
            del self.epochs[self.forgetting]
        self.forgetting = None

    def drop(self) -> None:
        if self.sealed:
            key = self.random.choice(sorted(self.sealed))
            self.store.remove([self.sealed.pop(key)], durably=True)

    def start_over(self) -> None:
        if not self.ended:
            return
        self.ever_acknowledged = self.acknowledged = self.head
        self.store.acknowledge(self.head)
        try:
            self.store.start_over(self.new_name())
        except StorageFull:
            self.files.capacity = None
            return
        self.began_anew()

    def age(self) -> None:
        self.store.age()

    def read(self) -> None:
        start = self.random.randint(self.acknowledged, self.head)
        expected = [each for each in self.records if each[0] + each[1][0] > start]
        assert contents(self.store, start) == expected

    def step(self, name: str) -> None:
        match name:
            case "kill":
                self.restart(self.files.kill)
            case "crash":
                self.restart(self.files.power_on)
            case "close":
                self.store.close()
                self.restart(self.files.kill)
            case "crash_at":
                self.files.crash_at = self.random.randrange(13)
            case "fail":
                self.faulty = True
                self.files.fail(self.random.choice(FALLIBLE), errno.EIO, after=self.random.randrange(3))
            case "refuse":
                self.squeezed = True
                self.files.fail("pwritev", errno.ENOSPC, after=self.random.randrange(6))
            case "squeeze":
                self.squeezed = True
                self.files.capacity = self.random.randrange(6000)
            case _:
                getattr(self, name)()

    def run(self, steps: list[str]) -> None:
        with pytest.MonkeyPatch.context() as patch:
            # Written anew every few commits, and not only after thousands.
            patch.setattr(journal, "_SMALL", 1)
            patch.setattr(journal, "_GROWTH", 2)
            # Every file is written again where one can be.
            patch.setattr(spares, "LEAST_BYTES", 1)
            patch.setattr(staging_store.log, "warning", self.warned)
            for name in steps:
                self.run_one(name)

    def run_one(self, name: str) -> None:
        try:
            self.step(name)
        except Crash:
            self.files.crash()
            self.restart(self.random.choice([self.files.power_on, self.files.kill]))
        except LogBroken:
            assert self.faulty
            if name == "commit":
                self.check_broken()
            self.restart(self.random.choice([self.files.kill, self.files.power_on]))

    def warned(self, text: str, *_: object) -> None:
        """What is found under the name of a sealed attempt is whole."""
        assert "discarded" not in text

    def check_broken(self) -> None:
        """Nothing is promised any more."""
        with pytest.raises(LogBroken):
            self.store.commit("a", 1 << 40, [], end=False)


STEPS = ["write"] * 6 + ["commit"] * 4 + ["acknowledge", "read"] * 2
STEPS += [
    "age",
    "refuse",
    "drop",
    "forget",
    "start_over",
    "kill",
    "crash",
    "close",
    "squeeze",
    "crash_at",
    "crash_at",
    "fail",
]


def drawn_steps(random: Random) -> list[str]:
    return [random.choice(STEPS) for _ in range(random.randrange(60))]
