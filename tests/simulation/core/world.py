"""One history: time, network and clients around the shell, in one heap of (time, order, what, about what).

Answers travel at once and their latency is added to the next request, so that a step costs one visit to the heap.
"""

from __future__ import annotations

from collections.abc import Iterator
from heapq import heappop, heappush
from random import Random
from typing import Any, Final

from coordinator.groups.state import GroupState
from protocol.messages.api import Request, Response
from tests.simulation.core.call import DELETE_GROUPS, HEARTBEAT, SYNC, TXN_COMMIT, Call, Kind
from tests.simulation.core.client import MAX_REBALANCE_MS, MAX_SESSION_MS, PARTITIONS, Client
from tests.simulation.core.erasure import note_deletion, what_no_group_needs_expires
from tests.simulation.core.faults import MAX_AWAY_MS, MAX_DELAY_MS, RECENT, Faults
from tests.simulation.core.invariants import AT_THE_END, nothing_stays_when_every_client_is_gone
from tests.simulation.core.ledger import Ledger
from tests.simulation.core.plan import Plan
from tests.simulation.core.shell import Shell
from tests.simulation.core.transactions import no_transaction_hangs

REQUEST_TIMEOUT_MS: Final = 700
PENDING_TIMEOUT_MS: Final = 2 * MAX_REBALANCE_MS + 500
"""How long a client waits for an answer before it opens another connection; joins and syncs may be pending."""

SETTLE_MS: Final = MAX_AWAY_MS + MAX_DELAY_MS + PENDING_TIMEOUT_MS + MAX_SESSION_MS + 2 * MAX_REBALANCE_MS
"""Within this time after the last fault everything is settled: who is away comes back, what is delayed arrives, what was
lost times out and is sent again; then members that no client speaks for lose their session, and what they held up ends."""

LOOK_MS: Final = 300
"""How often it is looked whether everything is settled."""


