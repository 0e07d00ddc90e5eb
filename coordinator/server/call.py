"""What the handlers of requests need of a request under way, and of the client that asked.

Each port makes calls of its own: on the native port ``coordinator.server.dispatch.WireCall``, whose request came over the
wire; on the Kafka port ``coordinator.kafka.calls``, where one of Cohort's own requests stands for what a Kafka client asked,
and its answer is translated. A handler cannot tell one from the other.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator, Iterator, Mapping
from types import MappingProxyType
from typing import Any, Final, Protocol

from coordinator.runtime.fair_queue import FairQueue
from coordinator.server.budget import ByteBudget
from coordinator.server.unread_answers import UnreadAnswers
from protocol.errors import ErrorCode
from protocol.messages import Request, Response

NO_ERRORS: Final[Mapping[int, int]] = MappingProxyType({})
"""Of an answer without error codes."""


class Client(Protocol):
    """The connection that a request came by."""

    @property
    def peer(self) -> str:
        """Address and port of the client, for the log."""

    @property
    def host(self) -> str:
        """Address of the client."""

    @property
    def software(self) -> str:
        """Name and version of what the client runs, as it says (KIP-511); empty until it has said so."""

    def introduce(self, name: str, version: str) -> None:
        """The client says what it runs."""

    @property
    def number(self) -> int:
        """No other connection of the daemon has it."""

    @property
    def local(self) -> tuple[str, int]:
        """Address and port by which the client has reached this node."""

    @property
    def budget(self) -> ByteBudget:
        """What all requests may hold."""

    @property
    def unread(self) -> UnreadAnswers[Any]:
        """What answers that are not read hold."""

    @property
    def fair_queue(self) -> FairQueue:
        """Where work waits for its turn."""

    @property
    def sending(self) -> asyncio.Lock:
        """Held while an answer of records is read and sent, so that one client's fetches pile up on disk, not in memory."""

    def prepare(self, size: int) -> None:
        """Counts an answer of ``size`` bytes that is being put together; 0 when it is sent, or not wanted any more."""

    async def until_uncongested(self) -> None:
        """Returns once the client has read its earlier answers, or is gone."""

    def close(self) -> None:
        """Closes once everything queued is sent."""

    def close_with(self, reason: str) -> None:
        """Closes because of what the client did, and says so in the log."""


class Call(Protocol):
    """One request under way: what was asked, by which client, and the way back for exactly one answer.

    Nothing happens when an answer comes after the client is gone. ``on_abandon`` is called when it goes before the answer.
    """

    on_abandon: Callable[[], object] | None

    request: Request
    """What was asked; not changed."""

    @property
    def connection(self) -> Client:
        """What it came by."""

    @property
    def client_id(self) -> str:
        """How the client calls itself."""

    @property
    def of_kafka(self) -> bool:
        """Whether a client of Kafka asks."""

    @property
    def open(self) -> bool:
        """Whether an answer is still wanted."""

    async def until_its_turn(self) -> None:
        """Returns once its answer would leave at once. What is large is put together after this: a Kafka client may ask for
        much behind a request that waits, whose answer has to leave first."""

    def answer(self, response: Response) -> None:
        """Sends the answer."""

    def answer_packed(self, head: bytes, body: bytes, errors: Mapping[int, int] = NO_ERRORS) -> None:
        """Sends the answer whose body is packed already, in two parts: of the second many answers may be made.

        ``errors`` says how often each error code is in it, for those who count.
        """

    def refuse(self, code: ErrorCode, message: str) -> None:
        """Answers the request as a whole with an error."""

    def finish_silently(self) -> None:
        """Ends a request that has no answer (Produce with acks 0)."""

    async def until_sent(self) -> None:
        """Returns once the answer that was given is on its way: a port may have to make its own of it first, which takes
        memory and time."""

    def keep_bytes(self) -> Callable[[], None]:
        """The request's bytes stay in memory beyond its answer; call what is returned once they do not."""


Steps = Generator["asyncio.Future[None] | None", None, None]
"""What is left to do of a request, step by step; each gives what to wait for before the next, or None."""

StepsLeft = Iterator["asyncio.Future[None] | None"] | None
"""What is left to do of a request, if anything: each step gives what to wait for before the next, or None."""

Handler = Callable[[Call], StepsLeft]
"""What is done with requests of one kind. It returns what is left to do in steps, if there is anything."""
