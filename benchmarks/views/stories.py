"""A site like Lobsters: stories with their votes and comments, of which the hot ones are read again and again.

A read is of one story, with how many votes and comments it has; a write is a vote, a comment, or a new story with its
author's vote. So many requests are on their way at once, each of which begins when one before it is answered.
"""

from __future__ import annotations

import asyncio
import sqlite3
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol

import numpy as np
import psutil
import pyarrow as pa

import nebuli
from benchmarks.running import Failed
from benchmarks.steps.percentiles import percentiles
from benchmarks.work import Result, Work
from nebuli import Views

from .graphs import Numbers
from .served import MB, SECRET, Served, served, topology
from .zipf import drawn

ASKED_FOR, VOTED_FOR = 1.1, 0.5
"""Exponents: of what is asked for and written, and of the votes and comments that are there at first."""
VOTES_EACH, COMMENTS_EACH = 10, 3
WRITES = 0.05
VOTES, COMMENTS = 0.8, 0.18
"""Of the writes; the others are stories."""
FILLED_AT_ONCE = 500
DEADLINE_S = 60.0
LOOKED_AT = 20
LOOK_S = 0.05
SCHEMAS = {
    "stories": "id: int64, title: string, author: int64",
    "votes": "story: int64, user: int64",
    "comments": "story: int64, user: int64",
}
SUMS = {"votes": "sum(votes)", "comments": "sum(comments)"}
SHOWN = {name: name for name in ("title", "author", "votes", "comments")}
QUERY: list[dict[str, Any]] = [
    *({"id": name, "type": "source", "logical": name} for name in SCHEMAS),
    {
        "id": "voted",
        "type": "project",
        "input": "votes",
        "columns": {"id": "story", "votes": "1", "comments": "0"},
    },
    {
        "id": "commented",
        "type": "project",
        "input": "comments",
        "columns": {"id": "story", "votes": "0", "comments": "1"},
    },
    {"id": "both", "type": "union", "inputs": ["voted", "commented"]},
    {"id": "counts", "type": "aggregate", "input": "both", "by": ["id"], "aggregates": SUMS},
    {"id": "joined", "type": "join", "inputs": ["stories", "counts"], "on": ["id"]},
]
SQL = """
SELECT title, author, (SELECT count(*) FROM votes WHERE story = id), (SELECT count(*) FROM comments WHERE story = id)
FROM stories WHERE id = ?
"""
Kind = Literal["read", "votes", "comments", "stories"]


@dataclass(frozen=True)
class Counts:
    """Votes and comments of a story."""

    votes: int
    comments: int


class Site(Protocol):
    """Where stories are read and written."""

    async def warm(self, stories: Numbers) -> None:
        """Read stories before anything is measured."""

    async def read(self, story: int) -> Counts:
        """What is there of a story."""

    async def write(self, kind: Kind, story: int, user: int) -> None:
        """Add a vote, a comment, or a story; it is on the disk at return."""

    async def measures(self) -> dict[str, float]:
        """What it has to say in the end."""


@dataclass
class Traffic:
    """All requests in their order, and what has become of them."""

    stories: int
    votes: Numbers
    comments: Numbers
    requests: Iterator[tuple[Kind, int]]
    begun: Counter[tuple[Kind, int]] = field(default_factory=Counter)
    reads_s: list[float] = field(default_factory=list)
    writes_s: list[float] = field(default_factory=list)

    async def go_on(self, site: Site) -> None:
        """One request after the other, until there are no more; new stories get numbers that nobody has."""
        for kind, story in self.requests:
            began = time.perf_counter()
            if kind == "read":
                found = await site.read(story)
                self.reads_s.append(time.perf_counter() - began)
                self._check(story, found)
                continue
            self.begun[kind, story] += 1
            if kind == "stories":
                new = self.stories + len(self.writes_s)
                await site.write("stories", new, story)
                await site.write("votes", new, story)
            else:
                await site.write(kind, story, len(self.writes_s))
            self.writes_s.append(time.perf_counter() - began)

    def last(self, story: int) -> Counts:
        """What there is of a story once all was written."""
        votes = int(self.votes[story]) + self.begun["votes", story]
        return Counts(votes, int(self.comments[story]) + self.begun["comments", story])

    def _check(self, story: int, found: Counts) -> None:
        last = self.last(story)
        is_right = self.votes[story] <= found.votes <= last.votes
        if not is_right or not self.comments[story] <= found.comments <= last.comments:
            raise Failed(f"story {story} has {last} at most, and {found} was read")


