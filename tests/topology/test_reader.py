"""Topology files: what they hold, and what is said of their mistakes."""

from __future__ import annotations

from pathlib import Path
from time import process_time

import pytest
import yaml
from hypothesis import given

from tests.support.cases import CAPACITIES, topologies
from topology import (
    Column,
    CsvSource,
    DataType,
    ParquetSink,
    Topology,
    TopologyError,
    load_topology,
    parse_topology,
)

EXAMPLES = Path(__file__).parents[2] / "examples"
BLUEPRINT = """\
logical:
  - name: flights
    schema: [{name: flight_id, type: int64}, {name: origin, type: string}, {name: time_hour, type: timestamp}]
nodes:
  - address: 127.0.0.1:9001
    listen: 0.0.0.0:9001
    grpc: 127.0.0.1:8001
    capacity: 2
    links: {downstream: [127.0.0.1:9003]}
    physical:
      - {logical: flights, type: CSV, path: flights.csv, nulls: ["NA"]}
  - address: 127.0.0.1:9003
    grpc: 127.0.0.1:8003
    sinks: [{name: delays, type: Parquet, path: out/delays}]
"""


def mistakes(text: str) -> list[str]:
    with pytest.raises(TopologyError) as caught:
        parse_topology(text, "t.yaml")
    return str(caught.value).splitlines()


def test_the_example_loads_and_prints_back_to_an_equal_file():
    """PL-TOP-1: logical sources, and nodes with address, links, sinks, physical sources, capacity."""
    topology = parse_topology(BLUEPRINT)

    first, second = topology.nodes
    assert topology.logical[0].columns[2] == Column(name="time_hour", type=DataType.TIMESTAMP)
    assert (first.address, first.listen, first.grpc, first.capacity) == (
        "127.0.0.1:9001",
        "0.0.0.0:9001",
        "127.0.0.1:8001",
        2,
    )
    assert first.links.downstream == ("127.0.0.1:9003",)
    assert first.physical == (CsvSource(logical="flights", type="CSV", path="flights.csv", nulls=("NA",)),)
    assert second.capacity is None
    assert second.sinks == (ParquetSink(name="delays", type="Parquet", path="out/delays", mode="final"),)
    assert yaml.safe_load(topology.to_yaml()) == yaml.safe_load(BLUEPRINT)
    assert parse_topology(topology.to_yaml()) == topology


@pytest.mark.parametrize("file", sorted(EXAMPLES.glob("*/topology*.yaml")), ids=lambda file: file.name)
def test_the_examples_load_and_print_back_to_an_equal_file(file: Path):
    """PL-TOP-1"""
    topology = load_topology(file)
    given = yaml.safe_load(file.read_text("utf-8"))
    assert [node.address for node in topology.nodes] == [node["address"] for node in given["nodes"]]
    assert yaml.safe_load(topology.to_yaml()) == given
    assert parse_topology(topology.to_yaml()) == topology


@given(topologies(CAPACITIES, sources=3))
def test_any_topology_prints_back_to_an_equal_file(topology: Topology):
    """PL-TOP-1"""
    assert parse_topology(topology.to_yaml()) == topology


