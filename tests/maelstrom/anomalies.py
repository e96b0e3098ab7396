"""What is reported of a history that is not strictly serializable."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Anomaly:
    """What kind it is of, and which transactions it befell, for people."""

    kind: str
    text: str

    def __str__(self) -> str:
        return f"{self.kind}: {self.text}"


class Violation(Exception):
    """A run in which a promise was broken, or in which nothing was shown."""
