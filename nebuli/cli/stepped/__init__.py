"""The parts of commands that concern queries in steps."""
