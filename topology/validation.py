"""Pydantic's errors as mistakes: where they are in the file, and what was expected, in a sentence."""

from __future__ import annotations

from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, get_args

from pydantic import BaseModel

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pydantic import ValidationError
    from pydantic_core import ErrorDetails

    from topology.mistakes import Location, Marks, Mistake

_EXPECTED = {
    "bool_type": "true or false",
    "dict_type": "a mapping",
    "int_type": "a whole number",
    "model_attributes_type": "a mapping",
    "model_type": "a mapping",
    "string_type": "a text",
    "tuple_type": "a list",
}


def validation_mistakes(error: ValidationError, model: type[BaseModel], marks: Marks) -> Iterator[Mistake]:
    """One mistake for each error of validating a document as ``model``."""
    for details in error.errors(include_url=False):
        path, models = _resolve(model, details["loc"])
        # A union's branch and a wrong discriminator are reported at the mapping; the mistake is at its "type".
        if details["type"] == "union_tag_invalid":
            path = (*path, "type")
        message = _message(details, models)
        yield marks.mistake(path, message, at_key=details["type"] == "extra_forbidden")


def _resolve(model: type[BaseModel], location: Location) -> tuple[Location, list[type[BaseModel]]]:
    """The path in the document, and the models that may stand where its last key does.

    Pydantic puts the discriminator's value into the location of an error inside a tagged union; the document has no
    such key.
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
        models = [found for each in models for found in _field_models(each, part)]
    return tuple(path), around


def _tags(model: type[BaseModel]) -> tuple[Any, ...]:
    field = model.model_fields.get("type")
    return get_args(field.annotation) if field else ()


def _field_models(model: type[BaseModel], key: str) -> Iterator[type[BaseModel]]:
    for name, field in model.model_fields.items():
        if key in (field.alias, name):
            yield from _models_in(field.annotation)


def _models_in(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for argument in get_args(annotation):
        yield from _models_in(argument)


def _message(details: ErrorDetails, models: list[type[BaseModel]]) -> str:
    location, given, context = details["loc"], details["input"], details.get("ctx", {})
    key = location[-1] if location and isinstance(location[-1], str) else ""
    as_key = f" as {key}" if key else ""
    match details["type"]:
        case "extra_forbidden":
            return _unknown_key(str(key), models)
        case "missing":
            return f"missing key {key!r}"
        case "union_tag_not_found":
            return "missing key 'type'"
        case "union_tag_invalid":
            return f"unknown type {context['tag']!r}; expected one of {_unquoted(context['expected_tags'])}"
        case "enum" | "literal_error":
            return f"expected {_one_of(context['expected'])}{as_key}, got {_shown(given)}"
        case "value_error":
            return str(context["error"])
        case "too_short" | "string_too_short":
            return f"expected {key} not to be empty"
        case kind if kind in _EXPECTED:
            hint = "; put it in quotes" if kind == "string_type" and isinstance(given, int | float) else ""
            return f"expected {_EXPECTED[kind]}{as_key}, got {_shown(given)}{hint}"
    return f"{details['msg']}, got {_shown(given)}"


def _unknown_key(key: str, models: list[type[BaseModel]]) -> str:
    known = sorted({field.alias or name for each in models for name, field in each.model_fields.items()})
    close = get_close_matches(key, known, n=1)
    hint = f" (did you mean {close[0]!r}?)" if close else ""
    return f"unknown key {key!r}{hint}; expected {', '.join(known)}"


def _one_of(expected: str) -> str:
    names = _unquoted(expected.replace(" or ", ", "))
    return f"one of {names}" if "," in names else names


def _unquoted(names: str) -> str:
    return names.replace("'", "")


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