async def browse(work: Work, _: str) -> Result:
    """So many requests; at last what was written has to be read."""
    options, rows = work.options, _rows(work.options["stories"])
    votes, comments = (
        np.bincount(rows[name]["story"].to_numpy(), minlength=options["stories"])
        for name in ("votes", "comments")
    )
    traffic = Traffic(options["stories"], votes, comments, _requests(options["stories"], options["requests"]))
    open_site = _sqlite if options["peer"] else _views
    async with open_site(rows, options) as site:
        await site.warm(drawn(options["stories"], options["before"], ASKED_FOR, seed=1))
        before = await site.measures()
        began = time.perf_counter()
        async with asyncio.TaskGroup() as group:
            for _ in range(options["at_once"]):
                group.create_task(traffic.go_on(site))
        took = time.perf_counter() - began
        measures = await site.measures()
        await _is_written(site, traffic)
    found = percentiles(traffic.reads_s) | percentiles(traffic.writes_s, "insert_")
    found |= {"requests_per_s": options["requests"] / took, "memory_MB": measures["memory_MB"]}
    if "hits" in measures:
        hits, lookups = (measures[name] - before[name] for name in ("hits", "lookups"))
        found |= {"hits_percent": 100 * hits / lookups, "view_MB": measures["view_MB"]}
    return Result(options["requests"], found)


async def _is_written(site: Site, traffic: Traffic) -> None:
    """Wait until the hottest stories that were written to are read as they are."""
    hottest = [story for (kind, story), _ in traffic.begun.most_common() if kind != "stories"][:LOOKED_AT]
    async with asyncio.timeout(DEADLINE_S):
        for story in hottest:
            while await site.read(story) != traffic.last(story):  # noqa: ASYNC110 - others write
                await asyncio.sleep(LOOK_S)


def _rows(stories: int) -> dict[str, pa.RecordBatch]:
    """What is there at first: each story has its author's vote, and a comment at least."""
    ids = np.arange(stories)
    titles = pa.array([f"story number {number} has a title of some length" for number in range(stories)])
    found = {"stories": pa.record_batch([ids, titles, ids * 7], ["id", "title", "author"])}
    for seed, (name, each) in enumerate((("votes", VOTES_EACH), ("comments", COMMENTS_EACH))):
        some = drawn(stories, stories * (each - 1), VOTED_FOR, seed)
        of_stories = np.concatenate([ids, some])
        found[name] = pa.record_batch([of_stories, np.arange(len(of_stories))], ["story", "user"])
    return found


def _requests(stories: int, count: int) -> Iterator[tuple[Kind, int]]:
    """Which story is asked for, or written to, in each."""
    generator = np.random.default_rng(3)
    draws = generator.random((count, 2)).tolist()
    for story, (writes, what) in zip(drawn(stories, count, ASKED_FOR, seed=2).tolist(), draws, strict=True):
        kind: Kind = "votes" if what < VOTES else "comments" if what < VOTES + COMMENTS else "stories"
        yield (kind if writes < WRITES else "read"), story


