"""Changes of a table are read from a real server of PostgreSQL, which is killed, held and asked by several at once."""

from __future__ import annotations

import asyncio
import json
import sys
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, suppress
from itertools import count
from typing import Any

import psycopg
import pytest

from nebuli.ingestion.definition import PostgresOrigin
from nebuli.ingestion.errors import AddressGone, MessageInvalid, SourceAway, SourceUnusable
from nebuli.ingestion.message_addresses import Addresses, Messages
from nebuli.ingestion.readers.postgres_changes import PostgresChanges
from nebuli.ingestion.readers.postgres_slot import as_lsn, of_lsn
from nebuli.ingestion.source_reader import SourceReader
from nebuli.ingestion.testing import Expected, ReaderConformance
from tests.support.postgres import Server, server

pytestmark = pytest.mark.processes

_NUMBERS = count(1)
_LIMIT_S = 20.0


@pytest.fixture(scope="module")
def running() -> Iterator[Server]:
    with server(wal_level="logical", max_prepared_transactions=20, max_replication_slots=30) as started:
        yield started


class Table:
    """A table with a publication, and a slot that is dropped in the end."""

    def __init__(self, started: Server, columns: str = "k int primary key, v text") -> None:
        number = next(_NUMBERS)
        self.server, self.name, self.slot = started, f"rows_{number}", f"slot_{number}"
        self.publication = f"changes_{number}"
        self.sql(
            f"create table {self.name} ({columns})",
            f"create publication {self.publication} for table {self.name}",
        )

    def sql(self, *statements: str) -> list[Any]:
        """Each in a transaction of its own."""
        with psycopg.connect(self.server.url, autocommit=True) as connection:
            for each in statements:
                found = connection.execute(each.encode())
            return found.fetchall() if found.description else []

    def at_once(self, *statements: str) -> None:
        """All in one transaction."""
        with psycopg.connect(self.server.url) as connection:
            for each in statements:
                connection.execute(each.encode())

    def origin(self, **others: Any) -> PostgresOrigin:
        given = {
            "type": "Postgres",
            "url": self.server.url,
            "publication": self.publication,
            "slot": self.slot,
            "table": f"public.{self.name}",
            **others,
        }
        return PostgresOrigin.model_validate(given)

    def reader(self, key: str = "k", columns: Sequence[str] = (), **others: Any) -> PostgresChanges:
        return PostgresChanges(self.origin(**others), name=self.name, columns=columns, key=[key])

    def confirmed(self) -> int:
        ((lsn,),) = self.sql(
            f"select confirmed_flush_lsn::text from pg_replication_slots where slot_name = '{self.slot}'"
        )
        return of_lsn(lsn)

    def flushed(self) -> int:
        ((lsn,),) = self.sql("select pg_current_wal_flush_lsn()::text")
        return of_lsn(lsn)

    def drop(self) -> None:
        with suppress(psycopg.Error):
            self.sql(f"select pg_drop_replication_slot('{self.slot}')")
        self.sql(f"drop publication {self.publication}", f"drop table {self.name}")


@pytest.fixture
def table(running: Server) -> Iterator[Table]:
    made = Table(running)
    yield made
    made.drop()


@asynccontextmanager
async def opened(reader: PostgresChanges, at: int | None = None) -> AsyncIterator[PostgresChanges]:
    try:
        await reader.open({} if at is None else {"": at})
        yield reader
    finally:
        await reader.close()


async def to_end(reader: PostgresChanges, at: int = 0) -> tuple[list[tuple[int, Any]], int]:
    """All that there is now from an address on, and the address behind it."""
    end, upper, found = (await reader.ends())[""], at, list[tuple[int, Any]]()
    async with asyncio.timeout(_LIMIT_S):
        while upper < end:
            messages = await reader.next()
            upper = messages.upper
            found += rows(messages)
    return found, upper


def rows(messages: Messages) -> list[tuple[int, Any]]:
    payloads = messages.rows.column("payload").to_pylist()
    return [
        (address, json.loads(each))
        for address, each in zip(messages.addresses.tolist(), payloads, strict=True)
    ]


