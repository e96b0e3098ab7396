"""The contract of an ordering, of all that we have: whoever brings another has it pass the same."""

from __future__ import annotations

import os
import select
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from nebuli.store.errors import Conflict, Locked, StoreClosed
from nebuli.store.ordering import Change, Ordering
from nebuli.store.ordering.postgres import PostgresOrdering
from nebuli.store.ordering.sqlite import SqliteOrdering
from tests.support.stores import fill, found

Make = Callable[[], Any]


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.processes)])
def make(request: pytest.FixtureRequest, tmp_path: Path) -> Make:
    """Makes one after the other of the same store's."""
    if request.param == "sqlite":
        return lambda: SqliteOrdering(tmp_path / "store")
    url = request.getfixturevalue("database")
    return lambda: PostgresOrdering(url)


@pytest.fixture
def ordering(make: Make) -> Iterator[Ordering]:
    made = make()
    made.open()
    yield made
    made.close()


@pytest.fixture
def another(make: Make, ordering: Ordering) -> Iterator[Ordering]:
    made = make()
    made.open()
    yield made
    made.close()


def test_a_log_has_its_entries_in_order_without_gaps(ordering: Ordering) -> None:
    fill(ordering, "a", b"x", b"", b"z")
    assert found(ordering, "a") == [(1, b"x"), (2, b""), (3, b"z")]
    assert found(ordering, "a", 2) == [(3, b"z")]
    assert found(ordering, "a", 3) == []
    assert ordering.heads(["a", "b"]) == {"a": 3, "b": 0}
    assert found(ordering, "b") == []


def test_all_changes_are_made_or_none(ordering: Ordering, another: Ordering) -> None:
    fill(ordering, "a", b"x")
    with pytest.raises(Conflict) as raised:
        another.append([Change("new", 0, b"1"), Change("a", 0, b"2")])
    assert raised.value.found == {"new": 0, "a": 1}
    assert another.heads(["a", "new"]) == {"a": 1, "new": 0}
    another.append([Change("new", 0, b"1"), Change("a", 1, b"2")])
    assert ordering.heads(["a", "new"]) == {"a": 2, "new": 1}
    assert found(ordering, "new") == [(1, b"1")]


def test_a_log_that_was_truncated_keeps_its_head(ordering: Ordering, another: Ordering) -> None:
    fill(ordering, "a", b"1", b"2", b"3")
    fill(ordering, "b", b"1")
    ordering.truncate("a", 3)
    assert found(another, "a") == [(3, b"3")]
    ordering.truncate("a", 100)
    assert found(another, "a") == [(3, b"3")]
    assert found(another, "b") == [(1, b"1")]
    ordering.truncate("nothing", 3)
    fill(another, "a", b"4")
    assert found(ordering, "a") == [(3, b"3"), (4, b"4")]


def test_keys_are_listed_in_order(ordering: Ordering) -> None:
    for key in ("b/2", "a%", "b/1", "B/1"):
        fill(ordering, key, b"")
    assert ordering.keys("b/") == ["b/1", "b/2"]
    assert ordering.keys("a%") == ["a%"]
    assert ordering.keys("") == ["B/1", "a%", "b/1", "b/2"]


def test_it_is_known_whether_others_have_appended(ordering: Ordering, another: Ordering) -> None:
    ordering.unchanged()
    assert ordering.unchanged()
    fill(ordering, "a", b"by itself")
    assert ordering.unchanged()
    fill(another, "a", b"by another")
    assert not ordering.unchanged()
    assert ordering.unchanged()


def test_a_bell_rings_at_every_append_of_any(ordering: Ordering, another: Ordering) -> None:
    bell = ordering.bell()
    for appending in (ordering, another):
        assert select.select([bell], [], [], 0)[0] == []
        fill(appending, "a", b"x")
        assert select.select([bell], [], [], 10)[0] == [bell]
        bell.silence()
    bell.close()


def test_a_lock_is_one_s_at_a_time(ordering: Ordering, another: Ordering) -> None:
    lock = ordering.lock("state/a.b/c")
    for each in (ordering, another):
        with pytest.raises(Locked, match=f"state/a.b/c is open already, by process {os.getpid()}[: ]"):
            each.lock("state/a.b/c")
    another.lock("state/a.b").close()
    lock.close()
    another.lock("state/a.b/c").close()


def test_nothing_is_done_once_it_is_closed(ordering: Ordering) -> None:
    ordering.close()
    with pytest.raises(StoreClosed):
        ordering.heads(["a"])
    ordering.open()
    assert ordering.heads(["a"]) == {"a": 0}
