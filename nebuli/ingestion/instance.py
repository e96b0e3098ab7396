"""One instance of an ingestion: it runs the current definition, tries again after errors, and reports its state."""

from __future__ import annotations

import asyncio
import logging
import os
import shlex
import socket
from contextlib import AsyncExitStack, suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from nebuli.store.collections.clock import now_ms
from nebuli.store.collections.errors import (
    CollectionExists,
    CollectionUnknown,
    RenditionRefused,
    RenditionUnknown,
)
from nebuli.store.errors import StorageError

from .attempts import Attempt, Attempts, Told
from .connector_factory import carried, decoder_of, envelope_of, reader_of
from .decoding.typed_columns import TypedColumns
from .entries import FROM_BAD_TO_GOOD, RAW_RENDITION, Entry, InstanceStatus
from .envelopes.append import AsTheyCame
from .errors import AddressGone, IngestionError, MessageInvalid, SourceConflict, SourceUnusable
from .readers.seen_files import SeenFiles
from .recipe.message_check import Checked
from .recipe.reclocking import Remap
from .recipe.stage import ERROR_COLUMNS, ERRORS, Stage, Target
from .recipe.timed_messages import DATA, OfCollection, Reclocked
from .recipe.turns import Turns

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    import pyarrow as pa

    from nebuli.store import Store
    from nebuli.store.collections.collections import Collections

    from .decoding.decoder import Decoder
    from .entries import Register
    from .envelopes.envelope import Envelope
    from .recipe.timed_messages import TimedMessages

_LOOK_S = 5.0
"""How often is looked at the latest whether the source is another one now."""
_REPORT_S = 10.0
"""How often an instance reports."""
_FORGOTTEN_MS = 24 * 3600 * 1000
"""An instance that was not seen for so long is not remembered: machines come with new names, and go."""
_AGAIN_S = 0.2
_log = logging.getLogger("nebuli.ingestion")


