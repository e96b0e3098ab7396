"""Driving workers from outside: deployments, their supervision, and workers on this machine."""
