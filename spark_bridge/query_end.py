"""The end of a streaming query whose channels have ended: a source cannot end a query, its driver can."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Any

from .errors import UnsupportedSpark

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql.streaming.query import StreamingQuery

_LOOK_S = 0.5
_SHORTEST_S = 0.001  # Spark counts whole milliseconds, and refuses to wait for none


def stop_at_end(query: StreamingQuery | Any, timeout_s: float | None = None) -> bool:
    """Wait for the end of all channels that ``query`` reads, and until their rows are written; then stop the query.

    Call it instead of ``query.awaitTermination()``, on the driver or a client of Spark Connect. When it returns True,
    Spark has committed everything, and all rows are acknowledged at the channels. After ``timeout_s`` it returns False,
    and the query continues. A channel that a receiver retains may have another stream after its end: if that stream has
    begun, it is read too.

    Raises:
        UnsupportedSpark: the query reads something other than a channel.
        pyspark.errors.StreamingQueryException: the query has failed.
    """
    wait: Any = query.awaitTermination  # its signature has whole seconds, it takes fractions
    deadline = None if timeout_s is None else time.monotonic() + timeout_s
    while True:
        if _has_ended(query.lastProgress):
            query.processAllAvailable()  # returns once the source was asked again, and has acknowledged its end
            if _has_ended(query.lastProgress):
                query.stop()
                return True
        left = _LOOK_S if deadline is None else min(_LOOK_S, deadline - time.monotonic())
        if left <= 0:
            return False
        if wait(max(left, _SHORTEST_S)):
            return True


def _has_ended(progress: Mapping[str, Any] | None) -> bool:
    """True if the last batch of a query has read all of its channels to their ends."""
    if progress is None:
        return False
    ends = [
        _is_end(source) for source in progress["sources"]
    ]  # all of them: one that is not a channel is refused
    return all(ends)


def _is_end(source: Mapping[str, Any]) -> bool:
    offset = source["endOffset"]
    if isinstance(offset, str):  # of PySpark 4.2 and later
        offset = json.loads(offset)
    if not (
        isinstance(offset, dict) and all(isinstance(each, dict) and "seq" in each for each in offset.values())
    ):
        raise UnsupportedSpark(
            f"the query also reads {source['description']}, which does not report its end: stop the query by "
            f"query.stop()"
        )
    return all(each.get("ended") for each in offset.values())
