"""`LogPosition`: the rest of an input log, and the last numbers of producers: another log continues from it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    import pyarrow as pa

    from nebuli.steps.logs.addresses import Address


@dataclass(frozen=True, slots=True)
class LogPosition:
    """Where a log stands between two steps.

    ``waiting`` are the rows that count for no step yet, added, by handle; ``producers`` what is remembered of who sent
    them and all before, in the producers' schema; ``addresses`` where each source is read on that is not logged.
    """

    step: int
    waiting: Mapping[str, pa.RecordBatch]
    producers: pa.RecordBatch
    addresses: Mapping[str, Address]
