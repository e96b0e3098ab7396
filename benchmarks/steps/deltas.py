"""What a small change takes beside a large state, in a circuit of one member."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from benchmarks.work import Result, Work
from nebuli.dataflow import SteppedCircuit

from .circuits import circuit_of, rows_of, shuffled, step
from .percentiles import percentiles

WARM_UP = 20
Inputs = Mapping[str, pa.RecordBatch]


def join(work: Work, _: str) -> Result:
    """Rows of one input meet the rows of the other one, which came in steps; each finds one there.

    While they come, each step has a row of this input as well: that the other one is looked up in every step decides
    which runs it is left in.
    """
    nowhere = rows_of("left", np.array([-1]))
    state = ({"right": rows_of("right", keys), "left": nowhere} for keys in _state(work))
    rows = work.options["delta_rows"]
    return _measured(work, "join", state, lambda out: bool(pc.sum(out.column("_weight")).as_py() == rows))


def aggregate(work: Work, _: str) -> Result:
    """Rows of nearly as many groups, each of which has a row in the state, which came in steps."""
    state = ({"left": rows_of("left", keys)} for keys in _state(work))
    return _measured(
        work, work.options["query"], state, lambda out: not pc.sum(out.column("_weight")).as_py()
    )


def _state(work: Work) -> Iterator[Any]:
    return shuffled(work.options["state_rows"], work.options["delta_rows"])


def _measured(
    work: Work, query: str, state: Iterator[Inputs], is_right: Callable[[pa.RecordBatch], bool]
) -> Result:
    """Small steps after those that have made the state."""
    state_rows, delta_rows = work.options["state_rows"], work.options["delta_rows"]
    circuit = circuit_of(query)
    for inputs in state:
        step(circuit, inputs)
    chosen = np.random.default_rng(1)
    times = []
    for number in range(WARM_UP + work.options["steps"]):
        keys = chosen.integers(0, state_rows, delta_rows)
        rows = rows_of(
            "left", keys, more=-number if number % 2 else number
        )  # there is a new min or max each time
        began = time.perf_counter()
        outputs = step(circuit, {"left": rows})
        times.append(time.perf_counter() - began)
        assert is_right(outputs["out"]), "a row has not found its own"
    return Result(len(times), percentiles(times[WARM_UP:]) | {"runs": float(_runs(circuit))})


def _runs(circuit: SteppedCircuit) -> int:
    """How many there are, beside a manifest in each table."""
    return sum(len(table) - 1 for table in circuit.save().tables.values())
