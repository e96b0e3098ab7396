"""The flights query in pathway: ``python flights_on_pathway.py FOLDER RESULT``, in an environment that has pathway."""

from __future__ import annotations

import sys

import pathway as pw


class Flights(pw.Schema):  # type: ignore[misc] # it is not installed where types are checked
    """What is read of the flights; ``NA`` is null."""

    origin: str
    dep_delay: str
    time_hour: str


class Weather(pw.Schema):  # type: ignore[misc] # as above
    """What is read of the weather."""

    origin: str
    wind_speed: str
    time_hour: str


def main(folder: str, result: str) -> None:
    """Read both files to their end, and write the table."""
    flights = pw.io.csv.read(f"{folder}/flights.csv", schema=Flights, mode="static")
    weather = pw.io.csv.read(f"{folder}/weather.csv", schema=Weather, mode="static")
    delays = flights.filter(flights.dep_delay != "NA").select(
        pw.this.origin, pw.this.time_hour, delay=pw.this.dep_delay.str.parse_int()
    )
    speeds = weather.filter(weather.wind_speed != "NA").select(
        pw.this.origin, pw.this.time_hour, speed=pw.this.wind_speed.str.parse_float()
    )
    speeds = speeds.filter(speeds.speed < 200)
    fresh = pw.if_else(speeds.speed < 24, "16-24 mph", "24+ mph")
    wind = pw.if_else(speeds.speed < 8, "00-08 mph", pw.if_else(speeds.speed < 16, "08-16 mph", fresh))
    winds = speeds.select(pw.this.origin, pw.this.time_hour, wind=wind)
    joined = delays.join(winds, delays.origin == winds.origin, delays.time_hour == winds.time_hour).select(
        delays.origin, winds.wind, delays.delay
    )
    table = joined.groupby(joined.origin, joined.wind).reduce(
        joined.origin,
        joined.wind,
        flights=pw.reducers.count(),
        mean_delay=pw.reducers.avg(joined.delay),
        worst_delay=pw.reducers.max(joined.delay),
    )
    pw.io.csv.write(table, result)
    pw.run(monitoring_level=pw.MonitoringLevel.NONE)


if __name__ == "__main__":
    main(*sys.argv[1:])
