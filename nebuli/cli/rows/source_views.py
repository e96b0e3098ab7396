"""The printed form of ingested sources."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nebuli.cli.placement_text import table
from nebuli.cli.rows.times import instant

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from nebuli.ingestion.source_status import RawSourceStatus, SourceStatus

_UNKNOWN = "-"
_PARTS = 5
"""The number of parts of a raw source that are shown, with the highest lag first."""
_STATE_LENGTH = 80
_AGES = ((86_400, "d"), (3600, "h"), (60, "min"))


def age(ms: int) -> str:
    """Format a duration."""
    seconds = max(ms, 0) / 1000
    for size, unit in _AGES:
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.1f} s"


def listed(found: Sequence[SourceStatus], now: int) -> str:
    """Format sources as a table."""
    header = ("source", "version", "rendition", "phase", "instances", "complete up to", "ago", "lag", "state")
    lines = [
        (
            each.name,
            str(each.version),
            each.active or _UNKNOWN,
            each.phase,
            f"{_running(each, now)} of {each.replicas}",
            *_upper(each.upper, now),
            ", ".join(_lag(raw) for raw in each.raw_sources.values()) or _UNKNOWN,
            _state(each),
        )
        for each in found
    ]
    return table(header, lines)


def shown(found: SourceStatus, now: int, start: str) -> str:
    """Format a source in full. ``start`` is the command that starts it."""
    return "\n".join(_lines(found, now, start))


def undecoded(found: SourceStatus) -> str:
    """Format the number of undecoded messages, with the collection that lists them."""
    messages = "message" if found.undecoded == 1 else "messages"
    return f"not decoded: {found.undecoded:,} {messages}, with places and reasons in collection {found.name}.errors"


def _lines(found: SourceStatus, now: int, start: str) -> Iterator[str]:
    upper, ago = _upper(found.upper, now)
    said = f"source {found.name}, {found.phase}, version {found.version}, rendition {found.rendition}"
    if found.active != found.rendition:
        said += (
            f"; until it has caught up, the current rendition of its collection is {found.active or _UNKNOWN}"
        )
    yield said
    yield f"complete up to {upper}" + (f", {ago} ago" if found.upper else ": nothing is ingested yet")
    if found.error is not None:
        yield f"held up: {found.error}"
    if found.undecoded:
        yield undecoded(found)
    if found.raw_sources:
        yield f"recorded up to {_upper(found.remap_upper, now)[0]}"
    for name, raw in found.raw_sources.items():
        yield ""
        yield from _raw_source(name, raw)
    yield ""
    yield from _instances(found, now, start)
    yield from _last_error(found, now)
    yield ""
    yield table(
        ("hold", "collection", "since", "expires"),
        [
            (each.name, each.collection, instant(each.time), _expiry(each.expires))
            for each in sorted(found.holds, key=lambda each: (each.time, each.collection, each.name))
        ],
    )


def _raw_source(name: str, raw: RawSourceStatus) -> Iterator[str]:
    yield f"{name}: {raw.reads or _UNKNOWN}, lag {_lag(raw)}"
    if raw.error is not None:
        yield f"  its end is unknown: {raw.error}"
    ends = raw.ends or {}
    parts = sorted(
        {*raw.addresses, *ends},
        key=lambda part: (raw.addresses.get(part, 0) - ends.get(part, 0), part),
    )
    lines = [
        (part or _UNKNOWN, str(raw.addresses.get(part, _UNKNOWN)), str(ends.get(part, _UNKNOWN)))
        for part in parts[:_PARTS]
    ]
    if lines:
        yield table(("part", "recorded", "available"), lines)
    if len(parts) > _PARTS:
        yield f"and {len(parts) - _PARTS} more"


def _instances(found: SourceStatus, now: int, start: str) -> Iterator[str]:
    for supervisor in found.supervisors:
        yield f"supervisor: process {supervisor.pid} of {supervisor.host}, seen {age(now - supervisor.at)} ago"
    if not _running(found, now):
        why = f"but {found.replicas} should" if found.replicas else "because the source was scaled to 0"
        yield f"no instance runs, {why}; start it with: {start}"
    if _running(found, now) and not found.supervisors:
        yield f"no supervisor runs to restart an instance; start one with: {start}"
    there = [each for each in found.instances if each.health != "ended"]
    if there:
        lines = [
            (
                *(each.instance, each.health, str(each.pid), each.host),
                f"{age(now - each.at)} ago",
                instant(each.upper) if each.upper else _UNKNOWN,
            )
            for each in there
        ]
        yield table(("instance", "health", "pid", "host", "seen", "upper"), lines)


def _last_error(found: SourceStatus, now: int) -> Iterator[str]:
    """Format the last error, unless it still holds the source up and was printed."""
    if found.last_error is None or found.last_error == found.error:
        return
    held = {each.error for each in found.instances if each.is_living(now)}
    is_over = found.health is not None and found.last_error not in held
    at = found.last_error_at or 0
    yield ""
    yield f"last error, {age(now - at)} ago, at {instant(at)}{', resolved' if is_over else ''}:"
    yield f"  {found.last_error}"


def _state(found: SourceStatus) -> str:
    """Format a source's state in a few words."""
    if found.error is not None:
        said = f"held up: {found.error}"
        return said if len(said) <= _STATE_LENGTH else f"{said[: _STATE_LENGTH - 3]}..."
    if found.health is not None:
        return found.health
    return "not running" if found.replicas else "scaled to 0"


def _running(found: SourceStatus, now: int) -> int:
    return sum(each.is_living(now) for each in found.instances)


def _upper(upper: int, now: int) -> tuple[str, str]:
    return (instant(upper), age(now - upper)) if upper else (_UNKNOWN, _UNKNOWN)


def _lag(raw: RawSourceStatus) -> str:
    return _UNKNOWN if raw.lag is None else f"{raw.lag} {raw.unit}"


def _expiry(expires: float | None) -> str:
    return "never" if expires is None else instant(round(expires * 1000))
