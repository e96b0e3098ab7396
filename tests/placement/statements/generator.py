"""Random statements over two tables, which mean something both here and in DuckDB."""

from __future__ import annotations

import re
from dataclasses import dataclass
from random import Random

TABLES = ("t", "u")
NAMES = ("k", "g", "x", "n", '"wind speed"', '"Order"', "é", "y")
_LITERALS = {
    "int": ["0::BIGINT", "1::BIGINT", "-2::BIGINT", "3::BIGINT"],
    "text": ["'a'", "''", "'é'", "'it''s'"],
    "real": ["0e0", "0.5e0", "-1e0"],
    "small": ["0::INTEGER", "1::INTEGER", "-2::INTEGER"],
    "half": ["0::FLOAT", "0.5::FLOAT", "-1::FLOAT"],
    "bool": ["true", "false"],
    "date": ["DATE '2020-02-29'", "DATE '1969-12-31'"],
    "time": ["TIMESTAMP '2020-01-01 00:00:05'", "TIMESTAMP '1969-12-31 23:59:59.5'"],
}


def schemas(random: Random) -> dict[str, dict[str, str]]:
    """Columns of each table, by their names in SQL, with their types."""
    found = {}
    for table in TABLES:
        names = random.sample(NAMES, random.randint(2, 6))
        found[table] = {name: random.choice([*_LITERALS]) for name in names}
    return found


_COMPARED = ["=", "<>", "<", ">="]


@dataclass(frozen=True)
class Rows:
    """What stands in ``FROM``: its text, and the columns by the words that name them."""

    text: str
    columns: dict[str, str]


