"""A member's tables at a step, as the coordinator's process reads them: pinned, in pieces, and let go."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa

from nebuli.dataflow.zset import WEIGHT, weights_of
from nebuli.steps.member.calls import call_messages as ask
from nebuli.steps.member.calls.output_pieces import halves
from nebuli.steps.member.calls.pins import NotPinned

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nebuli.steps.member.calls.pins import Pins

PIECE_BYTES = 1 << 21


async def pinned(pins: Pins, asked: ask.Pin | ask.ReadPinned | ask.Unpin) -> ask.Answer:
    """Return a member's answer."""
    try:
        match asked:
            case ask.Pin(name, tables, step, within_s):
                return ask.Pinned(await pins.pin(name, tables, step, within_s))
            case ask.ReadPinned():
                return await _piece(pins, asked)
            case ask.Unpin(name):
                pins.release(name)
                return ask.Noted()
    except NotPinned:
        return ask.NotPinned()
    except KeyError as unknown:
        return ask.CouldNot(f"{unknown} is neither an output nor a materialized input")


async def _piece(pins: Pins, asked: ask.ReadPinned) -> ask.Answer:
    rows = (await pins.rows(asked.name, asked.step))[asked.table]
    if rows is None:
        return ask.NotKept()
    of_one = all((weights_of(batch) == 1).all() for batch in rows)
    pieces = _pieces(rows, asked.columns if of_one else [*asked.columns, WEIGHT])
    return ask.PinnedRows(len(pieces), _stream(pieces[asked.piece]) if pieces else b"")


def _pieces(batches: Sequence[pa.RecordBatch], columns: Sequence[str]) -> list[list[pa.RecordBatch]]:
    """Rows in groups of bounded size, if rows are of bounded size."""
    groups: list[list[pa.RecordBatch]] = []
    size = 0
    for batch in batches:
        for each in halves(batch.select(columns), PIECE_BYTES):
            if not groups or size + each.nbytes > PIECE_BYTES:
                groups.append([])
                size = 0
            groups[-1].append(each)
            size += each.nbytes
    return groups


def _stream(batches: Sequence[pa.RecordBatch]) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batches[0].schema) as writer:
        for batch in batches:
            writer.write_batch(batch)
    return bytes(sink.getvalue())
