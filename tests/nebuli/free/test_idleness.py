from __future__ import annotations

from nebuli.free.idleness import Idleness


def test_a_source_is_idle_once_it_was_asked_in_vain_for_long_enough() -> None:
    idleness = Idleness({"a": 5.0, "b": 2.0})
    assert idleness.wait_s(100.0) is None
    assert not idleness.is_idle_now("a", 100.0)
    assert not idleness.is_idle_now("b", 101.0)
    assert idleness.wait_s(101.0) == 2.0
    assert idleness.is_idle_now("b", 103.0)
    assert idleness.wait_s(103.0) == 2.0
    assert not idleness.is_idle_now("b", 104.0)  # said already
    assert idleness.is_idle_now("a", 105.0)
    assert idleness.wait_s(105.0) is None


def test_who_had_something_begins_anew() -> None:
    idleness = Idleness({"a": 5.0})
    assert not idleness.is_idle_now("a", 100.0)
    idleness.active("a")
    assert not idleness.is_idle_now("a", 104.0)
    assert idleness.wait_s(108.0) == 1.0
    assert idleness.is_idle_now("a", 109.0)
    idleness.active("a")
    assert not idleness.is_idle_now("a", 110.0)
    assert idleness.is_idle_now("a", 115.0)


def test_others_are_never_idle() -> None:
    idleness = Idleness({"a": 5.0})
    assert not idleness.is_idle_now("c", 0.0)
    assert not idleness.is_idle_now("c", 1e9)
    assert idleness.wait_s(0.0) is None
