"""Makes the files of this version: what is in them is known, and so are all their bytes but a few.

Clock and identities are set, so that two runs differ only in what time decides: process ids in locks, and how often
marks were written.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest.mock import patch

import pyarrow as pa

from nebuli.cli import saved_queries
from nebuli.control.deployed_queries import DeployedFragment, DeployedQuery, GivenFile
from nebuli.node.records import FragmentRecord, Records
from nebuli.rpc.status import FragmentState, FragmentStatus
from netchannel import (
    BufferPolicy,
    ChannelReader,
    Group,
    GroupClient,
    ReceiverServer,
    RetainPolicy,
    Sealed,
    SenderServer,
    StagingPolicy,
    Timing,
)
from netchannel.testing.deadlines import eventually
from placement import decompose, load_query, place, with_deployment
from spark_bridge.reading.offsets import Entry, encode
from topology import load_topology

MADE = ("sender", "retained", "staged", "nebuli", "spark")
"""The folders that `make` makes."""

FIRST_US = 1_767_225_600_000_000
"""When message 0 was sent: 2026-01-01, in UTC. Message n was n seconds later."""
SCHEMA = pa.schema(
    [
        ("number", pa.int64()),
        pa.field("text", pa.string(), metadata={"unit": "none"}),
        ("kind", pa.dictionary(pa.int8(), pa.string())),
        ("at", pa.timestamp("us", "UTC")),
    ]
)


def batch(number: int) -> pa.RecordBatch:
    """Message ``number`` of the channels of Arrow: ``number % 3 + 1`` rows, with nulls; from 3 on, other kinds."""
    rows = number % 3 + 1
    kinds = pa.array(["odd", "even"] if number < 3 else ["few", "many", "none"])
    columns = [
        pa.array([number] * rows),
        pa.array([f"text {number}", None, ""][:rows]),
        pa.DictionaryArray.from_arrays(pa.array([number % 2] * rows, pa.int8()), kinds),
        pa.array([FIRST_US + number] * rows, pa.timestamp("us", "UTC")),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=SCHEMA)


def note(number: int) -> bytes:
    """The note of message ``number``, where it has one."""
    return b"note %d" % number if number % 2 else b""


def body(number: int) -> bytes:
    """Message ``number`` of the channels of bytes: of 0, 100, 200 ... bytes."""
    return bytes([number]) * (100 * number)


class _Clock:
    """What `time.time_ns` says."""

    def __init__(self) -> None:
        self.number = 0

    def __call__(self) -> int:
        return (FIRST_US + self.number * 1_000_000) * 1000


@contextmanager
def _same_each_time() -> Iterator[_Clock]:
    identities, clock = itertools.count(1), _Clock()
    with (
        patch.object(uuid, "uuid4", lambda: uuid.UUID(int=next(identities))),
        patch.object(time, "time_ns", clock),
    ):
        yield clock


async def make(folder: Path, written: Path) -> None:
    """All files, into an empty folder; ``written`` has those that people write."""
    with _same_each_time() as clock:
        await _sent(folder / "sender", clock)
        await _rolled(folder / "sender")
        await _ended(folder / "sender")
        await _kept_by_receiver(folder / "retained", clock)
        await _kept_by_sender(folder / "retained", clock)
        await _staged(folder / "staged", clock)
    _nebuli(folder / "nebuli", written)
    (folder / "spark").mkdir()
    (folder / "spark" / "offset.json").write_text(json.dumps(offset()), "utf-8")


async def _sent(directory: Path, clock: _Clock) -> None:
    """`flights / arrow`: messages 0 to 6, of which 0 and 1 are acknowledged."""
    async with ReceiverServer() as receiver, SenderServer() as sender:
        outbox = sender.register_channel(
            "flights / arrow", receiver.address, schema=SCHEMA, stream="stream of flights",
            buffer=BufferPolicy(directory=directory),
        )  # fmt: skip
        for number in range(5):
            clock.number = number
            await asyncio.sleep(0)  # the clock is read once in each turn of the loop
            await outbox.send(batch(number), note(number))
        inbox = receiver.register_channel("flights / arrow", ack="explicit")
        await inbox.recv()
        await inbox.recv()
        await inbox.ack(2)
        await eventually(lambda: outbox.statistics().acknowledged == 2)
        await inbox.detach()
        clock.number = 5
        await asyncio.sleep(0)
        await outbox.send_many([batch(5), batch(6)])
    # Leaving is what writes down how far it is acknowledged.


async def _rolled(directory: Path) -> None:
    """`rolled`: messages 0 to 19 in several segments."""
    async with SenderServer() as sender:
        policy = BufferPolicy(directory=directory, max_disk_bytes=1 << 14)
        outbox = sender.register_channel(
            "rolled", "127.0.0.1:9", codec="bytes", stream="stream that rolls", buffer=policy
        )
        for number in range(20):
            await outbox.send(body(number % 7))


async def _ended(directory: Path) -> None:
    """`ended` has 3 messages and its end, `failed` 2 and what failed."""
    async with SenderServer(timing=Timing(leave_s=0.1)) as sender:
        policy = BufferPolicy(directory=directory)
        ended = sender.register_channel(
            "ended", "127.0.0.1:9", codec="bytes", stream="stream that ends", buffer=policy
        )
        await ended.send_many([body(0), body(1), body(2)])
        await ended.close(grace=0)
        failed = sender.register_channel(
            "failed", "127.0.0.1:9", codec="bytes", stream="stream that fails", buffer=policy
        )
        await failed.send_many([body(0), body(1)])
        await failed.abort("out of ink: blue")  # nobody hears it


async def _kept_by_receiver(directory: Path, clock: _Clock) -> None:
    """`arrow`: messages 0 to 7 and the end; `slow` has acknowledged those below 2, `fast` those below 8."""
    async with ReceiverServer() as receiver, SenderServer() as sender:
        receiver.retain_channel("arrow", RetainPolicy(directory=directory))
        outbox = sender.register_channel("arrow", receiver.address, stream="stream that is kept")
        for number in range(8):
            clock.number = number
            await asyncio.sleep(0)
            await outbox.send(batch(number), note(number))
            await outbox.flush()
        await outbox.close()
        async with ChannelReader(receiver.address, "arrow") as reader:
            await reader.heads(beyond=7)
            for consumer, upto in (("slow", 2), ("fast", 8)):
                await reader.hold(consumer, holder=f"holder of {consumer}")
                await reader.ack(consumer, upto)


async def _kept_by_sender(directory: Path, clock: _Clock) -> None:
    """`bytes`: messages 0 to 4, and no end; `first` has acknowledged message 0."""
    async with SenderServer("127.0.0.1:0") as sender:
        outbox = sender.retain_channel(
            "bytes", RetainPolicy(directory=directory), codec="bytes", stream="stream that is offered"
        )
        for number in range(5):
            clock.number = number
            await asyncio.sleep(0)
            await outbox.send(body(number), note(number))
        async with ChannelReader(sender.address, "bytes", codec="bytes") as reader:
            await reader.hold("first", holder="holder of first")
            await reader.ack("first", 1)


async def _staged(directory: Path, clock: _Clock) -> None:
    """`groups`: `app` has committed epochs 3 (messages 0 to 5) and 4 (6 and 7), `other` 0 (8), `gone` is forgotten.

    The first three are acknowledged. Held, and not committed: epoch 5 of `app`, message 9; what its writer knows of it
    is in ``held.json``. `arrow` has message 0, of epoch 0 of `app`, and the end.
    """
    async with ReceiverServer() as receiver, SenderServer() as sender:
        policy = StagingPolicy(directory)
        inbox = receiver.register_staged_channel("groups", policy, codec="bytes", ack="explicit")
        numbers = itertools.count()

        async def written(application: str, epoch: int, counts: list[int]) -> list[Sealed]:
            sealed = []
            for partition, count in enumerate(counts):
                group = Group(application, epoch, partition)
                outbox = sender.register_attempt("groups", receiver.address, group, codec="bytes")
                for number in itertools.islice(numbers, count):
                    clock.number = number
                    await asyncio.sleep(0)
                    await outbox.send(body(number), note(number))
                    await outbox.flush()
                sealed.append(await outbox.seal())
            return sealed

        async with GroupClient(receiver.address, "groups") as client:
            for application, epoch, counts in (
                ("app", 3, [3, 0, 3]), ("app", 4, [2]), ("other", 0, [1]), ("gone", 0, [0]),
            ):  # fmt: skip
                await client.commit(application, epoch, await written(application, epoch, counts))
            await client.forget("gone")
            (held,) = await written("app", 5, [1])
        for _ in range(3):
            await inbox.recv()
        await inbox.ack(3)
        await inbox.detach()
        receiver.register_staged_channel("arrow", policy, ack="explicit")
        arrow = sender.register_attempt("arrow", receiver.address, Group("app", 0, 0))
        clock.number = 0
        await arrow.send(batch(0))
        async with GroupClient(receiver.address, "arrow") as client:
            await client.commit("app", 0, [await arrow.seal()], end=True)
    (directory / "held.json").write_text(json.dumps(held._asdict()), "utf-8")


def _nebuli(folder: Path, written: Path) -> None:
    """A query that was registered, as the command line keeps it; and two of its fragments, as a worker does."""
    topology, query = load_topology(written / "topology.yaml"), load_query(written / "query.json")
    plan = with_deployment(decompose(place(query, topology, seed=3)).fragments, "deployed")
    deployed = DeployedQuery(
        id="delays-0123456789ab", name="delays", registered="2026-01-01T00:00:00+00:00", deployment="deployed", seed=3,
        topology=GivenFile(path="/etc/nebuli/topology.yaml", text=(written / "topology.yaml").read_text("utf-8")),
        query=GivenFile(path="/etc/nebuli/query.json", text=(written / "query.json").read_text("utf-8")),
        fragments=tuple(
            DeployedFragment(fragment=each.id, node=each.node, grpc=f"{each.node}1", id=f"id of {each.id}")
            for each in plan
        ),
        plan=tuple(plan),
    )  # fmt: skip
    with patch.dict("os.environ", XDG_STATE_HOME=str(folder / "state")):
        saved_queries.save(deployed)
    with Records(folder / "worker") as records:
        first, *_, last = plan
        records.save(
            FragmentRecord(
                fragment=first, status=FragmentStatus("id 1", first.id, FragmentState.RUNNING, rows_in=7)
            )
        )
        records.save(
            FragmentRecord(
                fragment=last,
                status=FragmentStatus(
                    "id 2",
                    last.id,
                    FragmentState.FAILED,
                    error="out of ink",
                    late={"w": 2},
                    watermark=FIRST_US,
                ),
            )
        )


def offset() -> dict[str, object]:
    """As Spark keeps it in the checkpoint of a query over two channels, one of which has no stream yet."""
    return encode(
        {
            "flights@127.0.0.1:9": Entry("stream that is kept", 7, 3, "0123456789ab", 2),
            "later@127.0.0.1:9": Entry(None, 0),
        }
    )
