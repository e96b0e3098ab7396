"""Addresses of receivers: ``host:port`` for TCP, ``unix:/path``, and ``mem:name`` for this process' memory."""

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


@dataclass(frozen=True, slots=True)
class UnixAddress:
    """A socket in the file system of this machine."""

    path: str

    def __str__(self) -> str:
        return f"unix:{self.path}"


@dataclass(frozen=True, slots=True)
class MemoryAddress:
    """A name within this process."""

    name: str

    def __str__(self) -> str:
        return f"mem:{self.name}"


Address = TcpAddress | UnixAddress | MemoryAddress


def parse_address(text: str) -> Address:
    """Read ``host:port``, ``[v6]:port``, ``unix:/path`` or ``mem:name``. Raises ValueError with what was expected."""
    if text.startswith("mem:") and len(text) > len("mem:"):
        return MemoryAddress(text[len("mem:") :])
    if text.startswith("unix:") and len(text) > len("unix:"):
        return UnixAddress(text[len("unix:") :])
    if text in ("mem:", "unix:"):
        raise ValueError(f"the address {text!r} is not complete: expected mem:name or unix:/path")
    host, colon, port = text.rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        raise ValueError(f"the address {text!r} needs brackets around its IPv6 host: expected [host]:port")
    if not colon or not host:
        raise ValueError(f"the address {text!r} is not host:port, unix:/path or mem:name")
    if not (port.isascii() and port.isdigit() and int(port) <= 65535):
        raise ValueError(f"the address {text!r} has the port {port!r}: expected a number from 0 to 65535")
    return TcpAddress(host, int(port))
