"""Calls: from the coordinator's process, where programs come in, to the logs of a member."""
