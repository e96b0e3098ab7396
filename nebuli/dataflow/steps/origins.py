"""Where event time begins in steps: how far each source has come there, and what follows for all members."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from nebuli.dataflow.progress import GREATEST, LEAST, Origin

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    import pyarrow as pa

    from placement.plan import WatermarkOrigin

_SOURCE = "of "
"""Prefix of the name of a source's number; the rest is the source's name."""


@dataclass(frozen=True, slots=True)
class SourceRows:
    """The rows of a source that count for a step, in their order.

    ``awaited``: event time waits for those that follow; not where it has ended, or had nothing for long.
    """

    rows: Sequence[pa.RecordBatch]
    awaited: bool = True


class Seen(NamedTuple):
    """The watermarks that a member knows of at one place.

    ``awaited`` is the least one of its sources that are waited for (GREATEST: there is none), ``others`` that of what
    comes from no source (LEAST: nothing has come), ``greatest`` the greatest of all, also of sources that have ended.
    """

    awaited: int
    others: int
    greatest: int


def reached_by(members: Iterable[Seen]) -> int:
    """Where the watermark is, of what all members know.

    Each source is waited for, those without a row yet, too, until it ends or is idle. Rows from no source are one
    stream, at any member, and not waited for before it begins. Where nothing is waited for, it is the greatest that
    there was.
    """
    known = list(members)
    awaited = [each.awaited for each in known if each.awaited != GREATEST]
    begun = [each.others for each in known if each.others != LEAST]
    return min([*awaited, *([max(begun)] if begun else [])], default=max(each.greatest for each in known))


def greatest_of(members: Iterable[Seen]) -> int:
    """The greatest watermark that any source has had, of what all members know."""
    return max(each.greatest for each in members)


class StepOrigin(Origin):
    """Where a watermark begins, with one of its own for each source, whose rows are those that come while it is set.

    ``inputs`` are those whose rows come here as they come in, source by source.
    """

    def __init__(self, settings: WatermarkOrigin, inputs: Iterable[str]) -> None:
        super().__init__(settings)
        self.inputs = frozenset(inputs)
        self.source: str | None = None
        self._awaited: dict[str, int] = {}
        self._others = self._greatest = LEAST

    def observe(self, batch: pa.RecordBatch) -> None:
        """Take notice of what is given out."""
        reached = self.watermark_of(batch)
        self._greatest = max(self._greatest, reached)
        if self.source is None:
            self._others = max(self._others, reached)
        else:
            self._awaited[self.source] = max(self._awaited.get(self.source, LEAST), reached)

    def time_of(self, watermark: int) -> int:
        """The time of a row that the watermark has followed to there."""
        return watermark if watermark == LEAST else watermark + self.lateness

    def wait_for(self, sources: Iterable[str]) -> None:
        """From here on wait for these sources, and no other."""
        self._awaited = {name: self._awaited.get(name, LEAST) for name in sources}

    @property
    def seen(self) -> Seen:
        """Return the known sources."""
        return Seen(min(self._awaited.values(), default=GREATEST), self._others, self._greatest)

    @property
    def numbers(self) -> Mapping[str, int]:
        """Its state between steps."""
        own = {"others": self._others, "greatest": self._greatest}
        return own | {_SOURCE + name: mark for name, mark in self._awaited.items()}

    def recall(self, numbers: Mapping[str, int | None]) -> None:
        """Have it keep what another one kept."""
        marks = {name: LEAST if mark is None else mark for name, mark in numbers.items()}
        self._others, self._greatest = marks.get("others", LEAST), marks.get("greatest", LEAST)
        self._awaited = {
            name.removeprefix(_SOURCE): mark for name, mark in marks.items() if name.startswith(_SOURCE)
        }


def idle_after(inputs: Iterable[str], origins: Sequence[StepOrigin]) -> Mapping[str, float | None]:
    """Return, for inputs with which event time begins, the seconds after which a source is idle at all its places.

    None: it is waited for.
    """
    found: dict[str, float | None] = {}
    for input_ in inputs:
        times = [each.idle_after_s for each in origins if input_ in each.inputs]
        known = [each for each in times if each is not None]
        if times:
            found[input_] = max(known) if len(known) == len(times) else None
    return found


def is_of_source(number: str) -> bool:
    """True if this is the name of a number that is a source's watermark."""
    return number.startswith(_SOURCE)
