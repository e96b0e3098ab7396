"""The ordering in Postgres: what becomes of it where the server is away, stands still, or is not as it should be."""

from __future__ import annotations

import select
import threading
from collections.abc import Iterator
from dataclasses import replace

import psycopg
import pytest

from nebuli.store.errors import EntryDamaged, StoreAway, StoreBusy, StoreUnusable, Unclear
from nebuli.store.ordering import Change
from nebuli.store.ordering.postgres import PostgresOrdering
from nebuli.store.store_url import StoreUrl
from tests.support.postgres import Server, server
from tests.support.stores import fill, found

pytestmark = pytest.mark.processes


@pytest.fixture
def ordering(database: StoreUrl) -> Iterator[PostgresOrdering]:
    made = PostgresOrdering(database)
    made.open()
    yield made
    made.close()


@pytest.fixture
def own() -> Iterator[Server]:
    """A server that can be stopped."""
    with server() as running:
        yield running


def at(server: Server) -> StoreUrl:
    return StoreUrl(server.url, "nebuli", "s3://none")


def execute(url: StoreUrl, statement: str) -> list[tuple[object, ...]]:
    with psycopg.connect(url.server, autocommit=True) as connection:
        cursor = connection.execute(statement.encode())
        return cursor.fetchall() if cursor.description else []


def named(database: StoreUrl) -> str:
    return f'"{database.schema}"'


def test_what_a_killed_server_acknowledged_is_there_and_the_rest_is_unclear(own: Server) -> None:
    """Whoever reads waits until it is back; a bell rings then, as something may have been missed."""
    ordering = PostgresOrdering(at(own))
    ordering.open()
    fill(ordering, "a", b"1", b"2")
    bell = ordering.bell()
    own.kill()
    with pytest.raises(
        Unclear, match=r"writing postgresql://tests@127\.0\.0\.1:\d+/postgres \(schema nebuli\)"
    ):
        ordering.append([Change("a", 2, b"3")])
    starting = threading.Thread(target=own.start)
    starting.start()
    assert found(ordering, "a") == [(1, b"1"), (2, b"2")]
    starting.join()
    assert select.select([bell], [], [], 30)[0] == [bell]
    bell.silence()
    fill(ordering, "a", b"3")
    assert select.select([bell], [], [], 30)[0] == [bell]
    bell.close()
    ordering.close()


def test_a_server_that_stays_away_is_waited_for_so_long(own: Server) -> None:
    ordering = PostgresOrdering(at(own), away_s=0.5)
    ordering.open()
    own.stop()
    with pytest.raises(StoreAway, match=r"did not answer for 0\.[56]\d* s .*nothing was changed"):
        ordering.heads(["a"])
    with pytest.raises(StoreUnusable, match=r"cannot be used as a store: .*refused"):
        PostgresOrdering(at(own), open_s=0.1).open()
    own.start()
    assert ordering.heads(["a"]) == {"a": 0}
    ordering.close()


def test_another_writer_is_waited_for_so_long(database: StoreUrl, ordering: PostgresOrdering) -> None:
    fill(ordering, "a", b"1")
    hasty = PostgresOrdering(database, busy_s=0.05)
    hasty.open()
    with psycopg.connect(database.server) as writer:
        writer.execute(f"update {named(database)}.logs set head = head".encode())
        with pytest.raises(StoreBusy, match=r"was locked by other processes for 0\.05 s"):
            hasty.append([Change("a", 1, b"x")])
        assert hasty.heads(["a"]) == {"a": 1}  # who reads does not wait
        writer.rollback()
    hasty.append([Change("a", 1, b"x")])
    hasty.close()


@pytest.mark.parametrize("column", [r"data = '\x00'", "sequence = sequence + 1", "checksum = checksum + 1"])
def test_an_entry_that_is_not_as_it_was_written_is_found(
    database: StoreUrl, ordering: PostgresOrdering, column: str
) -> None:
    fill(ordering, "a", b"as it was")
    execute(database, f"update {named(database)}.entries set {column}")
    with pytest.raises(EntryDamaged, match=r"of a is damaged: its checksum is [0-9a-f]{16}, but it was"):
        ordering.scan("a", 0)


