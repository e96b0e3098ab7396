"""Arrow streams as rows: all batches of the stream in each message."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from nebuli.connectors.errors import InputError
from nebuli.connectors.sources.arrow_columns import ArrowColumns
from nebuli.ingestion.errors import MessageInvalid
from nebuli.ingestion.message_addresses import PAYLOAD

from .decoder import Decoder

if TYPE_CHECKING:
    from collections.abc import Mapping

    from nebuli.ingestion.message_addresses import Messages


class ArrowDecoder(Decoder):
    """The rows of an IPC stream in each message, by the rule of `ArrowColumns`; an empty message has none."""

    def __init__(self, schema: pa.Schema, *, source: str) -> None:
        self.schema = schema
        self._source = source

    def decode(self, messages: Messages, facts: Mapping[str, bytes]) -> Messages:
        """Return rows of the schema. Raises MessageInvalid for a message that is not an IPC stream or lacks columns."""
        made: list[pa.RecordBatch] = []
        places: list[int] = []
        for row, payload in enumerate(messages.rows.column(PAYLOAD)):
            for batch in self._batches(messages.place(row, self._source), payload.as_buffer()):
                made.append(batch)
                places += [row] * batch.num_rows
        rows = pa.concat_batches(made) if made else pa.RecordBatch.from_pylist([], schema=self.schema)
        return messages.made_of(rows, np.asarray(places, dtype=np.int64))

    def _batches(self, place: str, payload: pa.Buffer | None) -> list[pa.RecordBatch]:
        if payload is None or not payload.size:
            return []
        columns = ArrowColumns(self.schema, place, "message", f"source {self._source}")
        made = []
        try:
            with pa.ipc.open_stream(payload) as stream:
                columns.check(stream.schema)
                for batch in stream:
                    batch.validate(full=True)  # its sender is not known
                    made.append(columns.of(batch))
        except InputError as error:
            raise MessageInvalid(str(error)) from error
        except (pa.ArrowException, OSError, ValueError) as error:
            raise MessageInvalid(f"{place} is not an Arrow stream: {error}") from error
        return made
