"""The picture of the demo shows what the demo prints."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.docs import demo_picture, sessions

PICTURE = demo_picture.PICTURE.read_text("utf-8")
_SLOW = re.compile(
    r"  running  [\d,]+ rows in|^channel .* has not been attached for |^waiting, for \d+ s at most: "
)


def _stable(lines: list[str]) -> list[str]:
    """The lines that are the same on each machine, without times; processes finish in any order.

    Left out: the progress and the notices that only a slow machine prints.
    """
    blurred = (re.sub(r"^ +\d+\.\d s  ", "", line).rstrip() for line in lines)
    return sorted(line for line in blurred if line and not _SLOW.search(line))


def test_a_picture_has_the_lines_that_it_is_drawn_from() -> None:
    assert demo_picture.lines_of(demo_picture.drawn("a  b\n\n  <c> & d\n")) == ["a  b", "", "  <c> & d"]


def test_the_picture_loads_nothing_from_elsewhere() -> None:
    assert (
        re.findall(r"url\((?!#)|href=|(?<!xmlns=\")https?://(?!www\.w3\.org|www\.textualize\.io)", PICTURE)
        == []
    )


@pytest.mark.story
@pytest.mark.processes
def test_the_picture_shows_what_the_demo_prints(tmp_path: Path) -> None:
    shown = "\n".join(demo_picture.lines_of(PICTURE))
    (demo,) = sessions.run([sessions.Step("make demo", shown, 0)], tmp_path)
    assert (demo.exit_code, demo.step.expected is not None) == (0, True), demo.output
    assert _stable((demo.step.expected or "").splitlines()) == _stable(demo.output.splitlines())
