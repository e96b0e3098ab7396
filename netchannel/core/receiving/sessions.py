"""The receiver's ends of the control connections of senders."""

from __future__ import annotations

from typing import TYPE_CHECKING

from netchannel.core.connections import AcceptedControl
from netchannel.core.link import Closing
from netchannel.errors import ProtocolError
from netchannel.log_texts import log
from netchannel.wire import messages

from .borrower import Borrower

if TYPE_CHECKING:
    from collections.abc import Callable

    from netchannel.core.connections import Connections
    from netchannel.core.link import Core
    from netchannel.wire.declarations import Message

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
        self.borrower: Borrower | None = None  # memory that the sender may share
        self._on_open = on_open
        self._on_lost = on_lost

    def connected(self, now: float) -> None:
        if self.local and self.core.shared_memory is not None:
            self.features |= {messages.MEMORY}
        super().connected(now)

    def established(self, now: float) -> None:
        super().established(now)
        if not self.local or self.closing is not Closing.OPEN:
            return
        if self.core.shared_memory is not None:
            self.borrower = Borrower(self.core, self.core.shared_memory, self.peer, self.say)
        elif self.core.sharing_is_off:
            log.info("%s sends no messages in shared memory: shared_memory is 0 here", self.peer)

    def told(self, message: Message, now: float) -> None:
        match message:
            case messages.Open():
                self._on_open(self, message, now)
            case messages.Share() if self.borrower is not None:
                self.borrower.asked(message.place)
            case _:
                raise ProtocolError(f"{self.peer} sent {message.kind!r}, which a sender does not send here")

    def _lost(self, reason: str, now: float) -> None:
        if self.borrower is not None:
            self.borrower.close()
        self._on_lost(self, reason, now)
