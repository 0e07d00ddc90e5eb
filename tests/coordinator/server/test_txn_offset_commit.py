"""TxnOffsetCommit beside end markers, slow coordinators and decisions in slices, over a real socket and real logs."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from coordinator.config import Settings
from coordinator.group_coordinator import GroupShard
from coordinator.groups.config import GroupStep
from coordinator.groups.core import GroupCore
from coordinator.metadata.catalog import OFFSETS_TOPIC
from coordinator.nodes.membership import Standalone
from coordinator.runtime.effects import Effects, Slices
from coordinator.runtime.shard import ShardState
from coordinator.server.dispatch import Tasks
from coordinator.server.handlers.txn_offset_commit import handler
from coordinator.server.listener import Listener, native_port
from coordinator.server.node import Node
from protocol.codec import decode_message, encode_message
from protocol.errors import ErrorCode
from protocol.framing import decode_response, encode_request
from protocol.messages.offsets import OffsetCommitPartition, OffsetCommitTopic
from protocol.messages.transactions import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    TxnOffsetCommitRequest,
    TxnOffsetCommitResponse,
)
from tests.coordinator.server.produce_node import LIMITS
from tests.coordinator.transaction_node import WALL_MS, TransactionNode, transaction_node

Done = Callable[[AddPartitionsToTxnResponse], None]


class Told:
    """A node with the one handler, a connection to it, and the shard of group "g"."""

    def __init__(self, there: TransactionNode, listener: Listener, shard: GroupShard) -> None:
        self.there, self.listener, self.shard = there, listener, shard
        self.reader: Any = None
        self.writer: Any = None
        self._number = 0

    def send(self, identity: tuple[int, int], offset: int) -> None:
        """Tells the offset of t-0."""
        self._number += 1
        topics = (OffsetCommitTopic("t", (OffsetCommitPartition(0, offset),)),)
        request = TxnOffsetCommitRequest("g", "t", *identity, -1, "", None, topics)
        self.writer.write(encode_request(request.api_key, 0, self._number, "c", encode_message(request)))

    async def answer(self) -> int:
        """The code of the answer that comes next."""
        async with asyncio.timeout(30):
            (length,) = struct.unpack(">I", await self.reader.readexactly(4))
            frame = decode_response(await self.reader.readexactly(length))
        return decode_message(TxnOffsetCommitResponse, frame.body).error_code

    def offsets(self) -> dict[int, int]:
        """What is committed of "t"."""
        group = self.shard.core.groups.get("g")
        return {} if group is None else {index: found[0] for index, found in group.offsets.get("t", {}).items()}

    def begin_slices(self, count: int = 1_000_000) -> list[int]:
        """A decision about the group goes on for so many turns, or until the list that is returned is empty."""
        going_on = [count]

        def work(step: GroupStep) -> Slices:
            while going_on and going_on[0]:
                going_on[0] -= 1
                step.effects = yield

        def decide(core: GroupCore, step: GroupStep) -> Effects:
            step.effects.begin("g", work(step))
            return step.effects

        self.shard.decide("g", decide)
        return going_on

    async def until_held(self) -> None:
        """Until something waits for the slices."""
        await self.there.until(lambda: bool(self.shard._unfinished.decisions["g"].held))

    async def turns(self, number: int = 20) -> None:
        for _ in range(number):
            await asyncio.sleep(0)


@asynccontextmanager
async def telling(folder: Path) -> AsyncIterator[Told]:
    async with transaction_node(folder) as there:
        topic = there.catalog.draft("t", 1, {})
        await there.logs.create(topic, range(1))
        await there.catalog.commit(topic)
        await there.groups.open("g")
        shard = there.groups.shard("g")
        assert shard is not None
        no_producer_ids: Any = None  # the handler has no use for them
        no_administration: Any = None
        no_metadata: Any = None
        node = Node(
            Settings(),
            no_metadata,
            there.catalog,
            there.logs,
            there.groups,
            there.transactions,
            no_producer_ids,
            Tasks(),
            lambda: WALL_MS,
            Standalone(0),
            no_administration,
        )
        listener = Listener(LIMITS)
        told = Told(there, listener, shard)
        address = await listener.start(native_port(handler(node), LIMITS.max_frame_bytes), "127.0.0.1", 0)
        told.reader, told.writer = await asyncio.open_connection(*address)
        try:
            yield told
        finally:
            told.writer.close()
            await listener.close(1.0)


@pytest.fixture
async def told(tmp_path: Path) -> AsyncIterator[Told]:
    async with telling(tmp_path) as made:
        yield made


class Slow:
    """Keeps the questions of leaders to the coordinator until they are let through."""

    def __init__(self, told: Told, monkeypatch: pytest.MonkeyPatch) -> None:
        self.asked: list[tuple[AddPartitionsToTxnRequest, Done]] = []
        self._add = told.there.transactions.add
        monkeypatch.setattr(told.there.transactions, "add", lambda request, done: self.asked.append((request, done)))

    def answer(self) -> None:
        """The coordinator gets them, and answers."""
        asked, self.asked = self.asked, []
        for request, done in asked:
            self._add(request, done)

    async def until_asked(self) -> None:
        async with asyncio.timeout(30):
            while not self.asked:
                await asyncio.sleep(0)


async def test_the_partition_of_the_group_takes_part_and_is_told_of_the_end(told: Told) -> None:
    identity = await told.there.init()
    told.send(identity, 5)
    assert await told.answer() == ErrorCode.NONE
    (member,) = told.there.described().members
    assert [(topic.name, topic.partitions) for topic in member.topics] == [(OFFSETS_TOPIC, (told.shard.partition,))]
    assert told.offsets() == {}
    await told.there.end(identity, True)
    await told.there.until(lambda: told.offsets() == {0: 5})


async def test_offsets_that_wait_for_slices_are_admitted_anew_after_them(told: Told) -> None:
    """Meanwhile the transaction ends: if they were taken on the old word of its coordinator, they would stay undecided."""
    identity = await told.there.init()
    going_on = told.begin_slices()
    told.send(identity, 5)
    await told.until_held()
    assert told.there.described().state == "Ongoing", "the coordinator has been asked"
    await told.there.end(identity, True)
    await told.there.until(lambda: told.there.described().state == "CompleteCommit")
    going_on.clear()
    assert await told.answer() != ErrorCode.NONE
    assert told.shard.core.open_epoch(identity[0]) is None


async def test_a_marker_waits_for_slices_and_no_longer(told: Told) -> None:
    identity = await told.there.init()
    told.send(identity, 5)
    assert await told.answer() == ErrorCode.NONE
    going_on = told.begin_slices()
    await told.there.end(identity, True)
    await told.turns(200)
    assert told.offsets() == {}
    going_on.clear()
    await told.there.until(lambda: told.offsets() == {0: 5})
    await told.there.until(lambda: told.there.described().state == "CompleteCommit")
    assert not told.shard.is_unfinished("g")


async def test_an_answer_of_the_coordinator_that_an_end_has_overtaken_counts_no_more(
    told: Told, monkeypatch: pytest.MonkeyPatch
) -> None:
    identity = await told.there.init()
    told.send(identity, 5)
    assert await told.answer() == ErrorCode.NONE
    slow = Slow(told, monkeypatch)
    told.shard.decide("", lambda core, step: core.end_transactions([(*identity, False)], step))  # as if it were over
    told.send(identity, 6)
    await slow.until_asked()
    ((request, done),) = slow.asked
    slow.asked.clear()
    await told.there.end(identity, True)
    await told.there.until(lambda: told.there.described().state == "CompleteCommit")
    done(AddPartitionsToTxnResponse(ErrorCode.NONE))  # it left before the end
    await slow.until_asked()  # why it cannot be taken
    assert slow.asked[0][0].verify_only
    slow.answer()
    assert await told.answer() != ErrorCode.NONE
    assert told.shard.core.open_epoch(identity[0]) is None
    assert request.producer_id == identity[0]


async def test_a_client_that_hangs_up_is_served_and_its_memory_given_back(
    told: Told, monkeypatch: pytest.MonkeyPatch
) -> None:
    identity = await told.there.init()
    slow = Slow(told, monkeypatch)
    told.send(identity, 5)
    await slow.until_asked()
    told.writer.transport.abort()
    await told.turns()
    assert told.listener.budget.used
    slow.answer()
    await told.there.until(lambda: told.shard.core.open_epoch(identity[0]) == identity[1])
    await told.there.until(lambda: not told.listener.budget.used and not len(told.there.groups.replies))


async def test_a_shard_that_does_not_serve_refuses_by_itself(told: Told) -> None:
    identity = await told.there.init()
    await told.shard.close()
    assert told.shard.state is ShardState.CLOSED
    told.send(identity, 5)
    assert await told.answer() == ErrorCode.NOT_COORDINATOR
    assert told.there.described().state == "Empty"


async def test_a_drop_while_the_offsets_wait_for_slices_refuses_them(told: Told) -> None:
    identity = await told.there.init()
    told.begin_slices()
    told.send(identity, 5)
    await told.until_held()
    told.shard.decide("", lambda *_: 1 / 0)  # type: ignore[arg-type]
    assert await told.answer() == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
