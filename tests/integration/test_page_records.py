"""Records as the page reads them: the newest, back and on from there, by offset and time, as they come; and the bounds."""

from __future__ import annotations

import asyncio
import json
from base64 import b64decode
from typing import Any

import pytest
from aiohttp import ClientSession, ClientTimeout

from client import Admin, Producer, TopicPartition
from coordinator import Coordinator
from coordinator.web import record_views, streams
from tests.integration.test_page_api import HOSTILE, SETTINGS, answer, asked, produced


async def batches_of_all_kinds(coordinator: Coordinator) -> None:
    """Six records: plain ones with keys and headers, a null value, one of a transaction; its end marker is the seventh."""
    async with Admin(coordinator.address) as admin:
        await admin.create_topics({"lines": 1})
    async with Producer(coordinator.address) as producer:
        for number in range(4):
            headers = [("trace", b"\xff\x00"), (HOSTILE, b"")]
            await producer.send("lines", b"%d" % number, key=b"k", headers=headers, timestamp_ms=1_000 + number)
        await producer.send("lines", None, key=b"gone")
    async with Producer(coordinator.address, transactional_id="t") as producer, producer.transaction():
        await producer.send("lines", b"x" * 10_000)
    async with asyncio.timeout(30):  # until the end marker is there, which the commit does not wait for
        while (await asked(coordinator, "records", topic="lines"))["end"] != 7:
            await asyncio.sleep(0.01)


async def test_records_are_found_by_offset_and_time_with_their_headers() -> None:
    async with Coordinator(**SETTINGS) as coordinator:
        await batches_of_all_kinds(coordinator)
        ask = {"topic": "lines", "partition": "0"}
        rows = (await asked(coordinator, "records", **ask))["records"]
        assert [row["offset"] for row in rows] == list(range(7))
        assert [b64decode(row["value"]) for row in rows[:4]] == [b"0", b"1", b"2", b"3"]
        assert (b64decode(rows[4]["key"]), rows[4]["value"], rows[4]["value_size"]) == (b"gone", None, -1)
        names = [(one["name"], b64decode(one["value"])) for one in rows[0]["headers"]]
        assert names[0] == ("trace", b"\xff\x00")
        assert names[1][0].startswith("<img src=x")
        assert (len(b64decode(rows[5]["value"])), rows[5]["value_size"], rows[5]["transactional"]) == (
            4096,
            10_000,
            True,
        )
        assert rows[6]["marker"] == "commit"
        whole = await asked(coordinator, "records", **ask, **{"from": "offset"}, offset="5", whole="yes")
        assert [len(b64decode(row["value"])) for row in whole["records"]] == [10_000]
        some = await asked(coordinator, "records", **ask, **{"from": "offset"}, offset="2", limit="2")
        assert ([row["offset"] for row in some["records"]], some["next"]) == ([2, 3], 4)
        since = await asked(coordinator, "records", **ask, **{"from": "time"}, time_ms="1002")
        assert since["records"][0]["offset"] == 2
        far = await asked(coordinator, "records", **ask, **{"from": "offset"}, offset="99")
        assert (far["records"], "offset 99 is not there" in far["note"]) == ([], True)
        status, refused = await answer(coordinator, "/api/records", {**ask, "partition": "7"})
        assert (status, "partitions 0 to 0, not 7" in refused["error"]) == (404, True)


async def test_an_answer_with_records_is_bounded_by_bytes() -> None:
    async with Coordinator(**SETTINGS) as coordinator:
        await produced(coordinator.address, "lines", 1, 0)
        async with Producer(coordinator.address) as producer:
            for _ in range(200):
                await producer.send("lines", b"v" * 4_000, key=b"k" * 4_000, headers=[("h", b"h" * 4_000)])
        told = await asked(coordinator, "records", topic="lines", **{"from": "offset"}, limit="200")
        held = sum(len(row["key"]) + len(row["value"]) + len(row["headers"][0]["value"]) for row in told["records"])
        assert 0 < len(told["records"]) < 200
        assert held * 3 // 4 <= record_views.MAX_BYTES + 3 * record_views.MAX_VALUE_BYTES
        assert told["next"] == len(told["records"])


