"""A shard of groups over a real log in a test: what it was asked, and what it answered."""

from __future__ import annotations

import asyncio
import errno
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from itertools import count
from pathlib import Path

from coordinator.filesystem.executor import Disk
from coordinator.group_coordinator import DeletedTopics, GroupShard
from coordinator.groups.config import GroupConfig, GroupStep
from coordinator.groups.core import GroupCore
from coordinator.log.config import LogConfig
from coordinator.log.partition import PartitionLog
from coordinator.runtime.clocks import Clocks
from coordinator.runtime.effects import Effects, RequestContext
from coordinator.runtime.fair_queue import FairQueue
from coordinator.runtime.pending_replies import PendingReplies
from coordinator.runtime.shard import CoordinatorShard, Services
from coordinator.runtime.timers import CoordinatorTimers
from protocol.errors import ErrorCode
from protocol.messages import Request, Response
from protocol.messages.offsets import (
    OffsetCommitPartition,
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetCommitTopic,
    OffsetFetchRequest,
    OffsetFetchResponse,
)
from tests.coordinator.log.faulty_storage import HookedStorage
from tests.coordinator.log.logs import made

TOPIC = "offsets"

Decision = Callable[[GroupCore, GroupStep], Effects]


class Gate:
    """A hook for the storage: syncs wait while it is shut, and operations named in ``refuse`` fail with ENOSPC."""

    def __init__(self) -> None:
        self.open = threading.Event()
        self.open.set()
        self.refuse: set[str] = set()
        self.syncs = 0

    def __call__(self, operation: str, path: str) -> None:
        if not path.endswith(".log"):
            return
        if operation in self.refuse:
            raise OSError(errno.ENOSPC, "No space left on device")
        if operation == "sync":
            self.syncs += 1
            assert self.open.wait(10)


class Question:
    """A request that notes its answer under a name; a second answer is a fault."""

    def __init__(self, request: Request, name: str, answers: dict[str, Response]) -> None:
        self.request, self._name, self._answers = request, name, answers

    def answer(self, response: Response) -> None:
        assert self._name not in self._answers
        self._answers[self._name] = response


class NamedTopics(dict[str, str]):
    """The ids of the topics that there are, by name; each has any number of partitions."""

    def has(self, topic: str, partition: int) -> bool:
        return True

    def topic_id(self, topic: str) -> str:
        return self[topic]

    def is_gone(self, topic: str, topic_id: str) -> bool:
        return topic not in self or (bool(topic_id) and self[topic] != topic_id)


class ScriptedCore(GroupCore):
    """Decides some requests as a test says."""

    scripted: dict[int, Decision]

    def decide(self, request: Request, step: GroupStep) -> Effects:
        decision = self.scripted.get(step.context.token)
        return decision(self, step) if decision is not None else super().decide(request, step)


class Bench:
    """One shard over a real log, and what it answered."""

    def __init__(
        self,
        shard: GroupShard,
        replies: PendingReplies,
        timers: CoordinatorTimers,
        gate: Gate,
        fatal: list[str],
        topics: NamedTopics,
        deleted: DeletedTopics,
        scripted: dict[int, Decision],
    ) -> None:
        self.shard, self.replies, self.timers, self.gate, self.fatal, self.topics = (
            shard,
            replies,
            timers,
            gate,
            fatal,
            topics,
        )
        self.answers: dict[str, Response] = {}
        self._deleted, self._scripted = deleted, scripted

    def ask(self, name: str, request: Request, decision: Decision | None = None) -> int:
        """Returns the token of the request, which the core or ``decision`` decides."""
        token = self.replies.open(Question(request, name, self.answers))
        if decision is not None:
            self._scripted[token] = decision
        self.shard.submit(request, RequestContext(token, "client", "127.0.0.1"))
        return token

    def forget_topic(self, topic: str) -> None:
        self._deleted.erase(self.shard, topic)

    def commit(self, name: str, offset: int, topic: str = "orders") -> None:
        topics = (OffsetCommitTopic(topic, (OffsetCommitPartition(0, offset),)),)
        self.ask(name, OffsetCommitRequest("g", -1, "", None, topics))

    def fetch(self, name: str) -> None:
        self.ask(name, OffsetFetchRequest("g", None))

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(30):
            while not condition():
                await asyncio.sleep(0)

    def commit_code(self, name: str) -> int:
        response = self.answers[name]
        assert isinstance(response, OffsetCommitResponse)
        return response.topics[0].partitions[0].error_code

    def refused(self, name: str) -> str:
        """What the refusal of a commit says that was asked just now."""
        response = self.answers[name]
        assert isinstance(response, OffsetCommitResponse)
        assert response.topics[0].partitions[0].error_code == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        return response.error_message

    def fetched(self, name: str) -> list[int]:
        response = self.answers[name]
        assert isinstance(response, OffsetFetchResponse)
        assert response.error_code == ErrorCode.NONE
        return [entry.committed_offset for topic in response.topics for entry in topic.partitions]


@asynccontextmanager
async def shard_on(
    path: Path,
    config: GroupConfig | None = None,
    wall_ms: Callable[[], int] = lambda: 1_000_000,
) -> AsyncIterator[Bench]:
    """A shard whose log is in ``path``, as the group coordinator puts it together."""
    config = config or GroupConfig()
    gate = Gate()
    fatal: list[str] = []
    topics = NamedTopics(orders="id-1")
    disk = Disk(HookedStorage(path, gate), threads=2)
    made(disk.storage, "offsets-0")
    log = await PartitionLog.open(disk, "offsets-0", LogConfig(), leader_epoch=0, on_fatal=fatal.append)
    replies = PendingReplies(GroupCore.request_is_about)
    timers = CoordinatorTimers(asyncio.get_running_loop())
    timers.serve(TOPIC, lambda _, name: shard.on_timer(name), GroupCore.WAITS_FOR_OTHERS)
    ids = count()
    deleted = DeletedTopics(topics)
    scripted: dict[int, Decision] = {}

    def new_core(_: int) -> GroupCore:
        core = ScriptedCore(config, lambda client: f"{client}-{next(ids)}", topics)
        core.scripted = scripted
        return core

    def on_active(shard: GroupShard) -> None:
        shard.decide("", lambda core, step: core.start_expiry(step, config.offsets_retention_check_interval_ms))
        deleted.erase_all(shard)

    services = Services(replies, timers, FairQueue(), Clocks(asyncio.get_running_loop(), wall_ms))
    shard = CoordinatorShard(TOPIC, 0, log, new_core, services, on_active)
    shard.start_loading()
    await shard.loaded()
    yield Bench(shard, replies, timers, gate, fatal, topics, deleted, scripted)
    gate.open.set()
    gate.refuse.clear()
    await shard.close()
    assert len(timers) == 0, "a shard that is closed leaves no timer behind"
    timers.close()
    await log.close()
    disk.close()
