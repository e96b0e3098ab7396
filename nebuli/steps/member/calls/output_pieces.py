"""`OutputPieces`: what an output log has from a step on, in pieces of bounded size, if rows are of bounded size."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nebuli.steps.member.calls.call_messages import Piece

if TYPE_CHECKING:
    from collections.abc import Collection

    import pyarrow as pa

    from nebuli.steps.logs.output_log import OutputLog

PIECE_BYTES = 1 << 20


class OutputPieces:
    """Pieces for readers that ask for one after the other; the origin of an output's last one is kept."""

    def __init__(self, log: OutputLog) -> None:
        self._log = log
        self._read: dict[str, tuple[int, list[Piece]]] = {}

    @property
    def outputs(self) -> Collection[str]:
        """Those whose rows it has."""
        return self._log.schemas

    async def piece(self, output: str, step: int, number: int) -> Piece:
        """A piece of what there is from a step on; waits until there is something. Raises SinceMismatch."""
        first, pieces = self._read.get(output, (-1, []))
        if first != step or number >= len(pieces):
            pieces = await self._pieces(output, step)
        self._read[output] = step, pieces
        found = pieces[min(number, len(pieces) - 1)]
        if found is pieces[-1]:
            del self._read[output]
        return found

    async def _pieces(self, output: str, step: int) -> list[Piece]:
        span = await anext(self._log.follow(output, step))
        groups: list[list[tuple[int, bytes]]] = [[]]
        size = 0
        for at, rows in span.updates:
            for each in halves(rows, PIECE_BYTES):
                if size + each.nbytes > PIECE_BYTES and groups[-1]:
                    groups.append([])
                    size = 0
                groups[-1].append((at, bytes(each.serialize())))
                size += each.nbytes
        return [Piece(span.upper, len(groups), tuple(group)) for group in groups]


def halves(batch: pa.RecordBatch, max_bytes: int) -> list[pa.RecordBatch]:
    """The batch in pieces of so many bytes at most, or of one row."""
    if batch.num_rows < 2 or batch.nbytes <= max_bytes:
        return [batch]
    half = batch.num_rows // 2
    return [*halves(batch.slice(0, half), max_bytes), *halves(batch.slice(half), max_bytes)]
