"""The client of sources: what there is, and what is to be; every command is durable before its answer."""

from __future__ import annotations

import asyncio
import os
import socket
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Self

import pyarrow as pa
import pyarrow.compute as pc

from nebuli.dataflow.zset import WEIGHT
from nebuli.processes import is_running
from nebuli.store import Store
from nebuli.store.collections.clock import now_ms
from nebuli.store.collections.collections import Collections
from nebuli.store.collections.errors import CollectionUnknown, TooLate
from nebuli.store.errors import NotYet, StoreClosed
from nebuli.store.shards.shard_state import Drop

from .connector_factory import reader_of
from .definition import AvroFormat, CollectionOrigin
from .entries import (
    FROM_BAD_TO_GOOD,
    INSTANCES,
    RAW_RENDITION,
    SOURCES,
    SUPERVISORS,
    Entry,
    InstanceStatus,
    Register,
    SupervisorStatus,
    next_version,
)
from .errors import IngestionError, MessagePlace, SourceExists, SourceRefused, SourceUnknown
from .instance import Instance, collections_of, create_collections
from .message_addresses import PAYLOAD
from .readers.seen_files import SeenFiles
from .recipe.message_check import passed_over
from .recipe.reclocking import Remap
from .recipe.stage import ERRORS
from .recipe.timed_messages import DATA
from .source_status import HeldBack, RawSourceStatus, SourceStatus

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from types import TracebackType

    from nebuli.store.store_url import StoreUrl

    from .definition import Definition
    from .message_addresses import Addresses

_ASK_S = 5.0
"""How long a source is asked how much it has."""


