"""The differences between two queries in steps, in words: between the one to which a state belongs, and another one."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from nebuli.dataflow.steps.fingerprint import OF_NO_MEANING
from placement.stepped_plan import Exchanging

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from placement import SteppedPlan

Settings = dict[str, Any]

_OF_THE_PLAN = ("input", "inputs", "left", "right")
"""Settings that name other operators, in a plan perhaps those by which rows change members."""
_SHOWN = 60


def described(plan: SteppedPlan) -> list[Settings]:
    """The operators of the query itself, with what makes a difference for its state: JSON, to be kept with that."""
    below = {each.id: each.input for each in plan.operators if isinstance(each, Exchanging)}
    found = []
    for each in plan.operators:
        if not isinstance(each, Exchanging):
            said = each.model_dump(mode="json", by_alias=True, exclude_none=True)
            settings = {key: value for key, value in said.items() if key not in OF_NO_MEANING}
            found.append({key: _above(key, value, below) for key, value in settings.items()})
    return found


def _above(key: str, value: Any, below: Mapping[str, str]) -> Any:
    if key not in _OF_THE_PLAN:
        return value
    if isinstance(value, list):
        return [_above(key, each, below) for each in value]
    while value in below:
        value = below[value]
    return value


def differences(there: Sequence[Settings], here: Sequence[Settings]) -> str:
    """Return the differences of the second list of operators from the first."""
    before, now = ({each["id"]: each for each in each_list} for each_list in (there, here))
    found = [f"{_named(each)} is gone" for id_, each in before.items() if id_ not in now]
    found += [f"{_named(each)} is new" for id_, each in now.items() if id_ not in before]
    for id_, each in before.items():
        if id_ in now:
            found += [f"{_named(each)} had {text}" for text in changes(each, now[id_])]
    return "; ".join(found) or (
        "it has the same operators, but another version of this program planned or computed them differently"
    )


def changes(there: Settings, here: Settings) -> Iterator[str]:
    """For each setting that is another one: what it was, and what it is."""
    for key in dict.fromkeys((*there, *here)):
        before, now = (_shown(each.get(key)) for each in (there, here))
        if before != now:
            yield f"{key} {_cut(before)}, and has {_cut(now)}"


def _named(settings: Settings) -> str:
    return f"operator {settings['id']} ({settings['type']})"


def _shown(value: Any) -> str:
    """The setting in a line, the order of keys included: that of computed columns is theirs."""
    match value:
        case None:
            return "none"
        case str():
            return repr(value)
        case [{"name": _, "type": _}, *_]:  # a schema
            return f"({', '.join(_columns(value))})"
    return json.dumps(value, ensure_ascii=False)


def _columns(schema: Iterable[Settings]) -> Iterator[str]:
    return (" ".join(map(str, column.values())) for column in schema)


def _cut(text: str) -> str:
    return text if len(text) <= _SHOWN else text[: _SHOWN - 3] + "..."
