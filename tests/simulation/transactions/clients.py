"""Processes with one producer: a generator that asks and is answered, or not in time."""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from coordinator.runtime.participants import TransactionName
from coordinator.transactions.records import Identity
from protocol.errors import ErrorCode
from protocol.messages import Request
from tests.simulation.transactions.facts import Attempt

if TYPE_CHECKING:
    from tests.simulation.transactions.world import World

MIN_PATIENCE_MS: Final = 300
MAX_PATIENCE_MS: Final = 900
CALM_PATIENCE_MS: Final = 8_000
"""When nothing is lost any more, an answer is waited for longer than anything parks."""


class Asks(NamedTuple):
    """A request to the coordinator or to the group's shard.

    One ``in_order`` arrives while its answer is waited for, or never: requests of one connection are served in their order,
    and one that is given up is closed.
    """

    where: str
    request: Request
    in_order: bool = False


class Produces(NamedTuple):
    """A batch of one record."""

    place: int
    name: TransactionName
    sequence: int
    content: object
    attempt: Attempt
    keeps_epoch: bool = False


class Pauses(NamedTuple):
    """So many ms pass."""

    ms: int


Act = Asks | Produces | Pauses
Running = Generator[Act, Any, None]
Program = Callable[["Client"], Running]


class Client:
    """One process."""

    def __init__(self, world: World, number: int, transactional_id: str) -> None:
        self.world, self.number, self.transactional_id = world, number, transactional_id
        self.stalled_until_ms = 0
        self.alive = True
        self._running: Running | None = None
        self._asked = 0

    def run(self, running: Running) -> None:
        """Begins its program."""
        if self.alive:
            self._running = running
            self._go_on(None)

    def die(self) -> None:
        """It is killed, or at its end."""
        self.alive = False
        self._running = None
        self.world.clients.pop(self.number, None)

    def chance(self, of: float) -> bool:
        """Whether something happens that nothing else causes; never in the calm."""
        return not self.world.calm and self.world.random() < of

    def told(self, identity: Identity) -> Identity:
        """It hears that it has an identity."""
        self.world.facts.identity_told(identity, self.number)
        return identity

    def _go_on(self, answer: Any) -> None:
        if self._running is None:
            return
        try:
            act = self._running.send(answer)
        except StopIteration:
            self.die()
            return
        self._asked += 1
        self._act(act, self._asked)

    def _act(self, act: Act, asked: int) -> None:
        world = self.world
        if isinstance(act, Pauses):
            world.later(act.ms, self._hear, (asked, None))
            return

        def answered(answer: Any) -> None:
            world.send(self._hear, (asked, answer))

        if isinstance(act, Produces):
            leader = world.leaders[act.place]
            value = (act.attempt.number, act.content, leader.name)

            def acknowledged(code: ErrorCode) -> None:
                if code is ErrorCode.NONE:
                    act.attempt.values.add(value)
                answered(code)

            world.send(lambda _: leader.produce(act.name, act.sequence, value, acknowledged, act.keeps_epoch), None)
        else:
            deliver = world.group.ask if act.where == "G" else world.coordinator.deliver

            def receive(request: Any) -> None:
                if not act.in_order or (self._asked == asked and self.alive):
                    deliver(request, answered)

            world.send(receive, act.request)
        patience_ms = MIN_PATIENCE_MS + int(world.random() * (MAX_PATIENCE_MS - MIN_PATIENCE_MS))
        world.later(CALM_PATIENCE_MS if world.calm else patience_ms, self._hear, (asked, None))

    def _hear(self, what: tuple[int, Any]) -> None:
        asked, answer = what
        if asked != self._asked or not self.alive:
            return
        stalled_ms = self.stalled_until_ms - self.world.now_ms
        if stalled_ms > 0 and not self.world.calm:
            self.world.later(stalled_ms, self._hear, what)
            return
        self._go_on(answer)
