"""Operators in shards as operators of a plan: what is divided, what stays where it is, and how all of it is cut."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from placement import Decomposition, Fragment, decompose, place, planned_of
from placement.plan import MergerOperator, NetworkSink, NetworkSource, SharderOperator
from tests.placement.partial.test_node_plan import ONE, TWO, nodes, with_bases
from tests.support.documents import op, query


def grouped(id_: str, input_: str, *by: str, into: int = 2, **shard: Any) -> dict[str, object]:
    return op(
        "aggregate", id_, input=input_, by=by, aggregates={"n": "count(*)"}, shard={"into": into, **shard}
    )


def view(input_: str, *key: str) -> dict[str, object]:
    return op("view", "view", input=input_, key=key, node="C:1")


def ids(*operators: dict[str, object]) -> list[str]:
    return [node.id for node in nodes(*operators, bases=("one", "two"))]


def test_an_operator_is_there_once_for_each_shard_below_a_sharder_and_above_a_merger():
    found = {node.id: node for node in nodes(ONE, grouped("n", "one", "k", "v", by=["v"]), view("n", "k"))}
    assert list(found) == ["one", "one>shard", "n>0", "n>1", "n", "view"]
    assert found["one>shard"] == SharderOperator(
        id="one>shard", input="one", by=("v",), shards=("n>0", "n>1")
    )
    assert found["n"] == MergerOperator(id="n", inputs=("n>0", "n>1"), by=("v",))
    assert found["n>1"].input == "one>shard"


@pytest.mark.parametrize("by", [{}, {"by": ["v", "k"]}])
def test_what_is_divided_alike_is_in_the_same_shards(by: dict[str, list[str]]):
    """So are a filter and a project between, which may call the columns something else."""
    between = [
        op("filter", "f", input="n", predicate="n > 1"),
        op("project", "p", input="f", columns={"v": "k", "k": "v", "n": "n"}),
    ]
    groups = grouped("n", "one", "k", "v"), *between, grouped("m", "p", "k", "v", **by)
    assert ids(ONE, *groups, view("m", "k")) == [
        *("one", "one>shard"),
        *(f"{operator}>{shard}" for operator in "nfpm" for shard in (0, 1)),
        *("m", "view"),
    ]


@pytest.mark.parametrize(
    "above",
    [
        grouped("n", "one", "k", "v", by=["v"]),  # what m has together may be in several shards
        grouped("n", "one", "k", into=3),  # other numbers of shards
    ],
)
def test_what_is_divided_otherwise_is_divided_anew(above: dict[str, object]):
    found = ids(ONE, above, grouped("m", "n", "k"), view("m", "k"))
    shards = above["shard"]["into"]  # type: ignore[index] # it has one
    assert found[2:] == [
        *(f"n>{shard}" for shard in range(shards)),
        *(f"n>{shard}>shard" for shard in range(shards)),
        *("n>to>0", "n>to>1", "m>0", "m>1", "m", "view"),
    ]


def test_shards_whose_columns_a_project_drops_are_all_asked():
    found = nodes(
        ONE,
        grouped("n", "one", "k", "v", by=["v"]),
        op("project", "p", input="n", columns={"k": "k", "n": "n"}),
        view("p", "k"),
    )
    assert next(node for node in found if node.id == "p") == MergerOperator(id="p", inputs=("p>0", "p>1"))


def test_a_join_takes_its_inputs_as_one_of_them_is_divided_and_names_columns_as_without_shards():
    """``view`` is by a column of one input, which has that input's name."""
    join = op("join", "j", inputs=["n", "two"], on=["k"])
    alone = [ONE, TWO, op("distinct", "n", input="one"), join, view("j", "n.v")]
    in_shards = [
        ONE,
        TWO,
        op("distinct", "n", input="one", shard={"into": 2, "by": ["k"]}),
        op("join", "j", inputs=["n", "two"], on=["k"], shard={"into": 2}),
        view("j", "n.v"),
    ]
    assert ids(*in_shards) == [
        *("one", "one>shard", "n>0", "n>1", "two", "two>shard", "j>0", "j>1", "j", "view")
    ]
    schemas = [planned_of(cut(*each).fragments[0]).schemas["view"] for each in (alone, in_shards)]
    assert schemas[0] == schemas[1]
    assert [column.name for column in schemas[0]] == ["k", "n.v", "two.v"]


