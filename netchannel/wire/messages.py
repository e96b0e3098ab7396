"""The messages of control connections, as docs/protocol/wire.md has them: each class declares the fields of one.

Unknown fields are ignored, so that a later version can add some. A field that may be None may be left out.
"""

from __future__ import annotations

from typing import Annotated, ClassVar

from netchannel.values import is_channel_id

from .declarations import Message, Rule, declare

VERSION = 1
"""The version of the protocol; the other fields of another version's ``hello`` are not defined here."""

TEXT_LIMIT = 4096
"""The longest text in a control message, in characters."""

SCHEMA_LIMIT = 1 << 20
"""The largest schema in a control message, in bytes: a larger one comes with the data connection, in pieces."""

CALL_LIMIT = 64 << 20
"""The largest body of a call, or of its answer, in bytes."""
PIECE_LIMIT = 256 << 10
"""The most bytes of such a body in one message: other messages come in between."""

TOKEN_SIZE = 16
ENDS_SIZE = 16
NONCE_SIZE = 16
LINE_SIZE = 16
PLACE_SIZE = 16
MEETING_SIZE = 16
WINNER_SIZE = 48
"""Bytes of an attempt that a commit names."""

PARTS, NOTES, CONTEXTS, GAPS = "parts", "notes", "contexts", "gaps"
"""Features of a side that takes messages: frames of these kinds, and notes."""
MEMORY = "memory"
"""A feature of a side that takes messages on the sender's host: bodies in memory that both sides have."""
ENDS = "ends"
"""A feature of a side that takes connections for data: it looks at what an ATTACH shows of its connection's ends."""
CALLS = "calls"
"""A feature of a side that clients call services at, and to which members announce theirs."""
ELSEWHERE, PORTS = "elsewhere", "ports"
"""Features of a side that asks for channels: it dials another process of the node, or another port for its data."""
UPQUERIES = "upqueries"
"""A feature of a side that asks for channels: it takes UPQUERY frames."""
TAKES = frozenset((PARTS, NOTES, CONTEXTS, GAPS))

CODECS = ("arrow", "bytes")
REASONS = ("end", "failed", "closed")
"""Why a stream is over."""


def _is_feature(name: str) -> bool:
    return name.isascii() and name.isalpha() and name.islower()


Boolean = Annotated[bool, Rule("boolean", "true or false", lambda value: True)]
Integer = Annotated[int, Rule("integer", "from 0 to 2^64 - 1", lambda value: value >= 0)]
Number = Annotated[int, Rule("number", "of a message: from 0 to 2^63", lambda value: 0 <= value <= 1 << 63)]
Port = Annotated[int, Rule("port", "from 1 to 65535", lambda value: 0 < value < 1 << 16)]
Text = Annotated[
    str, Rule("text", f"at most {TEXT_LIMIT} characters", lambda value: len(value) <= TEXT_LIMIT)
]
Name = Annotated[
    str, Rule("name", f"1 to {TEXT_LIMIT} characters", lambda value: 0 < len(value) <= TEXT_LIMIT)
]
ChannelId = Annotated[str, Rule("channel id", "1 to 255 bytes of printable UTF-8", is_channel_id)]
Codec = Annotated[str, Rule("codec", " or ".join(CODECS), CODECS.__contains__)]
Reason = Annotated[str, Rule("reason", " or ".join(REASONS), REASONS.__contains__)]
Features = Annotated[
    str,
    Rule(
        "features",
        "names of lower-case letters, with one space in between",
        lambda value: len(value) <= TEXT_LIMIT and all(map(_is_feature, value.split(" "))),
    ),
]
Bytes = Annotated[bytes, Rule("bytes", "any number that fits into the message", lambda value: True)]
Nonce = Annotated[bytes, Rule("nonce", f"{NONCE_SIZE} bytes", lambda value: len(value) == NONCE_SIZE)]
Line = Annotated[bytes, Rule("line", f"{LINE_SIZE} bytes", lambda value: len(value) == LINE_SIZE)]
Token = Annotated[bytes, Rule("token", f"{TOKEN_SIZE} bytes", lambda value: len(value) == TOKEN_SIZE)]
Place = Annotated[bytes, Rule("place", f"{PLACE_SIZE} bytes", lambda value: len(value) == PLACE_SIZE)]
Meeting = Annotated[bytes, Rule("meeting", f"{MEETING_SIZE} bytes", lambda value: len(value) == MEETING_SIZE)]
Size = Annotated[
    int, Rule("size", f"of a body: from 0 to {CALL_LIMIT}", lambda value: 0 <= value <= CALL_LIMIT)
]
Piece = Annotated[
    bytes, Rule("piece", f"at most {PIECE_LIMIT} bytes", lambda value: len(value) <= PIECE_LIMIT)
]
Offsets = Annotated[bytes, Rule("offsets", "8 bytes each", lambda value: len(value) % 8 == 0)]
Schema = Annotated[
    bytes, Rule("schema", f"at most {SCHEMA_LIMIT} bytes", lambda value: len(value) <= SCHEMA_LIMIT)
]
Winners = Annotated[
    bytes, Rule("winners", f"{WINNER_SIZE} bytes each", lambda value: len(value) % WINNER_SIZE == 0)
]


