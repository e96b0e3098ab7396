"""Attempts at groups as a staged channel sees them: being written, and sealed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence

    from netchannel.core.receiving.inbound import InboundChannel
    from netchannel.values import AttemptKey
    from netchannel.wire.codec import Decoder


class Attempt(Protocol):
    """What comes on ``channel``, which nobody else knows by its id, and is written to a file of ``bytes`` so far."""

    channel: InboundChannel
    bytes: int

    @property
    def key(self) -> AttemptKey:
        """Whose messages they are."""


class SealedFile(Protocol):
    """An attempt that is on the disk as a whole: ``count`` messages of ``size`` bytes, with their checksum."""

    @property
    def key(self) -> AttemptKey:
        """Whose messages they are."""

    @property
    def count(self) -> int:
        """How many there are."""

    @property
    def size(self) -> int:
        """Their bytes."""

    @property
    def checksum(self) -> int:
        """What their sender knows them by."""

    @property
    def schema(self) -> bytes:
        """Their schema; empty under the codec ``bytes``."""

    @property
    def file_bytes(self) -> int:
        """The size of their file."""


class AttemptDecoder:
    """Checks a sender's schema as a channel's own decoder does, and keeps it: nobody reads the messages yet."""

    def __init__(self, decoder: Decoder) -> None:
        self._decoder = decoder
        self.learned = b""

    def compare(self, schema: bytes) -> None:
        """Somebody says that it is the sender's. Raises SchemaMismatch."""
        self._decoder.compare(schema)

    def learn(self, schema: bytes) -> None:
        """The sender's schema is here. Raises SchemaMismatch."""
        self._decoder.learn(schema)
        self.learned = schema

    def check(self, bodies: Sequence[memoryview], context: memoryview | None, limit: int) -> None:
        """As the channel's own would."""
        self._decoder.check(bodies, context, limit)

    def check_context(self, context: bytes, limit: int) -> None:
        """As the channel's own would."""
        self._decoder.check_context(context, limit)

    def decode(self, body: memoryview, context: memoryview | None, limit: int) -> Any:
        """Nobody asks for it."""
        return self._decoder.decode(body, context, limit)
