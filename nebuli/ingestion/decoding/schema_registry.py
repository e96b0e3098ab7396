"""A client of schema registries, which map the number before an Avro message to its schema."""

from __future__ import annotations

import asyncio
import json
import time
from http.client import HTTPException
from typing import Any
from urllib.error import HTTPError
from urllib.parse import quote, urlsplit
from urllib.request import Request, urlopen

from nebuli.ingestion.errors import MessageInvalid, SourceAway, SourceUnusable

_ANSWER_S = 10.0
"""A registry answers from memory; after a longer wait a retry is better."""
_MAX_BYTES = 16 << 20
_TOO_MANY_REQUESTS, _SERVER_ERRORS = 429, 500


class SchemaRegistry:
    """The one at a ``url``. Each call opens a connection of its own, in a thread, and ends by its deadline."""

    def __init__(self, url: str, *, source: str) -> None:
        if urlsplit(url).scheme not in ("http", "https"):
            raise SourceUnusable(
                f"{source}: the registry {url!r} is not an address; expected one such as http://host:8081"
            )
        self._url = url.rstrip("/")
        self._source = source

    async def schema(self, number: int, place: str) -> bytes:
        """The text of a schema; or, where it refers to others, an object with its text, and theirs before it.

        Raises MessageInvalid with the ``place`` of the message if there is none of that number, SourceAway if there is
        no answer in time.
        """
        deadline = time.monotonic() + _ANSWER_S
        return await asyncio.to_thread(self._schema, number, place, deadline)

    def _schema(self, number: int, place: str, deadline: float) -> bytes:
        found = self._get(f"/schemas/ids/{number}", place, deadline)
        text = self._text(found, f"schema {number}")
        references: dict[str, str] = {}
        self._refer(found, references, place, deadline)
        if not references:
            return text.encode()
        return json.dumps({"references": list(references.values()), "schema": text}).encode()

    def _refer(self, found: dict[str, Any], references: dict[str, str], place: str, deadline: float) -> None:
        """Add the texts of referenced schemas, each after its own references."""
        for each in found.get("references") or ():
            subject, version = str(each.get("subject")), str(each.get("version"))
            key = f"{subject}/{version}"
            if key in references:
                continue
            path = f"/subjects/{quote(subject, safe='')}/versions/{quote(version, safe='')}"
            other = self._get(path, place, deadline)
            self._refer(other, references, place, deadline)
            references[key] = self._text(other, f"version {version} of {subject}")

    def _text(self, found: dict[str, Any], what: str) -> str:
        kind, text = found.get("schemaType", "AVRO"), found.get("schema")
        if kind != "AVRO" or not isinstance(text, str):
            raise SourceUnusable(f"{self._source}: {what} of {self._url} has the type {kind}; expected AVRO")
        return text

    def _get(self, path: str, place: str, deadline: float) -> dict[str, Any]:
        accepts = {"Accept": "application/vnd.schemaregistry.v1+json, application/json"}
        request = Request(self._url + path, headers=accepts)  # noqa: S310 - it is http, as was looked at
        try:
            with urlopen(request, timeout=_left(deadline)) as answer:  # noqa: S310 - as above
                body = b""
                while piece := answer.read1(1 << 16):
                    body += piece
                    _left(deadline)
                    if len(body) > _MAX_BYTES:
                        raise self._unusable(path, f"more than {_MAX_BYTES:,} bytes")
            found = json.loads(body)
        except HTTPError as error:
            with error:
                code = error.code
            if code == 404:
                raise MessageInvalid(
                    f"{place}: {self._url}{path} does not exist (404); register the schema, or give the "
                    "registry that has it"
                ) from None
            if code < _SERVER_ERRORS and code != _TOO_MANY_REQUESTS:
                raise self._unusable(path, f"status {code}") from None
            raise SourceAway(
                f"{self._source}: the registry answers {self._url}{path} with status {code}"
            ) from None
        except (OSError, HTTPException) as error:
            raise SourceAway(
                f"{self._source}: the registry does not answer {self._url}{path} within {_ANSWER_S:g} s: {error}"
            ) from error
        except ValueError:
            raise self._unusable(path, "something other than JSON") from None
        if not isinstance(found, dict):
            raise self._unusable(path, "JSON that is not an object")
        return found

    def _unusable(self, path: str, what: str) -> SourceUnusable:
        return SourceUnusable(
            f"{self._source}: {self._url}{path} returns {what}; expected a registry of schemas"
        )


def _left(deadline: float) -> float:
    left = deadline - time.monotonic()
    if left <= 0:
        raise TimeoutError("timed out")
    return left
