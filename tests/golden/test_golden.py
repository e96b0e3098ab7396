"""Files that a version has left are opened by this one, with all that is in them; and it writes no others."""

from __future__ import annotations

import json
import shutil
import struct
from base64 import b64decode
from pathlib import Path
from typing import Any

import msgpack
import pyarrow as pa
import pytest

from nebuli.cli import saved_queries
from nebuli.node.records import Records
from nebuli.rpc.status import FragmentState, FragmentStatus
from netchannel import (
    BufferPolicy,
    ChannelFailed,
    ChannelInUse,
    ChannelReader,
    EndOfChannel,
    GroupClient,
    Message,
    ReceiverServer,
    RetainPolicy,
    Sealed,
    SenderServer,
    StagingPolicy,
)
from netchannel.storage.layout import FORMAT
from placement import decompose, load_query, place, with_deployment
from spark_bridge.reading.offsets import Entry, decode
from tests.golden.making import FIRST_US, MADE, SCHEMA, batch, body, make, note
from topology import load_topology

pytestmark = pytest.mark.timeout(60)  # what cannot be read is sent for ever

HERE = Path(__file__).parent
VERSIONS = sorted(path.name for path in HERE.iterdir() if path.name[0].isdigit())
LATEST = {1: "0.1.0"}
"""By the number of the format on disk: the version whose files are as this one writes them."""


