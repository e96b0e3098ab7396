"""What the pages about Spark's data sources list is what the code has, and what they show is what happens."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

import pytest

from nebuli.spark.collections import collection_options
from nebuli.spark.collections import errors as of_collections
from nebuli.spark.streams import circuit_options
from nebuli.spark.streams import errors as of_circuits
from spark_bridge.option_table import READ, WRITE, Option
from tests.docs import sessions
from tests.docs.markdown import ROOT, blocks, code, table

PAGES = ROOT / "docs"
REFERENCES = [
    ("spark-circuits", circuit_options.OPTIONS, of_circuits, "CircuitStreamError"),
    ("spark-collections", collection_options.OPTIONS, of_collections, "CollectionStreamError"),
]
_USES = {
    "all": READ + WRITE,
    "reading": READ,
    "writing": WRITE,
    "batch reading": ("batch read",),
    "streaming reading": ("streaming read",),
    "batch writing": ("batch write",),
}


@pytest.mark.parametrize(("page", "options"), [(each[0], each[1]) for each in REFERENCES])
def test_every_option_is_described_with_what_it_takes_its_default_and_where_it_is_known(
    page: str, options: Sequence[Option]
) -> None:
    reference = PAGES / "reference" / f"{page}.md"
    rows = [row for title in ("Where", "Writing", "Reading") for row in table(reference, title)]
    described = [(code(row[0]), row[1], code(row[2]) if row[2] else None, _USES[row[3]]) for row in rows]
    assert sorted(described) == sorted(
        (option.name, option.takes, option.default, option.uses) for option in options
    )


@pytest.mark.parametrize(("page", "errors", "base"), [(each[0], *each[2:]) for each in REFERENCES])
def test_every_error_is_described(page: str, errors: ModuleType, base: str) -> None:
    rows = table(PAGES / "reference" / f"{page}.md", "Errors")
    assert {name for row in rows for name in re.findall(r"`(\w+)`", row[0])} == set(errors.__all__) - {base}


@pytest.mark.spark
@pytest.mark.processes
@pytest.mark.timeout(400)
@pytest.mark.parametrize(
    "page", ["how-to/spark-streams-and-circuits", "how-to/spark-collections", "tutorial/first-source"]
)
def test_what_the_page_shows_is_what_happens(page: str, tmp_path: Path) -> None:
    for outcome in sessions.run(sessions.steps_of(blocks(PAGES / f"{page}.md")), tmp_path):
        step = outcome.step
        said = "\n".join(file.read_text("utf-8") for file in tmp_path.glob("*.txt"))
        assert outcome.exit_code == 0, f"{step.command}\n{outcome.output}\n{said}"
        if step.expected is not None:
            assert sessions.agrees(step.expected, outcome.output), f"{outcome.output}\n{said}"
