"""What a decision of a core is given, and what it asks the runtime to do.

A core is pure: it gets a ``Step``, which has the time, its configuration and who asks, and fills in the step's ``Effects``.
The runtime takes these and, without yielding in between, (1) calls ``apply`` for each record, the one function that changes
durable state, and queues the records for the log; (2) sets and cancels timers; (3) sends each reply and carries out each
order once everything queued so far is on disk. A reply without records waits for earlier records too, or it would leak
state that a crash can still take back.

A decision about ten thousand members takes longer than others can wait. It is one decision all the same, but it is carried
out in slices of bounded work: the first is the step's own effects, and each of the others is an ``Effects`` that the
runtime asks for in a later turn of the loop (see ``Effects.begin`` and ``coordinator.runtime.unfinished``).
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from typing import Any, Final, Generic, NamedTuple, TypeVar

from protocol.messages.api import Response

Config = TypeVar("Config")

ReplyToken = int
"""Names one request that waits for its answer; the runtime knows which connection it belongs to. Each gets exactly one."""

TimerName = tuple[str, ...]
"""Names a timer of a core: its kind, such as "session", and what it is about."""


class Instant(NamedTuple):
    """A reading of both clocks: deadlines compare with ``ms``, which never steps; what is stored carries ``wall_ms``."""

    ms: int
    wall_ms: int


class Reply(NamedTuple):
    """The answer to one request."""

    token: ReplyToken
    response: Response


Given = tuple[ReplyToken, Any, Callable[[Any], Response] | None]
"""An answer as it is kept: the token and the response, or the token, what it is about and what makes the response of it."""


class Outgoing:
    """The answers of one decision, in their order. One that is made of something is made whenever it is looked at."""

    __slots__ = ("_given",)

    def __init__(self, given: list[Given]) -> None:
        self._given = given

    def __len__(self) -> int:
        return len(self._given)

    def __iter__(self) -> Iterator[Reply]:
        return map(_made, self._given)

    def __getitem__(self, index: int) -> Reply:
        return _made(self._given[index])

    def tokens(self) -> Iterator[ReplyToken]:
        """Who is answered, in the same order; no answer is made."""
        return (given[0] for given in self._given)

    def clear(self) -> None:
        """Nothing is answered."""
        self._given.clear()


def _made(given: Given) -> Reply:
    token, about, make = given
    return Reply(token, about if make is None else make(about))


class RequestContext(NamedTuple):
    """Who asks: what the runtime knows of a request beside its body."""

    token: ReplyToken
    client_id: str
    client_host: str
    connection: int = 0
    """The number of the connection, which no other has; 0 for none that could close."""
    client_software: str = ""
    """Name and version of what the client runs, as far as it has said so (KIP-511)."""
    of_kafka: bool = False
    """Whether a client of Kafka asks, over the port for those."""


Slices = Generator[None, "Effects", None]
"""The work of a decision: where it yields, others may have their turn, and it is sent the ``Effects`` of its next slice."""

Rest = tuple[str, Iterator["Effects"]]
"""What a decision is about, and the slices of it that are still to be carried out."""


NO_REQUEST: Final = RequestContext(0, "", "")
"""The context of a step that no request began, such as a timer. A reply to its token goes nowhere."""


class Note(NamedTuple):
    """An event for the log: its name in snake_case, and its fields."""

    event: str
    fields: dict[str, object]


class Effects:
    """The outcome of one decision.

    ``records`` are of the core's own classes. ``timers`` maps a name to its deadline in ms, or to None to cancel it.
    ``notes`` are events for the log: a rebalance and its reason, a member that was removed and why. ``orders`` are what
    others are to do once the records are on disk, None for none. ``rest`` are further slices of the decision, if it has
    any. No dataclass: every request makes one, at half the cost.
    """

    __slots__ = ("given", "notes", "orders", "records", "rest", "timers", "waits_since_s")

    waits_since_s: float
    """When it began to wait to be committed, where that has a bound: see ``answer_deadline``. Not set anywhere else."""

    def __init__(self) -> None:
        self.records: list[Any] = []
        self.given: list[Given] = []
        self.timers: dict[TimerName, int | None] = {}
        self.notes: list[Note] = []
        self.orders: list[object] | None = None
        self.rest: Rest | None = None

    def begin(self, about: str, work: Slices) -> None:
        """Does the first slice of ``work``, whose effects these are, and leaves the others to the runtime.

        Until the last of them is carried out, the core must not be asked anything else about ``about``, such as a group:
        requests, timers and connections that close wait. It may be unloaded: then the decision ends where it is.
        """
        if next(work, work) is None:
            assert self.rest is None, f"two decisions about {about} at once"
            self.rest = about, _slices(work)

    def note(self, event: str, **fields: object) -> None:
        """Logs an event; the runtime adds the field ``shard``."""
        self.notes.append(Note(event, fields))

    def order(self, order: object) -> None:
        """Has ``order`` carried out once everything queued so far is on disk: before the answers of this decision, so that
        what their clients do next comes after it, and in the order of the log among all answers and orders of the shard.

        It is void when the shard drops or closes: the core gives it again when it has been loaded, if it still holds.
        """
        if self.orders is None:
            self.orders = []
        self.orders.append(order)

    def reply(self, token: ReplyToken, response: Response) -> None:
        """Answers one request."""
        self.given.append((token, response, None))

    def reply_with(self, token: ReplyToken, make: Callable[[Any], Response], about: Any) -> None:
        """Answers one request with ``make(about)``, called when it is sent, as making ten thousand takes long.

        So ``make`` must not look at anything that may change.
        """
        self.given.append((token, about, make))

    @property
    def replies(self) -> Outgoing:
        """All answers, in the order they were given."""
        return Outgoing(self.given)


def _slices(work: Slices) -> Iterator[Effects]:
    while True:
        effects = Effects()
        try:
            work.send(effects)
        except StopIteration:
            yield effects
            return
        yield effects


class Step(Generic[Config]):
    """One decision of a core: a request, a timer that fired or another event.

    ``now`` is the same for all that the decision does. The core puts what it decides into ``effects``.
    """

    __slots__ = ("config", "context", "effects", "now")

    def __init__(self, now: Instant, config: Config, context: RequestContext = NO_REQUEST) -> None:
        self.now = now
        self.config = config
        self.context = context
        self.effects = Effects()

    def reply(self, response: Response) -> None:
        """Answers the request that began the step."""
        self.effects.given.append((self.context.token, response, None))