async def test_records_that_come_are_followed_and_too_many_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams, "LOOK_S", 0.05)
    monkeypatch.setattr(record_views, "_FAR_BEHIND", 300)
    async with Coordinator(**SETTINGS) as coordinator:
        await produced(coordinator.address, "lines", 1, 3)
        url = f"http://{coordinator.http_address}/api/events"
        query = {"view": "records", "topic": "lines", "partition": "0", "offset": "2"}

        async with (
            ClientSession(timeout=ClientTimeout(total=60)) as session,
            session.get(url, params=query) as stream,
            Producer(coordinator.address) as producer,
        ):

            async def next_event() -> dict[str, Any]:
                async for line in stream.content:
                    if line.startswith(b"data: "):
                        return dict(json.loads(line[6:]))
                raise AssertionError("the stream has ended")

            assert [row["offset"] for row in (await next_event())["records"]] == [2]
            await producer.send("lines", b"new")
            assert [b64decode(row["value"]) for row in (await next_event())["records"]] == [b"new"]
            for number in range(400):
                await producer.send("lines", b"%d" % number)
            await producer.flush()
            seen, skipped = 4, 0
            while seen + skipped < 404:
                event = await next_event()
                seen, skipped = seen + len(event["records"]), skipped + event["skipped"]
            assert seen + skipped == 404


async def looked_through(coordinator: Coordinator, topic: str, limit: int) -> list[list[dict[str, Any]]]:
    """The newest records, and what lies before them, answer by answer, back to the first one."""
    ask = {"topic": topic, "limit": str(limit)}
    told = await asked(coordinator, "records", **ask)
    assert told["next"] == told["end"]
    answers = [told["records"]]
    while told["before"] != told["first"]:
        end = told["before"]
        told = await asked(coordinator, "records", **ask, **{"from": "before"}, offset=str(end))
        assert told["next"] == end > told["before"]
        answers.append(told["records"])
    assert all(len(records) <= limit for records in answers)
    return answers


async def all_forwards(coordinator: Coordinator, topic: str) -> list[dict[str, Any]]:
    records: list[dict[str, Any]] = []
    told: dict[str, Any] = {"next": 0, "end": -1}
    while told["next"] != told["end"]:
        ask = {"topic": topic, "from": "offset", "offset": str(told["next"]), "limit": "200"}
        told = await asked(coordinator, "records", **ask)
        records += told["records"]
    return records


def in_order(answers: list[list[dict[str, Any]]]) -> list[dict[str, Any]]:
    return [record for records in reversed(answers) for record in records]


async def test_the_newest_are_there_however_large_and_those_before_them_without_a_gap() -> None:
    """Each of these lies in a batch of its own, of which one read brings one."""
    async with Coordinator(**SETTINGS) as coordinator:
        await produced(coordinator.address, "lines", 1, 0)
        async with Producer(coordinator.address) as producer:
            for number in range(70):
                await producer.send("lines", b"%d" % number + b"x" * 200_000)
        newest, before = await looked_through(coordinator, "lines", 50)
        assert [record["offset"] for record in newest] == list(range(20, 70))
        assert [record["offset"] for record in before] == list(range(20))
        assert {record["value_size"] - len(str(record["offset"])) for record in (*newest, *before)} == {200_000}


