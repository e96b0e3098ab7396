"""One line of a diagnosis."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["Check"]


@dataclass(frozen=True, slots=True)
class Check:
    """What was looked at, and what was found. ``remedy`` is empty where it is well.

    ``unreachable``: somebody does not answer. ``values`` are the numbers behind the sentence, with their units in
    their names.
    """

    subject: str
    name: str
    found: str
    remedy: str = ""
    unreachable: bool = False
    values: Mapping[str, float | str] = field(default_factory=dict)

    @property
    def ok(self) -> bool:
        """Whether there is nothing to do."""
        return not self.remedy

    def to_data(self) -> dict[str, Any]:
        """The check as JSON shows it."""
        return {"ok": self.ok, **asdict(self), "values": dict(self.values)}