class World(Shell):
    """A core, its shell and its clients."""

    def __init__(self, plan: Plan, trace: list[str] | None = None) -> None:
        self.network = Random(f"network {plan.seed}").random
        self.life = Random(f"life {plan.seed}").random
        super().__init__(plan, trace)
        self.clients = [
            Client(self, f"c{number}", self.ledgers[number % plan.groups]) for number in range(plan.clients)
        ]
        for number, client in enumerate(self.clients, 1):
            client.connection = number
        self.nobody = Client(self, "nobody", self.ledgers[0])
        self.faults = Faults(self, plan)

    def has(self, behaviour: str) -> bool:
        """Whether something happens in this history at all."""
        return behaviour in self.plan.behaviours

    def run(self) -> None:
        """All of it: the faults, the calm after them, the end of all members. Raises what an invariant raises."""
        for client in self.clients:
            self.later(int(self.life() * 300), client.start, client.turn)
        self.faults.begin()
        heap, limit = self.heap, self.plan.steps
        while heap and self.steps < limit:
            self.now_ms, _, happens, what = heappop(heap)
            happens(what)
        self.sample()
        self.tell("[calm]")
        self.calm = True
        self.flush(None)
        self._settle()
        self._end()

    def send(self, client: Client, kind: Kind, request: Request, delay_ms: int, turn: int) -> Call:
        """A request sets out; ``delay_ms`` from now it arrives, if the network lets it."""
        now_ms = self.now_ms
        if client.stalled_until_ms > now_ms:
            delay_ms += client.stalled_until_ms - now_ms
        call = Call(client, kind, request, turn, self.epoch, client.ledger, False)
        faults = self.faults
        if faults.rate and not self.calm and self.network() < faults.rate:
            disturbed_ms = faults.disturb(call, delay_ms)
            if disturbed_ms is None:
                return call
            delay_ms = disturbed_ms
        self.order = order = self.order + 1
        if faults.echoes:
            faults.recent[order % RECENT] = call
        heappush(self.heap, (now_ms + delay_ms, order, self.deliver, call))
        return call

    def release(self, call: Call, response: Response) -> None:
        """An answer leaves; perhaps it never arrives."""
        if call.kind <= SYNC:
            _note_generation(call, response)
        elif call.kind == DELETE_GROUPS:
            note_deletion(call, response)
        elif call.kind == TXN_COMMIT:
            self.transactions.answered(call, response)
        faults = self.faults
        if faults.reply_rate and not self.calm and self.network() < faults.reply_rate:
            self.tell(f"    the answer to {call.client.name} is lost")
            self.expect(call, 0)
        else:
            call.client.hear(call, response)

    def expect(self, call: Call, delay_ms: int) -> None:
        """The client gives up waiting some time after it sent a request, or after it should have had its answer."""
        patience_ms = PENDING_TIMEOUT_MS if call.kind <= SYNC else REQUEST_TIMEOUT_MS
        self.later(delay_ms + patience_ms, self.timed_out, call)

    def timed_out(self, call: Call) -> None:
        """A request got no answer in time: its client opens another connection."""
        client = call.client
        if not call.heard and call.turn == client.turn and client.alive:
            self.faults.reconnect(client)

    def unsettled(self) -> Iterator[str]:
        """What is not as it should be once the faults are over."""
        for client in self.clients:
            if not client.alive:
                yield f"{client.name} is not back"
        for ledger in self.ledgers:
            living = [client for client in self.clients if client.alive and client.ledger is ledger]
            yield from self._unsettled_group(ledger, living)
        if self.transactions.all:
            yield from self.transactions.unsettled()
        for call in self.waiting.values():
            if call.kind != HEARTBEAT:
                yield f"a {call.kind.name} of {call.client.name} waits"

    def _unsettled_group(self, ledger: Ledger, living: list[Client]) -> Iterator[str]:
        group = self.core.groups.get(ledger.group_id)
        if not living:
            if group is not None and group.state is not GroupState.EMPTY:
                yield f"{ledger.group_id} has no living client, but is {group.state.value}"
            return
        places = min(len(living), self.config.group_max_size)
        if group is not None and group.instances:  # static members that were away in a rebalance have kept their places
            places = max(places, min(len(living), len(group.members)))
        if group is None or group.state is not GroupState.STABLE or len(group.members) != places:
            seen = "not there" if group is None else f"{group.state.value} with {len(group.members)} members"
            yield f"{ledger.group_id} of {len(living)} clients is {seen}"
            return
        served = [client for client in living if client.share is not None and client.member_id in group.members]
        if len(served) != places:
            yield f"{len(served)} clients of {ledger.group_id} have a share, and {places} could"
        owned = sorted(b"".join(client.share or b"" for client in served))
        if owned != list(range(PARTITIONS)):
            yield f"of the partitions of {ledger.group_id}, {owned} have an owner"

    def _settle(self) -> None:
        deadline_ms, look_ms = self.now_ms + SETTLE_MS, self.now_ms
        heap = self.heap
        while heap and heap[0][0] <= deadline_ms:
            if heap[0][0] >= look_ms:
                look_ms = heap[0][0] + LOOK_MS
                if next(self.unsettled(), None) is None:
                    break
            self.now_ms, _, happens, what = heappop(heap)
            happens(what)
        for check in AT_THE_END:
            check(self)
        self.sample()

    def _end(self) -> None:
        """All clients are gone without a word: nothing is sent any more, what is under way still arrives."""
        for client in self.clients:
            client.stop()
        heap, deadline_ms = self.heap, self.now_ms + SETTLE_MS
        while heap and heap[0][0] <= deadline_ms:
            self.now_ms, _, happens, what = heappop(heap)
            happens(what)
        nothing_stays_when_every_client_is_gone(self)
        no_transaction_hangs(self)
        if self.has("expiry"):
            what_no_group_needs_expires(self)


def _note_generation(call: Call, response: Any) -> None:
    request: Any = call.request
    ledger = call.ledger
    if response.error_code == 0 and call.token > ledger.first_token:
        if call.kind == SYNC:
            ledger.told_generation = max(ledger.told_generation, request.generation_id)
        else:
            ledger.heard = max(ledger.heard, response.generation_id)
