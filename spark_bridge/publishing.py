"""What the driver does with the attempts of a write: publish them once, or drop them.

A streaming write commits as its query (or ``txnAppId``), with Spark's batch id as epoch: a commit that is tried again
does nothing. A new checkpoint is a new query, whose batch ids begin at 0. So that it cannot write the same rows again
in silence, a checkpoint (or ``txnAppId``) belongs to the first query that commits under it: who owns it is noted at
the receiver, as commits of nothing under names of their own.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from netchannel import EpochRegressed, NetChannelError, Sealed

from .clients import group_client
from .errors import CheckpointReplaced

if TYPE_CHECKING:
    from collections.abc import Iterable

    from netchannel.process import BlockingGroupClient

    from .options import WriteOptions
    from .writing import Attempts, Work

log = logging.getLogger("spark_bridge")


def publish(options: WriteOptions, work: Work, made: Iterable[Attempts], query: str | None) -> None:
    """Publish the attempts of an epoch in the order of their partitions, in every channel; and end it where asked.

    ``query`` is the id of a streaming query. Doing it again does nothing.

    Raises:
        CheckpointReplaced: another query has written under this name, or this one has been further.
        netchannel.AttemptLost: the receiver does not have an attempt any more; the batch must be run again.
    """
    made = list(made)
    over = {key for each in made for key in each.over}
    for source in options.connection.sources:
        winners = [sealed for each in made for key, sealed in each.sealed if key == source.key]
        if not winners and source.key not in over and not options.end:
            continue
        with group_client(options.connection, source) as client:
            if query is not None:
                _claim(client, options, query, source.key)
            if source.key in over:
                _check_done(client, work, source.key)
            else:
                _commit(client, work, winners, source.key, end=options.end)


def _commit(
    client: BlockingGroupClient, work: Work, winners: list[Sealed], channel: str, *, end: bool
) -> None:
    try:
        fresh = client.commit(work.application, work.epoch, winners, end=end)
    except EpochRegressed as error:
        raise _older(channel, work, str(error)) from error
    if not fresh:
        client.drop(work.application, work.epoch)


def _check_done(client: BlockingGroupClient, work: Work, channel: str) -> None:
    """A task was told that the epoch is committed: so it is, or the write is older than what is there."""
    last = client.last_epoch(work.application)
    if last != work.epoch:
        raise _older(channel, work, f"this write is epoch {work.epoch}, and epoch {last} is committed")
    client.drop(work.application, work.epoch)


def _older(channel: str, work: Work, why: str) -> CheckpointReplaced:
    return CheckpointReplaced(
        f"channel {channel!r} has more of application {work.application!r} than this write knows: {why}. Its "
        f"checkpoint is older than what it has written: go on from the newest one, or begin anew under another "
        f"txnAppId"
    )


def _claim(client: BlockingGroupClient, options: WriteOptions, query: str, channel: str) -> None:
    name = _claimed(options)
    if name is None:
        return
    owned, ours = f"owner of {name}", f"{name} owned by query {query}"
    if client.last_epoch(ours) is None:
        if client.last_epoch(owned) is not None:
            raise CheckpointReplaced(
                f"another query than {query} has written to channel {channel!r} under {name}: its checkpoint was "
                f"deleted or replaced, and what follows may have been written before. Restore it; or, to write from "
                f"here on knowingly, give another txnAppId"
            )
        client.commit(ours, 0, [])
    if client.last_epoch(owned) is None:  # last, so that it is never noted without its owner
        client.commit(owned, 0, [])


def _claimed(options: WriteOptions) -> str | None:
    if options.txn_app_id is not None:
        return f"txnAppId {options.txn_app_id}"
    if options.checkpoint is not None:
        return f"checkpoint {options.checkpoint}"
    return None


def forget(options: WriteOptions, work: Work) -> None:
    """Give up the name of a write that will never be tried again: a receiver knows so many only."""
    for source in options.connection.sources:
        try:
            with group_client(options.connection, source) as client:
                client.forget(work.application)
        except NetChannelError as error:  # all is published: whoever heard of an error would write it again
            log.info("channel %r keeps the name %r: %s", source.key, work.application, error)


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
