"""Connectors of other packages: how they are found, and what is said where they cannot be had."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from textwrap import dedent

import click
import pytest
from jsonschema import Draft202012Validator
from pydantic import ValidationError

from nebuli.cli import saved_queries
from nebuli.connectors import InputError
from nebuli.connectors.provider import import_built_in, source_of
from nebuli.control.deployed_queries import DeployedQuery, GivenFile
from nebuli.node.records import FragmentRecord, Records, StateUnusable
from nebuli.rpc.status import FragmentState, FragmentStatus
from placement import InvalidQuery, check, parse_query
from placement.checking.endless import endless_sources
from placement.plan import BoundSource, Fragment
from topology import SINKS, SOURCES, ConnectorUnusable, TopologyError, parse_topology
from topology.json_schema import topology_schema

QUEUE = dedent("""
    from typing import Literal

    from nebuli.connectors import SinkConnector, SourceConnector

    class QueueSource(SourceConnector):
        implementation = "{module}_work:QueueSource"
        type: Literal["Queue"]
        topic: str
        depth: int = 1

        @property
        def reads(self):
            return f"queue {{self.topic}}"

        @property
        def ends(self):
            return "never"

    class QueueSink(SinkConnector):
        implementation = "{module}_work:QueueOutput"
        modes = ("append",)
        type: Literal["Queue"]
""")
TOPOLOGY = """\
logical: [{name: events, schema: [{name: n, type: int64}]}]
nodes:
  - address: 127.0.0.1:9001
    physical: [{logical: events, type: Queue, topic: clicks}]
"""


class Packages:
    """What pip would put into a folder, and take out of it again."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def install(
        self, module: str = "queue_one", code: str = QUEUE, *, name: str = "Queue", value: str = "QueueSource"
    ) -> None:
        (self._folder / f"{module}.py").write_text(code.format(module=module), "utf-8")
        metadata = self._folder / f"{module}-1.5.dist-info"
        metadata.mkdir()
        (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {module}\nVersion: 1.5\n", "utf-8")
        (metadata / "entry_points.txt").write_text(
            f"[nebuli.sources]\n{name} = {module}:{value}\n[nebuli.sinks]\n{name} = {module}:QueueSink\n",
            "utf-8",
        )

    def uninstall(self) -> None:
        shutil.rmtree(self._folder)
        for connectors in (SOURCES, SINKS):
            connectors.known.pop("Queue", None)
            connectors._adapter = None


@pytest.fixture
def packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Packages]:
    """All that becomes known of them goes with the test."""
    folder = tmp_path / "site"
    folder.mkdir()
    monkeypatch.syspath_prepend(folder)
    for connectors in (SOURCES, SINKS):
        for name in ("known", "packages"):
            monkeypatch.setattr(connectors, name, dict(getattr(connectors, name)))
        monkeypatch.setattr(connectors, "_adapter", None)
    yield Packages(folder)
    for module in [name for name in sys.modules if name.startswith("queue_")]:
        del sys.modules[module]


def said(text: str) -> list[str]:
    with pytest.raises(TopologyError) as caught:
        parse_topology(text, "t.yaml")
    return str(caught.value).splitlines()


def source(**keys: object) -> BoundSource:
    schema = [{"name": "n", "type": "int64"}]
    physical = {"logical": "events", "type": "Queue", "topic": "clicks", **keys}
    return BoundSource.model_validate(
        {"id": "s", "logical": "events", "schema": schema, "physical": physical}
    )


def fragment() -> Fragment:
    sink = {
        "id": "out",
        "type": "sink",
        "input": "s",
        "sink": "out",
        "target": {"name": "out", "type": "Null"},
    }
    return Fragment.model_validate({"id": "q/out", "node": "127.0.0.1:9001", "operators": [source(), sink]})


def test_nothing_is_looked_for_where_all_types_are_our_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.metadata.entry_points", None)
    parse_topology(TOPOLOGY.replace("Queue, topic: clicks", "CSV, path: clicks.csv"))


