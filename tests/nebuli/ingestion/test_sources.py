"""Sources: what there is of them, built anew, dropped; from files of lines, with instances in this process."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from nebuli.ingestion import instance as instance_module
from nebuli.ingestion.connector_factory import decoder_of
from nebuli.ingestion.decoding.json_decoder import JsonDecoder
from nebuli.ingestion.definition import Definition, parse_definition
from nebuli.ingestion.entries import Entry
from nebuli.ingestion.errors import DefinitionInvalid, SourceExists, SourceRefused, SourceUnknown
from nebuli.ingestion.message_addresses import Messages
from nebuli.ingestion.source_client import Sources
from nebuli.store.collections.errors import CollectionUnknown
from tests.nebuli.store.collections.rows import Accumulated
from tests.support.waiting import until_async


@pytest.fixture
async def sources(tmp_path: Path) -> AsyncIterator[Sources]:
    async with Sources(tmp_path / "store") as opened:
        yield opened


@pytest.fixture
def lines(tmp_path: Path) -> Path:
    return tmp_path / "orders.jsonl"


def add(lines: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    with lines.open("a", encoding="utf-8") as file:
        file.writelines(f"{json.dumps(row)}\n" for row in rows)


def orders(first: int, count: int) -> list[dict[str, Any]]:
    return [{"id": each, "amount": each * 10} for each in range(first, first + count)]


def definition(lines: Path, more: str = "", name: str = "orders") -> Definition:
    return parse_definition(
        f"name: {name}\nfrom: {{type: File, path: '{lines}'}}\nformat: JSON\n{more}\n"
        "schema: [{name: id, type: int64}, {name: amount, type: int64}]\n"
    )


def counted(rows: Iterable[Mapping[str, Any]]) -> Counter[tuple[Any, ...]]:
    return Counter(tuple(row.values()) for row in rows)


@asynccontextmanager
async def ingesting(sources: Sources, name: str = "orders", instances: int = 1) -> AsyncIterator[None]:
    tasks = [asyncio.create_task(sources.ingest(name, instance=str(each))) for each in range(instances)]
    try:
        yield
        for each in tasks:
            if each.done() and not each.cancelled():
                each.result()
    finally:
        for each in tasks:
            each.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def until_there(sources: Sources, expected: Iterable[Mapping[str, Any]], name: str = "orders") -> None:
    wanted = counted(expected)

    async def there() -> bool:
        if not (await sources.collections.describe(name)).upper:
            return False
        return counted((await sources.collections.snapshot(name)).to_pylist()) == wanted

    await until_async(there, f"{wanted.total()} rows are in {name}")


async def test_what_comes_into_a_file_comes_into_the_collection(sources: Sources, lines: Path) -> None:
    """ST-COL-2, ST-ING-13: also what comes later, and it is there when everything was stopped."""
    add(lines, orders(0, 5))
    await sources.create(definition(lines))
    async with ingesting(sources, instances=2):
        await until_there(sources, orders(0, 5))
        add(lines, orders(5, 3))
        await until_there(sources, orders(0, 8))
    add(lines, orders(8, 2))
    async with ingesting(sources):
        await until_there(sources, orders(0, 10))
    assert await sources.names() == ["orders"]


async def test_all_raw_sources_and_states_of_a_source_are_known(sources: Sources, lines: Path) -> None:
    """ST-ING-9, ST-ING-12: a registry is one; and a stateful envelope has collections of its own."""
    lines.touch()
    envelope = (
        "envelope: {type: debezium, key: [id], transactions: ordered, metadata: {type: File, path: "
        f"{lines.with_suffix('.meta')}}}}}\nraw: true"
    )
    await sources.create(definition(lines, envelope))
    found = await sources.describe("orders")
    assert [*found.raw_sources] == ["data", "metadata"]
    assert await sources.collections.list() == ["orders", "orders.raw", "orders.transactions"]
    await sources.create(
        parse_definition(
            f"name: others\nfrom: {{type: File, path: {lines}}}\n"
            "format: {type: Avro, registry: 'http://127.0.0.1:9'}\nschema: [{name: id, type: int64}]\n"
        )
    )
    found = await sources.describe("others")
    assert [*found.raw_sources] == ["data", "registry"]
    assert "http://127.0.0.1:9" in found.raw_sources["registry"].reads


async def test_lag_is_what_the_source_has_and_the_remap_has_not(sources: Sources, lines: Path) -> None:
    """ST-AUX-1: shown for each raw source, in its unit."""
    add(lines, orders(0, 5))
    await sources.create(definition(lines))
    size = lines.stat().st_size
    found = (await sources.describe("orders")).raw_sources["data"]
    assert (found.lag, found.unit, found.addresses, found.ends) == (size, "bytes", {}, {str(lines): size})
    async with ingesting(sources):
        await until_there(sources, orders(0, 5))
    add(lines, orders(5, 1))
    found = (await sources.describe("orders")).raw_sources["data"]
    assert found.addresses == {str(lines): size}
    assert found.lag == lines.stat().st_size - size


class Doubling(JsonDecoder):
    """A mistake: amounts are twice what they are."""

    def decode(self, messages: Messages, facts: Mapping[str, bytes]) -> Messages:
        found = super().decode(messages, facts)
        rows = [{**row, "amount": 2 * row["amount"]} for row in found.rows.to_pylist()]
        return found.made_of(type(found.rows).from_pylist(rows, schema=found.rows.schema))


@pytest.mark.parametrize("instances", [1, 3])
async def test_a_mended_decoder_makes_it_anew_without_the_source(
    sources: Sources, lines: Path, monkeypatch: pytest.MonkeyPatch, instances: int
) -> None:
    """ST-VAR-1, ST-COL-4: from the raw messages, by a handover; who follows it sees what differs."""
    add(lines, orders(0, 50))
    await sources.create(definition(lines, "raw: true\nenvelope: {type: upsert, key: [id]}"))
    doubled = [{**row, "amount": 2 * row["amount"]} for row in orders(0, 50)]
    with monkeypatch.context() as patch:
        patch.setattr(
            instance_module,
            "decoder_of",
            lambda definition, wants: Doubling(wants, source=definition.name),
        )
        async with ingesting(sources, instances=instances):
            await until_there(sources, doubled)
    kept = lines.read_bytes()
    lines.unlink()  # the source is away
    follower = Accumulated()
    at = await sources.collections.latest("orders")
    async with aclosing(sources.collections.subscribe("orders", at, snapshot=True)) as spans:
        follower.take(await anext(spans))
        entry = await sources.rebuild("orders")
        assert entry.version == 2
        async with ingesting(sources, instances=instances):
            await until_there(sources, orders(0, 50))
            assert (await sources.describe("orders")).active == "r2"
            while +follower.now != counted(orders(0, 50)):
                follower.take(await anext(spans))
            lines.write_bytes(kept)  # it is there again, and goes on
            add(lines, [{"id": 7, "amount": -1}])
            wanted = [{**row, "amount": -1} if row["id"] == 7 else row for row in orders(0, 50)]
            await until_there(sources, wanted)
    assert +follower.now == counted(orders(0, 50))


async def test_made_anew_the_last_of_a_key_is_the_one_that_came_last(
    sources: Sources, tmp_path: Path
) -> None:
    """ST-VAR-1: as it was then, also where files came in another order than that of their names."""
    await sources.create(definition(tmp_path / "*.jsonl", "raw: true\nenvelope: {type: upsert, key: [id]}"))
    async with ingesting(sources, instances=2):
        for name, amount in (("b", 1), ("a", 2), ("c", 3), ("b", 4)):
            add(tmp_path / f"{name}.jsonl", [{"id": 1, "amount": amount}])
            await until_there(sources, [{"id": 1, "amount": amount}])
        await sources.rebuild("orders")

        async def anew() -> bool:
            return (await sources.describe("orders")).active == "r2"

        await until_async(anew, "it is made anew")
        await until_there(sources, [{"id": 1, "amount": 4}])


@pytest.mark.parametrize("is_seen", [True, False])
async def test_another_file_in_the_place_of_one_is_not_read_on(
    sources: Sources, lines: Path, is_seen: bool
) -> None:
    """ST-ING-6: however often that is tried again, also by who has not read the first one; which may come back."""
    add(lines, orders(10, 5))
    await sources.create(definition(lines))

    async def refused() -> None:
        at = await sources.collections.latest("orders")

        async def times_go_on() -> bool:
            (instance,) = await sources.instances("orders")
            return "another file has replaced it" in (instance.error or "") and instance.upper > at + 3000

        await until_async(times_go_on, "it was tried again for seconds")
        assert counted((await sources.collections.snapshot("orders")).to_pylist()) == counted(orders(10, 5))

    def put_another() -> None:
        lines.write_bytes(b"")
        add(lines, orders(30, 40))

    kept = lines.read_bytes()
    async with ingesting(sources):
        await until_there(sources, orders(10, 5))
        if is_seen:
            put_another()
            await refused()
    if not is_seen:
        put_another()
    found = (await sources.describe("orders")).raw_sources["data"]
    assert "another file has replaced it" in str(found.error)
    async with ingesting(sources):
        await refused()
        lines.write_bytes(kept)
        add(lines, orders(15, 1))
        await until_there(sources, orders(10, 6))


async def test_without_raw_messages_files_are_read_again(sources: Sources, lines: Path) -> None:
    """ST-COL-4: a source that has all of its messages is read from the first one on."""
    add(lines, [*orders(0, 20), *orders(0, 20)])
    await sources.create(definition(lines))
    async with ingesting(sources, instances=2):
        await until_there(sources, [*orders(0, 20), *orders(0, 20)])
        await sources.rebuild("orders", definition(lines, "envelope: {type: upsert, key: [id]}"))
        await until_there(sources, orders(0, 20))
    assert (await sources.describe("orders")).active == "r2"


@pytest.mark.parametrize("wrong", ["no JSON\n", '{"id": "five"}\n', '{"amount": 5}\n'])
@pytest.mark.parametrize("instances", [1, 2])
async def test_what_is_before_a_message_that_cannot_be_is_ingested(
    sources: Sources, lines: Path, wrong: str, instances: int
) -> None:
    """Also what comes into other files; and it goes on once it is put right, whether it is longer then, or gone."""
    others = lines.with_name("others.jsonl")
    add(lines, orders(0, 5))
    size = lines.stat().st_size
    with lines.open("a", encoding="utf-8") as file:
        file.write(wrong)
    add(lines, orders(5, 3))
    more = "on_error: wait\nenvelope: {type: upsert, key: [id]}"
    await sources.create(definition(lines.with_name("*.jsonl"), more))

    async def told() -> bool:
        return f"the message at {size} of {lines}: " in str((await sources.describe("orders")).last_error)

    async with ingesting(sources, instances=instances):
        await until_there(sources, orders(0, 5))
        await until_async(told, "it is said which message it is")
        add(others, orders(100, 4))
        await until_there(sources, orders(0, 5) + orders(100, 4))
        lines.write_text(lines.read_text("utf-8").replace(wrong, ""), "utf-8")
        await until_there(sources, orders(0, 8) + orders(100, 4))
        add(lines, orders(8, 4))
        await until_there(sources, orders(0, 12) + orders(100, 4))

        async def all_run() -> bool:
            return {each.health for each in (await sources.describe("orders")).instances} == {"running"}

        await until_async(all_run, "no instance keeps what it has read of the wrong one")


@pytest.mark.parametrize("instances", [1, 2])
async def test_one_that_cannot_be_made_anew_leaves_what_there_is(
    sources: Sources, lines: Path, instances: int
) -> None:
    """ST-VAR-1: however often it is tried; the rendition before stays, and a definition that can gets all of it."""
    rows = [*orders(0, 5), {"amount": 7}, *orders(6, 4)]
    add(lines, rows)
    expected = [{"id": row.get("id"), "amount": row["amount"]} for row in rows]
    await sources.create(definition(lines, "raw: true"))
    async with ingesting(sources, instances=instances):
        await until_there(sources, expected)
        written = await sources.collections.latest("orders.raw")

        async def later() -> bool:
            return await sources.collections.latest("orders.raw") > written

        await until_async(later, "the messages are of a time before the one that it is made anew from")
        keyed = "raw: true\non_error: wait\nenvelope: {type: upsert, key: [id]}"
        await sources.rebuild("orders", definition(lines, keyed))
        times = set()

        async def told_again() -> bool:
            found = await sources.describe("orders")
            if "column id of the key is null" in str(found.last_error):
                times.add(found.last_error_at)
            return len(times) > 2

        await until_async(told_again, "it is tried again, and said again")
        assert (await sources.describe("orders")).active == "r1"
        await until_there(sources, expected)
        await sources.rebuild("orders", definition(lines, "raw: true"))

        async def anew() -> bool:
            return (await sources.describe("orders")).active == "r3"

        await until_async(anew, "it is made anew")
        await until_there(sources, expected)
        add(lines, orders(10, 1))
        await until_there(sources, [*expected, *orders(10, 1)])


@pytest.mark.parametrize("more", ["", "raw: true", "envelope: {type: upsert, key: [id]}"])
async def test_messages_that_cannot_be_decoded_are_collected_and_hold_up_nothing(
    sources: Sources, lines: Path, more: str
) -> None:
    """With their places and bytes, once, by two instances; and counted."""
    add(lines, orders(0, 3))
    expected = []
    for wrong in ("no JSON", '{"id": "five"}', "[1]"):
        expected.append((str(lines), lines.stat().st_size, wrong.encode()))
        with lines.open("a", encoding="utf-8") as file:
            file.write(f"{wrong}\n")
        add(lines, orders(len(expected) * 3, 3))
    await sources.create(definition(lines, more))
    assert "orders.errors" in await sources.collections.list()
    async with ingesting(sources, instances=2):
        await until_there(sources, orders(0, 12))
        at = await sources.collections.latest("orders")
        errors = await sources.collections.snapshot("orders.errors", at)
        found = [(each["part"], each["address"], each["payload"].strip()) for each in errors.to_pylist()]
        assert sorted(found) == sorted(expected)
        for each in errors.to_pylist():
            assert f"the message at {each['address']} of {lines}: " in each["error"]
            assert each["source"] == "data"
        found_status = await sources.describe("orders")
        assert (found_status.undecoded, found_status.error) == (3, None)
    async with ingesting(sources):
        add(lines, orders(12, 1))
        await until_there(sources, orders(0, 13))
        assert (await sources.describe("orders")).undecoded == 3
    await sources.drop("orders")
    assert await sources.collections.list() == []


async def test_a_mended_definition_takes_messages_out_of_the_errors(sources: Sources, tmp_path: Path) -> None:
    """ST-VAR-1: what could not be decoded is a row from the handover on, and no error any more."""
    file = tmp_path / "orders.csv"
    file.write_text("id,amount\n1,10\n2,unknown\n3,30\n", "utf-8")

    def csv(nulls: str) -> Definition:
        return parse_definition(
            f"name: orders\nfrom: {{type: File, path: '{file}'}}\nformat: {{type: CSV, nulls: [{nulls}]}}\n"
            "raw: true\nschema: [{name: id, type: int64}, {name: amount, type: int64}]\n"
        )

    await sources.create(csv("''"))
    rows = [{"id": 1, "amount": 10}, {"id": 3, "amount": 30}]
    async with ingesting(sources):
        await until_there(sources, rows)
        assert (await sources.describe("orders")).undecoded == 1
        await sources.rebuild("orders", csv("unknown"))
        await until_there(sources, [*rows, {"id": 2, "amount": None}])

        async def none_left() -> bool:
            return (await sources.describe("orders")).undecoded == 0

        await until_async(none_left, "the collection of errors is handed over, too")


@pytest.mark.parametrize("more", ["", "raw: true", "envelope: {type: upsert, key: [id]}"])
@pytest.mark.parametrize("wrong", ["no JSON\n", '{"id": "five"}\n'])
async def test_a_message_that_can_be_mended_nowhere_is_passed_over(
    sources: Sources, lines: Path, more: str, wrong: str
) -> None:
    """By all instances; all others are ingested, and made anew it is asked for again."""
    add(lines, orders(0, 5))
    size = lines.stat().st_size
    with lines.open("a", encoding="utf-8") as file:
        file.write(wrong)
    add(lines, orders(5, 3))
    await sources.create(definition(lines, f"{more}\non_error: wait"))

    def it_is_told_by(rendition: str) -> Callable[[], Awaitable[bool]]:
        async def told() -> bool:
            found = await sources.describe("orders")
            said = f"skip the message: 'nebuli source skip orders {size} --part {lines}'"
            return found.rendition == rendition and said in str(found.last_error)

        return told

    async with ingesting(sources, instances=2):
        await until_async(it_is_told_by("r1"), "it is said which message it is")
        await sources.skip("orders", size, part=str(lines))
        await until_there(sources, orders(0, 8))
        add(lines, orders(8, 2))
        await until_there(sources, orders(0, 10))
        await sources.rebuild("orders")
        await until_async(it_is_told_by("r2"), "it is asked for again")
        await sources.skip("orders", size, part=str(lines))

        async def anew() -> bool:
            return (await sources.describe("orders")).active == "r2"

        await until_async(anew, "it is made anew")
        await until_there(sources, orders(0, 10))
    async with ingesting(sources, instances=1):
        add(lines, orders(10, 2))
        await until_there(sources, orders(0, 12))


async def test_a_rebuild_may_want_a_state_that_there_was_not_and_another_need_it_no_more(
    sources: Sources, lines: Path
) -> None:
    """ST-VAR-1: what was only begun is not kept, and nothing is left of any when the source is dropped."""
    changes = [
        {"before": None, "after": row, "op": "c", "transaction": {"id": "1", "total_order": place + 1}}
        for place, row in enumerate(orders(0, 3))
    ]
    add(lines, [{"status": "BEGIN", "id": "1"}, *changes])
    more = "envelope: {type: debezium, key: [id]%s}"
    await sources.create(definition(lines, more % ""))

    async def until_active(rendition: str) -> None:
        async def active() -> bool:
            found = await sources.describe("orders")
            return found.active == rendition

        await until_async(active, f"the collection is {rendition}")

    async with ingesting(sources, instances=2):
        await until_active("r1")
        await sources.rebuild("orders", definition(lines, more % ", transactions: complete"))
        await until_active("r2")
        add(lines, [{"status": "END", "id": "1", "event_count": 3}])
        await until_there(sources, orders(0, 3))
        assert await sources.collections.list() == ["orders", "orders.errors", "orders.transactions"]
    await sources.rebuild("orders", definition(lines, more % ""))
    await sources.collections.new_rendition("orders", rendition="r3")  # as the first instance does
    await sources.rebuild("orders", definition(lines, more % ""))
    async with ingesting(sources, instances=2):
        await until_active("r4")

        async def overtaken() -> list[str]:
            found = (await sources.collections.describe("orders")).renditions
            return [each.name for each in found if each.begin is None]

        async def gone() -> bool:
            return not await overtaken()

        await until_async(gone, "what was overtaken is not there any more")
        await sources.drop("orders")
    assert await sources.collections.list() == []


async def test_a_rebuild_takes_no_collection_of_somebody_else(sources: Sources, lines: Path) -> None:
    await sources.create(definition(lines))
    columns = pa.schema([("id", pa.int64())])
    await sources.collections.create("orders.transactions", columns)
    await sources.collections.insert("orders.transactions", pa.record_batch([[1]], schema=columns))
    more = "envelope: {type: debezium, key: [id], transactions: complete}"
    with pytest.raises(SourceRefused, match=r"orders\.transactions, which exists already"):
        await sources.rebuild("orders", definition(lines, more))
    assert (await sources.entry("orders")).version == 1


async def test_times_before_one_that_cannot_be_are_written(sources: Sources) -> None:
    """ST-VAR-1: of a collection, whose times are as they are."""
    schema = pa.schema([("payload", pa.binary())])
    await sources.collections.create("messages", schema)
    await sources.create(
        parse_definition(
            "name: orders\nfrom: {type: Collection, collection: messages}\nformat: JSON\non_error: wait\n"
            "schema: [{name: id, type: int64}]\n"
        )
    )
    times = [
        await sources.collections.insert("messages", pa.record_batch([[each]], schema=schema))
        for each in (b'{"id": 1}', b'{"id": 2}', b"no JSON", b'{"id": 4}')
    ]
    async with ingesting(sources, instances=2):
        await until_there(sources, [{"id": 1}, {"id": 2}])

        async def told() -> bool:
            return f"of time {times[2]}: not JSON" in str((await sources.describe("orders")).last_error)

        await until_async(told, "it is said which message it is")
        assert (await sources.collections.describe("orders")).upper <= times[2]


async def test_a_collection_is_a_source_of_another_one(sources: Sources, lines: Path) -> None:
    """ST-VAR-1: what is reclocked already is decoded at its times, also what came before the source was made."""
    add(lines, orders(0, 5))
    await sources.create(definition(lines))
    async with ingesting(sources):
        await until_there(sources, orders(0, 5))
        await sources.create(
            parse_definition(
                "name: amounts\nfrom: {type: Collection, collection: orders}\n"
                "envelope: {type: upsert, key: [amount]}\nschema: [{name: amount, type: int64}]\n"
            )
        )
        async with ingesting(sources, "amounts", 2):
            await until_there(sources, [{"amount": each * 10} for each in range(5)], "amounts")
            add(lines, orders(5, 2))
            await until_there(sources, [{"amount": each * 10} for each in range(7)], "amounts")
            latest = await sources.collections.latest("amounts")
    at = [each.time for each in (await sources.describe("amounts")).holds if each.name == "source/amounts"]
    assert at
    assert at[0] <= latest


async def test_another_collection_of_the_name_is_not_taken_for_the_first_one(
    sources: Sources, lines: Path
) -> None:
    """What is made of both would be of neither; a rebuild makes it of the one that is there."""
    columns = definition(lines).schema
    await sources.collections.create("first", columns)
    await sources.collections.insert("first", pa.RecordBatch.from_pylist(orders(0, 3), columns))
    await sources.create(
        parse_definition(
            "name: orders\nfrom: {type: Collection, collection: first}\n"
            "schema: [{name: id, type: int64}, {name: amount, type: int64}]\n"
        )
    )
    async with ingesting(sources):
        await until_there(sources, orders(0, 3))
        await sources.collections.drop("first")
        await sources.collections.create("first", columns)
        await sources.collections.insert("first", pa.RecordBatch.from_pylist(orders(5, 2), columns))

        async def told() -> bool:
            return "rebuild the source from the new collection" in str(
                (await sources.describe("orders")).last_error
            )

        await until_async(told, "it is said")
        await until_there(sources, orders(0, 3))
        await sources.rebuild("orders")
        await until_there(sources, orders(5, 2))


async def test_a_conflict_is_told_and_mended_by_a_rebuild(
    sources: Sources, lines: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """ST-ING-18: an instance that decodes something else stops, says so, and goes on once it is built anew."""
    made = []

    def decoders(definition: Definition, wants: Any) -> Any:
        made.append(definition.name)
        return Doubling(wants, source="orders") if len(made) == 2 else decoder_of(definition, wants)

    await sources.create(definition(lines))
    monkeypatch.setattr(instance_module, "decoder_of", decoders)
    lines.touch()
    async with ingesting(sources, instances=2):
        number = 0

        async def conflict() -> bool:
            nonlocal number
            add(lines, orders(number, 2))
            number += 2
            found = await sources.describe("orders")
            return any(each.health == "conflict" for each in found.instances)

        await until_async(conflict, "an instance has other rows")
        found = await sources.describe("orders")
        assert "new rendition" in str(found.last_error)
        await sources.rebuild("orders")
        await until_there(sources, orders(0, number))

        async def all_run() -> bool:
            return {each.health for each in (await sources.describe("orders")).instances} == {"running"}

        await until_async(all_run, "both instances run")


async def test_what_cannot_be_is_refused_and_nothing_happens(sources: Sources, lines: Path) -> None:
    """Two of one name, a collection in the way, another schema, a source that keeps nothing, one that is not there."""
    lines.touch()
    await sources.create(definition(lines))
    with pytest.raises(SourceExists, match="source orders exists already"):
        await sources.create(definition(lines))
    await sources.collections.create("taken", definition(lines).schema)
    with pytest.raises(SourceRefused, match="collection taken, which exists already"):
        await sources.create(definition(lines, name="taken"))
    other = definition(lines).model_copy(update={"columns": definition(lines).columns[:1]})
    with pytest.raises(SourceRefused, match="another 'schema'"):
        await sources.rebuild("orders", other)
    kept_nowhere = parse_definition(
        "name: nats\nfrom: {type: NATS, url: 'nats://127.0.0.1:9', stream: s}\nformat: JSON\n"
        "schema: [{name: id, type: int64}]\n"
    )
    await sources.create(kept_nowhere)
    with pytest.raises(SourceRefused, match="keeps no raw messages"):
        await sources.rebuild("nats")
    told = (
        "envelope: {type: debezium, key: [id], transactions: complete, "
        "metadata: {type: NATS, url: 'nats://127.0.0.1:9', stream: s}}"
    )
    with pytest.raises(SourceRefused, match="keeps no raw messages, and NATS may no longer have all"):
        await sources.rebuild("orders", definition(lines, told))
    await sources.create(definition(lines, f"raw: true\n{told}", name="kept"))
    with pytest.raises(SourceRefused, match="another 'metadata'"):
        await sources.rebuild("kept", definition(lines, "raw: true", name="kept"))
    with pytest.raises(SourceRefused, match="no raw source metadata: expected one of data"):
        await sources.skip("orders", 0, raw_source="metadata")
    await sources.drop("kept")
    await sources.collections.create("typed", definition(lines).schema)
    with pytest.raises(
        SourceRefused, match=r"columns id, amount, and no bytes column payload to decode: .*format"
    ):
        await sources.create(
            parse_definition(
                "name: decoded\nfrom: {type: Collection, collection: typed}\nformat: JSON\n"
                "schema: [{name: id, type: int64}]\n"
            )
        )
    with pytest.raises(SourceUnknown, match=r"unknown source none: expected one of nats, orders"):
        await sources.describe("none")
    with pytest.raises(SourceRefused, match="got -1"):
        await sources.scale("orders", -1)
    assert await sources.names() == ["nats", "orders"]


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ("envelope: {type: upsert, key: [id, id]}", "the key has column 'id' twice"),
        ("columns", "a column cannot be named _weight"),
    ],
)
def test_a_definition_that_no_instance_could_use_is_refused(lines: Path, more: str, said: str) -> None:
    columns = "schema: [{name: id, type: int64}" + (
        ", {name: _weight, type: int64}]" if more == "columns" else "]"
    )
    more = "" if more == "columns" else more
    with pytest.raises(DefinitionInvalid, match=said):
        parse_definition(f"name: a\nfrom: {{type: File, path: '{lines}'}}\nformat: JSON\n{more}\n{columns}\n")


async def test_two_who_create_the_same_source_have_one(sources: Sources, tmp_path: Path, lines: Path) -> None:
    add(lines, orders(0, 2))
    async with Sources(tmp_path / "store") as others:
        found = await asyncio.gather(
            *(each.create(definition(lines, "raw: true")) for each in (sources, others)),
            return_exceptions=True,
        )
    assert all(isinstance(each, Entry | SourceExists) for each in found)
    assert any(isinstance(each, Entry) for each in found)
    async with ingesting(sources):
        await until_there(sources, orders(0, 2))


async def test_a_source_that_is_dropped_leaves_nothing_behind(sources: Sources, lines: Path) -> None:
    """Its instances end, its collections and its shards go, and one of its name begins from scratch."""
    add(lines, orders(0, 5))
    await sources.create(definition(lines, "raw: true"))
    before = {each for each in await sources.store.shards() if "orders" in each}
    task = asyncio.create_task(sources.ingest("orders"))
    await until_there(sources, orders(0, 5))
    assert await sources.drop("orders") is None
    async with asyncio.timeout(20):
        await task
    assert await sources.names() == []
    assert await sources.collections.list() == []
    left = [each for each in await sources.store.shards() if each.startswith("ingestion/")]
    assert sorted(left) == ["ingestion/instances", "ingestion/sources", "ingestion/supervisors"]
    assert not before & set(left)
    with pytest.raises(CollectionUnknown):
        await sources.collections.snapshot("orders")
    await sources.create(definition(lines))
    async with ingesting(sources):
        await until_there(sources, orders(0, 5))


async def test_a_file_that_is_named_like_a_pattern_is_that_file(sources: Sources, tmp_path: Path) -> None:
    """Of a[1].jsonl the pattern would be a1.jsonl."""
    lines = tmp_path / "a[1].jsonl"
    add(lines, orders(0, 2))
    await sources.create(definition(lines))
    async with ingesting(sources):
        await until_there(sources, orders(0, 2))
        add(lines, orders(2, 2))
        await until_there(sources, orders(0, 4))
