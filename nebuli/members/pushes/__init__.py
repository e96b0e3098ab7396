"""Pushes: from the coordinator's process, where producers call, into the input log of a member."""