def test_a_connector_is_imported_when_a_topology_first_names_it(packages: Packages) -> None:
    packages.install()
    assert "queue_one" not in sys.modules
    topology = parse_topology(TOPOLOGY)
    (physical,) = topology.nodes[0].physical
    assert type(physical) is sys.modules["queue_one"].QueueSource
    assert "queue_one_work" not in sys.modules
    assert parse_topology(topology.to_yaml()) == topology


def test_its_words_are_the_planners(packages: Packages) -> None:
    packages.install()
    assert endless_sources([source()]) == [source()]
    (why,) = said(TOPOLOGY + "    sinks: [{name: out, type: Queue}]\n")
    assert why == "t.yaml:5:13: expected append as mode of this type, got 'final'"


@pytest.mark.parametrize(
    "kind", ["TCP, address: 127.0.0.1:1, format: JSON", "TCP, address: 127.0.0.1:1", "CSV, path: out.csv"]
)
def test_a_sink_is_not_given_columns_of_types_that_it_does_not_take(kind: str) -> None:
    target = f"{{name: out, type: {kind}}}"
    schema = "[{name: n, type: int64}, {name: raw, type: binary}]"
    text = TOPOLOGY.replace("[{name: n, type: int64}]", schema).replace(
        "Queue, topic: clicks", "CSV, path: c.csv"
    )
    topology = parse_topology(f"{text}    sinks: [{target}]\n")
    operators = [
        {"id": "s", "type": "source", "logical": "events"},
        {"id": "o", "type": "sink", "input": "s", "sink": "out"},
    ]
    with pytest.raises(InvalidQuery) as caught:
        check(parse_query(json.dumps({"operators": operators}), file="q.json"), topology)
    assert str(caught.value).startswith(
        f"q.json:1:118: sink o: 'out' at 127.0.0.1:9001 ({kind[:3]}) does not accept binary, the type of raw; cast "
        "it to one of bool, "
    )


def test_a_file_of_late_rows_is_not_given_columns_that_csv_does_not_hold() -> None:
    columns = "[{name: at, type: timestamp}, {name: raw, type: binary}]"
    text = TOPOLOGY.replace("[{name: n, type: int64}]", columns).replace(
        "Queue, topic: clicks", "CSV, path: c"
    )
    topology = parse_topology(f"{text}    sinks: [{{name: out, type: Print}}]\n")
    window = {"id": "w", "type": "window", "input": "s", "time": "at", "size": "1 hour", "late": "late.csv"}
    operators = [
        {"id": "s", "type": "source", "logical": "events"},
        window,
        {"id": "o", "type": "sink", "input": "w", "sink": "out"},
    ]
    with pytest.raises(
        InvalidQuery, match=r"window w: late \(CSV\) does not accept binary, the type of raw; cast it to "
    ):
        check(parse_query(json.dumps({"operators": operators})), topology)


def test_its_keys_are_checked_as_ours_are(packages: Packages) -> None:
    packages.install()
    assert said(TOPOLOGY.replace("topic: clicks", "topic: 7, dept: many")) == [
        "t.yaml:4:54: expected a string as topic, got 7; put the value in quotes",
        (
            "t.yaml:4:57: unknown key 'dept' (did you mean 'depth'?); expected base, depth, logical, rate, "
            "topic, type"
        ),
    ]


def test_it_travels_in_a_plan_and_is_checked_there(packages: Packages) -> None:
    packages.install()
    text = fragment().model_dump_json(by_alias=True)
    assert Fragment.model_validate_json(text) == fragment()
    for wrong in ('"depth":"deep"', '"depth":1,"more":1'):
        with pytest.raises(ValidationError):
            Fragment.model_validate_json(text.replace('"depth":1', wrong))


def test_an_unknown_type_lists_those_that_are_installed(packages: Packages) -> None:
    packages.install()
    (why,) = said(TOPOLOGY.replace("Queue", "Qeue"))
    known = "CSV, Parquet, TCP, Generator, Channel, Collection, Queue"
    assert why == f"t.yaml:4:40: unknown type 'Qeue' (did you mean 'Queue'?); expected one of {known}"


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        (
            "import a_driver_that_is_not_there\n",
            "ModuleNotFoundError: No module named 'a_driver_that_is_not_there'",
        ),
        ("raise SystemExit('no licence')\n", "SystemExit: no licence"),
    ],
)
def test_a_package_that_cannot_be_imported_is_named_with_the_reason(
    packages: Packages, code: str, reason: str
) -> None:
    packages.install("queue_bad", code)
    (why,) = said(TOPOLOGY)
    assert why == (
        f"t.yaml:4:40: source type 'Queue' comes from package queue_bad 1.5, which cannot be imported here: "
        f"{reason}; install its missing dependencies, or another version of it"
    )