# -- both directions


@declare
class Hello(Message):
    """The first message of each side."""

    kind: ClassVar[str] = "hello"
    version: Integer
    node: Text
    dead_after_ms: Integer
    nonce: Nonce
    line: Line | None = None
    secret: Boolean
    features: Features | None = None


@declare
class Proof(Message):
    """Proves that the side knows the secret."""

    kind: ClassVar[str] = "proof"
    mac: Bytes


@declare
class Ping(Message):
    """A heartbeat."""

    kind: ClassVar[str] = "ping"
    at: Integer


@declare
class Pong(Message):
    """The answer to a heartbeat."""

    kind: ClassVar[str] = "pong"
    at: Integer


@declare
class Error(Message):
    """The side will not talk, or not any more."""

    kind: ClassVar[str] = "error"
    message: Text
    permanent: Boolean


# -- sender to receiver


@declare
class Open(Message):
    """A sender asks for a channel."""

    kind: ClassVar[str] = "open"
    channel: ChannelId
    request: Integer
    stream: Name
    codec: Codec
    schema: Schema | None = None
    lossy: Boolean
    into: ChannelId | None = None
    application: Name | None = None
    epoch: Integer | None = None
    partition: Integer | None = None

    def flaw(self) -> str:
        group = {name: getattr(self, name) for name in ("into", "application", "epoch", "partition")}
        said = [name for name, value in group.items() if value is not None]
        if 0 < len(said) < len(group):
            left_out = " and ".join(name for name in group if name not in said)
            return (
                f"it has {' and '.join(said)}, but not {left_out}: an attempt at a group has all four fields"
            )
        if self.schema and self.codec == "bytes":
            return f"it has a schema of {len(self.schema)} bytes, but its codec is bytes, which has none"
        return ""


@declare
class Share(Message):
    """A sender wants to share memory with the receiver."""

    kind: ClassVar[str] = "share"
    place: Place


# -- receiver to sender


@declare
class Meet(Message):
    """Names the place where the memory is to be handed over."""

    kind: ClassVar[str] = "meet"
    meeting: Meeting
    token: Token
    size: Integer


@declare
class Shared(Message):
    """The receiver has the memory, of so many bytes; with 0 there will be none."""

    kind: ClassVar[str] = "shared"
    size: Integer


@declare
class Holds(Message):
    """A data connection is gone, and of what it referred to this is still in use."""

    kind: ClassVar[str] = "holds"
    token: Token
    offsets: Offsets


@declare
class Released(Message):
    """Lists memory of lost connections that is no longer in use."""

    kind: ClassVar[str] = "released"
    offsets: Offsets


@declare
class Answer(Message):
    """The answer to a question, or to an ``open``."""

    channel: ChannelId
    request: Integer


