"""`nebuli.Views` against a graph of this process, which a thread moves as a fragment does."""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from typing import Any

import pyarrow as pa
import pytest

import nebuli
import nebuli.blocking
import netchannel
from nebuli.dataflow.partial import Base, PartialGraph, PartialNode, View
from nebuli.dataflow.types import arrow_schema
from nebuli.dataflow.zset import weighted
from nebuli.node.parts.view_reads import ViewReads
from nebuli.rpc.status import ViewStatus
from nebuli.views import (
    LookupTimedOut,
    RunsFree,
    UnknownView,
    ViewDenied,
    ViewFailed,
    Views,
    ViewsClosed,
    ViewUnreachable,
    WrongKey,
)
from nebuli.views.view_calls import LISTING, listed_bytes, service_of
from placement.plan import AggregateOperator
from tests.support.ports import free_addresses
from topology import Column, DataType

COLUMNS = (
    Column(name="shop", type=DataType.STRING),
    Column(name="hour", type=DataType.INT64),
    Column(name="amount", type=DataType.INT64),
)
SALES = [("a", 1, 10), ("a", 1, 20), ("a", 2, 5), ("b", 1, 7)]
AGGREGATES = {"sales": "count(*)", "total": "sum(amount)"}
NODES: list[PartialNode] = [
    Base("sales", COLUMNS),
    View("raw", "sales", ("shop",)),
    AggregateOperator(id="by_shop", input="sales", by=("shop",), aggregates=AGGREGATES),
    View("shops", "by_shop", ("shop",)),
    AggregateOperator(id="by_hour", input="sales", by=("shop", "hour"), aggregates=AGGREGATES),
    View("hours", "by_hour", ("hour", "shop")),
]


def edited(aggregates: dict[str, str], key: str = "shop") -> list[PartialNode]:
    """A query whose view `shops` has other columns, or another key."""
    by_key = AggregateOperator(id="by_key", input="sales", by=(key,), aggregates=aggregates)
    return [Base("sales", COLUMNS), by_key, View("shops", "by_key", (key,))]


class Fragment:
    """Moves a graph on a thread of its own, whenever it is woken, unless it is held."""

    def __init__(self, nodes: Sequence[PartialNode] = NODES) -> None:
        self.graph = PartialGraph(nodes)
        self.lock = threading.Lock()
        self.woken = threading.Event()
        self.reads = ViewReads("query", self.graph, self.lock, self.woken.set)
        self.held = False
        self.services: list[netchannel.Service] = []
        self.asked: list[int] = []
        self._loop = asyncio.get_running_loop()
        self._views = [node.id for node in nodes if isinstance(node, View)]
        self._over = False
        self._thread = threading.Thread(target=self._run)

    @contextmanager
    def running(self) -> Iterator[None]:
        self._thread.start()
        try:
            yield
        finally:
            self._over = True
            self.woken.set()
            self._thread.join()

    def write(self, *rows: tuple[str, int, int], weight: int = 1) -> None:
        schema = weighted(arrow_schema(COLUMNS))
        columns = [pa.array(column, field.type) for column, field in zip(zip(*rows, strict=True), schema)]  # noqa: B905 - without the weight
        batch = pa.record_batch([*columns, pa.array([weight] * len(rows))], schema=schema)
        with self.lock:
            self.graph.write("sales", batch)
        self.woken.set()

    def _run(self) -> None:
        while not self._over:
            self.woken.wait()
            self.woken.clear()
            if self.held:
                continue
            with self.lock:
                filled = self.graph.drain()
            if filled:
                self.asked.append(sum(each.keys.num_rows for each in filled))
                self._loop.call_soon_threadsafe(self.reads.filled, filled)
            self._loop.call_soon_threadsafe(self.reads.changed, self._views)


@asynccontextmanager
async def served_again(address: str, nodes: Sequence[PartialNode]) -> AsyncIterator[Fragment]:
    """Another query that has a view `shops`, at the same address."""
    fragment = Fragment(nodes)
    async with netchannel.ReceiverServer(address) as receiver:
        receiver.register_service(service_of("shops"), partial(fragment.reads.answer, "shops"))
        with fragment.running():
            fragment.write(*SALES)
            yield fragment