class Instance:
    """Any number of them, each with a name of its own, ingest one source at once, in one process or in many."""

    def __init__(
        self,
        store: Store,
        collections: Collections,
        sources: Register,
        instances: Register,
        *,
        source: str,
        name: str,
    ) -> None:
        """``store`` and ``collections`` are entered."""
        self._store = store
        self._collections = collections
        self._sources = sources
        self._instances = instances
        self._source = source
        self._status = InstanceStatus(source, name, socket.gethostname(), os.getpid(), "starting", now_ms())
        self._attempts: list[Attempts] = []
        self._warned: str | None = None
        self._stage = partial(Stage, store, collections)

    async def run(self) -> None:
        """Ingest, until the source is dropped, or this is cancelled."""
        known = {key: InstanceStatus.of_text(text) for key, text in (await self._instances.read()).items()}
        if (before := known.get(self._status.key)) is not None:
            self._status = replace(
                self._status, last_error=before.last_error, last_error_at=before.last_error_at
            )
        for key, each in known.items():
            if each.source == self._source and each.at < now_ms() - _FORGOTTEN_MS:
                await self._instances.change(key, lambda _: None)
        try:
            await self._say()
            while (entry := await self._entry()) is not None:
                await self._run_version(entry)
        except Exception as error:  # a mistake of ours: it ends the process, whose log has all of it
            said = f"the instance has ended with {type(error).__name__}: {error}"
            self._status = replace(self._status, last_error=said, last_error_at=now_ms())
            raise
        finally:
            with suppress(StorageError, asyncio.CancelledError):
                await self._leave()

    async def _leave(self) -> None:
        """Report its end; nothing for a dropped source, which might be created again under this name."""
        if await self._entry() is None:
            await self._instances.change(self._status.key, lambda _: None)
            return
        ended = replace(self._status, health="ended", at=now_ms(), error=None)

        def unless_there_is_another(text: str | None) -> str:
            """One of its name may have been started already, of which is spoken then."""
            if text is not None and InstanceStatus.of_text(text).pid != ended.pid:
                return text
            return ended.to_text()

        await self._instances.change(ended.key, unless_there_is_another)

    async def _entry(self) -> Entry | None:
        """Return the source to ingest; None if it is gone."""
        text = (await self._sources.read()).get(self._source)
        entry = None if text is None else Entry.of_text(text)
        return None if entry is None or entry.phase == "dropping" else entry

    async def _run_version(self, entry: Entry) -> None:
        """Ingest it until it is another one."""
        attempts = partial(Attempts, f"source {entry.name}, instance {self._status.instance}")
        told = partial(self._told, entry)
        raw = attempts(partial(self._raw_made, entry), told) if entry.definition.raw else None
        decoded = attempts(partial(self._decoded_made, entry), told, behind=raw)
        self._attempts = [decoded] if raw is None else [raw, decoded]
        self._status = replace(self._status, error=None)
        work = [each.run() for each in self._attempts]
        work += [self._report(), self._hand_over(entry, self._attempts[-1])]
        tasks = [asyncio.create_task(each) for each in [self._changed(entry), *work]]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for each in done:
                each.result()
        finally:
            for each in tasks:
                each.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _changed(self, entry: Entry) -> None:
        """Wait until the source is another one."""
        while True:
            try:
                now = await self._entry()
                if now is None or (now.id, now.version) != (entry.id, entry.version):
                    return
                await self._sources.changed(_LOOK_S)
            except StorageError:
                await asyncio.sleep(_AGAIN_S)

    async def _told(self, entry: Entry, attempts: Attempts) -> None:
        """A stage fares otherwise; or as before, with an error."""
        if attempts.error is not None:
            said = _said(attempts.error, entry)
            if said != self._warned:
                _log.warning("source %s, instance %s: %s", self._source, self._status.instance, said)
                self._warned = said
            self._status = replace(self._status, last_error=said, last_error_at=now_ms())
        errors = [each.error for each in self._by_health() if each.error is not None]
        if not errors:
            self._warned = None
        self._status = replace(self._status, error=_said(errors[0], entry) if errors else None)
        with suppress(StorageError):
            await self._say()

    def _by_health(self) -> list[Attempts]:
        """The one that fares worst comes first."""
        return sorted(self._attempts, key=lambda each: FROM_BAD_TO_GOOD.index(each.health))

    async def _say(self) -> None:
        """How it fares: as the stage does that fares worst."""
        uppers = [each.upper if each.stage is None else each.stage.upper for each in self._attempts]
        self._status = replace(
            self._status,
            health=self._by_health()[0].health if self._attempts else "starting",
            at=now_ms(),
            upper=max(self._status.upper, min(uppers, default=0)),
        )
        text = self._status.to_text()
        await self._instances.change(self._status.key, lambda _: text)

    # -- what is done

    async def _report(self) -> None:
        """Report, also while it waits."""
        while True:
            await asyncio.sleep(_REPORT_S)
            with suppress(StorageError):
                await self._say()

    async def _hand_over(self, entry: Entry, attempts: Attempts) -> None:
        """Have the collection be what this version makes of it, as soon as that is all there is."""
        names = [each for each in collections_of(entry) if each != entry.raw]
        while True:
            with suppress(IngestionError, StorageError):  # the attempt reports the error
                left = [
                    each
                    for each in names
                    if (await self._collections.describe(each)).active != entry.rendition
                ]
                if not left:
                    await self._drop_overtaken(names, entry)
                    break
                stage = attempts.stage
                if stage is not None and stage.upper and await stage.is_caught_up():
                    for name in left:
                        with suppress(RenditionRefused):  # another instance was first
                            await self._collections.handover(name, entry.rendition)
            await asyncio.sleep(_AGAIN_S)
        await asyncio.Event().wait()  # the others continue

    async def _drop_overtaken(self, names: Sequence[str], entry: Entry) -> None:
        """Drop the renditions of earlier versions that the collections have never been."""
        earlier = {f"r{version}" for version in range(1, entry.version)}
        for name in names:
            for each in (await self._collections.describe(name)).renditions:
                if each.name in earlier and each.begin is None:
                    with suppress(RenditionRefused, RenditionUnknown):  # another instance was first
                        await self._collections.drop_rendition(name, each.name)

    async def _decoded_made(self, entry: Entry, stack: AsyncExitStack, told: Told) -> Attempt:
        """From outside, or from a collection, to the source's own."""
        await ensure(self._collections, entry)
        definition = entry.definition
        envelope = envelope_of(definition)
        decoders = {
            source: self._checked(
                decoder_of(definition, envelope.wants),
                envelope,
                source,
                entry.rendition,
                collects=definition.collects_errors,
            )
            for source in {DATA, *entry.raw_sources}
        }
        for each in decoders.values():
            stack.push_async_callback(each.close)
        turns = Turns(is_first=entry.replicas == 1)
        origin = entry.origin_collection
        messages: TimedMessages
        if origin is None:
            facts = await Remap.opened(self._store, entry.remap, self._collections.clock)
            messages = self._reclocked(entry, facts, decoders, turns, told)
        else:
            await self._check_origin(entry, origin)
            facts = await Remap.opened(self._store, entry.facts, self._collections.clock)
            await facts.look()
            messages = OfCollection(self._store, self._collections, origin, entry.name, entry.built_from)
        target = Target(entry.name, entry.rendition)
        stage = self._stage(
            target,
            messages,
            decoders=decoders,
            envelope=envelope,
            facts=facts,
            turns=turns,
            collects_errors=definition.collects_errors,
        )
        return Attempt(stage, partial(_recorded, facts) if origin is None else lambda: stage.upper)

    async def _check_origin(self, entry: Entry, origin: str) -> None:
        """Raise SourceUnusable where there is another collection of that name now."""
        found = await self._collections.describe(origin)
        if entry.origin_created is not None and found.created != entry.origin_created:
            raise SourceUnusable(
                f"collection {origin} was created at {found.created}, but source {entry.name} "
                f"reads the collection of this name that was created at {entry.origin_created}: rebuild the "
                f"source from the new collection (nebuli source rebuild {entry.name}), or drop the source"
            )

    async def _raw_made(self, entry: Entry, _: AsyncExitStack, told: Told) -> Attempt:
        """Ingest raw messages into their collection, regardless of the collections derived from it."""
        remap = await Remap.opened(self._store, entry.remap, self._collections.clock)
        columns = carried(entry.definition)
        envelope = AsTheyCame(columns)
        kept = {
            source: self._checked(TypedColumns(columns, source=entry.name), envelope, source, RAW_RENDITION)
            for source in entry.raw_sources
        }
        turns = Turns(is_first=entry.replicas == 1)
        stage = self._stage(
            Target(entry.raw, RAW_RENDITION),
            self._reclocked(entry, remap, kept, turns, told),
            decoders=kept,
            envelope=envelope,
            facts=remap,
            turns=turns,
        )
        return Attempt(stage, partial(_recorded, remap))

    def _checked(
        self, decoder: Decoder, envelope: Envelope, raw_source: str, rendition: str, *, collects: bool = False
    ) -> Checked:
        work = self._store.access.work
        return Checked(
            decoder, envelope.check, work, raw_source=raw_source, rendition=rendition, collects=collects
        )

    def _reclocked(
        self, entry: Entry, remap: Remap, decoders: Mapping[str, Checked], turns: Turns, told: Told
    ) -> Reclocked:
        seen = {source: SeenFiles() for source in entry.raw_sources}
        readers = {
            source: partial(reader_of, origin, entry.definition, seen[source])
            for source, origin in entry.raw_sources.items()
        }
        return Reclocked(remap, readers, decoders, turns, told, seen=seen)


