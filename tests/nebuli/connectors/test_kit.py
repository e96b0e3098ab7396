"""The kit finds what is wrong with a connector: each of its tests fails where the promise that it is for is broken."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import pytest

from nebuli.connectors.testing import SinkConformance, SourceConformance
from tests.nebuli.connectors.test_conformance import read_csv
from tests.support.faulty_connector import ROWS, FaultySink, FaultySource
from topology import SINKS, SOURCES, Column

FAILS = (AssertionError, OSError, pytest.fail.Exception)


@pytest.fixture(autouse=True)
def _known(monkeypatch: pytest.MonkeyPatch) -> None:
    for connectors, connector in ((SOURCES, FaultySource), (SINKS, FaultySink)):
        monkeypatch.setattr(connectors, "known", {**connectors.known, "Faulty": connector})
        monkeypatch.setattr(connectors, "_adapter", None)


def run(suite: SourceConformance | SinkConformance, test: str, fixtures: dict[str, Any]) -> None:
    function = getattr(suite, test)
    function(**{name: fixtures[name] for name in inspect.signature(function).parameters})


class Quick(SourceConformance):
    limit_s = 1.0


def run_source(test: str, fault: str) -> None:
    settings = {"type": "Faulty", "fault": fault}
    fixtures = {
        "settings": settings,
        "schema": (Column(name="n", type="int64"),),
        "rows": ROWS,
        "waiting": ({**settings, "waits": True}, lambda: None),
        "unreadable": [({"type": "Faulty", "fault": fault or "cannot be read", "waits": True}, "socks")],
        "when": "opened",
    }
    run(Quick(), test, fixtures)


SOURCES_TESTS = {
    "forgets a row": "test_it_gives_the_rows_that_are_there",
    "no weights": "test_it_gives_the_rows_that_are_there",
    "does not end": "test_it_ends_if_it_says_so",
    "changes": "test_the_same_rows_come_again_if_it_is_repeatable",
    "skips more": "test_what_is_skipped_is_what_would_have_come_first",
    "blocks": "test_it_says_when_to_come_again",
    "does not wake": "test_it_says_when_to_come_again",
    "keeps its thread": "test_it_lets_go_of_everything",
    "keeps its descriptor": "test_it_lets_go_of_everything",
    "raises anything": "test_what_cannot_be_read_is_said_in_a_sentence",
}


@pytest.mark.parametrize("fault", SOURCES_TESTS)
def test_what_a_source_does_wrong_is_found(fault: str) -> None:
    run_source(SOURCES_TESTS[fault], "")
    with pytest.raises(FAILS):
        run_source(SOURCES_TESTS[fault], fault)


def run_sink(test: str, path: Path, fault: str) -> None:
    class Quick(SinkConformance):
        limit_s = 1.0

    settings = {"type": "Faulty", "path": str(path), "fault": fault}
    fixtures = {
        "settings": settings,
        "mode": "final",
        "published": lambda schema: read_csv(path.read_bytes(), schema) if path.exists() else None,
        "stalled": None,
        "when": "written to",
    }
    run(Quick(), test, fixtures)


SINKS_TESTS = {
    "forgets a row": "test_what_is_written_is_there_at_the_end",
    "spoils": "test_a_row_that_is_taken_back_is",
    "writes in place": "test_an_abort_publishes_nothing",
    "publishes what is broken": "test_an_abort_publishes_nothing",
    "keeps its descriptor": "test_it_lets_go_of_everything",
    "cannot be stopped": "test_an_interrupt_ends_what_waits",
}


@pytest.mark.parametrize("fault", SINKS_TESTS)
def test_what_a_sink_does_wrong_is_found(fault: str, tmp_path: Path) -> None:
    run_sink(SINKS_TESTS[fault], tmp_path / "good", "")
    with pytest.raises(FAILS):
        run_sink(SINKS_TESTS[fault], tmp_path / "bad", fault)
