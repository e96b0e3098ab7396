"""What a sink has written down, checked line by line as it grows."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .model import ScenarioFailed

if TYPE_CHECKING:
    from pathlib import Path

    from .model import Scenario, Sink


class Record:
    """The messages of a sink. ``read`` raises ScenarioFailed at the first that is not the one that was due."""

    def __init__(self, scenario: Scenario, sink: Sink, path: Path) -> None:
        self.path = path
        self._sink = sink
        self._counts = {name: scenario.source_of(name).count for name in sink.upstreams}
        self._read = dict.fromkeys(sink.upstreams, 0)
        self._ended: set[str] = set()
        self._offset = 0

    @property
    def total(self) -> int:
        """How many messages have been read."""
        return sum(self._read.values())

    @property
    def done(self) -> bool:
        """Whether all inputs have come to their clean end."""
        return self._ended == self._read.keys()

    @property
    def by_input(self) -> str:
        """The numbers in a sentence."""
        return ", ".join(f"{count} of {self._counts[name]} from {name}" for name, count in self._read.items())

    def read(self) -> None:
        """Take what has been written since."""
        if not self.path.exists():
            return
        with self.path.open("rb") as file:
            file.seek(self._offset)
            whole = file.read().rpartition(b"\n")
        self._offset += len(whole[0]) + len(whole[1])
        for line in whole[0].decode().splitlines():
            upstream, what = line.split()
            self._take(upstream, what)

    def _take(self, upstream: str, what: str) -> None:
        due, count, where = (
            self._read[upstream],
            self._counts[upstream],
            f"{self._sink.name}, from {upstream}",
        )
        if upstream in self._ended:
            raise ScenarioFailed(f"{where}: {what} came behind the end")
        if what == "changed":
            raise ScenarioFailed(f"{where}: message {due} has another content than it was sent with")
        if what == "end":
            if due != count:
                raise ScenarioFailed(f"{where}: the end came after {due} messages, and {count} were sent")
            self._ended.add(upstream)
            return
        if int(what) != due:
            how = "lost" if int(what) > due else "doubled, or out of order"
            raise ScenarioFailed(f"{where}: message {what} came where {due} was due: something was {how}")
        self._read[upstream] = due + 1
