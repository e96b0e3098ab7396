"""Tables of PostgreSQL in which transaction after transaction is committed, each once, however often it is killed."""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import suppress
from random import Random
from typing import Any

import psycopg

from nebuli.ingestion.readers.postgres_slot import of_lsn
from nebuli.ingestion.source_status import SourceStatus
from tests.nebuli.ingestion.feeds import Contents, Feed, Rows
from tests.support.postgres import Server
from tests.support.waiting import until_async

Connection = psycopg.AsyncConnection[Any]


class PostgresFeed(Feed):
    """Rows that come, are changed, get other keys and go; some of their values are stored apart, and stay."""

    two_phase = False
    columns = "k int primary key, v int, long text"
    schema = "[{name: k, type: int64}, {name: v, type: int64}, {name: long, type: string}]"
    transactions = ""

    def __init__(self, server: Server, seed: int) -> None:
        self._server, self._seed = server, seed
        self._connection: Connection | None = None
        self._end = 0
        self.definition = (
            f"from: {{type: Postgres, url: '{server.url}', publication: changes, slot: ours, table: public.orders, "
            f"two_phase: {str(self.two_phase).lower()}}}\n"
            f"envelope: {{type: debezium, key: [k]{self.transactions}}}\nschema: {self.schema}"
        )

    async def connected(self) -> Connection:
        if self._connection is None:
            self._connection = await psycopg.AsyncConnection.connect(self._server.url, autocommit=True)
        return self._connection

    async def ask(self, statement: str) -> list[Any]:
        return await (await (await self.connected()).execute(statement.encode())).fetchall()

    async def close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            await connection.close()

    async def begin(self) -> None:
        """What was committed before the slot is made is not in it."""
        connection = await self.connected()
        for each in (
            f"create table orders ({self.columns})",
            "create publication changes for table orders",
            "create table progress (n int primary key)",
            *(["alter table orders alter long set storage external"] if "long" in self.columns else []),
            f"select pg_create_logical_replication_slot('ours', 'pgoutput', false, {self.two_phase})",
        ):
            await connection.execute(each.encode())

    async def put(self, number: int) -> None:
        while True:
            with suppress(psycopg.OperationalError):
                if not await self.is_put(number):
                    await self.transact(number)
                return
            await self.close()
            await asyncio.sleep(0.02)

    async def is_put(self, number: int) -> bool:
        """Whether a transaction was committed, whose commit nobody has heard of."""
        return bool(await self.ask(f"select 1 from progress where n = {number}"))

    async def transact(self, number: int) -> None:
        connection = await self.connected()
        async with connection.transaction():
            for each in self.statements(number):
                await connection.execute(each.encode())
            await connection.execute(f"insert into progress values ({number})".encode())

    def _operation(self, number: int) -> tuple[str, int]:
        random = Random(f"{self._seed} {number}")
        return random.choice(["put", "put", "put", "move", "delete"]), random.randrange(20)

    def statements(self, number: int) -> list[str]:
        what, key = self._operation(number)
        if what == "delete":
            return [f"delete from orders where k = {key}"]
        if what == "move":
            return [
                f"delete from orders where k = {key + 100}",
                f"update orders set k = {key + 100} where k = {key}",
            ]
        row = f"{key}, {number}, repeat('{number} ', 1500)"
        return [f"insert into orders values ({row}) on conflict (k) do update set v = {number}"]

    def expected(self, count: int) -> Rows:
        contents: Contents = {}
        for number in range(count):
            what, key = self._operation(number)
            old = contents.pop(key, None)
            if what == "put":
                contents[key] = (key, number, f"{number} " * 1500 if old is None else old[2])
            elif what == "move":
                contents.pop(key + 100, None)
                if old is not None:
                    contents[key + 100] = (key + 100, *old[1:])
        return Counter(contents.values())

    async def end(self) -> None:
        async def is_over() -> bool:
            with suppress(psycopg.OperationalError):
                await self.finish()
                return True
            await self.close()
            return False

        await until_async(is_over, "all transactions have ended")

    async def finish(self) -> None:
        """What is left to be done when all is put, done again if the server was killed meanwhile."""
        ((end,),) = await self.ask("select pg_current_wal_flush_lsn()::text")
        self._end = of_lsn(end)

    async def is_let_go(self, found: SourceStatus) -> bool:
        ((at,),) = await self.ask("select confirmed_flush_lsn::text from pg_replication_slots")
        return of_lsn(at) >= self._end

    def kill(self) -> bool:
        self._server.kill()
        return True

    async def start(self) -> None:
        await asyncio.to_thread(self._server.start)


class TransactionsFeed(PostgresFeed):
    """Transactions of several rows; every third one is prepared, and later on committed, or rolled back."""

    two_phase = True
    columns = "k int primary key, v int"
    schema = "[{name: k, type: int64}, {name: v, type: int64}]"
    transactions = ", transactions: ordered"

    async def transact(self, number: int) -> None:
        """As well as end one that was prepared some time ago: so that others were committed first."""
        await self._resolve(number - 4)
        if number % 3:
            await super().transact(number)
            return
        connection = await self.connected()
        await connection.execute(b"begin")
        for each in (*self.statements(number), f"prepare transaction 'number {number}'"):
            await connection.execute(each.encode())

    async def is_put(self, number: int) -> bool:
        return await super().is_put(number) or number in await self._prepared()

    async def _prepared(self) -> list[int]:
        return [int(gid.split()[1]) for (gid,) in await self.ask("select gid from pg_prepared_xacts")]

    async def _resolve(self, upto: int) -> None:
        for each in sorted(await self._prepared()):
            if each <= upto:
                how = "commit" if _holds(each) else "rollback"
                await (await self.connected()).execute(f"{how} prepared 'number {each}'".encode())

    async def finish(self) -> None:
        await self._resolve(10**9)
        await super().finish()

    def statements(self, number: int) -> list[str]:
        k, old = 3 * number, 3 * (number - 10)
        return [
            f"insert into orders values ({k}, {number}), ({k + 1}, {number}), ({k + 2}, {number})",
            f"delete from orders where k = {old}",
            f"update orders set v = {number} where k = {old + 1}",
        ]

    def expected(self, count: int) -> Rows:
        contents: Contents = {}
        for number in filter(_holds, range(count)):
            contents |= {k: (k, number) for k in range(3 * number, 3 * number + 3)}
            old = 3 * (number - 10)
            contents.pop(old, None)
            if old + 1 in contents:
                contents[old + 1] = (old + 1, number)
        return Counter(contents.values())

    def check_changes(self, changes: dict[int, Rows]) -> None:
        """Each transaction is there at once, and behind those that began before it. ST-ING-20, ST-ING-21."""
        came = {row: at for at, rows in changes.items() for row, weight in rows.items() if weight > 0}
        last = 0
        for number in sorted(value for k, value in came if k == 3 * value + 2):
            k = 3 * number
            at = came[k + 2, number]
            assert at >= last, f"transaction {number} is there before one that began earlier"
            last = at
            for part in (k, k + 1):
                gone = changes[at].get((part, number), 0) == 0  # as a later one of the same time took it away
                assert came.get((part, number), at) == at, f"transaction {number} is there in parts"
                assert not gone or (part, number) not in came


def _holds(number: int) -> bool:
    """Whether it is committed in the end: of those that are prepared, every other one."""
    return number % 6 != 3