@declare
class Ok(Answer):
    """The channel is granted."""

    kind: ClassVar[str] = "ok"
    token: Token
    port: Port | None = None
    message_limit: Integer


@declare
class Deny(Answer):
    """The call was denied; repeat it after an unknown code."""

    kind: ClassVar[str] = "deny"
    code: Text
    message: Text


@declare
class Finished(Answer):
    """The stream is over already."""

    kind: ClassVar[str] = "finished"
    count: Number
    reason: Reason
    message: Text


@declare
class Elsewhere(Answer):
    """Another process of the node has the channel."""

    kind: ClassVar[str] = "elsewhere"
    port: Port


@declare
class Ready(Message):
    """The channel is registered now."""

    kind: ClassVar[str] = "ready"
    channel: ChannelId


# -- member to node


@declare
class Member(Message):
    """The address at which senders reach the member."""

    kind: ClassVar[str] = "member"
    port: Port


@declare
class Claim(Message):
    """The member has a channel."""

    kind: ClassVar[str] = "claim"
    channel: ChannelId
    number: Integer
    held: Boolean


@declare
class Release(Message):
    """Gives up a channel that the member has no more."""

    kind: ClassVar[str] = "release"
    channel: ChannelId


@declare
class Over(Message):
    """The member has a tombstone."""

    kind: ClassVar[str] = "over"
    channel: ChannelId
    stream: Text
    count: Number
    reason: Reason
    message: Text
    answers: Boolean | None = None


@declare
class Provide(Message):
    """The member has a service."""

    kind: ClassVar[str] = "provide"
    service: ChannelId
    number: Integer


@declare
class Withdraw(Message):
    """Gives up a service that the member has no more."""

    kind: ClassVar[str] = "withdraw"
    service: ChannelId


# -- node to member


@declare
class Taken(Message):
    """The member cannot have the channel."""

    kind: ClassVar[str] = "taken"
    channel: ChannelId
    number: Integer
    message: Text


@declare
class Provided(Message):
    """The member cannot have the service."""

    kind: ClassVar[str] = "provided"
    service: ChannelId
    number: Integer
    message: Text


# -- client to receiver


@declare
class Question(Message):
    """A client's message about a channel."""

    channel: ChannelId
    request: Integer


@declare
class Watch(Question):
    """Wants `Heads`, now and whenever they change."""

    kind: ClassVar[str] = "watch"


@declare
class Locate(Question):
    """Wants a range."""

    kind: ClassVar[str] = "locate"
    stream: Text
    first: Number
    max_rows: Integer | None = None
    max_bytes: Integer | None = None


@declare
class When(Question):
    """Wants to know which messages were sent before and after a time."""

    kind: ClassVar[str] = "when"
    stream: Text
    at: Integer


@declare
class Read(Question):
    """Wants a token for a connection to read on."""

    kind: ClassVar[str] = "read"
    stream: Text


@declare
class Hold(Question):
    """Wants a name to acknowledge under."""

    kind: ClassVar[str] = "hold"
    consumer: Name
    holder: Text
    renew: Boolean
    fresh: Boolean


@declare
class Acknowledge(Question):
    """Everything below ``upto`` is done."""

    kind: ClassVar[str] = "acknowledge"
    consumer: Name
    holder: Text
    stream: Text
    upto: Number


@declare
class Forget(Question):
    """Forgets a name, for which nothing need be kept any more."""

    kind: ClassVar[str] = "forget"
    consumer: Name


@declare
class Yield(Question):
    """The holder is gone, and the connection may stay."""

    kind: ClassVar[str] = "yield"
    consumer: Name
    holder: Text


@declare
class Unwatch(Question):
    """Wants no more `Heads`."""

    kind: ClassVar[str] = "unwatch"


@declare
class Commit(Question):
    """Wants a group published."""

    kind: ClassVar[str] = "commit"
    application: Name
    epoch: Integer
    winners: Winners
    end: Boolean