class TestConformance(ReaderConformance):
    """It is a reader as all others. ST-ING-4, ST-ING-5, ST-ING-6."""

    @pytest.fixture
    async def make(self, table: Table) -> Callable[[], SourceReader]:
        async with opened(table.reader()):  # which makes the slot
            return table.reader

    @pytest.fixture
    def add(self, table: Table) -> Callable[[], Awaitable[list[Expected]]]:
        keys = count(1)

        async def added() -> list[Expected]:
            one, two, three = (next(keys) for _ in range(3))
            table.at_once(f"insert into {table.name} values ({one}, 'a'), ({two}, null)")
            table.sql(f"insert into {table.name} values ({three}, 'c')")
            (of_pair, of_one) = table.sql(
                f"select distinct xmin::text, min(k) from {table.name} "
                f"where k >= {one} group by xmin order by min(k)"
            )

            def told(key: int, value: str | None, transaction: str, order: int) -> Expected:
                change = {"op": "c", "before": None, "after": {"k": key, "v": value}}
                change["transaction"] = {"id": transaction, "total_order": order}
                return Expected("", None, {"payload": json.dumps(change, separators=(",", ":")).encode()})

            return [
                told(one, "a", of_pair[0], 1),
                told(two, None, of_pair[0], 2),
                told(three, "c", of_one[0], 1),
            ]

        return added

    @pytest.fixture
    def trim(self, table: Table) -> Callable[[], Awaitable[Addresses]]:
        async def trimmed() -> Addresses:
            async with opened(table.reader()) as reader:
                found, upper = await to_end(reader)
                await reader.release({"": upper})
            return {"": found[0][0]}

        return trimmed

    @pytest.fixture
    def away(self, table: Table) -> list[Callable[[], SourceReader]]:
        nobody = "postgresql://tests@127.0.0.1:1/postgres"
        return [
            lambda: table.reader(url=nobody),
            lambda: table.reader(publication="none"),
            lambda: table.reader(table="public.none"),
        ]


async def test_each_change_is_as_debezium_writes_it(running: Server) -> None:
    columns = (
        "k int primary key, big int8, half float4, whole float8, truth bool, price numeric, day date, "
        "at timestamptz, local timestamp, bytes bytea, list int[], told text"
    )
    table = Table(running, columns)
    try:
        async with opened(table.reader()) as reader:
            table.sql(
                f"insert into {table.name} values (1, 9007199254740993, 0.1, 'NaN', true, 1.50, "
                "'2024-02-29', '2024-02-29 12:00:00.5+02', '2024-02-29 12:00:00', '\\x00ff', '{1,2}', 'ü\"')",
                f"update {table.name} set told = null, k = 2",
                f"update {table.name} set truth = false",
                f"delete from {table.name}",
                f"truncate {table.name}",
            )
            found, _ = await to_end(reader)
    finally:
        table.drop()
    created, moved, updated, deleted, truncated = (change for _, change in found)
    row = {
        "k": 1,
        "big": 9007199254740993,
        "half": 0.1,
        "whole": "NaN",
        "truth": True,
        "price": "1.50",
        "day": "2024-02-29",
        "at": "2024-02-29T10:00:00.5Z",
        "local": "2024-02-29T12:00:00",
        "bytes": "AP8=",
        "list": "{1,2}",
        "told": 'ü"',
    }
    assert (created["op"], created["before"], created["after"]) == ("c", None, row)
    row |= {"told": None, "k": 2}
    assert (moved["op"], moved["before"], moved["after"]) == ("u", {"k": 1}, row)
    row |= {"truth": False}
    assert (updated["op"], updated["before"], updated["after"]) == ("u", None, row)
    assert (deleted["op"], deleted["before"], deleted["after"]) == ("d", {"k": 2}, None)
    assert (truncated["op"], truncated["before"], truncated["after"]) == ("t", None, None)
    assert {change["transaction"]["total_order"] for _, change in found} == {1}
    assert len({change["transaction"]["id"] for _, change in found}) == 5


