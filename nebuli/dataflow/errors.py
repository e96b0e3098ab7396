"""Errors of a circuit's computation, and of state from which it is to resume.

::

    DataflowError     rows with which an operator cannot compute
    └── StateTooLarge   an operator would have to keep more than it may
    StateUnusable     saved state from which a circuit cannot resume
    ├── CircuitChanged  it is another circuit's
    ├── FormatUnknown   another version of nebuli has saved it
    └── StateDamaged    it differs from the saved state
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable


class DataflowError(Exception):
    """Rows that an operator cannot compute with; ``operator`` is its id, once known.

    The message names the operator, what happened, and the expression or the value. After it the circuit's
    state is undefined: the circuit must not be used again.
    """

    def __init__(self, what: str, operator: str | None = None) -> None:
        self.what = what
        self.operator = operator
        super().__init__(f"operator {operator}: {what}" if operator else what)

    def at(self, operator: str) -> DataflowError:
        """The same error, naming the operator that it happened in."""
        return DataflowError(self.what, self.operator or operator)


_KEEP_LESS = (
    "raise max_state_bytes of the operator, or of its worker (--max-state-bytes); or keep less: drop rows and columns "
    "before it, or put a window before it, so that its state ends with each window"
)


class StateTooLarge(DataflowError):
    """An operator's state holds ``held`` bytes, above its bound of ``bound``; ``do`` is the remedy."""

    def __init__(self, operator: str, held: int, bound: int, do: str = _KEEP_LESS) -> None:
        self.held = held
        self.bound = bound
        super().__init__(f"its state holds {held:,} bytes, above its bound of {bound:,}: {do}", operator)


class StateUnusable(Exception):
    """Saved state from which a circuit cannot resume. The circuit is to be thrown away, the state is as it was."""


class FormatUnknown(StateUnusable):
    """The state has the format ``saved``, and this version reads ``known``."""

    def __init__(self, saved: object, known: Iterable[int]) -> None:
        super().__init__(
            f"the saved state has format {saved}, and this version of nebuli reads "
            f"{', '.join(map(str, sorted(known)))}: another version has saved it; continue with that version "
            f"or a newer one"
        )


class CircuitChanged(StateUnusable):
    """The state is of a circuit with another fingerprint: ``saved``, where this one's is ``running``."""

    def __init__(self, saved: str, running: str) -> None:
        self.saved = saved
        self.running = running
        super().__init__(
            f"the saved state is from a circuit with the fingerprint {saved}, but this circuit has the "
            f"fingerprint {running}: continue with the query and the number of members of the saved state; "
            "or start from scratch, without that state"
        )


class StateDamaged(StateUnusable):
    """The data under ``key`` in the table ``table`` is not what a circuit saved there."""

    def __init__(self, table: str, key: str, what: str) -> None:
        super().__init__(
            f"the saved state of {table} is damaged, at {key}: {what}; restore another checkpoint"
        )
