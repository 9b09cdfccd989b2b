"""Cores as tables: what each of their states does with each message, by numbers."""

from __future__ import annotations

import copy
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass
from typing import Generic, TypeVar

S = TypeVar("S")


@dataclass(frozen=True, slots=True)
class Message:
    """A datagram, or ``data`` None: something else that happens to a core, ``what``. ``to``: a rank or a switch;
    ``rank``: who sends it, or gets it from a switch."""

    to: int
    rank: int
    data: bytes | None
    what: str = ""


class Table(Generic[S]):
    """A core as a table: states by number, and what each does with each message."""

    def __init__(
        self, first: S, key: Callable[[S], Hashable], step: Callable[[S, Message], list[Message]], post: Post
    ) -> None:
        self.states = [first]
        self._key, self._step, self._post = key, step, post
        self._numbers = {key(first): 0}
        self._known: dict[tuple[int, int], tuple[int, int]] = {}

    def step(self, state: int, message: int) -> tuple[int, int]:
        """The next state, and a bit for each message that is sent."""
        known = self._known.get((state, message))
        if known is None:
            core = copy.deepcopy(self.states[state])
            sent = self._post.bits(self._step(core, self._post.messages[message]))
            known = self._known[state, message] = self.number(core), sent
        return known

    def number(self, core: S) -> int:
        """The number of a state."""
        key = self._key(core)
        number = self._numbers.setdefault(key, len(self.states))
        if number == len(self.states):
            self.states.append(core)
        return number


class Post:
    """Messages by number."""

    def __init__(self) -> None:
        self.messages: list[Message] = []
        self._numbers: dict[Message, int] = {}

    def number(self, message: Message) -> int:
        number = self._numbers.setdefault(message, len(self.messages))
        if number == len(self.messages):
            self.messages.append(message)
        return number

    def bits(self, messages: Iterable[Message]) -> int:
        return sum({1 << self.number(message) for message in messages})