async def test_what_is_stored_apart_and_stays_is_named_but_for_a_full_identity(running: Server) -> None:
    """ST-ING-8: so that nobody takes it for null; a key is always there."""
    table = Table(running)
    try:
        table.sql(f"alter table {table.name} alter v set storage external")
        async with opened(table.reader()) as reader:
            table.sql(
                f"insert into {table.name} values (1, repeat('x', 10000))",
                f"update {table.name} set k = 2",
                f"alter table {table.name} replica identity full",
                f"update {table.name} set k = 3",
            )
            found, _ = await to_end(reader)
    finally:
        table.drop()
    _, alone, full = (change for _, change in found)
    assert (alone["before"], alone["after"], alone["unchanged"]) == ({"k": 1}, {"k": 2}, ["v"])
    assert (full["before"], full["after"]) == ({"k": 2, "v": "x" * 10000}, {"k": 3, "v": "x" * 10000})
    assert "unchanged" not in full


async def test_a_transaction_is_whole_at_the_address_of_its_commit_and_other_tables_are_not_in_it(
    table: Table,
) -> None:
    other = Table(table.server)
    try:
        table.sql(f"alter publication {table.publication} add table {other.name}")
        async with opened(table.reader()) as reader:
            with psycopg.connect(table.server.url) as slow:
                slow.execute(f"insert into {table.name} values (1, 'slow')".encode())
                table.at_once(
                    f"insert into {table.name} values (2, 'fast')", f"insert into {other.name} values (1)"
                )
                slow.execute(f"insert into {table.name} values (3, 'slow')".encode())
            found, _ = await to_end(reader)
        assert [change["after"]["k"] for _, change in found] == [2, 1, 3]
        fast, one, two = (address for address, _ in found)
        assert fast < one == two
        async with opened(table.reader(), one) as again:
            assert (await to_end(again))[0] == found[1:]
        async with opened(table.reader(), one + 1) as again:
            assert (await to_end(again))[0] == []
    finally:
        other.drop()


async def test_columns_are_as_they_were_when_a_row_was_written(table: Table) -> None:
    async with opened(table.reader()) as reader:
        table.sql(
            f"insert into {table.name} values (1, 'a')",
            f"alter table {table.name} rename v to w",
            f"alter table {table.name} add x int",
            f"insert into {table.name} values (2, 'b', 3)",
        )
        found, _ = await to_end(reader)
    assert [change["after"] for _, change in found] == [{"k": 1, "v": "a"}, {"k": 2, "w": "b", "x": 3}]


async def test_the_slot_follows_what_is_released_and_never_goes_back(table: Table) -> None:
    """The server keeps as much of its log as is not released. ST-ING-3."""
    async with opened(table.reader()) as reader:
        for turn in range(5):
            table.sql(f"insert into {table.name} select k, 'x' from generate_series({turn}00, {turn}99) k")
            found, upper = await to_end(reader)
            assert len(found) == 100
            await reader.release({"": upper})
            assert table.confirmed() == upper
        await reader.release({"": found[0][0]})
        assert table.confirmed() == upper
        async with opened(table.reader(), upper) as again:
            assert (await to_end(again, upper))[0] == []


async def test_the_slot_follows_where_no_row_of_the_table_comes(table: Table) -> None:
    """The log that others write is not kept for ever, either. ST-ING-3."""
    other = Table(table.server)
    try:
        async with opened(table.reader()) as reader:
            before = table.confirmed()
            other.sql(f"insert into {other.name} select k, 'x' from generate_series(1, 10000) k")
            end = table.flushed()
            assert end - before > 500_000
            found, upper = await to_end(reader)
            assert found == []
            assert upper >= end
            await reader.release({"": upper})
            assert table.confirmed() >= end
    finally:
        other.drop()


async def test_what_is_released_up_to_a_transaction_leaves_that_one(table: Table) -> None:
    async with opened(table.reader()) as reader:
        table.sql(*(f"insert into {table.name} values ({k}, 'x')" for k in range(6)))
        found, _ = await to_end(reader)
        for place in (2, 4):
            await reader.release({"": found[place][0]})
            assert table.confirmed() == found[place][0]
            async with opened(table.reader()) as again:
                assert (await to_end(again))[0] == found[place:]


