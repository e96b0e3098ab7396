"""What a worker process keeps from one task to the next."""

from __future__ import annotations

import asyncio
import os
import time

import pyarrow as pa
import pytest

from netchannel import ReceiverServer, RetainPolicy, SenderServer, StagingPolicy
from spark_bridge.clients import Pool, group_client, reader
from spark_bridge.options import read_options
from tests.support.ports import free_addresses
from tests.support.waiting import wait_for


@pytest.fixture
def closed() -> list[str]:
    return []


@pytest.fixture
def pool(closed) -> Pool[str]:
    return Pool(closed.append, lambda thing: True, idle_s=60.0)


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


@pytest.mark.processes
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


def test_what_has_given_up_meanwhile_is_closed_and_not_lent(closed):
    alive = {"one", "two"}
    pool = Pool(closed.append, lambda thing: thing in alive)
    with pool.lend("a", lambda: "two"), pool.lend("a", lambda: "one"):
        pass
    alive.remove("two")
    with pool.lend("a", never) as thing, pool.lend("a", lambda: "three"):
        assert thing == "one"
    assert closed == ["two"]


@pytest.mark.long
async def test_a_server_that_was_away_between_two_batches_is_asked_anew(tmp_path):
    """SP-API-1: for longer than the timeout; by who reads and by who commits."""
    (address,) = free_addresses(1)
    given = {"endpoint": address, "channels": "rows", "connectTimeout": "3"}
    connection = read_options(given, "streaming read").connection
    (source,) = connection.sources
    used = []

    def ask(what) -> None:
        with what(connection, source) as lent:
            assert lent.heads(timeout=60) if what is reader else lent.last_epoch("app") is None
            used.append(lent)

    for what, policy in (
        (reader, RetainPolicy()),
        (group_client, StagingPolicy(tmp_path)),
    ):
        for _ in range(2):
            async with ReceiverServer(address) as receiver, SenderServer() as sender:
                if isinstance(policy, StagingPolicy):
                    receiver.register_staged_channel("rows", policy, codec="bytes")
                else:
                    receiver.retain_channel("rows", policy)
                if what is reader:
                    outbox = sender.register_channel("rows", address)
                    await outbox.send(pa.RecordBatch.from_pydict({"id": [1]}))
                await asyncio.to_thread(ask, what)
            await asyncio.to_thread(wait_for, lambda: used[-1].error, "that it gives up")
