"""Runs scenarios: each step, then the counts."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

from .model import Kill, Reset, Scenario, ScenarioFailed, Start, Stop
from .processes import Processes
from .records import Record
from .scenario_file import load

if TYPE_CHECKING:
    from collections.abc import Callable
    from os import PathLike

    from .model import Step, Wait

_STEP_S = 0.01


def run(
    scenario: Scenario | str | PathLike[str], report: Callable[[str], None] = lambda line: None
) -> dict[str, int]:
    """Run a scenario, or the one in a file; how many messages each sink has read.

    ``report`` is called with a line for each step that is done. No process is left, however it ends.

    Raises:
        ScenarioError: the file has mistakes; nothing was started.
        ScenarioFailed: a message was lost, doubled, out of order or changed, a deadline passed, an actor died, or a
            sink has another number of messages than it expects.
    """
    if not isinstance(scenario, Scenario):
        scenario = load(scenario)
    with tempfile.TemporaryDirectory(prefix="netchannel-scenario-") as directory:
        return _Run(scenario, Path(directory), report).run()


class _Run:
    def __init__(self, scenario: Scenario, directory: Path, report: Callable[[str], None]) -> None:
        self._scenario = scenario
        self._report = report
        self._processes = Processes(scenario, directory)
        self._records = {
            sink.name: Record(scenario, sink, self._processes.record_of(sink.name)) for sink in scenario.sinks
        }

    def run(self) -> dict[str, int]:
        """Take all steps; the counts."""
        with self._processes:
            for step in self._scenario.steps:
                try:
                    self._do(step)
                    self._check()
                except ScenarioFailed as error:
                    raise ScenarioFailed(f"{self._scenario.file}:{step.line}: {error}") from None
        return self._counted()

    def _do(self, step: Step) -> None:
        match step:
            case Start(actors=actors):
                for name in actors:
                    self._processes.start(name, self._scenario.deadline_s)
                self._report(f"started {', '.join(actors)}")
            case Stop(actors=actors):
                for name in actors:
                    self._processes.stop(name, self._scenario.deadline_s)
                self._report(f"stopped {', '.join(actors)}")
            case Kill(actors=actors):
                for name in actors:
                    self._kill(name)
                self._report(f"killed {', '.join(actors)}")
            case Reset(actors=actors):
                for name in actors:
                    self._kill(name)
                    self._processes.start(name, self._scenario.deadline_s)
                self._report(f"reset {', '.join(actors)}")
            case _:
                self._wait(step)

    def _kill(self, name: str) -> None:
        if not self._processes.kill(name):
            raise ScenarioFailed(
                f"{name} had done its work before it was killed: kill it earlier, or have more sent"
            )

    def _wait(self, wait: Wait) -> None:
        record = self._records[wait.sink]
        deadline = time.monotonic() + wait.within_s
        while not (record.done if wait.until is None else record.total >= wait.until):
            if time.monotonic() > deadline:
                wanted = "its inputs' ends" if wait.until is None else f"{wait.until} messages"
                raise ScenarioFailed(
                    f"{wait.sink} has not read {wanted} within {wait.within_s:g} s: it has {record.by_input}"
                )
            time.sleep(_STEP_S)
            self._check()
        self._report(f"{wait.sink} is done" if wait.until is None else f"{wait.sink} has read {wait.until}")

    def _check(self) -> None:
        """Raise for a broken promise or an actor that has failed, whatever a step waits for."""
        for record in self._records.values():
            record.read()
        self._processes.check_alive()

    def _counted(self) -> dict[str, int]:
        """The counts, now that nothing is written any more."""
        wrong = []
        for sink in self._scenario.sinks:
            record = self._records[sink.name]
            record.read()
            if record.total != sink.expect:
                wrong.append(
                    f"{sink.name} has read {record.total} messages ({record.by_input}), expected {sink.expect}"
                )
        if wrong:
            raise ScenarioFailed(f"{self._scenario.file}: {'; '.join(wrong)}")
        return {sink.name: self._records[sink.name].total for sink in self._scenario.sinks}
