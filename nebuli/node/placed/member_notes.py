"""The members of a circuit at workers: the one note of its coordinator that lists them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

from pydantic import BaseModel, ConfigDict

from nebuli.rpc.member_places import MemberPlace, Succession
from nebuli.store import StorageError
from nebuli.store.notes import Note, Notes, sealed, unsealed, why_damaged
from placement.stepped_plan import SteppedPlan

if TYPE_CHECKING:
    from nebuli.store.store_url import StorePlace
    from placement.stepped_plan import CoordinatorPlacement

__all__ = ["MemberNotes", "Whose"]

_MEMBERS = "members.json"
"""Not of one run, see `nebuli.steps.member.run_notes`: the circuit is theirs until it is others'."""


class Whose(BaseModel):
    """The members of a circuit: where they are, at ``addresses`` of nodes, and what divides rows over them.

    ``places`` are empty for those that the coordinator was registered with. At ``leaving`` are others, which are to be
    removed: earlier ones, or planned successors.
    """

    model_config = ConfigDict(frozen=True)

    circuit: str
    plan: SteppedPlan
    addresses: tuple[str, ...]
    places: tuple[MemberPlace, ...] = ()
    leaving: tuple[MemberPlace, ...] = ()

    @classmethod
    def registered(cls, fragment: CoordinatorPlacement) -> Self:
        """Those that a coordinator has first."""
        return cls(circuit=fragment.circuit, plan=fragment.plan, addresses=fragment.addresses)

    def followed_by(self, succession: Succession) -> Whose:
        """Once others have taken over."""
        return Whose(
            circuit=succession.circuit,
            plan=succession.members[0].plan,
            addresses=tuple(each.node for each in succession.members),
            places=succession.places,
            leaving=tuple(
                each
                for each in (*self.leaving, *(self.places or succession.before))
                if each not in succession.places
            ),
        )

    def without(self, gone: MemberPlace) -> Whose:
        """Once one that is leaving is not there any more."""
        return self.model_copy(update={"leaving": tuple(each for each in self.leaving if each != gone)})


class MemberNotes:
    """The note. The last write counts, even if a process dies before or after it."""

    def __init__(self, notes: Notes, whose: Whose) -> None:
        self.whose = whose
        self._note = Note(notes, _MEMBERS)

    @classmethod
    def at(cls, place: StorePlace, fragment: CoordinatorPlacement) -> Self:
        """That of a place. Raises StorageError, OSError."""
        notes = Notes(place)
        said = notes.read(_MEMBERS)
        if said is None:
            return cls(notes, Whose.registered(fragment))
        try:
            return cls(notes, Whose.model_validate(unsealed(said)))
        except ValueError as error:
            raise StorageError(
                f"{place}/{_MEMBERS} cannot be read ({why_damaged(error)}): restore it from a copy, or "
                f"unregister the query and register it again, which starts it from scratch"
            ) from error

    async def write(self, whose: Whose) -> None:
        """Have it so, durably. Raises OSError; after that, or a cancel, it is so or not."""
        await self._note.write(sealed(whose.model_dump(mode="json", by_alias=True)))
        self.whose = whose
