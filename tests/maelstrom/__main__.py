"""``python -m tests.maelstrom --seeds 20 [--first N] [--seconds S]``, or ``--check FILE``: 1 on stderr if it broke.

Of a run that breaks a promise the history is kept, since another run of its seed is not the same; ``--check`` looks at
it again.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from . import history as histories
from .anomalies import Violation
from .run import Tally, check_happened, checked, run


def attempt(seed: int, seconds: float, keep: Path) -> Tally:
    """A run of a seed. Raises Violation, with what was kept."""
    with tempfile.TemporaryDirectory() as folder:
        history, tally = asyncio.run(run(seed, seconds, Path(folder) / "store"))
    try:
        checked(history, tally.refusals)
    except Violation as error:
        kept = keep / f"maelstrom-{seed}.jsonl"
        histories.write(history, kept)
        error.add_note(f"kept; to check it again: python -m tests.maelstrom --check {kept}")
        raise
    return tally


def table(runs: int, tally: Tally) -> str:
    """What happened, for people."""
    lines = [f"{'transactions':24}{'times':>12}"]
    lines += [f"{outcome:24}{times:12,}" for outcome, times in sorted(tally.transactions.items())]
    lines += ["", f"{'fault':24}{'times':>12}"]
    lines += [f"{fault:24}{times:12,}" for fault, times in sorted(tally.faults.items())]
    return "\n".join([*lines, "", f"{runs} runs, all of them strictly serializable"])


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)  # noqa: T201 - a command's output


def main(arguments: Sequence[str] | None = None) -> None:
    """Run, and print the table. Raises Violation."""
    parser = argparse.ArgumentParser(prog="python -m tests.maelstrom", description=__doc__)
    parser.add_argument("--seeds", type=int, default=20, help="how many")
    parser.add_argument("--first", type=int, default=0, help="the first one")
    parser.add_argument("--seconds", type=float, default=10.0, help="of a run, without its beginning and end")
    parser.add_argument(
        "--keep", type=Path, default=Path(tempfile.gettempdir()), help="where histories are kept"
    )
    parser.add_argument("--check", type=Path, help="a history that was kept, in place of all else")
    given = parser.parse_args(arguments)
    if given.check is not None:
        checked(histories.read(given.check))
        return
    total = Tally()
    for seed in range(given.first, given.first + given.seeds):
        try:
            tally = attempt(seed, given.seconds, given.keep)
        except BaseException:
            _say(f"broken with seed {seed}; to run it again: make maelstrom SEEDS=1 FIRST={seed}")
            raise
        total.transactions.update(tally.transactions)
        total.faults.update(tally.faults)
        _say(
            f"seed {seed}: {tally.transactions['ok']} of {sum(tally.transactions.values())} transactions were ok"
        )
    check_happened(total)
    print(table(given.seeds, total))  # noqa: T201 - as above


if __name__ == "__main__":
    main()
