"""The processes of fragments: how they begin, run and end."""
