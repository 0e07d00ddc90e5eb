"""Arguments of ``Admin`` that make no sense are errors that say what does: nothing is sent, and no connection is lost."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest

from client import (
    Admin,
    ClosedError,
    CohortError,
    InvalidGroupIdError,
    InvalidRequestError,
    OffsetAndMetadata,
    TopicPartition,
)
from coordinator import Coordinator

EPOCH_X: Any = OffsetAndMetadata(1, "")._replace(leader_epoch="x")  # type: ignore[arg-type]
TP: Any = TopicPartition
HALF = "g\ud800"
"""Half a surrogate pair, which UTF-8 cannot hold."""

Call = Callable[[Any], Awaitable[object]]

CASES: list[tuple[Call, type[Exception], str]] = [
    (
        lambda a: a.create_topics(["x"]),
        TypeError,
        r"create_topics takes a dictionary .* \{\"orders\": 4\}, not \['x'\]",
    ),
    (lambda a: a.create_topics("x"), TypeError, "create_topics takes a dictionary"),
    (lambda a: a.create_topics({1: 1}), TypeError, "the name of a topic must be a string, not 1"),
    (lambda a: a.create_topics({"x": "4"}), TypeError, "topic 'x' must be a whole number, not '4'"),
    (lambda a: a.create_topics({"x": 2**31}), ValueError, "must be below 2"),
    (lambda a: a.create_topics({"x": 1}, config=["a"]), TypeError, "config takes a dictionary of settings"),
    (lambda a: a.create_topics({"x": 1}, config={"retention.ms": []}), TypeError, "the value of retention.ms must be"),
    (lambda a: a.create_topics({HALF: 1}), InvalidRequestError, r"'g\\ud800' is no text that UTF-8 can hold"),
    (lambda a: a.create_partitions(["x"]), TypeError, "create_partitions takes a dictionary"),
    (lambda a: a.delete_topics(["x", "y"]), TypeError, r"delete_topics\(\"a\", \"b\"\) or delete_topics\(\*names\)"),
    (lambda a: a.delete_topics(5), TypeError, "the name of a topic must be a string, not 5"),
    (lambda a: a.delete_topics(b"x"), TypeError, "not b'x'"),
    (lambda a: a.describe_topics(("x",)), TypeError, "takes names one by one"),
    (lambda a: a.describe_topics(HALF), InvalidRequestError, "no text that UTF-8 can hold"),
    (lambda a: a.describe_logs(["x"]), TypeError, "takes names one by one"),
    (lambda a: a.alter_topic_config("t", {"retention.ms": HALF}), InvalidRequestError, "value of retention.ms"),
    (lambda a: a.alter_topic_config("t", [("retention.ms", 1)]), TypeError, "config takes a dictionary"),
    (lambda a: a.alter_topic_config(None, {"retention.ms": 1}), TypeError, "the name of a topic must be"),
    (lambda a: a.delete_records([TP("t", 0)]), TypeError, "delete_records takes a dictionary of partitions"),
    (lambda a: a.delete_records({"t": 5}), TypeError, r"partitions as TopicPartition\(\"orders\", 0\), not 't'"),
    (lambda a: a.delete_records({TP("t", 0): "5"}), TypeError, "the offset of t-0 must be a whole number"),
    (lambda a: a.delete_records({TP("t", 0): -(2**63) - 1}), ValueError, "and below"),
    (lambda a: a.describe_groups(["g"]), TypeError, "takes names one by one"),
    (lambda a: a.describe_groups(5), TypeError, "a group id must be a string, not 5"),
    (lambda a: a.delete_groups(["g"]), TypeError, "takes names one by one"),
    (lambda a: a.list_groups(states=[5]), TypeError, "a state must be a string"),
    (lambda a: a.list_groups(protocol_types=[5]), TypeError, "a protocol type must be a string"),
    (lambda a: a.remove_members("g", ["m"]), TypeError, "the id of a member must be a string"),
    (lambda a: a.remove_members("g", HALF), ValueError, "no text that UTF-8 can hold"),
    (lambda a: a.group_lag(None), TypeError, "a group id must be a string"),
    (lambda a: a.list_offsets(HALF), InvalidGroupIdError, r"'g\\ud800' is no text that UTF-8 can hold"),
    (lambda a: a.alter_offsets(HALF, {TP("t", 0): 0}), InvalidGroupIdError, "no text that UTF-8 can hold"),
    (lambda a: a.alter_offsets("g", {"t0": 1}), TypeError, "alter_offsets takes partitions as TopicPartition"),
    (
        lambda a: a.alter_offsets("g", {TP("t", "0"): 1}),
        TypeError,
        "number of a partition of 't' must be a whole number",
    ),
    (lambda a: a.alter_offsets("g", {TP("t", 2**31): 1}), ValueError, "numbered from 0 and below"),
    (lambda a: a.alter_offsets("g", [1]), TypeError, "alter_offsets takes a dictionary of partitions with offsets"),
    (lambda a: a.alter_offsets("g", {TP("t", 0): OffsetAndMetadata(1, HALF)}), InvalidRequestError, "metadata for t-0"),
    (lambda a: a.alter_offsets("g", {TP("t", 0): EPOCH_X}), InvalidRequestError, "leader_epoch"),
    (lambda a: a.delete_offsets("g", ["t"]), TypeError, "delete_offsets takes partitions as TopicPartition"),
    (lambda a: a.reset_offsets("g", 5, to="earliest"), TypeError, "reset_offsets takes partitions as"),
    (lambda a: a.reset_offsets("g", HALF, to="earliest"), InvalidRequestError, "no text that UTF-8 can hold"),
    (lambda a: a.list_topics(timeout_ms="5"), TypeError, "timeout_ms must be a number of milliseconds"),
    (
        lambda a: a.list_topics(timeout_ms=-5),
        ValueError,
        "timeout_ms is -5; it must be a number of milliseconds from 0",
    ),
]


@pytest.fixture
async def admin() -> AsyncIterator[Admin]:
    async with Coordinator() as coordinator, Admin(coordinator.address) as admin:
        await admin.create_topics({"t": 1})
        yield admin


async def test_each_says_what_to_pass_and_costs_no_connection(admin: Admin) -> None:
    (connection,) = admin._cluster._connections.values()
    for call, error, text in CASES:
        async with asyncio.timeout(20):
            with pytest.raises(error, match=text) as caught:
                await call(admin)
        assert not isinstance(caught.value, UnicodeError)
    assert list(admin._cluster._connections.values()) == [connection]
    assert not connection.closed
    assert await admin.list_topics() == ["t"]
    assert await admin.list_groups() == []


ONE_ARGUMENT = (
    "create_topics", "create_partitions", "delete_topics", "describe_topics", "describe_logs", "delete_records",
    "describe_groups", "delete_groups", "group_lag", "list_offsets", "list_groups",
)  # fmt: skip
NONSENSE: tuple[object, ...] = (
    5,
    -1,
    1.5,
    True,
    b"b",
    ["a"],
    {"a"},
    {"t": None},
    {1: 1},
    {"t": b"1"},
    object(),
    HALF,
    ("t", "0"),
    [[]],
    {HALF: 1},
)


@pytest.mark.parametrize("name", ONE_ARGUMENT)
async def test_nonsense_is_refused_by_every_call(admin: Admin, name: str) -> None:
    (connection,) = admin._cluster._connections.values()
    for value in NONSENSE:
        async with asyncio.timeout(20):
            with pytest.raises((TypeError, ValueError, CohortError)) as caught:
                await getattr(admin, name)(value)
        assert not isinstance(caught.value, UnicodeError), value
    assert list(admin._cluster._connections.values()) == [connection]
    assert not connection.closed


async def test_started_twice_it_runs_once_and_stopped_it_may_be_started_again() -> None:
    async with Coordinator() as coordinator:
        admin = Admin(coordinator.address, "twice")
        await asyncio.gather(admin.start(), admin.start())
        await admin.start()
        assert [task.get_name() for task in asyncio.all_tasks() if "twice" in task.get_name()] == [
            "cohort-metadata-twice"
        ]
        await admin.stop()
        assert not [task for task in asyncio.all_tasks() if "twice" in task.get_name()]
        await admin.start()
        assert await admin.list_topics() == []
        await admin.stop()


async def test_a_stop_at_any_turn_of_a_start_leaves_nothing() -> None:
    async with Coordinator() as coordinator:
        for turns in range(20):
            admin = Admin(coordinator.address, "ended")
            starting = asyncio.create_task(admin.start())
            for _ in range(turns):
                await asyncio.sleep(0)
            connections = list(admin._cluster._connections.values())
            stopping = asyncio.create_task(admin.stop())
            await asyncio.sleep(0)
            stopping.cancel()
            await asyncio.gather(stopping, return_exceptions=True)
            await admin.stop()
            (outcome,) = await asyncio.gather(starting, return_exceptions=True)
            assert outcome is None or isinstance(outcome, ClosedError | CohortError)
            assert all(connection.closed for connection in connections)
            assert not admin._cluster._connections
            assert not [task for task in asyncio.all_tasks() if "-ended" in task.get_name()]
