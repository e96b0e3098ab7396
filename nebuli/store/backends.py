"""The two seams of a store, by its place."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from nebuli.store.blobs.blob_files import FileBlobs
from nebuli.store.ordering.sqlite import FILE, SqliteOrdering

if TYPE_CHECKING:
    from nebuli.store.blobs import Blobs
    from nebuli.store.blobs.objects import ObjectBlobs
    from nebuli.store.ordering import Ordering
    from nebuli.store.ordering.postgres import PostgresOrdering
    from nebuli.store.store_url import StorePlace, StoreUrl


AWAY_S = 120.0
"""How long a server that is away is waited for."""


def backends_at(place: StorePlace, *, away_s: float = AWAY_S) -> tuple[Ordering, Blobs]:
    """New ones, not opened."""
    if isinstance(place, Path):
        return SqliteOrdering(place), FileBlobs(place / "blobs")
    return _away(place, away_s)


def is_store(place: StorePlace) -> bool:
    """True if there is one; none is made. Blocking. Raises StoreUnusable."""
    if isinstance(place, Path):
        return (place / FILE).exists()
    return _away(place)[0].is_there()


def stores_below(url: StoreUrl) -> list[StoreUrl]:
    """All whose schemas are below that of a URL. Blocking. Raises StorageError."""
    ordering, _ = _away(url)
    ordering.open()
    try:
        return [replace(url, schema=schema) for schema in ordering.schemas_below()]
    finally:
        ordering.close()


def remove_store(place: StorePlace) -> None:
    """Forget all that is there; harmless where nothing is. Blocking. Raises StorageError, OSError."""
    if isinstance(place, Path):
        if place.exists():
            shutil.rmtree(place)
    elif is_store(place):
        ordering, blobs = _away(place)
        ordering.open()
        try:
            blobs.clear()
            ordering.remove()
        finally:
            ordering.close()


def _away(place: StoreUrl, away_s: float = AWAY_S) -> tuple[PostgresOrdering, ObjectBlobs]:
    # Imported here, as they need what most installations do not have.
    from nebuli.store.blobs.objects import ObjectBlobs
    from nebuli.store.ordering.postgres import PostgresOrdering

    ordering = PostgresOrdering(place, away_s=away_s, open_s=away_s)
    return ordering, ObjectBlobs(lambda: ordering.blobs)
