"""Messages as declared classes: what each field may hold is its annotation, and is checked in this one place."""

from __future__ import annotations

from dataclasses import dataclass
from types import NoneType, UnionType
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    ClassVar,
    NamedTuple,
    TypeVar,
    Union,
    dataclass_transform,
    get_args,
    get_origin,
    get_type_hints,
)

from netchannel.errors import ProtocolError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


@dataclass(frozen=True, slots=True)
class Rule:
    """The values that a field may hold, in addition to its Python type.

    ``name`` and ``says`` are as in docs/protocol/wire.md.
    """

    name: str
    says: str
    holds: Callable[[Any], bool]


class Field(NamedTuple):
    """A field of a message."""

    name: str
    type: type
    rule: Rule
    optional: bool


class Message:
    """One message of a control connection; ``kind`` is its type on the wire, ``fields`` what is declared of it."""

    __slots__ = ()
    kind: ClassVar[str] = ""
    fields: ClassVar[tuple[Field, ...]] = ()

    def flaw(self) -> str:
        """Return the flaw of fields that are each as declared; nothing if they are consistent."""
        return ""


_Declared = TypeVar("_Declared", bound=type[Message])


@dataclass_transform(frozen_default=True, kw_only_default=True)
def declare(cls: _Declared) -> _Declared:
    """Make a message of a class, with slots, and with its annotations as its schema.

    It is frozen for the type checker alone: at run time that takes as long as all else that is done with a message.
    """
    made: Any = dataclass(slots=True, kw_only=True, unsafe_hash=True)(cls)
    hints = get_type_hints(made, include_extras=True)
    made.fields = tuple(
        _field(name, hint) for name, hint in hints.items() if get_origin(hint) is not ClassVar
    )
    return made  # type: ignore[no-any-return]  # dataclass makes a class of another type, as it has slots


def _field(name: str, hint: Any) -> Field:
    optional = get_origin(hint) in (Union, UnionType)
    if optional:
        hint, nothing = get_args(hint)
        assert nothing is NoneType, name
    assert get_origin(hint) is Annotated, name
    kind, rule = get_args(hint)
    return Field(name, kind, rule, optional)


def read(message: type[Message], held: Mapping[Any, Any]) -> Message:
    """The message that ``held`` is. Raises ProtocolError that names the field, what it holds and what was expected."""
    values: dict[str, Any] = {}
    for name, kind, rule, optional in message.fields:
        value = held.get(name)
        if value is None and optional:
            values[name] = None
        elif type(value) is kind and rule.holds(value):
            values[name] = value
        else:
            what = f"holds {_shown(value)}" if name in held else "is missing"
            or_nil = " or nil" if optional else ""
            raise ProtocolError(
                f"the field {name!r} of a control message {message.kind!r} {what}: expected {rule.name}{or_nil} "
                f"({rule.says})"
            )
    made = message(**values)
    if flaw := made.flaw():
        raise ProtocolError(f"a control message {message.kind!r} contradicts itself: {flaw}")
    return made


def _shown(value: Any) -> str:
    if value is None:
        return "nil"
    if isinstance(value, str | bytes) and len(value) > 40:
        unit = "characters" if isinstance(value, str) else "bytes"
        return f"{value[:40]!r}... ({len(value)} {unit})"
    return repr(value)[:80]


def as_map(message: Message) -> dict[str, Any]:
    """The message as it goes over the wire."""
    held: dict[str, Any] = {"t": message.kind}
    for field in message.fields:
        held[field.name] = getattr(message, field.name)
    return held
