"""What goes wrong while a fragment computes."""

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
