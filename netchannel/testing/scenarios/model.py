"""What a scenario is: actors, and steps one after the other."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True, slots=True)
class Mistake:
    """One thing to correct in a scenario's file: what is wrong, what was expected, and where."""

    message: str
    file: str
    line: int = 1
    column: int = 1

    def __str__(self) -> str:
        return f"{self.file}:{self.line}:{self.column}: {self.message}"


class ScenarioError(Exception):
    """One or more mistakes in a scenario's file; ``mistakes`` holds all that were found, in file order."""

    def __init__(self, mistakes: list[Mistake]) -> None:
        self.mistakes = tuple(sorted(mistakes, key=lambda mistake: (mistake.line, mistake.column)))
        super().__init__("\n".join(map(str, self.mistakes)))


class ScenarioFailed(AssertionError):
    """A scenario did not go as its file says; the message names step, actor and both numbers."""


@dataclass(frozen=True, slots=True)
class Source:
    """Sends messages 0 to ``count`` (excluded), of ``size`` bytes, to each that reads from it.

    ``rate`` is how many in a second; None: as fast as they are taken.
    """

    name: str
    count: int
    rate: float | None
    size: int


@dataclass(frozen=True, slots=True)
class Bridge:
    """Forwards what comes from ``upstream``, and acknowledges a message when the one made of it is acknowledged."""

    name: str
    upstream: str


@dataclass(frozen=True, slots=True)
class Sink:
    """Reads from ``upstreams``, and is to have read ``expect`` messages in the end."""

    name: str
    upstreams: tuple[str, ...]
    expect: int


Actor = Source | Bridge | Sink


@dataclass(frozen=True, slots=True)
class Start:
    """Start actors, each when the one before it is ready."""

    actors: tuple[str, ...]
    line: int


@dataclass(frozen=True, slots=True)
class Stop:
    """Ask actors to leave: what they have not done is left to whoever is started next under their names."""

    actors: tuple[str, ...]
    line: int


@dataclass(frozen=True, slots=True)
class Kill:
    """Kill actors (SIGKILL)."""

    actors: tuple[str, ...]
    line: int


@dataclass(frozen=True, slots=True)
class Reset:
    """Kill each actor in the midst of its work, and start it again."""

    actors: tuple[str, ...]
    line: int


@dataclass(frozen=True, slots=True)
class Wait:
    """Wait until a sink has read ``until`` messages, or, if that is None, all to their clean ends."""

    sink: str
    until: int | None
    within_s: float
    line: int


Step = Start | Stop | Kill | Reset | Wait


@dataclass(frozen=True, slots=True)
class Scenario:
    """The actors that take part, by name, and what is done with them. Made by `load` and `parse`."""

    file: str
    actors: Mapping[str, Actor]
    steps: tuple[Step, ...]
    deadline_s: float

    @property
    def sinks(self) -> list[Sink]:
        """All sinks, in file order."""
        return [actor for actor in self.actors.values() if isinstance(actor, Sink)]

    def source_of(self, name: str) -> Source:
        """The source of the messages that come from ``name``, through however many bridges."""
        actor = self.actors[name]
        while isinstance(actor, Bridge):
            actor = self.actors[actor.upstream]
        assert isinstance(actor, Source)
        return actor

    def readers_of(self, name: str) -> list[str]:
        """The names of those who read from ``name``."""
        return [each.name for each in self.actors.values() if name in upstreams(each)]


def upstreams(actor: Actor) -> tuple[str, ...]:
    """The names of those from whom ``actor`` reads."""
    match actor:
        case Source():
            return ()
        case Bridge(upstream=upstream):
            return (upstream,)
        case Sink(upstreams=several):
            return several


def channel_id(upstream: str, downstream: str) -> str:
    """The channel between two actors; its stream has the same name, whatever process sends it."""
    return f"{upstream}-{downstream}"
