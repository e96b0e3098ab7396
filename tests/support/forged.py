"""What a peer may say that is not a message of ours: any map, as a control connection carries it."""

from __future__ import annotations

import hmac
from collections.abc import Mapping
from typing import Any

import msgpack

from netchannel.wire.envelope import MessageParser, enclosed
from netchannel.wire.messages import Hello


def forged(fields: Mapping[str, Any]) -> bytes:
    """A control message of these fields, whatever they hold."""
    return enclosed(msgpack.packb(fields))


def proof(nonce: bytes, answered: bytes, *, role: str = "sender", secret: bytes = b"") -> bytes:
    """What makes the handshake done of a side that said ``nonce``, and to which was ``answered``, a hello among it."""
    (hello,) = [each for each in MessageParser().received(memoryview(answered)) if isinstance(each, Hello)]
    said = b"netchannel " + role.encode() + nonce + hello.nonce
    return forged({"t": "proof", "mac": hmac.digest(secret, said, "sha256")})
