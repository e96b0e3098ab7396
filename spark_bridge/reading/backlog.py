"""How much a streaming query has still to read, for the progress that Spark reports."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from netchannel import Position

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from netchannel import Heads, Located

    from .admission import Waiting
    from .offsets import Entry


class Mark(NamedTuple):
    """Rows and bytes before a message of a stream."""

    stream: str | None
    sequence: int
    rows: int
    bytes: int


@dataclass(slots=True)
class Backlog:
    """What lies between the end of the last batch that was planned and the heads."""

    _marks: dict[str, Mark] = field(default_factory=dict)
    _parts: dict[str, Located] = field(default_factory=dict)

    def located(self, key: str, part: Located) -> Located:
        """Remember how much of a channel the next batch takes."""
        self._parts[key] = part
        return part

    def planned(
        self,
        ends: Mapping[str, Entry],
        found: Mapping[str, Waiting],
        count: Callable[[str, Position], Located],
    ) -> None:
        """The next batch ends there. ``count(key, first)`` tells all that a channel has from a message on."""
        for key, here in found.items():
            end, heads = ends[key], here.heads
            if (end.stream, end.sequence) == (heads.stream, heads.head):
                self._marks[key] = Mark(heads.stream, heads.head, heads.rows, heads.bytes)
                continue
            part = self._parts.get(key)
            if part is None:
                continue
            before = self._marks.get(key)
            if before is None or before[:2] != (heads.stream, here.first):
                rest = count(key, Position(heads.stream, here.first))
                before = Mark(heads.stream, here.first, heads.rows - rest.rows, heads.bytes - rest.bytes)
            self._marks[key] = Mark(
                heads.stream, end.sequence, before.rows + part.rows, before.bytes + part.bytes
            )
        self._parts.clear()

    def report(self, latest: Mapping[str, Heads]) -> dict[str, Any]:
        """The newest offset of every channel, with what is between the last batch and it where that is known."""
        shown: dict[str, Any] = {}
        for key, heads in sorted(latest.items()):
            shown[key] = {"stream": heads.stream, "seq": heads.head}
            mark = self._marks.get(key)
            if mark is not None:
                same = mark.stream == heads.stream
                shown[key]["backlogRows"] = max(0, heads.rows - (mark.rows if same else 0))
                shown[key]["backlogBytes"] = max(0, heads.bytes - (mark.bytes if same else 0))
        return shown
