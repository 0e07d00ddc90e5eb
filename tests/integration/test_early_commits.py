"""Commits that leave with the last records of their transaction, when those have no luck."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import pytest

from client import Producer, ProducerFencedError, RequestTimedOutError, TransactionAbortedError
from protocol.messages import ApiKey
from tests.integration.answering_proxy import address, answered
from tests.integration.raw_transactions import becomes_committed


async def test_a_commit_whose_record_runs_out_of_time_is_aborted_and_not_in_doubt() -> None:
    async with answered() as proxy:
        async with Producer(address(proxy), transactional_id="id", delivery_timeout_ms=1_000) as producer:
            async with producer.transaction() as before:
                await before.send("t", b"a", partition=0)
            proxy.unheard = {ApiKey.PRODUCE}
            transaction = await producer.begin_transaction()
            future = await transaction.send("t", b"no", partition=0)
            with pytest.raises(TransactionAbortedError, match="delivery_timeout_ms=1000"):
                await producer.commit_transaction()
            assert transaction.outcome == "aborted"
            with pytest.raises(RequestTimedOutError):
                await future
            proxy.unheard = set()
            async with asyncio.timeout(30), producer.transaction() as after:
                await after.send("t", b"b", partition=0)
        expected: dict[int, list[bytes]] = {0: [b"a", b"b"], 1: []}
        assert await becomes_committed(address(proxy), expected, "t") == expected


@pytest.mark.parametrize("lost", [False, True], ids=["refused", "no answer"])
async def test_a_record_of_a_fenced_producer_is_not_told_to_be_stored_as_another_has_committed_its_version(
    lost: bool,
) -> None:
    async with answered() as proxy, Producer(address(proxy), transactional_id="id") as fenced:
        transaction = fenced.transaction(version=5)
        with suppress(ProducerFencedError):
            async with transaction:
                async with Producer(address(proxy), transactional_id="id") as other, other.transaction(version=5) as tx:
                    await tx.send("t", b"a", partition=1)
                future = await transaction.send("t", b"no", partition=0)
                proxy.unanswered = {ApiKey.PRODUCE} if lost else set()
        assert transaction.outcome in (None, "committed"), "the version is"
        with pytest.raises(ProducerFencedError):
            await future
        proxy.unanswered = set()
        expected: dict[int, list[bytes]] = {0: [], 1: [b"a"]}
        assert await becomes_committed(address(proxy), expected, "t") == expected
