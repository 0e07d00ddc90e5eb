"""What the page reads: JSON of the node, its topics, groups and transactions; bounds, and who may ask."""

from __future__ import annotations

import asyncio
import json
import socket
from pathlib import Path
from typing import Any, cast

import pytest
from aiohttp import ClientSession, ClientTimeout
from structlog.testing import capture_logs

from client import Admin, Consumer, Member, Producer, TopicPartition
from coordinator import Coordinator
from coordinator.cluster import Cluster
from coordinator.web import api, group_views, lag_history, streams
from coordinator.web.guard import HEADERS
from coordinator.web.view import Pace, PageSources, Query, View

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


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [("GET", "/none", 404), ("GET", "/page/none.js", 404), ("DELETE", "/", 405), ("POST", "/metrics", 405)],
)
async def test_what_no_view_answers_has_the_headers_of_the_page_too(method: str, path: str, status: int) -> None:
    async with (
        Coordinator(**SETTINGS) as coordinator,
        ClientSession() as session,
        session.request(method, f"http://{coordinator.http_address}{path}") as told,
    ):
        assert told.status == status
        assert {name: told.headers.getall(name, []) for name in HEADERS} == {
            name: [value] for name, value in HEADERS.items()
        }


async def test_a_browser_that_does_not_read_does_not_keep_its_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its stream ends with the bound of an event. What was written and is not read would hold the connection for ever."""
    looks: list[int] = []

    async def much(sources: PageSources, query: Query, pace: Pace) -> dict[str, Any]:
        looks.append(len(looks))
        return {"look": len(looks), "text": "x" * 1_000_000}

    monkeypatch.setitem(cast("dict[str, View]", api.VIEWS), "cluster", much)
    monkeypatch.setattr(streams, "SEND_S", 0.3)
    monkeypatch.setattr(streams, "LOOK_S", 0.01)
    monkeypatch.setattr(streams, "REST", 0)
    async with Coordinator(**SETTINGS) as coordinator:
        host, port = coordinator.http_address.split(":")
        with socket.socket() as browser:
            browser.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            browser.setblocking(False)
            await asyncio.get_running_loop().sock_connect(browser, (host, int(port)))
            browser.send(b"GET /api/events?view=cluster HTTP/1.1\r\nHost: localhost\r\n\r\n")
            async with asyncio.timeout(20):
                while not looks:
                    await asyncio.sleep(0.01)
                assert is_open(browser)
                while is_open(browser):
                    await asyncio.sleep(0.05)


def is_open(browser: socket.socket) -> bool:
    """Whether the daemon has not closed its end of a connection, as the system tells it."""
    theirs, ours = (f":{name[1]:04X}" for name in (browser.getpeername(), browser.getsockname()))
    rows = [row.split() for row in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    return any(row[1].endswith(theirs) and row[2].endswith(ours) and row[3] == "01" for row in rows)


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


async def posted(coordinator: Coordinator, body: Any, **headers: str) -> tuple[int, dict[str, Any]]:
    address = coordinator.http_address
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    sent = {"Origin": f"http://{address}", "Content-Type": "application/json", **headers}
    async with ClientSession() as session, session.post(f"http://{address}/api/reset", data=data, headers=sent) as told:
        return told.status, await told.json()


async def test_a_reset_does_what_was_shown_and_nothing_else() -> None:
    async with Coordinator(**SETTINGS, http_admin="yes") as coordinator:
        await produced(coordinator.address, "lines", 2, 20)
        async with Admin(coordinator.address) as admin:
            await admin.alter_offsets("g", {TopicPartition("lines", 0): 3})
            plan = await asked(coordinator, "reset", group="g", to="latest")
            assert (plan["blocked"], plan["admin"]) == ("", True)
            row = {"topic": "lines", "partition": 0, "current": 3, "new": 10, "note": ""}
            assert plan["rows"] == [row]
            both = await asked(coordinator, "reset", group="g", to="shift", value="-1", topic="lines")
            assert [(one["new"], one["note"]) for one in both["rows"]] == [
                (2, ""),
                (-1, "left out: there is no committed offset to shift"),
            ]
            far = await asked(coordinator, "reset", group="g", to="offset", value="99")
            assert (far["rows"][0]["new"], far["rows"][0]["note"]) == (10, "99 is behind the end of the log")
            assert (await admin.list_offsets("g"))[TopicPartition("lines", 0)].offset == 3  # a plan changes nothing
            body = {"group": "g", "offsets": {"lines": [[0, 3, 10], [1, -1, 5]]}}
            assert await posted(coordinator, body) == (200, {"changed": 2, "refused": []})
            offsets = await admin.list_offsets("g")
            assert {tp.partition: offset.offset for tp, offset in offsets.items()} == {0: 10, 1: 5}
            status, refused = await posted(coordinator, body)
            assert (status, "is another than was shown" in refused["error"]) == (409, True)
            status, refused = await posted(coordinator, {"group": "g", "offsets": {"lines": [[0, 10, 11]]}})
            assert (status, "is not in the log" in refused["error"]) == (409, True)


async def test_a_reset_is_refused_while_the_group_has_members() -> None:
    async with Coordinator(**SETTINGS, http_admin="yes") as coordinator:
        await produced(coordinator.address, "lines", 1, 5)
        async with Consumer(
            "lines", bootstrap_servers=coordinator.address, group_id="g", auto_offset_reset="earliest"
        ) as one:
            await one.getmany(timeout_ms=1_000)
            await one.commit()
            plan = await asked(coordinator, "reset", group="g", to="earliest")
            assert "has 1 members" in plan["blocked"]
            current = plan["rows"][0]["current"]
            status, refused = await posted(coordinator, {"group": "g", "offsets": {"lines": [[0, current, 0]]}})
            assert (status, "stop them first" in refused["error"]) == (409, True)


@pytest.mark.parametrize(
    ("admin", "headers", "status"),
    [
        ("no", {}, 403),
        ("yes", {"Origin": "http://evil.example"}, 403),
        ("yes", {"Sec-Fetch-Site": "cross-site"}, 403),
        ("yes", {"Content-Type": "text/plain"}, 415),
        ("yes", {"Host": "evil.example"}, 421),
    ],
)
async def test_a_reset_that_another_page_asks_for_is_refused(admin: Any, headers: dict[str, str], status: int) -> None:
    async with Coordinator(**SETTINGS, http_admin=admin) as coordinator:
        await produced(coordinator.address, "lines", 1, 5)
        async with Admin(coordinator.address) as known:
            await known.alter_offsets("g", {TopicPartition("lines", 0): 3})
            told = await posted(coordinator, {"group": "g", "offsets": {"lines": [[0, 3, 0]]}}, **headers)
            assert told[0] == status, told
            assert (await known.list_offsets("g"))[TopicPartition("lines", 0)].offset == 3


@pytest.mark.parametrize(
    "body",
    [
        *(b"", b"{", b"[" * 100_000, b"\xff", [], {}, {"group": "g"}, {"group": "g", "offsets": {}}),
        *({"group": "g", "offsets": {"lines": rows}} for rows in (1, [1], [[0, 3]], [[0, 3, 2**63]], [[0, 3, True]])),
        {"group": 1, "offsets": {"lines": [[0, 3, 0]]}},
        {"group": "g", "offsets": {"lines": [[number, 3, 0] for number in range(2_001)]}},
    ],
)
async def test_a_reset_that_makes_no_sense_is_refused(body: Any) -> None:
    async with Coordinator(**SETTINGS, http_admin="yes") as coordinator:
        status, refused = await posted(coordinator, body)
        assert (status, bool(refused["error"])) == (400, True)


async def test_a_body_that_is_too_large_is_refused() -> None:
    async with Coordinator(**SETTINGS, http_admin="yes") as coordinator:
        assert (await posted(coordinator, b"x" * 300_000))[0] == 413


async def test_in_a_cluster_a_node_names_the_one_that_coordinates_a_group() -> None:
    async with Cluster(nodes=2, **SETTINGS) as cluster:
        await produced(cluster.address, "lines", 4, 8)
        async with Admin(cluster.address) as admin:
            await admin.create_topics({"alone": 4}, replication_factor=1)
            places = [TopicPartition(topic, index) for topic in ("lines", "alone") for index in range(4)]
            await admin.alter_offsets("g", {place: int(place.topic == "lines") for place in places})
        told = []
        for address in cluster.http_addresses:
            async with ClientSession() as session:
                async with session.get(f"http://{address}/api/group", params={"group": "g"}) as found:
                    told.append((found.status, await found.json()))
                async with session.get(f"http://{address}/api/topics") as listed:
                    rows = (await listed.json())["topics"]
                    assert [(row["topic"], row["replicas"]) for row in rows] == [("alone", 1), ("lines", 2)]
                async with session.get(f"http://{address}/api/cluster") as known:
                    assert [one["node"] for one in (await known.json())["nodes"]] == [0, 1]
        (owner,) = [node for node, (status, _) in enumerate(told) if status == 200]
        status, refused = told[1 - owner]
        assert (status, f"node {owner} coordinates it" in refused["error"]) == (404, True)
        async with asyncio.timeout(20):  # the leader of a new topic may still be on its way
            while True:
                rows = (await asked_at(cluster.http_addresses[owner], "reset", group="g", to="earliest"))["rows"]
                led_there = [row for row in rows if row["new"] != 0]
                if all(f"node {1 - owner} leads it" in row["note"] for row in led_there):
                    break
                await asyncio.sleep(0.05)
        alone = sum(row["new"] == 0 for row in rows if row["topic"] == "alone")
        async with asyncio.timeout(20):  # a follower hears of the last records with its next fetch
            while (shown := await asked_at(cluster.http_addresses[owner], "group", group="g"))["lag"] != 4:
                await asyncio.sleep(0.05)
        assert shown["elsewhere"] == 4 - alone
        assert {row["lag"] for row in shown["partitions"] if row["topic"] == "lines"} == {1}


async def asked_at(address: str, view: str, **query: str) -> dict[str, Any]:
    async with ClientSession() as session, session.get(f"http://{address}/api/{view}", params=query) as told:
        assert told.status == 200
        return dict(await told.json())


async def settled(coordinator: Coordinator, group: str, members: int) -> dict[str, Any]:
    """What the page shows of a group once it is Stable with so many members."""
    async with asyncio.timeout(30):
        while True:
            status, told = await answer(coordinator, "/api/group", {"group": group})
            if status == 200 and (told["state"], told["members_total"]) == ("Stable", members):
                return told
            await asyncio.sleep(0.01)


async def test_the_past_of_a_lag_is_sampled_and_bounded_and_goes_with_its_group(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(lag_history, "SAMPLE_S", 0.01)
    monkeypatch.setattr(lag_history, "_REST", 0)
    monkeypatch.setattr(lag_history, "SAMPLES", 5)
    async with Coordinator(**SETTINGS) as coordinator, Admin(coordinator.address) as admin:
        await produced(coordinator.address, "lines", 1, 9)
        await admin.alter_offsets("g", {TopicPartition("lines", 0): 9})
        async with asyncio.timeout(30):
            while (await asked(coordinator, "group", group="g"))["lags"] != [0] * 5:
                await asyncio.sleep(0.01)
            await admin.alter_offsets("g", {TopicPartition("lines", 0): 2})
            while (told := await asked(coordinator, "group", group="g"))["lags"] != [7] * 5:
                await asyncio.sleep(0.01)
            assert (told["lag"], told["lag_every_s"]) == (7, 0.01)
            (row,) = (await asked(coordinator, "groups", sort="lag"))["groups"]
            assert row["lags"] == [7] * 5
            await admin.delete_groups("g")
            await admin.alter_offsets("g", {TopicPartition("lines", 0): 5})
            while 7 in (await asked(coordinator, "group", group="g"))["lags"]:
                await asyncio.sleep(0.01)


async def test_of_a_large_group_an_answer_has_a_part_and_the_totals(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(group_views, "MAX_PARTITIONS", 3)
    monkeypatch.setattr(group_views, "MAX_MEMBERS", 1)
    async with Coordinator(**SETTINGS) as coordinator, Admin(coordinator.address) as admin:
        await produced(coordinator.address, "lines", 6, 60)
        await admin.alter_offsets("g", {TopicPartition("lines", index): index for index in range(6)})
        members = [Member("m", bootstrap_servers=coordinator.address) for _ in range(2)]
        async with members[0], members[1]:
            told = await asked(coordinator, "group", group="g")
            assert [(row["partition"], row["lag"]) for row in told["partitions"]] == [(0, 10), (1, 9), (2, 8)]
            assert (told["partitions_total"], told["lag"]) == (6, 45)
            crowd = await settled(coordinator, "m", 2)
            assert (len(crowd["members"]), crowd["members_total"]) == (1, 2)


async def test_shares_that_no_consumer_wrote_are_counted_and_not_read() -> None:
    async with Coordinator(**SETTINGS) as coordinator:

        def garbage(members: Any) -> dict[str, bytes]:
            return {member_id: b"\xff\x00garbage" for member_id, _ in members}

        member = Member(
            "g",
            bootstrap_servers=coordinator.address,
            protocol_type="consumer",
            protocols=[("range", b"\xff")],
            assign=garbage,
        )
        async with member:
            told = await settled(coordinator, "g", 1)
            assert (told["shares_unread"], told["partitions"], told["members"][0]["share"]) == (1, [], -1)


async def test_a_daemon_with_pages_open_stops_at_once() -> None:
    async with ClientSession() as session:
        async with Coordinator(**SETTINGS) as coordinator:
            url = f"http://{coordinator.http_address}/api/events"
            stream = await session.get(url, params={"view": "cluster"})
            await stream.content.readline()
            loop = asyncio.get_running_loop()
            since_s = loop.time()
        assert loop.time() - since_s < 20
        stream.close()


async def test_a_view_that_fails_says_so_and_harms_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    async def failing(*_: Any) -> dict[str, Any]:
        raise KeyError("a fault of ours")

    monkeypatch.setitem(cast("dict[str, Any]", api.VIEWS), "topics", failing)
    async with Coordinator(**SETTINGS) as coordinator:
        with capture_logs() as logs:
            status, refused = await answer(coordinator, "/api/topics")
            assert (status, refused["error"]) == (500, "the daemon failed to answer this; its log has the cause")
            async with ClientSession() as session:
                url = f"http://{coordinator.http_address}/api/events"
                async with session.get(url, params={"view": "topics"}) as stream:
                    assert await stream.content.read() == b""
        assert [entry["event"] for entry in logs] == ["page_view_failed"] * 2
        assert (await asked(coordinator, "groups"))["groups"] == []
