"""Calls drawn from a service's description, whose answers have to be as it says."""

from __future__ import annotations

from collections.abc import Callable

import schemathesis
from hypothesis import HealthCheck, Phase, given, settings, strategies
from schemathesis import GenerationMode
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
    unsupported_method,
)

from tests.support.sizes import examples

_CHECKS = [
    schemathesis.checks.not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_schema_conformance,
    unsupported_method,
]


def answers_as_described(
    url: str, method: str, path: str, change: Callable[[schemathesis.Case, bool], None]
) -> None:
    """Call it with what fits the description, and with a lot that does not.

    ``change`` is given each call before it is made, and whether it is to be of something that there is.
    """
    operation = schemathesis.openapi.from_url(f"{url}/openapi.json")[path][method]

    @given(
        case=operation.as_strategy() | operation.as_strategy(GenerationMode.NEGATIVE),
        is_known=strategies.booleans(),
    )
    @settings(
        max_examples=examples(15),
        deadline=None,
        derandomize=True,
        database=None,
        phases=[Phase.explicit, Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    def answers(case: schemathesis.Case, is_known: bool) -> None:
        change(case, is_known)
        case.call_and_validate(checks=_CHECKS, timeout=30)

    answers()
