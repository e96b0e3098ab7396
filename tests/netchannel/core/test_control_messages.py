"""Control messages of others, as the cores read them: what may be left out, and what is answered where it is wrong."""

from __future__ import annotations

from typing import Any

import msgpack
import pytest

from netchannel.core.control_connection import FOR_CONTROL, greeting
from netchannel.core.link import Closing, Link
from netchannel.core.receiving.sessions import ReceiverControl
from netchannel.errors import ProtocolError
from netchannel.wire.envelope import MessageParser, decode, encode
from netchannel.wire.messages import CALL_LIMIT, MESSAGES, PIECE_LIMIT, SCHEMA_LIMIT, Error, Hello
from tests.support.forged import forged, proof
from tests.support.world import World

GOOD: dict[str, Any] = {
    "boolean": False,
    "integer": 1,
    "number": 1,
    "port": 1,
    "text": "t",
    "name": "n",
    "channel id": "c",
    "codec": "arrow",
    "reason": "end",
    "bytes": b"b",
    "nonce": bytes(16),
    "line": bytes(16),
    "features": "gaps notes",
    "token": bytes(16),
    "schema": b"s",
    "winners": bytes(48),
    "place": bytes(16),
    "meeting": bytes(16),
    "offsets": bytes(24),
    "size": 1,
    "piece": b"p",
}
WRONG: dict[str, list[Any]] = {
    "boolean": [0, None],
    "integer": [-1, True, 1.0, "1", None],
    "number": [-1, (1 << 63) + 1, True],
    "port": [0, 1 << 16, -1, True],
    "text": ["x" * 4097, b"x", 1],
    "name": ["", "x" * 4097, b"x"],
    "channel id": ["", "x" * 256, "two\nlines", b"c"],
    "codec": ["", "parquet", 1],
    "reason": ["", "boredom", None],
    "bytes": ["b", 1, None],
    "nonce": [b"", bytes(15), bytes(17)],
    "line": [b"", bytes(15), bytes(17)],
    "features": ["", "Notes", "a  b", " a", "n\u00e9", "x" * 4097, b"x"],
    "token": [b"", bytes(15), bytes(17)],
    "schema": [bytes(SCHEMA_LIMIT + 1), "s"],
    "winners": [bytes(47), "w"],
    "place": [b"", bytes(15), bytes(17)],
    "meeting": [b"", bytes(15), bytes(17)],
    "offsets": [bytes(7), "o"],
    "size": [-1, CALL_LIMIT + 1, True, None],
    "piece": [bytes(PIECE_LIMIT + 1), "p", None],
}


def whole(kind: str) -> dict[str, Any]:
    """A message in which nothing is left out, and nothing is wrong."""
    return {"t": kind, **{field.name: GOOD[field.rule.name] for field in MESSAGES[kind].fields}}


@pytest.mark.parametrize("kind", MESSAGES)
def test_every_field_is_read_as_it_is_declared(kind: str) -> None:
    """What may be left out is None, and so is nil; all else that is missing or wrong is named with what it holds."""
    fields = whole(kind)
    message = decode(msgpack.packb(fields))
    assert type(message) is MESSAGES[kind]
    assert encode(message) == forged(fields)
    optional = {field.name for field in MESSAGES[kind].fields if field.optional}
    least = {name: value for name, value in fields.items() if name not in optional}
    assert decode(msgpack.packb(least)) == decode(msgpack.packb(least | dict.fromkeys(optional)))
    for field in MESSAGES[kind].fields:
        for wrong in WRONG[field.rule.name]:
            if (wrong is None and field.optional) or (field.name == "version" and wrong == -1):
                continue
            with pytest.raises(ProtocolError, match=f"'{field.name}' .*'{kind}' holds .*{field.rule.name}"):
                decode(msgpack.packb(fields | {field.name: wrong}))
        if not field.optional:
            with pytest.raises(
                ProtocolError, match=f"'{field.name}' .*'{kind}' is missing: .*{field.rule.name}"
            ):
                decode(msgpack.packb({name: fields[name] for name in fields if name != field.name}))


OPEN = {
    "t": "open",
    "channel": "c",
    "request": 1,
    "stream": "s",
    "codec": "bytes",
    "lossy": False,
}
GROUP = {"into": "g", "application": "a", "epoch": 0, "partition": 0}


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"schema": b"abc"}, "a schema of 3 bytes, but its codec is bytes"),
        *(({name: GROUP[name]}, f"it has {name}, but not ") for name in GROUP),
        *(
            (GROUP | {name: None}, f"but not {name}: an attempt at a group has all four fields")
            for name in GROUP
        ),
    ],
    ids=str,
)
def test_an_open_that_contradicts_itself_is_answered(fields: dict[str, Any], said: str) -> None:
    with pytest.raises(ProtocolError, match=said):
        decode(msgpack.packb(OPEN | fields))


def connected(world: World, *messages: bytes) -> tuple[Link, list[Any]]:
    """A sender's control connection on which this came, and what is answered, without heartbeats."""
    core = world.receiver()
    world.inbox(core)
    link: Link = core.accept("somebody")
    link.connected(world.now)
    hello = Hello(version=1, node="n", dead_after_ms=5000, nonce=bytes(16), secret=False)
    written = b""
    for each in (greeting(FOR_CONTROL), encode(hello), None, *messages):
        said = proof(hello.nonce, written) if each is None else each
        link.get_buffer(len(said))[: len(said)] = said
        link.received(len(said), world.now)
        link = link.replacement or link
        written += b"".join(bytes(each) for each in link.output())
    assert isinstance(link, ReceiverControl)
    handshake = ("hello", "proof", "ping")
    return link, [
        each for each in MessageParser().received(memoryview(written)) if each.kind not in handshake
    ]


def test_an_open_without_what_may_be_left_out_is_granted() -> None:
    """Neither a schema, nor a group."""
    link, (answer,) = connected(World(), forged(OPEN))
    assert answer.kind == "ok"
    assert link.closing is Closing.OPEN


@pytest.mark.parametrize(
    "message",
    [
        *({name: OPEN[name] for name in OPEN if name != left_out} for left_out in OPEN),
        OPEN | {"t": "opened"},
        OPEN | {"codec": "parquet"},
        whole("ok"),
    ],
    ids=str,
)
def test_whatever_is_wrong_is_answered_with_an_error(message: dict[str, Any]) -> None:
    """And with nothing else: the channel waits for its sender as before."""
    world = World()
    link, (answer,) = connected(world, forged(message))
    assert isinstance(answer, Error)
    assert not answer.permanent
    assert link.closing is Closing.FLUSH
    producer = world.open(world.sender())
    producer.send(b"x")
    producer.channel.finish()
    world.run(lambda: producer.channel.terminal)
    assert producer.channel.error is None
    assert producer.channel.acknowledged == 1
