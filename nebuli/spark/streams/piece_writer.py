"""Writing in tasks: rows are staged at the circuit, and only the driver's commit has them counted."""

from __future__ import annotations

import logging
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from nebuli.spark.pushed_batches import pieces, whole_rows
from nebuli.spark.streams.circuit_links import input_target, linked
from nebuli.spark.streams.errors import CircuitStreamError
from spark_bridge.errors import CheckpointReplaced
from spark_bridge.schemas import Normaliser
from spark_bridge.tasks.task import settle

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import pyarrow as pa
    from pyspark.sql.types import StructType

    from nebuli.spark.pushed_batches import Work
    from nebuli.spark.streams.circuit_options import WriteOptions

_log = logging.getLogger("nebuli.spark")


@dataclass(frozen=True, slots=True)
class Pieces:
    """The rows that a task has staged; ``known``: the circuit reported that it has the whole push already."""

    names: tuple[str, ...] = ()
    known: bool = False


@dataclass(frozen=True, slots=True)
class Staged:
    """How the rows of a write get into an input; travels to the tasks."""

    options: WriteOptions
    target: pa.Schema

    @classmethod
    def of(cls, options: WriteOptions, schema: StructType) -> Staged:
        """The rows of a write of ``schema``. Raises SchemaConflict, CircuitStreamError."""
        with linked(options.place, f"input {options.input}") as circuit:
            target = input_target(circuit.inputs, options.input, schema)
        settle()
        return cls(options, target)

    def stage(self, work: Work, batches: Iterator[pa.RecordBatch]) -> Pieces:
        """Stage a partition. Raises InputIncomplete: Spark failed above this task; CircuitStreamError."""
        options, names = self.options, []
        normalise = Normaliser(self.target)
        known = False
        try:
            for batch in whole_rows(batches):
                for rows in pieces(normalise(batch)):
                    if known:
                        continue  # all rows are read: whether Spark could give them is still to be seen
                    with linked(options.place, self._what(work)) as circuit:
                        name = circuit.stage(
                            options.input, rows, producer=work.producer, sequence=work.number
                        )
                    if name is None:
                        known = True
                    else:
                        names.append(name)
        except BaseException:
            with suppress(CircuitStreamError):  # what is raised is why it failed
                self._drop(work, names)
            raise
        return Pieces(tuple(names), known)

    def push(self, work: Work, staged: Sequence[Pieces]) -> None:
        """Have what tasks have staged count, all of it for one step; once, however often it is called.

        Raises CheckpointReplaced: a later batch was pushed; BatchLost; CircuitStreamError.
        """
        options, names = self.options, [name for each in staged for name in each.names]
        with linked(options.place, self._what(work)) as circuit:
            expected = circuit.next_sequence(options.input, work.producer)
            if expected > work.number + 1:
                raise CheckpointReplaced(
                    f"circuit {options.place.address}, {self._what(work)}: the higher number {expected - 1} "
                    f"was already pushed, so the query's checkpoint, or txnVersion, is older than the pushed "
                    f"rows; continue from the newest checkpoint, or start from scratch"
                )
            if any(each.known for each in staged) and expected <= work.number:
                raise CircuitStreamError(
                    f"circuit {options.place.address}, {self._what(work)}: the circuit reported to a task that "
                    f"this batch was already pushed, but now does not have the batch: was the circuit started "
                    f"from scratch?"
                )
            circuit.push_staged(options.input, names, producer=work.producer, sequence=work.number)

    def drop(self, work: Work, staged: Sequence[Pieces]) -> None:
        """Forget what tasks have staged for a push that failed; what cannot be forgotten now is after some hours."""
        try:
            self._drop(work, [name for each in staged for name in each.names])
        except CircuitStreamError as error:
            _log.warning("staged rows stay until they expire: %s", error)

    def _drop(self, work: Work, names: Sequence[str]) -> None:
        if names:
            with linked(self.options.place, self._what(work)) as circuit:
                circuit.drop_staged(self.options.input, names, producer=work.producer)

    def _what(self, work: Work) -> str:
        return f"input {self.options.input}, {work.shown}"
