"""How late an event loop is, measured by tasks that had to wait for it anyway: no timer runs for this alone."""

from __future__ import annotations

WINDOW_S = 60.0


class Lag:
    """The last lateness that was noticed, and the greatest of the last minute (two at most), in seconds."""

    def __init__(self) -> None:
        self.last_s = 0.0
        self._greatest_s = 0.0  # of the window that began last
        self._before_s = 0.0  # of the one before
        self._began = 0.0

    def note(self, late_s: float, now: float) -> None:
        """Note that something ran ``late_s`` after it was due."""
        if (age := now - self._began) >= WINDOW_S:
            self._before_s = self._greatest_s if age < 2 * WINDOW_S else 0.0
            self._greatest_s, self._began = 0.0, now
        self.last_s = late_s
        self._greatest_s = max(self._greatest_s, late_s)

    def greatest_s(self, now: float) -> float:
        """The greatest lag of late. Reading it forgets nothing, so that any number of readers see the same."""
        age = now - self._began
        if age >= 2 * WINDOW_S:
            return 0.0
        return self._greatest_s if age >= WINDOW_S else max(self._greatest_s, self._before_s)