@pytest.mark.long
async def test_two_read_the_same_while_a_third_releases(table: Table) -> None:
    """However they take turns with the slot, and wherever it is. ST-ING-6."""
    async with opened(table.reader()) as one, opened(table.reader()) as two, opened(table.reader()) as third:
        uppers = {"one": 0, "two": 0}
        found: dict[str, list[tuple[int, Any]]] = {"one": [], "two": []}
        total = 60

        async def read(reader: PostgresChanges, name: str) -> None:
            while len(found[name]) < total:
                messages = await reader.next()
                assert not uppers[name] or messages.lower == uppers[name]
                uppers[name] = messages.upper
                found[name] += rows(messages)

        async def write() -> None:
            for k in range(total):
                await asyncio.to_thread(table.sql, f"insert into {table.name} values ({k}, 'x')")

        async def release() -> None:
            while True:
                await third.release({"": min(uppers.values())})
                await asyncio.sleep(0.02)

        releasing = asyncio.create_task(release())
        async with asyncio.timeout(60):
            await asyncio.gather(read(one, "one"), read(two, "two"), write())
        await asyncio.sleep(0.1)
        releasing.cancel()
        await asyncio.wait([releasing])
        assert table.confirmed() >= min(uppers.values()) > found["one"][0][0]
    assert found["one"] == found["two"]
    assert [change["after"]["k"] for _, change in found["one"]] == list(range(total))


async def test_more_than_is_read_at_a_time_is_read_one_after_the_other(table: Table) -> None:
    async with opened(table.reader()) as reader:
        for turn in range(4):
            table.sql(
                f"insert into {table.name} select k, 'x' from generate_series({turn}0001, {turn + 1}0000) k"
            )
        sizes = list[int]()
        while sum(sizes) < 40_000:
            sizes.append((await reader.next()).rows.num_rows)
        assert len(sizes) > 1
        async with opened(table.reader()) as late:
            async with asyncio.timeout(_LIMIT_S):
                keys = [change["after"]["k"] for _, change in (await to_end(late))[0]]
    assert keys == list(range(1, 40_001))


@pytest.mark.long
async def test_a_server_that_is_killed_is_away_and_nothing_is_lost() -> None:
    """It is said within seconds; a new reader goes on where the last one was. ST-ING-2."""
    with server(wal_level="logical") as started:
        table = Table(started)
        found, upper = list[tuple[int, Any]](), None
        for turn in range(3):
            async with opened(table.reader(), upper) as reader:
                table.sql(*(f"insert into {table.name} values ({turn}{k}, 'x')" for k in range(3)))
                more, upper = await to_end(reader, upper or 0)
                found += more
                waiting = asyncio.create_task(reader.next())
                await asyncio.sleep(0.3)
                await asyncio.to_thread(started.kill)
                async with asyncio.timeout(5):
                    with pytest.raises(SourceAway):
                        await waiting
                    with pytest.raises(SourceAway):
                        await reader.ends()
            with pytest.raises(SourceAway):
                async with opened(table.reader(), upper):
                    pass
            await asyncio.to_thread(started.start)
        async with opened(table.reader()) as again:
            assert (await to_end(again))[0] == found
    assert [change["after"]["k"] for _, change in found] == [0, 1, 2, 10, 11, 12, 20, 21, 22]


