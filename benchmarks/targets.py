"""What is to be reached: beside others of the same round, or by itself."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median

Rounds = Mapping[str, Sequence[float]]
"""A contestant's measures by name, each with its value in every round."""


@dataclass(frozen=True)
class AtLeast:
    """``of`` is at least ``ratio`` times as high as the highest of ``beside``."""

    ratio: float
    beside: tuple[str, ...]
    measure: str
    of: str
    beside_measure: str = ""

    def verdict(self, found: Mapping[str, Rounds]) -> str:
        """A sentence with both numbers."""
        measure = self.beside_measure or self.measure
        best = max(self.beside, key=lambda name: median(found[name][measure]))
        ratios = per_round(found[self.of][self.measure], found[best][measure])
        reached = median(ratios) >= self.ratio
        return _sentence(
            f"{self.measure}: wanted at least {self.ratio} x {best}", spread(ratios, " x"), reached
        )


@dataclass(frozen=True)
class AtMost:
    """``of`` is at most ``ratio`` times as high as the lowest of ``beside``."""

    ratio: float
    beside: tuple[str, ...]
    measure: str
    of: str

    def verdict(self, found: Mapping[str, Rounds]) -> str:
        """A sentence with both numbers."""
        best = min(self.beside, key=lambda name: median(found[name][self.measure]))
        ratios = per_round(found[self.of][self.measure], found[best][self.measure])
        reached = median(ratios) <= self.ratio
        return _sentence(
            f"{self.measure}: wanted at most {self.ratio} x {best}", spread(ratios, " x"), reached
        )


@dataclass(frozen=True)
class Within:
    """``of`` is at most ``limit``."""

    limit: float
    measure: str
    of: str

    def verdict(self, found: Mapping[str, Rounds]) -> str:
        """A sentence with both numbers."""
        values = found[self.of][self.measure]
        return _sentence(
            f"{self.measure}: wanted at most {self.limit}", spread(values), median(values) <= self.limit
        )


Target = AtLeast | AtMost | Within


def per_round(values: Sequence[float], others: Sequence[float]) -> list[float]:
    """Ratios of what was measured one after the other."""
    return [value / other for value, other in zip(values, others, strict=True)]


def spread(values: Sequence[float], unit: str = "") -> str:
    """The median, and from the lowest to the highest."""
    return f"{number(median(values))}{unit} ({number(min(values))} to {number(max(values))})"


def number(value: float) -> str:
    """Three digits at least, for people."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.{1 if value >= 10 else 2}f}"


def _sentence(wanted: str, measured: str, reached: bool) -> str:
    return f"{wanted}; measured {measured}: {'reached' if reached else '**not reached**'}"