class Generator:
    """Draws statements; the same ones for the same seed."""

    def __init__(self, seed: int) -> None:
        self._random = Random(seed)
        self.schemas = schemas(self._random)
        self._named = 0
        self._queries: dict[str, dict[str, str]] = {}

    def statement(self) -> str:
        """One ``SELECT``, or a union of several, with queries that are named in front of it."""
        named = []
        for _ in range(self._random.choice([0, 0, 0, 1, 2])):
            text, columns = self.query(1)
            name = self._name("c")
            named.append(f"{name} AS ({text})")
            self._queries[name] = columns
        text, _ = self.query(2)
        return f"WITH {', '.join(named)} {text}" if named else text

    def query(self, depth: int) -> tuple[str, dict[str, str]]:
        """The text, and the columns with their types."""
        match self._random.choice(["plain", "plain", "grouped", "grouped", "distinct", "union", "star"]):
            case "grouped":
                return self._grouped(depth)
            case "union" if depth:
                return self._union(depth)
            case "star":
                rows = self._single(depth)
                return f"SELECT * FROM {rows.text}{self._where(rows)}", _bare(rows.columns)
            case kind:
                return self._plain(depth, "DISTINCT " if kind == "distinct" else "")

    def _name(self, letter: str) -> str:
        self._named += 1
        return f"{letter}{self._named}"

    # -- from

    def _single(self, depth: int) -> Rows:
        name = self._name("r")
        if depth and self._random.random() < 0.4:
            text, columns = self.query(depth - 1)
            return Rows(f"({text}) AS {name}", {f"{name}.{each}": type_ for each, type_ in columns.items()})
        table = self._random.choice([*TABLES, *self._queries])
        columns = self._queries.get(table) or self.schemas[table]
        times = [each for each, type_ in columns.items() if type_ == "time"]
        if times and table in TABLES and self._random.random() < 0.3:
            columns = columns | {"window_start": "time", "window_end": "time"}
            table = self._windows(table, self._random.choice(times))
        return Rows(f"{table} AS {name}", {f"{name}.{each}": type_ for each, type_ in columns.items()})

    def _windows(self, table: str, time: str) -> str:
        """Windows that close at the end of the rows only, so that none is late."""
        length = self._random.choice(["7 SECONDS", "1 MINUTE", "1 DAY"])
        late = "lateness := INTERVAL 30000 DAYS"
        if self._random.random() < 0.5:
            return f"TUMBLE({table}, {time}, INTERVAL {length}, {late})"
        return f"HOP({table}, {time}, INTERVAL {length}, INTERVAL {_doubled(length)}, {late})"

    def _rows(self, depth: int) -> tuple[Rows, list[str]]:
        """One relation or several, and conditions that have to be in ``WHERE``."""
        rows, conditions = self._single(depth), []
        for _ in range(self._random.choice([0, 0, 0, 1, 1, 2])):
            right = self._single(depth)
            equal = self._equal(rows, right)
            if equal is None:
                continue
            both = rows.columns | right.columns
            how = self._random.choice(["JOIN", "LEFT JOIN", "RIGHT JOIN", "FULL JOIN", ","])
            if how == "," and "JOIN" not in rows.text:
                conditions.append(equal)
                rows = Rows(f"{rows.text}, {right.text}", both)
                continue
            how = "JOIN" if how == "," else how
            if conditions and how in ("RIGHT JOIN", "FULL JOIN"):
                break  # it would be of the last table alone
            shared = [
                each
                for each in _bare(right.columns)
                if [*_bare_all(rows.columns)].count(each) == 1
                and _bare(rows.columns)[each] == _bare(right.columns)[each]
            ]
            if shared and how == "JOIN" and self._random.random() < 0.4:
                name = self._random.choice(shared)
                columns = {each: type_ for each, type_ in both.items() if each.rpartition(".")[2] != name} | {
                    name: _bare(right.columns)[name]
                }
                # Behind another table with the name, DuckDB would still mean this column, and here it is to be said.
                return Rows(f"{rows.text} JOIN {right.text} USING ({name})", columns), conditions
            spoken_of = {"JOIN": Rows("", both), "LEFT JOIN": right, "RIGHT JOIN": rows}.get(how)
            more = (
                f" AND {self._condition(spoken_of)}"
                if spoken_of is not None and self._random.random() < 0.4
                else ""
            )
            rows = Rows(f"{rows.text} {how} {right.text} ON {equal}{more}", both)
        return rows, conditions

    def _equal(self, left: Rows, right: Rows) -> str | None:
        pairs = [
            (one, other)
            for one, type_ in left.columns.items()
            for other, other_type in right.columns.items()
            if type_ == other_type
        ]
        if not pairs:
            return None
        one, other = self._random.choice(pairs)
        if left.columns[one] == "int" and self._random.random() < 0.2:
            one = f"{one} + 1"
        return f"{one} = {other}" if self._random.random() < 0.7 else f"{other} = {one}"

    # -- select

    def _plain(self, depth: int, distinct: str) -> tuple[str, dict[str, str]]:
        rows, conditions = self._rows(depth)
        items = {self._name("v"): self._typed(rows) for _ in range(self._random.randint(1, 4))}
        selected = ", ".join(f"{text} AS {name}" for name, (text, _) in items.items())
        where = self._where(rows, conditions)
        return f"SELECT {distinct}{selected} FROM {rows.text}{where}", {
            name: type_ for name, (_, type_) in items.items()
        }

    def _grouped(self, depth: int) -> tuple[str, dict[str, str]]:
        rows, conditions = self._rows(depth)
        keys = {self._name("v"): self._typed(rows) for _ in range(self._random.randint(0, 2))}
        calls = {self._name("v"): self._call(rows) for _ in range(self._random.randint(0 if keys else 1, 3))}
        items = keys | calls
        selected = ", ".join(f"{text} AS {name}" for name, (text, _) in items.items())
        by = ""
        if keys:
            kind = self._random.choice(["text", "number", "name", "all"])
            listed = {
                "text": [text for text, _ in keys.values()],
                "number": [str(number + 1) for number in range(len(keys))],
                "name": [*keys],
                "all": ["ALL"],
            }[kind]
            # A number that stands for itself would be the place of an item.
            if kind == "text" and any(text.lstrip("-").isdigit() for text in listed):
                listed = [*keys]
            by = f" GROUP BY {', '.join(listed)}"
        having = (
            f" HAVING {self._call(rows)[0]} IS NOT NULL AND count(*) > 1"
            if self._random.random() < 0.3
            else ""
        )
        types = {name: type_ for name, (_, type_) in items.items()}
        return f"SELECT {selected} FROM {rows.text}{self._where(rows, conditions)}{by}{having}", types

    def _union(self, depth: int) -> tuple[str, dict[str, str]]:
        types = [self._random.choice([*_LITERALS]) for _ in range(self._random.randint(1, 3))]
        names = [self._name("v") for _ in types]
        parts = []
        for _ in range(self._random.randint(2, 3)):
            rows, conditions = self._rows(depth - 1)
            items = ", ".join(
                f"{self._of(type_, rows)} AS {name}" for type_, name in zip(types, names, strict=True)
            )
            parts.append(f"SELECT {items} FROM {rows.text}{self._where(rows, conditions)}")
        word = self._random.choice([" UNION ALL ", " UNION ALL ", " UNION "])
        return word.join(parts), dict(zip(names, types, strict=True))

    def _where(self, rows: Rows, conditions: list[str] | None = None) -> str:
        all_ = [*(conditions or [])]
        if self._random.random() < 0.4:
            all_.append(self._condition(rows))
        self._random.shuffle(all_)
        return f" WHERE {' AND '.join(all_)}" if all_ else ""

    # -- expressions

    def _typed(self, rows: Rows) -> tuple[str, str]:
        type_ = self._random.choice([*_LITERALS])
        return self._of(type_, rows), type_

    def _column(self, type_: str, rows: Rows) -> str:
        found = [name for name, each in rows.columns.items() if each == type_]
        return self._random.choice(found or _LITERALS[type_])

    def _of(self, type_: str, rows: Rows) -> str:
        column = self._column(type_, rows)
        choices = {
            "int": [
                f"{column} + 1",
                f"coalesce({column}, 7::BIGINT)",
                f"CASE WHEN {self._condition(rows)} THEN {column} END",
            ],
            "text": [f"upper({column})", f"coalesce({column}, 'z')", f"concat({column}, 'b')"],
            "real": [f"-({column})", f"coalesce({column}, 2.5e0)", f"{column} + 0.25e0"],
            "date": [f"{column} + 1", f"CAST({column} AS DATE)", f"nullif({column}, DATE '2020-01-01')"],
            "time": [
                f"{column} + INTERVAL 1 DAY",
                f"date_trunc('hour', {column})",
                f"greatest({column}, {column})",
            ],
            "small": [f"coalesce({column}, 7::INTEGER)", f"abs({column})", f"CAST({column} AS INTEGER)"],
            "half": [f"-({column})", f"coalesce({column}, 2.5::FLOAT)", f"CAST({column} AS FLOAT)"],
            "bool": [f"NOT {column}", f"coalesce({column}, false)", f"({self._condition(rows)})"],
        }
        moments = [each for each, kind in rows.columns.items() if kind in ("date", "time")]
        if type_ == "int" and moments and self._random.random() < 0.3:
            moment = self._random.choice(moments)
            return self._random.choice([f"extract(year FROM {moment})", f"date_part('dow', {moment})"])
        return column if self._random.random() < 0.6 else self._random.choice(choices[type_])

    def _condition(self, rows: Rows) -> str:
        type_ = self._random.choice([*_LITERALS])
        column = self._column(type_, rows)
        match self._random.randrange(5):
            case 0:
                return f"{column} IS NOT NULL"
            case 1:
                other = self._column(type_, rows)
                return f"({column} {self._random.choice(_COMPARED)} {other} OR {other} IS NULL)"
            case 2:
                return (
                    f"NOT {column} {self._random.choice(_COMPARED)} {self._random.choice(_LITERALS[type_])}"
                )
        return f"{column} {self._random.choice(_COMPARED)} {self._random.choice(_LITERALS[type_])}"

    def _call(self, rows: Rows) -> tuple[str, str]:
        type_ = self._random.choice([*_LITERALS])
        value = self._of(type_, rows)
        calls = [("count(*)", "int"), (f"count({value})", "int"), (f"count(DISTINCT {value})", "int")]
        calls += [(f"{each}({value})", type_) for each in ("min", "max")]
        calls += [(f"avg({value})", "real"), (f"sum({value})", "int")] if type_ in ("int", "small") else []
        calls += [(f"sum({value})", "real")] if type_ in ("real", "half") else []
        call, result = self._random.choice(calls)
        filtered = f" FILTER (WHERE {self._condition(rows)})" if self._random.random() < 0.25 else ""
        return f"{call}{filtered}{' + 1' if result == 'int' and self._random.random() < 0.2 else ''}", result


