"""Rows that a query has dropped because their window was over: what is said of them at its end."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from nebuli.rpc.status import FragmentStatus
    from placement.stepped import AnyFragment


class LateRows:
    """Follows the statuses of fragments, of which the last ones count."""

    def __init__(self) -> None:
        self._fragments: dict[str, tuple[AnyFragment, Mapping[str, int]]] = {}

    def report(self, fragment: AnyFragment, status: FragmentStatus) -> None:
        """How a fragment is now."""
        self._fragments[fragment.id] = fragment, status.late

    def forget(self) -> None:
        """The query begins again, from the beginning of its sources."""
        self._fragments.clear()

    def warnings(self) -> list[str]:
        """A sentence with the count, if there is one, and one for what nobody counts."""
        found = []
        dropped = [
            (rows, f"{rows:,} at operator {id_} ({fragment.id} at {fragment.node})")
            for fragment, late in self._fragments.values()
            for id_, rows in late.items()
        ]
        if dropped:
            total = sum(rows for rows, _ in dropped)
            found.append(
                f"late rows, which are not in the result: {total:,}, as their windows were over: "
                f"{', '.join(where for _, where in dropped)}; give the window more lateness, or have it write them "
                f"to a file (its key late)"
            )
        if unknown := uncounted(fragment for fragment, _ in self._fragments.values()):
            found.append(
                f"how many rows were late at {unknown} is not known: Spark drops them, and does not say how many"
            )
        return found


def uncounted(fragments: Iterable[AnyFragment]) -> str:
    """The fragments whose windows Spark closes, so that nobody knows how many rows were late. Empty if there is none.

    Spark counts what its operators drop after rows were put together within their batches, which is no number of rows.
    """
    from placement.plan import Fragment, WindowOperator

    return ", ".join(
        f"{fragment.id} at {fragment.node}"
        for fragment in fragments
        if isinstance(fragment, Fragment)
        and fragment.engine is not None
        and not fragment.engine.bounded
        and any(isinstance(operator, WindowOperator) for operator in fragment.operators)
    )
