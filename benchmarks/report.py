"""What the runs come to: medians with their spread, ratios, targets; for people and as JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

from .rows import OURS, Row
from .running import Run


def figures(row: Row, runs: Sequence[Run]) -> dict[str, Any]:
    """Of one contestant in one row."""
    rates = sorted(run.rate() for run in runs)
    middle = median(rates)
    bytes_moved = row.work.size / 1e9
    return {
        "messages_per_s": middle,
        "MB_per_s": middle * row.work.size / 1e6,
        "spread": (rates[-1] - rates[0]) / middle,
        "receiver_cpu_s_per_GB": median(run.received.cpu_s / run.received.measured for run in runs)
        / bytes_moved,
        "sender_cpu_s_per_GB": median(run.sent.cpu_s / run.sent.measured for run in runs) / bytes_moved,
    }


def table(row: Row, found: Mapping[str, Mapping[str, Any]]) -> str:
    """A row's contestants, the fastest first, beside ours; then what was to be reached."""
    ours = found[OURS]["messages_per_s"]
    lines = [
        f"### {row.name}",
        "",
        "| | messages/s | MB/s | spread | processor s per GB, receiver + sender | netchannel is |",
        "|---|---|---|---|---|---|",
    ]
    for name, of in sorted(found.items(), key=lambda item: -item[1]["messages_per_s"]):
        cpu = f"{of['receiver_cpu_s_per_GB']:.2f} + {of['sender_cpu_s_per_GB']:.2f}"
        ratio = "" if name == OURS else f"{ours / of['messages_per_s']:.2f} x"
        lines.append(
            f"| {name} | {of['messages_per_s']:,.0f} | {of['MB_per_s']:,.0f} | {of['spread']:.0%} | {cpu} | {ratio} |"
        )
    lines += ["", *[f"- {sentence}" for sentence in _reached(row, found)], ""]
    return "\n".join(lines)


def _reached(row: Row, found: Mapping[str, Mapping[str, Any]]) -> list[str]:
    sentences = []
    for target in row.targets:
        best = max(target.beside, key=lambda name: found[name]["messages_per_s"])
        ratio = found[OURS]["messages_per_s"] / found[best]["messages_per_s"]
        verdict = "reached" if ratio >= target.ratio else "**not reached**"
        sentences.append(f"wanted: {target.ratio} x {best}; measured: {ratio:.2f} x: {verdict}")
    return sentences
