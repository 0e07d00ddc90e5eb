"""A member as it really behaves: joins, leads, syncs, beats, commits, and does what the answers tell it to.

A client has two chains, heartbeats and all else, each with one request under way at most. ``turn`` counts its lives within a
generation: a client that joins again takes no notice of answers to what it asked before.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from protocol.errors import ErrorCode
from protocol.messages.api import Request, Response
from protocol.messages.groups import (
    HeartbeatRequest,
    HeartbeatResponse,
    JoinGroupProtocol,
    JoinGroupRequest,
    JoinGroupResponse,
    LeaveGroupRequest,
    LeavingMember,
    SyncGroupAssignment,
    SyncGroupRequest,
    SyncGroupResponse,
)
from protocol.messages.offsets import (
    OffsetCommitPartition,
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetCommitTopic,
    OffsetFetchRequest,
    OffsetFetchResponse,
    OffsetFetchTopic,
)
from protocol.subscription import Subscription, encode_subscription
from tests.simulation.core.call import COMMIT, FETCH, HEARTBEAT, JOIN, LEAVE, STALE_TURN, SYNC, Call, Kind
from tests.simulation.core.ledger import Ledger
from tests.simulation.core.transacting import Transacting

if TYPE_CHECKING:
    from tests.simulation.core.world import World

TOPIC: Final = "t"
PARTITIONS: Final = 4

MIN_SESSION_MS: Final = 1_000
MAX_SESSION_MS: Final = 4_000
MIN_REBALANCE_MS: Final = 800
MAX_REBALANCE_MS: Final = 3_000

MAX_WORK_MS: Final = 2_000
"""How long a member works until it commits, at most."""

_T: Final = encode_subscription(Subscription((TOPIC,)))
_U: Final = encode_subscription(Subscription(("u",)))
_T_AND_U: Final = encode_subscription(Subscription((TOPIC, "u")))

_SUBSCRIBED: Final = (JoinGroupProtocol("range", _T),)
_SUBSCRIPTIONS: Final = (
    (JoinGroupProtocol("range", _U),),
    (JoinGroupProtocol("range", _U), JoinGroupProtocol("sticky", _U)),
    (JoinGroupProtocol("sticky", _T_AND_U), JoinGroupProtocol("range", _T_AND_U)),
)

_BASE: Final = (JoinGroupProtocol("range", b"m"),)
_OFFERS: Final = (
    (JoinGroupProtocol("range", b"n"),),
    (JoinGroupProtocol("range", b"m"), JoinGroupProtocol("sticky", b"s")),
    (JoinGroupProtocol("sticky", b"s"), JoinGroupProtocol("range", b"m")),
    (JoinGroupProtocol("sticky", b"t"), JoinGroupProtocol("range", b"n"), JoinGroupProtocol("other", b"")),
)

# Plain integers in tuples: the hash of a member of an Enum is a call in Python.
_NONE: Final = int(ErrorCode.NONE)
_RETRY: Final = (int(ErrorCode.NOT_COORDINATOR), int(ErrorCode.COORDINATOR_NOT_AVAILABLE))
_MEMBER_ID_REQUIRED: Final = int(ErrorCode.MEMBER_ID_REQUIRED)
_NO_LONGER_A_MEMBER: Final = (int(ErrorCode.UNKNOWN_MEMBER_ID), int(ErrorCode.FENCED_INSTANCE_ID))
_REBALANCE_IN_PROGRESS: Final = int(ErrorCode.REBALANCE_IN_PROGRESS)
_ILLEGAL_GENERATION: Final = int(ErrorCode.ILLEGAL_GENERATION)


class Client:
    """One process that wants to be a member."""

    def __init__(self, world: World, name: str, ledger: Ledger) -> None:
        random = world.life
        self.world = world
        self.name = name
        self.ledger = ledger
        self.group_id = ledger.group_id
        self.session_ms = MIN_SESSION_MS + int(random() * (MAX_SESSION_MS - MIN_SESSION_MS))
        self.rebalance_ms = MIN_REBALANCE_MS + int(random() * (MAX_REBALANCE_MS - MIN_REBALANCE_MS))
        self.poll_ms = 0 if world.has("short polls") and random() < 0.7 else self.session_ms // 6
        self.pause_ms = 5 if self.poll_ms else self.session_ms // 6
        self.instance = f"i-{name}" if world.has("static members") and random() < 0.6 else None
        self.farewell = world.has("farewell commits")
        self.beats_while_joining = world.has("beats while joining")
        self.offers = _SUBSCRIPTIONS if world.has("subscriptions") else _OFFERS
        self.protocols: tuple[JoinGroupProtocol, ...] = _SUBSCRIBED if world.has("subscriptions") else _BASE
        self.alive = False
        self.connection = 0
        """Its number; 0 for one that never closes."""
        self.turn = 0
        self.member_id = ""
        self.generation = -1
        self.share: bytes | None = None
        self.positions: dict[int, int] = {}
        self.stalled_until_ms = 0
        self.beat: Call | None = None
        self.main: Call | None = None
        self._beat_request: HeartbeatRequest | None = None
        self.transacting = Transacting(self)
        self.transacts = world.has("transactions")
        self._hear: tuple[Callable[[Any], None], ...] = (
            self._hear_join,
            self._hear_sync,
            self._hear_beat,
            self._hear_leave,
            self._hear_commit,
            self._hear_fetch,
            self._hear_nothing,
            self._hear_nothing,
            self.transacting.hear,
        )

    def start(self, life: int) -> None:
        """A new process: it knows nothing. ``life`` is the turn in which it was decided that it comes."""
        if self.turn == life:
            self.alive = True
            self.member_id = ""
            self.generation = -1
            self.join(0)

    def stop(self) -> None:
        """The process is gone."""
        self.alive = False
        self.turn += 1
        self.share = None
        self.transacting.give_up(in_doubt=True)

    def join(self, delay_ms: int) -> None:
        """Joins, or joins again."""
        self.turn += 1
        self.share = None
        if self.transacts:
            self.transacting.give_up(in_doubt=self.world.transactions.random() < 0.5)
        if self.beats_while_joining and self._beat_request is not None and self.member_id:
            self.world.send(self, HEARTBEAT, self._beat_request, delay_ms + 10, STALE_TURN)
        self.beat = None
        self.ask(
            JOIN,
            JoinGroupRequest(
                self.group_id,
                self.session_ms,
                self.rebalance_ms,
                self.member_id,
                self.instance,
                "consumer",
                self.protocols,
            ),
            delay_ms,
        )

    def change(self) -> None:
        """Offers something else."""
        self.protocols = self.offers[int(self.world.life() * len(self.offers))]
        self.join(0)

    def leave(self, others: tuple[str, ...] = ()) -> None:
        """Leaves, perhaps together with others, and comes back as somebody new."""
        members = tuple(LeavingMember(name) for name in (self.member_id, *others))
        self.world.send(self, LEAVE, LeaveGroupRequest(self.group_id, members), 1, STALE_TURN)

    def hear(self, call: Call, response: Response) -> None:
        """An answer is there."""
        if call.turn == self.turn and self.alive:
            call.heard = True
            self._hear[call.kind](response)

    def outstanding(self) -> list[Call]:
        """What it waits for."""
        return [
            call for call in (self.main, self.beat) if call is not None and not call.heard and call.turn == self.turn
        ]

    def again(self, call: Call, delay_ms: int) -> None:
        """Sends what got no answer once more; the answer to the first is not awaited any longer."""
        call.turn = STALE_TURN
        if call is self.beat:
            self._send_beat(delay_ms)
        else:
            self.ask(call.kind, call.request, delay_ms)

    def ask(self, kind: Kind, request: Request, delay_ms: int) -> None:
        """Sends a request of the chain beside heartbeats."""
        # The latency of the answer before it and of this request.
        latency_ms = 1 + int(self.world.life() * 20)
        self.main = self.world.send(self, kind, request, delay_ms + latency_ms, self.turn)

    def _send_beat(self, delay_ms: int) -> None:
        assert self._beat_request is not None
        self.beat = self.world.send(self, HEARTBEAT, self._beat_request, delay_ms + 3, self.turn)

    def _hear_join(self, response: JoinGroupResponse) -> None:
        code = response.error_code
        if code == _NONE:
            self.member_id = response.member_id
            self.generation = response.generation_id
            self._beat_request = HeartbeatRequest(
                self.group_id, self.generation, self.member_id, self.instance, self.poll_ms
            )
            self._send_beat(self.pause_ms)
            self.ask(SYNC, self._sync(response), 0)
        elif code == _MEMBER_ID_REQUIRED:
            self.member_id = response.member_id
            self.join(0)
        elif code == ErrorCode.GROUP_MAX_SIZE_REACHED:
            self.member_id = ""
            self.join(300)  # until somebody goes
        elif code == ErrorCode.INCONSISTENT_GROUP_PROTOCOL:
            self.join(300)  # a stranger with other protocols is in the group; its session ends
        else:
            if code in _NO_LONGER_A_MEMBER:
                self.member_id = ""
            self.join(50)

    def _sync(self, response: JoinGroupResponse) -> SyncGroupRequest:
        shares: tuple[SyncGroupAssignment, ...] = ()
        members = response.members
        if members and not response.skip_assignment:
            # The generation turns the shares, so that partitions move at each rebalance.
            owners = [
                members[(partition + self.generation) % len(members)].member_id for partition in range(PARTITIONS)
            ]
            shares = tuple(
                SyncGroupAssignment(
                    member.member_id,
                    bytes(partition for partition, owner in enumerate(owners) if owner == member.member_id),
                )
                for member in members
            )
        return SyncGroupRequest(self.group_id, self.generation, self.member_id, self.instance, None, None, shares)

    def _hear_sync(self, response: SyncGroupResponse) -> None:
        if response.error_code == _NONE:
            self.share = response.assignment
            self.positions = {}
            if self.transacts:
                self.transacting.begin()
            elif self.share:
                topics = (OffsetFetchTopic(TOPIC, tuple(self.share)),)
                self.ask(FETCH, OffsetFetchRequest(self.group_id, topics), 0)
        else:
            self.refused(response.error_code)

    def _hear_beat(self, response: HeartbeatResponse) -> None:
        code = response.error_code
        if code == _NONE:
            assert self._beat_request is not None
            self.beat = self.world.send(self, HEARTBEAT, self._beat_request, self.pause_ms, self.turn)
        elif code in _RETRY:
            self._send_beat(100)
        else:
            if code == _REBALANCE_IN_PROGRESS and self.farewell and self.share and self.positions:
                self.world.send(self, COMMIT, self._commit(), 2, STALE_TURN)
                self.join(4)
                return
            self.refused(code)

    def _hear_leave(self, response: Response) -> None:
        raise AssertionError("no client waits for the answer to its LeaveGroup")

    def _hear_nothing(self, response: Response) -> None:
        raise AssertionError("no member deletes groups or offsets")

    def _hear_fetch(self, response: OffsetFetchResponse) -> None:
        assert response.error_code == _NONE or response.error_code in _RETRY
        if self.transacts:
            self.transacting.hear_fetch(response)
        elif response.error_code == _NONE:
            self.positions = {
                found.partition_index: max(found.committed_offset, 0) for found in response.topics[0].partitions
            }
            self._work()
        elif self.main is not None:
            self.ask(FETCH, self.main.request, 100)

    def _hear_commit(self, response: OffsetCommitResponse) -> None:
        code = response.topics[0].partitions[0].error_code
        if code == _NONE:
            self._work()
        elif code in _NO_LONGER_A_MEMBER or code == _ILLEGAL_GENERATION:
            self.refused(code)
        elif self.main is not None:
            self.ask(COMMIT, self.main.request, 100)

    def _work(self) -> None:
        self.ask(COMMIT, self._commit(), int(self.world.life() * MAX_WORK_MS))

    def _commit(self) -> OffsetCommitRequest:
        partition = self.share[int(self.world.life() * len(self.share))] if self.share else 0
        offset = self.positions[partition] = self.positions.get(partition, 0) + 1
        return OffsetCommitRequest(
            self.group_id,
            self.generation,
            self.member_id,
            self.instance,
            (OffsetCommitTopic(TOPIC, (OffsetCommitPartition(partition, offset),)),),
        )

    def refused(self, code: int) -> None:
        """It is told that it is no member any more, or that its generation is over."""
        if code in _NO_LONGER_A_MEMBER:
            self.member_id = ""  # of a fenced process: its supervisor starts it again
        self.join(100 if code in _RETRY else 2)
