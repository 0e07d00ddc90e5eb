"""Racks from the nodes' metadata and the consumers' settings to the plan of a group's leader (KIP-881).

A daemon is one node in one place so far. Here it describes itself as two, and every other partition as a replica of the
second: all that follows is real, from the answer's bytes to the shares of the members.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import AsyncExitStack
from dataclasses import replace
from typing import Any

import pytest

from client import (
    Assignor,
    Consumer,
    CooperativeStickyAssignor,
    RackAwareAssignor,
    RangeAssignor,
    RoundRobinAssignor,
    StickyAssignor,
    Subscription,
    TopicPartition,
)
from coordinator import Coordinator
from coordinator.server.metadata_answers import MetadataAnswers
from protocol.codec import decode_message, encode_message, pack
from protocol.framing import unpack
from protocol.messages.cluster import MetadataResponse
from tests.integration.consuming import QUICK, create, until


@pytest.fixture
def two_racks(monkeypatch: pytest.MonkeyPatch) -> None:
    original = MetadataAnswers.make

    def picture(answer: MetadataResponse) -> MetadataResponse:
        (node,) = answer.brokers
        topics = tuple(
            replace(
                topic,
                partitions=tuple(
                    replace(each, replica_nodes=(node.node_id + each.partition_index % 2,)) for each in topic.partitions
                ),
            )
            for topic in answer.topics
        )
        brokers = (replace(node, rack="east"), replace(node, node_id=node.node_id + 1, rack="west"))
        return replace(answer, brokers=brokers, topics=topics)

    def make(answers: MetadataAnswers, *args: Any) -> Iterator[tuple[bytes, bytes, Mapping[int, int]] | None]:
        for parts in original(answers, *args):
            if parts is None:
                yield None
            else:
                answer = picture(decode_message(MetadataResponse, unpack(b"".join(parts[:2]))))
                yield pack(encode_message(answer)), b"", parts[2]

    monkeypatch.setattr(MetadataAnswers, "make", make)


class Noting(RoundRobinAssignor):
    """An assignor of a program that asks for racks, and writes them down."""

    uses_racks = True

    def __init__(self) -> None:
        self.racks: list[Mapping[TopicPartition, frozenset[str]]] = []

    def assign(
        self,
        partitions: Mapping[str, int],
        members: Mapping[str, Subscription],
        racks: Mapping[TopicPartition, frozenset[str]] | None = None,
    ) -> dict[str, list[TopicPartition]]:
        self.racks.append(racks or {})
        return super().assign(partitions, members)


@pytest.mark.usefixtures("two_racks")
@pytest.mark.parametrize("assignor", [RangeAssignor(), StickyAssignor(), CooperativeStickyAssignor()])
async def test_members_are_given_what_has_a_replica_in_their_rack(assignor: Assignor) -> None:
    async with Coordinator() as c, AsyncExitStack() as stack:
        await create(c.address, t=6)
        settings: dict[str, Any] = {"bootstrap_servers": c.address, "group_id": "g", "assignors": [assignor], **QUICK}
        west = await stack.enter_async_context(Consumer("t", client_rack="west", **settings))
        await until(lambda: len(west.assignment()) == 6)
        east = await stack.enter_async_context(Consumer("t", client_rack="east", **settings))
        await until(lambda: {tp.partition for tp in east.assignment()} == {0, 2, 4})
        await until(lambda: {tp.partition for tp in west.assignment()} == {1, 3, 5})


@pytest.mark.usefixtures("two_racks")
async def test_an_assignor_of_a_program_is_told_racks_when_a_member_says_where_it_is() -> None:
    async with Coordinator() as c:
        await create(c.address, t=2)
        noting = Noting()
        aware: RackAwareAssignor = noting
        settings: dict[str, Any] = {"bootstrap_servers": c.address, "group_id": "g", "assignors": [aware], **QUICK}
        for rack in (None, "north"):
            async with Consumer("t", client_rack=rack, **settings) as consumer:
                await until(lambda: len(consumer.assignment()) == 2)
        placed = {TopicPartition("t", 0): frozenset({"east"}), TopicPartition("t", 1): frozenset({"west"})}
        assert noting.racks == [{}, placed]


async def test_a_daemon_that_is_one_node_has_no_racks_to_tell() -> None:
    async with Coordinator() as c:
        await create(c.address, t=2)
        noting = Noting()
        async with Consumer(
            "t", client_rack="east", bootstrap_servers=c.address, group_id="g", assignors=[noting], **QUICK
        ) as consumer:
            await until(lambda: len(consumer.assignment()) == 2)
        assert noting.racks == [{}]


@pytest.mark.parametrize("rack", ["", 3])
def test_a_rack_that_is_no_name_is_refused(rack: Any) -> None:
    with pytest.raises(ValueError, match=r"client_rack is .*; pass the name of a rack, or None"):
        Consumer("t", client_rack=rack)
