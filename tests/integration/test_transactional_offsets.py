"""Offsets that a producer commits with its records: both take effect or neither; a group that has gone on refuses them."""

from __future__ import annotations

import asyncio
import pickle
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from client import (
    Admin,
    CommitFailedError,
    Consumer,
    GroupMetadata,
    IllegalGenerationError,
    IllegalStateError,
    OffsetAndMetadata,
    Producer,
    TopicPartition,
    TransactionAbortedError,
    UnknownMemberIdError,
)
from client.transactions.transaction import Transaction
from coordinator import Coordinator
from protocol.messages import ApiKey
from tests.integration.answering_proxy import address, answered
from tests.integration.raw_transactions import becomes_committed, until

IN = TopicPartition("in", 0)


@asynccontextmanager
async def daemon() -> AsyncIterator[str]:
    """The address of a daemon with topic "in", which has ten records, and topic "out"."""
    async with Coordinator() as coordinator:
        await fill(coordinator.address)
        yield coordinator.address


async def fill(at: str) -> None:
    async with Admin(at) as admin, Producer(at) as producer:
        await admin.create_topics({"in": 1, "out": 1})
        await producer.send_many("in", [b"%d" % number for number in range(10)])


async def stored(at: str, group: str = "g") -> int | None:
    async with Admin(at) as admin:
        found = (await admin.list_offsets(group)).get(IN)
        return None if found is None else found.offset


async def becomes_stored(at: str, offset: int) -> int | None:
    """The offset once it is as expected: markers come shortly after the decision."""

    async def look() -> bool:
        return await stored(at) == offset

    await until(look)
    return await stored(at)


async def transact(producer: Producer, value: bytes, *offsets: int, group: GroupMetadata | str = "g") -> Transaction:
    async with producer.transaction() as transaction:
        await transaction.send("out", value)
        for offset in offsets:
            await transaction.send_offsets({IN: offset}, group)
    return transaction


async def test_offsets_take_effect_with_the_records() -> None:
    async with daemon() as at, Producer(at, transactional_id="id") as producer:
        await transact(producer, b"a", 2, 3)
        assert await becomes_stored(at, 3) == 3

        async def fails() -> None:
            async with producer.transaction() as transaction:
                await transaction.send("out", b"no")
                await transaction.send_offsets({IN: OffsetAndMetadata(7, "note")}, GroupMetadata("g"))
                raise KeyError

        with pytest.raises(KeyError):
            await fails()
        await producer.begin_transaction()
        await producer.send_offsets_to_transaction({IN: OffsetAndMetadata(5, "note")}, "g")
        assert await stored(at) == 3, "nothing shows before the commit"
        await producer.commit_transaction()
        assert await becomes_stored(at, 5) == 5
        assert await becomes_committed(at, {0: [b"a"]}, "out") == {0: [b"a"]}
        async with producer.transaction() as transaction:
            await transaction.send_offsets({}, "g")
        assert transaction.outcome == "committed"


async def test_a_consumer_s_records_and_what_is_made_of_them() -> None:
    async with daemon() as at:
        for _ in range(2):
            async with (
                Consumer(
                    "in", bootstrap_servers=at, group_id="g", auto_offset_reset="earliest", enable_auto_commit=False
                ) as consumer,
                Producer(at, transactional_id="id") as producer,
            ):
                for _ in range(5):
                    record = await consumer.getone()
                    async with producer.transaction() as transaction:
                        await transaction.send("out", b"of " + record.value)
                        await transaction.send_offsets(consumer)
                    assert transaction.outcome == "committed"
        expected = {0: [b"of %d" % number for number in range(10)]}
        assert await becomes_committed(at, expected, "out") == expected
        assert await becomes_stored(at, 10) == 10


async def test_offsets_of_a_topic_that_was_created_anew_are_refused() -> None:
    async with daemon() as at, Producer(at, transactional_id="id") as producer:
        async with Consumer(
            "in", bootstrap_servers=at, group_id="g", auto_offset_reset="earliest", enable_auto_commit=False
        ) as consumer:
            await consumer.getone()
            offsets, group = consumer.consumed_offsets(), consumer.group_metadata()
            async with Admin(at) as admin:
                assert pickle.loads(pickle.dumps(group)) in {group}
                assert dict(group.topic_ids)["in"] == (await admin.describe_topics("in"))["in"].topic_id
                await admin.delete_topics("in")
                await admin.create_topics({"in": 1})
            async with producer.transaction() as transaction:
                with pytest.raises(CommitFailedError, match="deleted and created again"):
                    await transaction.send_offsets(offsets, group)
                await producer.abort_transaction()
        assert await stored(at) is None
        with pytest.raises(TypeError, match=r"pass consumer.group_metadata\(\)"):
            await transact(producer, b"a", 1, group=GroupMetadata("g", topic_ids="in"))  # type: ignore[arg-type]


