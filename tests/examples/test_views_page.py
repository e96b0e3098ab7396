"""`make demo-views`: the delays that a page shows while flights come in are those that DuckDB has of the file."""

from __future__ import annotations

import json
import re
import shutil
import signal
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import duckdb
import httpx
import pytest

from tests.docs.markdown import ROOT
from tests.examples import flights
from tests.support.ports import free_addresses
from tests.support.waiting import wait_for

pytestmark = [pytest.mark.processes, pytest.mark.long, pytest.mark.timeout(240)]

EXAMPLE = ROOT / "examples" / "views"
_ANSWER = """
SELECT substr(time_hour, 12, 2)::BIGINT AS hour, count(*) AS flights, avg(dep_delay) AS mean_delay,
       max(dep_delay) AS worst_delay, max(time_hour) AS latest
FROM read_csv($file, nullstr = 'NA', types = {'time_hour': 'VARCHAR'})
WHERE dep_delay IS NOT NULL AND origin = $origin GROUP BY 1 ORDER BY 1
"""


@contextmanager
def shown(folder: Path) -> Iterator[str]:
    """The page, with the query at a free port, until it is interrupted: its URL."""
    for example in ("flights", "views"):
        shutil.copytree(ROOT / "examples" / example, folder / example, symlinks=True)
    topology = folder / "views" / "topology.yaml"
    (address,) = free_addresses(1)
    text, replaced = re.subn(r"address: \S+", f"address: {address}", topology.read_text("utf-8"))
    assert replaced == 1
    topology.write_text(text, "utf-8")
    said = folder / "stderr.txt"
    command = [sys.executable, folder / "views" / "show.py", "--port", "0", "--pause", "0"]
    with said.open("w", encoding="utf-8") as stderr, subprocess.Popen(command, stderr=stderr) as program:
        try:
            found = wait_for(
                lambda: re.search("the page is at (.*), until", said.read_text("utf-8")), "the page is there"
            )
            yield found[1]
        finally:
            program.send_signal(signal.SIGINT)
            program.wait(60)
    assert "Traceback" not in said.read_text("utf-8"), said.read_text("utf-8")
    with pytest.raises(httpx.ConnectError):
        httpx.get(found[1], trust_env=False)


def rows_of(answer: dict[str, Any]) -> list[tuple[Any, ...]]:
    """By hour, with the mean as far as the order of additions leaves it."""
    columns = ("hour", "flights", "mean_delay", "worst_delay", "latest")
    rows = sorted(tuple(row[name] for name in columns) for row in answer["rows"])
    return [(hour, n, pytest.approx(mean), worst, latest[:19]) for hour, n, mean, worst, latest in rows]


def test_the_page_shows_what_duckdb_has_of_the_file(tmp_path: Path) -> None:
    """It watches one origin until all is in, as its script does; others are asked for once, one without flights."""
    subprocess.run([sys.executable, flights.EXAMPLE / "prepare.py"], check=True)
    with zipfile.ZipFile(flights.EXAMPLE / "data" / "flights.csv.zip") as archive:
        file = archive.extract("flights.csv", tmp_path)

    expected = {}
    for origin in ("EWR", "LGA"):
        rows = duckdb.execute(_ANSWER, {"file": file, "origin": origin}).fetchall()
        expected[origin] = [(*row[:4], row[4][:19]) for row in rows]
    with shown(tmp_path) as url, httpx.Client(base_url=url, timeout=60, trust_env=False) as client:
        page = client.get("/").text
        (watched,) = re.findall(r'EventSource\("(.+?)"', page)
        last: list[tuple[Any, ...]] = []
        seen = 0
        with client.stream("GET", f"{watched}EWR", headers={"accept": "text/event-stream"}) as events:
            for line in events.iter_lines():
                if line.startswith("data: "):
                    seen, last = seen + 1, rows_of(json.loads(line.removeprefix("data: ")))
                    if last == expected["EWR"]:
                        break
        assert len(last) == len(expected["EWR"]) > 12
        assert seen > 2, "it was shown as it came in"
        assert rows_of(client.get("/views/delays?key=LGA").json()) == expected["LGA"]
        assert client.get("/views/delays?key=Mars").json()["rows"] == []
        (view,) = client.get("/views").json()["views"]
        assert (view["state"], view["columns"][0]["name"]) == ("partial", "origin")
        assert client.get("/", headers={"host": "elsewhere.example"}).status_code == 421
        assert client.get("/views/others?key=EWR").json()["error"] == "unknown_view"


def test_the_page_needs_nothing_from_elsewhere() -> None:
    page = (EXAMPLE / "page.html").read_text("utf-8")
    assert not re.search(r"https?:|\b(src|href)\s*=|@import|url\(", page)


def test_make_runs_that_program() -> None:
    _, _, rule = (ROOT / "Makefile").read_text("utf-8").partition("\ndemo-views: ")
    assert "$(BIN)/python examples/views/show.py" in rule.partition("\n\n")[0]