@pytest.mark.long
@pytest.mark.parametrize("two_phase", [False, True])
async def test_whatever_is_killed_as_it_is_read_and_written_nothing_is_lost_or_doubled(
    two_phase: bool,
) -> None:
    """While another one releases, too. ST-ING-2, ST-ING-4."""
    with server(wal_level="logical", max_prepared_transactions=10) as started:
        table = Table(started)
        is_over = threading.Event()

        def write() -> None:
            for k in count():
                how = [f"insert into {table.name} values ({k}, 'x')"]
                if two_phase and k % 3 == 0:
                    how = ["begin", *how, f"prepare transaction '{k}'", f"commit prepared '{k}'"]
                with suppress(psycopg.Error):
                    table.sql(*how)
                if is_over.is_set():
                    return

        async def read(reader: PostgresChanges) -> None:
            nonlocal upper
            while True:
                messages = await reader.next()
                assert upper in (None, messages.lower)
                upper = messages.upper
                found.extend(rows(messages))

        found, upper = list[tuple[int, Any]](), None
        async with opened(table.reader(two_phase=two_phase)):
            begin = table.confirmed()
        writing = asyncio.create_task(asyncio.to_thread(write))
        async with asyncio.timeout(100):
            for turn in range(4):
                async with opened(table.reader(two_phase=two_phase), upper) as reader:
                    killing = asyncio.get_running_loop().call_later(0.3 + 0.23 * turn, started.kill)
                    with pytest.raises(SourceAway):
                        await read(reader)
                    killing.cancel()
                await asyncio.to_thread(started.start)
            is_over.set()
            await writing
            for (gid,) in table.sql("select gid from pg_prepared_xacts"):
                table.sql(f"commit prepared '{gid}'")
            async with opened(table.reader(two_phase=two_phase), upper) as reader:
                found += (await to_end(reader, upper or 0))[0]
            async with opened(table.reader(two_phase=two_phase), begin) as reader:
                assert (await to_end(reader))[0] == found
        keys = sorted(change["after"]["k"] for _, change in found if "op" in change)
        assert len(keys) > 50
        assert keys == [k for (k,) in table.sql(f"select k from {table.name} order by k")]
        addresses = [address for address, _ in found]
        assert addresses == sorted(addresses)


@pytest.mark.long
async def test_a_server_that_stands_still_is_away() -> None:
    with server(wal_level="logical") as started:
        table = Table(started)
        async with opened(table.reader()) as reader:
            await asyncio.to_thread(started.hold)
            try:
                async with asyncio.timeout(15):
                    with pytest.raises(SourceAway):
                        await reader.next()
            finally:
                await asyncio.to_thread(started.hold, go_on=True)


async def test_what_the_slot_does_not_have_is_gone(table: Table) -> None:
    """With both places; ST-ING-6."""
    async with opened(table.reader()) as reader:
        table.sql(f"insert into {table.name} values (1, 'x')")
        found, upper = await to_end(reader)
        first = found[0][0]
        await reader.release({"": upper})
        with pytest.raises(AddressGone, match=f"{first} .*{upper} ") as caught:
            await table.reader().open({"": first})
        assert as_lsn(first) in str(caught.value)
        assert as_lsn(upper) in str(caught.value)
        with pytest.raises(AddressGone, match=str(10 * upper)):
            await table.reader().open({"": 10 * upper})
        await reader.forget()
        with pytest.raises(AddressGone, match="no longer exists"):
            await reader.next()
    with pytest.raises(AddressGone, match="no longer exists"):
        await table.reader().open({"": upper})
    await table.reader().forget()  # harmless


async def test_what_is_not_as_it_has_to_be_is_said_with_what_mends_it(table: Table) -> None:
    with psycopg.connect(table.server.url, autocommit=True) as connection:
        connection.execute("drop role if exists reader")
        connection.execute("create role reader login")
    unlike = {
        'ALTER ROLE "reader" REPLICATION': {"url": table.server.url.replace("tests@", "reader@")},
        'CREATE PUBLICATION "none" FOR TABLE "public"': {"publication": "none"},
        'unknown table "public"."none"': {"table": "public.none"},
        "expected a table with its schema": {"table": table.name},
        "is not a name of a table": {"table": "public."},
        "does not exist": {"url": table.server.url.replace("/postgres", "/nowhere")},
        'replication slot name "No"': {"slot": "No"},
    }
    for said, others in unlike.items():
        with pytest.raises(SourceUnusable) as caught:
            async with opened(table.reader(**others)):
                pass
        assert said in str(caught.value)
    other = Table(table.server)
    with pytest.raises(SourceUnusable, match=r"ALTER PUBLICATION .* ADD TABLE"):
        async with opened(table.reader(publication=other.publication)):
            pass
    other.drop()
    async with opened(table.reader()):
        pass
    with pytest.raises(SourceUnusable, match="two_phase false"):
        async with opened(table.reader(two_phase=True)):
            pass


