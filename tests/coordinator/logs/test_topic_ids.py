"""A partition's directory says which topic it belongs to, and is served as no other's."""

from __future__ import annotations

import errno
from pathlib import Path
from unittest.mock import patch

import pytest
import structlog

import coordinator.logs.log_manager as log_manager
from coordinator.metadata.catalog import OFFSETS_TOPIC
from tests.coordinator.logs.test_log_manager import Hook, fill, node


def noted(directory: Path) -> list[str]:
    return [path.name.removesuffix(".topic-id") for path in directory.glob("*.topic-id")]


async def test_directories_of_topics_and_of_coordinators_have_the_ids_of_their_topics(tmp_path: Path) -> None:
    async with node(tmp_path) as one:
        topic = await one.create("t", 2)
        internal = one.catalog.topics[OFFSETS_TOPIC]
        assert await one.partitions.open_one(internal, 3) is not None
        for index in range(2):
            assert noted(tmp_path / f"t-{index}") == [topic.topic_id]
        assert noted(tmp_path / f"{OFFSETS_TOPIC}-3") == [internal.topic_id]
        growth = one.catalog.draft_growth(topic, 3)
        await one.partitions.create(growth, [2])
        assert noted(tmp_path / "t-2") == [topic.topic_id]


async def restored_from_another(tmp_path: Path) -> bytes:
    """A topic in whose place a namesake's directory was put back; what the namesake's log holds."""
    async with node(tmp_path) as one:
        first = await one.create("t", 2)
        await fill(one, "t")
        await one.partitions.delete("other", [0])
    (tmp_path / "t-0").rename(tmp_path / "kept")
    (tmp_path / "t-0").mkdir()
    (tmp_path / "t-0" / "00000000000000000000.log").touch()
    async with node(tmp_path) as one:
        await one.catalog.begin_deletion(first)
        await one.partitions.delete("t", range(2))
        await one.catalog.end_deletion(first.topic_id)
        await one.create("t", 2)
    (tmp_path / "t-0").rename(tmp_path / "of the second")
    (tmp_path / "kept").rename(tmp_path / "t-0")
    return (tmp_path / "t-0" / "00000000000000000000.log").read_bytes()


async def test_a_directory_of_a_deleted_namesake_is_not_served(tmp_path: Path) -> None:
    content = await restored_from_another(tmp_path)
    assert content
    with structlog.testing.capture_logs() as lines:
        async with node(tmp_path) as one:
            second = one.catalog.topics["t"].topic_id
            assert (one.end("t", 0), one.end("t", 1)) == (None, 0)
            told = one.partitions.damage("t", 0)
            assert told is not None
            assert "t-0 is damaged at its topic id: it belongs to the topic with the id " in told
            assert f"and the topic of this name has the id {second}. Restore it" in told
            assert one.partitions.lacks_records()
    assert [(line["topic"], line["partition"]) for line in lines if line["event"] == "partition_damaged"] == [("t", 0)]
    assert (tmp_path / "t-0" / "00000000000000000000.log").read_bytes() == content, "it may be wanted yet"


async def test_without_the_check_its_records_would_be_served(tmp_path: Path) -> None:
    await restored_from_another(tmp_path)
    with patch.object(log_manager, "check_topic_id", lambda *_: None):
        async with node(tmp_path) as one:
            assert one.end("t", 0) == 1


async def test_a_directory_of_a_version_that_noted_none_takes_the_id_of_its_topic(tmp_path: Path) -> None:
    async with node(tmp_path) as one:
        topic = await one.create("t", 1)
        await fill(one, "t")
    (tmp_path / "t-0" / f"{topic.topic_id}.topic-id").unlink()
    hook = Hook()
    async with node(tmp_path, hook) as two:
        assert two.end("t") == 1
    assert noted(tmp_path / "t-0") == [topic.topic_id]
    assert ("sync_directory", "t-0") in hook.seen
    hook = Hook()
    async with node(tmp_path, hook) as three:
        assert three.end("t") == 1
    assert ("sync_directory", "t-0") not in hook.seen, "once is enough"


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EROFS])
async def test_a_disk_that_takes_no_note_keeps_no_partition_from_being_served(tmp_path: Path, number: int) -> None:
    async with node(tmp_path) as one:
        topic = await one.create("t", 1)
    (tmp_path / "t-0" / f"{topic.topic_id}.topic-id").unlink()
    hook = Hook()
    hook.fails, hook.number = ("create", ".topic-id"), number
    with structlog.testing.capture_logs() as lines:
        async with node(tmp_path, hook) as two:
            assert two.end("t") == 0
    assert [line["directory"] for line in lines if line["event"] == "topic_id_not_noted"] == ["t-0"]
    assert noted(tmp_path / "t-0") == []


async def test_a_creation_that_cannot_be_noted_makes_no_topic(tmp_path: Path) -> None:
    hook = Hook()
    async with node(tmp_path, hook) as one:
        hook.fails = ("create", ".topic-id")
        with pytest.raises(OSError, match="No space"):
            await one.create("t", 2)
        hook.fails = ("", "")
        topic = await one.create("t", 2)
        assert noted(tmp_path / "t-1") == [topic.topic_id]
