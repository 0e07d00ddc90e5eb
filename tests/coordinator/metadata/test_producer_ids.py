"""Producer ids are given out once, by those who wait for them and by those who cannot."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from coordinator.filesystem.executor import Disk
from coordinator.filesystem.files import FileStorage
from coordinator.metadata.authority import Compare, Operation
from coordinator.metadata.local import LocalMetadataStore
from coordinator.metadata.producer_ids import BLOCK, ProducerIds
from tests.coordinator.log.logs import end_of_process

WALL_MS = 1_700_000_000_000


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[LocalMetadataStore]:
    disk = Disk(FileStorage(str(tmp_path)), threads=1)
    opened = await LocalMetadataStore.open(disk, lambda: "cluster-1", end_of_process)
    yield opened
    await opened.close()
    disk.close()


async def at_hand(ids: ProducerIds) -> int:
    async with asyncio.timeout(30):
        while (taken := ids.take_at_hand()) is None:
            await asyncio.sleep(0.001)
    return taken


async def reserved(ids: ProducerIds) -> None:
    """Waits until no block is being reserved."""
    async with asyncio.timeout(30):
        while ids._reserving is not None:
            await asyncio.sleep(0.001)


async def test_no_id_is_given_out_twice(store: LocalMetadataStore) -> None:
    ids, other_node = ProducerIds(store, lambda: WALL_MS), ProducerIds(store, lambda: WALL_MS)
    taken = [await at_hand(ids) if number % 3 else await ids.take() for number in range(2 * BLOCK + 10)]
    taken += [await at_hand(other_node) for _ in range(BLOCK + 10)]
    assert len(set(taken)) == len(taken)
    assert all(ids.given_out(producer_id) for producer_id in taken)
    await ids.close()
    await other_node.close()


async def test_the_next_block_is_there_before_the_last_one_ends(store: LocalMetadataStore) -> None:
    ids = ProducerIds(store, lambda: WALL_MS)
    assert ids.take_at_hand() is None
    await at_hand(ids)
    for _ in range(20):
        await reserved(ids)
        assert [ids.take_at_hand() for _ in range(BLOCK // 2)].count(None) == 0
    await ids.close()


async def test_an_id_is_at_hand_when_the_ids_are_ready(store: LocalMetadataStore) -> None:
    ids = ProducerIds(store, lambda: WALL_MS)
    await ids.ready()
    assert ids.take_at_hand() is not None
    await ids.close()


async def test_ids_go_on_after_a_restart(store: LocalMetadataStore) -> None:
    ids = ProducerIds(store, lambda: WALL_MS)
    first = {await ids.take() for _ in range(5)}
    assert first.isdisjoint({await ProducerIds(store, lambda: WALL_MS).take() for _ in range(5)})


class FullStore:
    """A store whose disk refuses changes while ``full``."""

    def __init__(self, store: LocalMetadataStore) -> None:
        self.store = store
        self.full = True
        self.get = store.get

    async def transaction(self, conditions: list[Compare], changes: list[Operation]) -> int | None:
        if self.full:
            raise OSError(28, "No space left on device")
        return await self.store.transaction(conditions, changes)


async def test_a_disk_that_is_full_is_asked_again(store: LocalMetadataStore) -> None:
    full = FullStore(store)
    ids = ProducerIds(full, lambda: WALL_MS)  # type: ignore[arg-type]
    for _ in range(3):
        assert ids.take_at_hand() is None
        await asyncio.sleep(0.01)
    with pytest.raises(OSError, match="No space"):
        await ids.take()
    full.full = False
    assert await at_hand(ids) == await ids.take() - 1
    await ids.close()
