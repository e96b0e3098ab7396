"""A query to a circuit that is served over HTTP."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping
    from ssl import SSLContext

    from nebuli.rpc.trust import Trust


def asked(url: str, sql: str, trust: Trust, within_s: float) -> tuple[int, Mapping[str, str], bytes]:
    """The status, headers and body of the answer, whose rows are an Arrow stream. Raises OSError, CertificateError."""
    headers = {"content-type": "application/json", "accept": "application/vnd.apache.arrow.stream"}
    if trust.secret is not None:
        headers["authorization"] = f"Bearer {trust.secret}"
    body = json.dumps({"sql": sql}).encode()
    request = urllib.request.Request(f"{url.rstrip('/')}/query", body, headers, method="POST")  # noqa: S310 - http only
    handlers: list[urllib.request.BaseHandler] = [
        urllib.request.ProxyHandler({})  # which reaches neither this machine nor its network
    ]
    if trust.tls is not None:
        handlers.append(urllib.request.HTTPSHandler(context=_context(trust)))
    try:
        with urllib.request.build_opener(*handlers).open(request, timeout=within_s) as answer:
            return answer.status, dict(answer.headers), answer.read()
    except urllib.error.HTTPError as error:
        return error.code, dict(error.headers), error.read()


def _context(trust: Trust) -> SSLContext:
    from netchannel.tls import Credentials

    assert trust.tls is not None
    return Credentials(trust.tls, "sender").context()
