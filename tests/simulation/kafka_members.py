"""Members of Kafka's classic groups: they join, sync, beat, read what they were given, and commit."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal

from client.assignors import RangeAssignor
from protocol.errors import ErrorCode
from protocol.kafka.batch import KafkaBatchError
from protocol.kafka.messages import leave_group_request as leaving
from protocol.kafka.messages import offset_commit_request as committing
from protocol.kafka.messages import offset_fetch_request as fetching
from protocol.kafka.messages.heartbeat_request import HeartbeatRequest
from protocol.kafka.messages.heartbeat_response import HeartbeatResponse
from protocol.kafka.messages.join_group_request import JoinGroupRequest, JoinGroupRequestProtocol
from protocol.kafka.messages.join_group_response import JoinGroupResponse
from protocol.kafka.messages.leave_group_response import LeaveGroupResponse
from protocol.kafka.messages.list_offsets_request import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from protocol.kafka.messages.list_offsets_response import ListOffsetsResponse
from protocol.kafka.messages.offset_commit_response import OffsetCommitResponse
from protocol.kafka.messages.offset_fetch_response import OffsetFetchResponse
from protocol.kafka.messages.sync_group_request import SyncGroupRequest, SyncGroupRequestAssignment
from protocol.kafka.messages.sync_group_response import SyncGroupResponse
from protocol.subscription import (
    CONSUMER_PROTOCOL_TYPE,
    Subscription,
    decode_assignment,
    decode_subscription,
    encode_assignment,
    encode_subscription,
)
from tests.simulation.history import Committed, HandedOut, Partition
from tests.simulation.kafka_client import INSTANCES_SINCE, JOIN_GROUP, OLD, KafkaClient, Trouble, name_of_code
from tests.simulation.kafka_fetches import SIZES, Fetcher
from tests.simulation.ownership import look_for_another_owner
from tests.simulation.world import HostProcess, World

_GROUP: Final = "group"
"""What the connection to the coordinator is for, which is another than that for records."""
_EARLIEST: Final = -2
_LOOK_EVERY_S: Final = 1.0
_OTHER_PARTITIONS: Final = "there are other partitions"
_REJOIN: Final = frozenset(
    {
        *(ErrorCode.REBALANCE_IN_PROGRESS, ErrorCode.ILLEGAL_GENERATION, ErrorCode.UNKNOWN_MEMBER_ID),
        *(ErrorCode.MEMBER_ID_REQUIRED, ErrorCode.UNSTABLE_OFFSET_COMMIT),
    }
)


class NotMember(Exception):
    """The member has to join again."""


@dataclass(slots=True)
class Share:
    """A generation as one member has it. ``expires_s`` is when its session is over by its own clock."""

    generation: int
    member_id: str
    partitions: tuple[Partition, ...]
    expires_s: float
    over: str = ""
    """Why it is over."""
    positions: dict[Partition, int] = field(default_factory=dict)


class KafkaMember:
    """A consumer of Kafka's protocol. ``Owner`` of what it reads, as Cohort's are."""

    def __init__(
        self,
        world: World,
        process: HostProcess,
        group: str,
        topics: tuple[str, ...],
        *,
        static: bool = True,
        versions: Mapping[int, int] | None = None,
        sizes: Sequence[int] = SIZES,
    ) -> None:
        self.group = group
        self.process = process
        self.instance: str | None = None
        self.share: Share | None = None
        self._world = world
        self._topics = topics
        self._client = KafkaClient(process, topics, process.random.choice((1.0, 3.0)), versions)
        self._fetcher = Fetcher(self._client, sizes=sizes)
        self._member_id = ""
        self._dealt: dict[str, int] | None = None
        """The numbers of partitions that this member, as the leader, dealt out last."""
        self._session_s = world.plan.session_ms / 1000
        if static and world.plan.static and self._client.versions[JOIN_GROUP] >= INSTANCES_SINCE:
            self.instance = process.host

    # As its group's invariants see it

    @property
    def member_id(self) -> str:
        """See ``Owner``."""
        return self._member_id

    @property
    def member(self) -> KafkaMember:
        """The client of an ``Owner`` that is no consumer of Cohort's."""
        return self

    @property
    def state(self) -> Literal["stable", "joining"]:
        """Whether it is in a generation, by its own clock."""
        return "stable" if self._is_member() else "joining"

    def believes_to_own(self, partition: Partition) -> bool:
        """See ``Owner``."""
        return self.share is not None and self._is_member() and partition in self.share.positions

    def _is_member(self) -> bool:
        return self.share is not None and not self.share.over and self._world.loop.time() < self.share.expires_s

    # Its life

    async def run(self, is_over: Callable[[], bool]) -> None:
        """Reads until it is over."""
        while not is_over():
            try:
                share = await self._joined()
            except (Trouble, NotMember) as error:
                self._say(f"does not join: {error}")
                await asyncio.sleep(0.1 * self.process.random.random())
                continue
            beating = [asyncio.create_task(self._beat(share)), asyncio.create_task(self._watch(share))]
            try:
                await self._work(share, is_over)
            except (Trouble, NotMember) as error:
                self._say(f"joins again: {error}")
            finally:
                self.share = None
                for each in beating:
                    each.cancel()
        await self._leave()
        self._client.close()

    def _say(self, what: str) -> None:
        self._world.history.say(self.process.name, what)

    async def _joined(self) -> Share:
        """Becomes a member of a generation. Raises ``Trouble`` and ``NotMember``."""
        client, session_ms = self._client, self._world.plan.session_ms
        address = await client.coordinator(self.group)
        connection = await client.connection(address, _GROUP)
        subscribed = JoinGroupRequestProtocol("range", encode_subscription(Subscription(self._topics)))
        asked = JoinGroupRequest(
            self.group, session_ms, 2 * session_ms, self._member_id, self.instance, CONSUMER_PROTOCOL_TYPE, [subscribed]
        )
        joined = await client.answered(connection, asked, JoinGroupResponse, 3 * self._session_s)
        if joined.error_code == ErrorCode.MEMBER_ID_REQUIRED:
            self._member_id = joined.member_id
        self._check(joined.error_code)
        self._member_id = joined.member_id
        shares: list[SyncGroupRequestAssignment] = []
        self._dealt = None
        if joined.leader == joined.member_id and joined.skip_assignment:
            self._dealt = {}  # by the process before, nobody knows of what: it is dealt out once more (KIP-814)
        elif joined.leader == joined.member_id:
            shares = await self._assigned(joined)
        named = ("range", joined.protocol_type) if client.versions is not OLD else (None, None)
        member = (self.group, joined.generation_id, joined.member_id, self.instance)
        now_s = self._world.loop.time()
        sync = SyncGroupRequest(*member, named[1], named[0], shares)
        synced = await client.answered(connection, sync, SyncGroupResponse, 3 * self._session_s)
        self._check(synced.error_code)
        partitions = tuple((tp.topic, tp.partition) for tp in decode_assignment(synced.assignment))
        share = Share(joined.generation_id, joined.member_id, partitions, now_s + self._session_s)
        self._say(f"has {partitions} in generation {share.generation}")
        return share

    def _check(self, code: int) -> None:
        """Raises ``NotMember`` for an error that joining again mends, ``Trouble`` for one that passes."""
        if code == ErrorCode.UNKNOWN_MEMBER_ID:
            self._member_id = ""
        if code in _REJOIN or code == ErrorCode.GROUP_MAX_SIZE_REACHED:
            raise NotMember(name_of_code(code))
        self._client.told(code)
        if code == ErrorCode.FENCED_INSTANCE_ID:
            self._member_id = ""
            raise NotMember(name_of_code(code))
        assert code == ErrorCode.NONE, name_of_code(code)

    async def _assigned(self, joined: JoinGroupResponse) -> list[SyncGroupRequestAssignment]:
        """Every member's share, as the leader deals them out."""
        await self._client.refresh()
        self._dealt = counts = self._counts()
        members = {
            each.member_id: decode_subscription(each.metadata, each.group_instance_id) for each in joined.members
        }
        plan = RangeAssignor().assign(counts, members)
        return [SyncGroupRequestAssignment(member, encode_assignment(tps)) for member, tps in plan.items()]

    def _counts(self) -> dict[str, int]:
        return {name: topic.partitions for name, topic in self._client.topics.items()}

    async def _watch(self, share: Share) -> None:
        """A leader has its group join again when there are other partitions than it dealt out."""
        while self._dealt is not None and self._is_in(share):
            await asyncio.sleep(_LOOK_EVERY_S)
            try:
                await self._client.refresh()
            except Trouble as error:
                self._say(f"does not know what partitions there are: {error}")
                continue
            if self._counts() != self._dealt:
                share.over = share.over or _OTHER_PARTITIONS

    async def _beat(self, share: Share) -> None:
        """Shows signs of life until the share is over; the daemon may hold each for a while."""
        beat = HeartbeatRequest(self.group, share.generation, share.member_id, self.instance)
        now_s = self._world.loop.time()
        while self._is_in(share):
            await asyncio.sleep(max(0.01, now_s + self._session_s / 4 - self._world.loop.time()))
            now_s = self._world.loop.time()
            try:
                address = await self._client.coordinator(self.group)
                connection = await self._client.connection(address, _GROUP)
                told = await self._client.answered(connection, beat, HeartbeatResponse, self._session_s / 2)
                self._check(told.error_code)
            except NotMember as error:
                share.over = str(error)
            except Trouble as error:
                self._say(f"its heartbeat failed: {error}")
            else:
                share.expires_s = max(share.expires_s, now_s + self._session_s)

    def _is_in(self, share: Share) -> bool:
        """Whether the share still counts by this member's own clock."""
        if not share.over and self._world.loop.time() >= share.expires_s:
            share.over = "its session is over by its own clock"
        return not share.over

    # Records and offsets

    async def _work(self, share: Share, is_over: Callable[[], bool]) -> None:
        """Reads on from what was committed, until the share or everything is over; then commits what it has read."""
        share.positions = await self._committed(share)
        self.share = share
        random, stints = self.process.random, {tp: self._world.serial_of(object()) for tp in share.partitions}
        committed = dict(share.positions)
        while self._is_in(share) and not is_over():
            try:
                found = await self._fetcher.fetch(share.positions)
            except KafkaBatchError as error:
                self._say(f"cannot read: {error}")
                await asyncio.sleep(0.2)
                continue
            if not self._is_in(share):
                break
            for partition, (_, records, next_offset) in found.items():
                if records:
                    look_for_another_owner(self._world, self, partition)
                for offset, value in records:
                    where = (share.generation, partition, offset, value, stints[partition] * 10_000)
                    handed_out = HandedOut(self._world.loop.time(), self.group, self.process.name, *where)
                    self._world.history.handed_out.append(handed_out)
                share.positions[partition] = next_offset
            if share.positions != committed and random.random() < 0.5:
                committed = await self._commit(share)
        # Told of a rebalance it gives up what it holds before it joins again, and commits first.
        positions, share.positions = share.positions, {}
        if share.over in ("", _OTHER_PARTITIONS, ErrorCode.REBALANCE_IN_PROGRESS.name) and positions != committed:
            share.positions = positions
            await self._commit(share)

    async def _committed(self, share: Share) -> dict[Partition, int]:
        """Where to go on. Raises ``Trouble`` and ``NotMember``."""
        client, by_topic = self._client, dict[str, list[int]]()
        for topic, index in share.partitions:
            by_topic.setdefault(topic, []).append(index)
        if not by_topic:
            return {}
        address = await client.coordinator(self.group)
        if client.versions is not OLD:
            topics = [
                fetching.OffsetFetchRequestTopics(name, partition_indexes=each) for name, each in by_topic.items()
            ]
            group = fetching.OffsetFetchRequestGroup(self.group, topics=topics)
            asked = fetching.OffsetFetchRequest(groups=[group], require_stable=True)
            told = await client.ask(address, asked, OffsetFetchResponse, _GROUP)
            code, found = told.groups[0].error_code, [(t.name, p) for t in told.groups[0].topics for p in t.partitions]
        else:
            named = [fetching.OffsetFetchRequestTopic(name, each) for name, each in by_topic.items()]
            asked = fetching.OffsetFetchRequest(self.group, named)
            told = await client.ask(address, asked, OffsetFetchResponse, _GROUP)
            code, found = told.error_code, [(t.name, p) for t in told.topics for p in t.partitions]  # type: ignore[misc]
        self._check(code)
        positions: dict[Partition, int] = {}
        for topic, each in found:
            self._check(each.error_code)
            partition, offset = (topic, each.partition_index), each.committed_offset
            positions[partition] = offset if offset >= 0 else await self._beginning(partition)
        return positions

    async def _beginning(self, partition: Partition) -> int:
        topic, index = partition
        leader = await self._client.leader(partition)
        asked = ListOffsetsRequest(
            -1, 0, [ListOffsetsTopic(topic, [ListOffsetsPartition(index, leader.epoch, _EARLIEST)])]
        )
        told = await self._client.ask(leader.address, asked, ListOffsetsResponse)
        (found,) = told.topics[0].partitions
        self._client.told(found.error_code)
        assert found.error_code == ErrorCode.NONE, name_of_code(found.error_code)
        return found.offset

    async def _commit(self, share: Share) -> dict[Partition, int]:
        """Commits the positions; returns them. Raises ``Trouble`` and ``NotMember``."""
        positions, by_topic = dict(share.positions), dict[str, list[committing.OffsetCommitRequestPartition]]()
        for (topic, index), offset in positions.items():
            by_topic.setdefault(topic, []).append(committing.OffsetCommitRequestPartition(index, offset))
        topics = [committing.OffsetCommitRequestTopic(name, partitions=each) for name, each in by_topic.items()]
        member = (self.group, share.generation, share.member_id, self.instance)
        asked = committing.OffsetCommitRequest(*member, topics=topics)
        address = await self._client.coordinator(self.group)
        told = await self._client.ask(address, asked, OffsetCommitResponse, _GROUP)
        for stored in told.topics:
            for told_of in stored.partitions:
                self._check(told_of.error_code)
                partition = (stored.name, told_of.partition_index)
                fact = Committed(self._world.loop.time(), 0, self.group, partition, positions[partition])
                self._world.history.commits.append(fact)
        return positions

    async def _leave(self) -> None:
        """A static member stays in the group until its session ends, as Kafka's do."""
        if self.instance is not None or not self._member_id:
            return
        asked = leaving.LeaveGroupRequest(self.group, self._member_id)
        if self._client.versions is not OLD:
            asked = leaving.LeaveGroupRequest(self.group, members=[leaving.MemberIdentity(self._member_id)])
        try:
            await self._client.ask(await self._client.coordinator(self.group), asked, LeaveGroupResponse, _GROUP)
        except Trouble as error:
            self._say(f"cannot leave: {error}")
