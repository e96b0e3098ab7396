"""Typed expressions as functions over Arrow batches, made once and called per batch.

Everything is computed a column at a time. Where SQL promises that a part is not evaluated for some rows (the
branches of CASE, the later arguments of COALESCE, of AND and of OR), a part that could fail is
evaluated for the other rows only: ``CASE WHEN n <> 0 THEN total // n END`` is not a division by zero.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from nebuli.dataflow.errors import DataflowError
from nebuli.dataflow.kernels import kernel, may_fail, type_of
from nebuli.dataflow.types import arrow_type
from placement.sql.typed_tree import Call, ColumnRef, Literal, Node

if TYPE_CHECKING:
    from placement.sql.expressions import Expression

Evaluator = Callable[[pa.RecordBatch], Any]


def compile_expression(expression: Expression, schema: pa.Schema) -> Evaluator:
    """A function from a batch of ``schema`` to the expression's values, an array of the batch's length.

    It raises ``DataflowError``, naming the expression and the reason, for an overflow, a failed cast or a
    division of integers by zero.
    """
    evaluate = _compile(expression.tree, schema)
    nothing = pa.nulls(0, arrow_type(expression.type))

    def values(batch: pa.RecordBatch) -> Any:
        if not batch.num_rows:
            return nothing  # where not even a constant may fail
        try:
            return _as_array(evaluate(batch), batch.num_rows)
        except DataflowError as error:
            raise DataflowError(f"{error.what}, in the expression {expression.sql!r}") from None

    return values


def _compile(node: Node, schema: pa.Schema) -> Evaluator:
    match node:
        case ColumnRef(name):
            index = schema.get_field_index(name)
            return lambda batch: batch.column(index)
        case Literal(value):
            scalar = pa.scalar(value, arrow_type(type_of(node)))
            return lambda _: scalar
        case Call(function) if function in _SPECIAL:
            return _SPECIAL[function](node, [_Part(each, schema) for each in node.arguments])
        case Call():
            return _compile_call(node, [_compile(each, schema) for each in node.arguments])


def _compile_call(call: Call, arguments: list[Evaluator]) -> Evaluator:
    compute = kernel(call)

    def evaluate(batch: pa.RecordBatch) -> Any:
        values = [argument(batch) for argument in arguments]
        constant = all(isinstance(value, pa.Scalar) for value in values)
        try:
            return compute(*[_as_array(value, 1) for value in values])[0] if constant else compute(*values)
        except pa.ArrowInvalid as error:
            raise DataflowError(f"{error} in {call.sql}") from None

    return evaluate


class _Part:
    """An argument of which only the rows that SQL asks for are evaluated, if it could fail for others."""

    def __init__(self, node: Node, schema: pa.Schema) -> None:
        self._evaluate = _compile(node, schema)
        self._guarded = may_fail(node)
        self._type = arrow_type(type_of(node))

    def all(self, batch: pa.RecordBatch) -> Any:
        return _as_array(self._evaluate(batch), batch.num_rows)

    def where(self, mask: Any, batch: pa.RecordBatch) -> Any:
        """Its values in the rows of ``mask`` (without nulls); in others its values or null."""
        if not self._guarded:
            return self.all(batch)
        rows = batch.filter(mask)
        if rows.num_rows == batch.num_rows:
            return self.all(batch)
        nothing = pa.nulls(batch.num_rows, self._type)
        return pc.replace_with_mask(nothing, mask, self.all(rows)) if rows.num_rows else nothing


def _and(_: Call, parts: list[_Part]) -> Evaluator:
    def evaluate(batch: pa.RecordBatch) -> Any:
        values = parts[0].all(batch)
        for part in parts[1:]:
            values = pc.and_kleene(values, part.where(pc.fill_null(values, True), batch))
        return values

    return evaluate


def _or(_: Call, parts: list[_Part]) -> Evaluator:
    def evaluate(batch: pa.RecordBatch) -> Any:
        values = parts[0].all(batch)
        for part in parts[1:]:
            values = pc.or_kleene(values, part.where(pc.invert(pc.fill_null(values, False)), batch))
        return values

    return evaluate


def _coalesce(_: Call, parts: list[_Part]) -> Evaluator:
    def evaluate(batch: pa.RecordBatch) -> Any:
        values = parts[0].all(batch)
        for part in parts[1:]:
            values = pc.coalesce(values, part.where(pc.is_null(values), batch))
        return values

    return evaluate


def _case(call: Call, parts: list[_Part]) -> Evaluator:
    branches = list(zip(parts[:-1:2], parts[1:-1:2], strict=True))
    type_ = arrow_type(call.type)

    def evaluate(batch: pa.RecordBatch) -> Any:
        open_ = pa.repeat(pa.scalar(True), batch.num_rows)
        chosen = []
        for condition, value in branches:
            mine = pc.and_(open_, pc.fill_null(condition.where(open_, batch), False))
            chosen.append((mine, value.where(mine, batch)))
            open_ = pc.and_(open_, pc.invert(mine))
        result = parts[-1].where(open_, batch)
        for mine, values in reversed(chosen):
            result = pc.if_else(mine, values, result)
        return result.cast(type_)

    return evaluate


def _as_array(value: Any, rows: int) -> Any:
    return pa.repeat(value, rows) if isinstance(value, pa.Scalar) else value


_SPECIAL: dict[str, Callable[[Call, list[_Part]], Evaluator]] = {
    "and": _and,
    "or": _or,
    "coalesce": _coalesce,
    "case": _case,
}