def _recorded(remap: Remap) -> dict[str, dict[str, int]]:
    """Return the recorded addresses, by raw source: an idle one advances to later times, too."""
    return {source: dict(parts) for source, parts in remap.last.items()}


def _said(error: IngestionError | StorageError, entry: Entry) -> str:
    """Return the error, and the command that fixes it."""
    again = f"nebuli source drop {entry.name}, and nebuli source create FILE"
    rebuild = f"nebuli source rebuild {entry.name}" if entry.can_be_rebuilt else again
    match error:
        case CollectionUnknown():
            return (
                f"{error}. The source reads or writes this collection: also drop the source, and "
                f"create it again: {again}"
            )
        case MessageInvalid():
            return f"{error}; later messages wait: {', or '.join(_mended(error, entry))}"
        case SourceConflict():
            return f"{error}; create it again: {rebuild}"
        case AddressGone():  # of which a rebuild from raw messages asks nothing
            return f"{error} ({again if entry.definition.raw else rebuild})"
    return str(error)


def _mended(error: MessageInvalid, entry: Entry) -> Iterator[str]:
    """Return the remedies for a message."""
    if entry.origin_collection is None:
        yield "fix the message at its origin"
    if entry.can_be_rebuilt:
        yield f"fix the definition, and run 'nebuli source rebuild {entry.name} FILE'"
    if error.place is not None:
        of = f" --part {shlex.quote(error.place.part)}" if error.place.part else ""
        of += "" if error.place.raw_source == DATA else f" --of {error.place.raw_source}"
        yield f"skip the message: 'nebuli source skip {entry.name} {error.place.address}{of}'"


async def ensure(collections: Collections, entry: Entry) -> None:
    """Have the renditions that this version writes, of collections that are there."""
    if entry.version == 1:
        return
    for name, (schema, shards) in _wanted(entry).items():
        found = await collections.describe(name)
        if name == entry.raw or entry.rendition in {each.name for each in found.renditions}:
            continue
        if not found.schema.equals(schema):
            raise SourceUnusable(
                f"the columns of collection {name} differ from those that version {entry.version} of source "
                f"{entry.name} writes: the columns of a source cannot change; create another source"
            )
        with suppress(RenditionRefused):  # another instance was first
            await collections.new_rendition(name, rendition=entry.rendition, shards=shards)


async def create_collections(collections: Collections, entry: Entry) -> None:
    """Make the collections of a new source, also where that was begun before."""
    there = set(await collections.list())
    for name, (schema, shards) in _wanted(entry).items():
        if name not in there:
            with suppress(CollectionExists):  # another one creates the same source
                await collections.create(
                    name, schema, shards=shards, timed="writers", keep=entry.definition.keep
                )


def collections_of(entry: Entry) -> list[str]:
    """The names of all collections that a source makes."""
    return [*_wanted(entry)]


def _wanted(entry: Entry) -> dict[str, tuple[pa.Schema, int]]:
    """The collections of a source, its own first, by their names: columns, and how many shards."""
    definition = entry.definition
    envelope = envelope_of(definition)
    target = Target(entry.name, entry.rendition)
    wanted = {entry.name: (envelope.schema, definition.shards)}
    wanted |= {target.state(name): (schema, 1) for name, schema in envelope.states.items()}
    if definition.collects_errors:
        wanted[target.state(ERRORS)] = (ERROR_COLUMNS, 1)
    if definition.raw:
        wanted[entry.raw] = (AsTheyCame(carried(definition)).schema, definition.shards)
    return wanted
