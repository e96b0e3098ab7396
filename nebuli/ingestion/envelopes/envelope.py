"""The contract of an envelope: what rows change in a collection. Pure, with a state that is kept in collections."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import pyarrow as pa

    from nebuli.ingestion.message_addresses import Messages


@dataclass(frozen=True, slots=True)
class Changes:
    """The changes at a time: Z-sets of the output and, by their names, of the states."""

    output: Sequence[pa.RecordBatch]
    states: Mapping[str, Sequence[pa.RecordBatch]] = field(default_factory=dict)


class Envelope(ABC):
    """Executed as if one time came after the other, at each of which it does all that can be done."""

    reads_output: ClassVar[bool] = False
    """True if its output is also a state of it."""

    schema: pa.Schema
    """The columns of the collection."""
    wants: pa.Schema
    """The columns of the rows that it takes, which messages are decoded to."""

    @property
    def states(self) -> Mapping[str, pa.Schema]:
        """The columns of each collection that its state is kept in, by its name."""
        return {}

    def rehydrate(self, output: pa.Table | None, states: Mapping[str, pa.Table]) -> None:  # noqa: B027
        """Begin with these contents, as Z-sets with every row once; ``output`` is there if it `reads_output`."""

    def check(self, messages: Messages) -> None:  # noqa: B027
        """Raise MessageInvalid for a row that cannot be taken, regardless of earlier rows."""

    def at(self, time: int) -> None:  # noqa: B027
        """Take the time of the next changes."""

    @abstractmethod
    def apply(self, messages: Mapping[str, Sequence[Messages]]) -> Changes:
        """Return the changes of the decoded messages of the next time.

        By raw source, in the order of parts and addresses.

        It follows from what came before and these alone. Raises MessageInvalid.
        """
