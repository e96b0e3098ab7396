"""The words of SQL that name nothing without quotes: most of them begin or end a clause."""

from __future__ import annotations

import re
from itertools import zip_longest
from typing import TYPE_CHECKING

import sqlglot
from sqlglot import exp

from placement.statements.carets import Unsupported

if TYPE_CHECKING:
    from sqlglot.expressions import Expr

RESERVED_WORDS = frozenset(
    """
    all analyse analyze and any array as asc asymmetric both case cast check collate column constraint
    create default deferrable desc describe distinct do else end except false fetch for foreign from
    group having in initially intersect into lambda lateral leading limit not null offset on only or
    order pivot pivot_longer pivot_wider placing primary qualify references returning select show some
    summarize symmetric table then to trailing true union unique unpivot using variadic when where
    window with
    """.split()  # noqa: SIM905 - a list of one word a line would be longer than the rest
)
"""Those of DuckDB's ``duckdb_keywords()``, in small letters."""
_NO_NAMES = frozenset(",);")
_QUOTES = "\"'"
_BY_AS = re.compile(r"\bAS\s+$", re.IGNORECASE)


def check_names(tree: Expr, text: str) -> None:
    """Raise Unsupported for what sqlglot takes: names that are reserved words, and an ``AS`` without a name.

    An item may have such a name after ``AS``, a table may not.
    """
    tokens = sqlglot.tokenize(text, dialect="duckdb")
    for token, after in zip_longest(tokens, tokens[1:]):
        is_as = token.text.upper() == "AS" and text[token.start] not in _QUOTES
        if is_as and (after is None or after.text in _NO_NAMES):
            raise Unsupported("a name is missing after AS: write one, or leave AS out", token.start)
    for node in tree.find_all(exp.TableAlias, exp.Alias):
        name = node.this if isinstance(node, exp.TableAlias) else node.args["alias"]
        if not isinstance(name, exp.Identifier) or name.args.get("quoted"):
            continue
        begin = name.meta.get("start")
        if name.name.lower() not in RESERVED_WORDS or begin is None:
            continue
        if isinstance(node, exp.TableAlias) or not _BY_AS.search(text[:begin]):
            raise Unsupported(
                f"{name.name.upper()} is an SQL keyword here: complete its clause, or leave it out; to use it as a "
                f'name, write it in double quotes: "{name.name}"',
                begin,
            )
