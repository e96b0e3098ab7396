"""A statement's operators made less: filters as near to the sources as they can be, and no column that none reads."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sqlglot import exp

from placement.graph import bottom_up
from placement.sql.sql_tree import parsed
from placement.statements.equi_joins import conditions_of
from placement.statements.relations import Given, Marked, column, free_name, text_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from sqlglot.expressions import Expr

    from topology.mistakes import Location

_BOUNDS = ("window_start", "window_end")
_PRESERVED = {"inner": (0, 1), "left": (0,), "right": (1,), "full": ()}
"""The inputs of a join that rows may be left out of before it, by how it joins."""


def simplified(operators: Sequence[Marked], sources: Mapping[str, Sequence[str]]) -> list[Marked]:
    """The same rows of fewer operators and columns, inputs before readers; the last is the root.

    ``sources`` are the columns of the logical sources.
    """
    plan = _Plan(operators, sources)
    plan.push_filters()
    while plan.prune():
        pass
    return plan.marked()


class _Plan:
    def __init__(self, operators: Sequence[Marked], sources: Mapping[str, Sequence[str]]) -> None:
        self._operators = {each.given["id"]: each.given for each in operators}
        self._begins = {each.given["id"]: each.begins for each in operators}
        self._root = operators[-1].given["id"]
        self._sources = sources
        self._readers_of: dict[str, list[str]] | None = None

    def _set(self, given: Given) -> None:
        """Have an operator be this from now on."""
        before = self._operators.get(given["id"])
        self._operators[given["id"]] = given
        if before is None or _inputs(before) != _inputs(given):
            self._readers_of = None

    def _remove(self, key: str) -> None:
        del self._operators[key]
        self._readers_of = None

    def marked(self) -> list[Marked]:
        return [Marked(self._operators[each], self._begins[each]) for each in self._order()]

    def _order(self) -> list[str]:
        return bottom_up({key: _inputs(each) for key, each in self._operators.items()}, self._root)

    def _readers(self) -> dict[str, list[str]]:
        if self._readers_of is None:
            readers: dict[str, list[str]] = {key: [] for key in self._operators}
            for key, given in self._operators.items():
                for each in _inputs(given):
                    readers[each].append(key)
            self._readers_of = readers
        return self._readers_of

    # -- filters

    def push_filters(self) -> None:
        """Move each filter, or those of its conditions that can be, in front of what it reads."""
        waiting = [key for key in self._order() if self._operators[key]["type"] == "filter"]
        while waiting:
            waiting += self._push(waiting.pop(0))

    def _push(self, key: str) -> list[str]:
        """The filters that were made of one; none where it stays as it is."""
        given = self._operators[key]
        below = self._operators[given["input"]]
        if len(self._readers()[below["id"]]) > 1:
            return []
        conditions = [*conditions_of(parsed(given["predicate"]))]
        moved: dict[int, list[Expr]] = {}
        stay = []
        for each in conditions:
            inputs = self._inputs_for(below, each)
            for index in inputs:
                moved.setdefault(index, []).append(_through(below, each))
            if not inputs:
                stay.append(each)
        if not moved:
            return []
        made: list[str] = []
        children = _inputs(below)
        for index, pushed in moved.items():
            id_ = free_name(key, self._operators) if stay or made else key
            filter_ = {"id": id_, "type": "filter", "input": children[index], "predicate": _text(pushed)}
            self._begins[id_] = self._begins[key]
            self._set(filter_)
            children[index] = id_
            made.append(id_)
        self._set(_reading(below, children))
        if stay:
            self._set({**given, "predicate": _text(stay)})
        else:
            self._replace(key, below["id"], {*made})
        return made

    def _inputs_for(self, below: Given, condition: Expr) -> Sequence[int]:
        """The inputs of an operator that a condition on what it gives can be looked at before, all of them."""
        read = _read(condition)
        match below["type"]:
            case "project" | "distinct":
                return (0,)
            case "union":
                return range(len(below["inputs"]))
            case "aggregate":
                return (0,) if read and read <= {*below["by"]} else ()
            case "join":
                keys = {*below["on"]}
                return [
                    index
                    for index in _PRESERVED[below.get("how", "inner")]
                    if read and read <= keys | {*self._width(below["inputs"][index])}
                ]
        return ()

    def _replace(self, key: str, by: str, except_: set[str]) -> None:
        """Have all read another operator in place of this one, but for these."""
        for reader in self._readers()[key]:
            given = self._operators[reader]
            if reader not in except_ and reader != by:
                inputs = [by if each == key else each for each in _inputs(given)]
                self._set(_reading(given, inputs))
        if key not in except_:
            self._remove(key)

    # -- columns

    def _width(self, key: str) -> list[str]:
        """The columns that an operator gives."""
        given = self._operators[key]
        inputs = _inputs(given)
        match given["type"]:
            case "source":
                return [*self._sources[given["logical"]]]
            case "project":
                return [*given["columns"]]
            case "aggregate":
                return [*given["by"], *given["aggregates"]]
            case "window":
                return [*self._width(inputs[0]), *_BOUNDS]
            case "join":
                on: list[str] = given["on"]
                return [*on, *(name for each in inputs for name in self._width(each) if name not in on)]
        return self._width(inputs[0])

    def _is_read_by_name(self, key: str) -> bool:
        """True if the order of its columns means nothing, and none reads its input, too."""
        readers = self._readers()
        below = self._operators[key]["input"]
        waiting = [*readers[key]]
        if any(below in _inputs(self._operators[each]) for each in waiting):
            return False
        while waiting:
            reader = waiting.pop()
            if self._operators[reader]["type"] == "filter":
                waiting += readers[reader]
            elif self._operators[reader]["type"] not in ("join", "aggregate", "project"):
                return False
        return True

    def prune(self) -> bool:
        """Leave out columns of projects that none reads, and projects that change nothing; whether there were some."""
        read: dict[str, set[str] | None] = {}
        """By operator; None: all that it gives."""
        before = dict(self._operators)
        for key in reversed(self._order()):
            wanted = read.get(key)
            given = self._operators[key] = _without_others(self._operators[key], wanted)
            for input_ in _inputs(given):
                needed, known = _needed(given, wanted), read.get(input_, set())
                read[input_] = None if needed is None or known is None else known | needed
        for key in self._order():
            if self._operators[key]["type"] == "join":
                self._narrow(key, read.get(key))
        return any(map(self._shorten, self._order())) or before != self._operators

    def _narrow(self, key: str, wanted: set[str] | None) -> None:
        """Have a join read no column that none reads after it, as its inputs may be elsewhere."""
        join = self._operators[key]
        inputs = _inputs(join)
        for index, child in enumerate(inputs):
            width = self._width(child)
            needed = [each for each in width if wanted is None or each in {*wanted, *join["on"]}]
            if needed != width:
                id_ = free_name("side", self._operators)
                columns = {each: text_of(column(each)) for each in needed}
                self._set({"id": id_, "type": "project", "input": child, "columns": columns})
                self._begins[id_] = {}
                inputs[index] = id_
        self._set(_reading(join, inputs))

    def _shorten(self, key: str) -> bool:
        """Leave out a project that changes nothing that is read, or make it and the one that it reads one."""
        given = self._operators[key]
        if given["type"] != "project":
            return False
        readers, below = self._readers(), self._operators[given["input"]]
        if _is_narrowing(given) and self._is_read_by_name(key):
            columns: dict[str, str] = given["columns"]
            ordered = {name: columns[name] for name in self._width(below["id"]) if name in columns}
            given = self._operators[key] = {**given, "columns": ordered}
        if self._is_superfluous(given, [self._operators[each] for each in readers[key]]):
            self._replace(key, given["input"], set())
            return True
        if below["type"] == "project" and len(readers[below["id"]]) == 1:
            if _is_plain(below):
                self._merge(given, below, self._begins[key])
                return True
            if _is_plain(given):
                begins = self._begins[below["id"]]
                columns = {name: parsed(text).name for name, text in given["columns"].items()}
                of = {name: begins.get(("columns", each)) for name, each in columns.items()}
                found: dict[Location, int] = {
                    ("columns", name): at for name, at in of.items() if at is not None
                }
                self._merge(given, below, {path: at for path, at in begins.items() if not path} | found)
                return True
        return False

    def _is_superfluous(self, given: Given, readers: Sequence[Given]) -> bool:
        """True if its readers may read its input: it renames and computes nothing, and only omits unread columns."""
        if not _is_narrowing(given):
            return False
        if any(given["input"] in _inputs(each) for each in readers):
            return False  # it is there for one that reads its input twice
        if [*given["columns"]] == self._width(given["input"]):
            return True
        return all(each["type"] in ("aggregate", "project") for each in readers)

    def _merge(self, given: Given, below: Given, begins: Mapping[Location, int]) -> None:
        columns = {name: text_of(_through(below, parsed(text))) for name, text in given["columns"].items()}
        self._set({**given, "input": below["input"], "columns": columns})
        self._begins[given["id"]] = begins
        self._remove(below["id"])


def _is_narrowing(project: Given) -> bool:
    """True if each of its columns is one of its input, under the name that it has there."""
    return _is_plain(project) and all(parsed(text).name == name for name, text in project["columns"].items())


def _is_plain(project: Given) -> bool:
    """True if each of its columns is one of its input."""
    return all(isinstance(parsed(text), exp.Column) for text in project["columns"].values())


def _inputs(given: Given) -> list[str]:
    return [*given.get("inputs", ()), *(given[each] for each in ("input",) if each in given)]


def _reading(given: Given, inputs: list[str]) -> Given:
    return {**given, "inputs": inputs} if "inputs" in given else {**given, "input": inputs[0]}


def _through(below: Given, condition: Expr) -> Expr:
    """A condition on what an operator gives, over what it reads."""
    if below["type"] != "project":
        return condition
    texts: dict[str, str] = below["columns"]

    def computed(each: Expr) -> Expr:
        if not isinstance(each, exp.Column):
            return each
        tree = parsed(texts[each.name])
        return tree.copy() if isinstance(tree, exp.Column | exp.Literal) else exp.Paren(this=tree.copy())

    found: Expr = condition.transform(computed)
    return found


def _text(conditions: Sequence[Expr]) -> str:
    return text_of(exp.and_(*conditions))


def _without_others(given: Given, wanted: set[str] | None) -> Given:
    """A project that computes what is wanted; one column at least, as rows are counted, too."""
    if given["type"] != "project" or wanted is None:
        return given
    columns: dict[str, str] = given["columns"]
    left = {name: text for name, text in columns.items() if name in wanted}
    return {**given, "columns": left or dict([*columns.items()][:1])}


def _needed(given: Given, wanted: set[str] | None) -> set[str] | None:
    """Return the columns that an operator reads of its inputs, for those that are read of it."""
    match given["type"]:
        case "project":
            return _columns(given["columns"].values())
        case "aggregate":
            return {*given["by"]} | _columns(given["aggregates"].values())
        case "filter" if wanted is not None:
            return wanted | _columns([given["predicate"]])
        case "join" if wanted is not None:
            return wanted | {*given["on"]}
        case "window" if wanted is not None:
            return (wanted - {*_BOUNDS}) | {given["time"]}
    return None  # all columns of a union, a distinct, a sink: others would be other rows


def _columns(texts: Iterable[str]) -> set[str]:
    return {name for text in texts for name in _read(parsed(text))}


def _read(tree: Expr) -> set[str]:
    return {each.name for each in tree.find_all(exp.Column)}
