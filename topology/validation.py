"""Pydantic's errors as mistakes: where they are in the file, and what was expected, in a sentence."""

from __future__ import annotations

from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, get_args

from pydantic import BaseModel

from topology.connectors import Connectors
from topology.consistency import did_you_mean
from topology.mistakes import MISPLACED

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from pydantic import ValidationError
    from pydantic_core import ErrorDetails

    from topology.mistakes import Location, Marks, Mistake

_WANTED = {
    "bool_type": "true or false",
    "dict_type": "a mapping",
    "int_type": "a whole number",
    "model_attributes_type": "a mapping",
    "model_type": "a mapping",
    "string_type": "a string",
    "tuple_type": "a list",
}
_TEMPLATES = {
    "bool_parsing": "expected true or false{as_key}, got {given}",
    "connector_unusable": "{message}",
    "enum": "expected one of {expected}{as_key}, got {given}{hint}",
    "finite_number": "expected a finite number{as_key}, got {given}",
    "greater_than_equal": "expected at least {ge}{as_key}, got {given}",
    "less_than_equal": "expected at most {le}{as_key}, got {given}",
    "literal_error": "expected one of {expected}{as_key}, got {given}{hint}",
    "missing": "missing key {key!r}",
    MISPLACED: "{what}",
    "string_pattern_mismatch": "expected printable characters without spaces{as_key}, got {given}",
    "string_too_long": "expected at most {max_length} characters{as_key}, got {given}",
    "string_too_short": "expected {key} not to be empty",
    "too_short": "expected at least {min_length} in {key}, got {actual_length}",
    "union_tag_invalid": "unknown type {tag!r}{hint}; expected one of {expected_tags}",
    "union_tag_not_found": "missing key 'type'",
    "value_error": "{error}",
}
_MOST_HOMES = 3
"""So many places, and types, of an unknown key are listed."""


def validation_mistakes(
    error: ValidationError,
    model: type[BaseModel],
    marks: Marks,
    *,
    others: Mapping[str, type[BaseModel]] = {},
) -> Iterator[Mistake]:
    """One mistake for each error of validating a document as ``model``.

    ``others`` are documents that an unknown key may belong to, if it has no place in this one.
    """
    misspelt: set[Location] = set()
    missing: list[tuple[Location, Mistake]] = []
    found = error.errors(include_url=False)
    incomplete = {_resolve(model, each["loc"])[0][:-1] for each in found if each["type"] == "missing"}
    for details in found:
        path, models = _resolve(model, details["loc"])
        path += details.get("ctx", {}).get("at", ())
        if details["type"] == "too_short" and len(details["input"]) >= details["ctx"]["min_length"]:
            continue  # of enough items, not enough are valid: each of the others is reported itself
        match details["type"]:
            case "extra_forbidden":
                known = sorted({key for each in models for key in _keys(each)})
                *way, key = path
                # A mapping that lacks a key more likely has it under another name than one of another place.
                documents = {} if tuple(way) in incomplete else {"": model, **others}
                home = _home(str(key), tuple(way), models, documents)
                close = get_close_matches(str(key), known, n=1) if not home else []
                misspelt.update((*way, each) for each in close)
                yield marks.mistake(path, _unknown_key(str(key), known, close, home), at_key=True)
            case "missing":
                missing.append((path, marks.mistake(path, _message(details))))
            case "union_tag_not_found" if close := get_close_matches("type", map(str, details["input"]), n=1):
                said = _unknown_key(close[0], ["type"], close=["type"], home="")
                yield marks.mistake((*path, close[0]), said, at_key=True)
            case "union_tag_invalid" | "connector_unusable":
                # Reported at the mapping; the mistake is at its "type".
                yield marks.mistake((*path, "type"), _message(details))
            case _:
                yield marks.mistake(path, _message(details))
    # A misspelt key is one mistake, not an unknown key and a missing one.
    yield from (mistake for path, mistake in missing if path not in misspelt)


def _keys(model: type[BaseModel]) -> Iterator[str]:
    for name, field in model.model_fields.items():
        yield field.alias or name


def _resolve(model: type[BaseModel], location: Location) -> tuple[Location, list[type[BaseModel]]]:
    """The path in the document, and the models that may stand where its last key does.

    Pydantic puts the discriminator's value into the location of an error inside a tagged union; the document
    has no such key.
    """
    path: list[str | int] = []
    around: list[type[BaseModel]] = []
    models = [model]
    for part in location:
        if isinstance(part, int):
            path.append(part)
            continue
        tagged = [each for each in models if part in _tags(each)]
        if tagged and len(models) > 1:
            models = tagged
            continue
        path.append(part)
        around = models
        # A key that people choose, as in `limits`, is not a field: what stands there is what its mapping holds.
        models = [found for each in models for found in _field_models(each, part)] or models
    return tuple(path), around


