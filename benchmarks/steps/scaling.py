"""How long producers wait while a circuit with a large state goes on with more members, or with fewer."""

from __future__ import annotations

import asyncio
import tempfile
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.work import Result, Work
from nebuli.circuits import Circuit
from nebuli.circuits.served_run import served
from nebuli.steps.local.local_run import LocalRun
from nebuli.steps.protocol.triggers import SPACING_S, TriggerSettings
from nebuli.steps.stepped_query import stepped_query
from placement import parse_query
from topology import parse_topology

ROW_BYTES = 32
"""Of the join's state: key, value, weight and hash."""
FILES = 4
FILLED_S = 300.0
FILLED_QUIET_S, LOOK_S = 3.0, 0.2
QUIET_S = 1.0
TOPOLOGY = """
logical:
  - {name: known, schema: [{name: k, type: int64}, {name: v, type: int64}]}
  - {name: asked, schema: [{name: k, type: int64}]}
nodes:
  - address: 127.0.0.1:27900
    physical: [{logical: known, type: Parquet, path: "known-*.parquet"}]
    sinks: [{name: out, type: "Null"}]
"""
QUERY = """
{"operators": [
  {"id": "known", "type": "source", "logical": "known"},
  {"id": "asked", "type": "source", "logical": "asked"},
  {"id": "found", "type": "join", "inputs": ["known", "asked"], "on": ["k"]},
  {"id": "out", "type": "sink", "input": "found", "sink": "out"}
]}
"""


async def scaled_members(work: Work, _: str) -> Result:
    """``waits_s``: the longest that a push takes meanwhile; ``quiet_ms``: and before; ``takes_s``: the whole of it."""
    before, after = work.options["members"]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        _write(folder, work.options["bytes"] // ROW_BYTES)
        topology = parse_topology(TOPOLOGY, "topology.yaml")
        query = stepped_query(parse_query(QUERY, "scaling", "query.json"), topology, before, folder)
        settings = TriggerSettings(checkpoint_s=10.0, spacing_s=SPACING_S)
        run = LocalRun(
            query, folder / "state", folder, settings, max_state_bytes=1 << 34, keep_output_bytes=0
        )
        async with run, served(run, "127.0.0.1:0") as address, Circuit(address) as circuit:
            ending = asyncio.create_task(run.until_shut_down())
            await _filled(circuit)
            await _asked(circuit)
            pushes = _Pushes(circuit)
            pushing = asyncio.create_task(pushes.push())
            quiet = await pushes.longest(QUIET_S)
            began = time.perf_counter()
            pushes.longest_s = 0.0
            await circuit.scale(after)
            takes_s = time.perf_counter() - began
            await asyncio.sleep(QUIET_S)
            waits_s = pushes.longest_s
            pushing.cancel()
            await asyncio.gather(pushing, return_exceptions=True)
            state = sum(file.stat().st_size for file in (folder / "state").rglob("*") if file.is_file())
            await circuit.shut_down()
            await ending
    measures = {"waits_s": waits_s, "quiet_ms": quiet * 1e3, "takes_s": takes_s, "state_MB": state / 1e6}
    return Result(1, measures)


def _write(folder: Path, rows: int) -> None:
    keys = np.random.default_rng(0).permutation(rows)
    for number, part in enumerate(np.array_split(keys, FILES)):
        pq.write_table(pa.table({"k": part, "v": part}), folder / f"known-{number}.parquet")


async def _filled(circuit: Circuit) -> None:
    """Wait until all rows of the files are in the state: no step is made any more, as nothing else comes."""
    before, quiet_s = 0, 0.0
    async with asyncio.timeout(FILLED_S):
        while quiet_s < FILLED_QUIET_S:
            await asyncio.sleep(LOOK_S)
            step = (await circuit.status()).next_step
            quiet_s = quiet_s + LOOK_S if step and step == before else 0.0
            before = step


async def _asked(circuit: Circuit) -> None:
    """Look one row up: what was read is sorted then, outside of the time that is measured."""
    async with asyncio.timeout(FILLED_S):
        row = pa.record_batch({"k": pa.array([0], pa.int64())})
        await circuit.push("asked", row, producer="first", sequence=0)
        async for _, change in circuit.output("out"):
            if change.num_rows:
                return


class _Pushes:
    """One row after the other, as soon as the one before is durable."""

    def __init__(self, circuit: Circuit) -> None:
        self._circuit = circuit
        self.longest_s = 0.0

    async def push(self) -> None:
        sequence = 0
        while True:
            began = time.perf_counter()
            row = pa.record_batch({"k": pa.array([-sequence - 1], pa.int64())})
            await self._circuit.push("asked", row, producer="asking", sequence=sequence)
            self.longest_s = max(self.longest_s, time.perf_counter() - began)
            sequence += 1

    async def longest(self, seconds: float) -> float:
        """The longest that one takes meanwhile."""
        self.longest_s = 0.0
        await asyncio.sleep(seconds)
        return self.longest_s
