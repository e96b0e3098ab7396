"""Changes wait until their transaction is whole; a model that looks at all that has come says when that is."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nebuli.ingestion.envelopes import transactions
from nebuli.ingestion.envelopes.envelope import Changes
from nebuli.ingestion.envelopes.transactions import STATE, Transactions
from nebuli.ingestion.errors import MessageInvalid
from tests.nebuli.ingestion.envelopes.debezium_model import (
    SCHEMA,
    Event,
    Model,
    delete,
    put,
    row,
    settings_of,
)
from tests.nebuli.ingestion.of_messages import rows_of
from tests.nebuli.ingestion.zsets import contents, table_of

Rows = Counter[tuple[object, ...]]


def begin(name: str) -> Event:
    return {"status": "BEGIN", "id": name}


def end(name: str, count: int) -> Event:
    return {"status": "END", "id": name, "event_count": count}


def abort(name: str) -> Event:
    return {"status": "ABORT", "id": name}


def of(name: str, order: int | None, event: Event) -> Event:
    return {**event, "transaction": {"id": name, "total_order": order}}


class Driven:
    """An envelope with what it has put out and keeps, which at each time does what one does that begins anew there."""

    def __init__(self, variant: str = "complete") -> None:
        self.variant = variant
        self.envelope = self._anew()
        self.output: Rows = Counter()
        self.state: Rows = Counter()
        self._at = 0

    def _anew(self) -> Transactions:
        return Transactions(SCHEMA, settings_of(transactions=self.variant), source="orders")

    def apply(self, data: Sequence[Event], metadata: Sequence[Event] = ()) -> Rows:
        self._at += 100
        wants = self.envelope.wants
        messages = {
            "data": [rows_of(wants, data, lower=self._at, part="p")],
            "metadata": [rows_of(wants, metadata, lower=self._at)],
        }
        again = self._anew()
        again.rehydrate(table_of(self.output, SCHEMA), {STATE: table_of(self.state, again.states[STATE])})
        changes, same = self.envelope.apply(messages), again.apply(messages)
        assert _of(changes) == _of(same)
        change, state = _of(changes)
        self.output, self.state = _sum(self.output, change), _sum(self.state, state)
        assert set(self.output.values()) | set(self.state.values()) <= {1}
        return change


def _of(changes: Changes) -> tuple[Rows, Rows]:
    assert set(changes.states) <= {STATE}
    return contents(changes.output), contents(changes.states.get(STATE, []))


def _sum(some: Rows, more: Rows) -> Rows:
    return Counter({each: some[each] + more[each] for each in some | more if some[each] + more[each]})


def waiting(driven: Driven) -> list[tuple[object, object]]:
    return sorted((each[2], each[1]) for each in driven.state if each[1] != "over")


def test_a_transaction_is_there_when_its_end_and_all_of_its_rows_are() -> None:
    """ST-ING-20."""
    driven = Driven()
    assert driven.apply([begin("a"), of("a", 1, put("c", row(1)))]) == {}
    assert waiting(driven) == [("a", "begin"), ("a", "row")]
    assert driven.apply([end("a", 2)]) == {}
    assert driven.apply([of("a", 2, put("c", row(2)))]) == {(1, None, None): 1, (2, None, None): 1}
    assert waiting(driven) == []


def test_a_later_one_does_not_wait_for_an_earlier_one_unless_they_are_ordered() -> None:
    """ST-ING-20, ST-ING-21."""
    times = [
        [begin("a"), of("a", 1, put("c", row(1, "a")))],
        [begin("b"), of("b", 1, put("u", row(1, "b"))), end("b", 1)],
        [of("b", 1, put("u", row(1, "b"))), end("b", 1)],
        [end("a", 1)],
    ]
    complete, ordered = Driven("complete"), Driven("ordered")
    assert [complete.apply(each) for each in times] == [
        {},
        {(1, "b", None): 1},
        {},
        {(1, "b", None): -1, (1, "a", None): 1},
    ]
    assert [ordered.apply(each) for each in times] == [{}, {}, {}, {(1, "b", None): 1}]


def test_of_one_time_they_go_on_by_their_ends_or_where_they_are_ordered_by_their_begins() -> None:
    events = [
        *[begin("a"), begin("b")],
        *[of("b", 1, put("c", row(1, "b"))), of("a", 1, put("c", row(1, "a")))],
        *[end("b", 1), end("a", 1)],
    ]
    assert Driven("complete").apply(events) == {(1, "a", None): 1}
    assert Driven("ordered").apply(events) == {(1, "b", None): 1}


def test_metadata_may_come_from_a_source_of_its_own_before_or_after() -> None:
    driven = Driven("ordered")
    assert driven.apply([], [begin("a"), end("a", 1), begin("b"), end("b", 1)]) == {}
    assert driven.apply([of("b", 1, put("c", row(2)))]) == {}
    assert driven.apply([of("a", 1, put("c", row(1)))]) == {(1, None, None): 1, (2, None, None): 1}


def test_what_was_aborted_is_dropped_also_what_comes_of_it_later_and_holds_nobody_up() -> None:
    driven = Driven("ordered")
    driven.apply(
        [begin("a"), of("a", 1, put("c", row(1))), begin("b"), of("b", 1, put("c", row(2))), end("b", 1)]
    )
    assert driven.apply([abort("a")]) == {(2, None, None): 1}
    assert driven.apply([of("a", 2, put("c", row(3)))]) == {}
    assert waiting(driven) == []


def test_a_row_without_a_transaction_goes_on_at_once() -> None:
    driven = Driven("ordered")
    driven.apply([begin("a")])
    assert driven.apply([put("r", row(1)), {**put("r", row(2)), "transaction": {"id": None}}]) == {
        (1, None, None): 1,
        (2, None, None): 1,
    }


def test_rows_of_one_are_in_their_total_order() -> None:
    driven = Driven()
    driven.apply([of("a", 3, put("c", row(1, "last"))), of("a", 1, put("c", row(1, "first")))])
    assert driven.apply([of("a", 2, delete(1)), end("a", 3)]) == {(1, "last", None): 1}


def test_one_without_rows_is_over_when_it_ends() -> None:
    driven = Driven("ordered")
    assert driven.apply([begin("a"), end("a", 0), begin("b"), of("b", 1, put("c", row(1))), end("b", 1)])
    assert waiting(driven) == []


def test_those_that_are_over_are_forgotten_after_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transactions, "_REMEMBERED", 2)
    driven = Driven()
    for name in "abcd":
        driven.apply([of(name, 1, put("c", row(1, name))), end(name, 1)])
    assert sorted(each[2] for each in driven.state) == ["c", "d"]
    driven.apply([end(name, 0) for name in "efg"])
    assert sorted(each[2] for each in driven.state) == ["f", "g"]


@pytest.mark.parametrize(
    ("event", "complaint"),
    [
        ({"status": "PAUSE", "id": "a"}, "status 'PAUSE', id 'a'"),
        ({"status": "BEGIN"}, "status 'BEGIN', id None"),
        (
            {"status": "END", "id": "a"},
            "and event_count None; expected an id, and the status BEGIN, ABORT, or END with an event_count",
        ),
        (end("a", 3), "transaction a ends with event_count 3, but an earlier END has event_count 2"),
        (of("a", 2, put("c", {"k": None})), "column k of the key is null"),
        (of("a", 1, {"op": "x"}), "op 'x'"),
        (
            of("b", 2, put("c", row(4))),
            "transaction b has 2 rows, but its END announces 1; expected at most 1 rows",
        ),
        (end("c", 0), "transaction c has 1 rows, but its END announces 0"),
    ],
)
def test_what_does_not_go_together_is_refused_and_changes_nothing(event: Event, complaint: str) -> None:
    driven = Driven()
    driven.apply([end("a", 2), of("a", 1, put("c", row(1))), of("c", 1, put("c", row(5)))])
    with pytest.raises(MessageInvalid) as caught:
        driven.apply([of("b", 1, put("c", row(3))), event], [end("b", 1)])
    assert str(caught.value).startswith("orders: the message at 201 of p: ")
    assert complaint in str(caught.value)
    assert driven.apply([of("a", 2, put("c", row(2)))]) == {(1, None, None): 1, (2, None, None): 1}


def test_all_that_a_change_has_is_kept_while_it_waits() -> None:
    driven = Driven()
    driven.apply(
        [put("r", row(1, "long", 0.5)), of("a", 1, put("u", row(2, None, 1.5), row(1), unchanged=["s"]))]
    )
    assert driven.apply([end("a", 1)]) == {(1, "long", 0.5): -1, (2, "long", 1.5): 1}


def test_nothing_of_a_time_is_kept_if_what_goes_on_is_refused() -> None:
    driven = Driven()
    driven.apply([of("a", 1, put("u", row(1), unchanged=["s"]))])
    with pytest.raises(MessageInvalid, match="orders: the message at 100 of p: column s is left out"):
        driven.apply([end("a", 1)])
    assert driven.apply([put("c", row(1, "x")), end("a", 1)]) == {(1, "x", None): 1}


@dataclass
class Whole:
    """What is whole when, by looking at all things that have come, one by one."""

    is_ordered: bool
    output: Model = field(default_factory=Model)
    things: dict[str, list[tuple[int, Event]]] = field(default_factory=dict)
    over: set[str] = field(default_factory=set)
    number: int = 0

    def apply(self, events: Sequence[Event]) -> None:
        plain: list[tuple[int, int, Event]] = []
        for event in events:
            self.number += 1
            name = event["id"] if "status" in event else (event.get("transaction") or {}).get("id")
            if name is None:
                plain.append((self.number, 0, event))
            elif name not in self.over:
                self.things.setdefault(name, []).append((self.number, event))
        for name in [
            name for name, things in self.things.items() if any(e.get("status") == "ABORT" for _, e in things)
        ]:
            self.over.add(name)
            del self.things[name]
        for name in sorted(self.things, key=lambda each: self.things[each][0][0]):
            rows = {e["transaction"]["total_order"]: e for _, e in self.things[name] if "op" in e}
            ends = [(number, e["event_count"]) for number, e in self.things[name] if e.get("status") == "END"]
            if ends and len(rows) == ends[0][1]:
                number = self.things[name][0][0] if self.is_ordered else ends[0][0]
                plain += [(number, order, event) for order, event in rows.items()]
                self.over.add(name)
                del self.things[name]
            elif self.is_ordered:
                break
        for *_, event in sorted(plain, key=lambda each: each[:2]):
            self.output.apply(event)


CHANGES = st.one_of(
    st.builds(put, st.sampled_from(["c", "u"]), st.builds(row, st.integers(0, 2), st.sampled_from("xyz"))),
    st.builds(delete, st.integers(0, 2)),
    st.just({"op": "t", "before": None, "after": None}),
)


@st.composite
def histories(draw: st.DrawFn) -> list[Event]:
    """Transactions whose things come in any order, some of them twice, some never."""
    events: list[Event] = [
        put("r", row(9, text)) for text in draw(st.lists(st.sampled_from("xy"), max_size=2))
    ]
    for name in "abcd"[: draw(st.integers(1, 4))]:
        changes = draw(st.lists(CHANGES, max_size=3))
        events += [of(name, order, each) for order, each in enumerate(changes, 1)]
        events.append(begin(name))
        ends = st.sampled_from([end(name, len(changes))] * 4 + [abort(name), begin(name)])
        events.append(draw(ends))
    events += draw(st.lists(st.sampled_from(events), max_size=4))
    return draw(st.permutations(events))


@pytest.mark.parametrize("variant", ["complete", "ordered"])
@given(events=histories(), cuts=st.lists(st.integers(0, 24), max_size=6), apart=st.booleans())
@settings(deadline=None, max_examples=150)
def test_what_is_whole_when_is_what_the_model_says_from_wherever_one_begins(
    variant: str, events: list[Event], cuts: list[int], apart: bool
) -> None:
    """ST-ING-19, ST-ING-20, ST-ING-21: at each time an envelope that begins anew there does the same."""
    driven, model = Driven(variant), Whole(variant == "ordered")
    bounds = sorted({0, *cuts, len(events)} & {*range(len(events) + 1)})
    for low, high in pairwise(bounds):
        some = events[low:high]
        data = [each for each in some if not apart or "op" in each]
        metadata = [each for each in some if apart and "op" not in each]
        driven.apply(data, metadata)
        model.apply([*data, *metadata])
        assert driven.output == model.output.contents


def test_the_state_can_be_a_collection() -> None:
    """Its columns are of types that rows are hashed by, and of a row that waits each is there."""
    state = Driven().envelope.states[STATE]
    assert not any(pa.types.is_nested(type_) for type_ in state.types)
    assert {"before.k", "after.k", "before.s", "after.s", "before.v", "after.v"} <= {*state.names}
