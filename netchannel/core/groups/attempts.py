"""Attempts at groups as a staged channel sees them: being written, and sealed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence

    from netchannel.core.receiving.inbound import InboundChannel
    from netchannel.values import AttemptKey
    from netchannel.wire.codec import Decoder


class Attempt(Protocol):
    """The messages on ``channel``, whose id no other peer knows, written to a file of ``bytes`` so far."""

    channel: InboundChannel
    bytes: int

    @property
    def key(self) -> AttemptKey:
        """The key of the attempt."""


class SealedFile(Protocol):
    """An attempt that is on the disk as a whole: ``count`` messages of ``size`` bytes, with their checksum."""

    @property
    def key(self) -> AttemptKey:
        """The key of the attempt."""

    @property
    def count(self) -> int:
        """How many messages there are."""

    @property
    def size(self) -> int:
        """Bytes of the messages."""

    @property
    def checksum(self) -> int:
        """Return the checksum by which their sender knows them."""

    @property
    def schema(self) -> bytes:
        """The schema of the messages; empty under the codec ``bytes``."""

    @property
    def file_bytes(self) -> int:
        """The size of their file."""


class AttemptDecoder:
    """Checks a sender's schema as a channel's own decoder does, and keeps it: the messages are not read yet."""

    def __init__(self, decoder: Decoder) -> None:
        self._decoder = decoder
        self.learned = b""

    def compare(self, schema: bytes) -> None:
        """Check the schema that the sender has sent. Raises SchemaMismatch."""
        self._decoder.compare(schema)

    def learn(self, schema: bytes) -> None:
        """The sender's schema is here. Raises SchemaMismatch."""
        self._decoder.learn(schema)
        self.learned = schema

    def check(self, bodies: Sequence[memoryview], context: memoryview | None, limit: int) -> None:
        """Check bodies as the channel's own decoder would."""
        self._decoder.check(bodies, context, limit)

    def check_context(self, context: bytes, limit: int) -> None:
        """Check a context as the channel's own decoder would."""
        self._decoder.check_context(context, limit)

    def decode(self, body: memoryview, context: memoryview | None, limit: int) -> Any:
        """Never called: messages of an attempt are not read here."""
        return self._decoder.decode(body, context, limit)
