"""What a worker process keeps from one task to the next."""

from __future__ import annotations

import os
import time

import pytest

from spark_bridge.clients import Pool


@pytest.fixture
def closed() -> list[str]:
    return []


@pytest.fixture
def pool(closed) -> Pool[str]:
    return Pool(closed.append, idle_s=60.0)


def never() -> str:
    raise AssertionError("there is one already")


def test_what_was_used_is_used_again(pool, closed):
    """SP-API-1."""
    with pool.lend("a", lambda: "one") as thing:
        assert thing == "one"
    with pool.lend("a", never) as thing:
        assert thing == "one"
    assert closed == []


def test_two_at_once_have_one_each(pool):
    with pool.lend("a", lambda: "one") as one, pool.lend("a", lambda: "two") as two:
        assert (one, two) == ("one", "two")
    with pool.lend("a", never), pool.lend("a", never):
        pass


def test_who_leads_elsewhere_is_another(pool):
    with pool.lend("a", lambda: "one"):
        pass
    with pool.lend("b", lambda: "two") as thing:
        assert thing == "two"


def test_what_failed_is_not_used_again(pool, closed):
    with pytest.raises(ValueError, match="x"), pool.lend("a", lambda: "one"):
        raise ValueError("x")
    assert closed == ["one"]
    with pool.lend("a", lambda: "two") as thing:
        assert thing == "two"


def test_what_idles_is_closed(pool, closed, monkeypatch):
    """SP-API-1."""
    for name in ("a", "b"):
        with pool.lend(name, lambda name=name: name):
            pass
    later = time.monotonic() + 50
    monkeypatch.setattr(time, "monotonic", lambda: later)
    with pool.lend("b", never):
        pass
    monkeypatch.setattr(time, "monotonic", lambda: later + 50)
    with pool.lend("b", never):
        pass
    assert closed == ["a"]


def test_a_fork_has_nothing_of_its_parent(pool, closed):
    """SP-API-1: and closes nothing of it."""
    with pool.lend("a", lambda: "parent's"):
        pass
    child = os.fork()
    if child == 0:
        with pool.lend("a", lambda: "child's") as thing:
            os._exit(0 if thing == "child's" and not closed else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    with pool.lend("a", never) as thing:
        assert thing == "parent's"
