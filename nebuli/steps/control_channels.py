"""The channels between a coordinator and a member: their names, and the greeting that begins a session.

A member is greeted on one channel that every coordinator knows. The greeting names a session and where the coordinator
is reached; the session has a channel in each direction of its own, so that what is still on its way from an older one
finds no channel of that name. A greeting is a stream of one message: the next one to greet waits for its end.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from nebuli.steps.protocol.vocabulary import packed, read, text

_VERSION = 1


@dataclass(frozen=True, slots=True)
class Greeting:
    """A coordinator's first message.

    The ``session`` under which it receives messages, and the ``address`` to answer to.
    """

    session: str
    address: str


def greetings(circuit: str, member: int) -> str:
    """The id of the channel on which a member is greeted."""
    return f"{circuit}/members/{member}/greetings"


def to_member(circuit: str, member: int, session: str) -> str:
    """Return the id of the channel for messages to a member."""
    return f"{circuit}/members/{member}/{session}/told"


def to_coordinator(circuit: str, member: int, session: str) -> str:
    """The id of the channel on which a member answers."""
    return f"{circuit}/members/{member}/{session}/said"


def encoded(greeting: Greeting) -> bytes:
    """The bytes of a greeting."""
    return packed([_VERSION, greeting.session, greeting.address])


def read_greeting(data: bytes, sender: str) -> Greeting:
    """The greeting in these bytes. Raises MalformedMessage, which names the sender."""
    return read(data, sender, _greeting)


def _greeting(values: list[Any]) -> Greeting:
    if len(values) != 3 or values[0] != _VERSION:
        raise ValueError(f"they are not a greeting of version {_VERSION}")
    session, address = map(text, values[1:])
    if not session or not address:
        raise ValueError("they greet without a session, or an address")
    return Greeting(session, address)
