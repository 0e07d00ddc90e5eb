"""Topics: names and numbers that are refused, changes that survive, a store that is the old or the new state."""

from __future__ import annotations

from collections.abc import AsyncIterator
from itertools import count
from pathlib import Path

import pytest

from coordinator.disk import Disk
from coordinator.metadata.catalog import OFFSETS_TOPIC, Catalog, TopicError, parse_topic_config
from coordinator.metadata.local import PATH, LocalMetadataStore, MetadataDamagedError
from coordinator.metadata.store import Compare, Delete, Put
from coordinator.storage import FileStorage
from protocol.errors import ErrorCode
from tests.coordinator.log.logs import end_of_process


@pytest.fixture
async def disk(tmp_path: Path) -> AsyncIterator[Disk]:
    opened = Disk(FileStorage(str(tmp_path)), threads=1)
    yield opened
    opened.close()


async def catalog_on(disk: Disk) -> Catalog:
    ids = count(1)
    store = await LocalMetadataStore.open(disk, lambda: "cluster-1", end_of_process)
    return Catalog(
        store,
        0,
        lambda: f"topic-{next(ids)}-{store.revision}",
        max_partitions=150,
        max_partitions_per_topic=100,
    )


async def test_a_topic_survives_reopening(disk: Disk) -> None:
    catalog = await catalog_on(disk)
    await catalog.commit(catalog.draft("orders", 3, {"segment.bytes": 4096}))
    again = await catalog_on(disk)
    assert again.topics == catalog.topics
    assert again.revision == catalog.revision == 1
    assert again.cluster_id == "cluster-1"
    topic = again.topic("orders")
    assert len(topic.partitions) == 3
    assert (topic.partitions[0].leader, topic.partitions[0].isr) == (0, (0,))


async def test_growth_keeps_the_old_partitions(disk: Disk) -> None:
    catalog = await catalog_on(disk)
    await catalog.commit(catalog.draft("orders", 3, {}))
    before = catalog.topic("orders")
    await catalog.commit(catalog.draft_growth(catalog.check_growth("orders", 12), 12))
    after = (await catalog_on(disk)).topic("orders")
    assert after.topic_id == before.topic_id
    assert after.partitions[:3] == before.partitions
    assert len(after.partitions) == 12


async def test_deletion_is_noted_until_the_files_are_gone(disk: Disk) -> None:
    catalog = await catalog_on(disk)
    await catalog.commit(catalog.draft("orders", 2, {}))
    topic = catalog.topic("orders")
    await catalog.begin_deletion(topic)
    again = await catalog_on(disk)
    assert "orders" not in again.topics
    assert again.deletions() == [(topic.topic_id, "orders", 2)]
    await again.end_deletion(topic.topic_id)
    assert (await catalog_on(disk)).deletions() == []


async def test_the_offsets_topic_has_fifty_partitions_and_is_made_once(disk: Disk) -> None:
    catalog = await catalog_on(disk)
    await catalog.ensure_internal_topics()
    await catalog.ensure_internal_topics()
    assert len(catalog.topic(OFFSETS_TOPIC).partitions) == 50
    assert catalog.topic(OFFSETS_TOPIC).internal
    assert catalog.revision == 1


@pytest.mark.parametrize("name", ["", ".", "..", "a b", "a/b", "é", "a" * 250, "a\n"])
async def test_illegal_names_are_refused(disk: Disk, name: str) -> None:
    with pytest.raises(TopicError) as refused:
        (await catalog_on(disk)).check_new(name, 1, -1)
    assert refused.value.code == ErrorCode.INVALID_TOPIC_EXCEPTION


@pytest.mark.parametrize(
    ("partitions", "replicas", "code"), [(0, -1, 37), (-7, -1, 37), (101, -1, 37), (1, 0, 38), (1, 3, 38)]
)
async def test_absurd_numbers_are_refused(disk: Disk, partitions: int, replicas: int, code: int) -> None:
    with pytest.raises(TopicError) as refused:
        (await catalog_on(disk)).check_new("orders", partitions, replicas)
    assert refused.value.code == code


async def test_topics_only_grow_and_internal_ones_not_at_all(disk: Disk) -> None:
    catalog = await catalog_on(disk)
    await catalog.ensure_internal_topics()
    await catalog.commit(catalog.draft("orders", 3, {}))
    for name, partitions, code in [("orders", 3, 37), ("orders", 2, 37), ("nope", 9, 3), (OFFSETS_TOPIC, 60, 17)]:
        with pytest.raises(TopicError) as refused:
            catalog.check_growth(name, partitions)
        assert refused.value.code == code


def test_topic_settings_are_known_numbers() -> None:
    assert parse_topic_config({"segment.bytes": "4096"}) == {"segment.bytes": 4096}
    for config in ({"segment.byte": "1"}, {"segment.bytes": "x"}, {"segment.bytes": "-1"}, {"segment.bytes": "²"}):
        with pytest.raises(TopicError) as refused:
            parse_topic_config(config)
        assert refused.value.code == ErrorCode.INVALID_CONFIG


async def test_watchers_hear_of_each_change_and_a_failed_condition_changes_nothing(disk: Disk) -> None:
    store = await LocalMetadataStore.open(disk, lambda: "c", end_of_process)
    heard: list[int] = []
    stop = store.watch("a/", heard.append)
    assert await store.transaction([Compare("a/1", 0)], [Put("a/1", {"n": 1})]) == 1
    assert await store.transaction([Compare("a/1", 0)], [Put("a/1", {"n": 2})]) is None
    assert await store.transaction([Compare("a/1", 1)], [Put("b", {})]) == 2
    assert await store.transaction([], [Delete("a/1")]) == 3
    stop()
    assert await store.transaction([], [Put("a/2", {})]) == 4
    assert heard == [1, 3]


async def test_a_changed_byte_is_noticed(disk: Disk, tmp_path: Path) -> None:
    catalog = await catalog_on(disk)
    await catalog.commit(catalog.draft("orders", 1, {}))
    content = (tmp_path / PATH).read_bytes()
    for position in range(len(content) - 1):  # the very last byte is the closing line feed, which carries nothing
        damaged = bytearray(content)
        damaged[position] ^= 1
        (tmp_path / PATH).write_bytes(damaged)
        with pytest.raises(MetadataDamagedError):
            await catalog_on(disk)


@pytest.mark.parametrize("content", [b"", b"{}\n{}\n", b"not json\n{}\n", b'{"format": 1}\n{}\n'])
async def test_a_file_that_is_none_is_refused(disk: Disk, tmp_path: Path, content: bytes) -> None:
    (tmp_path / PATH).write_bytes(content)
    with pytest.raises(MetadataDamagedError):
        await catalog_on(disk)


async def test_a_newer_format_names_itself(disk: Disk, tmp_path: Path) -> None:
    (tmp_path / PATH).write_bytes(b'{"format": 2, "crc32": 0}\n{}\n')
    with pytest.raises(MetadataDamagedError, match="format 2, this version of Cohort reads format 1"):
        await catalog_on(disk)
