"""Nexmark's events: of fifty one is a person, three are auctions, and the others are bids.

As of its generator in Apache Beam, with its settings: ids that are dense and begin at 1000, categories from 10 to 14,
ten thousand events a second; half of the bids are for one auction of a hundred, three of four bids are by one person of
a hundred, and three of four auctions are one such person's. Random values come from numpy, and depend on the event's
number and a seed alone within a run. Names and descriptions are shorter than there, and nothing pads an event.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

Numbers = np.ndarray[Any, np.dtype[np.int64]]

PERSONS, AUCTIONS, CYCLE = 1, 3, 50
FIRST_ID, FIRST_CATEGORY, CATEGORIES = 1000, 10, 5
HOT_AUCTIONS, HOT_SELLERS, HOT_BIDDERS = 2, 4, 4
"""All but one in so many go to, or come from, hot ids."""
HOT_OF = 100
IN_FLIGHT, ACTIVE = 100, 1000
"""Auctions and persons, the newest, that the others are drawn from."""
PER_SECOND = 10_000
"""Events, of event time."""
BEGINNING = np.datetime64("2015-07-15T00:00:00", "us")
PORTION = 1 << 20
"""Events that are made at once."""
STREAMS = ("person", "auction", "bid")
"""In the order of their events in a cycle."""

STATES = {
    "Phoenix": "AZ",
    "Los Angeles": "CA",
    "San Francisco": "CA",
    "Boise": "ID",
    "Portland": "OR",
    "Bend": "OR",
    "Redmond": "WA",
    "Seattle": "WA",
    "Kent": "WA",
    "Cheyenne": "WY",
}
FIRST_NAMES = ("Peter", "Paul", "Luke", "John", "Saul", "Vicky", "Kate", "Julie", "Sarah", "Deiter", "Walter")
LAST_NAMES = ("Shultz", "Abrams", "Spencer", "White", "Bartels", "Walton", "Smith", "Jones", "Noris")
CHANNELS = ("Google", "Facebook", "Baidu", "Apple")


def events(
    count: int, seed: int = 0, streams: Sequence[str] = STREAMS, per_second: int = PER_SECOND
) -> Iterator[Mapping[str, pa.RecordBatch]]:
    """The first ``count`` events in portions, each as the rows of ``person``, ``auction`` and ``bid``, in order.

    Each of several ``streams`` has the same rows alone as together with the others.
    """
    gap_us = 1_000_000 // per_second
    for first in range(0, count, PORTION):
        numbers = np.arange(first, min(first + PORTION, count))
        kind = np.searchsorted((PERSONS, PERSONS + AUCTIONS), numbers % CYCLE, side="right")
        yield {
            name: rows(numbers[kind == place], np.random.default_rng((seed, first, place)), gap_us)
            for place, (name, rows) in enumerate(_ROWS.items())
            if name in streams
        }


def _last_person(numbers: Numbers) -> Numbers:
    """The newest at each event, from 0 on."""
    return numbers // CYCLE * PERSONS + np.minimum(numbers % CYCLE, PERSONS - 1)


def _last_auction(numbers: Numbers) -> Numbers:
    """The same of auctions; before the first one it is -1."""
    return numbers // CYCLE * AUCTIONS + np.minimum(numbers % CYCLE - PERSONS, AUCTIONS - 1)


def _some(newest: Numbers, among: int, random: np.random.Generator) -> Numbers:
    """For each event one of the newest."""
    return newest - random.integers(0, np.minimum(newest + 1, among))


def _mostly_hot(
    newest: Numbers, hot: Numbers, ratio: int, among: int, random: np.random.Generator
) -> Numbers:
    is_hot = random.integers(0, ratio, len(newest)) > 0
    return np.where(is_hot, hot, _some(newest, among, random))


def _persons(numbers: Numbers, random: np.random.Generator, gap_us: int) -> pa.RecordBatch:
    ids = _last_person(numbers) + FIRST_ID
    count = len(ids)
    first, last = (_chosen(names, count, random) for names in (FIRST_NAMES, LAST_NAMES))
    city = random.integers(0, len(STATES), count)
    cards = random.integers(0, 10_000, (count, 4)).tolist()
    cities, states = (np.array(list(each), dtype=object)[city] for each in (STATES, STATES.values()))
    return pa.record_batch(
        {
            "id": ids,
            "name": first + " " + last,
            "email_address": pa.array(
                f"{one.lower()}.{other.lower()}{id_}@example.com"
                for one, other, id_ in zip(first, last, ids.tolist(), strict=True)
            ),
            "credit_card": pa.array(" ".join(f"{part:04}" for part in card) for card in cards),
            "city": pa.array(cities, pa.string()),
            "state": pa.array(states, pa.string()),
            "date_time": _times(numbers, gap_us),
        }
    )


def _auctions(numbers: Numbers, random: np.random.Generator, gap_us: int) -> pa.RecordBatch:
    ids = _last_auction(numbers) + FIRST_ID
    newest = _last_person(numbers)
    seller = _mostly_hot(newest, newest // HOT_OF * HOT_OF, HOT_SELLERS, ACTIVE, random)
    initial = _prices(len(ids), random)
    expires = numbers + CYCLE * random.integers(1, 2 * IN_FLIGHT // AUCTIONS, len(ids))
    return pa.record_batch(
        {
            "id": ids,
            "item_name": pa.array(f"item {id_}" for id_ in ids.tolist()),
            "description": pa.array(f"as good as new, number {id_ * 7919 % 10_007}" for id_ in ids.tolist()),
            "initial_bid": initial,
            "reserve": initial + _prices(len(ids), random),
            "date_time": _times(numbers, gap_us),
            "expires": _times(expires, gap_us),
            "seller": seller + FIRST_ID,
            "category": FIRST_CATEGORY + random.integers(0, CATEGORIES, len(ids)),
        }
    )


def _bids(numbers: Numbers, random: np.random.Generator, gap_us: int) -> pa.RecordBatch:
    auction, person = _last_auction(numbers), _last_person(numbers)
    on = _mostly_hot(auction, auction // HOT_OF * HOT_OF, HOT_AUCTIONS, IN_FLIGHT, random)
    # The hot bidder is not the hot seller.
    by = _mostly_hot(person, np.minimum(person // HOT_OF * HOT_OF + 1, person), HOT_BIDDERS, ACTIVE, random)
    channel = _chosen(CHANNELS, len(numbers), random)
    return pa.record_batch(
        {
            "auction": on + FIRST_ID,
            "bidder": by + FIRST_ID,
            "price": _prices(len(numbers), random),
            "channel": pa.array(channel, pa.string()),
            "url": pa.array("https://www.nexmark.com/" + channel + "/item.htm", pa.string()),
            "date_time": _times(numbers, gap_us),
        }
    )


def _prices(count: int, random: np.random.Generator) -> Numbers:
    """In cents, as likely from 1 to 10 as from 100 000 to 1 000 000."""
    return np.round(10 ** (random.random(count) * 6) * 100).astype(np.int64)


def _chosen(names: tuple[str, ...], count: int, random: np.random.Generator) -> Any:
    return np.array(names, dtype=object)[random.integers(0, len(names), count)]


def _times(numbers: Numbers, gap_us: int) -> pa.Array:
    return pa.array(BEGINNING + numbers * np.timedelta64(gap_us, "us")).cast(pa.timestamp("us", "UTC"))


_ROWS = dict(zip(STREAMS, (_persons, _auctions, _bids), strict=True))