class _Views:
    """A view over collections."""

    def __init__(self, run: Served, views: Views, collections: nebuli.Collections) -> None:
        self._run = run
        self._views = views
        self._collections = collections

    async def warm(self, stories: Numbers) -> None:
        await self._views.get("view", [0], DEADLINE_S)
        for begin in range(0, len(stories), FILLED_AT_ONCE):
            await self._views.get("view", stories[begin : begin + FILLED_AT_ONCE].tolist(), DEADLINE_S)

    async def read(self, story: int) -> Counts:
        rows = (await self._views.get("view", [story], DEADLINE_S)).rows
        return Counts(rows.column("votes")[0].as_py(), rows.column("comments")[0].as_py())

    async def write(self, kind: Kind, story: int, user: int) -> None:
        row: dict[str, list[Any]] = {"story": [story], "user": [user]}
        if kind == "stories":
            row = {"id": [story], "title": ["a new one"], "author": [user]}
        await self._collections.insert(kind, pa.record_batch(row))

    async def measures(self) -> dict[str, float]:
        (status,) = await self._views.statuses()
        counts = {"lookups": float(status.lookups), "hits": float(status.hits)}
        return counts | {"view_MB": status.bytes / MB, "memory_MB": self._run.memory_mb}


@asynccontextmanager
async def _views(rows: dict[str, pa.RecordBatch], options: dict[str, Any]) -> AsyncIterator[_Views]:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        async with nebuli.Collections(str(folder / "store")) as collections:
            for collection, each in rows.items():
                await collections.create(collection, each.schema)
                await collections.insert(collection, each)
            sources = {each: {"type": "Collection", "store": "store", "collection": each} for each in rows}
            run = served(folder, topology(sources, SCHEMAS, nodes=1), _query(options))
            async with run as running, Views(running.node, secret=SECRET) as views:
                yield _Views(running, views, collections)


def _query(options: dict[str, Any]) -> list[dict[str, Any]]:
    """A view by what is computed is full."""
    view: dict[str, Any] = {"id": "view", "type": "view", "input": "shown", "key": ["id"]}
    if not options["full"]:
        view["max_bytes"] = options["max_bytes"]
    id_ = "id + 0" if options["full"] else "id"
    shown = {"id": "shown", "type": "project", "input": "joined", "columns": {"id": id_, **SHOWN}}
    return [*QUERY, shown, view]


class _Sqlite:
    """Tables with indices, on a disk."""

    def __init__(self, database: sqlite3.Connection) -> None:
        self._database = database

    async def warm(self, stories: Numbers) -> None:
        for story in stories.tolist():
            await self.read(story)

    async def read(self, story: int) -> Counts:
        _, _, votes, comments = self._database.execute(SQL, (story,)).fetchone()
        return Counts(votes, comments)

    async def write(self, kind: Kind, story: int, user: int) -> None:
        row = (story, "a new one", user) if kind == "stories" else (story, user)
        self._insert(kind, [row])

    def _insert(self, table: str, rows: Sequence[tuple[Any, ...]]) -> None:
        places = ", ".join("?" for _ in rows[0])
        with self._database:
            self._database.executemany(f"INSERT INTO {table} VALUES ({places})", rows)  # noqa: S608 - one of our names

    async def measures(self) -> dict[str, float]:
        return {"memory_MB": psutil.Process().memory_info().rss / MB}

    def load(self, rows: dict[str, pa.RecordBatch]) -> None:
        """All that is there at first."""
        for statement in (
            "PRAGMA journal_mode = WAL",
            "PRAGMA synchronous = FULL",
            "CREATE TABLE stories (id INTEGER PRIMARY KEY, title TEXT, author INTEGER)",
            "CREATE TABLE votes (story INTEGER, user INTEGER)",
            "CREATE TABLE comments (story INTEGER, user INTEGER)",
        ):
            self._database.execute(statement)
        for table, batch in rows.items():
            self._insert(table, [*zip(*(column.to_pylist() for column in batch.columns), strict=True)])
        self._database.execute("CREATE INDEX votes_by_story ON votes (story)")
        self._database.execute("CREATE INDEX comments_by_story ON comments (story)")


@asynccontextmanager
async def _sqlite(rows: dict[str, pa.RecordBatch], _: dict[str, Any]) -> AsyncIterator[_Sqlite]:
    with tempfile.TemporaryDirectory() as name, closing(sqlite3.connect(f"{name}/site.db")) as database:
        site = _Sqlite(database)
        site.load(rows)
        yield site
