from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "spark.md"


@pytest.mark.spark
def test_the_program_of_the_page_runs_as_it_stands(tmp_path):
    blocks = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text("utf-8"), re.MULTILINE | re.DOTALL)
    program = tmp_path / "page.py"
    program.write_text("\n".join(blocks), "utf-8")
    ran = subprocess.run(
        [sys.executable, str(program)], capture_output=True, encoding="utf-8", timeout=110, check=False
    )

    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.splitlines() == [
        "0 numbers/0 50000 50000",
        "1 numbers/1 50000 50000",
        f"Row(sum(n)={2 * 10 * sum(range(100))})",
        "3 words",
        "1000 answers",
    ]
