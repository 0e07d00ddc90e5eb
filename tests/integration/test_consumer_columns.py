"""``getmany_columns``: the records of ``getmany``, its positions, limits and commits, without an object for a record."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from client import ClosedError, Consumer, Producer, TopicPartition
from tests.daemon_process import DaemonProcess
from tests.integration.consuming import QUICK, create, fill


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with DaemonProcess(tmp_path_factory.mktemp("daemon") / "data") as daemon:
        yield daemon.address


async def numbers(consumer: Consumer, **more: int) -> list[int]:
    taken = await consumer.getmany_columns(timeout_ms=5_000, **more)
    return [int(value or b"") for parts in taken.values() for part in parts for value in part.values()]


@pytest.mark.parametrize("compression", [None, "gzip"])
async def test_a_seek_into_a_batch_limits_and_other_polls_in_between(address: str, compression: str | None) -> None:
    topic = f"mixed-{compression}".lower()
    await create(address, **{topic: 1})
    async with Producer(address, compression="gzip" if compression else None) as producer:
        await producer.send_many(topic, [b"%d" % number for number in range(100)], [b"k"] * 100)
    tp = TopicPartition(topic, 0)
    async with Consumer(bootstrap_servers=address) as consumer:
        consumer.assign([tp])
        consumer.seek(tp, 40)
        assert await numbers(consumer, max_records=5) == [40, 41, 42, 43, 44]
        assert await consumer.position(tp) == 45
        assert int((await consumer.getone()).value) == 45
        assert await numbers(consumer, max_records=2) == [46, 47]
        records = (await consumer.getmany(max_records=2))[tp]
        assert [(int(record.value), record.key) for record in records] == [(48, b"k"), (49, b"k")]
        assert await numbers(consumer) == list(range(50, 100))
        assert await consumer.getmany_columns(timeout_ms=0) == {}


async def test_what_was_handed_out_in_columns_is_committed_as_any_other(address: str) -> None:
    await create(address, counted=1)
    await fill(address, "counted", range(20))
    tp = TopicPartition("counted", 0)
    async with Consumer("counted", bootstrap_servers=address, group_id="counting", **QUICK) as consumer:
        assert await numbers(consumer, max_records=8) == list(range(8))
        assert await numbers(consumer, max_records=4) == [8, 9, 10, 11]
    async with Consumer("counted", bootstrap_servers=address, group_id="counting", **QUICK) as consumer:
        assert await consumer.committed(tp) == {tp: (8, "", -1)}, "those of the latest poll are not done"
        taken = await consumer.getmany_columns(timeout_ms=5_000, max_records=4)
        assert [list(part.offsets) for part in taken[tp]] == [[8, 9, 10, 11]]
        await consumer.commit({tp: taken[tp][-1].offsets[-1] + 1})
        assert await consumer.committed(tp) == {tp: (12, "", -1)}


async def test_misuse_is_told_as_of_getmany(address: str) -> None:
    consumer = Consumer("counted", bootstrap_servers=address)
    with pytest.raises(ClosedError, match="not started"):
        await consumer.getmany_columns()
    with pytest.raises(ValueError, match="max_records is 0"):
        await consumer.getmany_columns(max_records=0)
