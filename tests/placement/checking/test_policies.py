"""Whose policies a channel has: the query's over the node's over the topology's."""

from __future__ import annotations

import itertools
import json
from typing import Any

import pytest
import yaml

import netchannel
from placement import InvalidQuery, decompose, parse_query, place
from placement.plan import NetworkSink, NetworkSource
from topology import BufferSettings, FaultSettings, TopologyError, parse_topology

OPERATORS = [
    {"id": "s", "type": "source", "logical": "l"},
    {"id": "out", "type": "sink", "input": "s", "sink": "out"},
]


def ends(
    of_all: int | None,
    of_sender: int | None,
    of_receiver: int | None,
    of_query: int | None,
    of_source: int | None,
) -> tuple[int | None, int | None]:
    """The bound, in messages, of the only channel at its sender and at its receiver; None: the worker's own."""

    def channels(bound: int | None) -> dict[str, object]:
        return {} if bound is None else {"channels": {"buffer": {"max_messages": bound}}}

    nodes = [
        {
            "address": "a:1",
            "links": {"downstream": ["b:1"]},
            "physical": [{"logical": "l", "type": "CSV", "path": "l.csv"}],
            **channels(of_sender),
        },
        {"address": "b:1", "sinks": [{"name": "out", "type": "Print"}], **channels(of_receiver)},
    ]
    logical = [{"name": "l", "schema": [{"name": "n", "type": "int64"}]}]
    topology = parse_topology(yaml.safe_dump({"logical": logical, "nodes": nodes, **channels(of_all)}))
    data: dict[str, object] = {"operators": OPERATORS}
    if of_query is not None or of_source is not None:
        of = {} if of_source is None else {"of": {"s": channels(of_source)["channels"]}}
        data["channels"] = {**channels(of_query).get("channels", {}), **of}  # type: ignore[dict-item]
    found: list[int | None] = []
    for fragment in decompose(place(parse_query(json.dumps(data)), topology)).fragments:
        for operator in fragment.operators:
            if isinstance(operator, NetworkSink | NetworkSource):
                again = type(operator).model_validate_json(operator.model_dump_json(by_alias=True))
                assert again == operator
                found.append(None if operator.buffer is None else operator.buffer.max_messages)
    first, second = found
    return first, second


@pytest.mark.parametrize("given", list(itertools.product([False, True], repeat=5)))
def test_the_query_is_over_the_node_which_is_over_the_topology(given: tuple[bool, ...]) -> None:
    """All 32 combinations of the levels: the first that says something is taken, at each end for itself."""
    of_all, of_sender, of_receiver, of_query, of_source = (
        number if is_given else None for number, is_given in enumerate(given, start=1)
    )

    def first(*levels: int | None) -> int | None:
        return next((level for level in levels if level is not None), None)

    wanted = (
        first(of_source, of_query, of_sender, of_all),
        first(of_source, of_query, of_receiver, of_all),
    )
    assert ends(of_all, of_sender, of_receiver, of_query, of_source) == wanted


def test_each_policy_is_taken_as_a_whole_and_from_a_level_of_its_own() -> None:
    topology = parse_topology(
        """
        logical: [{name: l, schema: [{name: n, type: int64}]}]
        channels: {buffer: {max_bytes: null, max_messages: 5}, fault: {retry: 3}}
        nodes:
          - {address: "a:1", links: {downstream: ["b:1"]}, physical: [{logical: l, type: CSV, path: l.csv}]}
          - {address: "b:1", sinks: [{name: out, type: Print}]}
        """
    )
    text = json.dumps({"channels": {"of": {"s": {"buffer": {"when_full": "spill"}}}}, "operators": OPERATORS})
    (sender, _) = decompose(place(parse_query(text), topology)).fragments
    sink = sender.operators[-1]
    assert isinstance(sink, NetworkSink)
    assert json.loads(sink.model_dump_json())["buffer"] == {"when_full": "spill"}
    assert json.loads(sink.model_dump_json())["fault"] == {"retry": 3}


def test_what_a_query_says_of_an_operator_holds_for_no_other_whose_id_begins_alike() -> None:
    topology = parse_topology(
        """
        logical: [{name: l, schema: [{name: n, type: int64}]}]
        nodes:
          - {address: "a:1", links: {downstream: ["b:1"]}, physical: [{logical: l, type: CSV, path: l.csv}]}
          - {address: "b:1", sinks: [{name: out, type: Print}]}
        """
    )
    operators = [
        {"id": "s", "type": "source", "logical": "l"},
        {"id": "s/0", "type": "filter", "input": "s", "predicate": "n > 0"},
        {"id": "out", "type": "sink", "input": "s/0", "sink": "out"},
    ]
    text = json.dumps({"channels": {"of": {"s": {"fault": {"retry": 7}}}}, "operators": operators})
    channels = [
        operator.fault
        for fragment in decompose(place(parse_query(text), topology)).fragments
        for operator in fragment.operators
        if isinstance(operator, NetworkSink | NetworkSource)
    ]
    assert channels == [None, None]


def test_what_a_query_says_of_a_source_holds_for_its_parts() -> None:
    topology = parse_topology(
        """
        logical: [{name: l, schema: [{name: n, type: int64}]}]
        nodes:
          - {address: "a:1", links: {downstream: ["b:1"]}, physical: [{logical: l, type: CSV, path: l.csv}]}
          - {address: "b:1", sinks: [{name: out, type: Print}], physical: [{logical: l, type: CSV, path: l.csv}]}
        """
    )
    text = json.dumps({"channels": {"of": {"s": {"fault": {"retry": 7}}}}, "operators": OPERATORS})
    channels = [
        operator.fault
        for fragment in decompose(place(parse_query(text), topology)).fragments
        for operator in fragment.operators
        if isinstance(operator, NetworkSink | NetworkSource)
    ]
    assert [fault.retry for fault in channels if fault is not None] == [7, 7]


