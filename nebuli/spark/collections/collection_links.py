"""State of a process between Spark's calls: open stores, and the query errors for theirs."""

from __future__ import annotations

from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from nebuli.blocking import Collections
from nebuli.spark.collections.errors import BatchLost, CollectionStreamError, TimesForgotten
from nebuli.store.backends import is_store
from nebuli.store.collections.errors import TooLate
from nebuli.store.errors import StagedLost, StorageError
from nebuli.store.store_url import store_place
from spark_bridge.clients import Pool

if TYPE_CHECKING:
    from collections.abc import Iterator

    from nebuli.spark.collections.collection_options import Place

_stores: Pool[Collections] = Pool(lambda store: store.__exit__(None, None, None), lambda _: True)


@contextmanager
def opened(place: Place) -> Iterator[Collections]:
    """The collections of a store, for a while. Raises CollectionStreamError for what they do not do."""
    try:
        with _stores.lend(place.store, lambda: _entered(place)) as collections:
            yield collections
    except StorageError as error:
        raise _meant(error, place) from error


def _entered(place: Place) -> Collections:
    """Open a store that is there: reading does not create one."""
    where = store_place(place.store)
    if isinstance(where, Path) and not is_store(where):
        raise CollectionStreamError(
            f"{place}: no store at {where}: give its folder as the option store, at a path that driver and "
            "executors share, or create the collection first"
        )
    return Collections(place.store).__enter__()


def _meant(error: StorageError, place: Place) -> CollectionStreamError:
    where = f"{place} in {_shown(place.store)}: {error}"
    match error:
        case TooLate():
            return TimesForgotten(
                f"{where}. To continue with the rows that are still kept, without the lost rows, start with a new "
                f"checkpoint; set the option reader, so that unread rows are kept for this stream"
            )
        case StagedLost():
            return BatchLost(
                f"{where}. Start the query again with the same checkpoint: Spark then repeats this batch"
            )
    return CollectionStreamError(where)


def _shown(store: str) -> str:
    """The store without what is secret in a URL."""
    try:
        return str(store_place(store))
    except StorageError:
        return "its store"
