"""The records of sources in a store: their definitions, and the states of their instances."""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

import pyarrow as pa

from nebuli.dataflow.zset import weighted
from nebuli.store.errors import Damaged, NotYet, SinceMismatch, Unclear, UpperMismatch

from .definition import CollectionOrigin, DebeziumEnvelope, Definition, FileOrigin, ParquetOrigin

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from nebuli.store import Store
    from nebuli.store.shards.shard import Shard

SOURCES = "ingestion/sources"
INSTANCES = "ingestion/instances"
SUPERVISORS = "ingestion/supervisors"
RAW_RENDITION = "r1"
"""That of raw messages, which are never rebuilt."""
Phase = Literal["creating", "there", "dropping"]
Health = Literal["starting", "running", "waiting", "conflict", "ended"]
"""``running``: it has written something, and is not hindered; ``waiting``: to try again, after an error."""
FROM_BAD_TO_GOOD: tuple[Health, ...] = ("conflict", "waiting", "starting", "running")
"""How those that live fare."""
_SEEN_MS = 30_000
"""It reports three times as often."""


@dataclass(frozen=True, slots=True)
class Entry:
    """A source, in its ``version``, whose collections are written as the ``rendition``.

    ``built_from``: the time of the collection that it reads whose contents come first; None: there was nothing yet.
    ``origin_created``: when that collection was created, which distinguishes it from another one of its name.
    ``former`` are the collections of states that earlier versions had.
    """

    id: str
    definition: Definition
    version: int
    phase: Phase
    replicas: int
    built_from: int | None = None
    origin_created: int | None = None
    former: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """The name of the source, and of its collection."""
        return self.definition.name

    @property
    def rendition(self) -> str:
        """The rendition that this version writes."""
        return f"r{self.version}"

    @property
    def raw(self) -> str:
        """The collection of its raw messages."""
        return f"{self.name}.raw"

    @property
    def origin_collection(self) -> str | None:
        """The collection that it is decoded from, if it is one."""
        if isinstance(self.definition.origin, CollectionOrigin):
            return self.definition.origin.collection
        return self.raw if self.definition.raw else None

    @property
    def can_be_rebuilt(self) -> bool:
        """True if all of its messages are there to be read again."""
        return self.origin_collection is not None or not self.passing_sources

    @property
    def passing_sources(self) -> list[str]:
        """The types of its raw sources that need not have all of their messages any more."""
        return [
            origin.type
            for origin in self.raw_sources.values()
            if not isinstance(origin, FileOrigin | ParquetOrigin)
        ]

    @property
    def prefix(self) -> str:
        """How the names of its own shards begin."""
        return f"ingestion/{self.id}/"

    @property
    def remap(self) -> str:
        """The shard in which it is recorded what is available when; each version reads again what is not kept raw."""
        return f"{self.prefix}remap" if self.definition.raw else f"{self.prefix}remap.{self.rendition}"

    @property
    def facts(self) -> str:
        """The shard of the facts that raw messages are decoded by."""
        return f"{self.prefix}facts"

    @property
    def raw_sources(self) -> Mapping[str, Any]:
        """All that contributes to it from outside, by name: where messages come from, and what they are decoded by."""
        found: dict[str, Any] = {}
        if self.origin_collection is None or self.definition.raw:
            found["data"] = self.definition.origin
        envelope = self.definition.envelope
        if isinstance(envelope, DebeziumEnvelope) and envelope.metadata is not None:
            found["metadata"] = envelope.metadata
        return found

    def to_text(self) -> str:
        """The entry as it is kept."""
        return json.dumps(
            {
                "id": self.id,
                "definition": json.loads(self.definition.to_json()),
                "version": self.version,
                "phase": self.phase,
                "replicas": self.replicas,
                "built_from": self.built_from,
                "origin_created": self.origin_created,
                "former": self.former,
            }
        )

    @classmethod
    def of_text(cls, text: str) -> Entry:
        """Raises Damaged."""
        try:
            found = json.loads(text)
            definition = Definition.model_validate(found["definition"])
            return cls(**{**found, "definition": definition, "former": tuple(found["former"])})
        except (ValueError, TypeError, KeyError) as error:
            raise Damaged(
                f"shard {SOURCES} has an entry that cannot be read ({error}): restore the store's folder from a copy, "
                f"or use the version of this program that has written it"
            ) from error