def _bare(columns: dict[str, str]) -> dict[str, str]:
    return {name.rpartition(".")[2]: type_ for name, type_ in columns.items()}


def _bare_all(columns: dict[str, str]) -> list[str]:
    return [name.rpartition(".")[2] for name in columns]


def in_duckdb(statement: str) -> str:
    """The statement with its windows as DuckDB computes them from the definition, one row a window."""
    return _WINDOWS.sub(_window_rows, statement)


_WINDOWS = re.compile(
    r"(?:TUMBLE|HOP)\((\w+), ([^,]+), INTERVAL (\d+ \w+)(?:, INTERVAL (\d+ \w+))?, lateness [^)]*\)"
)


def _window_rows(found: re.Match[str]) -> str:
    """Windows begin at multiples of their slide since 1970."""
    table, time, slide, length = found.groups()
    last = f"time_bucket(INTERVAL {slide}, {time}, TIMESTAMP '1970-01-01')"
    starts = ", ".join([last] if length is None else [last, f"{last} - INTERVAL {slide}"])
    return (
        f"(SELECT *, window_start + INTERVAL {length or slide} AS window_end FROM "
        f"(SELECT *, unnest([{starts}]) AS window_start FROM {table} WHERE {time} IS NOT NULL))"
    )


def _doubled(length: str) -> str:
    count, unit = length.split()
    return f"{2 * int(count)} {unit}"
