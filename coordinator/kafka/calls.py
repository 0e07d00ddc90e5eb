"""Requests of Kafka clients under way, and the requests of Cohort's own that are made of them.

A Kafka request is a ``KafkaCall`` of its connection, as any request that came over the wire. Its translator asks handlers of
the daemon, each by an ``Asked``: a call whose request is Cohort's own, and whose answer goes to the translator. The client
waits for the ``KafkaCall`` only; when it is gone, so is all that was asked for it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Final, NamedTuple, TypeVar, cast

from coordinator.server.call import NO_ERRORS, Client, Handler, Steps, StepsLeft
from coordinator.server.connection import Connection
from coordinator.server.dispatch import STEP, WireCall, tell_failure
from protocol.codec import decode_message
from protocol.errors import ErrorCode
from protocol.framing import RequestFrame, unpack
from protocol.kafka.schema import Message
from protocol.messages import Request, Response


class Translator(NamedTuple):
    """How requests of one API key are served."""

    request: type[Message]
    handle: Callable[[KafkaCall], StepsLeft]
    """Answers the call, now or later; returns the steps that are left to do, if there are any."""
    refusal: Callable[[Any, int, ErrorCode, str], Message]
    """The answer to a request, of a version, that says an error of all that was asked."""


class Api(NamedTuple):
    """An API key as it is served: from the first to the last version."""

    key: int
    first: int
    last: int
    translator: Translator


@dataclass(slots=True)
class KafkaRequest(Request):
    """A message of a Kafka client, and by what its answer is told to belong to it."""

    api: Api
    version: int
    correlation_id: int
    message: Message
    is_unknown_version: bool = False
    """Of ApiVersions: it was asked in a version that is not served, and is answered in version 0 (KIP-511)."""


@dataclass(slots=True)
class KafkaResponse(Response):
    """The answer to a ``KafkaRequest``, of its version."""

    message: Message
    refused: ErrorCode = ErrorCode.NONE
    """Why the request as a whole is refused; many of Kafka's answers say that of each of their parts only."""


Told = Callable[[Any], asyncio.Task[None] | None]
"""Gets an answer of Cohort's own; returns the task that makes Kafka's of it, where that takes more than a step."""

_Item = TypeVar("_Item")

_NO_PARTS: Final[tuple[Asked, ...]] = ()
"""Also of a call that is over: it and its parts know one another, and what is in a circle stays in memory for long."""


class KafkaCall(WireCall):
    """A request of a Kafka client, from its decoding to its answer."""

    __slots__ = ("_parts", "api", "message", "version")

    def __init__(self, connection: Connection, frame: RequestFrame, request: Request, charge: int) -> None:
        super().__init__(connection, frame, request, charge)
        kafka = cast("KafkaRequest", request)
        self.api = kafka.api
        self.version = kafka.version
        self.message: Any = kafka.message
        self._parts: Collection[Asked] = _NO_PARTS

    def reply(self, message: Message) -> None:
        """Sends the answer."""
        self.answer(KafkaResponse(message))
        self._parts = _NO_PARTS

    def finish_silently(self) -> None:
        """See ``Call``."""
        super().finish_silently()
        self._parts = _NO_PARTS

    def refuse(self, code: ErrorCode, message: str) -> None:
        """See ``Call``: Kafka has no answer that fits any request, so each kind says an error in its own way."""
        self.answer(KafkaResponse(self.api.translator.refusal(self.message, self.version, code, message), code))
        self._parts = _NO_PARTS

    def ask(self, handler: Handler, request: Request, told: Told) -> StepsLeft:
        """Has ``handler`` decide a request of Cohort's own; ``told`` gets its answer, unless the client is gone.

        Returns the steps that are left to do, if there are any: for the translator to return.
        """
        part = Asked(self, request, told)
        if isinstance(self._parts, list):
            self._parts.append(part)
        else:
            self._parts = [part]
        return handler(part)

    def ask_for_each(self, items: Collection[_Item], ask: Callable[[_Item], object]) -> StepsLeft:
        """Calls ``ask`` with each of ``items``, to ask something for it; of many in steps, until the call is over.

        Returns the steps that are left to do, if there are any: for the translator to return.
        """
        steps = self._asking(items, ask)
        if len(items) > STEP:
            return steps
        for _ in steps:
            pass  # so few that there is no step between
        return None

    def _asking(self, items: Collection[_Item], ask: Callable[[_Item], object]) -> Steps:
        for number, item in enumerate(items):
            if number and number % STEP == 0:
                yield None
            if not self.open:
                return
            ask(item)

    def abandon(self) -> None:
        """The connection is gone: nothing will be answered."""
        super().abandon()
        self.give_up()

    def give_up(self) -> None:
        """What was asked for this call is not waited for any more."""
        parts, self._parts = self._parts, _NO_PARTS
        for part in parts:
            part.abandon()


class Asked:
    """A ``Call`` of one of Cohort's own requests, which a Kafka request became."""

    __slots__ = ("_kafka", "_making", "_told", "client_id", "connection", "on_abandon", "open", "request")

    of_kafka: ClassVar[bool] = True

    def __init__(self, kafka: KafkaCall, request: Request, told: Told) -> None:
        self.connection: Client = kafka.connection
        self.client_id = kafka.client_id
        self.request = request
        self.open = True
        self.on_abandon: Callable[[], object] | None = None
        self._kafka = kafka
        self._told = told
        self._making: asyncio.Task[None] | None = None

    def answer(self, response: Response) -> None:
        """See ``Call``."""
        if self.open:
            self.open = False
            self.on_abandon = None
            try:
                self._making = self._told(response)
            except Exception:  # of ours; it must not keep others from the answers of the same decision
                tell_failure(self._kafka)

    async def until_its_turn(self) -> None:
        """See ``Call``."""
        await self._kafka.until_its_turn()

    def answer_packed(self, head: bytes, body: bytes, errors: Mapping[int, int] = NO_ERRORS) -> None:
        """See ``Call``: it is unpacked again."""
        self.answer(decode_message(type(self.request).response, unpack(head + body)))

    def refuse(self, code: ErrorCode, message: str) -> None:
        """See ``Call``."""
        if self.open:
            self.open = False
            self.on_abandon = None
            self._kafka.refuse(code, message)

    def finish_silently(self) -> None:
        """See ``Call``."""
        if self.open:
            self.open = False
            self.on_abandon = None
            self._kafka.finish_silently()

    async def until_sent(self) -> None:
        """See ``Call``."""
        if self._making is not None:
            await asyncio.wait((self._making,))

    def keep_bytes(self) -> Callable[[], None]:
        """See ``Call``."""
        return self._kafka.keep_bytes()

    def abandon(self) -> None:
        """The client is gone."""
        if self.open:
            self.open = False
            on_abandon, self.on_abandon = self.on_abandon, None
            if on_abandon is not None:
                on_abandon()