def _home(
    key: str, way: Location, models: list[type[BaseModel]], documents: Mapping[str, type[BaseModel]]
) -> str:
    """Where an unknown key belongs, or the key to use, in a clause; empty if neither is known."""
    for model in models:
        if (instead := getattr(model, "_instead_of", {}).get(key)) is not None:
            return f"; {instead}"
    here = ".".join(part for part in way if isinstance(part, str))
    for document, root in documents.items():
        homes: dict[str, list[str]] = {}
        for where, types in _homes(key, [root], ()):
            homes.setdefault(where, []).extend(types)
        if not document and here in homes:
            homes = {here: homes[here]}  # of another type there: the nearest
        if homes:
            places = " or ".join(_place(*each) for each in [*homes.items()][:_MOST_HOMES])
            return f"; it belongs {places}{document and f', of {document}'}"
    return ""


def _homes(
    key: str,
    models: Iterable[type[BaseModel]],
    way: tuple[str, ...],
    around: tuple[type[BaseModel], ...] = (),
) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Yield each place with the key, from the outside in: the keys that lead there, and the types of its model."""
    new = [each for each in dict.fromkeys(models) if each not in around]
    for model in new:
        if key in _keys(model):
            yield ".".join(way), _tags(model)
    for model in new:
        for name, field in model.model_fields.items():
            yield from _homes(
                key, _models_in(field.annotation), (*way, field.alias or name), (*around, model)
            )


def _place(where: str, types: list[str]) -> str:
    of_types = f" of type {' or '.join(types)}" if 0 < len(types) <= _MOST_HOMES else ""
    return f"in {where}{of_types}" if where else "at the top level"


def _tags(model: type[BaseModel]) -> tuple[Any, ...]:
    field = model.model_fields.get("type")
    return get_args(field.annotation) if field else ()


def _field_models(model: type[BaseModel], key: str) -> Iterator[type[BaseModel]]:
    for name, field in model.model_fields.items():
        if key in (field.alias, name):
            yield from _models_in(field.annotation)


def _models_in(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, Connectors):
        yield from annotation.known.values()
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for argument in get_args(annotation):
        yield from _models_in(argument)


def _message(details: ErrorDetails) -> str:
    kind, given = details["type"], details["input"]
    key = str(details["loc"][-1]) if details["loc"] else ""
    as_key = f" as {key}" if key and not key.isdigit() else ""
    if kind in _WANTED:
        hint = _as_text(given) if kind == "string_type" else ""
        return f"expected {_WANTED[kind]}{as_key}, got {_shown(given)}{hint}"
    template = _TEMPLATES.get(kind, "{message}, got {given}")
    context = {
        name: _plain(str(value)) if name.startswith("expected") else str(value)
        for name, value in details.get("ctx", {}).items()
    }
    return template.format(
        **context,
        key=key,
        as_key=as_key,
        given=_shown(given),
        hint=_hint(context, given),
        message=details["msg"],
    )


def _as_text(given: Any) -> str:
    """How a text is written that YAML takes for something else."""
    match given:
        case bool():
            return "; YAML reads yes, no, on and off as true and false: put the value in quotes, as in 'yes'"
        case int() | float():
            return "; put the value in quotes"
    return ""


def _hint(context: dict[str, str], given: Any) -> str:
    choices = context.get("expected_tags", context.get("expected", ""))
    wanted = context.get("tag", given)
    return did_you_mean(wanted, choices.split(", ")) if isinstance(wanted, str) else ""


def _unknown_key(key: str, known: list[str], close: list[str], home: str) -> str:
    hint = f" (did you mean {close[0]!r}?)" if close else ""
    return f"unknown key {key!r}{hint}{home}; expected {', '.join(known)}"


def _plain(names: str) -> str:
    """Pydantic's "'a', 'b' or 'c'" as "a, b, c"."""
    return names.replace("'", "").replace(" or ", ", ")


def _shown(value: Any) -> str:
    match value:
        case None:
            return "nothing"
        case dict():
            return "a mapping"
        case list() | tuple():
            return "a list"
        case bool():
            return str(value).lower()
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
