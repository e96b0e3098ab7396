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
from tests.nebuli.circuits.traffic import traffic_on


async def main(address: str) -> None:
    async with Circuit(address, deadline_s=60.0) as circuit:
        enough = asyncio.Event()
        asyncio.get_running_loop().add_reader(sys.stdin, enough.set)
        async with traffic_on(circuit, seed=3) as traffic:
            await enough.wait()
        await circuit.shut_down()
    sys.stdout.write(json.dumps(sorted(totals(traffic.pushed))))


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
