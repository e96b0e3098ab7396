"""The channels between a coordinator and a member: their names, and the greeting that begins a session.

A member is greeted on one channel that every coordinator knows. The greeting names a session and where the coordinator
is reached; the session has a channel in each direction of its own, so that what is still on its way from an older one
finds no channel of that name. A greeting is a stream of one message: whoever greets next waits for its end.
"""

from __future__ import annotations

from dataclasses import dataclass

import msgpack

from nebuli.coordinator.errors import MalformedMessage

GREETING_LIMIT = 1 << 12
_VERSION = 1
_TEXT_LIMIT = 1 << 10


@dataclass(frozen=True, slots=True)
class Greeting:
    """What a coordinator says first: under which ``session`` it will be heard, and the ``address`` to answer to."""

    session: str
    address: str


def greetings(circuit: str, member: int) -> str:
    """The id of the channel on which a member is greeted."""
    return f"{circuit}/members/{member}/greetings"


def to_member(circuit: str, member: int, session: str) -> str:
    """The id of the channel on which a member is told something."""
    return f"{circuit}/members/{member}/{session}/told"


def to_coordinator(circuit: str, member: int, session: str) -> str:
    """The id of the channel on which a member answers."""
    return f"{circuit}/members/{member}/{session}/said"


def encoded(greeting: Greeting) -> bytes:
    """The bytes of a greeting."""
    packed: bytes = msgpack.packb([_VERSION, greeting.session, greeting.address])
    return packed


def read_greeting(data: bytes, sender: str) -> Greeting:
    """The greeting in these bytes. Raises MalformedMessage."""
    if len(data) > GREETING_LIMIT:
        raise MalformedMessage(
            sender, f"sent a greeting of {len(data)} bytes, where {GREETING_LIMIT} is the limit"
        )
    try:
        match msgpack.unpackb(data):
            case [int(version), str(session), str(address)] if version == _VERSION:
                if 0 < len(session) <= _TEXT_LIMIT and 0 < len(address) <= _TEXT_LIMIT:
                    return Greeting(session, address)
    except (ValueError, msgpack.exceptions.UnpackException):
        pass  # as what is no greeting otherwise
    raise MalformedMessage(sender, f"sent {len(data)} bytes that are no greeting of version {_VERSION}")
