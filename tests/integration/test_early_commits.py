"""Commits that leave with the last records of their transaction, when those have no luck."""

from __future__ import annotations

import asyncio

import pytest

from client import Producer, RequestTimedOutError, TransactionAbortedError
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
            async with asyncio.timeout(10), producer.transaction() as after:
                await after.send("t", b"b", partition=0)
        expected: dict[int, list[bytes]] = {0: [b"a", b"b"], 1: []}
        assert await becomes_committed(address(proxy), expected, "t") == expected
