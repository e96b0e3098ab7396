"""The order to a coordinator at a worker to replace its members by others."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic import BaseModel, ConfigDict

from placement.stepped_plan import MemberFragment

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["MemberPlace", "NotSucceeded", "Succession"]


class NotSucceeded(Exception):
    """Other members have not taken over, as far as is known; the message has the reason."""


class MemberPlace(BaseModel):
    """Where a member is asked for: the node, its worker's gRPC address, and the id that it has there."""

    model_config = ConfigDict(frozen=True)

    node: str
    grpc: str
    id: str


class Succession(BaseModel):
    """The ``members`` that are to follow at their ``places``, and the places of those ``before`` them."""

    model_config = ConfigDict(frozen=True)

    members: tuple[MemberFragment, ...]
    places: tuple[MemberPlace, ...]
    before: tuple[MemberPlace, ...]

    @property
    def circuit(self) -> str:
        """The name of their circuit in the ids of channels: no other members of the query have it."""
        return self.members[0].circuit

    @property
    def fragments(self) -> Mapping[MemberPlace, MemberFragment]:
        """Return the fragments for each place."""
        return dict(zip(self.places, self.members, strict=True))
