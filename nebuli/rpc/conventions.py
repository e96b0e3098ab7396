"""What a worker says beside its messages."""

REFUSAL_KEY = "nebuli-refusal-bin"
"""The trailing metadata under which an error carries a ``Refusal``."""
READY_PREFIX = "worker ready: "
"""How the line begins that a worker prints on stderr once it can be called; its addresses follow."""