@pytest.fixture(params=VERSIONS)
def left(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """What a version left, to be opened, which may change it."""
    return Path(shutil.copytree(HERE / request.param, tmp_path / "left"))


def of_arrow(numbers: range, *, notes: bool = True) -> list[Message]:
    return [Message(batch(n), note(n) if notes else b"", n, FIRST_US + n * 1_000_000) for n in numbers]


def of_bytes(numbers: range, *, notes: bool = True) -> list[Message]:
    return [Message(body(n), note(n) if notes else b"", n, FIRST_US + n * 1_000_000) for n in numbers]


async def received(inbox: Any, count: int) -> list[Message]:
    messages = [await inbox.recv_message() for _ in range(count)]
    return [
        each if isinstance(each.batch, pa.RecordBatch) else each._replace(batch=bytes(each.batch))
        for each in messages
    ]


async def read(reader: ChannelReader, first: int, until: int) -> list[Message]:
    messages = [each async for each in reader.read_messages(first, until)]
    return [
        each if isinstance(each.batch, pa.RecordBatch) else each._replace(batch=bytes(each.batch))
        for each in messages
    ]


# -- what is opened


async def test_a_durable_buffer_of_arrow(left: Path) -> None:
    """The rest of the stream is delivered, with its schema, notes, numbers and times, and it goes on."""
    async with ReceiverServer() as receiver, SenderServer() as sender:
        inbox = receiver.register_channel("flights / arrow")
        outbox = sender.register_channel(
            "flights / arrow", receiver.address, buffer=BufferPolicy(directory=left / "sender")
        )
        assert (outbox.stream, outbox.position) == ("stream of flights", 7)
        got = await received(inbox, 5)
        assert got[:3] == of_arrow(range(2, 5))
        # These two were given at once: at one time, and without notes.
        assert got[3:] == [Message(batch(n), b"", n, FIRST_US + 5_000_000) for n in (5, 6)]
        assert (await inbox.schema()).equals(SCHEMA, check_metadata=True)
        await outbox.send(batch(7))
        assert (await inbox.recv_message())[:3] == (batch(7), b"", 7)
        await outbox.close()


async def test_durable_buffers_of_several_segments_and_of_streams_that_are_over(left: Path) -> None:
    async with ReceiverServer() as receiver, SenderServer() as sender:
        policy = BufferPolicy(directory=left / "sender", max_disk_bytes=1 << 14)
        found = {}
        for name in ("rolled", "ended", "failed"):
            outbox = sender.register_channel(name, receiver.address, codec="bytes", buffer=policy)
            found[name] = (outbox.stream, outbox.position)
        assert found == {
            "rolled": ("stream that rolls", 20), "ended": ("stream that ends", 3), "failed": ("stream that fails", 2),
        }  # fmt: skip
        rolled = await received(receiver.register_channel("rolled", codec="bytes"), 20)
        assert [(each.sequence, each.batch) for each in rolled] == [(n, body(n % 7)) for n in range(20)]
        ended = receiver.register_channel("ended", codec="bytes")
        assert [each.batch for each in await received(ended, 3)] == [body(0), body(1), body(2)]
        with pytest.raises(EndOfChannel):
            await ended.recv()
        failed = receiver.register_channel("failed", codec="bytes")
        assert [each.batch for each in await received(failed, 2)] == [body(0), body(1)]
        with pytest.raises(ChannelFailed, match="out of ink: blue"):
            await failed.recv()


async def test_a_kept_stream_that_was_received(left: Path) -> None:
    async with ReceiverServer() as receiver:
        receiver.retain_channel("arrow", RetainPolicy(directory=left / "retained"))
        async with ChannelReader(receiver.address, "arrow") as reader:
            heads = await reader.heads()
            assert (heads.stream, heads.oldest, heads.head, heads.rows) == ("stream that is kept", 2, 8, 15)
            assert (heads.ended, heads.failure) == (True, None)
            assert (await reader.schema()).equals(SCHEMA, check_metadata=True)
            with pytest.raises(ChannelInUse, match="'holder of slow', which is gone"):
                await reader.hold("slow", holder="another")
            assert await reader.hold("slow", holder="holder of slow") == 2
            assert await reader.hold("fast", holder="holder of fast") == 8
            assert await read(reader, 2, 8) == of_arrow(range(2, 8))


async def test_a_kept_stream_that_was_offered(left: Path) -> None:
    async with SenderServer("127.0.0.1:0") as sender:
        outbox = sender.retain_channel("bytes", RetainPolicy(directory=left / "retained"), codec="bytes")
        assert (outbox.stream, outbox.position) == ("stream that is offered", 5)
        async with ChannelReader(sender.address, "bytes", codec="bytes") as reader:
            heads = await reader.heads()
            assert (heads.oldest, heads.head, heads.rows, heads.bytes) == (
                1,
                5,
                5,
                1000 + len(note(1) + note(3)),
            )
            assert await reader.hold("first", holder="holder of first") == 1
            await outbox.send(b"more")
            assert await read(reader, 1, 5) == of_bytes(range(1, 5))
            heads = await reader.heads(beyond=5)
            assert [each.batch for each in await read(reader, 5, heads.head)] == [b"more"]


async def test_staged_groups(left: Path) -> None:
    """What was committed is consumed, what is done is known to be, and what is held can be committed."""
    held = Sealed(**json.loads((left / "staged" / "held.json").read_text("utf-8")))
    async with ReceiverServer() as receiver, GroupClient(receiver.address, "groups") as client:
        inbox = receiver.register_staged_channel(
            "groups", StagingPolicy(left / "staged"), codec="bytes", ack="explicit"
        )
        epochs = {name: await client.last_epoch(name) for name in ("app", "other", "gone")}
        assert epochs == {"app": 4, "other": 0, "gone": None}
        assert await received(inbox, 6) == of_bytes(range(3, 9))
        assert await client.commit("app", 5, [held], end=True)
        assert not await client.commit("app", 5, [held], end=True)
        assert await received(inbox, 1) == of_bytes(range(9, 10))
        with pytest.raises(EndOfChannel):
            await inbox.recv()


async def test_staged_groups_of_arrow(left: Path) -> None:
    async with ReceiverServer() as receiver:
        inbox = receiver.register_staged_channel("arrow", StagingPolicy(left / "staged"))
        assert await received(inbox, 1) == of_arrow(range(1))
        assert (await inbox.schema()).equals(SCHEMA, check_metadata=True)
        with pytest.raises(EndOfChannel):
            await inbox.recv()


def test_a_query_that_was_registered(left: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As later invocations of the command line find it, with nothing left out."""
    monkeypatch.setenv("XDG_STATE_HOME", str(left / "nebuli" / "state"))
    (query,) = saved_queries.load_all()
    assert query == saved_queries.load("delays-0")
    assert (query.id, query.name, query.deployment, query.seed) == (
        "delays-0123456789ab", "delays", "deployed", 3,
    )  # fmt: skip
    assert query.registered == "2026-01-01T00:00:00+00:00"
    assert query.topology.text == (left / "written" / "topology.yaml").read_text("utf-8")
    assert [(each.fragment, each.node, each.id) for each in query.fragments] == [
        ("query/departed", "10.0.0.1:9001", "id of query/departed"),
        ("query/winds", "10.0.0.2:9002", "id of query/winds"),
        ("query/result", "[fd00::3]:9003", "id of query/result"),
    ]
    (file,) = (left / "nebuli" / "state" / "nebuli" / "queries").iterdir()
    assert (
        json.loads(query.model_dump_json(by_alias=True)).items()
        >= json.loads(file.read_text("utf-8")).items()
    )


def test_what_a_worker_remembers(left: Path) -> None:
    with Records(left / "nebuli" / "worker") as records:
        running, failed = records.load()
    assert running.status == FragmentStatus("id 1", "query/departed", FragmentState.RUNNING, rows_in=7)
    assert failed.status == FragmentStatus(
        "id 2", "query/result", FragmentState.FAILED, error="out of ink", late={"w": 2}, watermark=FIRST_US
    )
    assert [each.type for each in running.fragment.operators][-1] == "network_sink"
    assert [each.type for each in failed.fragment.operators][-1] == "sink"


def test_files_that_people_have_written(left: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They mean what they did: the plan of the query that was registered with them."""
    written = left / "written"
    topology = load_topology(written / "topology.yaml")
    assert [node.address for node in topology.nodes] == ["10.0.0.1:9001", "10.0.0.2:9002", "[fd00::3]:9003"]
    monkeypatch.setenv("XDG_STATE_HOME", str(left / "nebuli" / "state"))
    (query,) = saved_queries.load_all()
    placed = place(load_query(written / "query.json"), topology, seed=3)
    assert with_deployment(decompose(placed).fragments, "deployed") == query.plan


def test_offsets_in_a_checkpoint_of_spark(left: Path) -> None:
    found = json.loads((left / "spark" / "offset.json").read_text("utf-8"))
    assert decode(found) == {
        "flights@127.0.0.1:9": Entry("stream that is kept", 7, 3, "0123456789ab", 2),
        "later@127.0.0.1:9": Entry(None, 0),
    }


# -- what is written


async def test_this_version_writes_the_format_that_it_says(tmp_path: Path) -> None:
    """Another format is another number, with files of its own here (`README.md`)."""
    golden, made = HERE / LATEST[FORMAT], tmp_path / "made"
    made.mkdir()
    await make(made, golden / "written")
    assert names(made) == [name for name in names(golden) if name.startswith(MADE)]
    for name in names(made):
        assert shape(made / name) == shape(golden / name), name


def names(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def shape(path: Path) -> Any:
    """The bytes of a file; where these are not the same each time, all in it that is."""
    data = path.read_bytes()
    arrow = "arrow" in path.parent.name
    match path.name:
        case "lock":
            return len(data), data[20:]  # behind the process id
        case "marks":
            # Of two slots the whole one that was written last; how often they were, time decides.
            slots = [struct.unpack_from("<QQQQ", data, at) for at in (0, 4096)]
            return len(data), max(slots)[1:3], bool(max(slots)[3])
        case "consumers" if arrow:
            fields = msgpack.unpackb(data[8:])
            schema = pa.ipc.read_schema(pa.py_buffer(fields.pop("schema")))
            first, rows, _ = fields.pop("base")
            return fields, (first, rows), schema
        case name if arrow and name != "manifest":
            # What Arrow makes of a batch is another version's own affair.
            return data[:8], list(entries(data))
        case _:
            return data


def entries(data: bytes) -> Any:
    """Of a file of entries all but sizes and sums (`netchannel.storage.layout`)."""
    at = 40
    while at < len(data):
        (
            magic,
            kind,
            flags,
            zero,
            length,
            first,
            end,
            timestamp,
            size,
            rows,
            schema,
            context,
            durable,
            _,
            _,
        ) = struct.unpack_from("<IBBHQQQqQQQQQII", data, at)
        said = json.loads(data[at + 88 : at + 88 + length]) if kind >= 16 else {}
        shown = b64decode(said.get("schema", ""))
        yield (
            magic, kind, flags, zero, first, end, timestamp, bool(size), rows, bool(schema), bool(context),
            bool(durable), sorted(said), pa.ipc.read_schema(pa.py_buffer(shown)) if shown else None,
        )  # fmt: skip
        at += 88 + length + -length % 8
    assert at == len(data)
