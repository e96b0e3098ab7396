"""Producers into a circuit, and a reader of each of its outputs, on a host: ``... ADDRESS``.

They continue until standard input is readable. Then it waits until the outputs add up to all that was pushed, shuts the
circuit down, and prints the totals by shop as JSON.
"""

from __future__ import annotations

import asyncio
import json
import sys

from nebuli.circuits import Circuit
from tests.nebuli.circuits.conftest import totals
from tests.nebuli.circuits.test_scaling import PRODUCERS, Traffic


async def main(address: str) -> None:
    async with Circuit(address, deadline_s=60.0) as circuit:
        traffic = Traffic(circuit, seed=3)
        asyncio.get_running_loop().add_reader(sys.stdin, traffic.enough.set)
        async with asyncio.TaskGroup() as group:
            for number in range(PRODUCERS):
                group.create_task(traffic.produce(number))
            for output in ("rows", "totals"):
                group.create_task(traffic.read(output))
        await circuit.shut_down()
    sys.stdout.write(json.dumps(sorted(totals(traffic.pushed))))


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
