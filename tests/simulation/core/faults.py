"""What goes wrong: what the network does to a request, and what befalls clients and coordinator from time to time.

To add an event: a method, its name in ``plan.EVENTS``, and its line in ``Faults.__init__``.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import TYPE_CHECKING, Final

from protocol.messages.groups import (
    DeleteGroupsRequest,
    HeartbeatRequest,
    JoinGroupProtocol,
    JoinGroupRequest,
    LeaveGroupRequest,
    LeavingMember,
    SyncGroupRequest,
)
from protocol.messages.offsets import (
    OffsetCommitPartition,
    OffsetCommitRequest,
    OffsetCommitTopic,
    OffsetDeleteRequest,
    OffsetDeleteTopic,
)
from tests.simulation.core.call import (
    COMMIT,
    DELETE_GROUPS,
    DELETE_OFFSETS,
    FETCH,
    HEARTBEAT,
    JOIN,
    LEAVE,
    STALE_TURN,
    SYNC,
    Call,
    Kind,
)
from tests.simulation.core.client import MAX_REBALANCE_MS, MAX_SESSION_MS, MIN_SESSION_MS, PARTITIONS, TOPIC, Client
from tests.simulation.core.plan import EVENTS, NETWORK, Plan

if TYPE_CHECKING:
    from tests.simulation.core.world import World

RECENT: Final = 64
"""How many requests back one may come again."""

MAX_DELAY_MS: Final = 5_000
"""How long the network holds a request back at most."""

MAX_AWAY_MS: Final = 2 * MAX_SESSION_MS
"""How long a member stands still, or is away between two lives, at most."""

HALF_OPEN_MS: Final = 3_000
"""When the coordinator learns of a connection that was not closed properly, at most; sometimes it never does."""

RESTARTS: Final = 0.4
"""How many of the coordinator's crashes happen: the groups need time between them to get somewhere."""

MAX_WALL_STEP_MS: Final = 3_600_000


