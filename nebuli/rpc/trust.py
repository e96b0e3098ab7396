"""Certificates and the secret of a topology, as this process can use them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from nebuli.access_files import TrustUnusable, secret_at, tls_of

if TYPE_CHECKING:
    from typing import Self

    import netchannel
    from topology import Access

__all__ = ["NO_TRUST", "Trust", "TrustUnusable"]


@dataclass(frozen=True, slots=True)
class Trust:
    """The credentials that a process shows to others. The secret is kept out of what is printed of it."""

    tls: netchannel.Tls | None = None
    secret: str | None = None

    def __repr__(self) -> str:
        return f"Trust(tls={self.tls!r}, secret={'none' if self.secret is None else 'given'})"

    @classmethod
    def of(cls, access: Access) -> Self:
        """Read the secret; certificates are read where they are used. Raises TrustUnusable."""
        return cls(
            None if access.tls is None else tls_of(access.tls),
            None if access.secret is None else secret_at(access.secret),
        )


NO_TRUST = Trust()
