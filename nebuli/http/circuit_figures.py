"""`CircuitFigures`: figures of all members together, as JSON and for Prometheus.

Counters are summed over members, and never go down: a restarted member counts from zero, and its predecessor's counts
are kept here. Gauges are given for each member, with its host.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from nebuli.http.prometheus_text import family, summary
from nebuli.store.errors import StorageError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from nebuli.circuits.circuit_calls import CircuitCalls
    from nebuli.http.prometheus_text import Kind

WITHIN_S = 2.0
"""A member that does not answer for so long is away."""
_COUNTED = {
    "rows_in": "rows that came into",
    "rows_out": "rows that came out of",
    "late_rows": "rows that were too late at",
    "rows_without_time": "rows whose time is null at",
}
_GAUGES = {
    "step": "the step that the member computes, now or next",
    "waiting_rows": "rows that have arrived and are not in a step yet",
    "resident_bytes": "the memory of its process",
    "arrow_bytes": "the memory that Arrow holds in its process",
    "cpu_seconds": "CPU time of its process",
}


class CircuitFigures:
    """Figures of members, which it asks for."""

    def __init__(self, calls: CircuitCalls) -> None:
        self._calls = calls
        self._last: dict[tuple[int, str, str], int] = {}
        self._before: dict[tuple[int, str, str], int] = {}

    async def stats(self) -> dict[str, Any]:
        """The circuit, its members, and sums over all of them."""
        members = await self._members()
        coordinator, plan = self._calls.coordinator, self._calls.run.plan
        return {
            "name": plan.name,
            "phase": coordinator.phase.value,
            "paused": coordinator.paused,
            "epoch": coordinator.epoch,
            "next_step": coordinator.next_step,
            "complete": coordinator.complete if coordinator.complete_is_known else None,
            "checkpoints": [{"version": each.version, "step": each.step} for each in coordinator.checkpoints],
            "timings": coordinator.timings(),
            "operators": self._sums(),
            "members": members,
        }

    async def _members(self) -> list[dict[str, Any]]:
        found = await asyncio.gather(
            *(self._member(number) for number in range(self._calls.run.plan.members))
        )
        for member, figures in enumerate(found):
            for operator, counts in figures.get("operators", {}).items():
                for name in _COUNTED:
                    self._count(member, operator, name, int(counts.get(name, 0)))
        return list(found)

    async def _member(self, number: int) -> dict[str, Any]:
        try:
            async with asyncio.timeout(WITHIN_S):
                figures = await self._calls.run.calls[number].figures()
        except TimeoutError:
            return {"member": number, "away": True, "why": f"it did not answer within {WITHIN_S:g} s"}
        except StorageError as error:
            return {"member": number, "away": True, "why": str(error)}
        host = str(figures["address"]).rpartition(":")[0]
        return {"member": number, "away": False, "host": host, **figures}

    def _count(self, member: int, operator: str, name: str, value: int) -> None:
        key = (member, operator, name)
        last = self._last.get(key, 0)
        if value < last:
            self._before[key] = self._before.get(key, 0) + last
        self._last[key] = value

    def _sums(self) -> dict[str, dict[str, int]]:
        sums: dict[str, dict[str, int]] = {}
        for (member, operator, name), value in self._last.items():
            of_one = sums.setdefault(operator, dict.fromkeys(_COUNTED, 0))
            of_one[name] += value + self._before.get((member, operator, name), 0)
        return dict(sorted(sums.items()))

    async def metrics(self) -> str:
        """The same in Prometheus' text format."""
        stats = await self.stats()
        return "\n".join(_lines(stats)) + "\n"


def _lines(stats: Mapping[str, Any]) -> Iterator[str]:
    circuit = {"circuit": stats["name"]}
    # Not of a coordinator that has only begun: less than before would count as a new counter.
    made = [] if stats["complete"] is None else [(circuit, stats["complete"])]
    yield from _family("steps_total", "counter", "steps that all members have done", made)
    yield from _family("paused", "gauge", "whether the circuit is paused", [(circuit, int(stats["paused"]))])
    yield from _family("epoch", "gauge", "how often members were restarted", [(circuit, stats["epoch"])])
    timings = stats["timings"]
    for name, text in (("step", "steps"), ("checkpoint", "checkpoints")):
        yield from summary(
            f"nebuli_circuit_{name}_duration_seconds",
            f"how long {text} of the coordinator's process took",
            [(circuit, timings[f"{name}s"], timings[f"{name}_seconds"])],
        )
    single: tuple[tuple[str, Kind, str, str], ...] = (
        (
            "failed_checkpoints_total",
            "counter",
            "checkpoints that a member could not write",
            "failed_checkpoints",
        ),
        (
            "checkpoint_age_seconds",
            "gauge",
            "time since the last checkpoint of the process",
            "checkpoint_age_seconds",
        ),
        ("input_lag_seconds", "gauge", "how long the oldest row has waited for a step", "input_lag_seconds"),
    )
    for name, kind, text, value in single:
        series = [] if timings[value] is None else [(circuit, timings[value])]
        yield from _family(name, kind, text, series)
    behind = stats["next_step"] - max((each["step"] for each in stats["checkpoints"]), default=0)
    yield from _family(
        "checkpoint_lag_steps", "gauge", "steps after the last checkpoint", [(circuit, behind)]
    )
    for name, text in _COUNTED.items():
        series = [({**circuit, "operator": key}, each[name]) for key, each in stats["operators"].items()]
        yield from _family(f"{name}_total", "counter", f"{text} an operator, at all members", series)
    up = [({**circuit, "member": str(each["member"])}, int(not each["away"])) for each in stats["members"]]
    yield from _family("member_up", "gauge", "whether the member answers", up)
    there = [each for each in stats["members"] if not each["away"]]
    for name, text in _GAUGES.items():
        series = [
            ({**circuit, "member": str(each["member"]), "host": each["host"]}, each[name]) for each in there
        ]
        yield from _family(f"member_{name}", "gauge", text, series)
    state = [
        (
            {**circuit, "member": str(each["member"]), "host": each["host"], "operator": key},
            counts["state_bytes"],
        )
        for each in there
        for key, counts in each["operators"].items()
    ]
    yield from _family("member_state_bytes", "gauge", "the state that an operator keeps at a member", state)


def _family(
    name: str, kind: Kind, text: str, series: Sequence[tuple[Mapping[str, str], float]]
) -> Iterator[str]:
    return family(f"nebuli_circuit_{name}", kind, text, series)
