"""``nebuli``, and ``python -m nebuli``."""

import sys


def main() -> None:
    """Run the command line and exit with its code; where a package is missing, say which."""
    try:
        from nebuli.cli import main as run

        run()
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] in sys.modules:  # a part of one that is there
            raise
        sys.exit(f"Error: nebuli needs the package {error.name}, which is not installed: pip install nebuli")


if __name__ == "__main__":
    main()
