"""The interface of a staged channel's files. `netchannel.storage.groups.staged_files` has them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from netchannel.core.receiving.roles import Feed

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from netchannel.core.link import Job
    from netchannel.core.receiving.inbound import InboundChannel
    from netchannel.errors import NetChannelError
    from netchannel.values import AttemptKey

    from .attempts import Attempt, AttemptDecoder, SealedFile

    Then = Callable[[NetChannelError | None, float], None]
    """Called when something is on the disk, or with why it is not, or may not be."""


class Feeder(Feed, Protocol):
    """Brings what is committed into the channel's queue. ``busy`` while it reads."""

    busy: bool

    @property
    def at_head(self) -> bool:
        """True if the channel has received all committed messages."""

    def request(self) -> None:
        """There may be more to read, and room for it."""


class Files(Protocol):
    """The committed messages of a stream, from ``oldest`` to ``head``, and attempts that may become more of it.

    All that is known here is on the disk. Changes are made in jobs, one at a time; ``settled`` once the files are
    closed.
    """

    feeder: Feeder
    settled: bool

    @property
    def stream(self) -> str:
        """The identity of the stream."""

    @property
    def oldest(self) -> int:
        """The lowest number that can be read."""

    @property
    def acknowledged(self) -> int:
        """The number below which everything is done."""

    @property
    def head(self) -> int:
        """The number of the next message that is committed."""

    @property
    def ended(self) -> bool:
        """True if the stream has its end."""

    @property
    def schema(self) -> bytes | None:
        """The schema of the messages, if there are any under the codec ``arrow``."""

    @property
    def epochs(self) -> Mapping[str, int]:
        """The last epoch that is committed, by application."""

    @property
    def found(self) -> Sequence[SealedFile]:
        """SealedFile attempts that were there at the beginning."""

    @property
    def kept_bytes(self) -> int:
        """The size of what is committed."""

    @property
    def spare_bytes(self) -> int:
        """The size of files that are to be written again."""

    @property
    def doubtful(self) -> bool:
        """True if the disk has failed: nothing is freed any more."""

    def begin_attempt(self, key: AttemptKey, channel: InboundChannel, decoder: AttemptDecoder) -> Attempt:
        """Write what comes on ``channel``."""

    def do(self, step: Callable[[], Job | None]) -> None:
        """Have ``step`` decide, when its turn comes, what there is to do: a job of these files, or nothing."""

    def commit(
        self, application: str, epoch: int, winners: Sequence[SealedFile], *, end: bool, then: Then
    ) -> Job:
        """The job that makes a group of attempts part of the stream."""

    def forget(self, application: str, then: Then) -> Job:
        """The job that forgets the last epoch of an application."""

    def drop(self, attempts: Sequence[SealedFile], then: Then) -> Job:
        """The job that deletes attempts."""

    def remove(self, attempts: Sequence[SealedFile]) -> None:
        """Delete attempts when there is nothing else to do."""

    def request(self) -> None:
        """There may be something to do: more is acknowledged, or an attempt is over."""

    def leave(self) -> None:
        """The channel is over: close the files, once all else is done."""
