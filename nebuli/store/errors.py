"""Errors of a store.

::

    StorageError
    ├── StoreUrlInvalid        the URL of a store is malformed
    ├── ExtraMissing           a required package is not installed
    ├── StoreUnusable          the folder cannot be used as a store, or is of another format
    │   └── StoreReadOnly        this process may not write to the folder
    ├── StoreClosed            it was closed, here
    ├── StoreBusy              others wrote all the time
    ├── StoreFull              no space is left; nothing happened
    ├── StoreFailed            the system refused; nothing happened
    │   └── StoreAway            its server did not answer for too long; nothing happened
    ├── Unclear                the system failed in the middle: it happened or it did not
    ├── Damaged                written data is missing or changed
    │   ├── NoteDamaged          a note next to a store, or above several
    │   ├── EntryDamaged         an entry of the ordering
    │   ├── EntriesMissing       entries of the ordering are gone from the middle of a log
    │   ├── EndLost              the ordering ends before acknowledged entries
    │   ├── BeyondEnd            a place in a log is beyond the log's end
    │   ├── BlobDamaged          a blob
    │   └── BlobMissing          a blob that is not there at all
    ├── Locked                 another process has it open
    ├── ShardUnknown           no shard has that name
    ├── SchemaMismatch         rows are not of the schema that the shard was created with
    ├── UpperMismatch          another append was first
    │   └── ShardFinished        nothing can be appended ever again
    ├── SinceMismatch          the requested data has been forgotten
    ├── NotYet                 the requested data was not written within the deadline
    ├── VersionUnavailable     a version that the database does not have
    ├── DatabaseClosed         it was committed or closed
    ├── StepOutOfRange         a step that a log does not have, and will not have next
    ├── OutputDiffers          a step that was repeated came out different
    ├── LogTaken               another one writes the log now
    ├── EpochTaken             another one has claimed a greater epoch of the circuit
    ├── StagingError           errors of data staged for a log
    │   ├── StagedLost           it is gone
    │   └── StagingFull          there is so much that no more is accepted
    └── SequenceError          a producer and the log do not agree
        ├── SequenceGap          something is missing before it
        ├── SequenceReused       the number was used for something else
        └── SequencePassed       a later one has been logged
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

FINISHED = 1 << 64
"""The upper of a shard to which nothing can be appended any more: above every time, which has 64 bits."""


class StorageError(Exception):
    """The store could not do it; the message has the cause and the remedy."""


class StoreUrlInvalid(StorageError):
    """The place of a store is empty, or its URL malformed; the message never repeats a password."""


class ExtraMissing(StorageError):
    """A package that ``what`` needs is not installed."""

    def __init__(self, what: str, lacking: Sequence[str], extras: str) -> None:
        super().__init__(
            f"{what} needs {' and '.join(lacking)}, which this installation does not have: "
            f"pip install 'nebuli[{extras}]'"
        )


class StoreUnusable(StorageError):
    """The folder cannot be used as a store, or is one of another format."""


class StoreReadOnly(StoreUnusable):
    """This process may not write to the folder of the store, which readers do as well; nothing happened."""

    def __init__(self, where: str, cause: object) -> None:
        super().__init__(
            f"{where} cannot be written ({cause}): readers must also write their holds there; mount it "
            f"writable, and give this user write permission for the folder and its files, or read a copy of it"
        )


class StoreClosed(StorageError):
    """The store, or the database, was closed by its owner."""

    def __init__(self) -> None:
        super().__init__("the store was closed here: open it again")


class StoreBusy(StorageError):
    """Other processes wrote during all of ``waited_s``; nothing happened."""

    def __init__(self, where: str, waited_s: float) -> None:
        self.waited_s = waited_s
        super().__init__(
            f"{where} was locked by other processes for {waited_s:g} s: try again; if it stays locked, one of "
            f"the processes that 'fuser {where}' lists is suspended"
        )


class StoreFull(StorageError):
    """No more can be written: the disk is full, or a quota or a limit is reached; nothing happened.

    Written data is kept. ``remedy`` names what makes room.
    """

    def __init__(self, where: str, cause: object, remedy: str = "free some space") -> None:
        super().__init__(f"no space is left for {where} ({cause}): {remedy}, and try again; nothing is lost")


class StoreFailed(StorageError):
    """The system refused to do it; nothing happened."""

    def __init__(self, where: str, doing: str, cause: object) -> None:
        super().__init__(
            f"{doing} {where} failed: {cause}; nothing was changed: check the disk, and try again"
        )


class StoreAway(StoreFailed):
    """The server of the store did not answer during all of ``waited_s``; nothing happened."""

    def __init__(self, where: str, waited_s: float, cause: object) -> None:
        self.waited_s = waited_s
        StorageError.__init__(
            self,
            f"{where} did not answer for {waited_s:.3g} s ({cause}); nothing was changed: make it available "
            f"again, then start again to continue",
        )


class Unclear(StorageError):
    """The system failed in the middle: it happened or it did not.

    An append that is called again with its ``append_id`` happens once.
    """

    def __init__(self, what: str, cause: object, append_id: bytes = b"") -> None:
        self.append_id = append_id
        again = f" with append_id={append_id!r}" if append_id else ""
        super().__init__(
            f"{what} failed, and its outcome is not known: {cause}; repeat it{again}: the "
            f"repetition does nothing if this attempt has succeeded"
        )


class Damaged(StorageError):
    """Something that was written is not there as it was written."""


class NoteDamaged(Damaged):
    """A note has something else than was written; ``note`` is its file."""

    def __init__(self, note: str, why: Exception) -> None:
        super().__init__(f"{note} is damaged: {why}; restore it from a copy")


class EntryDamaged(Damaged):
    """An entry of the ordering has another checksum than it was written with."""

    def __init__(self, key: str, sequence: int, expected: int, found: int) -> None:
        self.expected = expected
        self.found = found
        super().__init__(
            f"entry {sequence} of {key} is damaged: its checksum is {found:016x}, but it was written with "
            f"{expected:016x}; restore the store's folder from a copy"
        )


class EntriesMissing(Damaged):
    """A log of the ordering has entries, and not all of those between."""

    def __init__(self, where: str, key: str, last: int, found: int) -> None:
        super().__init__(
            f"{where} is damaged: the last entry of {key} is {last}, but only {found} of the entries up to it "
            f"exist; restore the store's folder from a copy"
        )


class EndLost(Damaged):
    """The ordering ends before an entry that was acknowledged."""

    def __init__(self, where: str, key: str, noted: int, found: int) -> None:
        super().__init__(
            f"{where} has lost its end: entry {noted} of {key} was acknowledged, but the last entry is now "
            f"{found}; restore the store's folder from a copy"
        )


class BeyondEnd(Damaged):
    """A place in a log, which something else has noted, lies beyond the log's end."""

    def __init__(self, what: str, at: int, log: str, end: int) -> None:
        super().__init__(
            f"{what} is at {at:,}, but {log} ends at {end:,}: the end of the log is lost; restore the "
            "store's folder from a copy"
        )