@asynccontextmanager
async def served(**secret: str) -> AsyncIterator[tuple[Fragment, str]]:
    (address,) = free_addresses(1)
    fragment = Fragment()
    async with netchannel.ReceiverServer(address, **secret) as receiver:
        for view in ("raw", "shops", "hours"):
            service = receiver.register_service(service_of(view), partial(fragment.reads.answer, view))
            fragment.services.append(service)
        status = ViewStatus("shops", ("shop",), partial=True, keys=3, lookups=5, hits=2)
        receiver.register_service(LISTING, lambda _: listed_bytes([status]))
        with fragment.running():
            fragment.write(*SALES)
            yield fragment, address


def rows_of(batch: pa.RecordBatch) -> list[tuple[Any, ...]]:
    return [tuple(row.values()) for row in batch.to_pylist()]


async def test_keys_are_looked_up_and_are_hits_the_second_time() -> None:
    """PS-GOAL-1, PS-GOAL-2: a key without rows is there as well, once it was asked for."""
    async with served() as (_, url), Views(url) as views:
        first = await views.get("shops", ["b", "none", "a"])
        assert (rows_of(first.rows), first.hits) == ([("b", 1, 7), ("a", 3, 35)], [False] * 3)
        again = await views.get("shops", ["none", "a", "c"])
        assert (rows_of(again.rows), again.hits) == ([("a", 3, 35)], [True, True, False])


async def test_a_key_of_two_columns_is_given_in_the_order_of_the_view() -> None:
    async with served() as (_, url), Views(url) as views:
        found = await views.get("hours", [(1, "a"), (2, "a"), (2, "b")])
        assert rows_of(found.rows) == [("a", 1, 2, 30), ("a", 2, 1, 5)]
        assert (await views.describe("hours")).key == ("hour", "shop")


async def test_rows_that_are_there_twice_are_given_twice() -> None:
    async with served() as (fragment, url), Views(url) as views:
        fragment.write(("b", 1, 7), ("b", 2, 9))
        for hit in (False, True):
            found = await views.get("raw", ["b", "a"])
            assert found.hits == [hit, hit]
            assert sorted(rows_of(found.rows)[:3]) == [("b", 1, 7), ("b", 1, 7), ("b", 2, 9)]
            assert sorted(rows_of(found.rows)[3:]) == [("a", 1, 10), ("a", 1, 20), ("a", 2, 5)]


async def test_a_row_that_is_taken_back_before_it_comes_is_nobodys() -> None:
    """Behind a join that may be so for a moment; the rows of another key are not taken for it."""
    async with served() as (fragment, url), Views(url) as views:
        fragment.write(("b", 1, 7))
        fragment.write(("c", 3, 9), weight=-1)
        await views.get("raw", ["a", "b", "c"])
        asked = (views.get("raw", [shop]) for shop in ("a", "b", "c"))  # of which two go out together
        assert [len(rows_of(found.rows)) for found in await asyncio.gather(*asked)] == [3, 2, 0]


async def test_lookups_of_one_moment_go_out_as_one() -> None:
    """PS-UQ-3: a hundred misses at once are one upquery, and each has its own rows."""
    async with served() as (fragment, url), Views(url) as views:
        await views.describe("shops")
        shops = [f"shop-{number}" for number in range(100)]
        fragment.write(*((shop, 1, number) for number, shop in enumerate(shops)))
        found = await asyncio.gather(*(views.get("shops", [shop]) for shop in shops))
        assert [rows_of(each.rows) for each in found] == [
            [(shop, 1, number)] for number, shop in enumerate(shops)
        ]
        assert sum(fragment.asked) == 100
        assert fragment.graph.upqueries_into("shops") <= 2  # the first goes out at once


