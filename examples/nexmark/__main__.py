"""``python -m examples.nexmark [QUERY ...] [--way free|nodes|spark|steps ...] [--events N] [--kill-every SECONDS]``.

Makes events, runs the queries, and compares what comes out with DuckDB's answer. In steps all of them are one circuit
of two members, of which one is killed every so many seconds.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pyarrow.parquet as pq

from .answers import differences
from .events import PER_SECOND
from .files import QUERIES, write
from .ways import FREE, STEPS, WAYS, Failed, run_free, run_in_steps

EVENTS = 200_000
SHOWN = 3


def main() -> int:
    """The exit code: 1 where a query fails, or gives something else than DuckDB."""
    parser = argparse.ArgumentParser(prog="python -m examples.nexmark", description=__doc__)
    parser.add_argument("queries", nargs="*", metavar="QUERY", help="q0 to q8; all of them")
    parser.add_argument("--way", choices=WAYS, action="append", help="free and in steps")
    parser.add_argument("--events", type=int, default=EVENTS, help="persons, auctions and bids together")
    parser.add_argument("--per-second", type=int, default=PER_SECOND, help="events, of event time")
    parser.add_argument("--seed", type=int, default=0, help="the same seed, the same events")
    parser.add_argument("--kill-every", type=float, metavar="SECONDS", help="for queries in steps, a member")
    given = parser.parse_args()
    names = given.queries or list(QUERIES)
    if unknown := set(names) - set(QUERIES):
        parser.error(f"{', '.join(sorted(unknown))}: there are {', '.join(QUERIES)}")
    good = True
    with tempfile.TemporaryDirectory(prefix="nexmark-") as made:
        folder = Path(made)
        rows = write(folder, given.events, seed=given.seed, per_second=given.per_second)
        print(", ".join(f"{count:,} rows of {name}" for name, count in rows.items()), flush=True)
        try:
            for name, how in _run(folder, names, given.way or ["free", STEPS], given.kill_every):
                good &= _judged(folder, name, how)
        except Failed as failed:
            print(f"Error: {failed}", file=sys.stderr)
            return 1
    return 0 if good else 1


def _run(
    folder: Path, names: list[str], ways: list[str], kill_every_s: float | None
) -> Iterator[tuple[str, str]]:
    """Each query in each way: its name, and how it ran, when its result is in the folder."""
    for way in ways:
        began = time.monotonic()
        if way in FREE:
            for name in names:
                run_free(folder, name, way)
                yield name, f"{way}, {time.monotonic() - began:.1f} s"
                began = time.monotonic()
        else:
            killed = run_in_steps(folder, names, kill_every_s)
            how = f"in steps, {time.monotonic() - began:.1f} s" + (
                f", {killed} members killed" if killed else ""
            )
            yield from ((name, how) for name in names)


def _judged(folder: Path, name: str, how: str) -> bool:
    """Print if a result is DuckDB's, and show some of it; the file is gone then."""
    result = folder / f"{name}.parquet"
    count, wrong = differences(folder, name, result)
    verdict = "as DuckDB has them" if wrong == 0 else f"of which {wrong:,} differ from DuckDB's"
    print(f"{name} ({how}): {count:,} rows, {verdict}")
    for row in pq.read_table(result).slice(0, SHOWN).to_pylist():
        print("   " + "  ".join(f"{column}={value}" for column, value in row.items()))
    sys.stdout.flush()
    result.unlink()
    return wrong == 0


if __name__ == "__main__":
    sys.exit(main())
