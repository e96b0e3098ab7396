"""Messages are decoded before they are recorded: one that cannot be ingested must not become available."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from nebuli.dataflow import zset
from nebuli.ingestion.decoding.decoder import Decoder
from nebuli.ingestion.errors import MessageInvalid, MessagePlace
from nebuli.ingestion.message_addresses import PAYLOAD, Undecoded

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Mapping

    from nebuli.ingestion.decoding.decoder import Facts
    from nebuli.ingestion.message_addresses import Messages
    from nebuli.store.store_threads import StoreThreads


class Checked(Decoder):
    """A decoder. Its results for messages ahead are kept until they are decoded, so that they are computed once.

    A message that cannot be ingested is passed over where it is recorded, as a fact, that it is to be. One that can be
    is ingested all the same: so every decoder has the same rows at any time.

    Where it ``collects`` them, messages that cannot be decoded are separated from the others, and delay nothing. As
    decoding follows from the messages and recorded facts alone, every instance separates the same ones.
    """

    def __init__(
        self,
        decoder: Decoder,
        check: Callable[[Messages], None],
        work: StoreThreads,
        *,
        raw_source: str,
        rendition: str,
        collects: bool = False,
    ) -> None:
        """``check`` raises MessageInvalid for rows that could never be taken, regardless of earlier ones."""
        self._collects = collects
        self._decoder = decoder
        self.schema = decoder.schema
        self._check = check
        self._work = work
        self._raw_source = raw_source
        self._rendition = rendition
        self._made: dict[int, tuple[Messages, Messages]] = {}

    async def facts(self, messages: Messages, known: Mapping[str, bytes]) -> Facts:
        """As the decoder finds them."""
        while True:
            try:
                return await self._decoder.facts(messages, known)
            except MessageInvalid as error:
                first = await _right_messages(messages, lambda some: self._decoder.facts(some, known))
                messages = self._without(messages, first, known, error)

    async def try_out(self, messages: Messages, known: Mapping[str, bytes]) -> MessageInvalid | None:
        """Decode them ahead, by facts that are ``known``; gives what is wrong."""
        if id(messages) in self._made:
            return None
        try:
            made = await self._work.on_blobs(self._checked, messages, known)
        except MessageInvalid as error:
            return error
        self._made[id(messages)] = messages, made  # which are kept, so that no others have their id
        return None

    async def right_part(self, messages: Messages, known: Mapping[str, bytes]) -> tuple[int, Facts]:
        """Up to which address messages can be ingested of which one cannot, and the facts that are new with these."""
        facts: Facts = {}

        async def is_right(some: Messages) -> None:
            nonlocal facts
            found = await self.facts(some, known)
            await self._work.on_blobs(self._checked, some, {**known, **found})
            facts = found

        right = await _right_messages(messages, is_right)
        return int(np.unique(messages.addresses)[right]) if right else messages.lower, facts

    def keep(self, some: Iterable[Messages]) -> None:
        """Keep what was tried out of these alone."""
        self._made = {id(each): self._made[id(each)] for each in some if id(each) in self._made}

    def decode(self, messages: Messages, facts: Mapping[str, bytes]) -> Messages:
        """Return their rows."""
        known = self._made.pop(id(messages), None)
        return self._checked(messages, facts) if known is None else known[1]

    def _checked(self, messages: Messages, facts: Mapping[str, bytes]) -> Messages:
        return self._told_apart(messages, facts) if self._collects else self._all_right(messages, facts)

    def _told_apart(self, messages: Messages, facts: Mapping[str, bytes]) -> Messages:
        """Those that can be decoded, and those that cannot: halved until each of these is alone."""
        try:
            return self._decoded(messages, facts)
        except MessageInvalid as error:
            addresses = np.unique(messages.addresses)
            if not len(addresses):
                raise
            if len(addresses) == 1:
                has_bytes = PAYLOAD in messages.rows.schema.names
                payload = messages.rows.column(PAYLOAD)[0].as_py() if has_bytes else None
                return replace(
                    messages,
                    addresses=messages.addresses[:0],
                    rows=zset.empty(self.schema),
                    undecoded=[Undecoded(int(addresses[0]), str(error), payload)],
                )
        middle = int(addresses[len(addresses) // 2])
        halves = [self._told_apart(each, facts) for each in (messages.below(middle), messages.since(middle))]
        return replace(
            messages,
            addresses=np.concatenate([each.addresses for each in halves]),
            rows=pa.concat_batches([each.rows for each in halves]),
            undecoded=[each for half in halves for each in half.undecoded],
        )

    def _all_right(self, messages: Messages, facts: Mapping[str, bytes]) -> Messages:
        while True:
            try:
                return self._decoded(messages, facts)
            except MessageInvalid as error:
                messages = self._without(messages, self._right(messages, facts), facts, error)

    def _right(self, messages: Messages, facts: Mapping[str, bytes]) -> int:
        """At how many addresses messages are right, of which one is not."""
        behind = np.unique(messages.addresses)[1:]

        def is_wrong(address: int) -> bool:
            try:
                self._decoded(messages.below(int(address)), facts)
            except MessageInvalid:
                return True
            return False

        return bisect_left(behind, True, key=is_wrong)

    def _decoded(self, messages: Messages, facts: Mapping[str, bytes]) -> Messages:
        made = self._decoder.decode(messages, facts)
        self._check(made)
        return made

    def _without(
        self, messages: Messages, first: int, known: Mapping[str, bytes], error: MessageInvalid
    ) -> Messages:
        """Messages without the one at the ``first`` of their addresses, which is wrong, where it is passed over."""
        if not messages.rows.num_rows:
            raise error
        address = int(np.unique(messages.addresses)[first])
        place = MessagePlace(self._raw_source, messages.part, address)
        if passed_over(self._rendition, place) not in known:
            error.place = place
            raise error
        return messages.without(address)

    async def close(self) -> None:
        """Close the decoder."""
        await self._decoder.close()


def passed_over(rendition: str, place: MessagePlace) -> str:
    """The key of the fact that a message is to be passed over if it cannot be ingested; of one rendition."""
    return f"passed/{rendition}/{place.raw_source}/{place.address}/{place.part}"


async def _right_messages(messages: Messages, tried: Callable[[Messages], Awaitable[object]]) -> int:
    """At how many addresses messages are right, of which one is not: ``tried`` raises MessageInvalid with that one."""
    addresses = np.unique(messages.addresses)
    right, wrong = 0, len(addresses)  # so many are known to be right, and so many not to be
    while wrong - right > 1:
        middle = (right + wrong) // 2
        try:
            await tried(messages.below(int(addresses[middle])))
            right = middle
        except MessageInvalid:
            wrong = middle
    return right
