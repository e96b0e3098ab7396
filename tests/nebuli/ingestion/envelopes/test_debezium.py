"""Changes of rows come to what a dict has after them, at each time, and also after a new begin at any."""

from collections import Counter
from typing import Any

import pytest
from hypothesis import given, settings

from nebuli.ingestion.decoding.json_decoder import JsonDecoder
from nebuli.ingestion.envelopes.debezium import Debezium
from nebuli.ingestion.errors import MessageInvalid
from tests.nebuli.ingestion.envelopes.debezium_model import (
    SCHEMA,
    TIMES,
    Event,
    Model,
    delete,
    put,
    row,
    settings_of,
)
from tests.nebuli.ingestion.of_messages import payloads, rows_of
from tests.nebuli.ingestion.zsets import contents, table_of


def debezium() -> Debezium:
    return Debezium(SCHEMA, settings_of(), source="orders")


def applied(envelope: Debezium, *events: Event) -> Counter[tuple[object, ...]]:
    return contents(envelope.apply({"": [rows_of(envelope.wants, events, lower=7, part="p")]}).output)


def test_an_update_of_the_key_takes_the_old_row_away() -> None:
    envelope = debezium()
    applied(envelope, put("c", row(1, "x", 1.0)))
    assert applied(envelope, put("u", row(2, "x", 1.0), row(1))) == {(1, "x", 1.0): -1, (2, "x", 1.0): 1}


def test_what_was_left_out_as_unchanged_stays_also_under_another_key_and_in_one_time() -> None:
    envelope = debezium()
    applied(envelope, put("r", row(1, "long", 1.0)))
    change = applied(
        envelope,
        put("u", row(2, None, 2.0), row(1), unchanged=["s"]),
        put("u", row(2, "__debezium_unavailable_value", 3.0)),
    )
    assert change == {(1, "long", 1.0): -1, (2, "long", 3.0): 1}


def test_all_rows_go_where_the_table_is_truncated_and_what_follows_stays() -> None:
    envelope = debezium()
    applied(envelope, put("c", row(1)), put("c", row(2)))
    truncate: Event = {"op": "t", "before": None, "after": None}
    assert applied(envelope, put("c", row(3)), truncate, put("c", row(2))) == {(1, None, None): -1}
    assert applied(envelope, truncate) == {(2, None, None): -1}


def test_what_comes_twice_changes_nothing() -> None:
    envelope = debezium()
    events = [put("c", row(1, "x", 1.0)), put("u", row(2, "x", 1.0), row(1)), delete(2), put("c", row(3))]
    assert applied(envelope, *events) == {(3, None, None): 1}
    assert applied(envelope, *events) == {}
    assert applied(envelope, events[-1]) == {}


@pytest.mark.parametrize(
    ("event", "complaint"),
    [
        ({"op": "x", "before": None, "after": row(1)}, "op 'x'; expected an op of c, r, u, d or t"),
        ({"before": None, "after": row(1)}, "neither op nor status"),
        (put("c", {"k": 1}) | {"after": None}, "op 'c' has no after"),
        (delete(1) | {"before": None}, "op 'd' has no before"),
        (put("u", row(None)), "column k of the key is null"),
        (put("u", row(1), {"s": "x"}), "column k of the key is null"),
        (put("u", row(5), unchanged=["s"]), "column s is left out as unchanged, but no earlier row"),
        (put("u", row(5), row(4), unchanged=["s"]), "column s is left out as unchanged, but no earlier row"),
    ],
)
def test_a_change_that_does_not_say_all_is_refused_and_changes_nothing(event: Event, complaint: str) -> None:
    envelope = debezium()
    applied(envelope, put("c", row(1)))
    truncate: Event = {"op": "t", "before": None, "after": None}
    with pytest.raises(MessageInvalid) as caught:
        applied(envelope, put("c", row(9)), truncate, event)
    assert str(caught.value).startswith(f"orders: the message at 9 of p: {complaint}")
    assert applied(envelope, delete(1), delete(9)) == {(1, None, None): -1}


def test_messages_about_transactions_are_passed_over() -> None:
    assert applied(debezium(), {"status": "BEGIN", "id": "7"}, put("c", row(1))) == {(1, None, None): 1}


def test_json_of_debezium_is_decoded_to_what_it_wants() -> None:
    """From its documentation, of Postgres, with other names."""
    envelope = debezium()
    lines = [
        """{"before":null,"after":{"k":1,"s":"a","v":2},"source":{"version":"3.0","snapshot":"last"},"op":"r",
            "ts_ms":1559033904863,"transaction":null}""",
        """{"before":{"k":1,"s":null,"v":null},"after":null,"source":{"lsn":24023128},"op":"d","ts_ms":1,
            "transaction":{"id":"571:53195832","total_order":1,"data_collection_order":1}}""",
        "",
        """{"status":"END","id":"571:53195832","ts_ms":1486500577691,"event_count":1,
            "data_collections":[{"data_collection":"s1.a","event_count":1}]}""",
    ]
    made = JsonDecoder(envelope.wants, source="s").decode(payloads([each.encode() for each in lines]), {})
    first, second = made.below(1), made.since(1)
    assert contents(envelope.apply({"": [first]}).output) == {(1, "a", 2.0): 1}
    assert contents(envelope.apply({"": [second]}).output) == {(1, "a", 2.0): -1}
    assert second.rows.column("transaction").to_pylist()[0] == {"id": "571:53195832", "total_order": 1}
    assert second.rows.column("event_count").to_pylist() == [None, 1]


@given(times=TIMES)
@settings(deadline=None, max_examples=200)
def test_it_is_a_dict_at_each_time_and_after_a_new_begin_at_any(times: list[list[Event]]) -> None:
    envelope, model = debezium(), Model()
    total: Counter[Any] = Counter()
    for at, events in enumerate(times):
        again = debezium()
        again.rehydrate(table_of(total, SCHEMA), {})
        messages = {"": [rows_of(envelope.wants, events, lower=at)]}
        change = contents(envelope.apply(messages).output)
        assert contents(again.apply(messages).output) == change
        for event in events:
            model.apply(event)
        total = Counter(
            {each: total[each] + change[each] for each in total | change if total[each] + change[each]}
        )
        assert total == model.contents
