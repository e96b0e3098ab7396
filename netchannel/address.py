"""Addresses of TCP: ``host:port``. Those of other transports begin with a scheme and are their own business."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class TcpAddress:
    """A TCP address. ``port`` 0 stands for any free port, and is only good for listening."""

    host: str
    port: int

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"


def parse_address(text: str) -> TcpAddress:
    """Read ``host:port`` or ``[v6]:port``. Raises ValueError with what was expected."""
    if "//" in text:
        raise ValueError(f"the address {text!r} is a URL: expected host:port, unix:/path or mem:name")
    host, colon, port = text.rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        raise ValueError(f"the address {text!r} needs brackets around its IPv6 host: expected [host]:port")
    if not colon or not host:
        raise ValueError(f"the address {text!r} is not host:port, unix:/path or mem:name")
    if not (port.isascii() and port.isdigit() and int(port) <= 65535):
        raise ValueError(
            f"the address {text!r} has the port {port!r}: expected a number from 0 to 65535 as port, or an "
            f"address with a scheme that is registered in this process"
        )
    return TcpAddress(host, int(port))