@dataclass(frozen=True, slots=True)
class InstanceStatus:
    """How an instance fares; times are in milliseconds since 1970.

    ``error`` is what hinders it now. The ``last_error`` stays when it is over; it was met last at ``last_error_at``.
    """

    source: str
    instance: str
    host: str
    pid: int
    health: Health
    at: int
    upper: int = 0
    error: str | None = None
    last_error: str | None = None
    last_error_at: int | None = None

    @property
    def key(self) -> str:
        """Where it is kept."""
        return f"{self.source}/{self.host}/{self.instance}"

    def is_living(self, now: int) -> bool:
        """True if it runs, or waits to try again, at a time; one that was not seen for 30 s does not."""
        return self.health != "ended" and self.at > now - _SEEN_MS

    def to_text(self) -> str:
        """The status as it is kept."""
        return json.dumps(asdict(self))

    @classmethod
    def of_text(cls, text: str) -> InstanceStatus:
        """Raises Damaged."""
        try:
            return cls(**json.loads(text))
        except (ValueError, TypeError) as error:
            raise Damaged(f"shard {INSTANCES} has an entry that cannot be read: {error}") from error


@dataclass(frozen=True, slots=True)
class SupervisorStatus:
    """The process of a host that keeps the instances of all sources there; it was seen last ``at`` this time.

    Times are in milliseconds since 1970, ``since`` is that of its start.
    """

    host: str
    pid: int
    since: int
    at: int

    def is_living(self, now: int) -> bool:
        """True if it runs at a time; one that was not seen for 30 s does not."""
        return self.at > now - _SEEN_MS

    def to_text(self) -> str:
        """The status as it is kept."""
        return json.dumps(asdict(self))

    @classmethod
    def of_text(cls, text: str) -> SupervisorStatus:
        """Raises Damaged."""
        try:
            return cls(**json.loads(text))
        except (ValueError, TypeError) as error:
            raise Damaged(f"shard {SUPERVISORS} has an entry that cannot be read: {error}") from error


def next_version(
    entry: Entry, definition: Definition, built_from: int | None, origin_created: int | None
) -> Entry:
    """The same source, from now on by this definition."""
    return replace(
        entry,
        definition=definition,
        version=entry.version + 1,
        built_from=built_from,
        origin_created=origin_created,
    )


_SCHEMA = weighted(
    pa.schema([pa.field("key", pa.string(), nullable=False), pa.field("text", pa.string(), nullable=False)])
)
_HOLD = "register"


class Register:
    """Any number of processes read and change it; a time of its shard is the number of a change."""

    def __init__(self, shard: Shard) -> None:
        self._shard = shard
        self._known: tuple[int, dict[str, str]] = -1, {}

    @classmethod
    async def opened(cls, store: Store, name: str) -> Register:
        """That of a name, made if it is not there."""
        return cls(await store.create_shard(name, _SCHEMA))

    async def read(self) -> Mapping[str, str]:
        """All of it, as it is now."""
        await self._shard.refresh()
        while self._known[0] != self._shard.upper:
            upper = self._shard.upper
            if not upper:
                self._known = 0, {}
                break
            try:
                contents = await self._shard.contents(upper - 1)
            except SinceMismatch:  # it has changed meanwhile
                await self._shard.refresh()
                continue
            self._known = upper, dict(zip(*(each.to_pylist() for each in contents.columns[:2]), strict=True))
        return self._known[1]

    async def changed(self, pause_s: float) -> None:
        """Wait until it is not what was read last, for so long at most."""
        with suppress(NotYet):
            await self._shard.written(max(self._known[0], 0), deadline_s=pause_s)

    async def change(self, key: str, change: Callable[[str | None], str | None]) -> None:
        """Make another document of one, or of none; None: forget it. Repeated if another change was first."""
        while True:
            documents = await self.read()
            upper, before = self._known[0], documents.get(key)
            after = change(before)
            if after == before:
                return
            rows = [(key, text, weight) for text, weight in ((before, -1), (after, 1)) if text is not None]
            columns = [
                pa.array(column, field.type)
                for column, field in zip(zip(*rows, strict=True), _SCHEMA, strict=True)
            ]
            batch = pa.RecordBatch.from_arrays(columns, schema=_SCHEMA)
            try:
                await self._shard.compare_and_append([(upper, batch)], upper, upper + 1)
            except (UpperMismatch, Unclear):
                continue  # what is there now is looked at, also where this change was made
            with suppress(SinceMismatch):
                await self._shard.hold(_HOLD, upper)
            return
