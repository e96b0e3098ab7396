"""The receiver's ends of the control connections of senders."""

from __future__ import annotations

from typing import TYPE_CHECKING

from netchannel.core.accepted import AcceptedControl
from netchannel.errors import ProtocolError
from netchannel.wire import messages

if TYPE_CHECKING:
    from collections.abc import Callable

    from netchannel.core.accepted import Connections
    from netchannel.core.link import Core
    from netchannel.wire.declared import Message

    from .inbound import InboundChannel


class ReceiverControl(AcceptedControl):
    """The receiver's end of a sender's control connection."""

    role, other_role = b"receiver", b"sender"
    features = messages.TAKES

    def __init__(
        self,
        core: Core,
        connections: Connections,
        remote: str,
        *,
        on_open: Callable[[ReceiverControl, messages.Open, float], None],
        on_lost: Callable[[ReceiverControl, str, float], None],
    ) -> None:
        super().__init__(core, connections, remote)
        self.channels: dict[InboundChannel, None] = {}
        self.waiting: set[str] = set()
        self.tokens: dict[str, bytes] = {}  # that are out, by channel
        self._on_open = on_open
        self._on_lost = on_lost

    def told(self, message: Message, now: float) -> None:
        if not isinstance(message, messages.Open):
            raise ProtocolError(f"{self.peer} sent {message.kind!r}, which a sender does not send")
        self._on_open(self, message, now)

    def _lost(self, reason: str, now: float) -> None:
        self._on_lost(self, reason, now)
