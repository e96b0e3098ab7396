"""Conventions outside messages."""

REFUSAL_KEY = "nebuli-refusal-bin"
"""The trailing metadata under which an error carries a ``Refusal``."""
QUERY_KEY = "nebuli-query"
"""The metadata under which a call to a circuit names the query, where a worker has several."""
READY_PREFIX = "worker ready: "
"""How the line begins that a worker prints on stderr once it can be called; its addresses follow."""

VIEWS_AT = "127.0.0.1:7700"
"""Where ``nebuli run`` serves views, and ``nebuli view`` reads them, unless another address is given."""