class BlobDamaged(Damaged):
    """A blob has another checksum or size than it was written with."""

    def __init__(self, owner: str, blob: str, expected: int, found: int) -> None:
        self.owner = owner
        self.blob = blob
        self.expected = expected
        self.found = found
        super().__init__(
            f"blob {blob} of {owner} is damaged: its checksum is {found:016x}, but it was written with "
            f"{expected:016x}; restore its file from any copy of the store's folder that contains it, because "
            f"blobs never change"
        )


class BlobMissing(Damaged):
    """A blob that is in use is not there."""

    def __init__(self, owner: str, blob: str, expected: int) -> None:
        self.owner = owner
        self.blob = blob
        self.expected = expected
        super().__init__(
            f"blob {blob} of {owner}, which was written with the checksum {expected:016x}, is missing; restore "
            f"its file from any copy of the store's folder that contains it, because blobs never change"
        )


class Locked(StorageError):
    """The store or database is open already, in this process or in another one."""

    def __init__(self, name: str, holder: str) -> None:
        self.holder = holder
        super().__init__(f"{name} is open already, by {holder}: close it there first, or end that process")


class ShardUnknown(StorageError):
    """There is no shard of that name."""

    def __init__(self, shard: str) -> None:
        self.shard = shard
        super().__init__(f"there is no shard {shard}: create it first")


class SchemaMismatch(StorageError):
    """Rows, or a shard that is to be created again, have another schema than the shard."""

    def __init__(self, shard: str, expected: object, found: object, why: str = "") -> None:
        self.shard = shard
        super().__init__(
            f"the schema of shard {shard} is fixed: {_line(expected)}; the given schema is "
            f"{_line(found)}{why and f' ({why})'}"
        )


class UpperMismatch(StorageError):
    """Another append was first: the shard's upper is not what was expected. ``found`` is what it is."""

    def __init__(self, shard: str, expected: int, found: int, what: str = "") -> None:
        self.shard = shard
        self.expected = expected
        self.found = found
        super().__init__(
            what
            or (
                f"the upper of shard {shard} was expected to be {expected}, but is {found}: another writer "
                f"appended first; read its rows, and append from {found} on if there is still something to "
                f"append"
            )
        )


class ShardFinished(UpperMismatch):
    """Nothing can be appended to the shard ever again."""

    def __init__(self, shard: str, expected: int) -> None:
        super().__init__(
            shard,
            expected,
            FINISHED,
            f"shard {shard} is finished, so nothing can be appended to it; the append expected its upper to be "
            f"{expected}",
        )


class SinceMismatch(StorageError):
    """Times below the shard's since can no longer be distinguished."""

    def __init__(self, shard: str, asked: int, since: int) -> None:
        self.shard = shard
        self.asked = asked
        self.since = since
        super().__init__(
            f"shard {shard} cannot be read at time {asked} any more, because {since} is the earliest "
            f"readable time: read at time {since} or above, and keep a hold as long as you read"
        )


