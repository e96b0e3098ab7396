"""Tables of PostgreSQL, from their server to the collection, by instances that are killed on the way."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest

from nebuli.ingestion.definition import parse_definition
from nebuli.ingestion.readers.postgres_slot import of_lsn
from nebuli.ingestion.source_client import Sources
from tests.nebuli.ingestion.instance_processes import InstanceProcesses, instance_processes
from tests.nebuli.store.collections.rows import counted
from tests.support.postgres import Server, server
from tests.support.waiting import until_async

pytestmark = [pytest.mark.processes, pytest.mark.long]

_SCHEMA = {
    "int": "[{name: k, type: int64}, {name: v, type: int64}]",
    "text": "[{name: k, type: int64}, {name: v, type: int64}, {name: long, type: string}]",
}


@pytest.fixture(scope="module")
def running() -> Iterator[Server]:
    with server(wal_level="logical", max_prepared_transactions=5) as started:
        yield started


class Ingested:
    """A table of a server, with the source that it is ingested by."""

    def __init__(self, started: Server, sources: Sources, instances: InstanceProcesses) -> None:
        self._server, self._sources, self.instances = started, sources, instances

    def sql(self, *statements: str) -> list[Any]:
        """Each in a transaction of its own, unless they say otherwise."""
        with psycopg.connect(self._server.url, autocommit=True) as connection:
            for each in statements:
                found = connection.execute(each.encode())
            return found.fetchall() if found.description else []

    async def has(self, *rows: tuple[Any, ...]) -> None:
        """Wait until these are all that is in the collection, once all is ingested that the server has now."""
        ((end,),) = self.sql("select pg_current_wal_flush_lsn()::text")
        found: Counter[tuple[Any, ...]] = Counter()

        async def is_ingested() -> bool:
            nonlocal found
            status = await self._sources.describe("orders")
            if status.raw_sources["data"].addresses.get("", 0) < of_lsn(end):
                return False
            found = counted(await self._sources.collections.snapshot("orders", status.remap_upper - 1))
            return True

        await until_async(is_ingested, f"all is ingested below {end}")
        assert found == Counter(rows)


@asynccontextmanager
async def ingested(
    running: Server, folder: Path, columns: str, envelope: str, *, two_phase: bool
) -> AsyncIterator[Ingested]:
    async with (
        Sources(folder / "store") as sources,
        instance_processes(folder / "store", "orders") as instances,
    ):
        table = Ingested(running, sources, instances)
        table.sql(
            f"create table orders (k int primary key, v int{', long text' if columns == 'text' else ''})",
            "create publication changes for table orders",
        )
        await sources.create(
            parse_definition(
                f"name: orders\nfrom: {{type: Postgres, url: '{running.url}', publication: changes, slot: ours, "
                f"table: public.orders, two_phase: {str(two_phase).lower()}}}\n"
                f"envelope: {{type: debezium, key: [k]{envelope}}}\nschema: {_SCHEMA[columns]}"
            )
        )
        try:
            instances.have(1)

            async def is_made() -> bool:
                return bool(
                    table.sql("select 1 from pg_replication_slots where confirmed_flush_lsn is not null")
                )

            await until_async(is_made, "the slot is made")
            yield table
        finally:
            instances.kill_all()
            assert await sources.drop("orders") is None
            table.sql("drop publication changes", "drop table orders")


@pytest.mark.parametrize("variant", ["complete", "ordered"])
async def test_prepared_transactions_are_there_when_they_are_whole(
    running: Server, tmp_path: Path, variant: str
) -> None:
    """ST-ING-20, ST-ING-21: and where they are ordered, not before those that began earlier."""
    is_ordered = variant == "ordered"
    async with ingested(running, tmp_path, "int", f", transactions: {variant}", two_phase=True) as table:
        for k, name in ((1, "earlier"), (2, "later")):
            table.sql(
                "begin",
                f"insert into orders values ({k}, 0), ({k + 10}, 0)",
                f"prepare transaction '{name}'",
            )
        await table.has()
        table.instances.kill_all()
        table.sql("commit prepared 'later'", "insert into orders values (3, 0)")
        table.instances.have(2)
        await table.has(*([] if is_ordered else [(2, 0), (12, 0), (3, 0)]))
        table.instances.kill_all()
        table.instances.have(1)
        table.sql("update orders set v = 1 where k = 3")
        await table.has(*([] if is_ordered else [(2, 0), (12, 0), (3, 1)]))
        table.instances.kill_all()
        table.sql("commit prepared 'earlier'")
        table.instances.have(2)
        await table.has((1, 0), (11, 0), (2, 0), (12, 0), (3, 1))


async def test_a_transaction_that_is_rolled_back_keeps_nobody_waiting(
    running: Server, tmp_path: Path
) -> None:
    """ST-ING-21: and leaves nothing."""
    async with ingested(running, tmp_path, "int", ", transactions: ordered", two_phase=True) as table:
        table.sql("begin", "insert into orders values (1, 0)", "prepare transaction 'undone'")
        table.sql("insert into orders values (2, 0)")
        await table.has()
        table.instances.kill_all()
        table.sql("rollback prepared 'undone'")
        table.instances.have(1)
        await table.has((2, 0))


async def test_what_is_stored_apart_and_not_changed_stays_as_it_was(running: Server, tmp_path: Path) -> None:
    """Also where its row gets another key, or was read by an instance that was killed since."""
    one, two = "one" * 2000, "two" * 2000
    async with ingested(running, tmp_path, "text", "", two_phase=False) as table:
        table.sql(
            "alter table orders alter long set storage external",
            f"insert into orders values (1, 0, '{one}'), (2, 0, '{two}'), (3, 0, null)",
            "update orders set v = v + 1",
        )
        await table.has((1, 1, one), (2, 1, two), (3, 1, None))
        table.instances.kill_all()
        table.sql("update orders set k = k + 10 where k < 3", "update orders set v = 5 where k = 11")
        table.instances.have(1)
        await table.has((11, 5, one), (12, 1, two), (3, 1, None))
        table.sql(
            "update orders set long = null where k = 11", f"update orders set long = '{one}' where k = 3"
        )
        await table.has((11, 5, None), (12, 1, two), (3, 1, one))
