"""How a circuit shows itself in a notebook."""

from __future__ import annotations

import pyarrow as pa
import pytest

import nebuli
from nebuli import blocking


@pytest.mark.parametrize("kind", [nebuli.Circuit, blocking.Circuit])
def test_a_circuit_is_a_table_of_its_inputs_and_outputs(
    kind: type[nebuli.Circuit | blocking.Circuit],
) -> None:
    circuit = kind("127.0.0.1:1/<b>")
    of = circuit._client if isinstance(circuit, blocking.Circuit) else circuit
    of.inputs = {"a<b": pa.schema({"n": pa.int64(), "word": pa.string()})}
    of.outputs = {"totals": pa.schema({"n": pa.int64()})}
    assert circuit._repr_html_() == (
        "<table><caption>Circuit 127.0.0.1:1/&lt;b&gt;</caption>"
        "<tr><th>input</th><td>a&lt;b</td><td>n: int64, word: string</td></tr>"
        "<tr><th>output</th><td>totals</td><td>n: int64</td></tr></table>"
    )
