"""What the pages about Spark list is what the code has."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

import spark_bridge
from nebuli.spark.session import SETTINGS, driver_settings
from spark_bridge import errors
from spark_bridge.option_table import READ, WRITE
from spark_bridge.options import OPTIONS
from tests.docs.markdown import ROOT, blocks, code, table
from tests.support.ports import free_addresses
from tests.support.spark import bare_environment

REFERENCE = ROOT / "docs" / "reference" / "spark.md"
HOW_TO = ROOT / "docs" / "how-to" / "spark-streaming.md"
ENGINE = ROOT / "docs" / "how-to" / "run-on-spark.md"
GUARANTEES = ROOT / "docs" / "topics" / "spark-guarantees.md"

_USES = {
    "all": READ + WRITE,
    "reading": READ,
    "writing": WRITE,
    "batch reading": ("batch read",),
    "streaming reading": ("streaming read",),
    "batch writing": ("batch write",),
}
_DEFAULTS = {"all": None, "the query's id": None, "": None}
"""What the pages say where the code has no default of its own."""


def test_every_option_is_described_with_what_it_takes_its_default_and_where_it_is_known():
    """SP-OPT-1."""
    rows = [row for title in ("Where", "Reading", "Writing") for row in table(REFERENCE, title)]
    described = [
        (code(row[0]), row[1], code(row[2]) if row[2].startswith("`") else _DEFAULTS[row[2]], _USES[row[3]])
        for row in rows
    ]
    assert sorted(described) == sorted(
        (option.name, option.takes, option.default, option.uses) for option in OPTIONS
    )


def test_every_error_is_described():
    named = {name for row in table(REFERENCE, "Errors") for name in re.findall(r"`(\w+)`", row[0])}
    assert named == set(errors.__all__) - {"SparkBridgeError"}
    assert named < set(spark_bridge.__all__)


def test_metadata_columns_are_those_of_the_code():
    from spark_bridge.reading.range_reader import METADATA

    types = {"string": "STRING", "int64": "BIGINT", "timestamp[us, tz=UTC]": "TIMESTAMP"}
    assert [(code(row[0]), code(row[1])) for row in table(REFERENCE, "Metadata")] == [
        (field.name, f"{types[str(field.type)]} NOT NULL") for field in METADATA
    ]


def test_the_engines_settings_are_listed(tmp_path: Path):
    page = ENGINE.read_text("utf-8").partition("| settings | value or purpose |")[2].partition("\n\n")[0]
    named = re.findall(r"`(spark\.[\w.]+)`", page)
    assert sorted(named) == sorted([*SETTINGS, *driver_settings("local[1]", tmp_path)])


def test_the_example_is_short():
    (script,) = [block for block in blocks(HOW_TO) if block.file == "stream.py"]
    assert len([line for line in script.text.splitlines() if line.strip()]) <= 12


@pytest.mark.spark
@pytest.mark.timeout(300)
def test_the_programs_of_the_page_run_as_they_stand(tmp_path: Path):
    """SP-RD-2, SP-RD-4, SP-WR-1: as a reader of the page would try it, on other ports, with nothing activated."""
    read, written = free_addresses(2)
    for block in blocks(HOW_TO):
        if block.file is not None:
            text = block.text.replace("127.0.0.1:7000", read).replace("127.0.0.1:7001", written)
            (tmp_path / block.file).write_text(text, "utf-8")
    ends = subprocess.Popen(
        [sys.executable, "ends.py"], cwd=tmp_path, stdout=subprocess.PIPE, encoding="utf-8"
    )
    with ends:
        try:
            assert ends.stdout is not None
            assert ends.stdout.readline() == "ready\n"
            ran = subprocess.run(
                [sys.executable, "stream.py"],
                cwd=tmp_path,
                env=bare_environment(),
                capture_output=True,
                encoding="utf-8",
                timeout=240,
                check=False,
            )
            assert ran.returncode == 0, ran.stderr
            assert ends.communicate(timeout=60)[0] == "1000 squares\n"
        finally:
            ends.kill()
