"""The epochs that staged channels have committed, by which those that are over still answer."""

from __future__ import annotations

from typing import TYPE_CHECKING

from netchannel.core.receiving.requests import CommitService
from netchannel.wire import messages

if TYPE_CHECKING:
    from collections.abc import Mapping

    from netchannel.core.receiving.requests import RequestControl


def answered_by(
    epochs: Mapping[str, int], channel_id: str, client: RequestControl, message: messages.Commit
) -> bool:
    """True if the last committed epochs answer this commit; then they have."""
    application, epoch = message.application, message.epoch
    last = epochs.get(application)
    if last == epoch:
        client.answer(message, fresh=False)
        return True
    if last is not None and epoch < last:
        text = f"epoch {epoch} of application {application!r} is below epoch {last}, which is committed"
        client.deny(message, "regressed", f"channel {channel_id!r}: {text}")
        return True
    return False


def regression(epochs: Mapping[str, int], application: str, epoch: int) -> str | None:
    """Why there is no attempt at the epoch any more, if it is committed, or below one that is."""
    last = epochs.get(application, -1)
    if epoch > last:
        return None
    return f"epoch {epoch} of application {application!r} is closed: epoch {last} is committed"


class EpochLedger(CommitService):
    """The remains of a channel: the last epoch of each application, and ``why`` nothing is taken any more."""

    def __init__(self, channel_id: str, epochs: Mapping[str, int], why: str) -> None:
        self._channel_id = channel_id
        self._epochs = epochs
        self._why = why

    def regressed(self, application: str, epoch: int) -> str | None:
        return regression(self._epochs, application, epoch)

    def asked(self, client: RequestControl, message: messages.Question, now: float) -> bool:
        match message:
            case messages.Commit():
                if not answered_by(self._epochs, self._channel_id, client, message):
                    client.deny(message, "ended", self._why)
            case messages.Forget():
                client.deny(message, "ended", self._why)
            case messages.Drop():
                client.answer(message)
            case messages.Epoch():
                client.answer(message, epoch=self._epochs.get(message.application))
            case _:
                return False
        return True
