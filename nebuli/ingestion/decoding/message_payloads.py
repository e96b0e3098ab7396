"""The bytes of messages."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nebuli.connectors.formats.message_bytes import MessageBytes
from nebuli.ingestion.addressed import PAYLOAD

if TYPE_CHECKING:
    from nebuli.ingestion.addressed import Messages


def bytes_of(messages: Messages) -> MessageBytes:
    """Those of all messages, each with a line end."""
    return MessageBytes.of(messages.rows.column(PAYLOAD))
