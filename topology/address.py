"""Addresses: ``host:port``, with an IPv6 host in brackets."""

from __future__ import annotations

import re
from ipaddress import AddressValueError, IPv6Address

_HOST_PORT = re.compile(r"(?P<host>\[[^\[\]]*\]|[^:\[\]]*):(?P<port>[^:]*)")
_NAME = re.compile(r"[A-Za-z0-9_]([A-Za-z0-9_.-]{0,251}[A-Za-z0-9_])?")


def check_address(text: str) -> str:
    """Return ``text`` if it is an address; ``ValueError`` names the expected form."""
    match = _HOST_PORT.fullmatch(text)
    if match is None:
        raise ValueError(f"expected host:port, with an IPv6 host in brackets, got {text!r}")
    host, port = match["host"], match["port"]
    if not (port.isascii() and port.isdigit() and len(port) <= 5 and 1 <= int(port) <= 65535):
        raise ValueError(f"expected a port from 1 to 65535 in {text!r}, got {port!r}")
    if not _is_host(host):
        raise ValueError(f"expected a host name or an IP address before the port in {text!r}, got {host!r}")
    return text


def _is_host(host: str) -> bool:
    if not host.startswith("["):
        return _NAME.fullmatch(host) is not None
    try:
        IPv6Address(host[1:-1])
    except AddressValueError:
        return False
    return True
