"""The channels that a query reads, as its driver sees them: how far they go, who holds the consumer's name."""

from __future__ import annotations

import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING

from netchannel import ChannelInUse, ConsumerFenced, NetChannelError, Position

from .clients import make_reader
from .errors import SparkBridgeError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from netchannel import Heads, Located
    from netchannel.process import BlockingChannelReader

    from .admission import Limits
    from .offsets import Entry
    from .options import ReadOptions

HANDOVER_S = 16.0
"""How long a name that somebody else holds is waited for at most: 5 s until a lost connection is noticed, 10 s of its
lease. A query that comes back from its checkpoint has the name at once."""
_ASK_S = 0.5


class Channels:
    """The channels of a read. Connections are made at the first call that needs them."""

    def __init__(self, options: ReadOptions) -> None:
        self._options = options
        self._readers: dict[str, BlockingChannelReader] = {}
        self._held: set[str] = set()
        self._held_soon: dict[str, threading.Thread] = {}
        self._acknowledged: dict[str, Position] = {}

    def _all(self) -> dict[str, BlockingChannelReader]:
        if not self._readers:
            connection = self._options.connection
            self._readers = {source.key: make_reader(connection, source) for source in connection.sources}
        return self._readers

    def latest(self) -> dict[str, Heads]:
        """The newest heads that have been pushed here; costs nothing. Channels without a stream are left out."""
        return {key: heads for key, each in self._all().items() if (heads := each.latest) is not None}

    def heads(self) -> dict[str, Heads]:
        """The heads of all channels, waited for. Raises SparkBridgeError for one that does not come in time."""
        deadline = time.monotonic() + self._options.connection.timeout_s
        for key, each in self._all().items():
            try:
                each.heads(timeout=max(0.0, deadline - time.monotonic()))
            except TimeoutError as error:
                (source,) = [source for source in self._options.connection.sources if source.key == key]
                raise SparkBridgeError(
                    f"nothing was heard of channel {source.channel!r} at {source.endpoint} for "
                    f"{self._options.connection.timeout_s} s: is a server there that keeps the channel, and has a "
                    f"stream begun? The option connectTimeout says how long that is waited for"
                ) from error
        return self.latest()

    def locate(self, key: str, first: Position, limits: Limits) -> Located:
        """How far ``limits`` go in a channel."""
        return self._all()[key].locate(first, max_rows=limits.rows, max_bytes=limits.bytes)

    def hold_soon(self, key: str, holder: str) -> None:
        """Take the consumer's name as soon as the server is there, without waiting: what comes is kept for it then.

        What goes wrong is said by the next `hold`.
        """
        if key in self._held or key in self._held_soon:
            return

        def take() -> None:
            with suppress(NetChannelError):
                self._all()[key].hold(self._options.consumer, holder=holder)
                self._held.add(key)

        self._held_soon[key] = threading.Thread(target=take, name="netchannel hold", daemon=True)
        self._held_soon[key].start()

    def settle(self, timeout_s: float) -> None:
        """Wait for what `hold_soon` has begun, so long at most: who has answered has said its heads before."""
        deadline = time.monotonic() + timeout_s
        for thread in self._held_soon.values():
            thread.join(max(0.0, deadline - time.monotonic()))

    def hold(self, key: str, holder: str) -> None:
        """Take the consumer's name, once. Raises SparkBridgeError if another query holds it."""
        if key in self._held:
            return
        deadline = time.monotonic() + min(HANDOVER_S, self._options.connection.timeout_s)
        while True:
            try:
                self._all()[key].hold(self._options.consumer, holder=holder)
            except ChannelInUse as error:
                if time.monotonic() > deadline:
                    raise _in_use(key, self._options.consumer, str(error)) from error
                threading.Event().wait(_ASK_S)
            else:
                self._held.add(key)
                return

    def acknowledge(self, entries: Mapping[str, Entry], heads: Mapping[str, Heads]) -> None:
        """Free what Spark has committed, and wait until that is done. Costs nothing for what is done already.

        The first offset of a query is not acknowledged: Spark has committed nothing yet.
        """
        for key, entry in entries.items():
            if entry.stream is None or entry.first is None:
                continue
            position = Position(entry.stream, entry.sequence)
            known = heads.get(key)
            if self._acknowledged.get(key) == position or known is None or known.stream != entry.stream:
                continue
            if known.oldest <= entry.sequence <= known.head:
                self.hold(key, entry.holder)
                try:
                    self._all()[key].ack(self._options.consumer, position)
                except ConsumerFenced as error:
                    raise _in_use(key, self._options.consumer, str(error)) from error
            self._acknowledged[key] = position

    def close(self) -> None:
        """Give the connections up."""
        for each in self._readers.values():
            each.close()
        self._readers.clear()


def _in_use(key: str, consumer: str, why: str) -> SparkBridgeError:
    return SparkBridgeError(
        f"another query reads channel {key!r} as consumer {consumer!r}: {why}. Stop it, or give this one a name of its "
        f"own by the option consumer"
    )
