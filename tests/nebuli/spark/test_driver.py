"""The driver of a fragment, without Spark."""

from __future__ import annotations

import pytest

from nebuli.spark.driver import Driver
from nebuli.spark.driver_messages import DRAIN


class Query:
    """A query that ends without an exception, as one does whose session somebody has stopped."""

    def __init__(self, *, active: bool) -> None:
        self.isActive = active
        self.drained = False

    def processAllAvailable(self) -> None:  # noqa: N802 - Spark's name
        self.drained = True

    def awaitTermination(self) -> None:  # noqa: N802 - Spark's name
        self.isActive = False


def test_a_query_that_stops_before_its_input_has_ended_is_a_failure():
    """SP-ENG: it would publish a clean end."""
    with pytest.raises(RuntimeError, match="stopped before its input had ended"):
        Driver(None)._until_drained(Query(active=False))


def test_a_query_is_read_to_its_end_where_the_input_ends():
    driver, query = Driver(None), Query(active=True)
    driver.commands.put(DRAIN)
    driver._until_drained(query)
    assert query.drained
