"""Blocking TLS sockets of Python's: mutual TLS 1.3 and nothing else, over what a raw socket does."""

from __future__ import annotations

import socket
import ssl
import tempfile
from collections.abc import Callable
from pathlib import Path

from benchmarks.certificates import HOST, issue, tls
from benchmarks.work import Result, Work

from . import raw


def _context(folder: Path, protocol: int) -> ssl.SSLContext:
    files = tls(folder)
    context = ssl.SSLContext(protocol)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_cert_chain(files.certificate, files.key)
    context.load_verify_locations(files.authority)
    return context


def receive(work: Work, ready: Callable[[str], None]) -> Result:
    """Take one connection; say where the certificates are, too."""
    with tempfile.TemporaryDirectory() as directory, socket.create_server((HOST, 0)) as server:
        issue(Path(directory))
        context = _context(Path(directory), ssl.PROTOCOL_TLS_SERVER)
        ready(f"{HOST}:{server.getsockname()[1]} {directory}")
        connection, _ = server.accept()
        with context.wrap_socket(connection, server_side=True) as encrypted:
            result = raw.received(work, encrypted)
            encrypted.unwrap()  # TLS has an end of its own, which both sides say
            return result


def send(work: Work, address: str) -> Result:
    """Dial it."""
    address, _, directory = address.partition(" ")
    host, port = address.split(":")
    context = _context(Path(directory), ssl.PROTOCOL_TLS_CLIENT)
    with (
        socket.create_connection((host, int(port))) as connection,
        context.wrap_socket(connection, server_hostname=host) as encrypted,
    ):
        result = raw.sent(work, encrypted)
        encrypted.unwrap()
        return result
