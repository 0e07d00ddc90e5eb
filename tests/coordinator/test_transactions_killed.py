"""The process ends at every call of the disk in the life of transactions: between any two of Add, data, offsets, decision,
end markers and completion. What was acknowledged is whole afterwards, what was not is whole or absent, and nothing hangs."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Final

import pytest
import structlog

from coordinator.runtime.shard import ShardState
from tests.coordinator.log.faulty_storage import KillAt
from tests.coordinator.test_transactional_offsets import GROUP, commit_in_transaction, fetched
from tests.coordinator.transaction_node import TransactionNode, transaction_node

_TOPICS: Final = ("a", "b")
_TRANSACTIONS: Final = 4
_ABORTED: Final = 1
"""The number of the transaction that is aborted; the others are committed."""


class Life:
    """Transactions that write a number to two topics and commit it as an offset, one after the other."""

    def __init__(self) -> None:
        self.ending = -1
        """The transaction whose end was asked for last."""
        self.ended = -1
        """The last one of which the end was acknowledged."""

    async def live(self, there: TransactionNode) -> None:
        identity = await there.init()
        for number in range(_TRANSACTIONS):
            for topic in _TOPICS:
                await there.wrote(identity, topic, value=b"%d" % number)
            await commit_in_transaction(there, identity, number)
            self.ending = number
            identity = await there.end(identity, committed=number != _ABORTED)
            self.ended = number
        await there.until(lambda: there.shard().core.durable_state()["t"][0].completing is None)
        await there.wrote(identity, "a", value=b"never ended")


def killed_in(path: Path, number: int) -> tuple[bool, Life]:
    """Whether the process was killed at its ``number``-th change on the disk, and what it had acknowledged."""
    kill, life = KillAt(1 << 60), Life()
    killed = False

    async def run() -> None:
        nonlocal killed
        asyncio.get_running_loop().set_exception_handler(
            lambda *_: None
        )  # of tasks that a killed process leaves behind
        async with transaction_node(path, kill, close=False) as there:
            for topic in _TOPICS:
                await there.opened.create(topic, 1)
            kill.left = number
            living = asyncio.create_task(life.live(there))
            while not living.done() and not kill.killed:
                await asyncio.sleep(0.0005)
            if not kill.killed:
                await living
            living.cancel()
            killed = kill.killed
            kill.left = -1  # at the latest now

    with structlog.testing.capture_logs():
        asyncio.run(run())
    return killed, life


async def look(path: Path, life: Life) -> None:
    async with transaction_node(path, first_producer_id=1_000) as there:
        await there.init()  # it ends what the one before left open
        for topic in _TOPICS:
            log = there.log(topic)
            await there.until(lambda log=log: log.last_stable_offset == log.end_offset)  # type: ignore[misc]
        await there.groups.open(GROUP)
        shard = there.groups.shard(GROUP)
        assert shard is not None
        await there.until(lambda: not shard.core.groups.open_transactions)
        offsets = await fetched(there)
        contents = [await there.committed(topic) for topic in _TOPICS]
        assert contents[0] == contents[1], "whole or not at all"
        numbers = [int(value) for value in contents[0]]
        assert numbers == [number for number in range(len(numbers) + 1) if number != _ABORTED][: len(numbers)]
        assert offsets == numbers[-1:], "offsets go with their outputs"
        last = max(numbers, default=-1)
        acknowledged = life.ended if life.ended != _ABORTED else _ABORTED - 1
        assert acknowledged <= last <= life.ending
        await there.until_state("Empty")
        await there.until(lambda: there.shard().at_rest)  # what is applied and not appended yet would be void
        before = there.shard().core.durable_state()
        there.shard()._drop("as after a fault")
        await there.until(lambda: there.shard().state is ShardState.ACTIVE)
        assert there.shard().core.durable_state() == before


@pytest.mark.parametrize("first", range(6))
def test_whenever_the_process_is_killed_transactions_are_whole_and_none_hangs(tmp_path: Path, first: int) -> None:
    number = first
    while True:
        path = tmp_path / str(number)
        path.mkdir()
        killed, life = killed_in(path, number)
        with structlog.testing.capture_logs():
            asyncio.run(look(path, life))
        if not killed:
            break
        number += 6
    assert number > 30