def test_entries_can_be_looked_at_by_their_keys(database: StoreUrl, ordering: PostgresOrdering) -> None:
    fill(ordering, "a", b"1", b"2")
    fill(ordering, "b", b"3")
    rows = execute(database, f"select key, sequence, data from {named(database)}.log order by key, sequence")
    assert rows == [("a", 1, b"1"), ("a", 2, b"2"), ("b", 1, b"3")]


def test_a_schema_of_another_format_is_left_alone(database: StoreUrl, ordering: PostgresOrdering) -> None:
    execute(database, f"update {named(database)}.store set format = 7")
    with pytest.raises(StoreUnusable, match=r"has format 7, but this program reads format 1: .*schema=NAME"):
        PostgresOrdering(database).open()


def test_a_server_that_forgets_what_it_acknowledged_is_refused(own: Server) -> None:
    execute(at(own), "alter system set fsync = off")
    execute(at(own), "select pg_reload_conf()")
    with pytest.raises(
        StoreUnusable,
        match=r"has fsync = off, and loses .*: set it to on in "
        r"postgresql\.conf",
    ):
        PostgresOrdering(at(own)).open()


def test_appends_are_durable_whatever_the_server_does_for_others(own: Server) -> None:
    execute(at(own), "alter system set synchronous_commit = off")
    execute(at(own), "select pg_reload_conf()")
    ordering = PostgresOrdering(at(own))
    ordering.open()
    fill(ordering, "a", *[b"%d" % number for number in range(50)])
    own.kill()
    own.start()
    assert len(found(ordering, "a")) == 50
    ordering.close()


def test_who_is_not_let_in_does_not_wait(postgres: Server) -> None:
    url = StoreUrl(postgres.url.replace("/postgres", "/nothing"), "nebuli", "s3://none")
    with pytest.raises(
        StoreUnusable, match=r'cannot be used as a store: .*database "nothing" does not exist'
    ):
        PostgresOrdering(url, open_s=300).open()


def test_a_store_is_not_opened_with_other_blobs_than_it_was_made_with(
    database: StoreUrl, ordering: PostgresOrdering
) -> None:
    other = PostgresOrdering(replace(database, blobs="s3://none/other"))
    with pytest.raises(
        StoreUnusable, match=r"has its blobs at s3://none/test_\d+/[0-9a-f]{8}, but the URL has"
    ):
        other.open()


def test_stores_of_two_databases_do_not_share_blobs_though_all_their_names_are_equal(
    database: StoreUrl, ordering: PostgresOrdering
) -> None:
    execute(database, "create database another")
    other = PostgresOrdering(replace(database, server=database.server.replace("/postgres", "/another")))
    other.open()
    assert other.blobs != ordering.blobs
    other.close()
    again = PostgresOrdering(database)
    again.open()
    assert again.blobs == ordering.blobs
    again.close()


def test_a_password_is_not_said() -> None:
    ordering = PostgresOrdering(
        StoreUrl("postgresql://me:hidden@127.0.0.1:1/db?password=hidden", "nebuli", "s3://none"), open_s=0
    )
    with pytest.raises(StoreUnusable) as raised:
        ordering.open()
    assert "hidden" not in str(raised.value)
    assert "postgresql://me@127.0.0.1:1/db" in str(raised.value)


def test_stores_of_several_schemas_do_not_see_each_other(
    database: StoreUrl, ordering: PostgresOrdering
) -> None:
    other = PostgresOrdering(database / "another")
    other.open()
    fill(ordering, "a", b"1")
    assert other.heads(["a"]) == {"a": 0}
    lock = ordering.lock("b")
    other.lock("b").close()
    lock.close()
    other.close()
