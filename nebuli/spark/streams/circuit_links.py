"""State of a process between Spark's calls: connections to circuits, which are waited for until a deadline."""

from __future__ import annotations

import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING

from nebuli.blocking import Circuit
from nebuli.circuits import CircuitDenied, CircuitError, CircuitUnreachable, StagedLost, StepForgotten
from nebuli.spark.row_schemas import WEIGHT, read_as, written_as
from nebuli.spark.streams.errors import BatchLost, CircuitAway, CircuitStreamError, StepsForgotten
from spark_bridge.clients import Pool
from spark_bridge.errors import SchemaConflict

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    import pyarrow as pa
    from pyspark.sql.types import StructType

    from nebuli.spark.streams.circuit_options import Place

_PAUSE_S = 0.1
_circuits: Pool[Circuit] = Pool(lambda circuit: circuit.__exit__(None, None, None), lambda _: True)


@contextmanager
def linked(place: Place, what: str) -> Iterator[Circuit]:
    """Lend a connection to a circuit; ``what`` is done there, as named in errors.

    Raises CircuitStreamError for what the circuit does not do: CircuitAway where it is not there in time.
    """
    key = (place.address, place.timeout_s, place.secret, place.tls)
    try:
        with _circuits.lend(key, lambda: _entered(place)) as circuit:
            yield circuit
    except CircuitError as error:
        raise meant(error, place, what) from error


def _entered(place: Place) -> Circuit:
    """Connect, once the circuit is there. Raises CircuitError."""
    circuit = Circuit(place.address, secret=place.secret, tls=place.tls, deadline_s=place.timeout_s)
    return circuit.__enter__()


def pause() -> None:
    """Wait a moment for a circuit to come back."""
    threading.Event().wait(_PAUSE_S)


def meant(error: CircuitError, place: Place, what: str) -> CircuitStreamError:
    """Return the query error for a circuit's error."""
    where = f"circuit {place.address}, {what}: {error}"
    match error:
        case StepForgotten():
            return StepsForgotten(
                f"{where}. To continue with the steps that are still kept, without the lost steps, read with "
                f"startingStep=earliest and a new checkpoint"
            )
        case StagedLost():
            return BatchLost(
                f"{where}. Start the query again with the same checkpoint: Spark then repeats this batch"
            )
        case CircuitDenied():
            return CircuitStreamError(where)
        case CircuitUnreachable():
            return CircuitAway(f"{where} (waited for {place.timeout_s:g} s, the option timeout)")
    return CircuitStreamError(where)


STEP = "_step"


def output_schema(outputs: Mapping[str, pa.Schema], output: str, *, append_only: bool) -> pa.Schema:
    """Return the schema that Spark reads of an output. Raises SchemaConflict."""
    return read_as(_of(outputs, output, "output"), *(() if append_only else (WEIGHT, STEP)))


def input_target(inputs: Mapping[str, pa.Schema], handle: str, rows: StructType) -> pa.Schema:
    """Return the schema that rows of Spark have to be converted to for an input. Raises SchemaConflict."""
    return written_as(f"input {handle}", _of(inputs, handle, "input for pushes"), rows)


def _of(schemas: Mapping[str, pa.Schema], name: str, what: str) -> pa.Schema:
    if name not in schemas:
        raise SchemaConflict(f"the circuit has no {what} {name!r}: it has {', '.join(schemas) or 'none'}")
    return schemas[name]
