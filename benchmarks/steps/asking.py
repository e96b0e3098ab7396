"""How long SQL over a circuit of several members takes, while rows are pushed into it and steps go on."""

from __future__ import annotations

import asyncio
import tempfile
import time
from pathlib import Path

import numpy as np
import pyarrow as pa

from benchmarks.work import Result, Work
from nebuli.circuits import Circuit
from nebuli.circuits.served_run import served
from nebuli.steps.local.local_run import LocalRun
from nebuli.steps.protocol.triggers import SPACING_S, TriggerSettings
from nebuli.steps.stepped_query import stepped_query
from placement import parse_query
from topology import parse_topology

from .percentiles import percentiles

SHOPS, ROWS = 10_000, 1_000
TOPOLOGY = """
logical:
  - {name: sales, schema: [{name: shop, type: int64}, {name: amount, type: int64}]}
nodes:
  - address: 127.0.0.1:27900
    sinks: [{name: out, type: "Null"}]
"""
QUERY = """
{"operators": [
  {"id": "sales", "type": "source", "logical": "sales"},
  {"id": "totals", "type": "aggregate", "input": "sales", "by": ["shop"], "aggregates": {"amount": "sum(amount)"}},
  {"id": "out", "type": "sink", "input": "totals", "sink": "out"}
]}
"""
SQL = "SELECT count(*) AS shops, sum(amount) AS amount FROM out"


async def asked_members(work: Work, _: str) -> Result:
    """``p50_ms`` and others: of a query, at one step over all members; ``steps``: how many were made meanwhile."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        topology = parse_topology(TOPOLOGY, "topology.yaml")
        query = stepped_query(
            parse_query(QUERY, "asking", "query.json"), topology, work.options["members"], folder
        )
        settings = TriggerSettings(checkpoint_s=10.0, spacing_s=SPACING_S)
        run = LocalRun(query, folder / "state", folder, settings)
        async with run, served(run, "127.0.0.1:0") as address, Circuit(address) as circuit:
            ending = asyncio.create_task(run.until_shut_down())
            pushing = asyncio.create_task(_push(circuit))
            await _until_known(circuit)
            first = (await circuit.status()).next_step
            took = []
            began = time.perf_counter()
            while time.perf_counter() - began < work.seconds:
                asked = time.perf_counter()
                await circuit.query(SQL)
                took.append(time.perf_counter() - asked)
            steps = (await circuit.status()).next_step - first
            pushing.cancel()
            await asyncio.gather(pushing, return_exceptions=True)
            await circuit.shut_down()
            await ending
    return Result(len(took), percentiles(took) | {"steps": float(steps)})


async def _until_known(circuit: Circuit) -> None:
    """Wait until each shop has been seen."""
    async with asyncio.timeout(60):
        while True:
            _, found = await circuit.query(SQL)
            if found.column("shops")[0].as_py() == SHOPS:
                return


async def _push(circuit: Circuit) -> None:
    """Batches one after the other, as soon as the one before is durable."""
    generator = np.random.default_rng(0)
    sequence = 0
    while True:
        shops = (np.arange(ROWS) + sequence * ROWS) % SHOPS
        batch = pa.record_batch({"shop": shops, "amount": generator.integers(0, 100, ROWS)})
        await circuit.push("sales", batch, producer="p", sequence=sequence)
        sequence += 1