class NotYet(StorageError):
    """The shard's upper did not get above the time that was asked for within the deadline."""

    def __init__(self, shard: str, asked: int, upper: int, deadline_s: float, what: str = "") -> None:
        self.shard = shard
        self.asked = asked
        self.upper = upper
        super().__init__(
            what
            or (
                f"shard {shard} cannot be read at time {asked} yet: its upper is {upper}, and has not risen "
                f"above {asked} within {deadline_s:g} s; wait longer, or check that its writer is alive"
            )
        )


class VersionUnavailable(StorageError):
    """The database does not have that version."""

    def __init__(self, database: str, asked: int, versions: range) -> None:
        self.asked = asked
        self.versions = versions
        there = " and ".join(map(str, versions))
        super().__init__(f"database {database} has no version {asked}, only {there}: open one of these")


class DatabaseClosed(StorageError):
    """The database was committed or closed."""

    def __init__(self, database: str) -> None:
        super().__init__(f"database {database} was committed or closed: open a version of it again")


class StepOutOfRange(StorageError):
    """A log has steps from ``first`` up to but not including ``last``.

    ``asked`` is neither one of them nor the next one.
    """

    def __init__(self, log: str, asked: int, first: int, last: int) -> None:
        self.asked = asked
        self.first = first
        self.last = last
        what = "is no longer kept" if asked < first else "needs the steps below it first"
        super().__init__(
            f"step {asked} of {log} {what}: the log has the steps from {first}, and the next step is {last}"
        )


class OutputDiffers(StorageError):
    """A step was repeated, and its output is not the one that the log has, which stays as it is."""

    def __init__(self, log: str, step: int, outputs: Sequence[str]) -> None:
        self.step = step
        self.outputs = outputs
        super().__init__(
            f"step {step} was repeated, and its rows in {', '.join(outputs)} differ from the rows in output "
            f"log {log}, which remain as they are: the circuit or its input has changed; restore both, or "
            f"start again with another state folder"
        )


class LogTaken(StorageError):
    """Another one appends to the log; this one has lost it."""

    def __init__(self, log: str) -> None:
        super().__init__(
            f"another member appends to {log} now: end this member; or, if this member is the right one, open "
            f"the log again"
        )


class EpochTaken(StorageError):
    """Another one claimed the epoch ``found`` of the circuit, which is greater than ``own``."""

    def __init__(self, circuit: str, own: int, found: int) -> None:
        self.circuit = circuit
        self.own = own
        self.found = found
        super().__init__(
            f"another coordinator has claimed epoch {found} of circuit {circuit}, which is above this "
            f"coordinator's epoch {own}: leave the circuit to the other coordinator, or claim an epoch above "
            f"{found} if this coordinator should lead"
        )


class StagingError(StorageError):
    """Rows staged for a log cannot be logged, or no more can be staged."""


class StagedLost(StagingError):
    """A piece is not there any more, as it was staged, or never was; nothing happened."""

    def __init__(self, piece: str) -> None:
        self.piece = piece
        super().__init__(
            f"{piece[:200]!r} is not staged here any more, or was staged for something else: stage it again"
        )


class StagingFull(StagingError):
    """So many bytes are staged that no more are taken; nothing happened."""

    def __init__(self, staged_bytes: int, max_bytes: int) -> None:
        self.staged_bytes = staged_bytes
        self.max_bytes = max_bytes
        super().__init__(f"{staged_bytes} bytes are staged here, and the limit is {max_bytes}")


class SequenceError(StorageError):
    """A producer and the log do not agree about its sequence."""

    def __init__(self, producer: str, expected: int, got: int, what: str) -> None:
        self.producer = producer
        self.expected = expected
        self.got = got
        super().__init__(f"producer {producer} sent its number {got}, but its next is {expected}: {what}")


class SequenceGap(SequenceError):
    """Numbers before this one are missing; nothing happened."""

    def __init__(self, producer: str, expected: int, got: int) -> None:
        super().__init__(
            producer, expected, got, f"send again from {expected} on; nothing of this push was kept"
        )


class SequenceReused(SequenceError):
    """The number was used for other content; nothing happened."""

    def __init__(self, producer: str, expected: int, got: int) -> None:
        super().__init__(
            producer,
            expected,
            got,
            f"number {got} was already kept with different content; use another number for each content",
        )


class SequencePassed(SequenceError):
    """A later number of the producer has been logged; nothing happened."""

    def __init__(self, producer: str, expected: int, got: int) -> None:
        super().__init__(
            producer, expected, got, "a producer may skip numbers, but may repeat only its last number"
        )


class Conflict(Exception):
    """Logs of the ordering are not where they were expected to be; ``found`` has their last sequences. Internal."""

    def __init__(self, found: Mapping[str, int]) -> None:
        self.found = found
        super().__init__(f"another writer appended entries first: the logs end at {dict(found)}")


def _line(schema: object) -> str:
    return ", ".join(str(schema).split("\n"))