@declare
class Drop(Question):
    """Wants a group, and those below, removed."""

    kind: ClassVar[str] = "drop"
    application: Name
    epoch: Integer


@declare
class Epoch(Question):
    """Wants the last epoch that is committed."""

    kind: ClassVar[str] = "epoch"
    application: Name


def _too_much(size: int, body: bytes) -> str:
    return f"it has a body of {size} bytes, but {len(body)} bytes arrived" if len(body) > size else ""


@declare
class Call(Message):
    """Wants a service's answer to a body, of which this is the first piece."""

    kind: ClassVar[str] = "call"
    service: ChannelId
    request: Integer
    size: Size
    body: Piece

    def flaw(self) -> str:
        return _too_much(self.size, self.body)


@declare
class Cancel(Message):
    """Wants the answer to a call no more."""

    kind: ClassVar[str] = "cancel"
    request: Integer


@declare
class CallPiece(Message):
    """The next piece of a body, in either direction."""

    kind: ClassVar[str] = "piece"
    request: Integer
    body: Piece

    def flaw(self) -> str:
        return "" if self.body else "its piece is empty"


# -- receiver to client


@declare
class Returned(Message):
    """A service's answer, of which this is the first piece."""

    kind: ClassVar[str] = "returned"
    request: Integer
    size: Size
    body: Piece

    def flaw(self) -> str:
        return _too_much(self.size, self.body)


@declare
class Available(Message):
    """The service is registered now."""

    kind: ClassVar[str] = "available"
    service: ChannelId


@declare
class Heads(Answer):
    """How far the stream goes that is kept."""

    kind: ClassVar[str] = "heads"
    stream: Text
    codec: Codec
    oldest: Number
    head: Number
    rows: Integer
    bytes: Integer
    ended: Boolean
    failure: Text | None = None
    schema: Schema | None = None

    def flaw(self) -> str:
        if self.oldest > self.head:
            return f"its oldest message, {self.oldest}, is above its head, {self.head}"
        return ""


@declare
class Located(Answer):
    """A range."""

    kind: ClassVar[str] = "located"
    until: Number
    rows: Integer
    bytes: Integer


@declare
class Moment(Answer):
    """The messages around a time."""

    kind: ClassVar[str] = "moment"
    since: Number
    before: Number


@declare
class Reading(Answer):
    """A token to read with."""

    kind: ClassVar[str] = "reading"
    token: Token


@declare
class Held(Answer):
    """The client has the name."""

    kind: ClassVar[str] = "held"
    stream: Text
    position: Number


@declare
class Acknowledged(Answer):
    """A position is saved."""

    kind: ClassVar[str] = "acknowledged"
    position: Number


@declare
class Forgotten(Answer):
    """A name is forgotten."""

    kind: ClassVar[str] = "forgotten"


@declare
class Committed(Answer):
    """The group is published."""

    kind: ClassVar[str] = "committed"
    fresh: Boolean


@declare
class Dropped(Answer):
    """The group is removed."""

    kind: ClassVar[str] = "dropped"


@declare
class EpochIs(Answer):
    """The last epoch that is committed."""

    kind: ClassVar[str] = "epoch_is"
    epoch: Integer | None = None
    full: Text | None = None


MESSAGES: dict[str, type[Message]] = {
    each.kind: each
    for each in (
        *(Hello, Proof, Ping, Pong, Error),
        *(Open, Share),
        *(Ok, Deny, Finished, Elsewhere, Ready, Meet, Shared, Holds, Released),
        *(Member, Claim, Release, Over, Provide, Withdraw),
        *(Taken, Provided),
        *(Watch, Locate, When, Read, Hold, Acknowledge, Forget, Yield, Unwatch, Commit, Drop, Epoch),
        *(Call, Cancel, CallPiece),
        *(Heads, Located, Moment, Reading, Held, Acknowledged, Forgotten, Committed, Dropped, EpochIs),
        *(Returned, Available),
    )
}
"""All messages, by their type on the wire."""
