"""Messages that have columns already, by their names."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa

from nebuli.ingestion.errors import MessageInvalid

from .decoder import Decoder

if TYPE_CHECKING:
    from collections.abc import Mapping

    from nebuli.ingestion.message_addresses import Messages


class TypedColumns(Decoder):
    """Takes the columns of a schema by their names, cast where that loses nothing; others are passed over."""

    def __init__(self, schema: pa.Schema, *, source: str) -> None:
        self.schema = schema
        self._source = source

    def decode(self, messages: Messages, facts: Mapping[str, bytes]) -> Messages:
        """The same rows. Raises MessageInvalid where a column is missing, or is of another type."""
        rows = messages.rows
        columns = []
        for field in self.schema:
            if rows.schema.get_field_index(field.name) == -1:
                raise MessageInvalid(
                    f"{self._source}: its messages have the columns {', '.join(rows.schema.names)}, but not "
                    f"the column {field.name} of the schema: use only columns of the messages in the schema"
                )
            try:
                columns.append(rows.column(field.name).cast(field.type))
            except pa.ArrowException as error:
                raise MessageInvalid(
                    f"{self._source}: in a message at {messages.lower} or later, column {field.name} has the "
                    f"type {rows.schema.field(field.name).type}, but in the schema {field.type} ({error}): use "
                    f"the same type in both"
                ) from error
        return messages.made_of(pa.RecordBatch.from_arrays(columns, schema=self.schema))