async def test_a_key_of_which_no_update_says_what_it_was_is_refused(table: Table) -> None:
    """Or the row with the old key would stay for ever; also where the identity became another one meanwhile."""
    with pytest.raises(SourceUnusable, match=r"column v, .* of k: .* REPLICA IDENTITY FULL"):
        async with opened(table.reader(key="v")):
            pass
    table.sql(f"alter table {table.name} replica identity full")
    async with opened(table.reader(key="v")) as reader:
        table.sql(f"insert into {table.name} values (1, 'a')", f"update {table.name} set v = 'b'")
        found, at = await to_end(reader)
        assert [change["before"] for _, change in found] == [None, {"k": 1, "v": "a"}]
        table.sql(
            f"alter table {table.name} replica identity default",
            f"update {table.name} set v = 'c'",
            f"alter table {table.name} replica identity full",
        )
        with pytest.raises(MessageInvalid, match="the old value of key column v"):
            await to_end(reader, at)


async def test_a_column_that_is_not_published_is_refused_and_not_null(running: Server) -> None:
    """As the slot is made: later on the table may be altered."""
    table = Table(running, "k int primary key, v text, twice int generated always as (k * 2) stored")
    try:
        for strange in ("w", "twice"):
            with pytest.raises(SourceUnusable, match=rf"the column {strange}, but .* {table.name}: k, v;"):
                async with opened(table.reader(columns=["k", strange])):
                    pass
        async with opened(table.reader(columns=["v", "k"])) as reader:
            at = (await reader.ends())[""]
        table.sql(f"alter table {table.name} drop column v", f"insert into {table.name} values (1)")
        async with opened(table.reader(columns=["v", "k"]), at) as reader:
            assert [change["after"] for _, change in (await to_end(reader, at))[0]] == [{"k": 1}]
    finally:
        table.drop()


@pytest.mark.parametrize(
    "deed", ["alter table {0} rename to {0}_old", "alter publication {1} drop table {0}"]
)
async def test_a_table_that_is_not_published_any_more_is_told_as_it_is_read(
    running: Server, deed: str
) -> None:
    """What is written to it then does not come, and nobody would know."""
    table = Table(running)
    try:
        async with opened(table.reader()) as reader:
            table.sql(f"insert into {table.name} values (1, 'a')")
            assert [change["op"] for _, change in (await to_end(reader))[0]] == ["c"]
            table.sql(deed.format(table.name, table.publication))
            with pytest.raises(SourceUnusable, match=r"unknown table|ADD TABLE"):
                async with asyncio.timeout(_LIMIT_S):
                    await reader.next()
    finally:
        with suppress(psycopg.Error):
            table.sql(f"alter table {table.name}_old rename to {table.name}")
        table.drop()


async def test_without_its_library_it_says_which_one(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "psycopg", None)
    monkeypatch.delitem(sys.modules, "nebuli.ingestion.readers.postgres_slot")
    with pytest.raises(SourceUnusable, match=r"pip install 'nebuli\[postgres\]'"):
        await table.reader().open({})


async def test_those_that_begin_at_once_begin_at_the_same_place(table: Table) -> None:
    """One of them makes the slot; whoever comes as it is made comes again. ST-ING-6."""

    async def begin() -> int:
        while True:
            with suppress(SourceAway):
                async with opened(table.reader()) as reader:
                    table.sql(f"insert into {table.name} values (default)")
                    return (await reader.next()).lower
            await asyncio.sleep(0.01)

    table.sql(f"alter table {table.name} alter k add generated always as identity")
    async with asyncio.timeout(_LIMIT_S):
        beginning = [asyncio.create_task(begin()) for _ in range(4)]
        places = await asyncio.gather(*beginning)
    assert set(places) == {table.confirmed()}


