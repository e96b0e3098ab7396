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
    "store_MB": "MB written to the disk",
    "core_percent": "% of a core",
    "rows_per_s": "rows/s",
    "keys_per_s": "keys/s",
    "requests_per_s": "requests/s",
    "appends_per_s": "appends/s",
    "insert_p50_ms": "writer's answer, p50, ms",
    "insert_p99_ms": "writer's answer, p99, ms",
    "opened_s": "s to open and describe all",
    "more_MiB": "MiB more",
    "whole_MiB": "MiB of the process in all",
    "cpu_ns_per_row": "CPU ns per row, all processes",
    "trigger_ms": "ms per micro-batch, median",
    "cpu_us_per_message": "CPU us per message",
    "cpu_us_per_step": "CPU us per step, all processes",
    "p50_us": "p50, us",
    "p99_us": "p99, us",
    "p99.9_us": "p99.9, us",
    "p50_ms": "p50, ms",
    "p99_ms": "p99, ms",
    "longest_ms": "longest, ms",
    "quiet_p50_ms": "p50 before, ms",
    "quiet_longest_ms": "longest before, ms",
    "push_p50_ms": "the push before it, p50, ms",
    "fix_p50_ms": "input, p50, ms",
    "write_p50_ms": "output, p50, ms",
    "step_us": "us per step",
    "runs": "runs",
    "blocked_ms": "steps are blocked for, ms",
    "writing_s": "written in, s",
    "written_MB": "MB written",
    "GB_per_s": "GB/s, each way",
    "new_GB_per_s": "into memory new to the machine",
    "receiver_peak_MB": "MB more at member 0, at most",
    "sender_peak_MB": "MB more at member 1",
    "cpu_ratio": "CPU time in steps / free",
    "free_cpu_s": "CPU s, free",
    "stepped_cpu_s": "CPU s, in steps",
    "free_s": "s, free",
    "stepped_s": "s, in steps",
    "steps": "steps",
    "checkpoints": "checkpoints",
    "resumed_s": "s until steps resume",
    "caught_up_s": "s until a new one is done",
    "replayed_steps": "steps replayed",
    "waits_s": "longest wait of a push, s",
    "quiet_ms": "ms before",
    "takes_s": "s until the new members run",
    "state_MB": "MB of state",
    "hit_ratio": "hits / those of the hottest tenth",
    "hits_percent": "hits, %",
    "hottest_percent": "hits of the hottest tenth, %",
    "evicted": "keys evicted",
    "budget_MB": "MB allowed",
    "held_MB": "MB held, at most",
    "said_ratio": "reported / measured growth",
    "said_MB": "MB reported",
    "more_MB": "MB of growth, measured",
    "view_MB": "MB of the view",
    "memory_MB": "MB of all its processes",
    "first_ms": "ms until the first answer",
    "settled_s": "s until complete",
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
    lowest, middle, highest = (number(value) for value in (min(values), median(values), max(values)))
    return f"{middle}{unit}" if lowest == highest else f"{middle}{unit} ({lowest} to {highest})"


def number(value: float) -> str:
    """A figure with three digits at least."""
    if value >= 100 or value == round(value):
        return f"{value:,.0f}"
    return f"{value:.{1 if value >= 10 else 2}f}"
