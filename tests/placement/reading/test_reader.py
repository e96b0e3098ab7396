"""Query files: what they hold, and what is said of their mistakes."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from placement import InvalidQuery, Query, load_query, parse_query
from placement.plan import (
    AggregateOperator,
    FilterOperator,
    JoinOperator,
    SinkOperator,
    SourceOperator,
    ViewOperator,
)

BLUEPRINT = """\
{"operators": [
  {"id": "f",  "type": "source",  "logical": "flights"},
  {"id": "w",  "type": "source",  "logical": "weather"},
  {"id": "f1", "type": "filter",  "input": "f", "predicate": "dep_delay > 15"},
  {"id": "j",  "type": "join",    "inputs": ["f1", "w"], "on": ["origin", "time_hour"]},
  {"id": "a",  "type": "aggregate", "input": "j", "by": ["origin"], "aggregates": {"n": "count(*)"}},
  {"id": "s",  "type": "sink",    "input": "a", "sink": "delays"}]}
"""


def mistakes(text: str, kind: type[InvalidQuery] = InvalidQuery) -> list[str]:
    with pytest.raises(kind) as caught:
        parse_query(text, file="q.json")
    return str(caught.value).splitlines()


def test_the_example_loads_and_is_named_after_its_file(tmp_path: Path):
    file = tmp_path / "late flights.json"
    file.write_text(BLUEPRINT, "utf-8")
    query = load_query(file)
    assert query.name == "late-flights"
    assert query.operators == (
        SourceOperator(id="f", logical="flights"),
        SourceOperator(id="w", logical="weather"),
        FilterOperator(id="f1", input="f", predicate="dep_delay > 15"),
        JoinOperator(id="j", inputs=("f1", "w"), on=("origin", "time_hour")),
        AggregateOperator(id="a", input="j", by=("origin",), aggregates={"n": "count(*)"}),
        SinkOperator(id="s", input="a", sink="delays"),
    )
    assert query == Query(operators=query.operators)
    assert Query.model_validate_json(query.model_dump_json()) == query


@pytest.mark.timed
def test_the_places_in_a_large_file_are_found_in_one_pass():
    filters = [
        f'{{"id": "f{n}", "type": "filter",\n "input": "f{n - 1}", "predicate": "a > 0"}}'
        for n in range(1, 20_000)
    ]
    source, sink = (
        '{"id": "f0", "type": "source", "logical": "l"}',
        '{"id": "s", "type": "sink", @"inputs": "f19999"}',
    )
    text = '{"operators": [' + ",\n".join([source, *filters, sink]) + "]}"
    column = len(sink.partition("@")[0]) + 1
    begun = time.thread_time()
    found = mistakes(text.replace("@", ""))
    assert time.thread_time() - begun < 10
    assert f"q.json:{2 * len(filters) + 2}:{column}: unknown key 'inputs'" in "\n".join(found)


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        (
            '"input": "f",',
            '"input": @"g",',
            "filter f1: unknown input 'g'; expected one of f, w, j, a",
        ),
        (
            '["f1", "w"]',
            '["f1", @"f1"]',
            "join j: reads 'f1' twice, so both inputs have the same column names; put a",
        ),
        ('{"id": "w"', '@{"id": "w"', "source w: nothing reads it; every operator must lead to a sink"),
        (
            '{"id": "j"',
            '@{"id": "j"',
            "operators form a cycle: j -> a -> f1 -> j; data flows one way, to the",
        ),
        ('["f1", "w"]', '["f1", @"s"]', "join j: reads sink s; a sink has no output"),
        ('"id": "w"', '"id": @"f"', "duplicate operator id 'f'; use each id once"),
        (
            '"id": "w"',
            '"id": @"w>x"',
            "operator id 'w>x' has a '>', which is reserved for names of channels and exchanges",
        ),
        (
            '"type": "filter"',
            '"type": @"fliter"',
            "unknown type 'fliter' (did you mean 'filter'?); expected one of source, filter",
        ),
        ('"type": "filter"', '@"tpye": "filter"', "unknown key 'tpye' (did you mean 'type'?)"),
        (
            '"logical": "w',
            '@"logcal": "w',
            "unknown key 'logcal' (did you mean 'logical'?); expected id, logical",
        ),
        (
            '"logical": "w',
            '@"by": [], "logical": "w',
            "unknown key 'by'; it belongs in operators of type aggregate; expected id, logical, type",
        ),
        (
            '"logical": "w',
            '@"capacity": 2, "logical": "w',
            "unknown key 'capacity'; it belongs in nodes, of a topology; expected id, logical, type",
        ),
        ('"by": ["origin"]', '"by": @"origin"', "expected a list as by, got 'origin'"),
        ('{"id": "f1"', '@{"id": "f1"', "missing key 'predicate'"),
        (
            '{"operators": [',
            '{"operators": @[',
            "the query has no sink; expected an operator of type sink",
        ),
        ('"time_hour"]', '"time_hour",@]', "not valid JSON"),
        (
            '["origin"]',
            '["origin",  @]',
            "not valid JSON: Expecting value; remove the comma before the closing",
        ),
        ('"delays"}', '"delays",@}', "not valid JSON: Expecting property name"),
        (
            '"input": "j"',
            '"input": @"F1"',
            "aggregate a: unknown input 'F1' (did you mean 'f1'?); expected one",
        ),
        ('"id": "j"', '"id": "j", @"id": "j"', "duplicate key 'id'; give each key once"),
    ],
)
def test_a_mistake_is_reported_where_it_is(old: str, new: str, said: str):
    """The @ stands before the place that is expected."""
    text = BLUEPRINT.replace(old, new)
    assert text.count("@") == 1
    before = text.partition("@")[0].split("\n")
    text = text.replace("@", "")
    if "source w" in said:
        text = text.replace('["f1", "w"]', '["f1", "f"]')
    if "cycle" in said:
        text = text.replace('"input": "f"', '"input": "a"')
    if "predicate" in said:
        text = text.replace(', "predicate": "dep_delay > 15"', "")
    if "no sink" in said:
        text = text.replace(
            '"type": "sink",    "input": "a", "sink": "delays"', '"type": "source", "logical": "a"'
        )
    place = f"q.json:{len(before)}:{len(before[-1]) + 1}: "
    assert any(line.startswith(place + said) for line in mistakes(text)), mistakes(text)


def test_all_mistakes_are_reported_at_once_and_a_misnamed_input_is_one():
    text = (
        BLUEPRINT.replace('"input": "j"', '"input": "jj"')
        .replace('"by"', '"buy"')
        .replace('"w",  ', '"f",  ')
    )
    messages = [line.split(": ", 1)[1] for line in mistakes(text)]
    assert [message.partition(";")[0] for message in messages] == [
        "duplicate operator id 'f'",
        "join j: unknown input 'w'",
        "aggregate a: unknown input 'jj' (did you mean 'j'?)",
        "unknown key 'buy' (did you mean 'by'?)",
    ]


def test_a_comma_before_a_closing_bracket_is_what_to_remove():
    for text in ('{"operators": [],}', '{"operators": [1,\n]}'):
        assert mistakes(text)[0].endswith("; remove the comma before the closing bracket")
    for text in ('{"operators": [1,,2]}', '{"operators": [1, x]}', "{'operators': []}"):
        assert "comma before" not in mistakes(text)[0]


def test_a_query_may_be_a_graph():
    """Whether it may run is for the check to say, which knows how."""
    text = BLUEPRINT.replace("]}\n", ',\n  {"id": "s2", "type": "sink", "input": "f1", "sink": "x"}]}\n')
    query = parse_query(text, file="q.json")
    assert query.operators[-1] == SinkOperator(id="s2", input="f1", sink="x")


@pytest.mark.parametrize(
    "text",
    ["", "[]", "3", "null", "{}", '{"operators": []}', '{"operators": [3]}', "[" * 100_000, "9" * 5000],
)
def test_a_file_that_is_no_query_at_all_is_refused(text: str):
    assert mistakes(text)


def test_an_empty_file_is_called_so():
    assert mistakes(" \n") == ["q.json:2:1: the file is empty; expected a query"]


def test_places_are_found_behind_escapes_tabs_and_nested_values():
    text = r"""{"operators":	[{"id":"a\"}{","type":"source",
	"logical":"l\u00e9"},{"id":"s","type":"sink","input":@"b","sink":"x"}]}"""
    column = len(text.splitlines()[1].partition("@")[0]) + 1
    said = mistakes(text.replace("@", ""))
    assert said == [f"q.json:2:{column}: sink s: unknown input 'b'; expected a\"}}{{"]


VIEWS = """\
{"operators": [
  {"id": "f", "type": "source", "logical": "flights"},
  {"id": "v", "type": "view", "input": "f", "key": ["origin"], "name": "flights"},
  {"id": "w", "type": "view", "input": "v", "key": ["hour"], "max_bytes": 1000, "evict": "random"}]}