def test_a_file_with_three_mistakes_prints_three(tmp_path: Path):
    """PL-TOP-2: each with file, line, column and what was expected."""
    file = tmp_path / "t.yaml"
    text = BLUEPRINT.replace("capacity: 2", "capasity: 2")
    text = text.replace("[127.0.0.1:9003]", "[127.0.0.1:9004]").replace(
        "grpc: 127.0.0.1:8003", "grpc: 127.0.0.1:80030"
    )
    file.write_text(text, "utf-8")

    with pytest.raises(TopologyError) as caught:
        load_topology(file)

    addresses = "(did you mean '127.0.0.1:9003'?); expected 127.0.0.1:9003"
    known = "address, capacity, channels, data_ports, engine, grpc, links, listen, master, physical, secret, sinks, tls"
    assert str(caught.value).splitlines() == [
        f"{file}:8:5: unknown key 'capasity' (did you mean 'capacity'?); expected {known}",
        f"{file}:9:26: link to '127.0.0.1:9004', which is not the address of a node {addresses}",
        f"{file}:13:11: expected a port from 1 to 65535 in '127.0.0.1:80030', got '80030'",
    ]


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("127.0.0.1:9003\n", "127.0.0.1:9001\n", "12:14: duplicate address '127.0.0.1:9001'"),
        ("grpc: 127.0.0.1:8003", "grpc: 127.0.0.1:8001", "13:11: duplicate grpc address '127.0.0.1:8001'"),
        (
            "downstream: [127.0.0.1:9003]",
            "downstream: [127.0.0.1:9001]",
            "9:26: node 127.0.0.1:9001 links to itself",
        ),
        (
            "    sinks:",
            "    links: {downstream: [127.0.0.1:9001]}\n    sinks:",
            "14:26: links form a cycle: 127.0.0.1:9001 -> 127.0.0.1:9003 -> 127.0.0.1:9001",
        ),
        ("[127.0.0.1:9003]", "[127.0.0.1:9003, 127.0.0.1:9003]", "9:42: duplicate link"),
        (
            "{logical: flights",
            "{logical: fights",
            "11:19: unknown logical source 'fights' (did you mean 'flights'?); expected flights",
        ),
        (
            "{downstream: [127.0.0.1:9003]}",
            "{downstream: [127.0.0.1:9003], limits: {127.0.0.1:9003: {bandwidth: .inf}}}",
            "expected a finite number as bandwidth, got inf",
        ),
        ("type: int64", "type: integers", "3:38: expected one of bool, int8, int16, int32, int64, uint8"),
        ("type: CSV", "type: csv", "11:34: unknown type 'csv' (did you mean 'CSV'?); expected one of CSV"),
        (
            "type: Parquet",
            "type: parquet",
            "unknown type 'parquet' (did you mean 'Parquet'?); expected one of",
        ),
        ("type: int64", "type: Int64", "got 'Int64' (did you mean 'int64'?)"),
        ("type: CSV", "type: XML", "11:34: unknown type 'XML'; expected one of CSV, Parquet, TCP, Generator"),
        ("name: origin", "name: flight_id", "3:53: duplicate column 'flight_id'"),
        (
            "address: 127.0.0.1:9003",
            "adress: 127.0.0.1:9003",
            "12:5: unknown key 'adress' (did you mean 'address'?)",
        ),
        ("capacity: 2", "capacity: two", "8:15: expected a whole number as capacity, got 'two'"),
        ("capacity: 2", "capacity: -1", "8:15: expected at least 0 as capacity, got -1"),
        (
            "{downstream: [127.0.0.1:9003]}",
            "{downstream: [127.0.0.1:9003], limits: {127.0.0.1:9003: {bandwith: 5}}}",
            "9:69: unknown key 'bandwith' (did you mean 'bandwidth'?); expected bandwidth, latency_ms",
        ),
        ("capacity: 2", "capacity: !!bool maybe", "8:15: expected a whole number as capacity, got 'maybe'"),
        ("capacity: 2", 'capacity: !!int ""', "8:15: expected a whole number as capacity, got ''"),
        ("path: flights.csv, ", "", "11:9: missing key 'path'"),
        ("path: flights.csv", "file: flights.csv", "11:39: unknown key 'file'; expected base, "),
        (
            "path: flights.csv",
            r'path: "a\0b"',
            "11:45: expected a path, got 'a\\x00b', which contains a null",
        ),
        (
            "path: flights.csv",
            r'path: "a\nb"',
            "11:45: expected a path, got 'a\\nb', which contains a control",
        ),
        ("path: flights.csv", f"path: {'a' * 256}", "which contains a name of more than 255 bytes"),
        ("path: flights.csv", "path: 7", "11:45: expected a string as path, got 7; put the value in quotes"),
        (
            "links: {downstream: [127.0.0.1:9003]}",
            "links: [127.0.0.1:9003]",
            "9:12: expected a mapping as links, got a list",
        ),
        ("    capacity: 2", "    capacity: 2\n    capacity: 3", "9:5: duplicate key 'capacity'"),
        (
            "capacity: 2",
            "capacity: !!python/object:os.system {}",
            "8:15: expected a whole number as capacity",
        ),
        ("links: {downstream: [127.0.0.1:9003]}", "links: {downstream: [127.0.0.1:9003}", "not valid YAML"),
        ("logical:\n", "logical:\n\t- x\n", "2:1: not valid YAML"),
        ("logical:\n", "logical:\n\t- x\n", "; indent with spaces, because YAML does not allow tabs there"),
        ("    capacity: 2", "\tcapacity: 2", "; indent with spaces, because YAML does not allow tabs there"),
    ],
)
def test_a_mistake_is_reported_where_it_is(old: str, new: str, said: str):
    """PL-TOP-2: unknown keys, duplicates, references to nothing, cycles, bad values, and what is not YAML."""
    assert old in BLUEPRINT
    assert any(said in line and line.startswith("t.yaml:") for line in mistakes(BLUEPRINT.replace(old, new)))


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        (
            "path: f",
            "count: 9, path: f",
            "unknown key 'count'; it belongs in nodes.physical of type Generator; exp",
        ),
        ("path: f", "capacity: 2, path: f", "unknown key 'capacity'; it belongs in nodes; expected base"),
        ("path: f", "mode: final, path: f", "unknown key 'mode'; it belongs in nodes.sinks; expected base"),
        ("path: f", "schema: [], path: f", "unknown key 'schema'; it belongs in logical; expected base"),
        (
            "capacity: 2",
            "path: x.csv",
            "in nodes.physical of type CSV or Parquet or in nodes.sinks of type CSV or ",
        ),
        ("capacity: 2", "nodes: []", "unknown key 'nodes'; it belongs at the top level; expected address"),
        (
            "path: f",
            "bounded: true, path: f",
            "unknown key 'bounded'; the type of a source determines if it ends: CSV, Parquet, a Generator with count",
        ),
    ],
)
def test_a_key_at_the_wrong_place_is_reported_with_the_right_one(old: str, new: str, said: str):
    assert old in BLUEPRINT
    assert any(said in line for line in mistakes(BLUEPRINT.replace(old, new, 1)))


