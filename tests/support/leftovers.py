"""Commands that failed tests have left: closed, so that no later test fails for what an earlier one left open."""

from __future__ import annotations

from collections.abc import Generator

import pytest

from tests.support import starter


class ClosesLeftovers:
    """Closes what failed tests of a module have started and not ended, once the module's fixtures are gone.

    A test that passes is not helped: what it leaves open fails a later test, as any resource does.
    """

    def __init__(self) -> None:
        self._left: list[starter.Forked] = []

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_setup(self) -> Generator[None, None, None]:
        """Forget what earlier tests have started."""
        starter.started_by_test.clear()
        yield

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        """Keep what a failed test has started."""
        report = yield
        if report.failed:
            self._left += starter.started_by_test
            starter.started_by_test.clear()
        return report

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_teardown(
        self, item: pytest.Item, nextitem: pytest.Item | None
    ) -> Generator[None, None, None]:
        """Close what is left after the module's last test."""
        try:
            yield
        finally:
            if nextitem is None or nextitem.path != item.path:
                for each in self._left:
                    each.close()
                self._left.clear()
