"""A circuit from its first epoch to its end, with its coordinator in this process and its members anywhere."""
