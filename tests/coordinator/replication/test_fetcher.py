"""What a follower asks for, when much of what it follows changes at once: no request is more than a leader takes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count
from typing import Any, cast

from coordinator.replication.fetch import FetchPartition
from coordinator.replication.fetcher import Key, LeaderFetcher
from coordinator.replication.partition import Incarnation
from coordinator.replication.throttle import Throttle
from protocol.codec import encode_message
from protocol.framing import LENGTH_BYTES, decode_request, encode_request
from protocol.messages import Request
from protocol.messages.replication import ReplicaFetchRequest, ReplicaFetchResponse

ME, LEADER = Incarnation(1, 10), Incarnation(2, 20)


@dataclass
class Followed:
    """What is asked of one partition."""

    leader_epoch: int = 0

    def ask(self) -> FetchPartition:
        return FetchPartition(ME, self.leader_epoch, 2**40, 2**30, 2**40)


@dataclass
class Leader:
    """Replicas that follow it, the way to it, and a leader that knows what it is told."""

    partitions: dict[Key, Followed]
    me = ME
    peer = LEADER
    closed = False
    on_lost: Callable[[], None] | None = None
    named: set[Key] = field(default_factory=set)
    requests: int = 0
    waiting: list[Callable[[object], None]] = field(default_factory=list)

    def followed(self, node: int) -> dict[Key, Followed]:
        return dict(self.partitions)

    def incarnation(self, node: int) -> Incarnation:
        return LEADER

    async def connect(self, node: int, purpose: str) -> Leader:
        return self

    def close(self) -> None:
        self.waiting.clear()

    def begin(self, request: Request, tell: Callable[[object], None], *, timeout_s: float) -> Callable[[], None]:
        """Takes it as the leader's port does, forgets what it names first, and holds it until the next one comes."""
        self.requests += 1
        assert isinstance(request, ReplicaFetchRequest)
        decode_request(encode_request(request.api_key, 0, 1, "", cast("Any", encode_message(request)))[LENGTH_BYTES:])
        for gone in request.forgotten:
            self.named -= {(gone.topic_id, index) for index in gone.partitions}
        for topic in request.topics:
            self.named |= {(topic.topic_id, each.partition) for each in topic.partitions}
        held, self.waiting = self.waiting, [tell]
        for answer in held:
            asyncio.get_running_loop().call_soon(answer, ReplicaFetchResponse(0))
        return lambda: None


async def test_many_partitions_that_are_no_longer_followed_are_forgotten_a_thousand_at_a_time() -> None:
    keys = [(f"topic-{number:05}", 0) for number in range(6_000)]
    leader = Leader({key: Followed() for key in keys})
    fetcher = LeaderFetcher(
        cast("Any", leader), cast("Any", leader), Throttle(-1, 0.0), count(1).__next__, 2**20, 500, 2
    )

    async def told(what: set[Key]) -> None:
        async with asyncio.timeout(20):
            while leader.named != what:
                await asyncio.sleep(0.001)

    await told(set(keys))
    session, before = fetcher._session, leader.requests
    leader.partitions = {key: leader.partitions[key] for key in keys[:10]}
    fetcher.changed()
    await asyncio.sleep(0)  # the first of them are on their way
    leader.partitions |= {
        key: Followed(1) for key in keys[-10:]
    }  # they come back before the leader has heard that they went
    fetcher.changed()
    await told({*keys[:10], *keys[-10:]})
    await asyncio.sleep(0.01)
    assert leader.named == {*keys[:10], *keys[-10:]}, "nothing is forgotten once it is named again"
    assert leader.requests - before >= 6
    assert fetcher._session == session
    assert not fetcher.task.done()
    await fetcher.close()
