"""Connectors, which are types of sources and of sinks: the description of one, and how it is found by its name.

A connector is a model of the keys that stand in a topology, with a few attributes for the planner and the name of the
implementation, which is imported only by processes that run it. Those that come with this package are in
`topology.built_in`. Any other is found by an entry point of its package, in the group ``nebuli.sources`` or
``nebuli.sinks``, under the name that topologies give as ``type``; looked for when a topology or a plan first has it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Generic, Literal, Self, TypeVar, Union, get_args

from pydantic import Field, TypeAdapter, ValidationError, field_validator, model_serializer, model_validator
from pydantic_core import PydanticCustomError, core_schema

from topology.base import Model, Text
from topology.consistency import did_you_mean, listed
from topology.mistakes import MISPLACED, ConnectorUnusable
from topology.schema import DataType

if TYPE_CHECKING:
    from collections.abc import Iterable
    from importlib.metadata import EntryPoint

    from pydantic import GetJsonSchemaHandler, SerializerFunctionWrapHandler
    from pydantic.json_schema import JsonSchemaValue

SinkMode = Literal["final", "changes", "append"]
"""``final``: the result, once, at a clean end. ``changes``: every change as it comes, with its ``_weight``.
``append``: rows as they come, which no later row may retract."""


class SourceConnector(Model):
    """A type of source. Derive a class, give it its ``type: Literal[name]``, its keys and its ``implementation``."""

    implementation: ClassVar[str]
    """The reader, as ``module:name``: called with the settings, the columns and ``wake``, it gives a
    `nebuli.connectors.Source`."""
    repeatable: ClassVar[bool] = False
    """True if the same rows come in the same order each time that it is read from its beginning. Queries over a source
    that is not repeatable cannot start over after a loss. See ``can_be_read_again``."""
    columns_by_name: ClassVar[bool] = False
    """True if it finds columns by name, and can read some of the logical source's: unneeded columns are then not
    read."""
    dated: ClassVar[bool] = False
    """Only for collections: its positions are times, and a step of a query in steps has all rows up to one of them."""

    _instead_of: ClassVar[Mapping[str, str]] = {
        "bounded": "the type of a source determines if it ends: CSV, Parquet, a Generator with count, "
        "and a Collection with follow: false end; TCP and Channel end when the peer ends them"
    }
    """Keys that are looked for here and do not exist, and in a clause what to use."""

    logical: Text
    rate: Annotated[float, Field(gt=0)] | None = None
    """Approximate number of bytes per second that it gives; for the exact strategy of placement."""
    base: bool = False
    """True if a query with views keeps all its rows, and fills keys of views from them."""
    type: str

    @model_validator(mode="after")
    def _check_base(self) -> Self:
        if self.base and not self.can_be_base:
            what = (
                f"{self.reads} cannot be read again from its beginning to an end, so a base cannot detect when it "
                f"has all rows; omit base, or read a file, a collection or another source that can be read again"
            )
            raise PydanticCustomError(MISPLACED, "{what}", {"at": ("base",), "what": what})
        return self

    @model_serializer(mode="wrap")
    def _without_what_is_no_base(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Omit the key ``base`` if it is not given: earlier documents stay the same."""
        written: dict[str, Any] = handler(self)
        if "base" not in self.model_fields_set:
            written.pop("base", None)
        return written

    @property
    def reads(self) -> str:
        """Its origin, as messages name it."""
        return f"a source of type {self.type}"

    @property
    def ends(self) -> Literal["always", "perhaps", "never"]:
        """If it ends on its own: always, like a file; perhaps, when its peer ends it; or never."""
        return "always"

    @property
    def grows(self) -> bool:
        """True if a later run may find more after its end, as in a file that is appended to.

        If so, its end is not the end of its event time in a query in steps, see docs/topics/event-time-in-steps.md.
        """
        return True

    @property
    def retracts(self) -> bool:
        """True if it retracts rows that it has emitted."""
        return False

    @property
    def can_be_read_again(self) -> bool:
        """True if this source is ``repeatable`` with the keys that it has."""
        return self.repeatable

    @property
    def can_be_base(self) -> bool:
        """True if its rows can be kept as a ``base``.

        They have to be there again when it is read again, and their end has to be known: reads are only answered after
        that end.
        """
        return self.can_be_read_again and self.ends == "always"

    @property
    def unpaced(self) -> SourceConnector:
        """Return a source with the same rows as fast as they are taken, for rereading: this one."""
        return self


class SinkConnector(Model):
    """A type of sink. Derive a class, give it its ``type: Literal[name]``, its keys and its ``implementation``."""

    implementation: ClassVar[str]
    """The writer, as ``module:name``: called with the settings, it gives a `nebuli.connectors.Output`."""
    modes: ClassVar[tuple[SinkMode, ...]] = get_args(SinkMode)
    """The modes that it can be given."""
    begins_anew: ClassVar[bool] = False
    """True if a query that starts over removes all its earlier output there, in any mode."""
    dated: ClassVar[bool] = False
    """Only for collections: a query in steps writes there at the times of its steps."""

    name: Text
    mode: Annotated[SinkMode, Field(validate_default=True)] = "final"
    type: str

    @property
    def types(self) -> frozenset[DataType]:
        """The types of columns that it takes."""
        return frozenset(DataType)

    @property
    def files(self) -> tuple[str, ...]:
        """The files that it writes, each of which is to have one writer at a time."""
        return ()

    @field_validator("mode")
    @classmethod
    def _check_mode(cls, mode: SinkMode) -> SinkMode:
        if mode not in cls.modes:
            raise ValueError(f"expected {listed(cls.modes)} as mode of this type, got {mode!r}")
        return mode


