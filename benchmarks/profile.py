"""``python -m benchmarks.profile [PAGE]``: what a message's time is spent on, at both sides, in Markdown on stdout.

It samples both processes with ``perf`` (of the package linux-tools), which must be there.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path

from .machine import machine
from .report import renewed
from .rows import KIB, MIB
from .running import RECEIVER_CORE, SENDER_CORE, side
from .work import Work

WORKS = {
    "64 B": Work(64, seconds=4),
    "64 KiB": Work(64 * KIB, seconds=4),
    "1 MiB Arrow batches": Work(MIB, arrow=True, seconds=4),
}
SETTLED_S, SAMPLED_S = 1.5, 2.0
RECORD = ("perf", "record", "-q", "-e", "cpu-clock", "-F", "4999")
COPIES = ("_copy_from_iter", "_copy_to_iter", "copy_user", "rep_movs")
PARTS = ("copies to and from the kernel", "rest of the kernel", "checksums", "interpreter", "uvloop", "rest")


def part(library: str, symbol: str) -> str:
    """What a sample counts as."""
    if "kernel" in library:
        return PARTS[0] if any(name in symbol for name in COPIES) else PARTS[1]
    for name, meant in {"xxhash": PARTS[2], "python3": PARTS[3], "loop.cpython": PARTS[4]}.items():
        if name in library:
            return meant
    return PARTS[5]


def samples(record: Path) -> Counter[str]:
    """Shares of the parts, in percent."""
    report = subprocess.run(
        ["perf", "report", "-i", record, "--no-children", "-g", "none", "--sort", "dso,sym", "-t", "|"],
        capture_output=True,
        encoding="utf-8",
        check=True,
    ).stdout
    shares: Counter[str] = Counter()
    for line in report.splitlines():
        if line.strip() and not line.startswith("#"):
            share, library, symbol = line.split("|")[:3]
            shares[part(library, symbol)] += float(share.strip().rstrip("%"))  # type: ignore[assignment]
    return shares


def profiled(work: Work) -> dict[str, tuple[float, Counter[str]]]:
    """Of each side: processor time per message in microseconds, and on what it is spent."""
    module, settings = ".contestants.ours", json.dumps(asdict(work))
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        receiver = stack.enter_context(side("receive", module, settings, RECEIVER_CORE))
        sender = stack.enter_context(side("send", module, settings, SENDER_CORE))
        sender.hear()
        sender.tell(receiver.hear()["address"])
        time.sleep(SETTLED_S)
        records = {"sender": folder / "sender", "receiver": folder / "receiver"}
        perfs = [
            subprocess.Popen(
                [*RECORD, "-p", str(pid), "-o", record, "--", "sleep", str(SAMPLED_S)],
                stderr=subprocess.DEVNULL,
            )
            for pid, record in zip((sender.pid, receiver.pid), records.values(), strict=True)
        ]
        for perf in perfs:
            perf.wait(SAMPLED_S + 10)
        measures = sender.hear()["measures"] | receiver.hear()["measures"]
        return {
            name: (measures[f"{name}_cpu_s_per_GB"] * work.size / 1e3, samples(record))
            for name, record in records.items()
        }


def table(found: Mapping[str, tuple[float, Counter[str]]]) -> Iterator[str]:
    """Microseconds per message."""
    yield "| us per message | sender | receiver |"
    yield "|---|---|---|"
    for name in PARTS:
        sides = (found[each][0] * found[each][1][name] / 100 for each in ("sender", "receiver"))
        yield f"| {name} | " + " | ".join(f"{us:.3g}" for us in sides) + " |"
    yield f"| together | {found['sender'][0]:.3g} | {found['receiver'][0]:.3g} |"


def main() -> None:
    """Measure, and print, or put the tables into a page."""
    lines = [f"- {name}: {value}" for name, value in machine().items()]
    for name, work in WORKS.items():
        lines += ["", f"### {name}", "", *table(profiled(work))]
    figures = "\n".join(lines) + "\n"
    print(figures)
    for page in map(Path, sys.argv[1:]):
        page.write_text(renewed(page.read_text("utf-8"), "figures", figures), "utf-8")


if __name__ == "__main__":
    main()