async def test_a_slot_that_somebody_else_reads_is_waited_for(table: Table) -> None:
    """As one reader has it at a time; and a transaction that is open keeps nobody from reading."""
    async with opened(table.reader()) as reader:
        table.sql(f"insert into {table.name} select k, 'x' from generate_series(1, 30000) k")
        with psycopg.connect(table.server.url) as other:
            other.execute(f"insert into {table.name} values (0, 'open')".encode())
            looks = [
                asyncio.create_task(
                    asyncio.to_thread(
                        table.sql,
                        f"select count(*) from pg_logical_slot_peek_binary_changes('{table.slot}', null, "
                        f"null, 'proto_version', '1', 'publication_names', '{table.publication}')",
                    )
                )
                for _ in range(3)
            ]
            found, _ = await to_end(reader)
            assert len(found) == 30_000
            await asyncio.gather(*looks, return_exceptions=True)


async def test_a_slot_of_another_kind_is_left_alone(table: Table) -> None:
    for made in (
        "pg_create_physical_replication_slot(%s)",
        "pg_create_logical_replication_slot(%s, 'test_decoding')",
    ):
        table.sql(f"select {made}".replace("%s", f"'{table.slot}'"))
        for at in (None, 1):
            with pytest.raises(SourceUnusable, match="another program has a slot of that name"):
                async with opened(table.reader(), at):
                    pass
        table.sql(f"select pg_drop_replication_slot('{table.slot}')")


async def test_a_server_without_logical_replication_is_not_usable() -> None:
    with server() as started:
        table = Table(started)
        with pytest.raises(SourceUnusable, match="ALTER SYSTEM SET wal_level = logical"):
            async with opened(table.reader()):
                pass


class TestConformanceOfTwoPhases(TestConformance):
    """It is one with transactions that are prepared, too, wherever in the middle of one it begins."""

    @pytest.fixture
    async def make(self, table: Table) -> Callable[[], SourceReader]:
        async with opened(table.reader(two_phase=True)):
            return lambda: table.reader(two_phase=True)

    @pytest.fixture
    def add(self, table: Table) -> Callable[[], Awaitable[list[Expected]]]:
        keys = count(1)

        async def added() -> list[Expected]:
            held, alone = next(keys), next(keys)
            name = f"{table.name} {held}"
            table.sql(
                "begin", f"insert into {table.name} values ({held}, 'a')", f"prepare transaction '{name}'"
            )
            table.sql(f"insert into {table.name} values ({alone}, 'b')", f"commit prepared '{name}'")
            ((first,), (second,)) = table.sql(
                f"select xmin::text from {table.name} where k in ({held}, {alone}) order by k"
            )
            first = f"{name}:{first}"

            def change(transaction: str, k: int, v: str) -> dict[str, Any]:
                told = {"id": transaction, "total_order": 1}
                return {"op": "c", "before": None, "after": {"k": k, "v": v}, "transaction": told}

            expected = [
                {"status": "BEGIN", "id": first},
                {"status": "BEGIN", "id": second},
                change(second, alone, "b"),
                {"status": "END", "id": second, "event_count": 1},
                change(first, held, "a"),
                {"status": "END", "id": first, "event_count": 1},
            ]
            return [
                Expected("", None, {"payload": json.dumps(each, separators=(",", ":")).encode()})
                for each in expected
            ]

        return added

    @pytest.fixture
    def trim(self, table: Table) -> Callable[[], Awaitable[Addresses]]:
        async def trimmed() -> Addresses:
            async with opened(table.reader(two_phase=True)) as reader:
                found, upper = await to_end(reader)
                await reader.release({"": upper})
            return {"": found[0][0]}

        return trimmed


