"""Certificates for mutual TLS that are made for a run."""

from __future__ import annotations

import datetime
from pathlib import Path

import netchannel
from nebuli.cli.development import DevelopmentAuthority

HOST = "127.0.0.1"
VALID = datetime.timedelta(hours=1)


def issue(folder: Path) -> None:
    """Make an authority, and one certificate for both ends."""
    authority = DevelopmentAuthority(VALID)
    certificate, key = authority.issue(HOST, [HOST])
    files = {"authority.pem": authority.certificate, "node.pem": certificate, "node.key": key}
    for name, content in files.items():
        (folder / name).write_bytes(content)


def tls(folder: Path) -> netchannel.Tls:
    """What they are called."""
    return netchannel.Tls(folder / "node.pem", folder / "node.key", folder / "authority.pem")
