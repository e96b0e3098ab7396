"""The driver's handling of the attempts of a write: publish them once, or drop them.

A streaming write commits as its query (or ``txnAppId``), with Spark's batch id as epoch: a commit that is tried again
does nothing. A new checkpoint is a new query, whose batch ids begin at 0. So that it cannot write the same rows again
in silence, a checkpoint (or ``txnAppId``) belongs to the first query that commits under it: its owner is recorded at
the receiver, as empty commits under their own names.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from hashlib import sha256
from typing import TYPE_CHECKING

from netchannel import EpochRegressed, NetChannelError, Sealed
from spark_bridge.clients import group_client
from spark_bridge.errors import CheckpointReplaced
from spark_bridge.tasks.task import settle

if TYPE_CHECKING:
    from collections.abc import Iterable

    from netchannel.process.blocking import BlockingGroupClient
    from spark_bridge.options import Source, WriteOptions

    from .task_writer import Attempts, Work

log = logging.getLogger("spark_bridge")

_SHORT = 2048


@dataclass(frozen=True, slots=True)
class Query:
    """A streaming query that writes: its id, and what its checkpoint is called, if that can be known."""

    id: str
    checkpoint: str | None


def publish(options: WriteOptions, work: Work, made: Iterable[Attempts], query: Query | None) -> None:
    """Publish the attempts of an epoch in the order of their partitions, in every channel; and end it where asked.

    ``query`` is for streaming ones. Doing it again does nothing.

    Raises:
        CheckpointReplaced: another query has written under this name, or this one has been further.
        netchannel.AttemptLost: the receiver does not have an attempt any more; the batch must be run again.
    """
    made = list(made)
    over = {key for each in made for key in each.over}
    sources = options.connection.sources
    if len(sources) > 1 and (query is not None or options.txn_version is not None):
        for source in sources:
            _check(options, work, source, query)
    for source in sources:
        winners = [sealed for each in made for key, sealed in each.sealed if key == source.key]
        if not (winners or source.key in over or options.end or options.txn_version is not None):
            continue
        with group_client(options.connection, source) as client:
            if query is not None:
                _claim(client, options, query, source.key)
            if source.key in over:
                _check_done(client, options, work, source.key)
            else:
                _commit(client, options, work, winners, source.key)
    settle()


def _check(options: WriteOptions, work: Work, source: Source, query: Query | None) -> None:
    """Raise CheckpointReplaced for a channel that will not take the epoch, before another channel has taken it."""
    with group_client(options.connection, source) as client:
        if query is not None and (name := _claimed(options, query)) is not None:
            _is_claimed(client, name, query.id, source.key)
        last = client.last_epoch(work.application)
    if last is not None and last > work.epoch:
        raise _older(options, source.key, work, last)


def _commit(
    client: BlockingGroupClient, options: WriteOptions, work: Work, winners: list[Sealed], channel: str
) -> None:
    try:
        fresh = client.commit(work.application, work.epoch, winners, end=options.end)
    except EpochRegressed as error:
        raise _older(options, channel, work, client.last_epoch(work.application)) from error
    if not fresh:
        client.drop(work.application, work.epoch)


def _check_done(client: BlockingGroupClient, options: WriteOptions, work: Work, channel: str) -> None:
    """A task was notified that the epoch is committed: it is, or the write is older than the committed ones."""
    last = client.last_epoch(work.application)
    if last != work.epoch:
        raise _older(options, channel, work, last)
    client.drop(work.application, work.epoch)


def _older(options: WriteOptions, channel: str, work: Work, last: int | None) -> CheckpointReplaced:
    if options.txn_version is not None:
        return CheckpointReplaced(
            f"channel {channel!r} already has a write with txnVersion {last} of txnAppId {work.application!r}, "
            f"but this write has {work.epoch}: each write must have a higher txnVersion than the write before "
            f"it; give a higher version, or start from scratch under another txnAppId"
        )
    return CheckpointReplaced(
        f"channel {channel!r} already has batch {last} of application {work.application!r}, but this write is "
        f"batch {work.epoch}: the checkpoint is older than the written rows; continue from the newest "
        f"checkpoint, or start from scratch under another txnAppId"
    )


def warn_if_unguarded(options: WriteOptions, query: Query) -> None:
    """Warn that the deletion of a query's checkpoint will not be noticed, if nothing can be claimed for it."""
    if _claimed(options, query) is None:
        log.warning(
            "query %s writes to %s without protection against a lost checkpoint, because the location of its "
            "checkpoint is unknown here. If the checkpoint is deleted or replaced, no error is raised, and "
            "rows may be written twice: give the query the option checkpointLocation, a queryName, or txnAppId",
            query.id,
            ", ".join(repr(source.key) for source in options.connection.sources),
        )


def _claim(client: BlockingGroupClient, options: WriteOptions, query: Query, channel: str) -> None:
    name = _claimed(options, query)
    if name is None:
        return
    if not _is_claimed(client, name, query.id, channel):
        client.commit(_ours(name, query.id), 0, [])
    if client.last_epoch(_owned(name)) is None:  # last, so that it is never noted without its owner
        client.commit(_owned(name), 0, [])


def _is_claimed(client: BlockingGroupClient, name: str, query: str, channel: str) -> bool:
    """True if it is claimed by this query. Raises CheckpointReplaced if it is by another one."""
    if client.last_epoch(_ours(name, query)) is not None:
        return True
    if client.last_epoch(_owned(name)) is not None:
        raise CheckpointReplaced(
            f"another query than this one ({query}) has written to channel {channel!r} with {name}: the "
            f"checkpoint of that query was deleted or replaced, and this query could write the same rows "
            f"again. Restore the checkpoint; or, to continue without it, give another txnAppId"
        )
    return False


def _owned(name: str) -> str:
    return f"owner of {name}"


def _ours(name: str, query: str) -> str:
    return f"{name} owned by query {query}"


def _claimed(options: WriteOptions, query: Query) -> str | None:
    if options.txn_app_id is not None:
        return f"txnAppId {_short(options.txn_app_id)}"
    if query.checkpoint is not None:
        return f"checkpoint {_short(query.checkpoint)}"
    return None


def _short(text: str) -> str:
    """The text, or what stands for one that is too long for a part of a name, or cannot be printed."""
    if text.isprintable() and len(text) <= _SHORT:
        return text
    return f"with the SHA-256 {sha256(text.encode()).hexdigest()}"


def forget(options: WriteOptions, work: Work) -> None:
    """Give up the name of a write that will never be tried again: a receiver knows so many only."""
    for source in options.connection.sources:
        try:
            with group_client(options.connection, source) as client:
                client.forget(work.application)
        except NetChannelError as error:  # all is published: after an error the caller would write it again
            log.info(
                "channel %r still has a record of the name %r, which could not be deleted: %s",
                source.key,
                work.application,
                error,
            )


def drop(options: WriteOptions, work: Work) -> None:
    """Drop what a failed write has left, wherever that is possible. Raises what stands against it elsewhere."""
    errors = []
    for source in options.connection.sources:
        try:
            with group_client(options.connection, source) as client:
                client.drop(work.application, work.epoch)
        except NetChannelError as error:
            errors.append(error)
    if errors:
        raise errors[0]
