"""An admin changes groups at a real daemon: every refusal names who is in the way and what to do."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import UTC, datetime
from typing import Any

import pytest

from client import Admin, Consumer, Member, OffsetAndMetadata, Producer, TopicPartition
from client.errors import (
    CohortError,
    GroupIdNotFoundError,
    GroupSubscribedToTopicError,
    InvalidGroupIdError,
    NonEmptyGroupError,
    OffsetMetadataTooLargeError,
    RequestTimedOutError,
    UnknownMemberIdError,
    UnknownTopicOrPartitionError,
)
from client.types.descriptions import GroupListing, RemovedMember
from coordinator import Coordinator
from tests.integration.consuming import QUICK, until

T0, T1, T2 = (TopicPartition("t", index) for index in range(3))


@pytest.fixture
async def coordinator() -> AsyncIterator[Coordinator]:
    async with Coordinator() as running:
        yield running


@pytest.fixture
async def admin(coordinator: Coordinator) -> AsyncIterator[Admin]:
    """An admin of a daemon with topic ``t``: 10, 20 and 0 records, one a second from time 1,000 on; and a topic ``u``."""
    async with Admin(coordinator.address) as made:
        await made.create_topics({"t": 3, "u": 1})
        async with Producer(coordinator.address) as producer:
            for partition, count in enumerate((10, 20)):
                for number in range(count):
                    await producer.send("t", b"x", partition=partition, timestamp_ms=1_000_000 + 1000 * number)
        yield made


@pytest.fixture
async def reader(coordinator: Coordinator, admin: Admin) -> AsyncIterator[Consumer]:
    """A consumer of ``t`` in group ``readers``, which it leaves at the end."""
    async with Consumer("t", bootstrap_servers=coordinator.address, group_id="readers", **QUICK) as consumer:
        await until(lambda: consumer.state == "stable" and len(consumer.assignment()) == 3)
        yield consumer


def a_worker(address: str, instance_id: str | None = None) -> Member:
    def nothing(members: list[tuple[str, bytes]]) -> dict[str, bytes]:
        return {name: b"" for name, _ in members}

    return Member(
        "workers",
        bootstrap_servers=address,
        protocols=[("turn", b"")],
        assign=nothing,
        group_instance_id=instance_id,
        session_timeout_ms=30_000,
        heartbeat_interval_ms=100,
    )


async def test_offsets_are_altered_listed_and_deleted(admin: Admin) -> None:
    await admin.alter_offsets("fresh", {T0: 4, T1: OffsetAndMetadata(5, "by hand", 2), TopicPartition("u", 0): 0})
    assert await admin.list_offsets("fresh") == {
        T0: OffsetAndMetadata(4),
        T1: OffsetAndMetadata(5, "by hand", 2),
        TopicPartition("u", 0): OffsetAndMetadata(0),
    }
    assert await admin.list_groups() == [GroupListing("fresh", "", "Empty")]
    assert await admin.delete_offsets("fresh", T1, T2) == [T1, T2]
    assert list(await admin.list_offsets("fresh")) == [T0, TopicPartition("u", 0)]
    assert await admin.delete_offsets("fresh", "t") == [T0]
    assert await admin.delete_offsets("fresh", "t") == []
    assert list(await admin.list_offsets("fresh")) == [TopicPartition("u", 0)]
    await admin.alter_offsets("fresh", {})
    assert await admin.delete_offsets("fresh") == []


async def test_what_can_be_altered_is_and_the_error_maps_the_rest(admin: Admin) -> None:
    missing, long = TopicPartition("t", 9), OffsetAndMetadata(1, "x" * 5_000)
    with pytest.raises(
        UnknownTopicOrPartitionError, match="t-9 of group 'g' was not altered: there is no such"
    ) as caught:
        await admin.alter_offsets("g", {T0: 4, missing: 5, TopicPartition("nowhere", 0): 1})
    assert list(caught.value.failures) == [TopicPartition("nowhere", 0), missing]
    assert not caught.value.retriable
    with pytest.raises(OffsetMetadataTooLargeError, match=r"t-1 of group 'g'.*5000 bytes.*send less"):
        await admin.alter_offsets("g", {T1: long})
    assert await admin.list_offsets("g") == {T0: OffsetAndMetadata(4)}


@pytest.mark.parametrize(
    ("offset", "error", "text"),
    [
        (-1, ValueError, "t-0 is -1; it must be from 0"),
        (2**63, ValueError, "below 2"),
        ("7", TypeError, "t-0 must be a whole number, not '7'"),
        (True, TypeError, "not True"),
        (OffsetAndMetadata(-4), ValueError, "t-0 is -4"),
        (OffsetAndMetadata(4, "x" * 2**20), OffsetMetadataTooLargeError, "t-0 is longer than 32767 bytes.*send less"),
    ],
)
async def test_what_is_no_offset_is_refused_before_anything_is_sent(
    admin: Admin, offset: Any, error: type[Exception], text: str
) -> None:
    with pytest.raises(error, match=text):
        await admin.alter_offsets("g", {T1: 1, T0: offset})
    assert await admin.list_offsets("g") == {}


async def test_groups_are_deleted_and_partial_failure_maps_each(admin: Admin, reader: Consumer) -> None:
    await admin.alter_offsets("one", {T0: 4})
    await admin.alter_offsets("two", {T0: 4})
    await admin.delete_groups("one")
    with pytest.raises(GroupIdNotFoundError) as caught:
        await admin.delete_groups("one", "two", "readers", "")
    member_id = reader.group_metadata().member_id
    failures = {group: (type(error), str(error)) for group, error in caught.value.failures.items()}
    assert list(failures) == ["one", "readers", ""]
    assert failures["one"] == (
        GroupIdNotFoundError,
        "group 'one' does not exist; list_groups (cohort groups list) shows those that do",
    )
    assert failures["readers"] == (
        NonEmptyGroupError,
        f"group 'readers' was not deleted: it has 1 member: {member_id} at 127.0.0.1. "
        "Stop its members first, or take them out with remove_members (cohort groups remove-member)",
    )
    assert failures[""][0] is InvalidGroupIdError
    assert all(text in str(caught.value) for _, text in failures.values())
    assert [group.group_id for group in await admin.list_groups()] == ["readers"]
    assert await admin.list_offsets("two") == {}


async def test_a_deleted_group_stays_deleted_when_the_daemon_starts_again(tmp_path: Any) -> None:
    async with Coordinator(tmp_path) as running, Admin(running.address) as admin:
        await admin.create_topics({"t": 1})
        await admin.alter_offsets("gone", {T0: 4})
        await admin.alter_offsets("here", {T0: 4})
        await admin.delete_groups("gone")
        await admin.delete_offsets("here", T0)
    async with Coordinator(tmp_path) as running, Admin(running.address) as admin:
        assert await admin.list_offsets("gone") == {}
        assert await admin.list_offsets("here") == {}


ACTIVE: list[tuple[str, Callable[[Admin], Awaitable[object]], type[CohortError], str]] = [
    (
        "alter",
        lambda a: a.alter_offsets("readers", {T0: 1}),
        NonEmptyGroupError,
        "no offset .* altered: it has 1 member: ",
    ),
    (
        "reset",
        lambda a: a.reset_offsets("readers", "t", to=1, dry_run=False),
        NonEmptyGroupError,
        "cannot be reset while it has 1 member: .* at 127.0.0.1. Stop its members first",
    ),
    (
        "delete offsets",
        lambda a: a.delete_offsets("readers", T0),
        GroupSubscribedToTopicError,
        "topic 't' in group 'readers' were not deleted: the group has 1 member: .*unsubscribe, first",
    ),
]


@pytest.mark.parametrize(("call", "error", "text"), [case[1:] for case in ACTIVE], ids=[case[0] for case in ACTIVE])
async def test_the_offsets_of_members_are_theirs(
    admin: Admin,
    reader: Consumer,
    call: Callable[[Admin], Awaitable[object]],
    error: type[CohortError],
    text: str,
) -> None:
    await reader.commit({T0: 7})
    with pytest.raises(error, match=text) as caught:
        await call(admin)
    assert reader.group_metadata().member_id in str(caught.value)
    assert await admin.list_offsets("readers") == {T0: OffsetAndMetadata(7)}


async def test_an_active_group_may_forget_topics_it_does_not_read(coordinator: Coordinator, admin: Admin) -> None:
    await admin.alter_offsets("readers", {T0: 4, TopicPartition("u", 0): 0})
    async with Consumer("t", bootstrap_servers=coordinator.address, group_id="readers", **QUICK) as consumer:
        await until(lambda: consumer.state == "stable")
        assert await admin.delete_offsets("readers", "u") == [TopicPartition("u", 0)]
        with pytest.raises(GroupSubscribedToTopicError) as caught:
            await admin.delete_offsets("readers", T0, TopicPartition("u", 0))
        assert list(caught.value.failures) == [T0]


async def test_a_group_of_another_kind_keeps_its_offsets_while_it_has_members(
    coordinator: Coordinator, admin: Admin
) -> None:
    await admin.alter_offsets("workers", {T0: 4})
    async with a_worker(coordinator.address) as worker:
        await anext(aiter(worker))
        with pytest.raises(NonEmptyGroupError, match="no offset of group 'workers' was deleted: it has 1 member: "):
            await admin.delete_offsets("workers", T0)
        assert await admin.list_groups(protocol_types=["work"]) == [GroupListing("workers", "work", "Stable")]
        assert await admin.list_groups(protocol_types="consumer") == []
        assert await admin.list_groups(["Empty"], ["work"]) == []
    assert await admin.list_groups(["empty"], ["work"]) == [GroupListing("workers", "work", "Empty")]


UNKNOWN: list[tuple[str, Callable[[Admin], Awaitable[object]]]] = [
    ("delete", lambda a: a.delete_groups("nobody")),
    ("delete offsets", lambda a: a.delete_offsets("nobody", T0)),
    ("delete offsets of a topic", lambda a: a.delete_offsets("nobody", "t")),
    ("reset all", lambda a: a.reset_offsets("nobody", to="earliest")),
    ("remove a member", lambda a: a.remove_members("nobody", "m")),
    ("remove all members", lambda a: a.remove_members("nobody", all_members=True)),
]


@pytest.mark.parametrize("call", [case[1] for case in UNKNOWN], ids=[case[0] for case in UNKNOWN])
async def test_a_group_that_does_not_exist_is_told(admin: Admin, call: Callable[[Admin], Awaitable[object]]) -> None:
    with pytest.raises(
        GroupIdNotFoundError, match=r"group 'nobody' does not exist; list_groups .* shows those that do"
    ):
        await call(admin)
    assert await admin.list_groups() == []


LONG = "\u2192" * 11_000

TOO_LONG: list[tuple[str, Callable[[Admin], Awaitable[object]], type[Exception]]] = [
    ("delete", lambda a: a.delete_groups("g", LONG), InvalidGroupIdError),
    ("describe", lambda a: a.describe_groups(LONG), InvalidGroupIdError),
    ("lag", lambda a: a.group_lag(LONG), InvalidGroupIdError),
    ("list", lambda a: a.list_offsets(LONG), InvalidGroupIdError),
    ("alter", lambda a: a.alter_offsets(LONG, {T0: 1}), InvalidGroupIdError),
    ("delete offsets", lambda a: a.delete_offsets(LONG, T0), InvalidGroupIdError),
    ("reset", lambda a: a.reset_offsets(LONG, T0, to=0), InvalidGroupIdError),
    ("remove", lambda a: a.remove_members(LONG, "m"), InvalidGroupIdError),
    ("remove by a long id", lambda a: a.remove_members("g", LONG), ValueError),
    ("remove with a long reason", lambda a: a.remove_members("g", "m", reason=LONG), ValueError),
]


@pytest.mark.parametrize(("call", "error"), [case[1:] for case in TOO_LONG], ids=[case[0] for case in TOO_LONG])
async def test_a_text_that_no_daemon_reads_is_refused_at_once(
    admin: Admin, call: Callable[[Admin], Awaitable[object]], error: type[Exception]
) -> None:
    with pytest.raises(error, match="32767 bytes"):
        await call(admin)


@pytest.mark.parametrize("group", ["a b/c:d", "\u2192 \U0001f642", "\x00\n", "g" * 200])
async def test_ids_of_every_legal_kind_work(admin: Admin, group: str) -> None:
    await admin.alter_offsets(group, {T0: 4})
    assert [each.group_id for each in await admin.list_groups()] == [group]
    await admin.reset_offsets(group, to="latest", dry_run=False)
    assert await admin.list_offsets(group) == {
        T0: OffsetAndMetadata(10),
        T1: OffsetAndMetadata(20),
        T2: OffsetAndMetadata(0),
    }
    await admin.delete_groups(group)


async def test_a_state_that_does_not_exist_is_told(admin: Admin) -> None:
    with pytest.raises(ValueError, match="'Stabel': no such state; there are Empty, PreparingRebalance"):
        await admin.list_groups(["stable", "Stabel"])


async def test_members_are_removed_with_a_reason_and_come_back_by_themselves(
    coordinator: Coordinator, admin: Admin, reader: Consumer
) -> None:
    async with Consumer("t", bootstrap_servers=coordinator.address, group_id="readers", **QUICK) as other:
        await until(lambda: bool(other.assignment()) and len(reader.assignment()) < 3)
        old = other.group_metadata().member_id
        removed = await admin.remove_members("readers", old, reason="maintenance")
        assert removed == [RemovedMember(old, None)]
        await until(lambda: other.group_metadata().member_id not in ("", old) and other.state == "stable")
        with pytest.raises(UnknownMemberIdError) as caught:
            await admin.remove_members("readers", old, "nobody")
        text = str(caught.value)
        assert f"group 'readers' has no member {old!r}; it has 2 members: " in text
        assert "no member 'nobody'" in text
        assert reader.group_metadata().member_id in text
        assert list(caught.value.failures) == [RemovedMember(old, None), RemovedMember("nobody", None)]


async def test_all_members_are_removed_only_when_that_is_said(admin: Admin, reader: Consumer) -> None:
    member_id = reader.group_metadata().member_id
    with pytest.raises(ValueError, match="no member of group 'readers' is named; all_members=True removes every one"):
        await admin.remove_members("readers", *[])
    with pytest.raises(ValueError, match="not both"):
        await admin.remove_members("readers", "m", all_members=True)
    assert await admin.remove_members("readers", all_members=True) == [RemovedMember(member_id, None)]


async def test_static_members_are_described_and_removed_by_their_instance_id(
    coordinator: Coordinator, admin: Admin
) -> None:
    one = a_worker(coordinator.address, "one")
    async with one:
        assignments = aiter(one)
        await anext(assignments)
        async with a_worker(coordinator.address, "two") as two:
            await anext(assignments)
            await anext(aiter(two))
            group = (await admin.describe_groups("workers"))["workers"]
            assert [member.group_instance_id for member in group.members] == ["one", "two"]
        assert len((await admin.describe_groups("workers"))["workers"].members) == 2  # it went without leaving
        with pytest.raises(NonEmptyGroupError, match=r"2 members: .* \(instance one\) at .* \(instance two\) at "):
            await admin.delete_groups("workers")
        (removed,) = await admin.remove_members("workers", group_instance_ids=["two"], reason="its machine is gone")
        assert removed.group_instance_id == "two"
        assert "its machine is gone" in (await anext(assignments)).reason
        with pytest.raises(UnknownMemberIdError, match="group 'workers' has no static member 'two'; it has 1 member: "):
            await admin.remove_members("workers", group_instance_ids="two")
        (removed,) = await admin.remove_members("workers", all_members=True)
        assert removed.group_instance_id == "one"


async def test_a_reset_is_planned_and_then_done(admin: Admin) -> None:
    await admin.alter_offsets("g", {T0: 4, T1: 4})
    dry = await admin.reset_offsets("g", "t", to=15)
    assert [(row.partition, row.current, row.new, row.difference, row.note) for row in dry.partitions] == [
        (0, 4, 10, 6, "15 is after the log, which ends here"),
        (1, 4, 15, 11, ""),
        (2, None, 0, None, "15 is after the log, which ends here"),
    ]
    assert (dry.group_id, dry.state, dry.blocked, dry.executed) == ("g", "Empty", "", False)
    assert await admin.list_offsets("g") == {T0: OffsetAndMetadata(4), T1: OffsetAndMetadata(4)}
    done = await admin.reset_offsets("g", "t", to=15, dry_run=False)
    assert done.executed
    assert done.partitions == dry.partitions
    assert await admin.list_offsets("g") == done.offsets


RESETS: list[tuple[str, dict[str, Any], list[int | None]]] = [
    ("earliest", {"to": "earliest"}, [0, 0, 0]),
    ("latest", {"to": "latest"}, [10, 20, 0]),
    ("back", {"shift_by": -3}, [1, 1, None]),
    ("on", {"shift_by": 100}, [10, 20, None]),
    ("a time", {"to": datetime.fromtimestamp(1012, UTC)}, [10, 12, 0]),
    ("a time between records", {"to": datetime.fromtimestamp(1003.0001, UTC)}, [4, 4, 0]),
    ("a naive time", {"to": datetime.fromtimestamp(1005)}, [5, 5, 0]),
]


@pytest.mark.parametrize(("how", "expected"), [case[1:] for case in RESETS], ids=[case[0] for case in RESETS])
async def test_where_offsets_are_reset_to(admin: Admin, how: dict[str, Any], expected: list[int | None]) -> None:
    await admin.alter_offsets("g", {T0: 4, T1: 4})
    plan = await admin.reset_offsets("g", T0, T1, T2, dry_run=False, **how)
    assert [row.new for row in plan.partitions] == expected
    assert [offset.offset for offset in (await admin.list_offsets("g")).values()] == [
        offset for offset in expected if offset is not None
    ]


async def test_all_that_is_committed_is_reset_except_topics_that_are_gone(
    coordinator: Coordinator, admin: Admin
) -> None:
    await admin.alter_offsets("g", {T1: 4, TopicPartition("u", 0): 0})
    plan = await admin.reset_offsets("g", to="latest")
    assert [(row.topic, row.partition, row.new) for row in plan.partitions] == [
        ("t", 0, 10),
        ("t", 1, 20),
        ("t", 2, 0),
        ("u", 0, 0),
    ]
    await admin.delete_topics("u")
    plan = await admin.reset_offsets("g", to="latest")
    assert all(row.topic == "t" or (row.new, row.note[:8]) == (None, "left out") for row in plan.partitions)


async def test_what_does_not_exist_is_named(admin: Admin) -> None:
    with pytest.raises(UnknownTopicOrPartitionError) as caught:
        await admin.reset_offsets("g", "nowhere", TopicPartition("t", 3), "u", to="latest")
    assert list(caught.value.failures) == ["nowhere", TopicPartition("t", 3)]
    assert "topic 'nowhere' does not exist; 'cohort topics list' shows those that do" in str(caught.value)
    assert "topic 't' has no partition 3; they are numbered 0 to 2" in str(caught.value)


async def test_a_dry_run_in_an_active_group_says_who_is_in_the_way(admin: Admin, reader: Consumer) -> None:
    plan = await admin.reset_offsets("readers", T0, to="latest")
    assert plan.offsets == {T0: OffsetAndMetadata(10)}
    assert f"it has 1 member: {reader.group_metadata().member_id} at 127.0.0.1. Stop its members first" in plan.blocked


async def test_a_group_is_described_with_what_it_reads_and_waits_for(
    coordinator: Coordinator, admin: Admin, reader: Consumer
) -> None:
    group = (await admin.describe_groups("readers"))["readers"]
    assert [member.topics for member in group.members] == [("t",)]
    assert (group.waiting_for, group.pending_members, group.empty_since_ms, group.idle_members) == ((), 0, None, ())
    async with Consumer("u", bootstrap_servers=coordinator.address, group_id="readers", **QUICK) as other:
        await until(lambda: bool(other.assignment()))
        await admin.delete_topics("u")
        await until(lambda: not other.assignment())
        await until(lambda: reader.state == "stable" and other.state == "stable")
        group = (await admin.describe_groups("readers"))["readers"]
        assert [member.member_id for member in group.idle_members] == [other.group_metadata().member_id]
        await reader.stop()
    group = (await admin.describe_groups("readers"))["readers"]
    assert group.state == "Empty"
    assert group.empty_since_ms is not None
    assert abs(datetime.now(UTC).timestamp() * 1000 - group.empty_since_ms) < 60_000


async def test_a_daemon_that_went_away_costs_no_more_than_the_timeout() -> None:
    async with Coordinator() as running:
        admin = Admin(running.address)
        await admin.start()
        await admin.list_topics()
    calls: list[Awaitable[object]] = [
        admin.delete_groups("a", "b", timeout_ms=200),
        admin.remove_members("a", "m", timeout_ms=200),
        admin.alter_offsets("a", {T0: 1}, timeout_ms=200),
        admin.delete_offsets("a", T0, timeout_ms=200),
        admin.reset_offsets("a", T0, to=0, timeout_ms=200),
    ]
    for call in calls:
        with pytest.raises(RequestTimedOutError):
            await call
    await admin.stop()