class Sources:
    """The sources of a store: ``async with Sources(url) as sources``, on one event loop.

    ``url`` and ``now`` are as for `nebuli.Collections`. Methods raise IngestionError, and `StorageError` if the store
    fails.
    """

    def __init__(
        self, url: str | os.PathLike[str] | StoreUrl | Store, *, now: Callable[[], int] = now_ms
    ) -> None:
        """``now`` gives milliseconds since 1970. Raises StoreUrlInvalid, ExtraMissing."""
        self.store = url if isinstance(url, Store) else Store.at(url)
        """The store itself, entered with the sources."""
        self._now = now
        self.collections = Collections(self.store, now=now)
        """The collections of the same store; entered with the sources."""
        self._registers: tuple[Register, Register, Register] | None = None

    async def __aenter__(self) -> Self:
        """Open the store, and create it if needed. Raises StoreUnusable, StoreFull."""
        await self.collections.__aenter__()
        try:
            self._registers = (
                await Register.opened(self.store, SOURCES),
                await Register.opened(self.store, INSTANCES),
                await Register.opened(self.store, SUPERVISORS),
            )
        except BaseException:
            await self.collections.__aexit__(None, None, None)
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Close the store."""
        self._registers = None
        await self.collections.__aexit__(kind, error, traceback)

    @property
    def _sources(self) -> Register:
        if self._registers is None:
            raise StoreClosed
        return self._registers[0]

    @property
    def _instances(self) -> Register:
        if self._registers is None:
            raise StoreClosed
        return self._registers[1]

    @property
    def _supervisors(self) -> Register:
        if self._registers is None:
            raise StoreClosed
        return self._registers[2]

    # -- what there is

    async def names(self) -> list[str]:
        """The names of all sources, in order."""
        return sorted(await self._sources.read())

    async def entry(self, name: str) -> Entry:
        """Return the entry of a source. Raises SourceUnknown."""
        text = (await self._sources.read()).get(name)
        if text is None:
            known = ", ".join(sorted(await self._sources.read())[:10])
            raise SourceUnknown(
                f"unknown source {name}: " + (f"expected one of {known}" if known else "create it first")
            )
        return Entry.of_text(text)

    async def entries(self) -> dict[str, Entry]:
        """Return the entries of all sources, by their names."""
        return {name: Entry.of_text(text) for name, text in (await self._sources.read()).items()}

    async def changed(self, pause_s: float) -> None:
        """Wait until the sources differ from the last answer, for ``pause_s`` seconds at most."""
        await self._sources.changed(pause_s)

    async def describe(self, name: str) -> SourceStatus:
        """Return the status of a source; also ask its origin how much data it has. Raises SourceUnknown."""
        entry = await self.entry(name)
        remap_upper, raw_sources = await self._raw_sources(entry)
        instances = await self.instances(name)
        failed = [each for each in instances if each.last_error_at is not None]
        last = max(failed, key=lambda each: each.last_error_at or 0, default=None)
        upper, active, holds = 0, "", []
        for each in [*collections_of(entry), *([entry.origin_collection] if entry.origin_collection else [])]:
            with suppress(CollectionUnknown):
                found = await self.collections.describe(each)
                if each == name:
                    upper, active = found.upper, found.active
                holds += [HeldBack(each, key, hold.time, hold.expires) for key, hold in found.holds.items()]
        now = self._now()
        living = sorted(
            (each for each in instances if each.is_living(now)),
            key=lambda each: FROM_BAD_TO_GOOD.index(each.health),
        )
        return SourceStatus(
            name=name,
            version=entry.version,
            rendition=entry.rendition,
            active=active,
            phase=entry.phase,
            replicas=entry.replicas,
            definition=entry.definition.model_dump(mode="json", by_alias=True, exclude_defaults=True),
            raw_sources=raw_sources,
            undecoded=await self._undecoded(entry),
            remap_upper=remap_upper,
            upper=upper,
            lag_ms=max(now - upper + 1, 0) if upper else None,
            health=living[0].health if living else None,
            error=next((each.error for each in living if each.error is not None), None),
            instances=instances,
            supervisors=await self.supervisors(),
            last_error=None if last is None else last.last_error,
            last_error_at=None if last is None else last.last_error_at,
            holds=list({(each.collection, each.name): each for each in holds}.values()),
        )

    async def describe_all(self) -> list[SourceStatus]:
        """Return the status of all sources, in the order of their names; all are asked at once."""
        found = await asyncio.gather(*map(self._described, await self.names()))
        return [each for each in found if each is not None]

    async def _undecoded(self, entry: Entry) -> int | None:
        """Return how many messages are in the collection of errors; None if there is none."""
        if not entry.definition.collects_errors:
            return None
        try:
            rows = await self.collections.snapshot(f"{entry.name}.{ERRORS}", weighted=True)
        except (NotYet, CollectionUnknown):  # nothing is written yet, or it is being created or dropped
            return 0
        return int(pc.sum(rows.column(WEIGHT)).as_py() or 0)

    async def _described(self, name: str) -> SourceStatus | None:
        with suppress(SourceUnknown):  # it was dropped meanwhile
            return await self.describe(name)
        return None

    async def instances(self, name: str) -> list[InstanceStatus]:
        """Return the last reports of a source's instances, including those that ended within the last day.

        An instance of this host that was killed, and so has not reported its end, counts as ended.
        """
        found = [InstanceStatus.of_text(text) for text in (await self._instances.read()).values()]
        here = socket.gethostname()
        return sorted(
            (
                replace(each, health="ended", error=None)
                if each.host == here and not is_running(each.pid)
                else each
                for each in found
                if each.source == name
            ),
            key=lambda each: (each.host, each.instance),
        )

    async def supervisors(self) -> list[SupervisorStatus]:
        """Return the supervisors that run, by their last reports, one for each host."""
        found = [SupervisorStatus.of_text(text) for text in (await self._supervisors.read()).values()]
        now, here = self._now(), socket.gethostname()
        return sorted(
            (each for each in found if each.is_living(now) and (each.host != here or is_running(each.pid))),
            key=lambda each: each.host,
        )

    async def supervise(self, status: SupervisorStatus) -> None:
        """Record that a supervisor runs."""
        await self._supervisors.change(status.host, lambda _: status.to_text())

    async def end_supervision(self, status: SupervisorStatus) -> None:
        """Record that a supervisor has ended, unless another supervisor of its host runs."""

        def unless_there_is_another(text: str | None) -> str | None:
            return None if text is None or SupervisorStatus.of_text(text).pid == status.pid else text

        await self._supervisors.change(status.host, unless_there_is_another)

    async def _raw_sources(self, entry: Entry) -> tuple[int, dict[str, RawSourceStatus]]:
        """Below which time addresses are recorded, and all that contributes from outside."""
        upper = 0
        found: dict[str, RawSourceStatus] = {}
        if entry.raw_sources:
            remap = await Remap.opened(self.store, entry.remap, self.collections.clock)
            upper, recorded, marks = await remap.recorded()
            for source, origin in entry.raw_sources.items():
                seen = SeenFiles()
                for (of, part), mark in marks.items():
                    if of == source:
                        seen.know(part, mark)
                found[source] = await self._raw_source(entry, origin, recorded.get(source, {}), seen)
        if isinstance(entry.definition.format, AvroFormat):
            shard = entry.remap if entry.origin_collection is None else entry.facts
            facts = await Remap.opened(self.store, shard, self.collections.clock)
            await facts.recorded()
            reads = f"the registry {entry.definition.format.registry}"
            found["registry"] = RawSourceStatus(
                reads, "schemas", {"recorded": len(facts.facts)}, None, None, None
            )
        return upper, found

    async def _raw_source(
        self, entry: Entry, origin: Any, addresses: Addresses, seen: SeenFiles
    ) -> RawSourceStatus:
        ends, error = None, None
        try:
            reader = reader_of(origin, entry.definition, seen)
        except IngestionError as unusable:
            return RawSourceStatus(origin.type, "", addresses, None, None, str(unusable))
        try:
            async with asyncio.timeout(_ASK_S):
                await reader.open(addresses)
                ends = await reader.ends()
        except IngestionError as failed:
            error = str(failed)
        except TimeoutError:
            error = f"{reader.reads} did not report its last address within {_ASK_S:g} s"
        finally:
            await reader.close()
        lag = None
        if ends is not None:
            lag = sum(max(end - addresses.get(part, 0), 0) for part, end in ends.items())
        return RawSourceStatus(reader.reads, reader.unit, addresses, ends, lag, error)

    # -- what is to be

    async def create(self, definition: Definition, *, replicas: int = 1) -> Entry:
        """Create a source, with its empty collections; `ingest` fills them.

        Raises SourceExists, SourceRefused; SourceUnusable if something that the source needs is not installed.
        """
        _check_replicas(replicas)
        name = definition.name
        for origin in Entry("", definition, 1, "creating", 1).raw_sources.values():
            reader_of(origin, definition)
        entry = Entry(
            os.urandom(6).hex(), definition, 1, "creating", replicas, *await self._built_from(definition)
        )
        known = (await self._sources.read()).get(name)
        taken = [each for each in collections_of(entry) if each in await self.collections.list()]
        if known is None and taken:
            raise SourceRefused(
                f"source {name} would be ingested into collection {taken[0]}, which exists already: choose "
                "another name, or drop that collection first"
            )

        def begin(text: str | None) -> str:
            if text is None:
                return entry.to_text()
            there = Entry.of_text(text)
            if there.phase != "creating" or there.definition != definition:
                raise SourceExists(f"source {name} exists already: choose another name, or drop it first")
            return text

        await self._sources.change(name, begin)
        return await self._finish_creating(await self.entry(name))

    async def _finish_creating(self, entry: Entry) -> Entry:
        if entry.phase == "creating":
            await create_collections(self.collections, entry)
            if entry.built_from is not None and entry.origin_collection is not None:
                await self.collections.hold(entry.origin_collection, f"source/{entry.name}", entry.built_from)
            await self._sources.change(
                entry.name,
                lambda text: None if text is None else replace(Entry.of_text(text), phase="there").to_text(),
            )
        return await self.entry(entry.name)

    async def _built_from(self, definition: Definition) -> tuple[int | None, int | None]:
        """Return, for the collection that it reads, if any, a time, if it is written yet, and when it was created."""
        if not isinstance(definition.origin, CollectionOrigin):
            return None, None
        try:
            found = await self.collections.describe(definition.origin.collection)
            _check_carries(definition, found.schema)
            try:
                return await self.collections.latest(definition.origin.collection), found.created
            except NotYet:
                return None, found.created
        except CollectionUnknown as error:
            raise SourceRefused(f"source {definition.name} reads a collection: {error}") from error

    async def rebuild(self, name: str, definition: Definition | None = None) -> Entry:
        """Rebuild a source from its first message on, with another definition, or with the same one.

        The source's instances write a rendition from scratch, and hand the collection over to it. The origin, the
        schema and ``raw`` cannot change. Raises SourceUnknown, SourceRefused.
        """
        entry = await self.entry(name)
        new = entry.definition if definition is None else definition
        _check_rebuilt(entry, new)
        built_from = origin_created = None
        if entry.origin_collection is not None:
            origin_created = (await self.collections.describe(entry.origin_collection)).created
            with suppress(NotYet):
                built_from = await self.collections.latest(entry.origin_collection)
            if built_from is not None:
                with suppress(TooLate):  # another rebuild is further
                    await self.collections.hold(entry.origin_collection, f"source/{name}", built_from)

        made = next_version(entry, new, built_from, origin_created)
        before, after = {*collections_of(entry), *entry.former}, collections_of(made)
        made = replace(made, former=tuple(sorted(before.difference(after))))
        await self._check_free([each for each in after if each not in before], name)
        await create_collections(self.collections, made)

        def anew(text: str | None) -> str | None:
            now = None if text is None else Entry.of_text(text)
            if now is None or (now.id, now.version, now.phase) != (entry.id, entry.version, "there"):
                raise SourceRefused(
                    f"source {name} was changed by another process at the same time: check its definition, "
                    "and try again"
                )
            return replace(made, replicas=now.replicas).to_text()

        await self._sources.change(name, anew)
        return await self.entry(name)

    async def _check_free(self, names: Sequence[str], source: str) -> None:
        """Raise SourceRefused where there is something in collections that a source is to have for a state."""
        for each in names:
            with suppress(CollectionUnknown):
                if (await self.collections.describe(each)).upper:
                    raise SourceRefused(
                        f"source {source} would keep its state in collection {each}, which exists already: "
                        "drop that collection first, or create another source"
                    )

    async def scale(self, name: str, replicas: int) -> None:
        """Set the number of instances; 0 stops all. Raises SourceUnknown, SourceRefused."""
        _check_replicas(replicas, least=0)
        await self.entry(name)
        await self._sources.change(
            name,
            lambda text: None if text is None else replace(Entry.of_text(text), replicas=replicas).to_text(),
        )

    async def skip(self, name: str, address: int, *, part: str = "", raw_source: str = DATA) -> None:
        """Skip a message that cannot be ingested and blocks later messages; the error names its place.

        A message that can be ingested is ingested nevertheless. The skip stays in effect until the source is rebuilt.
        Raises SourceUnknown; SourceRefused if the raw source does not exist, or its part is ingested beyond the
        address.
        """
        entry = await self.entry(name)
        place = MessagePlace(raw_source, part, address)
        known = {DATA, *entry.raw_sources}
        if raw_source not in known:
            raise SourceRefused(
                f"source {name} has no raw source {raw_source}: expected one of {', '.join(sorted(known))}"
            )
        shards = {}
        if entry.raw_sources:
            shards[entry.remap] = RAW_RENDITION if entry.definition.raw else entry.rendition
        if entry.origin_collection is not None:
            shards[entry.facts] = entry.rendition
        for shard, rendition in shards.items():
            remap = await Remap.opened(self.store, shard, self.collections.clock)
            upper, recorded, _ = await remap.recorded()
            if entry.origin_collection is None:
                _check_left(entry, place, recorded)
            key = passed_over(rendition, place)
            await remap.begin(upper)
            while key not in remap.facts:
                await remap.mint({}, {key: b""})

    async def drop(self, name: str) -> str | None:
        """Drop a source with its collections; return a sentence if its origin could not be notified.

        The source's instances end. If the process is killed during the call, repeat it. Raises SourceUnknown.
        """
        entry = await self.entry(name)
        await self._sources.change(
            name,
            lambda text: None if text is None else replace(Entry.of_text(text), phase="dropping").to_text(),
        )
        untold = await self._forgotten(entry)
        for each in [*collections_of(entry), *entry.former]:
            with suppress(CollectionUnknown):
                await self.collections.drop(each)
        if isinstance(entry.definition.origin, CollectionOrigin):
            with suppress(CollectionUnknown):
                await self.collections.release(entry.definition.origin.collection, f"source/{name}")
        own = [each for each in await self.store.shards() if each.startswith(entry.prefix)]
        await self.store.access.change([Drop(each) for each in own])
        await self.store.access.delete_dropped(own)
        for instance in await self.instances(name):
            await self._instances.change(instance.key, lambda _: None)
        await self._sources.change(name, lambda _: None)
        return untold

    async def _forgotten(self, entry: Entry) -> str | None:
        """Have the origins keep nothing for it any more; returns what failed."""
        for origin in entry.raw_sources.values():
            reader = reader_of(origin, entry.definition)
            try:
                async with asyncio.timeout(_ASK_S):
                    await reader.forget()
            except (IngestionError, TimeoutError) as error:
                return (
                    f"{reader.reads} was not notified that {entry.name} is dropped, and may keep data that is "
                    f"no longer read: {error}"
                )
            finally:
                await reader.close()
        return None

    # -- what is done

    async def ingest(self, name: str, *, instance: str = "1") -> None:
        """Ingest a source, as one of any number of instances, until the source is dropped, or the call is cancelled.

        ``instance`` is a name that no other instance of this host has. Raises SourceUnknown. After an error of the
        source it tries again; `describe` reports the error.
        """
        await self._finish_creating(await self.entry(name))
        await Instance(
            self.store, self.collections, self._sources, self._instances,
            source=name, name=instance,
        ).run()  # fmt: skip


def _check_replicas(replicas: int, *, least: int = 1) -> None:
    if type(replicas) is not int or not least <= replicas <= 100:
        raise SourceRefused(f"expected {least} to 100 replicas, got {replicas}")


def _check_left(entry: Entry, place: MessagePlace, recorded: Mapping[str, Addresses]) -> None:
    """Raise SourceRefused where a message is ingested already."""
    behind = recorded.get(place.raw_source, {}).get(place.part, 0)
    if place.address < behind:
        of = f" of {place.part}" if place.part else ""
        raise SourceRefused(
            f"source {entry.name} is ingested up to {behind}{of}, which is after the message at "
            f"{place.address}: take the address from the error that names the message"
        )


def _check_carries(definition: Definition, schema: pa.Schema) -> None:
    if definition.format is None or PAYLOAD in schema.names:
        return
    raise SourceRefused(
        f"source {definition.name} has the format {definition.format.type}, but the collection that it reads "
        f"has the columns {', '.join(schema.names)}, and no bytes column {PAYLOAD} to decode: leave out the "
        f"'format', or read another collection"
    )


def _check_rebuilt(entry: Entry, new: Definition) -> None:
    old = entry.definition
    kept = {"name": "name", "origin": "from", "raw": "raw", "columns": "schema"}
    different = [shown for key, shown in kept.items() if getattr(old, key) != getattr(new, key)]
    again = replace(entry, definition=new)
    if old.raw and again.raw_sources != entry.raw_sources:
        different.append("metadata")
    if different:
        raise SourceRefused(
            f"the definition has another {different[0]!r} than source {entry.name}, and this part of a source "
            f"cannot change; create another source"
        )
    for each in (entry, again):
        if not each.can_be_rebuilt:
            raise SourceRefused(
                f"source {entry.name} cannot be rebuilt: it keeps no raw messages, and "
                f"{each.passing_sources[0]} may no longer have all messages; create the source with 'raw: true'"
            )
