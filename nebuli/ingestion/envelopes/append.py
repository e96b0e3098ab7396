"""The envelope of rows that are added, each once."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nebuli.dataflow import zset

from .envelope import Changes, Envelope

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import pyarrow as pa

    from nebuli.ingestion.addressed import Messages


class Append(Envelope):
    """Adds every row, also one that is there already; it has no state."""

    def __init__(self, schema: pa.Schema) -> None:
        self.schema = self.wants = schema

    def apply(self, messages: Mapping[str, Sequence[Messages]]) -> Changes:
        """Every row once more."""
        rows = [each.rows for name in sorted(messages) for each in messages[name]]
        return Changes([zset.insertions(each) for each in rows if each.num_rows])
