"""Topics: names and numbers that are refused, changes that survive."""

from __future__ import annotations

from collections.abc import AsyncIterator
from itertools import count
from pathlib import Path

import pytest

from coordinator.config import Settings
from coordinator.filesystem.executor import Disk
from coordinator.filesystem.files import FileStorage
from coordinator.metadata.catalog import OFFSETS_TOPIC, TRANSACTIONS_TOPIC, Catalog, TopicError, parse_topic_config
from coordinator.metadata.encoding import MetadataDamagedError
from coordinator.metadata.local import LocalMetadataStore
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
        config_defaults=Settings().topic_defaults,
        internal_segment_bytes={OFFSETS_TOPIC: 5000, TRANSACTIONS_TOPIC: 5000},
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


async def test_internal_topics_have_fifty_partitions_and_are_made_once(disk: Disk) -> None:
    catalog = await catalog_on(disk)
    await catalog.ensure_internal_topics()
    await catalog.ensure_internal_topics()
    for name in (OFFSETS_TOPIC, TRANSACTIONS_TOPIC):
        assert len(catalog.topic(name).partitions) == 50
        assert catalog.topic(name).internal
        assert catalog.config(catalog.topic(name)).compact
        assert catalog.config(catalog.topic(name)).segment_bytes == 5000
    assert catalog.revision == 1


async def test_a_data_directory_of_an_earlier_version_gets_the_internal_topics_it_lacks(disk: Disk) -> None:
    catalog = await catalog_on(disk)
    await catalog.commit(catalog.draft(OFFSETS_TOPIC, 50, {}))
    offsets = catalog.topic(OFFSETS_TOPIC)
    await catalog.ensure_internal_topics()
    assert (catalog.topic(OFFSETS_TOPIC), len(catalog.topic(TRANSACTIONS_TOPIC).partitions)) == (offsets, 50)


async def test_a_topic_of_clients_that_has_the_name_of_an_internal_one_is_told(disk: Disk) -> None:
    catalog = await catalog_on(disk)
    await catalog.commit(catalog.draft(TRANSACTIONS_TOPIC, 3, {}))
    with pytest.raises(
        MetadataDamagedError, match=r"__transaction_state has 3 partitions, .* has 50: copy its records"
    ):
        await catalog.ensure_internal_topics()


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


async def test_all_topics_together_have_a_bound_that_the_refusal_names(disk: Disk) -> None:
    catalog = await catalog_on(disk)
    await catalog.ensure_internal_topics()  # its partitions do not count
    await catalog.commit(catalog.draft("a", 100, {}))
    catalog.check_new("b", 50, -1)
    with pytest.raises(TopicError, match=r"the other topics have 100, .* have 150 \(max_partitions\)") as refused:
        catalog.check_new("b", 51, -1)
    assert refused.value.code == ErrorCode.INVALID_PARTITIONS
    await catalog.commit(catalog.draft("b", 40, {}))
    assert catalog.check_growth("b", 50) == catalog.topic("b")
    with pytest.raises(TopicError, match="the other topics have 100"):
        catalog.check_growth("b", 51)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        *(("segment.bytes", text) for text in ("x", "", "-1", "1.5", "²", "٤٠٩٦", "9" * 10, "9" * 5000, "0" * 5000)),
        ("segment.byte", "4096"),
        ("s" * 5000, "4096"),
    ],
)
def test_topic_settings_are_known_numbers(name: str, text: str) -> None:
    assert parse_topic_config({"segment.bytes": "4096"}) == {"segment.bytes": 4096}
    with pytest.raises(TopicError) as refused:
        parse_topic_config({name: text})
    assert refused.value.code == ErrorCode.INVALID_CONFIG
    assert len(str(refused.value)) < 400