async def test_a_wrong_key_is_told_to_whoever_gave_it_and_to_nobody_else() -> None:
    async with served() as (_, url), Views(url) as views:
        right, wrong, short = await asyncio.gather(
            views.get("hours", [(1, "a")]),
            views.get("hours", [("one", "a")]),
            views.get("hours", [1]),
            return_exceptions=True,
        )
        assert not isinstance(right, BaseException)
        assert rows_of(right.rows) == [("a", 1, 2, 30)]
        with pytest.raises(WrongKey, match=r"a key of hour \(int64\), shop \(string\).*is not a valid hour"):
            raise wrong  # type: ignore[misc] # it is one
        with pytest.raises(WrongKey, match="expected 2 values for each key, got 1"):
            raise short  # type: ignore[misc] # it is one
        with pytest.raises(WrongKey, match=r"a tuple with the values of hour \(int64\), shop \(string\)"):
            await views.get("hours", [[1, "a"]])
        with pytest.raises(WrongKey, match=r"a key of 40,\d+ bytes; expected at most 32,763"):
            await views.get("shops", ["a", "k" * 40_000])


async def test_of_many_keys_the_wrong_one_is_named() -> None:
    async with served() as (_, url), Views(url) as views:
        with pytest.raises(
            WrongKey,
            match=r"9\.5 is not a valid hour in key 4 of 5, \(9\.5, 'a'\): 9\.5 is not a whole number",
        ):
            await views.get("hours", [*((hour, "a") for hour in range(3)), (9.5, "a"), (4, "a")])
    with pytest.raises(TypeError, match="expected a string, as in Views"):
        Views(7700)  # type: ignore[arg-type] # a mistake
    with pytest.raises(TypeError, match="text is dict: expected JSON"):
        await views.add({})  # type: ignore[arg-type] # a mistake


async def test_a_service_that_goes_away_is_no_failure_of_the_view() -> None:
    """A watch waits for the next one, and a lookup may be made again."""
    async with served() as (fragment, url), Views(url) as views:
        await views.get("shops", ["a"])
        fragment.held = True
        lookup = asyncio.ensure_future(views.get("shops", ["b"], 30))
        await asyncio.sleep(0.1)
        (service,) = [each for each in fragment.services if each.id == service_of("shops")]
        await service.close()
        with pytest.raises(
            ViewUnreachable, match="closed the connection before it answered: its process was restarted"
        ):
            await lookup


async def test_lookups_of_one_moment_wait_for_none_with_more_time() -> None:
    async with served() as (fragment, url), Views(url) as views:
        await views.get("shops", ["a"])
        fragment.held = True
        slow = asyncio.ensure_future(views.get("shops", ["b"], 30))
        assert (await views.get("shops", ["a"], 0.1)).hits == [True]
        assert not slow.done()
        fragment.held = False
        fragment.woken.set()
        assert rows_of((await slow).rows) == [("b", 1, 7)]


async def test_rows_that_are_too_many_are_told_to_whoever_asked_for_them_and_to_nobody_else() -> None:
    long = "x" * 30_000
    async with served() as (fragment, url), Views(url) as views:
        await views.describe("raw")
        fragment.write(*((long, hour, 1) for hour in range(2400)))
        right, much = await asyncio.gather(
            views.get("raw", ["b"], 30), views.get("raw", [long], 30), return_exceptions=True
        )
        assert not isinstance(right, BaseException)
        assert rows_of(right.rows) == [("b", 1, 7)]
        with pytest.raises(ViewFailed, match=r"the limit is 67108864; .* fewer keys"):
            raise much  # type: ignore[misc] # it is one


async def test_a_value_that_would_become_another_one_is_no_key() -> None:
    async with served() as (_, url), Views(url) as views:
        assert rows_of((await views.get("hours", [(1.0, "a")])).rows) == [("a", 1, 2, 30)]
        with pytest.raises(WrongKey, match=r"1\.5 is not a whole number"):
            await views.get("hours", [(1.5, "a")])


async def test_keys_that_do_not_come_in_time_are_named_and_the_others_are_there() -> None:
    async with served() as (fragment, url), Views(url) as views:
        await views.get("shops", ["a"])
        fragment.held = True
        with pytest.raises(
            LookupTimedOut, match=r"1 of 2 keys of view 'shops' were missing.*within 0.1 s"
        ) as error:
            await views.get("shops", ["a", "b"], 0.1)
        assert rows_of(error.value.found.rows) == [("a", 3, 35)]
        assert error.value.missing == [("b",)]
        fragment.held = False
        fragment.woken.set()
        assert rows_of((await views.get("shops", ["b"], 10)).rows) == [("b", 1, 7)]