C = TypeVar("C", bound=SourceConnector | SinkConnector)


class Connectors(Generic[C]):
    """The types of sources, or those of sinks, by their names.

    As metadata of an annotation it validates each value by the type that it names, which has to be known.
    """

    def __init__(self, kind: str, base: type[C], built_in: Iterable[type[C]]) -> None:
        self._kind = kind
        self._group = f"nebuli.{kind}s"
        self._base = base
        self.known: dict[str, type[C]] = {_name_of(each): each for each in built_in}
        """The connectors that come with this package, and those that were needed so far."""
        self.packages: dict[str, str] = {}
        """The packages of the others, also while they are imported: name and version."""
        self._adapter: TypeAdapter[C] | None = None

    def named(self, name: str) -> type[C]:
        """The connector with this name. Raises ConnectorUnusable if there is none, or it cannot be loaded."""
        if name not in self.known:
            entries = self._entries()
            found = [each for each in entries if each.name == name]
            if not found:
                names = list(dict.fromkeys([*self.known, *(each.name for each in entries)]))
                hint = did_you_mean(name, names)
                raise ConnectorUnusable(f"unknown type {name!r}{hint}; expected {listed(names, len(names))}")
            self._add(name, found)
        return self.known[name]

    def load_installed(self) -> None:
        """Know every connector that is installed. Raises ConnectorUnusable for the first that is not available."""
        for name in sorted({each.name for each in self._entries()} - set(self.known)):
            self.named(name)

    def _entries(self) -> list[EntryPoint]:
        from importlib.metadata import entry_points  # most topologies have built-in types only

        return list(entry_points(group=self._group))

    def _add(self, name: str, found: list[EntryPoint]) -> None:
        what = f"{self._kind} type {name!r}"
        package, *others = sorted(f"{each.dist.name} {each.dist.version}" for each in found if each.dist)
        if others:
            raise ConnectorUnusable(
                f"{what} is claimed by {', '.join([package, *others])}: uninstall all but one of them"
            )
        self.packages[name] = package
        try:
            connector = found[0].load()
        except (Exception, SystemExit) as error:  # it is third-party code, and may raise anything
            del self.packages[name]
            raise ConnectorUnusable(
                f"{what} comes from package {package}, which cannot be imported here: {type(error).__name__}: "
                f"{error}; install its missing dependencies, or another version of it"
            ) from error
        is_one = isinstance(connector, type) and issubclass(connector, self._base)
        if not is_one or _name_of(connector) != name or not hasattr(connector, "implementation"):
            del self.packages[name]
            raise ConnectorUnusable(
                f"{what} comes from package {package}, but its entry point {found[0].value} is not a subclass of "
                f"{self._base.__name__} with the attribute 'implementation' and the field type: Literal[{name!r}]; "
                f"report this to the author of the package"
            )
        self.known[name] = connector
        self._adapter = None

    def _validated(self, value: Any) -> C:
        if isinstance(value, self._base):
            return value
        name = value.get("type") if isinstance(value, dict) else None
        if isinstance(name, str):
            try:
                self.named(name)
            except ConnectorUnusable as error:
                raise PydanticCustomError(_UNUSABLE, "{sentence}", {"sentence": str(error)}) from error
        return self._union.validate_python(value)

    @property
    def _union(self) -> TypeAdapter[C]:
        if self._adapter is None:
            union: Any = Union[tuple(self.known.values())]  # noqa: UP007 - of what is known by now
            self._adapter = TypeAdapter(Annotated[union, Field(discriminator="type")])
        return self._adapter

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> core_schema.CoreSchema:
        return core_schema.no_info_plain_validator_function(
            self._validated, serialization=core_schema.simple_ser_schema("any")
        )

    def __get_pydantic_json_schema__(
        self, schema: core_schema.CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        """The schema of what is known, and of any other name, which differs in more than small and large letters."""
        shown = handler(self._union.core_schema)
        known = "|".join("".join(map(_of_any_case, name)) for name in self.known)
        other = {"type": {"type": "string", "not": {"pattern": f"^({known})$"}}}
        required = [name for name, field in self._base.model_fields.items() if field.is_required()]
        shown["oneOf"].append({"type": "object", "properties": other, "required": required})
        return shown


_UNUSABLE = "connector_unusable"


def unusable(error: ValidationError) -> str:
    """Return the connectors that could not be loaded, in a sentence; empty if nothing else is wrong."""
    found = error.errors(include_url=False, include_input=False)
    return "; ".join(dict.fromkeys(each["msg"] for each in found if each["type"] == _UNUSABLE))


def _of_any_case(letter: str) -> str:
    return f"[{letter.upper()}{letter.lower()}]" if letter.isalpha() else re.escape(letter)


def _name_of(connector: type[Model]) -> str:
    names = get_args(connector.model_fields["type"].annotation)
    return str(names[0]) if names else ""
