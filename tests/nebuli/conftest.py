"""Places for stores without a disk that is shared: one server of each kind for all tests of a process."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import count
from zlib import crc32

import pytest

from nebuli.store.store_url import StoreUrl
from tests.support.object_store import ObjectStore, object_store
from tests.support.postgres import Server, server
from tests.support.unsteady import Faults, Way, unsteady

_NUMBERS = count()


@pytest.fixture(scope="session")
def postgres() -> Iterator[Server]:
    """A server of PostgreSQL for all of them."""
    with server() as running:
        yield running


@pytest.fixture(scope="session")
def objects() -> Iterator[ObjectStore]:
    """A server of objects for all of them."""
    with object_store() as running:
        yield running


@pytest.fixture
def database(postgres: Server) -> StoreUrl:
    """A schema of its own, without a bucket."""
    return StoreUrl(postgres.url, f"test_{next(_NUMBERS)}", "s3://none")


@pytest.fixture
def bucket(objects: ObjectStore, monkeypatch: pytest.MonkeyPatch) -> str:
    """A bucket of its own, which the environment has the way to."""
    for name, value in objects.environment.items():
        monkeypatch.setenv(name, value)
    return objects.bucket(f"test-{next(_NUMBERS)}")


@pytest.fixture
def url(database: StoreUrl, bucket: str) -> StoreUrl:
    """A place that no other store has."""
    return replace(database, blobs=bucket)


_FAULTS = Faults(lost=0.02, unclear=0.03, slow=0.02, slow_s=0.05)
"""Of each question, where nothing else is said."""


@pytest.fixture
def unsteady_ways(
    request: pytest.FixtureRequest, postgres: Server, objects: ObjectStore
) -> Iterator[tuple[Way, Way]]:
    """To the database and to the objects: they fail now and then, by a seed that the test's name is."""
    seed = crc32(request.node.name.encode())
    objects_port = int(objects.endpoint.rpartition(":")[2])
    with (
        unsteady(postgres.port, _FAULTS, seed) as database,
        unsteady(objects_port, replace(_FAULTS, refused=0.03), seed) as bucket,
    ):
        yield database, bucket


@pytest.fixture
def unsteady_url(
    url: StoreUrl, postgres: Server, unsteady_ways: tuple[Way, Way], monkeypatch: pytest.MonkeyPatch
) -> StoreUrl:
    """A place of its own, by these ways."""
    database, bucket = unsteady_ways
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{bucket.port}")
    return replace(url, server=url.server.replace(str(postgres.port), str(database.port)))
