"""What the page about members in Spark shows is what happens, and what it lists is what is set."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from nebuli.steps.spark.stage_driver import settings
from nebuli.steps.spark.stage_messages import Stage
from tests.docs import sessions
from tests.docs.markdown import ROOT, blocks
from tests.nebuli.steps.spark.orders import orders

PAGE = ROOT / "docs" / "how-to" / "members-in-spark.md"


@pytest.mark.spark
@pytest.mark.processes
def test_the_commands_of_the_page_do_what_it_shows(tmp_path: Path) -> None:
    for step, output, exit_code in (
        (each.step, each.output, each.exit_code)
        for each in sessions.run(sessions.steps_of(blocks(PAGE)), tmp_path)
    ):
        assert exit_code == 0, output
        assert step.expected is None or sessions.agrees(step.expected, output), output


def test_the_settings_are_listed(tmp_path: Path) -> None:
    stage = Stage(
        driver="d",
        master="local[1]",
        orders=tuple(orders(tmp_path, 1)),
        coordinator="127.0.0.1:1",
        sources=tmp_path,
        directory=tmp_path,
    )
    table = (
        PAGE.read_text("utf-8")
        .partition("over `spark-defaults.conf`:")[2]
        .partition("\n\nYou choose the number")[0]
    )
    assert sorted(re.findall(r"`(spark\.[\w.]+)`", table)) == sorted(settings(stage))
