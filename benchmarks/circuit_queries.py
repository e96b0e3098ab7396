"""How long queries take over a circuit in steps of several members, beside steps and in a rest.

``python -m benchmarks.circuit_queries [--members 4] [--rows 1000000]``: so many rows are pushed, into an input that is
materialized, and come out as they are and as groups; then each query is asked several times, while more rows are pushed
all the time, and while nothing happens. Also: how long steps take meanwhile.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import tempfile
import time
from pathlib import Path

import numpy as np
import pyarrow as pa

from nebuli.circuits import Circuit
from nebuli.circuits.served_run import served
from nebuli.steps.local.local_run import LocalRun
from nebuli.steps.protocol.triggers import SPACING_S, TriggerSettings
from nebuli.steps.stepped_query import stepped_query
from placement import parse_query
from topology import parse_topology

TOPOLOGY = """
logical:
  - name: sales
    materialized: true
    schema: [{name: shop, type: string}, {name: item, type: int64}, {name: amount, type: float64}]
nodes:
  - address: 127.0.0.1:27900
    sinks: [{name: rows, type: "Null"}, {name: totals, type: "Null", mode: changes}]
"""
QUERY = """
{"operators": [
  {"id": "sales", "type": "source", "logical": "sales"},
  {"id": "rows", "type": "sink", "input": "sales", "sink": "rows"},
  {"id": "g", "type": "aggregate", "input": "sales", "by": ["item"],
   "aggregates": {"n": "count(*)", "amount": "sum(amount)"}},
  {"id": "totals", "type": "sink", "input": "g", "sink": "totals"}
]}
"""
QUERIES = {
    "count of an output": "SELECT count(*) FROM rows",
    "count of an input of all members": "SELECT count(*) FROM sales",
    "groups by an integer": "SELECT item % 100 AS k, count(*), sum(amount) FROM sales GROUP BY k",
    "groups by a text": "SELECT shop, count(*), sum(amount) FROM sales GROUP BY shop",
    "groups that change": "SELECT count(*), sum(n), max(amount) FROM totals",
}
_ROWS = 20_000
_PRODUCERS = 8


def batch(start: int, rows: int) -> pa.RecordBatch:
    """Rows that are like no others."""
    numbers = np.arange(start, start + rows)
    return pa.record_batch(
        {
            "shop": pa.array(numbers % 50).cast(pa.string()),
            "item": pa.array(numbers % 100_000),
            "amount": pa.array(numbers / 4),
        }
    )


async def push(circuit: Circuit, number: int, batches: list[pa.RecordBatch], first: int = 0) -> None:
    """All of one producer."""
    for sequence, each in enumerate(batches, first):
        await circuit.push("sales", each, producer=f"p{number}", sequence=sequence)


async def ask(circuit: Circuit, sql: str, times: int) -> list[float]:
    """How long it took, each time."""
    took = []
    for _ in range(times):
        began = time.perf_counter()
        await circuit.query(sql)
        took.append(time.perf_counter() - began)
        await asyncio.sleep(0.05)
    return took


async def measure(members: int, rows: int, times: int) -> None:
    """All of it, printed."""
    with tempfile.TemporaryDirectory() as folder:
        query = stepped_query(
            parse_query(QUERY, "bench", "q.json"), parse_topology(TOPOLOGY, "t.yaml"), members
        )
        settings = TriggerSettings(checkpoint_s=10.0, spacing_s=SPACING_S)
        run = LocalRun(query, Path(folder) / "state", Path(folder), settings, keep_output_bytes=1 << 26)
        async with run, served(run, "127.0.0.1:0") as address, Circuit(address, deadline_s=120) as circuit:
            began = time.perf_counter()
            parts = [batch(start, min(_ROWS, rows - start)) for start in range(0, rows, _ROWS)]
            await asyncio.gather(
                *(push(circuit, each, parts[each::_PRODUCERS]) for each in range(_PRODUCERS))
            )
            while (await circuit.query("SELECT count(*) n FROM rows"))[1]["n"][0].as_py() < rows:  # noqa: ASYNC110 - made by others
                await asyncio.sleep(0.1)
            print(f"{rows:,} rows at {members} members, after {time.perf_counter() - began:.1f} s")
            print(f"{'ms':<36}{'p50':>8}{'p90':>8}{'max':>8}   steps/s")
            for beside in (False, True):
                pushing = asyncio.create_task(_push_for_ever(circuit, rows)) if beside else None
                for name, sql in QUERIES.items():
                    await ask(circuit, sql, 1)
                    step, began = run.coordinator.next_step, time.perf_counter()
                    took = sorted(await ask(circuit, sql, times))
                    rate = (run.coordinator.next_step - step) / (time.perf_counter() - began)
                    of = [
                        1e3 * each for each in (statistics.median(took), took[int(0.9 * len(took))], took[-1])
                    ]
                    where = "beside steps" if beside else "at rest"
                    print(f"{name + ', ' + where:<46}{of[0]:>8.1f}{of[1]:>8.1f}{of[2]:>8.1f}{rate:>8.1f}")
                if pushing is not None:
                    pushing.cancel()
            run.coordinator.shut_down()
            await run.until_shut_down()


async def _push_for_ever(circuit: Circuit, start: int) -> None:
    sequence = 0
    while True:
        await circuit.push("sales", batch(start + 100 * sequence, 100), producer="more", sequence=sequence)
        sequence += 1
        await asyncio.sleep(0.02)


def main() -> None:
    """Run it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--members", type=int, default=4)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--times", type=int, default=20)
    said = parser.parse_args()
    asyncio.run(measure(said.members, said.rows, said.times))


if __name__ == "__main__":
    main()
