"""The contract of a decoder: from messages to rows, by nothing but the messages and recorded facts."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

from nebuli.connectors.formats.message_bytes import MessageBytes
from nebuli.ingestion.message_addresses import PAYLOAD

if TYPE_CHECKING:
    from collections.abc import Mapping

    import pyarrow as pa

    from nebuli.ingestion.message_addresses import Messages

Facts = dict[str, bytes]
"""Facts by key, recorded once and for all: if several were found for a key, the first one recorded."""


class Decoder(ABC):
    """Made once for each instance of an ingestion, on its event loop."""

    schema: pa.Schema
    """The columns of what it makes."""

    async def facts(self, messages: Messages, known: Mapping[str, bytes]) -> Facts:
        """Return data that `decode` needs for these messages and that does not follow from them.

        Answers of others, random numbers, or the time.

        ``known`` facts are not requested again. It is recorded before it is used, and what was recorded is used:
        another instance may have been first. Raises SourceAway, MessageInvalid.
        """
        return {}

    @abstractmethod
    def decode(self, messages: Messages, facts: Mapping[str, bytes]) -> Messages:
        """Rows of the `schema`, as few or as many as are in each message, with the address of each.

        The same for the same messages and facts, whenever, wherever and however they are cut. Raises MessageInvalid.
        """

    async def close(self) -> None:  # noqa: B027 - most have nothing
        """Let go of everything."""


def bytes_of(messages: Messages) -> MessageBytes:
    """Those of all messages, each with a line end."""
    return MessageBytes.of(messages.rows.column(PAYLOAD))