async def test_a_member_that_the_group_has_replaced_commits_neither() -> None:
    async with daemon() as at, Producer(at, transactional_id="id") as producer:
        async with Consumer("in", bootstrap_servers=at, group_id="g", auto_offset_reset="earliest") as consumer:
            await consumer.getone()
            member = consumer.group_metadata()
            for wrong, kind in (
                (member._replace(generation=member.generation - 1), IllegalGenerationError),
                (member._replace(member_id="somebody else"), UnknownMemberIdError),
            ):
                with pytest.raises(TransactionAbortedError) as caught:
                    await _refused_within(producer, wrong)
                refusal = caught.value.__cause__
                assert isinstance(refusal, CommitFailedError)
                assert refusal.abortable
                assert isinstance(refusal.__cause__, kind)
                assert isinstance(refusal.partitions[IN], kind)
                assert await producer.settle() == "aborted"
            await transact(producer, b"a", 1, group=member)
        assert await becomes_committed(at, {0: [b"a"]}, "out") == {0: [b"a"]}


async def _refused_within(producer: Producer, group: GroupMetadata) -> None:
    """A program that goes on although the group has refused its offsets: the transaction cannot be committed."""
    async with producer.transaction() as transaction:
        await transaction.send("out", b"no")
        with pytest.raises(CommitFailedError):
            await transaction.send_offsets({IN: 1}, group)
        assert isinstance(transaction.failure, CommitFailedError)
        with pytest.raises(TransactionAbortedError):
            await transaction.send("out", b"no")


async def test_lost_answers_are_told_again_and_a_commit_waits_for_offsets_under_way() -> None:
    async with answered() as proxy:
        at = address(proxy)
        await fill(at)
        async with Producer(at, transactional_id="id", request_timeout_ms=300) as producer:
            proxy.unanswered = {ApiKey.TXN_OFFSET_COMMIT}
            transaction = await producer.begin_transaction()
            await transaction.send("out", b"a")
            sending = asyncio.create_task(transaction.send_offsets({IN: 4}, "g"))
            await asyncio.sleep(0.1)
            commit = asyncio.create_task(producer.commit_transaction())
            await asyncio.sleep(0.5)
            assert not commit.done()
            with pytest.raises(IllegalStateError, match="takes nothing more"):
                await transaction.send_offsets({IN: 5}, "g")
            proxy.unanswered = set()
            await asyncio.gather(sending, commit)
            assert await becomes_stored(at, 4) == 4


async def test_offsets_in_doubt_abort() -> None:
    async with answered() as proxy:
        at = address(proxy)
        await fill(at)
        async with Producer(at, transactional_id="id", request_timeout_ms=200, delivery_timeout_ms=500) as producer:
            proxy.unanswered = {ApiKey.TXN_OFFSET_COMMIT}
            transaction = await producer.begin_transaction()
            with pytest.raises(TransactionAbortedError):
                await transaction.send_offsets({IN: 4}, "g")
            with pytest.raises(TransactionAbortedError):
                await producer.commit_transaction()
            transaction = await producer.begin_transaction()
            sending = asyncio.create_task(transaction.send_offsets({IN: 5}, "g"))
            await asyncio.sleep(0.1)
            sending.cancel()
            await asyncio.gather(sending, return_exceptions=True)
            with pytest.raises(TransactionAbortedError, match="was cancelled"):
                await producer.commit_transaction()
            proxy.unanswered = set()
            await transact(producer, b"a", 6)
            assert await becomes_stored(at, 6) == 6


async def test_what_is_no_offset_is_refused_before_it_is_sent() -> None:
    async with daemon() as at, Producer(at, transactional_id="id") as producer:
        transaction = await producer.begin_transaction()
        with pytest.raises(ValueError, match="the offset of in-0 is -2"):
            await transaction.send_offsets({IN: -2}, "g")
        with pytest.raises(TypeError, match="must be a whole number"):
            await transaction.send_offsets({IN: "5"}, "g")  # type: ignore[dict-item]
        with pytest.raises(TypeError, match="needs the group"):
            await transaction.send_offsets({IN: 5})
        for what in ({"in": 5}, {("in", "0"): 5}, {("in", True): 5}, {("in",): 5}):
            with pytest.raises(TypeError, match="offsets are those of partitions such as TopicPartition"):
                await transaction.send_offsets(what, "g")  # type: ignore[arg-type]
        for what in (None, [IN]):  # type: ignore[assignment]
            with pytest.raises(TypeError, match="takes a dict of offsets, or the consumer itself"):
                await transaction.send_offsets(what)  # type: ignore[arg-type]
        with pytest.raises(TypeError, match="group_metadata is 5; pass consumer"):
            await transaction.send_offsets({IN: 5}, 5)  # type: ignore[arg-type]
        with pytest.raises(ValueError, match="name of the group is empty"):
            await transaction.send_offsets({IN: 5}, "")
        assert transaction.failure is None, "a wrong argument does not doom the transaction"
        await transaction.send_offsets({IN: 5}, "g")
        await producer.commit_transaction()
        assert await becomes_stored(at, 5) == 5
