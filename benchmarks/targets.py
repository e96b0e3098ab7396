"""What is to be reached: beside others of the same round, or by itself."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from statistics import median

from .measures import TITLES, Rounds, per_round, spread


@dataclass(frozen=True)
class AtLeast:
    """``measure`` of ``of`` is at least ``ratio`` times as high as the highest of ``beside``.

    ``beside_measure``: what of theirs it is put beside, if not the same.
    """

    ratio: float
    beside: tuple[str, ...]
    measure: str
    of: str
    beside_measure: str = ""

    def verdict(self, found: Mapping[str, Rounds]) -> str:
        """A sentence with both numbers."""
        theirs = self.beside_measure or self.measure
        best = max(self.beside, key=lambda name: median(found[name][theirs]))
        ratios = per_round(found[self.of][self.measure], found[best][theirs])
        return _sentence(
            self.of,
            self.measure,
            f"least {self.ratio} x {best}",
            spread(ratios, " x"),
            median(ratios) >= self.ratio,
        )


@dataclass(frozen=True)
class AtMost:
    """``measure`` of ``of`` is at most ``ratio`` times as high as that of ``beside``."""

    ratio: float
    beside: str
    measure: str
    of: str

    def verdict(self, found: Mapping[str, Rounds]) -> str:
        """A sentence with both numbers."""
        ratios = per_round(found[self.of][self.measure], found[self.beside][self.measure])
        return _sentence(
            self.of,
            self.measure,
            f"most {self.ratio} x {self.beside}",
            spread(ratios, " x"),
            median(ratios) <= self.ratio,
        )


@dataclass(frozen=True)
class FairShare:
    """``measure`` of ``of`` is at least ``ratio`` times ``share`` of what it is ``alone``."""

    ratio: float
    share: float
    alone: str
    measure: str
    of: str

    def verdict(self, found: Mapping[str, Rounds]) -> str:
        """A sentence with both numbers."""
        kept = per_round(found[self.of][self.measure], found[self.alone][self.measure])
        fair = [each / self.share for each in kept]
        wanted = f"least {self.ratio} x its fair share, 1/{1 / self.share:.0f} of {self.alone}"
        return _sentence(self.of, self.measure, wanted, spread(fair, " x"), median(fair) >= self.ratio)


@dataclass(frozen=True)
class KeepsLike:
    """What the one keeps of ``measure`` is at least ``ratio`` times what the other keeps.

    ``beside`` and ``of``: each in company, and alone.
    """

    ratio: float
    beside: tuple[str, str]
    measure: str
    of: tuple[str, str]

    def verdict(self, found: Mapping[str, Rounds]) -> str:
        """A sentence with both numbers."""
        theirs, ours = (
            per_round(*(found[name][self.measure] for name in pair)) for pair in (self.beside, self.of)
        )
        ratios = per_round(ours, theirs)
        return _sentence(
            self.of[0],
            self.measure,
            f"least {self.ratio} x the part of its figure alone that {self.beside[0]} keeps "
            f"({spread(theirs)}; {self.of[0]} {spread(ours)})",
            spread(ratios, " x"),
            median(ratios) >= self.ratio,
        )


@dataclass(frozen=True)
class Within:
    """``measure`` of ``of`` is at most ``limit``."""

    limit: float
    measure: str
    of: str

    def verdict(self, found: Mapping[str, Rounds]) -> str:
        """A sentence with both numbers."""
        values = found[self.of][self.measure]
        return _sentence(
            self.of, self.measure, f"most {self.limit}", spread(values), median(values) <= self.limit
        )


@dataclass(frozen=True)
class Reaching:
    """``measure`` of ``of`` is at least ``limit``."""

    limit: float
    measure: str
    of: str

    def verdict(self, found: Mapping[str, Rounds]) -> str:
        """A sentence with both numbers."""
        values = found[self.of][self.measure]
        return _sentence(
            self.of, self.measure, f"least {self.limit:,}", spread(values), median(values) >= self.limit
        )


@dataclass(frozen=True)
class MoreAtMost:
    """``measure`` of ``of`` is at most ``more`` above that of ``beside``."""

    more: float
    beside: str
    measure: str
    of: str

    def verdict(self, found: Mapping[str, Rounds]) -> str:
        """A sentence with both numbers."""
        pairs = zip(found[self.of][self.measure], found[self.beside][self.measure], strict=True)
        above = [value - other for value, other in pairs]
        wanted = f"most {self.more} above {self.beside}"
        return _sentence(self.of, self.measure, wanted, f"{spread(above)} above", median(above) <= self.more)


Target = AtLeast | AtMost | FairShare | KeepsLike | Within | Reaching | MoreAtMost


def contestants_of(target: Target) -> set[str]:
    """The names of all whose figures it is about."""
    named = (getattr(target, name, ()) for name in ("of", "beside", "alone"))
    return {one for value in named for one in ((value,) if isinstance(value, str) else value)}


def _sentence(of: str, measure: str, wanted: str, measured: str, reached: bool) -> str:
    verdict = "reached" if reached else "**not reached**"
    return f"{of}, {TITLES[measure]}: wanted at {wanted}; measured {measured}: {verdict}"
