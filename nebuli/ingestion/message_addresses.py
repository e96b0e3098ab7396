"""Messages as a source has them: each at an address, of which a part of the source has them in order."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import pyarrow as pa
    from numpy.typing import NDArray

PAYLOAD = "payload"
"""The column of messages that are bytes, for a decoder."""
AVAILABLE, SOURCE, PART, ADDRESS, NUMBER = PLACE = "_available", "_source", "_part", "_address", "_number"
"""The columns of a raw message's place, in their order: the time at which it became available, and where it is.

The last distinguishes those of one address.
"""
Addresses = dict[str, int]
"""By part of a source, the end of the meant messages: all below it."""


@dataclass(frozen=True, slots=True)
class Undecoded:
    """A message at an address that no rows could be made of: its ``error``, and its bytes, where it is some."""

    address: int
    error: str
    payload: bytes | None


@dataclass(frozen=True, slots=True)
class Messages:
    """All messages of a ``part`` from address ``lower`` up to but not including ``upper``, in order.

    There is a row for each, or, after a decoder, for each row in it; ``addresses`` has the address of each row, and
    never goes down. Several may have the same. ``undecoded`` are those of which a decoder could make none.
    """

    part: str
    lower: int
    upper: int
    addresses: NDArray[np.int64]
    rows: pa.RecordBatch
    undecoded: Sequence[Undecoded] = ()

    @property
    def nbytes(self) -> int:
        """How much memory the rows take."""
        size: int = self.rows.nbytes
        return size

    def below(self, address: int) -> Messages:
        """Those below an address, which is above ``lower``."""
        if address >= self.upper:
            return self
        end = int(np.searchsorted(self.addresses, address))
        return replace(self, upper=address, addresses=self.addresses[:end], rows=self.rows.slice(0, end))

    def since(self, address: int) -> Messages:
        """Those from an address on, which is below ``upper``."""
        if address <= self.lower:
            return self
        begin = int(np.searchsorted(self.addresses, address))
        return replace(self, lower=address, addresses=self.addresses[begin:], rows=self.rows.slice(begin))

    def without(self, address: int) -> Messages:
        """All but those at an address."""
        others = np.flatnonzero(self.addresses != address)
        return self.made_of(self.rows.take(others), others)

    def made_of(self, rows: pa.RecordBatch, places: NDArray[np.int64] | None = None) -> Messages:
        """The same with other rows, one for each, or for those at some ``places``."""
        addresses = self.addresses if places is None else self.addresses[places]
        return replace(self, addresses=addresses, rows=rows)

    def place(self, row: int, source: str) -> str:
        """Return the place of a row, as errors name it."""
        part = f" of {self.part}" if self.part else ""
        return f"{source}: the message at {int(self.addresses[row])}{part}"


def is_behind(some: Mapping[str, int], others: Mapping[str, int]) -> bool:
    """True if any of these addresses is below those."""
    return any(some.get(part, 0) < address for part, address in others.items())
