"""Draw the terminal of `make demo`: ``python -m tests.docs.demo_picture`` writes `docs/images/demo.svg`."""

from __future__ import annotations

import io
import re
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

from rich._export_format import CONSOLE_SVG_FORMAT
from rich.console import Console
from rich.text import Text

from tests.docs.markdown import ROOT

PICTURE = ROOT / "docs" / "images" / "demo.svg"
_FILES = ("examples/flights/topology.yaml", "examples/flights/query.json")
# The format names fonts of a server elsewhere: a page loads none of these.
_FORMAT = re.sub(r"@font-face \{\{.*?\}\}\s*", "", CONSOLE_SVG_FORMAT, flags=re.DOTALL)
_GROUP = "{http://www.w3.org/2000/svg}g"
_LINE = "{http://www.w3.org/2000/svg}text"
_TIMEOUT_S = 250


def printed() -> str:
    """What the commands of the demo print, in the order in which they print it."""
    program = Path(sys.executable).with_name("nebuli")
    outputs = [
        subprocess.run(
            [program, command, *_FILES],
            cwd=ROOT,
            check=True,
            timeout=_TIMEOUT_S,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            encoding="utf-8",
        ).stdout
        for command in ("place", "run")
    ]
    return "\n".join(outputs)


def drawn(text: str) -> str:
    """A terminal with this text, as SVG."""
    text = f"$ make demo\n{text.rstrip()}"
    console = Console(record=True, file=io.StringIO(), width=max(map(len, text.splitlines())) + 1)
    console.print(Text(text))
    return console.export_svg(title="netchannel", code_format=_FORMAT, unique_id="demo") + "\n"


def lines_of(picture: str) -> list[str]:
    """The lines of a picture, from the top, the command left out."""
    rows: dict[float, list[tuple[float, str]]] = {}
    for group in ElementTree.fromstring(picture).iter(_GROUP):
        if group.get("class") == "demo-matrix":
            for part in group.iter(_LINE):
                words = (part.text or "").replace("\N{NO-BREAK SPACE}", " ")
                rows.setdefault(float(part.attrib["y"]), []).append((float(part.attrib["x"]), words))
    lines = ["".join(words for _, words in sorted(row)).rstrip() for _, row in sorted(rows.items())]
    return lines[1:]


if __name__ == "__main__":
    PICTURE.parent.mkdir(exist_ok=True)
    PICTURE.write_text(drawn(printed()), "utf-8")
