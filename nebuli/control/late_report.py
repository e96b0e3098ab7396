"""The report at a query's end of the rows that windows dropped, as they were late or had no time."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from nebuli.rpc.status import FragmentStatus
    from placement.stepped_plan import AnyFragment


class LateReport:
    """The last statuses of all fragments, and the warnings that follow from them."""

    def __init__(self) -> None:
        self._fragments: dict[str, tuple[AnyFragment, FragmentStatus]] = {}

    def report(self, fragment: AnyFragment, status: FragmentStatus) -> None:
        """Record the status of a fragment."""
        self._fragments[fragment.id] = fragment, status

    def forget(self) -> None:
        """Drop all statuses: the query starts again from the beginning of its sources."""
        self._fragments.clear()

    def warnings(self) -> list[str]:
        """Return a sentence for each count of dropped rows, and one for windows that do not count."""
        found = []
        dropped = [
            (rows, f"{rows:,} at operator {id_} ({fragment.id} at {fragment.node})")
            for fragment, status in self._fragments.values()
            for id_, rows in status.late.items()
        ]
        if dropped:
            total = sum(rows for rows, _ in dropped)
            found.append(
                f"{total:,} late {rows_are(total)} missing from the result, because their windows "
                f"had closed: {', '.join(where for _, where in dropped)}; increase the window's "
                f"lateness, or write late rows to a file (the window's 'late')"
            )
        found += self._without_time()
        if unknown := uncounted(fragment for fragment, _ in self._fragments.values()):
            found.append(
                f"the number of rows dropped at {unknown} as late or without a time is unknown: Spark does "
                "not report it"
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
                f"{total:,} {rows_are(total)} missing from the result because they have no time: "
                f"{', '.join(where)}; {fill_in_times(columns)}"
            )


def uncounted(fragments: Iterable[AnyFragment]) -> str:
    """List the fragments whose windows Spark computes, which do not count dropped rows. Empty if there is none.

    Spark counts late rows after it has merged rows within its batches, so its count is not a number of rows. It does
    not count rows without a time.
    """
    from placement.plan import Fragment, WindowOperator

    return ", ".join(
        f"{fragment.id} at {fragment.node}"
        for fragment in fragments
        if isinstance(fragment, Fragment)
        and fragment.engine is not None
        and any(isinstance(operator, WindowOperator) for operator in fragment.operators)
    )


def rows_are(count: int) -> str:
    """Return the noun and the verb for a count of rows."""
    return "row is" if count == 1 else "rows are"
