"""Rows that windows have dropped, as they were late or had no time: what is said of them at a query's end."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from nebuli.rpc.status import FragmentStatus
    from placement.stepped_plan import AnyFragment


class LateReport:
    """Follows the statuses of fragments, of which the last ones count."""

    def __init__(self) -> None:
        self._fragments: dict[str, tuple[AnyFragment, FragmentStatus]] = {}

    def report(self, fragment: AnyFragment, status: FragmentStatus) -> None:
        """How a fragment is now."""
        self._fragments[fragment.id] = fragment, status

    def forget(self) -> None:
        """The query begins again, from the beginning of its sources."""
        self._fragments.clear()

    def warnings(self) -> list[str]:
        """A sentence with each count, if there is one, and one for what nobody counts."""
        found = []
        dropped = [
            (rows, f"{rows:,} at operator {id_} ({fragment.id} at {fragment.node})")
            for fragment, status in self._fragments.values()
            for id_, rows in status.late.items()
        ]
        if dropped:
            total = sum(rows for rows, _ in dropped)
            found.append(
                f"late rows, which are not in the result: {total:,}, as their windows were over: "
                f"{', '.join(where for _, where in dropped)}; give the window more lateness, or have it write them "
                f"to a file (its key late)"
            )
        found += self._without_time()
        if unknown := uncounted(fragment for fragment, _ in self._fragments.values()):
            found.append(
                f"how many rows were late, or had no time, at {unknown} is not known: Spark drops them, and does not "
                f"report how many"
            )
        return found

    def _without_time(self) -> Iterator[str]:
        from nebuli.connectors.errors import fill_in_times, without_time
        from placement.plan import Fragment, window_times

        total, columns, where = 0, [], []
        for fragment, status in self._fragments.values():
            if not status.without_time:
                continue
            plan = fragment if isinstance(fragment, Fragment) else fragment.plan
            times = window_times(plan.operators)
            for id_, rows in status.without_time.items():
                total += rows
                columns.append(times[id_])
                where.append(f"{without_time(rows, times[id_], id_)} ({fragment.id} at {fragment.node})")
        if total:
            yield (
                f"rows without a time, which are not in the result: {total:,}, as they are in no window: "
                f"{', '.join(where)}; {fill_in_times(columns)}"
            )


def uncounted(fragments: Iterable[AnyFragment]) -> str:
    """The fragments whose windows are Spark's: the rows that these drop are not counted. Empty if there is none.

    Spark counts late rows after it has merged rows within its batches, which is no number of rows, and does not count
    those without a time.
    """
    from placement.plan import Fragment, WindowOperator

    return ", ".join(
        f"{fragment.id} at {fragment.node}"
        for fragment in fragments
        if isinstance(fragment, Fragment)
        and fragment.engine is not None
        and any(isinstance(operator, WindowOperator) for operator in fragment.operators)
    )