def cut(*operators: dict[str, object], capacity: dict[str, int] | None = None) -> Decomposition:
    return decompose(place(query(*operators), with_bases("one", "two", capacity=capacity)))


def described(fragments: tuple[Fragment, ...]) -> list[tuple[str, str, str]]:
    return [(each.id, each.node, " ".join(op.id for op in each.operators)) for each in fragments]


def test_each_shard_is_a_fragment_at_the_node_of_its_operator():
    """With a channel from what feeds it, though that is on the same node."""
    found = cut(ONE, grouped("n", "one", "k"), view("n", "k"))
    assert described(found.fragments) == [
        ("q/one", "A:1", "one one>shard one>shard>0 one>shard>1"),
        ("q/n>0", "A:1", "one>shard n>0 n>0>"),
        ("q/n>1", "A:1", "one>shard n>1 n>1>"),
        ("q/view", "C:1", "n>0 n>1 n view"),
    ]
    assert [(each.id, each.start, each.end) for each in found.channels] == [
        ("q/one>n>0", "A:1", "A:1"),
        ("q/one>n>1", "A:1", "A:1"),
        ("q/n>0>view", "A:1", "C:1"),
        ("q/n>1>view", "A:1", "C:1"),
    ]


@pytest.mark.parametrize("capacity", [None, {"A": 0, "B": 0, "C": 9}, {"A": 2, "B": 1, "C": 9}])
def test_channels_of_shards_have_one_writer_and_one_reader_each(capacity: dict[str, int] | None):
    """Wherever the operators are, and however often rows are divided; and all fragments plan the same."""
    long = "x" * 200
    operators = [
        ONE,
        TWO,
        grouped("n", "one", "k", "v", by=["v"], into=3),
        op("filter", long, input="n", predicate="n > 1"),
        grouped("m", long, "k", into=2),
        op("distinct", "d", input="two", shard={"into": 2, "by": ["k"]}),
        op("join", "j", inputs=["m", "d"], on=["k"], shard={"into": 2}),
        view("j", "k"),
    ]
    found = cut(*operators, capacity=capacity)
    ends = Counter(
        (type(operator), operator.channel)
        for fragment in found.fragments
        for operator in fragment.operators
        if isinstance(operator, NetworkSource | NetworkSink)
    )
    names = {channel.id for channel in found.channels}
    assert len(names) == len(found.channels)
    assert ends == Counter({(kind, name): 1 for kind in (NetworkSource, NetworkSink) for name in names})
    assert len({fragment.id for fragment in found.fragments}) == len(found.fragments)
    plans = [planned_of(each) for each in found.fragments]
    assert all(plan == plans[0] for plan in plans)
    inner = [
        each.id
        for fragment in found.fragments
        for each in fragment.operators
        if not isinstance(each, NetworkSource | NetworkSink)
    ]
    assert sorted(inner) == sorted(plans[0].nodes)
    received = [Fragment.model_validate_json(each.model_dump_json(by_alias=True)) for each in found.fragments]
    assert received == list(found.fragments)


def test_policies_of_an_operator_are_those_of_its_shards():
    operators = [ONE, grouped("n", "one", "k"), view("n", "k")]
    written = query(*operators).model_dump(mode="json")
    written["channels"] = {"of": {"n": {"buffer": {"max_bytes": 4_000_000}}}}
    found = decompose(place(type(query(*operators)).model_validate(written), with_bases("one")))
    sizes = {
        operator.id: operator.buffer.max_bytes
        for fragment in found.fragments
        for operator in fragment.operators
        if isinstance(operator, NetworkSink) and operator.buffer is not None
    }
    assert sizes["n>0>"] == sizes["n>1>"] == 4_000_000
    assert sizes.get("one>shard>0") != 4_000_000