class TestTwoPhases:
    """Transactions have a BEGIN and an END, and of those that are prepared it is there then. ST-ING-20, ST-ING-21."""

    @pytest.fixture
    def told(self, table: Table) -> Callable[[], PostgresChanges]:
        return lambda: table.reader(two_phase=True)

    async def test_begin_changes_and_end_are_given_when_they_are_known(
        self, table: Table, told: Callable[[], PostgresChanges]
    ) -> None:
        async with opened(told()) as reader:
            table.sql(
                "begin",
                f"insert into {table.name} values (1, 'a')",
                f"insert into {table.name} values (2, 'b')",
                "prepare transaction 'first'",
            )
            table.sql("begin", f"insert into {table.name} values (3, 'c')", "prepare transaction 'second'")
            table.sql(f"insert into {table.name} values (4, 'd')")
            table.sql("rollback prepared 'second'", "commit prepared 'first'")
            found, _ = await to_end(reader)
        changes = [change for _, change in found]
        first, second, alone = (changes[place]["id"] for place in range(3))
        assert first.startswith("first:")
        assert second.startswith("second:")

        def created(transaction: str, order: int, k: int, v: str) -> dict[str, Any]:
            return {
                "op": "c",
                "before": None,
                "after": {"k": k, "v": v},
                "transaction": {"id": transaction, "total_order": order},
            }

        assert changes == [
            {"status": "BEGIN", "id": first},
            {"status": "BEGIN", "id": second},
            {"status": "BEGIN", "id": alone},
            created(alone, 1, 4, "d"),
            {"status": "END", "id": alone, "event_count": 1},
            {"status": "ABORT", "id": second},
            created(first, 1, 1, "a"),
            created(first, 2, 2, "b"),
            {"status": "END", "id": first, "event_count": 2},
        ]
        addresses = [address for address, _ in found]
        assert addresses == sorted(addresses)
        assert len(set(addresses)) == 5

    async def test_from_wherever_one_begins_an_end_is_the_same(
        self, table: Table, told: Callable[[], PostgresChanges]
    ) -> None:
        """The slot is kept from where a transaction was prepared, until its end is released. ST-ING-6."""
        async with opened(told()) as reader:
            table.sql("begin", f"insert into {table.name} values (1, 'a')", "prepare transaction 'kept'")
            table.sql(f"insert into {table.name} values (2, 'b')")
            before, upper = await to_end(reader)
            await reader.release({"": upper})
            assert table.confirmed() == before[0][0]
            table.sql("commit prepared 'kept'")
            after, end = await to_end(reader)
            assert [change.get("event_count") for _, change in after] == [None, 1]
            async with opened(told(), upper) as late:
                assert (await to_end(late))[0] == after
                await late.release({"": after[0][0]})
                assert table.confirmed() == before[0][0]
                await late.release({"": end})
                assert table.confirmed() == end

    async def test_it_is_the_same_before_and_after_a_transaction_is_rolled_back(
        self, table: Table, told: Callable[[], PostgresChanges]
    ) -> None:
        """As the server has none of its changes any more then; also of one of another table. ST-ING-6."""
        other = Table(table.server)
        try:
            async with opened(told()) as reader:
                for each in (table, other):
                    table.sql(
                        "begin",
                        f"insert into {each.name} values (1, 'a')",
                        f"prepare transaction 'of {each.name}'",
                    )
                table.sql(f"insert into {table.name} values (2, 'b')")
                before, _ = await to_end(reader)
                table.sql(*(f"rollback prepared 'of {each.name}'" for each in (table, other)))
                after, _ = await to_end(reader)
            async with opened(told()) as late:
                assert (await to_end(late))[0] == [*before, *after]
        finally:
            other.drop()
        assert [change.get("status", "row") for _, change in before] == [
            "BEGIN",
            "BEGIN",
            "BEGIN",
            "row",
            "END",
        ]
        assert [(change["status"], change["id"]) for _, change in after] == [
            ("ABORT", change["id"]) for _, change in before[:2]
        ]

    async def test_a_slot_that_was_advanced_past_a_prepared_transaction_lacks_it(
        self, table: Table, told: Callable[[], PostgresChanges]
    ) -> None:
        async with opened(told()) as reader:
            table.sql("begin", f"insert into {table.name} values (1, 'a')", "prepare transaction 'lost'")
            _, upper = await to_end(reader)
        table.sql(f"select pg_replication_slot_advance('{table.slot}', '{as_lsn(upper)}')")
        table.sql("commit prepared 'lost'")
        async with opened(told(), upper) as reader:
            with pytest.raises(AddressGone, match="'lost'"):
                await to_end(reader)
