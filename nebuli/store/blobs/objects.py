"""Blobs as objects of a store like S3, which processes of any machine reach."""

from __future__ import annotations

import os
from datetime import timedelta
from functools import cached_property
from typing import TYPE_CHECKING, Any

import obstore
import pyarrow as pa
from obstore.exceptions import BaseError
from obstore.store import from_url

from nebuli.store.errors import StoreFailed, StoreUnusable
from nebuli.store.names import file_name

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_WITHIN_S, _AGAIN_S, _AGAIN = 60, 120, 20
"""Seconds that a request may take, and for which it is tried again, and how often."""
_WHOLE_BYTES = 1 << 24
_ENDPOINTS = "AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT"


class ObjectBlobs:
    """One object for each, below a prefix.

    ``url`` has both (``s3://bucket/prefix``) when it is first used; access to the store is configured by the
    environment (``AWS_ENDPOINT_URL``, ``AWS_ACCESS_KEY_ID`` and so on). An object is there whole or not at all, as
    such stores have it. A request that fails in a way that may pass is made again; one that has happened is made twice
    then, with the same bytes.
    """

    def __init__(self, url: Callable[[], str]) -> None:
        self._find_url = url

    @cached_property
    def _url(self) -> str:
        return self._find_url().rstrip("/")

    @cached_property
    def _store(self) -> Any:
        endpoint = next((os.environ[name] for name in _ENDPOINTS if name in os.environ), "")
        options: dict[str, Any] = {"timeout": f"{_WITHIN_S}s", "connect_timeout": "10s"}
        options["allow_http"] = endpoint.startswith("http://")
        retries: Any = {"max_retries": _AGAIN, "retry_timeout": timedelta(seconds=_AGAIN_S)}
        config: dict[str, Any] = {"endpoint": endpoint} if endpoint else {}
        try:
            return from_url(self._url, config=config or None, client_options=options, retry_config=retries)  # type: ignore[call-overload]  # of any kind of URL
        except (BaseError, ValueError) as error:
            raise StoreUnusable(f"{self._url} cannot be used for blobs: {_said(error)}") from error

    def put(self, folder: str, name: str, buffers: Sequence[Any]) -> None:
        """Keep a blob, which is durable when the store has acknowledged it."""
        path = _path(folder, name)
        views = [memoryview(each).cast("B") for each in buffers]
        try:
            # As a whole by one request, a large one in parts, by one for each and two more.
            whole = sum(len(each) for each in views) <= _WHOLE_BYTES
            obstore.put(self._store, path, b"".join(views) if whole else iter(views))
        except BaseError as error:
            raise self._failed(path, "writing", error) from error

    def get(self, folder: str, name: str) -> pa.Buffer:
        """Read into memory."""
        path = _path(folder, name)
        try:
            return pa.py_buffer(obstore.get(self._store, path).bytes())
        except FileNotFoundError:
            raise
        except BaseError as error:
            raise self._failed(path, "reading", error) from error

    def delete(self, folder: str, names: Sequence[str]) -> None:
        """Delete objects, those that are there."""
        for name in names:
            path = _path(folder, name)
            try:
                obstore.delete(self._store, path)
            except FileNotFoundError:
                pass
            except BaseError as error:
                raise self._failed(path, "deleting", error) from error

    def names(self, folder: str) -> list[str]:
        """Return those that are there: a blob is not, until it is complete."""
        prefix = file_name(folder)
        try:
            found = obstore.list_with_delimiter(self._store, prefix=prefix)["objects"]
        except BaseError as error:
            raise self._failed(prefix, "listing", error) from error
        return sorted(each["path"].rpartition("/")[2] for each in found)

    def clear(self) -> None:
        """Delete all that there is below the prefix."""
        try:
            for each in obstore.list(self._store):
                obstore.delete(self._store, [one["path"] for one in each])
        except BaseError as error:
            raise self._failed("", "deleting", error) from error

    def _failed(self, path: str, doing: str, error: Exception) -> StoreFailed:
        return StoreFailed(f"{self._url}/{path}", doing, _said(error))


def _path(folder: str, name: str) -> str:
    return f"{file_name(folder)}/{name}"


def _said(error: Exception) -> str:
    """Return the first line of the library's message; the others repeat the request."""
    return next(iter(str(error).splitlines()), type(error).__name__)
