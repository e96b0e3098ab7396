"""Certificates and the secret of a topology, as this process can use them."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typing import Self

    import netchannel
    from topology import Access, SecretPlace
    from topology.access import TlsFiles

__all__ = ["NO_TRUST", "Trust", "TrustUnusable"]


class TrustUnusable(Exception):
    """A secret or certificate that the topology names cannot be had; the message says which, where, and what to do."""


@dataclass(frozen=True, slots=True)
class Trust:
    """What a process shows to others. The secret is kept out of what is printed of it."""

    tls: netchannel.Tls | None = None
    secret: str | None = None

    def __repr__(self) -> str:
        return f"Trust(tls={self.tls!r}, secret={'none' if self.secret is None else 'given'})"

    @classmethod
    def of(cls, access: Access) -> Self:
        """Read the secret; certificates are read where they are used. Raises TrustUnusable."""
        return cls(
            None if access.tls is None else _files(access.tls),
            None if access.secret is None else _secret(access.secret),
        )


NO_TRUST = Trust()


def _files(tls: TlsFiles) -> netchannel.Tls:
    from netchannel.tls import Tls  # a command that needs no certificates starts in half the time without

    return Tls(tls.certificate, tls.key, tls.authority, tls.server_name)


def _secret(place: SecretPlace) -> str:
    if place.file is not None:
        try:
            lines = Path(place.file).read_text("utf-8").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            reason = getattr(error, "strerror", None) or "it is no UTF-8"
            raise TrustUnusable(
                f"the secret's file {place.file} cannot be read: {reason}; put the secret there, readable by this "
                f"user only"
            ) from error
        secret, where = (lines[0].strip() if lines else ""), f"the secret's file {place.file}"
    else:
        assert place.env is not None
        secret, where = os.environ.get(place.env, ""), f"the environment variable {place.env}"
    if not secret:
        raise TrustUnusable(f"{where} has no secret: put one there, the same for all workers and commands")
    return secret
