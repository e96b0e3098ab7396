"""Nexmark's queries in pathway: ``python on_pathway.py QUERY FOLDER RESULT STATE``, in an environment that has pathway.

Event time is a number of microseconds, and nothing is called ``id``, which pathway's own rows have. What comes out are
changes, in a CSV file. It keeps its input; to keep the states of operators instead it wants a licence.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import pathway as pw

SECOND = 1_000_000


class Person(pw.Schema):  # type: ignore[misc] # it is not installed where types are checked
    """Who they are."""

    person: int
    name: str
    city: str
    state: str
    at: int


class Auction(pw.Schema):  # type: ignore[misc] # as above
    """What is for sale."""

    auction: int
    seller: int
    category: int
    at: int
    expires: int


class Bid(pw.Schema):  # type: ignore[misc] # as above
    """What is bid."""

    auction: int
    bidder: int
    price: int
    at: int


def q1(read: Callable[[str, Any], Any]) -> Any:
    """Currency conversion."""
    bid = read("bid", Bid)
    return bid.select(pw.this.auction, pw.this.bidder, price=0.908 * pw.this.price, at=pw.this.at)


def q3(read: Callable[[str, Any], Any]) -> Any:
    """Local item suggestion."""
    auction = read("auction", Auction).filter(pw.this.category == 10)
    person = read("person", Person).filter(
        (pw.this.state == "OR") | (pw.this.state == "ID") | (pw.this.state == "CA")
    )
    joined = auction.join(person, auction.seller == person.person)
    return joined.select(person.name, person.city, person.state, auction.auction)


def q4(read: Callable[[str, Any], Any]) -> Any:
    """Average price for a category."""
    auction, bid = read("auction", Auction), read("bid", Bid)
    both = auction.join(bid, auction.auction == bid.auction).select(
        auction.auction,
        auction.category,
        begins=auction.at,
        expires=auction.expires,
        price=bid.price,
        at=bid.at,
    )
    in_time = both.filter((pw.this.at >= pw.this.begins) & (pw.this.at <= pw.this.expires))
    winning = in_time.groupby(pw.this.auction, pw.this.category).reduce(
        pw.this.category, final=pw.reducers.max(pw.this.price)
    )
    return winning.groupby(pw.this.category).reduce(pw.this.category, price=pw.reducers.avg(pw.this.final))


def q5(read: Callable[[str, Any], Any]) -> Any:
    """Hot items."""
    bid = read("bid", Bid)
    window = pw.temporal.sliding(hop=2 * SECOND, duration=10 * SECOND, origin=0)
    bids = bid.windowby(bid.at, window=window, instance=bid.auction).reduce(
        auction=pw.this._pw_instance,  # noqa: SLF001 - its documentation's name
        window_start=pw.this._pw_window_start,  # noqa: SLF001 - the same
        num=pw.reducers.count(),
    )
    most = bids.groupby(pw.this.window_start).reduce(pw.this.window_start, num=pw.reducers.max(pw.this.num))
    joined = bids.join(most, bids.window_start == most.window_start, bids.num == most.num)
    return joined.select(bids.window_start, bids.num, bids.auction)


def q8(read: Callable[[str, Any], Any]) -> Any:
    """New users."""
    person, auction = read("person", Person), read("auction", Auction)
    window = pw.temporal.tumbling(duration=10 * SECOND, origin=0)
    joined = person.window_join(
        auction, person.at, auction.at, window, person.person == auction.seller
    ).select(
        person.person,
        person.name,
        window_start=pw.this._pw_window_start,  # noqa: SLF001 - as above
    )
    return joined.groupby(pw.this.person, pw.this.name, pw.this.window_start).reduce(
        pw.this.person, pw.this.name, pw.this.window_start
    )


def main(query: str, folder: str, result: str, state: str) -> None:
    """Read the files to their end, and write what comes out."""

    def read(stream: str, schema: Any) -> Any:
        return pw.io.csv.read(f"{folder}/{stream}.csv", schema=schema, mode="static", name=stream)

    pw.io.csv.write({"q1": q1, "q3": q3, "q4": q4, "q5": q5, "q8": q8}[query](read), result)
    keeping = pw.persistence.Config(
        pw.persistence.Backend.filesystem(state),
        snapshot_interval_ms=10_000,
    )
    pw.run(monitoring_level=pw.MonitoringLevel.NONE, persistence_config=keeping)


if __name__ == "__main__":
    main(*sys.argv[1:])
