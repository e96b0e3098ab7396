"""``netchannel``, and ``python -m netchannel``."""

import os
import sys
from typing import NoReturn


def main() -> NoReturn:
    """Run the command line, and exit with its code."""
    from netchannel.cli.channel_commands import main as run

    code = run()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # a thread may wait for standard input still, and Python would wait for that


if __name__ == "__main__":
    main()