def test_mistakes_in_a_querys_policies_have_their_places() -> None:
    text = (
        '{"channels": {"buffer": {"when_ful": "spill"},\n'
        '  "fault": {"retry": -1},\n'
        '  "of": {"t": {}, "out": {}}},\n'
        f' "operators": {json.dumps(OPERATORS)}}}'
    )
    with pytest.raises(InvalidQuery) as caught:
        parse_query(text, file="q.json")
    assert [str(mistake).partition(";")[0] for mistake in caught.value.mistakes] == [
        "q.json:1:26: unknown key 'when_ful' (did you mean 'when_full'?)",
        "q.json:2:22: retry must be 'forever' or a number of seconds (0 or more), got -1",
        "q.json:3:10: policies are given for the output of 't', but no operator with an output has this id",
        "q.json:3:19: policies are given for the output of 'out', but no operator with an output has this id",
    ]


@pytest.mark.parametrize("max_disk_bytes", [None, 1])
@pytest.mark.parametrize("directory", [None, "d"])
@pytest.mark.parametrize("when_full", ["block", "fail", "drop_oldest", "spill"])
def test_settings_go_together_exactly_where_they_do_in_a_channel(
    when_full: str, directory: str | None, max_disk_bytes: int | None
) -> None:
    settings = {"when_full": when_full, "directory": directory, "max_disk_bytes": max_disk_bytes}
    try:
        netchannel.BufferPolicy(**settings)  # type: ignore[arg-type]  # as the cases give them
    except ValueError:
        with pytest.raises(ValueError, match=r"Value error, (when_full|max_disk_bytes) "):
            BufferSettings.model_validate(settings)
    else:
        BufferSettings.model_validate(settings)


@pytest.mark.parametrize("on_failure", ["fail", "wait"])
@pytest.mark.parametrize("retry", ["forever", 0, 0.5])
def test_faults_go_together_exactly_where_they_do_in_a_channel(retry: Any, on_failure: str) -> None:
    settings = {"retry": retry, "on_failure": on_failure}
    try:
        netchannel.FaultPolicy(**settings)
    except ValueError:
        with pytest.raises(ValueError, match="expected"):
            FaultSettings.model_validate(settings)
    else:
        FaultSettings.model_validate(settings)


def test_waiting_on_wants_seconds_to_wait() -> None:
    """What would it be told after?"""
    for retry in ("forever", 0):
        with pytest.raises(
            ValueError, match=f"on_failure 'wait' cannot be combined with retry {retry}.* more than 0"
        ):
            FaultSettings.model_validate({"retry": retry, "on_failure": "wait"})


def test_mistakes_in_the_keys_of_security_and_policies_are_all_told() -> None:
    """PL-TOP-2: each with line, column and what was expected; a secret in the file is not repeated."""
    text = """\
tls: {certificate: a.pem, kee: a.key, authority: b.pem}
secret: hunter2
channels:
  buffer: {max_bytes: 0, when_full: spil}
  fault: {retry: never}
nodes:
  - address: 127.0.0.1:9001
    engine: Spark
    channels: {buffer: {when_full: spill, directory: x}}
    secret: {file: x, env: Y}
  - address: 127.0.0.1:9002
    secret: {env: "hunter 2"}
"""
    with pytest.raises(TopologyError) as caught:
        parse_topology(text, "t.yaml")
    assert str(caught.value).splitlines() == [
        "t.yaml:1:27: unknown key 'kee' (did you mean 'key'?); expected authority, certificate, key, server_name",
        (
            "t.yaml:2:9: a topology must not contain a secret; expected {file: path} or {env: NAME of an "
            "environment "
            "variable}"
        ),
        "t.yaml:4:23: expected at least 1 as max_bytes, got 0",
        "t.yaml:4:37: expected one of block, fail, drop_oldest, spill as when_full, got 'spil' (did you mean 'spill'?)",
        "t.yaml:5:18: retry must be 'forever' or a number of seconds (0 or more), got 'never'",
        "t.yaml:8:13: expected one of embedded, spark as engine, got 'Spark' (did you mean 'spark'?)",
        (
            "t.yaml:9:24: when_full 'spill' cannot be combined with directory x, which keeps all messages on disk: "
            "use when_full 'block' or 'fail', or omit directory"
        ),
        "t.yaml:10:13: expected either file or env as secret",
        "t.yaml:12:19: expected env to name an environment variable: letters, digits and underscores",
    ]


@pytest.mark.parametrize("key", ["tls: {certificate: a, key: b, authority: c}", "secret: {file: s}"])
def test_a_node_without_what_others_have_is_a_mistake(key: str) -> None:
    text = f"nodes:\n  - address: a:1\n    {key}\n  - address: b:1\n"
    name = key.partition(":")[0]
    with pytest.raises(TopologyError) as caught:
        parse_topology(text, "t.yaml")
    said = f"this node has no {name}, but others have one; expected {name} at each node, or at the top level"
    assert str(caught.value) == f"t.yaml:4:5: {said}"
    parse_topology(f"{key}\n{text}")
