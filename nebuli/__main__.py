"""``nebuli``, and ``python -m nebuli``."""

import locale
import os
import sys


def main() -> None:
    """Run the command line and exit with its code; if a package is missing, name it."""
    _use_utf8()
    try:
        from nebuli.cli import main as run

        run()
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] in sys.modules:  # a part of one that is there
            raise
        sys.exit(f"Error: nebuli needs the package {error.name}, which is not installed: pip install nebuli")


def _use_utf8() -> None:
    """Start again in Python's UTF-8 mode where the locale would decide how paths and pipes are encoded.

    The processes that this one starts have the mode, too. The terminal's encoding is the locale's still.
    """
    if sys.getfilesystemencoding() == "utf-8" or os.environ.get("PYTHONUTF8") == "1":
        os.environ.pop("PYTHONIOENCODING", None)  # this process' own: pipes between processes are UTF-8
        return
    environment = {"PYTHONIOENCODING": locale.getencoding(), **os.environ, "PYTHONUTF8": "1"}
    os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], environment)  # noqa: S606 - the same command


if __name__ == "__main__":
    main()
