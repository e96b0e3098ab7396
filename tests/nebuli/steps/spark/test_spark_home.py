"""Where members can live, and what is said where they cannot."""

from __future__ import annotations

from pathlib import Path

import pytest

from nebuli.connectors.errors import FragmentError
from nebuli.steps.errors import HomeUnfit
from nebuli.steps.spark.spark_home import SparkHome, master_of
from nebuli.store.store_url import StoreUrl
from tests.support.commands import nebuli
from topology import parse_topology

URL = StoreUrl("postgresql://h/d", "s", "s3://b")
HERE = Path()
NODES = """
logical: [{name: numbers, schema: [{name: n, type: int64}]}]
nodes:
"""


@pytest.fixture
def java(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is there, and nobody starts it."""
    program = tmp_path / "java" / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.touch(0o755)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "java"))


def nodes(*engines: str) -> str:
    return NODES + "".join(
        f"  - {{address: 127.0.0.1:{port}, engine: {engine}}}\n" for port, engine in enumerate(engines, 27900)
    )


def test_the_master_is_that_of_the_only_node_on_spark() -> None:
    named = nodes("embedded", "spark, master: 'local-cluster[2,2,1024]'")
    assert master_of(parse_topology(named, "t")) == "local-cluster[2,2,1024]"
    assert master_of(parse_topology(nodes("spark"), "t")) is None
    assert master_of(parse_topology(nodes("embedded"), "t")) is None
    with pytest.raises(
        HomeUnfit, match=r"2 nodes of the topology have engine 'spark' \(127.0.0.1:27900, 127.0.0.1:27901\)"
    ):
        master_of(parse_topology(nodes("spark", "spark"), "t"))


@pytest.mark.usefixtures("java")
@pytest.mark.parametrize(
    ("master", "state", "why"),
    [
        ("sc://h:1", URL, "sc://h:1 is a server of Spark Connect, which has its own driver: give the master"),
        ("spark://h:1", Path("/s"), "do not have the folder /s: give --state postgresql://USER@HOST"),
        ("spark://no.such.host.invalid:7077", URL, "cannot reach spark://no.such.host.invalid:7077"),
        ("spark://h", URL, "expected spark://HOST:PORT"),
    ],
)
def test_what_cannot_be_is_refused(master: str, state: Path | StoreUrl, why: str) -> None:
    with pytest.raises(HomeUnfit, match=why):
        SparkHome(master, state, HERE)


@pytest.mark.usefixtures("java")
def test_a_cluster_is_reached_from_the_address_that_leads_there() -> None:
    assert SparkHome("spark://127.0.0.1:7077,other:7077", URL, HERE).host == "127.0.0.1"
    assert SparkHome("local[2]", HERE, HERE).host == "127.0.0.1"


def test_java_that_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", "/nowhere")
    with pytest.raises(
        FragmentError, match="members in Spark need Java 17 or later, and there is no Java at /nowhere"
    ):
        SparkHome(None, HERE, HERE)


def test_pyspark_that_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(FragmentError, match="members in Spark need PySpark: pip install"):
        SparkHome(None, HERE, HERE)


@pytest.mark.processes
@pytest.mark.usefixtures("java")
def test_the_command_refuses_in_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "t.yaml").write_text(
        nodes("spark, master: 'spark://127.0.0.1:1', sinks: [{name: out, type: Print}]"), "utf-8"
    )
    (tmp_path / "q.json").write_text(
        '{"operators": [{"id": "in", "type": "source", "logical": "numbers"},'
        ' {"id": "out", "type": "sink", "input": "in", "sink": "out"}]}',
        "utf-8",
    )
    files = (tmp_path / "t.yaml", tmp_path / "q.json")
    served = ("--stepped", "--serve", "127.0.0.1:0")
    ended = nebuli("run", *served, "--on", "spark", "--state", tmp_path / "s", *files, directory=tmp_path)
    assert ended.exit_code == 2, ended.stderr
    assert "do not have the folder" in ended.error
    assert nebuli("run", "--on", "spark", *files, directory=tmp_path).exit_code == 2