CHANNEL = "type: Channel, address: 127.0.0.1:9100, channel: flights"


def test_a_channel_that_is_kept_is_a_source():
    text = BLUEPRINT.replace('type: CSV, path: flights.csv, nulls: ["NA"]', f"{CHANNEL}, from: latest")
    (source,) = parse_topology(text).nodes[0].physical
    assert (source.type, source.reads, source.ends) == (
        "Channel",
        "channel flights at 127.0.0.1:9100",
        "perhaps",
    )
    assert parse_topology(parse_topology(text).to_yaml()) == parse_topology(text)


@pytest.mark.parametrize(
    ("keys", "again"), [("", False), (", consumer: job", True), (", from: latest", False)]
)
def test_only_for_a_consumer_is_a_channel_there_to_be_read_again(keys: str, again: bool):
    text = BLUEPRINT.replace('type: CSV, path: flights.csv, nulls: ["NA"]', CHANNEL + keys)
    (source,) = parse_topology(text).nodes[0].physical
    assert source.can_be_read_again is again


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ("type: Channel, channel: c", "11:9: missing key 'address'"),
        ("type: Channel, address: 127.0.0.1:9100", "11:9: missing key 'channel'"),
        (CHANNEL.replace(":9100", ""), "11:52: expected host:port"),
        (
            CHANNEL.replace("channel: flights", 'channel: ""'),
            "11:77: expected 1 to 255 printable bytes",
        ),
        (
            CHANNEL.replace("channel: flights", f"channel: {'é' * 128}"),
            "11:77: expected 1 to 255 printable bytes",
        ),
        (CHANNEL + r', consumer: "a\nb"', "printable characters, got 'a\\nb'"),
        (CHANNEL + ", from: end", "11:92: expected one of beginning, latest"),
        (CHANNEL + ", begin: latest", "11:86: unknown key 'begin'"),
        (CHANNEL + ", consumer: job, from: latest", "'from: latest' contradicts consumer 'job'"),
        (
            CHANNEL + ", holder: me",
            "holder 'me' reserves a consumer's name, but no consumer is given; add the key 'consumer'",
        ),
        (CHANNEL + ", secret: open sesame", "a topology must not contain a secret"),
        (CHANNEL + ", tls: {certificate: c.pem, key: k.pem}", "missing key 'authority'"),
        (
            CHANNEL + ", fault: {retry: soon}",
            "retry must be 'forever' or a number of seconds (0 or more), got 'soon'",
        ),
        (CHANNEL + ", path: flights.csv", "11:86: unknown key 'path'"),
    ],
)
def test_a_mistake_in_a_channel_is_reported_where_it_is(keys: str, said: str):
    found = mistakes(BLUEPRINT.replace('type: CSV, path: flights.csv, nulls: ["NA"]', keys))
    assert any(said in line and line.startswith("t.yaml:11:") for line in found), found


