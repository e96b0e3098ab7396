"""Where a store is: in a folder of this machine, or by a URL, in a schema of a database and a bucket of objects."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import SplitResult, unquote, urlsplit

from xxhash import xxh3_64_hexdigest

from nebuli.store.errors import ExtraMissing, StoreUrlInvalid

if TYPE_CHECKING:
    import os
    from collections.abc import Sequence

_EXAMPLE = "postgresql://USER@HOST/DATABASE?schema=NAME&blobs=s3://BUCKET/PREFIX"
_IS_URL = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://")
_SCHEMES = ("postgresql", "postgres")
_SCHEMA = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,39}")
_BLOBS = re.compile(r"s3://[a-z0-9][a-z0-9.-]*(/[A-Za-z0-9!_.*'()/=-]*)?")
_PARAMETER = re.compile(r"[a-z_]{1,40}")
_PLAIN = re.compile(r"[A-Za-z0-9_./-]+")
_MAX_SCHEMA_BYTES = 63
"""PostgreSQL cuts longer names off, without a word, and two that begin alike would be one."""


@dataclass(frozen=True, slots=True, repr=False)
class StoreUrl:
    """A store without a disk: what is in which order in a ``schema`` of the ``server``, and all else in ``blobs``.

    ``server`` is a URL of libpq's, which may have a password in it: it is not to be shown. As text it has none.
    """

    server: str
    schema: str
    blobs: str

    def __str__(self) -> str:
        return f"{self.database}?schema={self.schema}&blobs={self.blobs}"

    __repr__ = __str__

    @property
    def database(self) -> str:
        """The database, as it may be shown."""
        parts = urlsplit(self.server)
        user, at, hosts = parts.netloc.rpartition("@")
        return _joined(parts._replace(netloc=user.partition(":")[0] + at + hosts), "")

    def __truediv__(self, name: str) -> StoreUrl:
        """One below it, as a folder is: with a schema of its own, which has a digest of what would not go into it."""
        schema = f"{self.schema}/{name}"
        if len(schema) > _MAX_SCHEMA_BYTES or not _PLAIN.fullmatch(name):
            schema = f"{self.schema}/{xxh3_64_hexdigest(name.encode())}"
        return replace(self, schema=schema)


StorePlace = Path | StoreUrl
"""A folder of this machine, or a URL."""


def store_place(text: str | os.PathLike[str]) -> StorePlace:
    """Parse a path or a URL. Raises StoreUrlInvalid, ExtraMissing."""
    if isinstance(text, str) and (found := _IS_URL.match(text)):
        if found[1] not in _SCHEMES:
            raise StoreUrlInvalid(
                f"{found[1]}:// cannot hold a store: give a folder by its path, or {_EXAMPLE}"
            )
        return _parsed(text)
    if text == "":  # as of an unset variable, which must not stand for the working directory
        raise StoreUrlInvalid(
            f"the place of a store is an empty string: give a folder by its path, or {_EXAMPLE}"
        )
    return Path(text)


def _parsed(text: str) -> StoreUrl:
    _check_extras()
    parts = _parts(text)
    pairs = [pair.partition("=") for pair in parts.query.split("&") if pair]
    own = {key: unquote(value) for key, _, value in pairs if key in ("schema", "blobs")}
    rest = [(key, value) for key, _, value in pairs if key not in own]
    server = _joined(parts, "&".join(f"{key}={value}" for key, value in rest))
    url = StoreUrl(server, own.get("schema", ""), own.get("blobs", "").rstrip("/"))
    _check_server(server, [key for key, _ in rest])
    if "schema" not in own:
        raise StoreUrlInvalid(f"{url.database} names no schema: add schema=NAME, with an unused name")
    if not _SCHEMA.fullmatch(url.schema):
        raise StoreUrlInvalid(
            f"schema={url.schema} is not valid: use at most 40 letters, digits and _, not beginning with a digit"
        )
    if "blobs" not in own:
        raise StoreUrlInvalid(f"{url.database} names no blobs: add blobs=s3://BUCKET/PREFIX")
    if not _BLOBS.fullmatch(url.blobs):
        raise StoreUrlInvalid(
            "blobs= must be s3://BUCKET/PREFIX, without a user, a password or parameters: those are taken "
            "from the "
            "environment (AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_REGION, AWS_ENDPOINT_URL)"
        )
    return url


def _parts(text: str) -> SplitResult:
    """Its parts. Messages do not repeat the invalid part: it may be a part of a password."""
    parts = urlsplit(text)
    if parts.fragment or parts.netloc.count("@") > 1 or "@" in parts.path + parts.query:
        raise StoreUrlInvalid(
            "the URL of the store has a misplaced #, ? or @: in a user or a password write # as %23, ? as "
            "%3F, @ as %40 and / as %2F; or give the password in PGPASSWORD or ~/.pgpass"
        )
    return parts


def _joined(parts: SplitResult, query: str) -> str:
    """As libpq reads it, which takes one without a host, too."""
    return f"{parts.scheme}://{parts.netloc}{parts.path}{query and f'?{query}'}"


def _check_server(server: str, parameters: Sequence[str]) -> None:
    """Check that libpq can read it."""
    import psycopg

    known = {each.keyword.decode() for each in psycopg.pq.Conninfo.get_defaults()}
    for each in parameters:
        if each not in known:
            named = each if _PARAMETER.fullmatch(each) else "one"
            raise StoreUrlInvalid(
                f"the URL of the store has a parameter that neither nebuli nor libpq knows "
                f"({named}): use only schema, blobs, and the parameters of libpq (such as sslmode and "
                f"connect_timeout)"
            )
    try:
        ports = str(psycopg.conninfo.conninfo_to_dict(server).get("port", ""))
        [int(port) for port in ports.split(",") if port]
    except (psycopg.Error, ValueError):
        raise StoreUrlInvalid(
            f"the URL of the store cannot be read by libpq: it has to be like {_EXAMPLE}, with %-escapes for "
            f"special characters in a user, a password or a database"
        ) from None


def _check_extras() -> None:
    lacking = [name for name in ("psycopg", "obstore") if find_spec(name) is None]
    if lacking:
        raise ExtraMissing("a store in PostgreSQL", lacking, "postgres,objects")
