"""Frames and messages as bytes: encode, parse, check. Pure: no I/O, no time."""
