"""Notes of a place, in files or in a schema."""

from __future__ import annotations

import pytest

from nebuli.store import Store
from nebuli.store.notes import Notes
from nebuli.store.store_url import StorePlace, StoreUrl


@pytest.fixture(params=["folder", pytest.param("url", marks=pytest.mark.processes)])
def at(request: pytest.FixtureRequest) -> StorePlace:
    place = request.getfixturevalue(request.param)
    Store.make(place)
    return place


def test_a_note_is_what_was_written_last(at: StorePlace) -> None:
    notes = Notes(at)
    assert notes.read("a.json") is None
    for said in (b"first", b"second", b"x" * 100_000):
        notes.write("a.json", said)
        assert Notes(at).read("a.json") == said
    notes.write("b.txt", b"other")
    notes.write("10.json", b"ten")
    assert notes.names(".json") == ["10.json", "a.json"]


def test_what_was_forgotten_is_not_there_and_can_be_written_again(at: StorePlace) -> None:
    notes = Notes(at)
    notes.write("a", b"first")
    notes.forget(["a", "never"])
    assert notes.read("a") is None
    Notes(at).forget(["a"])
    notes = Notes(at)
    notes.write("a", b"second")
    assert Notes(at).read("a") == b"second"


def test_notes_are_no_shards_and_go_with_their_place(at: StorePlace) -> None:
    Notes(at).write("a", b"said")
    Store.make(at)
    Store.remove(at)
    assert not Store.is_at(at)
    Store.make(at)
    assert Notes(at).read("a") is None


@pytest.mark.processes
def test_of_two_owners_at_a_url_the_second_one_stays(url: StoreUrl) -> None:
    """The first has lost its lock, and does not know it."""
    first, second = Notes(url), Notes(url)
    first.write("a", b"by the first")
    assert second.read("a") == b"by the first"
    second.write("a", b"by the second")
    with pytest.raises(OSError, match="another member appends to a of postgresql://"):
        first.write("a", b"by the first again")
    assert Notes(url).read("a") == b"by the second"
