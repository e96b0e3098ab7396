"""The consumers of a retained stream, by name: how far each has acknowledged, and the holder of the name's lease."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from netchannel.errors import ChannelInUse, ConsumerFenced, NetChannelError
from netchannel.values import CONSUMERS_LIMIT, NAME_LIMIT, is_consumer

if TYPE_CHECKING:
    from collections.abc import Hashable, Mapping


class SavedConsumer(NamedTuple):
    """The saved state of a consumer; ``used``: a message was acknowledged under the name."""

    position: int
    holder: str
    used: bool


@dataclass(slots=True)
class Consumer:
    """A name, everything below ``position`` acknowledged.

    ``used``: messages were acknowledged under it, it was not only requested.

    ``connection`` is the holder's, None once it is gone: then no other holder gets the name until ``expires``.
    """

    position: int
    holder: str = ""
    used: bool = False
    connection: Hashable | None = None
    where: str = ""
    expires: float = 0.0


class Consumers:
    """The consumers of a channel. A lease that expires frees no message: it lets another holder take the name."""

    def __init__(self, lease_s: float) -> None:
        self._lease_s = lease_s
        self._known: dict[str, Consumer] = {}

    def __len__(self) -> int:
        return len(self._known)

    @property
    def lowest(self) -> int | None:
        """Return the number below which all have acknowledged; None if no consumer is known."""
        return min([consumer.position for consumer in self._known.values()], default=None)

    @property
    def slowest(self) -> tuple[str, Consumer] | None:
        """The consumer that has acknowledged least; None if none is known."""
        return min(self._known.items(), key=lambda item: item[1].position, default=None)

    def positions(self) -> dict[str, SavedConsumer]:
        """The standing of each name, as it is to be remembered."""
        return {
            name: SavedConsumer(each.position, each.holder, each.used) for name, each in self._known.items()
        }

    def restore(self, known: Mapping[str, SavedConsumer], now: float) -> None:
        """Take up each name with its position after a restart; its holder has the time of a lease to come back."""
        for name, standing in known.items():
            self._known[name] = Consumer(*standing, expires=now + self._lease_s)

    def expect(self, name: str, position: int) -> None:
        """Expect a consumer under this name, which wants everything from ``position``."""
        self._known.setdefault(name, Consumer(position))

    def start_over(self, position: int) -> None:
        """Another stream begins: no consumer has acknowledged anything of it."""
        for consumer in self._known.values():
            consumer.position = position

    def hold(
        self,
        name: str,
        holder: str,
        connection: Hashable,
        where: str,
        now: float,
        *,
        oldest: int,
        renew: bool = False,
        fresh: bool = False,
    ) -> Consumer:
        """Give the name to ``holder``, a new one with everything from ``oldest`` on to be acknowledged.

        To ``renew`` is to continue after a lost connection: with the name held before, or not at all. A
        ``fresh`` holder does not continue the work of others, and gets no name under which another holder has
        acknowledged messages.

        Raises:
            ChannelInUse: another holder's lease has not expired.
            ConsumerFenced: it was to be renewed, and another holder has had the name since; or to be fresh.
            NetChannelError: the name cannot be one, or there are too many.
        """
        self._check(name, holder)
        consumer = self._known.get(name)
        if consumer is None:
            if renew:
                raise ConsumerFenced(f"consumer {name!r} is no longer known: it was forgotten on request")
            if len(self._known) >= CONSUMERS_LIMIT:
                raise NetChannelError(
                    f"the channel has {len(self._known)} consumers already: forget the unused ones"
                )
            consumer = self._known[name] = Consumer(oldest)
        elif fresh and consumer.used and consumer.holder != holder:
            raise ConsumerFenced(
                f"consumer {name!r} was last used by {consumer.holder!r}{consumer.where}, which has acknowledged "
                f"everything below {consumer.position}: to start from scratch, use another name, or forget this name "
                f"first"
            )
        elif consumer.holder not in ("", holder):
            if renew:
                raise ConsumerFenced(_fenced(name, consumer))
            left = consumer.expires - now
            if consumer.connection is not None or left > 0:
                still = (
                    f"which is gone; the name stays reserved for {left:.1f} s: wait until then"
                    if consumer.connection is None
                    else "which is connected: end it"
                )
                raise ChannelInUse(
                    f"consumer {name!r} is held by {consumer.holder!r}{consumer.where}, {still}, or choose another name"
                )
        consumer.holder, consumer.connection, consumer.where = holder, connection, where
        return consumer

    def _check(self, name: str, holder: str) -> None:
        for text in (name, holder):
            if not is_consumer(text):
                raise NetChannelError(
                    f"the name {text[:60]!r} of a consumer or of its holder has {len(text)} characters: expected 1 to "
                    f"{NAME_LIMIT} printable characters"
                )

    def acknowledge(self, name: str, holder: str, upto: int) -> Consumer:
        """Note that everything below ``upto`` is done. Raises ConsumerFenced if ``holder`` does not have the name."""
        consumer = self._known.get(name)
        if consumer is None:
            raise ConsumerFenced(
                f"unknown consumer {name!r}, which may have been forgotten: call hold() first"
            )
        if consumer.holder != holder:
            raise ConsumerFenced(_fenced(name, consumer))
        consumer.position = max(consumer.position, upto)
        consumer.used = True
        return consumer

    def forget(self, name: str) -> bool:
        """Forget a name, for which nothing need be kept any more; whether it was known."""
        return self._known.pop(name, None) is not None

    def release(self, name: str, holder: str, connection: Hashable, now: float) -> None:
        """The holder is gone, its connection is not: others can take the name after the time of a lease.

        Unless the holder has it by another connection meanwhile.
        """
        consumer = self._known.get(name)
        if consumer is not None and (consumer.holder, consumer.connection) == (holder, connection):
            consumer.connection = None
            consumer.expires = now + self._lease_s

    def left(self, connection: Hashable, now: float) -> None:
        """A connection is gone: what it held can be taken by others after the time of a lease."""
        for consumer in self._known.values():
            if consumer.connection == connection:
                consumer.connection = None
                consumer.expires = now + self._lease_s


def _fenced(name: str, consumer: Consumer) -> str:
    return (
        f"consumer {name!r} is now held by {consumer.holder!r}{consumer.where}, at number {consumer.position}: two "
        f"processes use this name"
    )