def test_two_packages_with_one_type_are_both_named(packages: Packages) -> None:
    packages.install()
    packages.install("queue_two")
    (why,) = said(TOPOLOGY)
    assert why == (
        "t.yaml:4:40: source type 'Queue' is claimed by queue_one 1.5, queue_two 1.5: uninstall all but one "
        "of them"
    )


@pytest.mark.parametrize(
    ("name", "value"), [("Queue", "Literal"), ("Queue", "QueueSink"), ("Heap", "QueueSource")]
)
def test_an_entry_point_to_something_else_is_its_authors_mistake(
    packages: Packages, name: str, value: str
) -> None:
    packages.install(name=name, value=value)
    with pytest.raises(ConnectorUnusable) as caught:
        SOURCES.named(name)
    assert str(caught.value) == (
        f"source type '{name}' comes from package queue_one 1.5, but its entry point queue_one:{value} is not a "
        f"subclass of SourceConnector with the attribute 'implementation' and the field type: Literal['{name}']; "
        f"report this to the author of the package"
    )


def test_what_does_the_work_and_cannot_be_had_is_named_with_its_package(packages: Packages) -> None:
    """By the fragment that needs it; the worker imports only what is ours before, and is there."""
    packages.install()
    SOURCES.named("Queue")
    import_built_in()
    with pytest.raises(InputError) as caught:
        source_of(source(), print)
    assert str(caught.value) == (
        "type 'Queue' (queue_one 1.5): queue_one_work:QueueSource cannot be used here: ModuleNotFoundError: "
        "No module named 'queue_one_work'; install its missing dependencies, or another version of it"
    )


def test_the_schema_for_editors_has_what_is_installed(
    packages: Packages, monkeypatch: pytest.MonkeyPatch
) -> None:
    packages.install()
    document = json.loads(topology_schema())
    assert "QueueSource" not in document["$defs"]
    data = {"nodes": [{"address": "a:1", "physical": [{"logical": "l", "type": "Queue", "topic": 7}]}]}
    assert Draft202012Validator(document).is_valid(data)
    SOURCES.load_installed()
    document = json.loads(topology_schema())
    assert not Draft202012Validator(document).is_valid(data)
    data["nodes"][0]["physical"][0]["topic"] = "clicks"
    assert Draft202012Validator(document).is_valid(data)


def test_a_worker_that_is_started_without_the_package_keeps_what_it_was_given(
    packages: Packages, tmp_path: Path
) -> None:
    packages.install()
    given = fragment()
    status = FragmentStatus(id="q/out", fragment=given.id, state=FragmentState.RUNNING)
    record = FragmentRecord(fragment=given, status=status)
    packages.uninstall()
    path = tmp_path / "state" / "1.json"
    path.parent.mkdir()
    path.write_text(record.model_dump_json(by_alias=True), "utf-8")
    with Records(path.parent) as records, pytest.raises(StateUnusable) as caught:
        records.load()
    assert str(caught.value).startswith(
        f"{path} is the record of a fragment whose connector is not available: unknown type 'Queue'; expected "
    )
    assert path.exists()


def test_a_query_that_was_registered_with_the_package_says_that_it_is_gone(
    packages: Packages, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    file = GivenFile(path="/t", text="")
    packages.install()
    plan = (fragment(),)
    saved_queries.save(
        DeployedQuery(id="q1", name="q", topology=file, query=file, registered="", fragments=(), plan=plan)
    )
    packages.uninstall()
    with pytest.raises(click.ClickException, match=r"query q1 .* unknown type 'Queue'"):
        saved_queries.load("q1")
    assert (saved_queries.directory() / "q1.json").exists()
