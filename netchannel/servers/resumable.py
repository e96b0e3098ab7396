"""Asynchronous iterators that a cancelled call does not end."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Generic, Self, TypeVar

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable

Item_co = TypeVar("Item_co", covariant=True)


class Resumable(AsyncIterator[Item_co], Generic[Item_co]):
    """Items of a generator. A cancelled call has taken none, and the next call continues.

    An asynchronous generator ends with a call that is cancelled, which looks like a clean end to whoever calls again.
    So ``generate`` is given `restart`, which it calls before it passes a cancellation on. It must hold no item while it
    waits, and keep its place outside of itself.
    """

    def __init__(self, generate: Callable[[Callable[[], None]], AsyncGenerator[Item_co]]) -> None:
        self._generate = generate
        self.restart()

    def restart(self) -> None:
        """Let the next call begin a new generator."""
        self._next = self._generate(self.restart).__anext__

    def __aiter__(self) -> Self:
        return self

    def __anext__(self) -> Awaitable[Item_co]:
        # Not a coroutine: the generator's own awaitable costs a message nothing but this call.
        return self._next()
