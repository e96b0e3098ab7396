"""``python -m nebuli``."""

from nebuli.cli import main

if __name__ == "__main__":
    main()
