"""JSON objects as rows."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nebuli.connectors.errors import RowInvalid
from nebuli.connectors.formats.json_objects import JsonRows, refuse_constant
from nebuli.ingestion.errors import MessageInvalid

from .decoder import Decoder, bytes_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    import pyarrow as pa

    from nebuli.ingestion.message_addresses import Messages


class JsonDecoder(Decoder):
    """The object in each message, by the rule of `JsonRows`; an empty message, or blank line, is a tombstone."""

    def __init__(self, schema: pa.Schema, *, source: str) -> None:
        self.schema = schema
        self._source = source
        self._rows = JsonRows(schema, refuse_constant)

    def decode(self, messages: Messages, facts: Mapping[str, bytes]) -> Messages:
        """Return rows of the schema. Raises MessageInvalid for one that is not an object, or has a wrong value."""
        try:
            rows, places = self._rows.read(bytes_of(messages), messages.addresses == 0)
        except RowInvalid as error:
            raise MessageInvalid(f"{messages.place(error.row, self._source)}: {error}") from None
        return messages.made_of(rows, places)