async def test_a_key_that_does_not_come_holds_up_nobody_who_asks_at_the_same_time() -> None:
    """PS-DU-2, from outside: who asks for keys that are there has them, and the deadline of each counts for itself."""
    async with served() as (fragment, url), Views(url) as views:
        await views.get("shops", ["a"])
        fragment.held = True
        slow = [asyncio.ensure_future(views.get("shops", [key], 60.0)) for key in ("b", "c")]
        brief = asyncio.ensure_future(views.get("shops", ["d", "a"], 0.05))
        assert rows_of((await views.get("shops", ["a"], 60.0)).rows) == [("a", 3, 35)]
        with pytest.raises(LookupTimedOut, match="1 of 2 keys"):
            await brief
        assert not any(each.done() for each in slow)
        fragment.held = False
        fragment.woken.set()
        assert [rows_of((await each).rows) for each in slow] == [[("b", 1, 7)], []]


async def test_a_key_is_watched_from_its_rows_now_to_each_that_follow() -> None:
    async with served() as (fragment, url), Views(url) as views:
        watching = views.watch("shops", "b")
        assert rows_of(await anext(watching)) == [("b", 1, 7)]
        coming = asyncio.ensure_future(anext(watching))
        fragment.write(("a", 1, 1))
        await views.get("shops", ["a", "c"])
        assert not coming.done()  # another key has changed
        fragment.write(("b", 3, 3))
        assert rows_of(await coming) == [("b", 2, 10)]
        fragment.write(("b", 3, 3), ("b", 1, 7), weight=-1)
        assert rows_of(await anext(watching)) == []
        await watching.aclose()


async def test_a_view_of_a_query_that_runs_free_has_no_steps() -> None:
    async with served() as (_, url), Views(url) as views:
        assert (await views.get("shops", ["a"])).step is None
        assert not (await views.describe("shops")).in_steps
        with pytest.raises(RunsFree, match=r"view 'shops' .* belongs to a free query"):
            await anext(views.watch_steps("shops", "a"))


async def test_a_key_without_rows_is_watched_from_none_to_those_that_come() -> None:
    async with served() as (fragment, url), Views(url) as views:
        watching = views.watch("shops", "none")
        assert rows_of(await anext(watching)) == []
        fragment.write(("none", 1, 1))
        assert rows_of(await anext(watching)) == [("none", 1, 1)]
        await watching.aclose()


async def test_who_has_no_such_view_no_secret_or_is_not_there_says_so() -> None:
    async with served(secret="sesame") as (_, url):
        async with Views(url, secret="sesame") as views:
            with pytest.raises(UnknownView, match=r"no view 'sales' at "):
                await views.get("sales", ["a"], 0.2)
            for name in ("a\x1b[31m", "\udcff", "v" * 251):
                with pytest.raises(UnknownView, match="cannot be the name of a view"):
                    await views.get(name, ["a"], 0.2)
            (status,) = await views.statuses()
            assert (status.name, status.key, status.keys, status.hits) == ("shops", ("shop",), 3, 2)
        async with Views(url, secret="other") as views:
            with pytest.raises(ViewDenied, match="secret"):
                await views.get("shops", ["a"])
    async with Views(url) as views:
        with pytest.raises(ViewUnreachable):
            await views.get("shops", ["a"], 0.2)
        with pytest.raises(
            ViewUnreachable, match=r"no process with views answers at \S+ within 0\.2 s: 'nebuli run'"
        ):
            await views.statuses(0.2)


async def test_a_view_that_begins_later_is_waited_for() -> None:
    """The query may be started after the program that reads it."""
    async with (
        served() as (fragment, url),
        netchannel.ReceiverServer(free_addresses(1)[0]) as other,
        Views(url) as views,
        Views(other.address) as early,
    ):
        asked = asyncio.ensure_future(early.get("shops", ["a"], 20.0))
        await views.get("shops", ["a"])
        assert not asked.done()
        other.register_service(service_of("shops"), partial(fragment.reads.answer, "shops"))
        assert rows_of((await asked).rows) == [("a", 3, 35)]


