"""``python -m tests.curated``: choose the seeds of the gate's simulations again."""

import json
import logging
import sys

from . import CHOSEN, SIMULATORS, all_of, cover

if __name__ == "__main__":
    logging.disable()
    seeds = {}
    for name, (run, candidates) in SIMULATORS.items():
        reached = {seed: run(seed) for seed in candidates}
        seeds[name] = cover(reached)
        sys.stdout.write(f"{name}: {len(all_of(reached))} transitions by {len(seeds[name])} seeds\n")
    lines = [f"  {json.dumps(name)}: {found}" for name, found in seeds.items()]
    CHOSEN.write_text("\n".join(("{", ",\n".join(lines), "}\n")), "utf-8")
