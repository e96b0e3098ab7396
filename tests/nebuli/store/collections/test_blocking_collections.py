"""Collections for programs without an event loop."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections import Counter
from inspect import signature
from pathlib import Path

import pyarrow as pa
import pytest

import nebuli
import nebuli.blocking
from nebuli.store.collections.errors import CollectionUnknown
from tests.nebuli.store.collections.rows import SCHEMA, Accumulated, added, batch, counted, zset


def test_it_has_all_that_the_other_has() -> None:
    """The same names, with the same parameters; but for the clock, which is of the event loop's."""
    for name, method in vars(nebuli.Collections).items():
        if (name.startswith("_") and name != "__init__") or name == "clock":
            continue
        here = getattr(nebuli.blocking.Collections, name)
        assert list(signature(here).parameters.values()) == list(signature(method).parameters.values()), name


def test_what_is_inserted_is_read_and_followed(folder: Path) -> None:
    with nebuli.blocking.Collections(folder, tick_s=0.05) as collections:
        collections.create("sales", SCHEMA, shards=2)
        first = collections.insert("sales", batch(("a", 1), ("b", 2)), producer="p", sequence=0)
        assert collections.insert("sales", batch(("a", 1), ("b", 2)), producer="p", sequence=0) == first
        last = collections.insert("sales", zset(("b", 2, -1)))
        assert collections.list() == ["sales"]
        assert collections.latest("sales") >= last
        assert counted(collections.snapshot("sales", first)) == Counter({("a", 1): 1, ("b", 2): 1})
        followed = Accumulated()
        spans = collections.subscribe("sales", first, snapshot=True)
        while followed.upper <= last:
            followed.take(next(spans))
        assert followed.now == Counter({("a", 1): 1, ("b", 2): 0})
        assert len(collections.describe("sales").holds) == 2, "the history, and that of the subscription"
        spans.close()
        collections.hold("sales", "mine", last)
        assert list(collections.describe("sales").holds) == ["history", "mine"]
        collections.release("sales", "mine")
        collections.drop("sales")
        with pytest.raises(CollectionUnknown):
            collections.snapshot("sales")


def test_renditions_are_made_written_and_handed_over_to(folder: Path) -> None:
    with nebuli.blocking.Collections(folder, tick_s=0.05) as collections:
        collections.create("sales", SCHEMA)
        at = collections.insert("sales", batch(("a", 1)))
        for name in ("r2", "r3"):
            collections.new_rendition("sales", rendition=name, shards=2)
        collections.write("sales", [(at, batch(("a", 2)))], 0, at + 1, rendition="r2")
        collections.drop_rendition("sales", "r3")
        handover = collections.handover("sales", "r2", built_from=at)
        assert counted(collections.snapshot("sales", handover - 1)) == Counter({("a", 1): 1})
        assert counted(collections.snapshot("sales", handover)) == Counter({("a", 2): 1})
        collections.keep_house()
        assert [each.name for each in collections.describe("sales").renditions] == ["r1", "r2"]


_WRITER = """
import sys, nebuli.blocking, pyarrow as pa
with nebuli.blocking.Collections(sys.argv[1]) as collections:
    for number in range(20):
        rows = pa.record_batch([["b"], [number]], names=["shop", "amount"])
        collections.insert("sales", rows, producer="b", sequence=number)
"""


@pytest.mark.processes
def test_threads_and_another_process_write_at_once_and_a_thread_follows(folder: Path) -> None:
    """ST-COL-1: it is told all that they have written, once."""
    followed = Accumulated()
    with nebuli.blocking.Collections(folder, tick_s=0.05) as collections:
        collections.create("sales", SCHEMA)
        start = collections.latest("sales")

        def insert(shop: str) -> None:
            for number in range(20):
                collections.insert("sales", batch((shop, number)))

        def follow() -> None:
            for span in collections.subscribe("sales", start):
                followed.take(span)
                if followed.now.total() == 60:
                    break

        threads = [threading.Thread(target=insert, args=(shop,)) for shop in "ac"]
        threads.append(threading.Thread(target=follow))
        for thread in threads:
            thread.start()
        subprocess.run([sys.executable, "-c", _WRITER, str(folder)], check=True, timeout=60)
        for thread in threads:
            thread.join(30)
            assert not thread.is_alive()
        assert followed.now == Counter({(shop, number): 1 for shop in "abc" for number in range(20)})
        assert counted(collections.snapshot("sales")) == added(
            [(at, rows) for at, rows in followed.changes.items()], followed.upper
        )


@pytest.mark.processes
def test_ctrl_c_ends_what_waits_and_leaves_no_hold(folder: Path) -> None:
    program = """
import sys, signal, nebuli.blocking, pyarrow as pa
with nebuli.blocking.Collections(sys.argv[1], tick_s=60) as collections:
    collections.create("sales", pa.schema([("shop", pa.string())]))
    signal.signal(signal.SIGALRM, signal.default_int_handler)
    signal.setitimer(signal.ITIMER_REAL, 0.5)
    try:
        for span in collections.subscribe("sales"):
            pass
    except KeyboardInterrupt:
        print(list(collections.describe("sales").holds))
"""
    ended = subprocess.run(
        [sys.executable, "-c", program, str(folder)],
        capture_output=True,
        encoding="utf-8",
        check=True,
        timeout=60,
    )
    assert (ended.stdout, ended.stderr) == ("['history']\n", "")


def test_what_is_closed_late_does_not_wait_for_ever(folder: Path) -> None:
    with nebuli.blocking.Collections(folder, tick_s=0.05) as collections:
        collections.create("sales", pa.schema([("shop", pa.string())]))
        spans = collections.subscribe("sales", snapshot=True)
        next(spans)
    spans.close()