async def test_blocking_programs_read_in_the_same_way() -> None:
    async with served() as (fragment, url):

        def read() -> None:
            with nebuli.blocking.Views(url) as views:
                assert rows_of(views.get("shops", ["b"]).rows) == [("b", 1, 7)]
                assert [each.name for each in views.statuses()] == ["shops"]
                watching = views.watch("shops", "b")
                assert rows_of(next(watching)) == [("b", 1, 7)]
                fragment.write(("b", 3, 3))
                assert rows_of(next(watching)) == [("b", 2, 10)]
                watching.close()

        await asyncio.to_thread(read)


async def test_views_that_were_not_entered_say_so_at_once() -> None:
    async with served() as (_, url):
        with pytest.raises(ViewsClosed, match="use 'async with'"):
            await Views(url).get("shops", ["b"])
        with pytest.raises(ViewsClosed, match="use 'with'"):
            nebuli.blocking.Views(url).get("shops", ["b"])


def test_both_have_the_same_signatures() -> None:
    for name, method in inspect.getmembers(Views, inspect.isfunction):
        if not name.startswith("_"):
            same = inspect.signature(getattr(nebuli.blocking.Views, name)).parameters
            assert same == inspect.signature(method).parameters, name


async def test_keys_that_are_equal_are_one() -> None:
    """Also where Python tells them apart, or has several of what is one value: rows are there once."""
    async with served() as (_, url), Views(url) as views:
        found = await views.get("shops", ["a", b"a", "b", "a"])
        assert (rows_of(found.rows), found.hits) == ([("a", 3, 35), ("b", 1, 7)], [False] * 4)
        assert (await views.get("hours", [(1, "a"), (1.0, "a")])).rows.num_rows == 1


async def test_who_waits_when_the_views_are_closed_is_told() -> None:
    """Also those whose lookup went out with another's."""
    async with served() as (fragment, url):
        views = await Views(url).__aenter__()
        await views.describe("shops")
        fragment.held = True
        waiting = [asyncio.ensure_future(views.get("shops", [key], 60.0)) for key in ("a", "b", "c")]
        await asyncio.sleep(0)
        await views.__aexit__(None, None, None)
        async with asyncio.timeout(20):
            for each in await asyncio.gather(*waiting, return_exceptions=True):
                assert isinstance(each, ViewFailed)


async def test_a_view_whose_query_was_edited_is_read_with_the_columns_that_it_has_now() -> None:
    """Columns of one type that change places, another type, fewer of them, another key: no row is taken for another."""
    (address,) = free_addresses(1)
    swapped = {"total": "sum(amount)", "sales": "count(*)"}
    changes: list[tuple[list[PartialNode], Any, list[tuple[Any, ...]]]] = [
        (edited(AGGREGATES), "a", [("a", 3, 35)]),
        (edited(swapped), "a", [("a", 35, 3)]),
        (edited({"mean": "avg(amount)", "most": "max(amount)"}), "b", [("b", 7.0, 7)]),
        (edited({"sales": "count(*)"}), "a", [("a", 3)]),
        (edited(swapped, key="hour"), 1, [(1, 37, 3)]),
    ]
    async with Views(address) as views:
        for nodes, key, rows in changes:
            async with served_again(address, nodes):
                asked = (views.get("shops", [key], 20.0) for _ in range(3))  # of which two go out together
                assert [rows_of(each.rows) for each in await asyncio.gather(*asked)] == [rows] * 3
        async with served_again(address, edited(AGGREGATES, key="hour")):
            with pytest.raises(WrongKey, match=r"a key of hour \(int64\), and 'a' is not a valid hour"):
                await views.get("shops", ["a"], 20.0)


async def test_a_watched_view_whose_query_was_edited_goes_on_with_the_columns_that_it_has_now() -> None:
    (address,) = free_addresses(1)
    async with Views(address) as views:
        watching = views.watch("shops", "a")
        async with served_again(address, edited(AGGREGATES)):
            assert (await anext(watching)).to_pylist() == [{"shop": "a", "sales": 3, "total": 35}]
        async with served_again(address, edited({"total": "sum(amount)", "mean": "avg(amount)"})) as fragment:
            rows = await anext(watching)
            assert rows.to_pylist() == [{"shop": "a", "total": 35, "mean": 35 / 3}]
            fragment.write(("a", 3, 1))
            assert (await anext(watching)).to_pylist() == [{"shop": "a", "total": 36, "mean": 9.0}]
        await watching.aclose()
