"""What is measured, by the names that it has in files and on pages, and how figures of several rounds are written."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median

Rounds = Mapping[str, Sequence[float]]
"""A contestant's measures by name, each with its value in every round."""

TITLES = {
    "messages_per_s": "messages/s",
    "MB_per_s": "MB/s",
    "durable_MB_per_s": "MB/s on disk",
    "bytes_per_sync": "bytes per sync",
    "taken_MB_per_s": "MB/s into the buffer",
    "disk_MB": "MB on disk",
    "rows_per_s": "rows/s",
    "cpu_ns_per_row": "processor ns per row, of all processes",
    "trigger_ms": "ms per micro-batch, median",
    "cpu_us_per_message": "processor us per message",
    "p50_us": "p50, us",
    "p99_us": "p99, us",
    "p99.9_us": "p99.9, us",
    "channels": "channels",
    "open_s": "s to open all",
    "sender_KiB": "KiB per channel, sender",
    "receiver_KiB": "KiB per channel, receiver",
    "both_KiB": "KiB per channel, both",
}


def per_round(values: Sequence[float], others: Sequence[float]) -> list[float]:
    """Ratios of what was measured one after the other."""
    return [value / other for value, other in zip(values, others, strict=True)]


def spread(values: Sequence[float], unit: str = "") -> str:
    """The median, and from the lowest to the highest."""
    lowest, middle, highest = (_number(value) for value in (min(values), median(values), max(values)))
    return f"{middle}{unit}" if lowest == highest else f"{middle}{unit} ({lowest} to {highest})"


def _number(value: float) -> str:
    if value >= 100 or value == round(value):
        return f"{value:,.0f}"
    return f"{value:.{1 if value >= 10 else 2}f}"
