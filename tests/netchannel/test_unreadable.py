"""A batch of the right form whose text is none, over real sockets: what consumers of each face get, and the producer.

The sender is ours, but for what it puts in a body: it acknowledges, reconnects and closes as any other.
"""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

pytestmark = pytest.mark.processes

FORGED = """
import asyncio, json, pyarrow as pa, netchannel, netchannel.aio
from netchannel.wire.codec import ArrowEncoder

honest = ArrowEncoder._body
ArrowEncoder._body = lambda encoder, batch: bytes(honest(encoder, batch)).replace(b"abc", b"a\\xff\\xfe")

async def produce(address, told):
    batches = [pa.record_batch({"s": [text]}) for text in ("first", "abc", "behind")]
    async with netchannel.SenderServer() as sender:
        outbox = sender.register_channel("c", to=address)
        for batch in batches:
            await outbox.send(batch)
        try:
            await outbox.close()
        except netchannel.NetChannelError as error:
            told["producer"] = [type(error).__name__, str(error)]

def got(batch, told):
    told.setdefault("read", []).append(batch.column(0)[0].as_py())
    told["acknowledged"] = len(told["read"])

def failed(error, told):
    told.setdefault("consumer", []).append([type(error).__name__, str(error)])
"""

OF_A_LOOP = (
    FORGED
    + """
async def consume(inbox, told):
    while len(told.get("consumer", ())) < 2:
        try:
            got(await inbox.recv(), told)
            await inbox.ack(told["acknowledged"])
        except netchannel.NetChannelError as error:
            failed(error, told)

async def main(receiver, told):
    inbox = receiver.register_channel("c", ack="explicit")
    await asyncio.gather(produce(receiver.address, told), consume(inbox, told))
"""
)

FACES = {
    "asyncio": OF_A_LOOP
    + """
async def face(told):
    async with netchannel.ReceiverServer() as receiver:
        await main(receiver, told)
told = {}
asyncio.run(face(told))
print(json.dumps(told))
""",
    "aio": OF_A_LOOP
    + """
told = {}
asyncio.run(main(netchannel.aio.receiver_server(), told))
print(json.dumps(told))
""",
    "threads": FORGED
    + """
import threading
told, receiver = {}, netchannel.receiver_server()
inbox = receiver.register_channel("c", ack="explicit")
producing = threading.Thread(target=lambda: asyncio.run(produce(receiver.address, told)))
producing.start()
while len(told.get("consumer", ())) < 2:
    try:
        got(inbox.recv(), told)
        inbox.ack(told["acknowledged"])
    except netchannel.NetChannelError as error:
        failed(error, told)
producing.join()
print(json.dumps(told))
""",
}


@pytest.mark.parametrize("program", FACES.values(), ids=FACES)
def test_what_cannot_be_read_ends_the_channel_on_both_sides(program: str) -> None:
    """CH-BAD-1: the consumer gets what was before it, then the error, then nothing; the producer hears the reason."""
    ran = subprocess.run(
        [sys.executable, "-W", "error", "-c", program],
        check=False,
        capture_output=True,
        encoding="utf-8",
        timeout=120,
    )
    assert ran.returncode == 0, ran.stderr
    told = json.loads(ran.stdout)
    assert told["read"] == ["first"]
    (kind, why), (kind_again, again) = told["consumer"]
    assert (kind, kind_again) == ("ProtocolError", "ProtocolError")
    assert "not a batch of the channel's schema" in why
    assert "message 1 cannot be read" in again
    kind, why = told["producer"]
    assert kind == "SchemaMismatch"  # what REFUSED is to whoever sends
    assert "message 1 cannot be read" in why
    assert "UTF8" in why
