"""What the page reads: JSON of the node, its topics, groups and transactions; bounds, and who may ask."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from aiohttp import ClientSession, ClientTimeout

from client import Admin, Consumer, Member, Producer, TopicPartition
from coordinator import Coordinator
from coordinator.web import streams

SETTINGS: dict[str, Any] = {"http": "127.0.0.1:0", "initial_rebalance_delay_ms": 0}
HOSTILE = "<img src=x onerror=alert(1)>/..%2f\"'\n\u202eabc"


async def asked(coordinator: Coordinator, view: str, **query: str) -> dict[str, Any]:
    status, told = await answer(coordinator, f"/api/{view}", query)
    assert status == 200, told
    return told


async def answer(
    coordinator: Coordinator, path: str, query: dict[str, str] | None = None, **headers: str
) -> tuple[int, dict[str, Any]]:
    async with (
        ClientSession() as session,
        session.get(f"http://{coordinator.http_address}{path}", params=query, headers=headers) as told,
    ):
        return told.status, await told.json()


async def produced(address: str, topic: str, partitions: int, records: int) -> None:
    async with Admin(address) as admin:
        await admin.create_topics({topic: partitions})
    async with Producer(address) as producer:
        for number in range(records):
            await producer.send(topic, str(number).encode(), partition=number % partitions)


async def test_an_empty_node_says_that_it_is_empty() -> None:
    async with Coordinator(**SETTINGS) as coordinator:
        told = await asked(coordinator, "cluster")
        assert (told["groups"], told["topics"], told["rebalances"], told["clustered"]) == (0, 0, [], False)
        assert told["nodes"][0]["node"] == told["node_id"] == told["controller"]
        assert told["admin"] is False
        assert (await asked(coordinator, "groups"))["groups"] == []
        assert (await asked(coordinator, "topics"))["topics"] == []
        assert (await asked(coordinator, "transactions"))["transactions"] == []


async def test_a_group_shows_members_shares_lag_and_why_it_rebalanced() -> None:
    async with Coordinator(**SETTINGS) as coordinator:
        await produced(coordinator.address, "lines", 4, 40)
        settings: dict[str, Any] = {
            "bootstrap_servers": coordinator.address,
            "group_id": HOSTILE,
            "auto_offset_reset": "earliest",
            "enable_auto_commit": False,
        }
        first, second = Consumer("lines", **settings), Consumer("lines", client_id="<b>second</b>", **settings)
        async with first:
            read = 0
            while read < 40:
                read += sum(map(len, (await first.getmany(timeout_ms=1_000)).values()))
            await first.commit(dict.fromkeys(first.assignment(), 4))
            async with second:
                async with asyncio.timeout(30):
                    while len(first.assignment()) != 2 or len(second.assignment()) != 2:
                        await asyncio.gather(first.getmany(timeout_ms=50), second.getmany(timeout_ms=50))
                told = await asked(coordinator, "group", group=HOSTILE)
                assert (told["group"], told["state"], told["lag"]) == (HOSTILE, "Stable", 24)
                assert sorted(member["share"] for member in told["members"]) == [2, 2]
                assert {member["client_id"] for member in told["members"]} >= {"<b>second</b>"}
                owners = [row["owner"] for row in told["partitions"]]
                assert sorted(owners) == [0, 0, 1, 1]
                assert [(row["committed"], row["end"], row["lag"]) for row in told["partitions"]] == [(4, 10, 6)] * 4
                (row,) = (await asked(coordinator, "groups", filter="IMG SRC"))["groups"]
                assert (row["group"], row["members"], row["lag"]) == (HOSTILE, 2, 24)
            async with asyncio.timeout(30):
                while len(first.assignment()) != 4:
                    await first.getmany(timeout_ms=50)
        told = await asked(coordinator, "group", group=HOSTILE)
        assert told["rebalances"][0]["outcome"] == "emptied"
        kinds = [one["kind"] for one in told["rebalances"]]
        assert set(kinds) == {"member_joined", "member_left"}
        left = next(one for one in told["rebalances"] if one["kind"] == "member_left" and one["members"] == 1)
        assert len(left["left"]) == 1
        assert "left" in left["reason"]
        assert [one["group"] for one in (await asked(coordinator, "cluster"))["rebalances"]] == [HOSTILE] * len(kinds)


async def test_groups_are_filtered_sorted_and_paged() -> None:
    async with Coordinator(**SETTINGS) as coordinator:
        await produced(coordinator.address, "lines", 1, 9)
        async with Admin(coordinator.address) as admin:
            for number in range(12):
                await admin.alter_offsets(f"g{number:02}", {TopicPartition("lines", 0): number % 10})
        told = await asked(coordinator, "groups", start="5", limit="3")
        assert [row["group"] for row in told["groups"]] == ["g05", "g06", "g07"]
        assert (told["total"], told["states"]) == (12, {"Empty": 12})
        assert [row["lag"] for row in told["groups"]] == [4, 3, 2]
        assert (await asked(coordinator, "groups", state="Stable"))["total"] == 0
        assert [row["group"] for row in (await asked(coordinator, "groups", filter="G1"))["groups"]] == ["g10", "g11"]
        status, refused = await answer(coordinator, "/api/groups", {"limit": "201"})
        assert (status, "from 1 to 200" in refused["error"]) == (400, True)
        status, refused = await answer(coordinator, "/api/groups", {"sort": "colour"})
        assert (status, "name, lag, members" in refused["error"]) == (400, True)


async def test_a_topic_shows_its_partitions_and_settings() -> None:
    async with Coordinator(**SETTINGS) as coordinator:
        await produced(coordinator.address, "lines", 2, 10)
        async with Admin(coordinator.address) as admin:
            await admin.alter_topic_config("lines", {"retention.ms": "1000000"})
        (row,) = (await asked(coordinator, "topics"))["topics"]
        assert (row["topic"], row["partitions"], row["records"]) == ("lines", 2, 10)
        told = await asked(coordinator, "topic", topic="lines")
        assert [(one["first"], one["end"], one["leader"]) for one in told["rows"]] == [(0, 5, 0), (0, 5, 0)]
        assert told["settings"] == {"retention.ms": "1000000"}
        internal = (await asked(coordinator, "topics", internal="yes"))["topics"]
        assert {one["topic"] for one in internal} > {"lines"}
        status, refused = await answer(coordinator, "/api/topic", {"topic": "<script>"})
        assert (status, "<script>" in refused["error"]) == (404, True)


async def test_an_open_transaction_shows_who_writes_where() -> None:
    async with Coordinator(**SETTINGS) as coordinator:
        await produced(coordinator.address, "lines", 1, 1)
        async with Producer(coordinator.address, transactional_id="pay<b>") as producer:
            async with producer.transaction():
                await producer.send("lines", b"x")
                told = await asked(coordinator, "transactions")
                assert [(row["id"], row["state"]) for row in told["transactions"]] == [("pay<b>", "Ongoing")]
                one = await asked(coordinator, "transaction", id="pay<b>")
                assert one["members"][0]["topics"] == [{"topic": "lines", "partitions": [0]}]
                assert one["since_ms"] > 0
            async with asyncio.timeout(30):  # until the end markers are written, which the commit does not wait for
                while (await asked(coordinator, "transaction", id="pay<b>"))["state"] != "CompleteCommit":
                    await asyncio.sleep(0.01)


@pytest.mark.parametrize(
    ("path", "status", "text"),
    [
        ("/api/group?group=nothing", 404, "no group 'nothing'"),
        ("/api/group", 400, "lacks group"),
        ("/api/transaction?id=nothing", 404, "no transactional id"),
        ("/api/nothing", 404, "there is no view"),
        ("/api/events?view=nothing", 404, "there is no view"),
        ("/page/nothing.js", 404, "no such file"),
        ("/page/..%2Fapi.py", 404, "no such file"),
        ("/api/groups?start=-1", 400, "whole number"),
        ("/api/groups?start=x", 400, "whole number"),
        ("/api/groups?filter=" + "x" * 1_001, 400, "at most 1000"),
    ],
)
async def test_what_there_is_not_is_refused_with_the_reason(path: str, status: int, text: str) -> None:
    async with (
        Coordinator(**SETTINGS) as coordinator,
        ClientSession() as session,
        session.get(f"http://{coordinator.http_address}{path}") as told,
    ):
        refused = await told.json()
    assert (told.status, text in refused["error"]) == (status, True), refused


async def test_the_page_may_load_nothing_from_elsewhere_and_strangers_names_are_refused() -> None:
    async with Coordinator(**SETTINGS) as coordinator:
        async with ClientSession() as session, session.get(f"http://{coordinator.http_address}/") as page:
            assert page.status == 200
            policy = page.headers["Content-Security-Policy"]
            assert {"default-src 'none'", "script-src 'self'", "frame-ancestors 'none'"} <= set(policy.split("; "))
            assert page.headers["X-Content-Type-Options"] == "nosniff"
        for path in ("/", "/api/cluster", "/api/events?view=cluster", "/page/index.html"):
            status, refused = await answer(coordinator, path, Host="evil.example:80")
            assert (status, "evil.example" in refused["error"]) == (421, True)
        async with ClientSession() as session:
            url = f"http://{coordinator.http_address}/healthz"  # of those who watch, by whatever name
            async with session.get(url, headers={"Host": "cohort-0.cohort:80"}) as told:
                assert told.status == 200


async def test_a_name_that_the_daemon_knows_is_taken() -> None:
    async with Coordinator(**SETTINGS, http_hosts="pages.example, other.example") as coordinator:
        assert (await answer(coordinator, "/api/cluster", Host="Pages.Example"))[0] == 200


async def test_a_stream_tells_of_a_rebalance_when_it_happens() -> None:
    async with Coordinator(**SETTINGS) as coordinator:
        url = f"http://{coordinator.http_address}/api/events"
        async with (
            ClientSession(timeout=ClientTimeout(total=30)) as session,
            session.get(url, params={"view": "group", "group": "g"}) as stream,
        ):
            assert stream.headers["Content-Type"] == "text/event-stream"
            lines = stream.content
            assert await lines.readline() == b"event: refused\n"
            async with Member("g", bootstrap_servers=coordinator.address):
                async for line in lines:
                    if line.startswith(b"data: ") and json.loads(line[6:]).get("state") == "Stable":
                        break
            async for line in lines:
                if line.startswith(b"data: ") and json.loads(line[6:])["rebalances"][0]["outcome"] == "emptied":
                    break


async def test_a_stream_too_many_is_refused_and_a_closed_one_makes_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams, "MAX_STREAMS", 1)
    monkeypatch.setattr(streams, "LOOK_S", 0.02)
    async with Coordinator(**SETTINGS) as coordinator:
        path, query = "/api/events", {"view": "cluster"}
        async with ClientSession() as session:
            async with session.get(f"http://{coordinator.http_address}{path}", params=query) as stream:
                assert (await stream.content.readline()).startswith(b"data: ")
                status, refused = await answer(coordinator, path, query)
                assert (status, "close one" in refused["error"]) == (503, True)
            async with asyncio.timeout(10):
                while True:
                    async with session.get(f"http://{coordinator.http_address}{path}", params=query) as stream:
                        if stream.status == 200:
                            break
                    await asyncio.sleep(0.02)
