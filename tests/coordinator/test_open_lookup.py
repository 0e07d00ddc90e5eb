"""After a load it is found out whether transactions with carried partitions are open, from the logs and groups that know."""

from __future__ import annotations

from pathlib import Path

import pytest

from coordinator import open_lookup
from coordinator.log.partition import PartitionLog
from coordinator.runtime.participants import ParticipantKey
from coordinator.transactions.config import TransactionConfig
from tests.coordinator.transaction_node import TransactionNode, transaction_node


async def committed_once(there: TransactionNode) -> tuple[int, int]:
    """A producer has committed a transaction, whose markers are written; its next identity."""
    await there.opened.create("orders", 1)
    identity = await there.init()
    await there.wrote(identity, "orders")
    following = await there.end(identity, True)
    await there.until_state("CompleteCommit")
    return following


def is_carried(there: TransactionNode) -> bool:
    return there.shard().core.transactions["t"].carried


async def test_a_transaction_without_a_write_is_found_not_to_be_open_and_goes_on_from_memory(tmp_path: Path) -> None:
    async with transaction_node(tmp_path, close=False) as there:
        following = await committed_once(there)
    async with transaction_node(tmp_path, first_producer_id=900) as there:
        await there.until(lambda: is_carried(there))
        assert there.described().state == "CompleteCommit"
        written = there.log("__transaction_state", there.shard().partition).end_offset
        await there.wrote(following, "orders")
        assert there.described().state == "Ongoing"
        assert there.log("__transaction_state", there.shard().partition).end_offset == written
        await there.end(following, True)
        await there.until_state("CompleteCommit")
        assert await there.committed("orders") == [b"value", b"value"]


async def test_a_transaction_with_a_write_is_open_through_the_crash(tmp_path: Path) -> None:
    async with transaction_node(tmp_path, close=False) as there:
        following = await committed_once(there)
        await there.wrote(following, "orders")
    async with transaction_node(tmp_path, first_producer_id=900) as there:
        for _ in range(20):
            await there.until_state("Ongoing")
        assert not is_carried(there)
        await there.end(following, False)
        await there.until_state("CompleteAbort")
        assert await there.committed("orders") == [b"value"]


async def test_an_open_transaction_that_is_left_alone_after_a_crash_is_aborted_by_its_timeout(tmp_path: Path) -> None:
    async with transaction_node(tmp_path, close=False) as there:
        await there.opened.create("orders", 1)
        identity = await there.init(timeout_ms=300)
        await there.wrote(identity, "orders")
        following = await there.end(identity, True)
        await there.wrote(following, "orders")
    async with transaction_node(tmp_path, first_producer_id=900) as there:
        await there.until_state("CompleteAbort")
        log = there.log("orders")
        await there.until(lambda: log.last_stable_offset == log.end_offset)
        assert await there.committed("orders") == [b"value"]


async def test_a_clean_stop_leaves_nothing_to_be_found_out(tmp_path: Path) -> None:
    async with transaction_node(tmp_path) as there:
        await committed_once(there)
    async with transaction_node(tmp_path, first_producer_id=900) as there:
        assert there.described().state == "CompleteCommit"
        assert there.shard().core.transactions["t"].current_members == {}


async def test_a_log_that_is_not_open_and_a_write_that_waits_are_asked_about_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(open_lookup, "FIRST_PAUSE_S", 0.001)
    async with transaction_node(tmp_path, close=False) as there:
        await committed_once(there)
    asked: list[str] = []
    original = open_lookup.OpenTransactions.look

    def look(self: open_lookup.OpenTransactions, *rest: object) -> bool | None:
        asked.append("looks")
        get, awaits = self._logs.get, self._admission.awaits

        def not_open(topic: str, partition: int) -> PartitionLog | None:
            return None if len(asked) < 3 else get(topic, partition)

        def waits(key: ParticipantKey, producer_id: int, epoch: int) -> bool:
            return len(asked) < 6 or awaits(key, producer_id, epoch)

        with monkeypatch.context() as patch:
            patch.setattr(self._logs, "get", not_open)
            if len(asked) >= 3:
                patch.setattr(self._admission, "awaits", waits)
            return original(self, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(open_lookup.OpenTransactions, "look", look)
    async with transaction_node(tmp_path, first_producer_id=900) as there:
        await there.until(lambda: is_carried(there))
        assert len(asked) == 6


async def test_a_topic_that_was_deleted_has_nothing_open(tmp_path: Path) -> None:
    async with transaction_node(tmp_path, close=False) as there:
        await committed_once(there)
        await there.catalog.begin_deletion(there.catalog.topics["orders"])
        await there.opened.partitions.delete("orders", range(1))
    async with transaction_node(tmp_path, config=TransactionConfig(carried_ms=50), first_producer_id=900) as there:
        await there.until(lambda: there.shard().core.transactions["t"].transactions == {})
        assert there.described().state == "CompleteCommit"
