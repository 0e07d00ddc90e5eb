"""One history: time, network, nodes and clients, in one heap of (time, order, what happens, what about)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from heapq import heappop, heappush
from random import Random
from typing import Any, Final

from coordinator.transactions.expiry import EXPIRY_TIMER
from protocol.messages.transactions import NO_VERSION, AbortTransactionRequest
from tests.simulation.transactions.clients import Client, Program
from tests.simulation.transactions.facts import Facts, violated
from tests.simulation.transactions.keepers import keeper
from tests.simulation.transactions.nodes import Coordinator, Node
from tests.simulation.transactions.participants import OFFSETS, GroupShard, Leader, Participant
from tests.simulation.transactions.plan import EVENTS, JOBS, KEEPERS, LEAVERS, LOOPS, NUMBERED, WORKLOADS, Plan
from tests.simulation.transactions.workloads import JobLog, driver, leaver, looper, numbered

PARTITIONS: Final = 3
START_WALL_MS: Final = 1_700_000_000_000
MAX_LATE_MS: Final = 3_000
MAX_STALL_FACTOR: Final = 2
MAX_FULL_MS: Final = 15_000
LEFT_IDS: Final = 5
"""Transactional ids that leavers use in turn."""
SAMPLE_STEPS: Final = 200
MAX_WALL_STEP_MS: Final = 3_600_000
SETTLE_MS: Final = 120_000
"""Within this time after the last fault everything is done, and nothing is open or waits."""


class World:
    """Nodes and clients of one history."""

    def __init__(self, plan: Plan, trace: list[str] | None = None) -> None:
        self.plan, self.trace = plan, trace
        self.random = Random(f"world {plan.seed}").random
        self.heap: list[tuple[int, int, Callable[[Any], None], Any]] = []
        self.now_ms = self.order = self.steps = 0
        self.wall_offset_ms = START_WALL_MS
        self.calm = False
        self.facts = Facts()
        self.read: dict[str, list[int]] = defaultdict(list)
        """Offsets that readers have got, by partition."""
        self._behaviours = frozenset(plan.behaviours)
        self._network = tuple(name for name in ("lost", "doubled", "late") if name in plan.behaviours)
        self._producer_ids = 100
        self._without_ids_until_ms = 0
        self._next_sample = SAMPLE_STEPS
        self.coordinator = Coordinator(self)
        self.leaders = [Leader(self, number) for number in range(PARTITIONS)]
        self.group = GroupShard(self)
        self.participants: dict[str, Participant] = {leader.key[1]: leader for leader in self.leaders}
        self.participants[OFFSETS[1]] = self.group
        self.nodes: list[Node] = [self.coordinator, *self.leaders, self.group]
        self.clients: dict[int, Client] = {}
        self._started = 0
        self.coordinator.start_expiry()
        self.job = JobLog()
        self.work = dict.fromkeys(WORKLOADS, 4)
        """How many inputs, versions and batches there are to do."""
        self.programs: dict[str, Program] = {
            LOOPS: looper,
            NUMBERED: numbered,
            JOBS: driver,
            LEAVERS: leaver,
            KEEPERS: keeper,
        }
        self.ids = {LOOPS: "loop", NUMBERED: "numbered", JOBS: "job", LEAVERS: "left-0", KEEPERS: "keeper"}

    def later(self, delay_ms: int, happens: Callable[[Any], None], what: object) -> None:
        """Something happens in so many ms."""
        self.order += 1
        heappush(self.heap, (self.now_ms + delay_ms, self.order, happens, what))

    def send(self, receive: Callable[[Any], None], what: object) -> None:
        """A message sets out: it arrives once, late, twice or never."""
        delay_ms = 1 + int(self.random() * 3)
        if self._network and not self.calm and self.random() < self.plan.fault_rate:
            kind = self._network[int(self.random() * len(self._network))]
            if kind == "lost":
                return
            late_ms = int(self.random() ** 3 * MAX_LATE_MS)
            if kind == "doubled":
                self.later(delay_ms + late_ms, receive, what)
            else:
                delay_ms += late_ms
        self.later(delay_ms, receive, what)

    def disturbs(self, behaviour: str) -> bool:
        """Whether something may happen now."""
        return not self.calm and behaviour in self._behaviours

    def next_producer_id(self) -> int | None:
        """An id that no producer has had, or None in a gap."""
        if self.now_ms < self._without_ids_until_ms:
            return None
        self._producer_ids += 1
        return self._producer_ids

    def tell(self, line: str) -> None:
        """Adds a line to the trace."""
        if self.trace is not None:
            self.trace.append(f"{self.now_ms / 1000:8.3f} s  {line}")

    def start(self, program: Program, transactional_id: str) -> Client:
        """A process with one producer starts."""
        self._started += 1
        client = self.clients[self._started] = Client(self, self._started, transactional_id)
        self.later(int(self.random() * 50), lambda _: client.run(program(client)), None)
        return client

    def run(self) -> None:
        """All of it: the faults, the calm after them, and the work done to its end."""
        for name in self.plan.workloads:
            self.start(self.programs[name], self.ids[name])
        self._happen(None)
        limit = self.plan.steps
        while self.heap and self.steps < limit:
            self._next()
        self.tell("[calm]")
        self.calm = True
        for client in list(self.clients.values()):
            client.die()
        self._settle()
        self._check_the_end()

    def _next(self) -> None:
        self.now_ms, _, happens, what = heappop(self.heap)
        happens(what)
        if self.steps >= self._next_sample:
            self._next_sample = self.steps + SAMPLE_STEPS
            self._sample()

    def _sample(self) -> None:
        self.coordinator.sample()
        self.group.sample()
        for leader in self.leaders:
            leader.check_what_was_read()

    def _happen(self, _: None) -> None:
        """From time to time something befalls the system, and where all clients of a workload died another starts."""
        if self.calm:
            return
        events = [event for event in EVENTS if event in self._behaviours]
        if events:
            event = events[int(self.random() * len(events))]
            self.tell(f"[{event}]")
            self._befall(event)
        for workload in self.plan.workloads:
            if not self._lives(workload):
                if workload == LEAVERS:
                    self.ids[workload] = f"left-{self._started % LEFT_IDS}"
                self.start(self.programs[workload], self.ids[workload])
        self.later(1 + int(self.random() * 2 * self.plan.event_gap_ms), self._happen, None)

    def _befall(self, name: str) -> None:
        draw = self.random()
        clients = list(self.clients.values())
        if not clients:
            return
        client = clients[int(self.random() * len(clients))]
        if name == "crashes":
            for node in self.nodes if draw < 0.3 else [self.nodes[int(self.random() * len(self.nodes))]]:
                node.crash()
        elif name == "drops":
            self.coordinator.drop()
        elif name == "refused writes":
            self.leaders[int(self.random() * PARTITIONS)].refuse_writes()
        elif name == "killed clients":
            client.die()
        elif name == "stalled clients":
            client.stalled_until_ms = self.now_ms + int(draw * MAX_STALL_FACTOR * self.plan.timeout_ms)
        elif name == "rivals" and len(clients) < 6:
            workload = self.plan.workloads[int(draw * len(self.plan.workloads))]
            self.start(self.programs[workload], self.ids[workload])
        elif name == "administrators":
            request = AbortTransactionRequest(client.transactional_id, draw < 0.3)
            self.send(lambda asked: self.coordinator.deliver(asked, lambda _: None), request)
        elif name == "full disks":
            participant = list(self.participants.values())[int(self.random() * len(self.participants))]
            participant.full_until_ms = self.now_ms + int(draw**2 * MAX_FULL_MS)
        elif name == "wall steps":
            self.wall_offset_ms += int((draw - 0.5) * 2 * MAX_WALL_STEP_MS)
        elif name == "gaps of producer ids":
            self._without_ids_until_ms = self.now_ms + int(draw * 200)

    def _settle(self) -> None:
        deadline_ms = self.now_ms + SETTLE_MS
        self._restart()
        while self.heap and self.heap[0][0] <= deadline_ms and self._unsettled():
            self._next()
            self._restart()

    def _restart(self) -> None:
        """What set out before the calm may still fence the last client of all: then another does the work."""
        for name in self.plan.workloads:
            if not self._lives(name) and not self._is_done(name):
                self.start(self.programs[name], self.ids[name])

    def _lives(self, workload: str) -> bool:
        return any(client.transactional_id == self.ids[workload] for client in self.clients.values())

    def _is_done(self, workload: str) -> bool:
        if workload == LEAVERS:
            return True
        done = self.facts.committed_versions.get(self.ids[workload], NO_VERSION) + 1
        if workload in (LOOPS, KEEPERS):
            done = self.group_offset(workload)
        return done >= self.work[workload]

    def more(self, workload: str, done: int) -> bool:
        """Whether there is work left; before the calm there always is."""
        if not self.calm:
            self.work[workload] = max(self.work[workload], done + 1)
        return done < self.work[workload]

    def _unsettled(self) -> str:
        """What is not done yet, or ""."""
        if self.clients:
            return f"clients {[client.transactional_id for client in self.clients.values()]} have not done their work"
        for node in self.nodes:
            if node.synced < len(node.log):
                return f"{node.name} has not synced its log"
        for leader in self.leaders:
            if leader.stable < len(leader.log):
                return f"{leader.name} is stable up to {leader.stable} of {len(leader.log)}: {leader.open.open()}"
        if self.group.core.groups.open_transactions:
            return f"offsets of {self.group.core.groups.open_transactions} are undecided"
        for state in self.coordinator.core.transactions.values():
            if state.identity.completing is not None or state.transactions or state.parked:
                return f"{state.transactional_id} is {self.coordinator.core.describe(state.transactional_id)}"
        return ""

    def _check_the_end(self) -> None:
        left = self._unsettled()
        if left:
            violated("no_transaction_hangs", left)
        if self.coordinator.timers.keys() - {EXPIRY_TIMER} or self.coordinator.waiting:
            violated("nothing_stays_when_every_client_is_gone", f"{self.coordinator.timers} {self.coordinator.waiting}")
        self._sample()
        self.facts.transactions_are_whole()
        contents: dict[tuple[object, str], int] = defaultdict(int)
        for (_, content, place), times in self.facts.visible.items():
            contents[content, place] += times
        wanted: set[tuple[object, str]]
        for workload, kind in ((LOOPS, "loop"), (KEEPERS, "kept")):
            if workload not in self.plan.workloads:
                continue
            inputs, offset = self.work[workload], self.group_offset(workload)
            wanted = {((kind, number), place) for number in range(inputs) for place in (f"P{number % 2}", "P2")}
            self._compare(contents, wanted, kind)
            if offset != inputs:
                violated("offsets_go_with_their_outputs", f"offset {offset} of {inputs} inputs of {workload}")
        if NUMBERED in self.plan.workloads:
            wanted = {(("numbered", number), f"P{place}") for number in range(self.work[NUMBERED]) for place in (0, 1)}
            self._compare(contents, wanted, "numbered")
        if JOBS in self.plan.workloads:
            rows = [(batch, task) for batch in range(self.work[JOBS]) for task in (0, 1)]
            wanted = {(("job", batch, task), f"P{place}") for batch, task in rows for place in (task, 2)}
            self._compare(contents, wanted, "job")

    def _compare(self, contents: dict[tuple[object, str], int], wanted: set[Any], kind: str) -> None:
        found = {one: times for one, times in contents.items() if one[0][0] == kind}  # type: ignore[index]
        lost = sorted(wanted - found.keys())
        more = sorted((one, times) for one, times in found.items() if times > 1 or one not in wanted)
        if lost or more:
            name = "each_input_is_answered_once" if kind in ("loop", "kept") else "each_version_is_stored_once"
            violated(name, f"lost {lost}, too often {more}")

    def group_offset(self, group_id: str) -> int:
        """What the group of a workload of loops has committed."""
        group = self.group.core.groups.get(group_id)
        found = None if group is None else group.offsets.get("in", {}).get(0)
        return 0 if found is None else found[0]
