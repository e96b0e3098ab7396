"""Certificates and secrets at their paths in a topology, as this process can use them."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import netchannel
    from topology import SecretPlace
    from topology.access import TlsFiles

__all__ = ["TrustUnusable", "secret_at", "tls_of"]


class TrustUnusable(Exception):
    """A secret or certificate that the topology names is not available.

    The message has its name, its place, and the remedy.
    """


def tls_of(files: TlsFiles) -> netchannel.Tls:
    """The files for channels, which read them where they are used."""
    from netchannel.tls import Tls  # a command that needs no certificates starts in half the time without

    return Tls(files.certificate, files.key, files.authority, files.server_name)


def secret_at(place: SecretPlace) -> str:
    """Read a secret. Raises TrustUnusable if there is none."""
    if place.file is not None:
        try:
            lines = Path(place.file).read_text("utf-8").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            reason = getattr(error, "strerror", None) or "it is not UTF-8"
            raise TrustUnusable(
                f"the secret's file {place.file} cannot be read: {reason}; put the secret there, readable by this "
                f"user only"
            ) from error
        secret, where = (lines[0].strip() if lines else ""), f"the secret's file {place.file}"
    else:
        assert place.env is not None
        secret, where = os.environ.get(place.env, ""), f"the environment variable {place.env}"
    if not secret:
        raise TrustUnusable(
            f"{where} has no secret: put the secret there, the same for all workers and commands"
        )
    return secret
