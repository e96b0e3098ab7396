"""A fragment on Spark, in the place of the embedded engine's circuit."""

from __future__ import annotations

import datetime as dt
import secrets
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa

from nebuli.connectors.endpoints import Source
from nebuli.dataflow import arrow_schema, arrow_type, zset
from nebuli.dataflow.errors import DataflowError
from nebuli.dataflow.progress import BEGINNING
from topology.schema import DataType as T

from .driver_messages import DRAIN, RUN, Input, Job
from .expressions import TYPES, identifier
from .plans import compile_plan, view
from .rendezvous import Rendezvous
from .session import is_local

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from nebuli.connectors.endpoints import Signal
    from nebuli.dataflow import OperatorStatistics
    from nebuli.dataflow.progress import Progress
    from placement.plan import Fragment
    from topology import Schema

_RESULT = "result"
_FAR_FUTURE = dt.datetime(9999, 12, 31, tzinfo=dt.UTC)
_WIDER = {T.UINT8: T.INT16, T.UINT16: T.INT32, T.UINT32: T.INT64}
"""Spark's integers have signs."""


class SparkCircuit:
    """Takes what the sources give, as a circuit does, and gives it to Spark. Spark's result is a source itself.

    That source, by the id ``results``, is to be polled like the others, and what it gives to be pushed: it passes as
    it is, to the sink. Made anywhere, started on a loop, used by one thread; ``interrupt`` by any.
    """

    def __init__(self, fragment: Fragment) -> None:
        assert fragment.engine is not None
        self._fragment = fragment
        self._engine = fragment.engine
        self._plan = compile_plan(fragment)
        self._rendezvous: Rendezvous | None = None
        self.sources: dict[str, pa.Schema] = {
            id_: zset.weighted(arrow_schema(columns)) for id_, columns in self._plan.inputs.items()
        }
        """The external inputs of ``push``: Z-sets of this schema, by the id of their source."""
        self.schema: pa.Schema = zset.weighted(arrow_schema(self._plan.output))
        """The schema of the Z-sets of the result."""
        self.results = "Spark's results"
        self.idle_after_s: dict[str, float] = {}
        """Event time is Spark's own here; planning refuses what needs the embedded engine's."""
        self.progress = BEGINNING
        self.watermark: int | None = None
        self.late_schemas: dict[str, pa.Schema] = {}
        self._inputs = {
            source: Input(view(index), _ddl(columns), *self._plan.times.get(view(index), ()))
            for index, (source, columns) in enumerate(self._plan.inputs.items())
        }
        self._open = {*self.sources, self.results}

    @property
    def ended(self) -> bool:
        """True if Spark's result has ended."""
        return self.results not in self._open

    @property
    def phase(self) -> str:
        """Spark's phase; empty before and after."""
        return "" if self._rendezvous is None else self._rendezvous.phase

    def advance(self, source: str, progress: Progress) -> Iterator[pa.RecordBatch]:
        """Spark has watermarks of its own, from the rows."""
        return iter(())

    def idle(self, source: str) -> Iterator[pa.RecordBatch]:
        """Nothing: no source is idle, without ``idle_after_s``."""
        return iter(())

    def take_late(self) -> Iterator[tuple[str, pa.RecordBatch]]:
        """Spark does not give late rows out."""
        return iter(())

    def statistics(self) -> dict[str, OperatorStatistics]:
        """Return no counters: Spark counts its operators in its own way."""
        return {}

    def start(self, wake: Callable[[], None]) -> dict[str, Source]:
        """Begin on the running loop; what Spark gives back is to be read from there."""
        self._rendezvous = Rendezvous(wake)
        return {self.results: Results(self, self._rendezvous)}

    def open(self) -> None:
        """Keep what comes from here on, and have Spark start meanwhile."""
        directory = Path(tempfile.mkdtemp(prefix="nebuli-spark-"))
        local = is_local(self._engine.master)
        host = "127.0.0.1" if local else self._fragment.node.rpartition(":")[0]
        secret = secrets.token_hex(16)
        rendezvous, inputs = self._met, self._inputs
        addresses = rendezvous.open(
            host,
            secret,
            directory,
            {each.channel: spark_schema(self._plan.inputs[source]) for source, each in inputs.items()},
            _RESULT,
            bounded=self._engine.bounded,
        )
        job = Job(
            name=self._fragment.id,
            master=self._engine.master,
            bounded=self._engine.bounded,
            inputs=tuple(inputs.values()),
            steps=self._plan.steps,
            source=addresses.source,
            target=addresses.target,
            result=_RESULT,
            directory=str(directory),
            secret=secret,
        )
        rendezvous.drive(job)

    def push(self, source: str, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """Take a Z-set of a source, which Spark reads when it likes; or of the result, which is passed on."""
        if source == self.results:
            yield zset.insertions(batch.cast(arrow_schema(self._plan.output)))
            return
        if (zset.weights_of(batch) < 0).any():
            raise DataflowError(
                "a row was retracted, but Spark only accepts rows that are never retracted", source
            )
        rows = zset.expand(batch)
        if rows.num_rows:
            self._met.send(self._inputs[source].channel, rows.cast(spark_schema(self._plan.inputs[source])))

    def end(self, source: str) -> Iterator[pa.RecordBatch]:
        """Learn that a source has ended; with the last one Spark is notified."""
        self._open.remove(source)
        if source != self.results:
            self._close_windows(source)
        if self._open == {self.results}:
            if not self._engine.bounded:
                self._met.flush()  # or Spark might get the last rows after the notice that there are no more
            self._met.tell(RUN if self._engine.bounded else DRAIN)
        return iter(())

    def _close_windows(self, source: str) -> None:
        """A row of the far future, by which Spark is done with all windows; its own one is never over."""
        input_ = self._inputs[source]
        if input_.time is not None:
            schema = spark_schema(self._plan.inputs[source])
            columns = [pa.nulls(1, field.type) for field in schema]
            columns[schema.get_field_index(input_.time)] = pa.array([_FAR_FUTURE], arrow_type(T.TIMESTAMP))
            self._met.send(input_.channel, pa.record_batch(columns, schema=schema))

    def interrupt(self) -> None:
        """Have present and later waits for Spark raise ``FragmentStopped``."""
        if self._rendezvous is not None:
            self._rendezvous.interrupt()

    @property
    def _met(self) -> Rendezvous:
        assert self._rendezvous is not None, "it was not started"
        return self._rendezvous


class Results(Source):
    """Spark's result for a fragment's input, as a source."""

    def __init__(self, circuit: SparkCircuit, rendezvous: Rendezvous) -> None:
        self._circuit = circuit
        self._rendezvous = rendezvous

    def open(self) -> None:
        """Start Spark."""
        self._circuit.open()

    def poll(self) -> pa.RecordBatch | Signal:
        """The next batch that Spark has published; ``FragmentError`` once Spark has failed."""
        return self._rendezvous.poll()

    def close(self, reason: str) -> None:
        """Have Spark end in any case, and release all data kept for it."""
        directory = self._rendezvous.close()
        if directory is not None:
            shutil.rmtree(directory, ignore_errors=True)


def spark_schema(columns: Schema) -> pa.Schema:
    """Types that Spark has."""
    return arrow_schema(
        tuple(column.model_copy(update={"type": _WIDER.get(column.type, column.type)}) for column in columns)
    )


def _ddl(columns: Schema) -> str:
    return ", ".join(f"{identifier(column.name)} {TYPES[column.type]}" for column in columns)
