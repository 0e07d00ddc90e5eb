"""Sentences for people: who a member is, and why a rebalance happens. All of them bounded."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from coordinator.groups.member import Member
from protocol.names import printable

MAX_CAUSES: Final = 5
"""A rebalance names so many of its causes; a thousand members that join together are five names and a number."""

MAX_NAMES: Final = 5
"""A list of members names so many of them."""

MAX_NAME_CHARS: Final = 120
"""A member id or client id is cut to this many characters in a sentence."""


class Causes:
    """Why the rebalance that is going on is going on: the first few causes in order, and how many more there were."""

    __slots__ = ("_more", "_text", "_texts")

    def __init__(self) -> None:
        self._texts: list[str] = []
        self._more = 0
        self._text = ""

    def add(self, text: str) -> None:
        """Adds one cause; beyond ``MAX_CAUSES`` it is only counted."""
        if len(self._texts) < MAX_CAUSES:
            self._texts.append(text)
        else:
            self._more += 1
        self._text = ""

    def text(self) -> str:
        """All of it in one line."""
        if not self._text:
            self._text = "; ".join(self._texts) + (f"; and {self._more} more" if self._more else "")
        return self._text


def clipped(text: str, max_chars: int = MAX_NAME_CHARS) -> str:
    """``text``, cut so that it has at most ``max_chars`` characters.

    Names are any text. What a terminal would obey instead of showing it is spelled out: a sentence stays one line of a log.
    """
    return printable(text if len(text) <= max_chars else text[: max_chars - 3] + "...")


def described(member: Member) -> str:
    """A member by its id and client; a static one also by its instance id."""
    static = "" if member.group_instance_id is None else f", group_instance_id {clipped(member.group_instance_id)}"
    return f"member {clipped(member.member_id)} (client {clipped(member.client_id)}{static})"


def listed(members: Sequence[Member]) -> str:
    """Several members by their ids."""
    names = ", ".join(clipped(member.member_id) for member in members[:MAX_NAMES])
    more = f" and {len(members) - MAX_NAMES} more" if len(members) > MAX_NAMES else ""
    return f"{'member' if len(members) == 1 else 'members'} {names}{more}"


def with_reason(text: str, reason: str, max_chars: int) -> str:
    """``text``, followed by the reason a client gave, if it gave one; line breaks become spaces."""
    given = clipped(" ".join(reason.split()), max_chars)
    return f"{text}: {given}" if given else text


def counted(number: int, noun: str) -> str:
    """A number and its noun."""
    return f"{number} {noun}{'' if number == 1 else 's'}"
