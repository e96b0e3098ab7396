"""State as it is saved: runs of rows that never change, each with a name, and a few numbers.

Every operator that keeps something has a table. In it are its runs by their names, Arrow IPC streams of one batch
whose last column is the hashes that the rows lie in order of; and ``manifest``, which lists the runs of its states, and
has its numbers. The table ``the circuit`` has only a manifest: whose state it all is.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from nebuli.dataflow.errors import StateDamaged
from nebuli.dataflow.state import Run

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from nebuli.dataflow.state import KeyedState

Key = tuple[str, bytes]
"""A table and a key in it."""
Encoder = Callable[[], Any]
"""Returns the bytes of a value, which do not change: it may be called at any time, by any thread, while steps
continue."""
Tables = dict[str, dict[bytes, Encoder]]

FORMAT = 1
"""The format in which state is saved."""
READS = frozenset({FORMAT})
"""The formats that can be read: those of the versions before, so that members can be upgraded one after the other."""
CIRCUIT = "the circuit"
"""The table of the circuit itself; no operator has a name with a space."""
MANIFEST = b"manifest"
_HASHES = "the hash"


@dataclass(frozen=True, slots=True)
class Saved:
    """A circuit's state between two steps.

    ``tables`` is all of it. ``new`` has the values to put, relative to the last ``kept`` or loaded state, ``gone``
    those to delete. A value's bytes are made when its encoder is called.
    """

    tables: Mapping[str, Mapping[bytes, Encoder]]
    new: Sequence[Key]
    gone: Sequence[Key]
    kept: Callable[[], None]
    """Call it once it is durable: what is saved from then on is compared with it."""


class Kept:
    """The durable part of a circuit's state: values by their keys, and only the names of runs."""

    def __init__(self) -> None:
        self._values: dict[Key, bytes | None] = {}

    def compared(self, tables: Tables) -> Saved:
        """Compare state with the durable one."""
        values = dict(_values(tables))
        known = self._values
        new = [key for key, value in values.items() if known.get(key) != value]
        gone = [key for key in known if key not in values]
        return Saved(tables, new, gone, partial(self.become, values))

    def become(self, values: Mapping[Key, bytes | None]) -> None:
        """This is durable, and nothing else."""
        self._values = dict(values)

    def loaded(self, tables: Tables) -> None:
        """As ``become``."""
        self.become(dict(_values(tables)))

    def loaded_to_replace(self, tables: Tables) -> None:
        """These keys are durable, with values in an older format: the next save puts all, and deletes the others."""
        self.become(dict.fromkeys(key for key, _ in _values(tables)))


def _values(tables: Tables) -> Iterator[tuple[Key, bytes]]:
    for table, entries in tables.items():
        for key, encode in entries.items():
            yield (table, key), encode() if key == MANIFEST else b""


def table_of(states: Sequence[KeyedState], numbers: Mapping[str, int | None]) -> dict[bytes, Encoder]:
    """Return the table of an operator with these states and numbers; only references are taken."""
    entries: dict[bytes, Encoder] = {}
    manifest: list[list[list[str]]] = []
    for state in states:
        runs = state.runs
        entries |= {run.name: partial(encoded, run) for part in runs for run in part}
        manifest.append([[run.name.decode() for run in part] for part in runs])
    return {**manifest_of(manifest, numbers), **entries}


def manifest_of(
    states: Sequence[Sequence[Sequence[str]]], numbers: Mapping[str, int | None]
) -> dict[bytes, Encoder]:
    """Return the manifest of an operator's table, for runs given by their names."""
    return {MANIFEST: _as_manifest({"states": states, "numbers": dict(numbers)})}


def identity(fingerprint: str, member: int) -> dict[bytes, Encoder]:
    """Return the identity of the state's query."""
    return {MANIFEST: _as_manifest({"format": FORMAT, "fingerprint": fingerprint, "member": member})}


def _as_manifest(content: Mapping[str, Any]) -> Encoder:
    text = json.dumps(content, separators=(",", ":"), sort_keys=True).encode()
    return lambda: text


def encoded(run: Run) -> pa.Buffer:
    """The rows and hashes of a run as an Arrow IPC stream, uncompressed, so that they can be used where they lie."""
    columns = [*run.rows.columns, pa.array(run.hashes)]
    batch = pa.record_batch(columns, [*run.rows.schema.names, _HASHES])
    # Measured before it is written: a buffer that grows takes up to three times its bytes, and is copied as it grows.
    measure = pa.MockOutputStream()
    _write(measure, batch)
    buffer = pa.allocate_buffer(measure.size())
    _write(pa.FixedSizeBufferWriter(buffer), batch)
    return buffer


def _write(sink: pa.NativeFile, batch: pa.RecordBatch) -> None:
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)


def decoded(data: Any) -> Run:
    """The run that these bytes are, which are used where they lie. Raises ValueError."""
    try:
        batch = pa.ipc.open_stream(pa.py_buffer(data)).read_next_batch()
    except (pa.ArrowException, StopIteration, OSError) as error:
        raise ValueError(f"the value is not an Arrow stream of rows: {error!r}") from None
    if batch.schema.names[-1:] != [_HASHES] or batch.schema.types[-1] != pa.uint64():
        raise ValueError("the value has no column of hashes")
    hashes = np.asarray(batch.column(batch.num_columns - 1).to_numpy())
    return Run(batch.select(batch.schema.names[:-1]), hashes)


class Loading:
    """Reads the saved table of an operator. Any error in it is ``StateDamaged``."""

    def __init__(self, table: str, entries: Mapping[bytes, Any]) -> None:
        self._table = table
        self._entries = dict(entries)

    def manifest(self) -> dict[str, Any]:
        """The manifest as it was given."""
        try:
            manifest = json.loads(bytes(self._taken(MANIFEST)))
        except ValueError as error:
            raise StateDamaged(self._table, MANIFEST.decode(), str(error)) from None
        if not isinstance(manifest, dict):
            raise StateDamaged(self._table, MANIFEST.decode(), "the manifest is not a JSON object")
        return manifest

    def into(self, states: Sequence[KeyedState], recall: Callable[[Mapping[str, int | None]], None]) -> None:
        """Give the states their rows again, and to ``recall`` the numbers that were saved with them."""
        manifest = self.manifest()
        try:
            for state, (settled, fresh) in zip(states, manifest["states"], strict=True):
                state.restore(*([self._run(name.encode()) for name in part] for part in (settled, fresh)))
            recall(manifest["numbers"])
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise StateDamaged(
                self._table, MANIFEST.decode(), f"the manifest does not fit the operator's states: {error!r}"
            ) from None
        for key in self._entries:  # which would never be deleted
            raise StateDamaged(
                self._table, key.decode(errors="replace"), "the manifest does not list this key"
            )

    def _run(self, name: bytes) -> Run:
        data = self._taken(name)
        try:
            run = decoded(data)
        except ValueError as error:
            raise StateDamaged(self._table, name.decode(), str(error)) from None
        return Run.named(name, run.rows, run.hashes)

    def _taken(self, key: bytes) -> Any:
        try:
            return self._entries.pop(key)
        except KeyError:
            raise StateDamaged(self._table, key.decode(errors="replace"), "the value is missing") from None
