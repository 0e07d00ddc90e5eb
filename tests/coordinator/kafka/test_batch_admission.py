"""Before the first batch of a Kafka client is in a log, the metadata say so."""

from __future__ import annotations

import asyncio
import errno
import json
import os
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from coordinator.filesystem.executor import Disk
from coordinator.filesystem.files import FileStorage
from coordinator.kafka.batches import BatchAdmission
from coordinator.metadata.authority import Put
from coordinator.metadata.catalog import TopicError
from coordinator.metadata.encoding import SNAPSHOT, MetadataDamagedError, decode_snapshot
from coordinator.metadata.keys import CLUSTER_FORMAT, KAFKA_BATCHES
from coordinator.metadata.local import LocalMetadataStore
from coordinator.nodes.registration import FORMAT, RegistrationRefusedError, check_format
from coordinator.server.handlers.produced_batches import Inflation
from protocol.errors import RETRIABLE, ErrorCode
from protocol.record_batch import Attributes, BatchHeader
from tests.coordinator.kafka.admission import CONFIG
from tests.coordinator.log.faulty_storage import HookedStorage
from tests.coordinator.log.logs import end_of_process
from tests.protocol.kafka.written import Record, written

BATCH = written([Record(b"k", b"v")])


class Full:
    """A hook that refuses snapshots while it is ``on``: the log of changes has room yet."""

    on = False

    def __call__(self, operation: str, path: str) -> None:
        if self.on and (operation, path) == ("write_file", SNAPSHOT):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.fixture
def full() -> Full:
    return Full()


@pytest.fixture
async def store(tmp_path: Path, full: Full) -> AsyncIterator[LocalMetadataStore]:
    disk = Disk(HookedStorage(tmp_path, full), threads=1)
    yield await opened(disk)
    disk.close()


async def opened(disk: Disk) -> LocalMetadataStore:
    return await LocalMetadataStore.open(disk, lambda: "cluster-1", end_of_process)


async def admit(admission: BatchAdmission, records: bytes = BATCH) -> tuple[list[tuple[bytes, BatchHeader]], int]:
    """What comes of a batch, and how often the loop was left to others."""
    steps, turns = admission("t", CONFIG, records, Inflation(), _no_thread), 0
    while True:
        try:
            waits_for = next(steps)
        except StopIteration as end:
            batches: list[tuple[bytes, BatchHeader]] = end.value
            return batches, turns
        turns += 1
        if waits_for is not None:
            await waits_for


def _no_thread(check: Callable[[], None]) -> asyncio.Future[None]:
    raise AssertionError("a small batch needs no thread")


async def test_the_first_batch_raises_the_format_on_disk_before_it_is_taken(
    store: LocalMetadataStore, tmp_path: Path
) -> None:
    check_format(store)
    assert json.loads((tmp_path / SNAPSHOT).read_bytes().split(b"\n")[0])["format"] == 3
    admission = BatchAdmission(store)
    ((_, header),), turns = await admit(admission)
    assert header.attributes == Attributes.KAFKA_BODY
    assert turns == 1
    known = store.get(CLUSTER_FORMAT)
    assert known is not None
    assert known.value == {"format": KAFKA_BATCHES}
    snapshot = (tmp_path / SNAPSHOT).read_bytes()
    assert decode_snapshot(snapshot).format == 4, "what versions before this one refuse"
    assert (await admit(admission))[1] == 0, "once is enough"
    assert (await admit(BatchAdmission(store)))[1] == 0
    assert (tmp_path / SNAPSHOT).read_bytes() == snapshot
    check_format(store)


async def test_a_directory_that_was_raised_opens_again_and_stays_so(store: LocalMetadataStore, tmp_path: Path) -> None:
    await admit(BatchAdmission(store))
    for number in range(3):
        await store.transaction([], [Put(f"key-{number}", {"text": "x" * 3_000})])
    await store.close()
    disk = Disk(FileStorage(str(tmp_path)), threads=1)
    try:
        again = await opened(disk)
        assert decode_snapshot((tmp_path / SNAPSHOT).read_bytes()).format == 4
        assert (await admit(BatchAdmission(again)))[1] == 0
    finally:
        disk.close()


async def test_a_version_that_reads_older_formats_only_refuses_to_start(
    store: LocalMetadataStore, tmp_path: Path
) -> None:
    await store.transaction([], [Put(CLUSTER_FORMAT, {"format": FORMAT + 1})])
    with pytest.raises(RegistrationRefusedError, match=f"formats up to {FORMAT}"):
        check_format(store)
    content = (tmp_path / SNAPSHOT).read_bytes()
    with pytest.raises(MetadataDamagedError, match="has format 5, this version of Cohort reads formats 1 to 4"):
        decode_snapshot(content.replace(b'"format": 4', b'"format": 5', 1))


async def test_a_batch_that_is_refused_raises_nothing(store: LocalMetadataStore) -> None:
    with pytest.raises(TopicError):
        await admit(BatchAdmission(store), BATCH[:-1])
    assert store.get(CLUSTER_FORMAT) is None


async def test_while_a_node_lives_that_does_not_read_them_none_is_taken(store: LocalMetadataStore) -> None:
    await store.transaction([], [Put(CLUSTER_FORMAT, {"format": KAFKA_BATCHES - 1})])
    admission = BatchAdmission(store)
    with pytest.raises(TopicError, match="upgrade all of them") as refused:
        await admit(admission)
    assert refused.value.code == ErrorCode.LEADER_NOT_AVAILABLE
    assert refused.value.code in RETRIABLE
    await store.transaction(
        [], [Put(CLUSTER_FORMAT, {"format": KAFKA_BATCHES})]
    )  # by the controller, after the upgrade
    assert len((await admit(admission))[0]) == 1


async def test_a_disk_that_refuses_the_format_takes_no_batch_until_it_does(
    store: LocalMetadataStore, full: Full
) -> None:
    admission = BatchAdmission(store)
    await store.transaction([], [Put("large", {"text": "x" * 2_000})])
    full.on = True
    with pytest.raises(TopicError, match="could not be written") as refused:
        await admit(admission)
    assert refused.value.code in RETRIABLE
    assert store.get(CLUSTER_FORMAT) is None
    full.on = False
    assert len((await admit(admission))[0]) == 1
    assert store.get(CLUSTER_FORMAT) is not None
