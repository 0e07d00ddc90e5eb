"""What a coordinator is to the runtime: a pure core, one for each partition of an internal topic.

The runtime gives it requests, timers and records, and carries out what it decides. It knows nothing else of a core, so that
groups on ``__consumer_offsets`` and transactions on ``__transaction_state`` run on the same one.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple, Protocol, TypeVar

from coordinator.runtime.effects import Effects, ReplyToken, TimerName
from protocol.errors import ErrorCode
from protocol.messages import Response

Encoded = tuple[bytes, bytes | None]
"""Key and value of a record; a value of None is a tombstone."""


class LateAnswer(NamedTuple):
    """An answer that is given after ``wait_ms``."""

    response: Response
    wait_ms: int


class Core(Protocol):
    """State that is made of records only, and the decisions about it.

    No method does I/O, reads a clock or waits. An exception is a fault of the core: its state is thrown away, and a new core
    is made from the log.
    """

    WAITS_FOR_OTHERS: ClassVar[Collection[str]]
    """Kinds of timers, the first part of their names, that end the patience with a client.

    What clients sent while the process was stopped has not been read: these timers give them time (see ``timers``).
    """

    @property
    def config(self) -> Any:
        """The configuration that each ``Step`` has."""

    def decide(self, request: Any, step: Any) -> Effects:
        """Decides a request. It is answered once, by the effects of this step or of a later one."""

    def on_timer(self, name: TimerName, step: Any) -> Effects:
        """Decides a timer that fired; it may be void by now."""

    def abandon(self, token: ReplyToken, step: Any) -> Effects:
        """Decides that the connection of a request closed that has no answer yet."""

    def apply(self, record: Any) -> None:
        """Changes durable state, live and at replay. Nothing else does."""

    def loaded(self, step: Any) -> Iterator[None]:
        """The log has been replayed: makes soft state of it, in steps of bounded work. The runtime asks nothing before the
        last."""

    def unload(self, step: Any) -> Effects:
        """Answers everything that waits, cancels all timers and forgets all state: another node serves it, or none."""

    def durable_state(self) -> Any:
        """What a replay of the log must give back, compared with ``==``."""

    def encode(self, records: Sequence[Any]) -> Iterator[Encoded | None]:
        """Key and value of each record, in their order; None in between where others should have their turn."""

    def decode(self, encoded: Iterable[Encoded]) -> Iterator[Any | None]:
        """The record of each key and value, in their order, but of kinds that this version does not know.

        None in between where others should have their turn. Raises ``ProtocolError`` when the bytes are no record.
        """

    def refusal(self, request: Any, code: ErrorCode, message: str) -> Response:
        """The answer to a request that carries nothing but an error."""

    def while_loading(self, request: Any) -> LateAnswer | None:
        """What a request is answered while the log is being read; None to refuse it."""

    @staticmethod
    def request_is_about(request: Any) -> str:
        """What a request is about, such as a group, or "".

        It waits while a decision about the same is carried out in slices (see ``Effects.begin``), and its answer leaves
        after those that were given about the same before.
        """

    @staticmethod
    def timer_is_about(name: TimerName) -> str:
        """What a timer is about, or ""; it waits as requests do."""


AnyCore = TypeVar("AnyCore", bound=Core)

MovesTimers = Callable[[AnyCore, Any, str, int], "Mapping[TimerName, int | None] | None"]
"""Gets a core, a request, name and version of what its client runs, and the time in ms. Decides the request if all that
comes of it are timers that move, and gives these; None otherwise, and nothing has changed: ``decide`` it."""
