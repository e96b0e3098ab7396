"""A store of objects like S3 of the tests' own, and its buckets."""

from __future__ import annotations

import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager

from moto.server import ThreadedMotoServer

from tests.support.ports import free_addresses


class ObjectStore:
    """A server on loopback that believes everybody."""

    def __init__(self, endpoint: str) -> None:
        self.endpoint = endpoint

    def bucket(self, name: str) -> str:
        """Make a bucket; a URL below it."""
        urllib.request.urlopen(urllib.request.Request(f"{self.endpoint}/{name}", method="PUT")).close()
        return f"s3://{name}/a/prefix"

    @property
    def environment(self) -> dict[str, str]:
        """What whoever reaches it has set."""
        return {
            "AWS_ENDPOINT_URL": self.endpoint,
            "AWS_REGION": "us-east-1",
            "AWS_ACCESS_KEY_ID": "tests",
            "AWS_SECRET_ACCESS_KEY": "tests",
        }


@contextmanager
def object_store() -> Iterator[ObjectStore]:
    """One that is there for a while."""
    host, _, port = free_addresses(1)[0].rpartition(":")
    server = ThreadedMotoServer(host, int(port), verbose=False)
    server.start()
    try:
        yield ObjectStore(f"http://{host}:{port}")
    finally:
        server.stop()