async def test_where_batches_are_too_large_for_an_answer_it_has_the_newest_and_says_where_it_ends(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(record_views, "_MAX_READ_BYTES", 1_500_000)
    async with Coordinator(**SETTINGS) as coordinator:
        await produced(coordinator.address, "lines", 1, 0)
        async with Producer(coordinator.address) as producer:
            for _ in range(20):
                await producer.send("lines", b"x" * 200_000)
        answers = await looked_through(coordinator, "lines", 50)
        assert 3 < len(answers) < 20
        assert [record["offset"] for record in in_order(answers)] == list(range(20))


@pytest.mark.parametrize("limit", [1, 7, 50, 200])
async def test_a_log_of_all_kinds_of_batches_is_looked_through_backwards(limit: int) -> None:
    """Many records in a batch and few, small and large ones, end markers, segments: as they are read forwards."""
    async with Coordinator(**SETTINGS) as coordinator, Admin(coordinator.address) as admin:
        await batches_of_all_kinds(coordinator)
        await admin.alter_topic_config("lines", {"segment.bytes": 20_000})
        async with Producer(coordinator.address) as producer:
            for count in (1, 300, 1, 1, 2, 90, 3):
                await producer.send_many("lines", [b"%d" % count] * count, partition=0)
                await producer.flush()
            for size in (10, 150_000, 150_000, 10, 300_000):
                await producer.send_and_wait("lines", b"x" * size)
        forwards = await all_forwards(coordinator, "lines")
        assert len(forwards) == 7 + 398 + 5
        assert forwards[6]["marker"] == "commit"
        assert in_order(await looked_through(coordinator, "lines", limit)) == forwards


async def compacted(coordinator: Coordinator, topic: str) -> list[int]:
    """A topic of 560 records of which compaction has left few: the first 11, the last 61. Gives their offsets."""
    settings = {"cleanup.policy": "compact", "segment.bytes": 4096, "min.cleanable.dirty.ratio": 0}
    async with Admin(coordinator.address) as admin, Producer(coordinator.address) as producer:
        await admin.create_topics({topic: 1}, settings)
        for number in range(11):
            await producer.send_and_wait(topic, b"%d" % number, b"first%d" % number)
        for _ in range(8):
            await producer.send_many(topic, [b"again"] * 61, [b"again"] * 61, partition=0)
            await producer.flush()
        await producer.send_and_wait(topic, b"the last", b"again")
        for number in range(60):
            await producer.send_and_wait(topic, b"%d" % number + b"x" * 200, b"last%d" % number)
    left = [*range(11), *range(499, 560)]
    async with asyncio.timeout(30):
        while [record["offset"] for record in await all_forwards(coordinator, topic)] != left:
            await asyncio.sleep(0.02)
    return left


@pytest.mark.parametrize("limit", [1, 7, 50])
async def test_a_compacted_log_is_looked_through_backwards(limit: int) -> None:
    async with Coordinator(**SETTINGS, compaction_interval_ms=20) as coordinator:
        left = await compacted(coordinator, "kept")
        answers = await looked_through(coordinator, "kept", limit)
        assert [record["offset"] for record in in_order(answers)] == left
        assert len(answers) <= len(left) / limit + 2  # hardly an answer without records


async def test_what_lies_before_an_offset_that_is_not_there_is_told_as_far_as_it_goes() -> None:
    async with Coordinator(**SETTINGS) as coordinator, Admin(coordinator.address) as admin:
        await produced(coordinator.address, "lines", 1, 9)
        await admin.delete_records({TopicPartition("lines", 0): 4})
        ask = {"topic": "lines", "from": "before"}
        told = await asked(coordinator, "records", **ask, offset="3")
        assert (told["records"], told["before"], told["next"], told["first"]) == ([], 4, 4, 4)
        assert "offset 3 is not there" in told["note"]
        told = await asked(coordinator, "records", **ask, offset="99")
        assert [record["offset"] for record in told["records"]] == [4, 5, 6, 7, 8]
        assert (told["before"], told["next"]) == (4, 9)


async def test_a_page_without_a_stream_goes_on_where_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record_views, "_FAR_BEHIND", 300)
    async with Coordinator(**SETTINGS) as coordinator:
        await produced(coordinator.address, "lines", 1, 250)
        ask = {"topic": "lines", "from": "following", "limit": "200"}
        told = await asked(coordinator, "records", **ask, offset="3")
        assert ([record["offset"] for record in told["records"]], told["next"]) == ([*range(3, 203)], 203)
        told = await asked(coordinator, "records", **ask, offset="250")
        assert (told["records"], told["next"], told["skipped"]) == ([], 250, 0)
        async with Producer(coordinator.address) as producer:
            await producer.send_many("lines", [b"x"] * 400, partition=0)
        told = await asked(coordinator, "records", **ask, offset="250")
        assert ([record["offset"] for record in told["records"]], told["skipped"]) == ([*range(450, 650)], 200)
        assert (await asked(coordinator, "records", **ask))["next"] == 650  # from now on
