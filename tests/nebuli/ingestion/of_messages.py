"""Messages for tests, and cuts of them."""

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise

import numpy as np
import pyarrow as pa

from nebuli.ingestion.message_addresses import PAYLOAD, Messages


def payloads(each: Sequence[bytes | None], *, lower: int = 0, part: str = "") -> Messages:
    """A message for each, at addresses that follow each other."""
    rows = pa.record_batch([pa.array(each, pa.binary())], [PAYLOAD])
    return Messages(part, lower, lower + len(each), np.arange(lower, lower + len(each)), rows)


def rows_of(
    schema: pa.Schema, rows: Sequence[Mapping[str, object]], *, lower: int = 0, part: str = ""
) -> Messages:
    """A message for each row, decoded."""
    batch = pa.RecordBatch.from_pylist([dict(each) for each in rows], schema=schema)
    return Messages(part, lower, lower + len(rows), np.arange(lower, lower + len(rows)), batch)


def in_cuts(messages: Messages, cuts: Sequence[int]) -> list[Messages]:
    """The same in several."""
    bounds = sorted({messages.lower, messages.upper, *cuts})
    return [messages.since(low).below(high) for low, high in pairwise(bounds)]


def outcome(
    decode: Callable[[Messages], Messages], pieces: Sequence[Messages]
) -> list[tuple[int, dict[str, object]]]:
    """All rows of several decoded messages, with their addresses."""
    made = [decode(each) for each in pieces]
    return [
        (int(address), row)
        for each in made
        for address, row in zip(each.addresses, each.rows.to_pylist(), strict=True)
    ]