"""


def test_a_query_may_end_in_a_view():
    query = parse_query(VIEWS)
    assert query.operators[1:] == (
        ViewOperator(id="v", input="f", key=("origin",), name="flights"),
        ViewOperator(id="w", input="v", key=("hour",), max_bytes=1000, evict="random"),
    )
    assert [each.evict for each in query.operators[1:]] == ["least_recently_used", "random"]
    assert Query.model_validate_json(query.model_dump_json()) == query


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ('["origin"]', "@[]", "expected at least 1 in key, got 0"),
        ('"key": ["hour"], ', "", "missing key 'key'"),
        ('"random"', '@"fifo"', "expected one of least_recently_used, random as evict, got 'fifo'"),
        ("1000", "@0", "expected at least 1 as max_bytes, got 0"),
        (
            '"max_bytes"',
            '"name": @"flights", "max_bytes"',
            "view w: view v already has the name 'flights'",
        ),
        (
            '"name": "flights"',
            '"name": @"my flights"',
            "expected printable characters without spaces as name",
        ),
        ('"name": "flights"', '"name": @"a>b"', "view v: its name 'a>b' has a '>'"),
        ('"name": "flights"', f'"name": @"{"n" * 201}"', "view v: a name of 201 characters; expected 200 at"),
    ],
)
def test_a_mistake_in_a_view_is_reported(old: str, new: str, said: str):
    """Where the @ is, or at the view."""
    text = VIEWS.replace(old, new)
    before = text.partition("@" if "@" in text else '{"id": "w"')[0].split("\n")
    place = f"q.json:{len(before)}:{len(before[-1]) + 1}: "
    assert any(line.startswith(place + said) for line in mistakes(text.replace("@", ""))), mistakes(text)
