"""The kit that every reader of a source has to pass. Needs pytest."""

from __future__ import annotations

try:
    import pytest
except ImportError as error:
    raise ImportError("nebuli.ingestion.testing needs pytest: pip install pytest") from error

pytest.register_assert_rewrite(f"{__name__}.reader_kit")

from .reader_kit import Expected, ReaderConformance  # noqa: E402 - only now are its asserts explained when they fail

__all__ = ["Expected", "ReaderConformance"]
