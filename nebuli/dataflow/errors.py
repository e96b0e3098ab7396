"""What goes wrong while a fragment computes.

::

    DataflowError     rows that an operator cannot compute with
    └── StateTooLarge   an operator would have to keep more than it may
"""

from __future__ import annotations


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


class StateTooLarge(DataflowError):
    """An operator's state holds ``held`` bytes, above its bound of ``bound``."""

    def __init__(self, operator: str, held: int, bound: int) -> None:
        self.held = held
        self.bound = bound
        super().__init__(
            f"its state holds {held:,} bytes, above its bound of {bound:,}: raise max_state_bytes of the operator, "
            f"or of its worker (--max-state-bytes); or keep less: drop rows and columns before it, or put a window "
            f"below it, whose state ends with the window",
            operator,
        )
