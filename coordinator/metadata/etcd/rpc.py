"""What the metadata store asks of etcd, without saying how it travels: ``calls`` asks real members, a simulation answers.

Keys are whole keys, values bytes. Every call is bounded. What may safely be asked twice is asked of one member after the
other until the time is over; a transaction is sent once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, Protocol

from coordinator.metadata.authority import Compare, KeyValue, Operation

Outcome = Literal["none", "unknown"]


def end_of_prefix(prefix: str) -> str:
    """The first key behind all that begin with ``prefix``, which is not empty. Keys are in the order of their characters."""
    last = ord(prefix[-1]) + 1
    return prefix[:-1] + chr(0xE000 if last == 0xD800 else last)  # surrogates are no characters


class EtcdUnavailableError(Exception):
    """No member gave an answer in time. ``outcome`` is "unknown" if what was asked may have taken effect, or still may."""

    def __init__(self, reason: str, outcome: Outcome) -> None:
        super().__init__(reason)
        self.outcome: Outcome = outcome


class EtcdRefusedError(Exception):
    """A member's answer is that it does not do this; nothing took effect."""


class LeaseOverError(EtcdRefusedError):
    """The lease that was named has ended, or never was."""


class RevisionsForgottenError(EtcdRefusedError):
    """A revision was asked for that is compacted."""


class StreamBrokenError(Exception):
    """A watch came to its end: its member is gone, silent, or without a leader. Watch again, from what is known."""


@dataclass(frozen=True, slots=True)
class Pace:
    """How long things may take, in ms."""

    call: int = 700
    """One answer of one member. etcd elects a leader within a second or two; another member may answer meanwhile."""
    silence: int = 1500
    """A watch that brings nothing for so long, though it was asked for its progress, is given up."""
    progress: int = 500
    """How often a watch is asked for its progress."""


@dataclass(frozen=True, slots=True)
class Access:
    """How members are reached. ``ca``, ``certificate`` and ``key`` are PEM; without ``ca`` the system's authorities."""

    tls: bool = False
    ca: bytes | None = None
    certificate: bytes | None = None
    key: bytes | None = None
    user: str = ""
    password: str = ""
    allow_old_etcd: bool = False


class Page(NamedTuple):
    """Keys of one revision of the store, sorted; ``more`` if the limit cut them short."""

    revision: int
    keys: list[KeyValue]
    more: bool


class Answer(NamedTuple):
    """Of a transaction: whether its conditions held, and the revision of the store after it."""

    revision: int
    succeeded: bool


class Happening(NamedTuple):
    """What became of a key at a revision; None if it was deleted."""

    revision: int
    key: str
    after: KeyValue | None


class News(NamedTuple):
    """One message of a watch.

    ``progress`` is the revision up to which the watch has told everything, if that is what the message says. A revision's
    happenings may come in parts: all but the last are ``unfinished``.
    """

    happenings: list[Happening]
    progress: int = 0
    unfinished: bool = False


class Watch(Protocol):
    """The happenings of a range of keys, from a revision on."""

    async def next(self) -> News:
        """The next message. Raises ``RevisionsForgottenError``, ``StreamBrokenError``, and the latter after a silence."""

    def ask_progress(self) -> None:
        """Has the member say how far it has told everything, when it has; at once, without waiting for the answer."""

    async def close(self) -> None:
        """Ends it."""


class Etcd(Protocol):
    """The calls. All but ``watch`` raise ``EtcdUnavailableError`` and ``EtcdRefusedError``.

    ``endpoints`` names the members for people.
    """

    endpoints: str

    async def range(self, first: str, end: str, *, limit: int, revision: int = 0, timeout_ms: int) -> Page:
        """The keys from ``first`` to before ``end`` as they are now, linearizable, or were at ``revision``.

        Raises ``RevisionsForgottenError``.
        """

    async def txn(self, compare: Sequence[Compare], operations: Sequence[Operation], *, timeout_ms: int) -> Answer:
        """A transaction; sent once, so its outcome may be "unknown". Raises ``LeaseOverError``."""

    async def grant(self, ttl_s: int, *, timeout_ms: int) -> tuple[int, int]:
        """A lease: its number, and its time to live in seconds, which may be longer than asked for."""

    async def keep_alive(self, lease: int, *, timeout_ms: int) -> bool:
        """Begins a lease's time anew; False when it is over."""

    async def revoke(self, lease: int, *, timeout_ms: int) -> int:
        """Ends a lease; the revision of the store after it. Raises ``LeaseOverError``."""

    async def watch(self, first: str, end: str, *, revision: int, timeout_ms: int) -> Watch:
        """Watches what happens to these keys from ``revision`` on, the happenings of that revision too."""

    async def close(self) -> None:
        """Ends all connections."""
