"""The suite as a whole."""

from __future__ import annotations

from .backpressure import Backpressure
from .calls import Calls
from .delivery import Delivery
from .ends import Ends
from .establishment import Establishment
from .outages import Outages
from .raw_connections import RawConnections
from .replay import Replay
from .staged_groups import StagedGroups
from .upstream import Upstream


# pytest runs the last one here first: the simplest failing test is the most informative.
class ChannelConformance(
    Calls,
    StagedGroups,
    Replay,
    Upstream,
    Outages,
    Ends,
    Backpressure,
    Delivery,
    Establishment,
    RawConnections,
):
    """Tests of all that a transport has to do: its connections one by one, then channels over them.

    Derive a class whose name begins with ``Test``, and override the fixture ``address``. A test that takes longer
    than ``time_limit_s`` fails.
    """