@pytest.mark.parametrize(
    ("keys", "base"),
    [
        ("type: CSV, path: f.csv", False),
        ("type: CSV, path: f.csv, base: true", True),
        ("type: Generator, count: 9, base: true", True),
        ("type: Collection, store: s, collection: c", True),
        ("type: Collection, store: s, collection: c, base: false", False),
    ],
)
def test_a_base_can_be_read_again_and_a_collection_is_one(keys: str, base: bool):
    text = BLUEPRINT.replace('type: CSV, path: flights.csv, nulls: ["NA"]', keys)
    (source,) = parse_topology(text).nodes[0].physical
    assert source.base is base
    assert parse_topology(parse_topology(text).to_yaml()) == parse_topology(text)


@pytest.mark.parametrize(
    ("keys", "reads"),
    [
        ("type: TCP, address: 127.0.0.1:9", "TCP 127.0.0.1:9"),
        (CHANNEL, "channel flights at 127.0.0.1:9100"),
        (CHANNEL + ", consumer: job", "channel flights at 127.0.0.1:9100"),
        ("type: Generator", "a generator"),
    ],
)
def test_what_cannot_be_read_again_is_no_base(keys: str, reads: str):
    keys = f"{keys}, base: "
    found = mistakes(BLUEPRINT.replace('type: CSV, path: flights.csv, nulls: ["NA"]', f"{keys}true"))
    column = 28 + len(keys)
    (said,) = found
    assert said.startswith(f"t.yaml:11:{column}: {reads} cannot be read again from its beginning to an end")
    assert said.endswith("omit base, or read a file, a collection or another source that can be read again")


@pytest.mark.parametrize(
    "text",
    ["", "# nothing\n", "[]", "3", "nodes: []", "nodes: &a [*a]", "a: " + "[" * 3000, "[" * 900 + "]" * 900],
)
def test_a_file_that_is_no_topology_at_all_is_refused(text: str):
    assert mistakes(text)


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("[" * 100_000, "1:101"),  # libyaml crashes the process at half of it
        ("nodes:\n  " + "- " * 100_000, "2:201"),
        ("nodes: " + "{a: " * 100_000, "1:404"),
    ],
)
def test_a_file_that_is_nested_too_deep_is_refused_with_the_place(text: str, place: str):
    assert mistakes(text) == [f"t.yaml:{place}: lists and mappings are nested too deeply"]


def test_aliases_that_make_too_many_values_are_not_called_endless():
    lists = ["l0: &l0 [0, 0, 0, 0, 0, 0, 0, 0, 0, 0]"]
    lists += [f"l{each}: &l{each} [{', '.join([f'*l{each - 1}'] * 10)}]" for each in range(1, 7)]
    (said,) = mistakes("\n".join(lists))
    assert said.endswith("aliases expand this file to more than 1,000,000 values; use fewer aliases")


@pytest.mark.timed
def test_the_time_to_read_grows_with_the_number_of_nodes():
    def seconds(count: int) -> float:
        nodes = "".join(f"  - address: 10.0.{each // 250}.{each % 250}:4000\n" for each in range(count))
        began_s = process_time()
        assert len(parse_topology(f"logical: []\nnodes:\n{nodes}").nodes) == count
        return process_time() - began_s

    assert seconds(20_000) < 8 * seconds(5_000)  # four times as long, or 16 times if it grew with the square


def test_a_file_that_cannot_be_read_is_one_clear_line(tmp_path: Path):
    missing, binary = tmp_path / "missing.yaml", tmp_path / "latin.yaml"
    binary.write_bytes(b"nodes:\n  - address: caf\xe9:1\n")
    for file, said in (
        (missing, "cannot read the file: No such file"),
        (binary, "2:17: not UTF-8: byte 0xe9"),
    ):
        with pytest.raises(TopologyError, match=said):
            load_topology(file)


def test_a_file_that_is_not_there_is_reported_with_the_folder_it_was_looked_for_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(TopologyError) as caught:
        load_topology("nosuch/t.yaml")
    assert str(caught.value) == (
        f"nosuch/t.yaml: cannot read the file: No such file or directory (looked at {tmp_path}/nosuch/t.yaml)"
    )


def test_a_topology_made_in_code_is_checked_as_well():
    with pytest.raises(TopologyError, match="links to itself"):
        Topology.model_validate({"nodes": [{"address": "a:1", "links": {"downstream": ["a:1"]}}]})