class Faults:
    """The hand that disturbs a history."""

    def __init__(self, world: World, plan: Plan) -> None:
        self.world = world
        self.random = Random(f"faults {plan.seed}").random
        self.echoes = "echoes" in plan.behaviours
        self.recent: list[Call | None] = [None] * RECENT
        self.kinds = tuple(name for name in NETWORK if name in plan.behaviours and name != "lost replies")
        self.rate = plan.fault_rate if self.kinds else 0.0
        self.reply_rate = plan.fault_rate if "lost replies" in plan.behaviours else 0.0
        events: dict[str, Callable[[], None]] = {
            "echoes": self._echo,
            "closed connections": lambda: self.reconnect(self._client()),
            "silent crashes": self._crash_silently,
            "quick restarts": self._restart_quickly,
            "stalls": self._stall,
            "leaves": self._leave,
            "batch leaves": self._leave_together,
            "changed metadata": lambda: self._living(Client.change),
            "leader asks": self._leader_asks,
            "coordinator crashes": self._coordinator_crashes,
            "shard drops": self._shard_drops,
            "wall steps": self._step_wall,
            "strangers": self._stranger,
            "admin removals": self._remove_static,
            "resets": self._reset,
            "deleted groups": self._delete_group,
            "deleted offsets": self._delete_offset,
        }
        assert tuple(events) == EVENTS
        self._events = tuple((name, happens) for name, happens in events.items() if name in plan.behaviours)
        self._gap_ms = plan.event_gap_ms
        self._connections = len(world.clients)

    def begin(self) -> None:
        """From now on things happen."""
        if self._events:
            self.world.later(self._gap_ms, self._happen, None)

    def disturb(self, call: Call, delay_ms: int) -> int | None:
        """What the network does to a request: gives its delay, or None if it is lost."""
        world = self.world
        kind = self.kinds[int(world.network() * len(self.kinds))]
        if kind == "duplicates":
            copy = Call(call.client, call.kind, call.request, STALE_TURN, call.epoch, call.ledger, call.reset)
            world.later(delay_ms + int(world.network() ** 3 * MAX_DELAY_MS), world.deliver, copy)
            return delay_ms
        world.expect(call, delay_ms)
        if kind == "lost requests":
            return None
        return delay_ms + int(world.network() ** 2 * MAX_DELAY_MS)

    def reconnect(self, client: Client) -> None:
        """A client opens another connection and sends again what got no answer."""
        outstanding = client.outstanding()
        self._close(client, outstanding)
        for call in outstanding:
            client.again(call, 20 + int(self.random() * 80))

    def _happen(self, _: None) -> None:
        world = self.world
        if not world.calm:
            name, happens = self._events[int(self.random() * len(self._events))]
            if world.trace is not None:
                world.tell(f"[{name}]")
            happens()
            world.later(1 + int(self.random() * 2 * self._gap_ms), self._happen, None)

    def _client(self) -> Client:
        clients = self.world.clients
        return clients[int(self.random() * len(clients))]

    def _living(self, happens: Callable[[Client], None]) -> None:
        client = self._client()
        if client.alive:
            happens(client)

    def _close(self, client: Client, outstanding: list[Call]) -> None:
        """The coordinator learns of it at once, after a while or never."""
        world = self.world
        how = self.random()
        for call in outstanding:
            call.closed = how < 0.8
            if call.token in world.waiting and how < 0.8:
                world.later(int(self.random() * (10 if how < 0.6 else HALF_OPEN_MS)), world.abandon, call.token)
        if how < 0.8:
            delay_ms = int(self.random() * (10 if how < 0.6 else HALF_OPEN_MS))
            world.later(delay_ms, world.close_connection, client.connection)
        self._connections += 1
        client.connection = self._connections

    def _echo(self) -> None:
        call = self.recent[int(self.random() * RECENT)]
        if call is not None:
            world = self.world
            world.deliver(Call(call.client, call.kind, call.request, STALE_TURN, world.epoch, call.ledger, call.reset))

    def _crash_silently(self) -> None:
        client = self._client()
        self._close(client, client.outstanding())
        client.stop()
        self.world.later(int(self.random() * MAX_AWAY_MS), client.start, client.turn)

    def _restart_quickly(self) -> None:
        client = self._client()
        self._close(client, client.outstanding())
        client.stop()
        self.world.later(int(self.random() * 100), client.start, client.turn)

    def _stall(self) -> None:
        client = self._client()
        client.stalled_until_ms = self.world.now_ms + int(self.random() * MAX_AWAY_MS)

    def _leave(self, others: tuple[str, ...] = ()) -> None:
        client = self._client()
        if client.alive and client.member_id:
            client.leave(others)
            client.stop()
            self.world.later(int(self.random() * MAX_AWAY_MS), client.start, client.turn)

    def _leave_together(self) -> None:
        # An administrator removes somebody else beside it: that client is not asked.
        self._leave((self._client().member_id or "nobody",))

    def _leader_asks(self) -> None:
        client = self._client()
        group = self.world.core.groups.get(client.group_id)
        if client.alive and group is not None and group.leader == client.member_id:
            client.join(0)

    def _coordinator_crashes(self) -> None:
        if self.random() < RESTARTS:
            self.world.crash()
            for client in self.world.clients:
                self.reconnect(client)

    def _shard_drops(self) -> None:
        if self.random() < RESTARTS:
            self.world.drop()

    def _step_wall(self) -> None:
        self.world.wall_offset_ms += int((self.random() - 0.5) * 2 * MAX_WALL_STEP_MS)

    def _stranger(self) -> None:
        """Somebody who asks for an id or joins and is never heard of again, or who makes up a member id."""
        world, nobody = self.world, self.world.nobody
        ledger = world.ledgers[int(self.random() * len(world.ledgers))]
        group = world.core.groups.get(ledger.group_id)
        group_id, generation = ledger.group_id, ledger.generation
        kind = Kind(int(self.random() * FETCH))
        request: JoinGroupRequest | SyncGroupRequest | HeartbeatRequest | LeaveGroupRequest | OffsetCommitRequest
        if kind is JOIN:
            # Taken in by an empty group, or as one that shares a protocol; and then never heard of again.
            offer = (JoinGroupProtocol("sticky" if self.random() < 0.5 else "range", b"x"),)
            given = [name for name in group.pending if name.startswith(nobody.name)] if group is not None else []
            member_id = given[-1] if given else ""
            request = JoinGroupRequest(group_id, MIN_SESSION_MS, MAX_REBALANCE_MS, member_id, None, "consumer", offer)
        elif kind is SYNC:
            request = SyncGroupRequest(group_id, generation, "stranger", None, None, None)
        elif kind is HEARTBEAT:
            request = HeartbeatRequest(group_id, generation, "stranger", None, 500)
        elif kind is LEAVE:
            request = LeaveGroupRequest(group_id, (LeavingMember("stranger"),))
        else:
            request = self._offset(group_id, generation, "stranger")
        world.deliver(Call(nobody, kind, request, STALE_TURN, world.epoch, ledger, reset=False))

    def _remove_static(self) -> None:
        world, client = self.world, self._client()
        members = (LeavingMember("", client.instance or "i-nobody"),)
        request = LeaveGroupRequest(client.group_id, members)
        world.deliver(Call(world.nobody, LEAVE, request, STALE_TURN, world.epoch, client.ledger, reset=False))

    def _reset(self) -> None:
        world = self.world
        ledger = world.ledgers[int(self.random() * len(world.ledgers))]
        request = self._offset(ledger.group_id, -1, "")
        world.deliver(Call(world.nobody, COMMIT, request, STALE_TURN, world.epoch, ledger, reset=True))

    def _delete_group(self) -> None:
        world = self.world
        ledger = world.ledgers[int(self.random() * len(world.ledgers))]
        request = DeleteGroupsRequest((ledger.group_id,))
        world.deliver(Call(world.nobody, DELETE_GROUPS, request, STALE_TURN, world.epoch, ledger, reset=False))

    def _delete_offset(self) -> None:
        world = self.world
        ledger = world.ledgers[int(self.random() * len(world.ledgers))]
        topics = (OffsetDeleteTopic(TOPIC, (int(self.random() * PARTITIONS),)),)
        request = OffsetDeleteRequest(ledger.group_id, topics)
        world.deliver(Call(world.nobody, DELETE_OFFSETS, request, STALE_TURN, world.epoch, ledger, reset=False))

    def _offset(self, group_id: str, generation: int, member_id: str) -> OffsetCommitRequest:
        partition = OffsetCommitPartition(int(self.random() * PARTITIONS), int(self.random() * 5))
        return OffsetCommitRequest(group_id, generation, member_id, None, (OffsetCommitTopic(TOPIC, (partition,)),))
