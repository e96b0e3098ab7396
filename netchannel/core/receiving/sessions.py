"""The receiver's ends of the control connections of senders."""

from __future__ import annotations

from typing import TYPE_CHECKING

from netchannel.core.accepted import AcceptedControl
from netchannel.core.link import Closing
from netchannel.errors import ProtocolError
from netchannel.reporting import log
from netchannel.wire import messages

from .borrowing import Borrowing

if TYPE_CHECKING:
    from collections.abc import Callable

    from netchannel.core.accepted import Connections
    from netchannel.core.link import Core
    from netchannel.wire.declared import Message

    from .inbound import InboundChannel


class ReceiverControl(AcceptedControl):
    """The receiver's end of a sender's control connection."""

    role, other_role = b"receiver", b"sender"
    features = messages.TAKES | {messages.ENDS}

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
        self.borrowing: Borrowing | None = None  # memory that the sender may share
        self._on_open = on_open
        self._on_lost = on_lost

    def connected(self, now: float) -> None:
        if self.local and self.core.sharing is not None:
            self.features |= {messages.MEMORY}
        super().connected(now)

    def established(self, now: float) -> None:
        super().established(now)
        if not self.local or self.closing is not Closing.OPEN:
            return
        if self.core.sharing is not None:
            self.borrowing = Borrowing(self.core, self.core.sharing, self.peer, self.say)
        elif self.core.sharing_is_off:
            log.info("%s sends no messages in shared memory: shared_memory is 0 here", self.peer)

    def told(self, message: Message, now: float) -> None:
        match message:
            case messages.Open():
                self._on_open(self, message, now)
            case messages.Share() if self.borrowing is not None:
                self.borrowing.asked(message.place)
            case _:
                raise ProtocolError(f"{self.peer} sent {message.kind!r}, which a sender does not send here")

    def _lost(self, reason: str, now: float) -> None:
        if self.borrowing is not None:
            self.borrowing.close()
        self._on_lost(self, reason, now)
