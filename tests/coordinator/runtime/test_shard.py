"""The shell's half of the laws: answers wait for the disk, also those without records; a refused write is taken back."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import structlog

from coordinator.filesystem.executor import Disk
from coordinator.group_coordinator import DeletedTopics, GroupShard
from coordinator.groups.config import GroupConfig, GroupStep
from coordinator.groups.core import GroupCore
from coordinator.groups.records import CoordinatorRecord, encode_record
from coordinator.log.config import LogConfig
from coordinator.log.partition import PartitionLog
from coordinator.runtime.clocks import Clocks
from coordinator.runtime.effects import Effects, RequestContext, Slices
from coordinator.runtime.fair_queue import FairQueue
from coordinator.runtime.pending_replies import PendingReplies
from coordinator.runtime.shard import CoordinatorShard, Services, ShardState
from coordinator.runtime.timers import CoordinatorTimers
from protocol.errors import ErrorCode
from protocol.messages import Response
from protocol.messages.groups import (
    CARRY_ON,
    HeartbeatRequest,
    HeartbeatResponse,
    JoinGroupProtocol,
    JoinGroupRequest,
    JoinGroupResponse,
    SyncGroupAssignment,
    SyncGroupRequest,
    SyncGroupResponse,
)
from protocol.messages.offsets import (
    OffsetCommitPartition,
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetCommitTopic,
    OffsetFetchRequest,
    OffsetFetchResponse,
    OffsetFetchTopic,
)
from tests.coordinator.log.faulty_storage import HookedStorage
from tests.coordinator.log.logs import made
from tests.coordinator.runtime.group_shard import TOPIC, Bench, Decision, Gate, NamedTopics, Question, shard_on


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[Bench]:
    async with shard_on(tmp_path) as bench:
        yield bench


async def test_no_answer_leaves_before_its_record_is_on_disk(bench: Bench) -> None:
    bench.gate.open.clear()
    bench.commit("commit", 5)
    await bench.until(lambda: bench.gate.syncs == 1)
    for _ in range(50):
        await asyncio.sleep(0)
    assert bench.answers == {}
    bench.gate.open.set()
    await bench.until(lambda: "commit" in bench.answers)
    assert bench.commit_code("commit") == ErrorCode.NONE


async def test_an_answer_without_records_waits_for_the_records_it_has_seen(bench: Bench) -> None:
    """Otherwise a reader would learn an offset that a crash a moment later takes back."""
    bench.gate.open.clear()
    bench.commit("commit", 5)
    bench.fetch("in the same turn")
    await bench.until(lambda: bench.gate.syncs == 1)
    bench.fetch("while the disk works")
    for _ in range(50):
        await asyncio.sleep(0)
    assert bench.answers == {}
    bench.gate.open.set()
    await bench.until(lambda: len(bench.answers) == 3)
    assert bench.fetched("in the same turn") == bench.fetched("while the disk works") == [5]
    assert list(bench.answers) == ["commit", "in the same turn", "while the disk works"], "in the order of the requests"


async def test_with_nothing_under_way_an_answer_leaves_at_once(bench: Bench) -> None:
    bench.fetch("now")
    assert bench.fetched("now") == []


async def test_what_arrives_during_a_sync_shares_the_next_one(bench: Bench) -> None:
    bench.gate.open.clear()
    bench.commit("first", 1)
    await bench.until(lambda: bench.gate.syncs == 1)
    for number in range(2, 200):
        bench.commit(f"commit {number}", number)
        await asyncio.sleep(0)
    bench.gate.open.set()
    await bench.until(lambda: len(bench.answers) == 199)
    assert bench.gate.syncs == 2


async def test_a_refused_write_takes_everything_decided_since_back(bench: Bench) -> None:
    bench.commit("before", 5)
    await bench.until(lambda: "before" in bench.answers)
    bench.gate.refuse = {"append"}
    bench.commit("refused", 6)
    bench.fetch("would have leaked")
    await bench.until(lambda: len(bench.answers) == 3)
    assert bench.commit_code("refused") == ErrorCode.COORDINATOR_NOT_AVAILABLE
    leaked = bench.answers["would have leaked"]
    assert isinstance(leaked, OffsetFetchResponse)
    assert leaked.error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE
    bench.gate.refuse = set()
    await bench.until(lambda: bench.shard.state is ShardState.ACTIVE)
    bench.fetch("after")
    assert bench.fetched("after") == [5]
    bench.commit("again", 7)
    await bench.until(lambda: "again" in bench.answers)
    assert bench.commit_code("again") == ErrorCode.NONE


async def ask_to_join(bench: Bench, name: str) -> str:
    """Gets a new member its id and has it join the group "w"; returns the id, and ``name`` is answered in time."""
    request = JoinGroupRequest("w", 10_000, 10_000, "", None, "consumer", (JoinGroupProtocol("range", b""),))
    bench.ask(f"id of {name}", request)
    await bench.until(lambda: f"id of {name}" in bench.answers)
    given = bench.answers[f"id of {name}"]
    assert isinstance(given, JoinGroupResponse)
    bench.ask(name, replace(request, member_id=given.member_id))
    return given.member_id


async def test_a_refused_write_answers_parked_members_too(bench: Bench) -> None:
    for name in ("first", "second"):
        await ask_to_join(bench, name)
    await bench.until(lambda: "first" in bench.answers)
    assert "second" not in bench.answers, "it waits for the first to rejoin"
    bench.gate.refuse = {"append"}
    bench.commit("refused", 1)
    await bench.until(lambda: "refused" in bench.answers)
    assert "second" in bench.answers
    assert len(bench.replies) == 0, "nothing is left waiting"


async def test_a_failed_sync_acknowledges_nothing_and_ends_the_daemon(bench: Bench) -> None:
    bench.gate.refuse = {"sync"}
    bench.commit("lost?", 5)
    await bench.until(lambda: bool(bench.fatal))
    assert "sync" in bench.fatal[0]
    assert bench.answers == {} or bench.commit_code("lost?") != ErrorCode.NONE


async def test_a_request_to_a_shard_that_loads_or_stops_is_refused_by_name(bench: Bench) -> None:
    wanted = {
        ShardState.LOADING: ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ShardState.FAILED: ErrorCode.NOT_COORDINATOR,
        ShardState.CLOSED: ErrorCode.NOT_COORDINATOR,
    }
    for state, code in wanted.items():
        bench.shard.state = state
        bench.fetch(state.value)
        answer = bench.answers[state.value]
        assert isinstance(answer, OffsetFetchResponse)
        assert (answer.error_code, bool(answer.error_message)) == (code, True)
    bench.shard.state = ShardState.ACTIVE


async def test_a_load_does_not_disturb_members(bench: Bench) -> None:
    """Kafka's rule: a heartbeat while the coordinator loads is answered with NONE."""
    bench.shard.state = ShardState.LOADING
    bench.ask("heartbeat", HeartbeatRequest("g", 1, "m", None, 5))
    await bench.until(lambda: "heartbeat" in bench.answers)
    assert bench.answers["heartbeat"] == HeartbeatResponse(ErrorCode.NONE)
    bench.shard.state = ShardState.ACTIVE


async def with_a_member(bench: Bench) -> HeartbeatRequest:
    """The heartbeat of the one member of a stable group."""
    member = await ask_to_join(bench, "join")
    await bench.until(lambda: "join" in bench.answers)
    bench.ask("sync", SyncGroupRequest("w", 1, member, None, None, None, (SyncGroupAssignment(member, b"share"),)))
    await bench.until(lambda: "sync" in bench.answers)
    return HeartbeatRequest("w", 1, member)


def beats(bench: Bench, request: HeartbeatRequest) -> bool:
    return bench.shard.move_timers(GroupCore.renewed, request, "")


async def test_what_only_moves_a_timer_is_decided_at_once_unless_others_wait_for_the_disk(bench: Bench) -> None:
    """Otherwise its answer would show what a crash a moment later takes back."""
    beat = await with_a_member(bench)
    assert beats(bench, beat)
    assert not beats(bench, replace(beat, generation_id=beat.generation_id + 1))
    assert not beats(bench, replace(beat, max_wait_ms=1)), "it is held"
    assert not beats(bench, replace(beat, group_instance_id="i"))
    assert not bench.shard.move_timers(GroupCore.renewed, beat, "another client 1.0")
    bench.gate.open.clear()
    bench.ask(
        "commit",
        OffsetCommitRequest(
            *("w", beat.generation_id, beat.member_id, None),
            (OffsetCommitTopic("orders", (OffsetCommitPartition(0, 5),)),),
        ),
    )
    assert not beats(bench, beat)
    await asyncio.sleep(0)
    assert not beats(bench, beat), "the commit is on its way to the disk"
    bench.gate.open.set()
    await bench.until(lambda: "commit" in bench.answers)
    assert beats(bench, beat)


async def test_a_member_whose_heartbeats_are_decided_at_once_stays_as_long_as_they_come(bench: Bench) -> None:
    beat = await with_a_member(bench)
    member = bench.shard.core.groups["w"].members[beat.member_id]
    before_ms = member.session_deadline_ms
    await asyncio.sleep(0.02)
    assert beats(bench, beat)
    assert before_ms is not None
    assert member.session_deadline_ms is not None
    assert member.session_deadline_ms >= before_ms + 20
    bench.shard.decide("", lambda core, step: core.on_timer(member.session_timer, step))
    assert beat.member_id in bench.shard.core.groups["w"].members, "the timer that came up early is set again"


async def test_a_fault_in_what_is_decided_at_once_is_one_of_the_core_too(bench: Bench) -> None:
    beat = await with_a_member(bench)

    def faulty(core: GroupCore, request: Any, software: str, now_ms: int) -> None:
        core.groups["w"].members.clear()
        raise RuntimeError("a fault of ours")

    assert not bench.shard.move_timers(faulty, beat, "")
    assert bench.shard.state is ShardState.LOADING
    bench.ask("faulty", beat)
    await bench.until(lambda: bench.shard.state is ShardState.ACTIVE)
    await bench.until(lambda: bench.answers.get("faulty") == CARRY_ON)  # as of all that come while it reads its log
    assert beats(bench, beat), "the log knows the member"


async def test_a_fault_in_the_core_is_told_and_the_log_says_what_is_true(bench: Bench) -> None:
    bench.commit("before", 5)
    await bench.until(lambda: "before" in bench.answers)

    def faulty(core: GroupCore, _: GroupStep) -> Effects:
        core.groups["g"].offsets["orders"][0] = (999, -1, "never written", 0, "id-1")
        raise RuntimeError("a fault of ours")

    bench.ask("faulty", OffsetFetchRequest("g", None), faulty)
    answer = bench.answers["faulty"]
    assert isinstance(answer, OffsetFetchResponse)
    assert answer.error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE
    await bench.until(lambda: bench.shard.state is ShardState.ACTIVE)
    bench.fetch("after")
    assert bench.fetched("after") == [5]


async def test_what_was_on_its_way_to_the_disk_when_the_core_failed_is_not_forgotten(bench: Bench) -> None:
    bench.gate.open.clear()
    bench.commit("under way", 7)
    await bench.until(lambda: bench.gate.syncs == 1)

    def faulty(core: GroupCore, _: GroupStep) -> Effects:
        raise RuntimeError("a fault of ours")

    bench.ask("faulty", OffsetFetchRequest("g", None), faulty)
    bench.gate.open.set()
    await bench.until(lambda: bench.shard.state is ShardState.ACTIVE)
    bench.fetch("after")
    assert bench.fetched("after") == [7]
    bench.commit("later", 8)
    await bench.until(lambda: "later" in bench.answers)
    assert bench.commit_code("later") == ErrorCode.NONE


async def test_a_disk_that_refuses_to_be_read_is_asked_again(bench: Bench) -> None:
    bench.commit("before", 5)
    await bench.until(lambda: "before" in bench.answers)
    bench.gate.refuse = {"read"}
    bench.shard.state = ShardState.LOADING
    bench.shard.start_loading()
    for _ in range(100):
        await asyncio.sleep(0)
    assert bench.shard.state is ShardState.LOADING, "neither served nor given up"
    assert "could not read its log" in await bench.shard.loaded_or_held_up()
    bench.commit("meanwhile", 6)
    assert "No space left on device" in bench.refused("meanwhile")
    bench.gate.refuse = set()
    await bench.shard.loaded()
    assert await bench.shard.loaded_or_held_up() == ""
    bench.fetch("after")
    assert bench.fetched("after") == [5]


async def test_offsets_of_a_topic_that_is_deleted_go_with_it(bench: Bench) -> None:
    bench.topics.clear()
    bench.topics.update(a="id-2", b="id-3", c="id-4", d="id-5")
    for offset, topic in enumerate(bench.topics):
        bench.commit(topic, offset, topic)
    await bench.until(lambda: len(bench.answers) == 4)
    del bench.topics["a"]
    bench.forget_topic("a")
    bench.fetch("deleted while it served")
    await bench.until(lambda: "deleted while it served" in bench.answers)
    assert bench.fetched("deleted while it served") == [1, 2, 3]
    bench.topics["b"] = "id-6"  # deleted before it loads, and created again while it does
    bench.shard._drop("as after a fault")
    del bench.topics["c"]
    bench.forget_topic("c")
    await bench.shard.loaded()
    bench.fetch("deleted while it did not")
    await bench.until(lambda: "deleted while it did not" in bench.answers)
    assert bench.fetched("deleted while it did not") == [3]


async def test_the_offsets_of_a_topic_do_not_hold_for_one_that_is_created_under_its_name(bench: Bench) -> None:
    """Not even while the disk takes no tombstone, and not after a restart without one."""
    bench.commit("before", 299)
    await bench.until(lambda: "before" in bench.answers)
    bench.gate.refuse = {"append"}
    bench.topics["orders"] = "id-2"
    bench.forget_topic("orders")
    await bench.until(lambda: bench.shard.state is ShardState.LOADING)
    await bench.until(lambda: bench.shard.state is ShardState.ACTIVE)
    request = OffsetFetchRequest("g", (OffsetFetchTopic("orders", (0,)),))
    bench.ask("recreated", request)
    assert bench.fetched("recreated") == [-1]
    bench.fetch("all")
    assert bench.fetched("all") == []
    bench.gate.refuse = set()
    bench.commit("after", 3)
    await bench.until(lambda: "after" in bench.answers)
    assert bench.commit_code("after") == ErrorCode.NONE
    bench.fetch("new")
    assert bench.fetched("new") == [3]


async def test_what_is_gone_is_erased_in_the_end_and_what_is_there_stays(bench: Bench) -> None:
    """The look for what is gone goes in slices; commits for the new topic come in between."""
    bench.topics["other"] = "id-7"
    for name in ("orders", "other"):
        partitions = tuple(OffsetCommitPartition(index, index) for index in range(12_000))
        bench.ask(name, OffsetCommitRequest("g", -1, "", None, (OffsetCommitTopic(name, partitions),)))
    await bench.until(lambda: len(bench.answers) == 2)
    bench.topics["orders"] = "id-8"
    bench.forget_topic("orders")
    bench.commit("new", 5)
    await bench.until(lambda: len(bench.shard.core.groups["g"].offsets["orders"]) == 1)
    await bench.until(lambda: "new" in bench.answers)
    bench.fetch("left")
    await bench.until(lambda: "left" in bench.answers)
    assert bench.fetched("left") == [5, *range(12_000)]


async def test_a_full_disk_does_not_make_the_shard_spin(bench: Bench) -> None:
    """A topic is deleted while nothing can be written: the tombstones are tried again at growing intervals."""
    bench.commit("before", 5)
    bench.topics["other"] = "id-2"
    bench.commit("other", 6, "other")
    await bench.until(lambda: len(bench.answers) == 2)
    loads: list[float] = []
    original = bench.shard._replayed

    async def counted() -> tuple[GroupCore, int]:
        loads.append(asyncio.get_running_loop().time())
        return await original()

    bench.shard._replayed = counted  # type: ignore[method-assign]
    bench.gate.refuse = {"append"}
    del bench.topics["orders"]
    bench.forget_topic("orders")
    await asyncio.sleep(1.2)
    assert 1 <= len(loads) <= 6, "without a pause there are hundreds a second"
    # While the tombstones are tried once more, an answer waits to learn that they are refused.
    await bench.until(lambda: bench.shard.at_rest)
    bench.fetch("while the disk is full")
    assert bench.fetched("while the disk is full") == [6], "the others are served"
    bench.gate.refuse = set()
    await bench.until(lambda: "orders" not in bench.shard.core.groups["g"].offsets)
    bench.commit("after", 7, "other")
    await bench.until(lambda: "after" in bench.answers)
    assert bench.commit_code("after") == ErrorCode.NONE


async def test_whoever_looks_for_a_shard_that_pauses_is_told_why_and_does_not_wait(bench: Bench) -> None:
    bench.gate.refuse = {"append"}
    for attempt in range(6):
        await bench.until(lambda: bench.shard.state is ShardState.ACTIVE)
        bench.commit(f"refused {attempt}", attempt)
        await bench.until(lambda name=f"refused {attempt}": name in bench.answers)  # type: ignore[misc]
    held_up_by = await asyncio.wait_for(bench.shard.loaded_or_held_up(), 10)
    assert bench.shard.state is ShardState.LOADING, "asked in a pause, not after it"
    assert "could not write its log" in held_up_by
    bench.commit("in the pause", 9)
    assert "could not write its log" in bench.refused("in the pause")
    bench.gate.refuse = set()
    await bench.shard.loaded()
    assert await bench.shard.loaded_or_held_up() == ""
    bench.commit("after", 9)
    await bench.until(lambda: "after" in bench.answers)
    assert bench.commit_code("after") == ErrorCode.NONE


async def test_a_shard_that_is_closed_keeps_nobody_waiting(bench: Bench) -> None:
    bench.gate.refuse = {"read", "append"}
    bench.commit("refused", 1)
    await bench.until(lambda: "refused" in bench.answers)
    looking = asyncio.create_task(bench.shard.loaded_or_held_up())
    await bench.shard.close()
    await asyncio.wait_for(looking, 10)
    assert bench.shard.state is ShardState.CLOSED


@pytest.mark.parametrize("where", ["apply", "encode", "load"])
async def test_a_fault_behind_the_decision_is_one_of_the_core_too(
    bench: Bench, where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Half a request applied, or nothing of it written: the shard may not go on with state that its log does not have."""
    bench.commit("before", 5)
    await bench.until(lambda: "before" in bench.answers)
    applied, faults = GroupCore.apply, iter(range(1))

    def fault(*_: object) -> None:
        if next(faults, None) is not None:
            raise RuntimeError("a fault of ours")

    def apply(core: GroupCore, record: Any) -> None:
        applied(core, record)
        if bench.shard.core is core:
            fault()

    if where == "apply":
        monkeypatch.setattr(GroupCore, "apply", apply)
    elif where == "encode":

        def encode(record: CoordinatorRecord) -> tuple[bytes, bytes | None]:
            fault()
            return encode_record(record)

        monkeypatch.setattr("coordinator.groups.records.encode_record", encode)
    else:
        started = GroupCore.start_expiry

        def start(core: GroupCore, step: GroupStep, delay_ms: int) -> Effects:
            fault()
            return started(core, step, delay_ms)

        monkeypatch.setattr(GroupCore, "start_expiry", start)
        bench.shard.state = ShardState.LOADING
        bench.shard.start_loading()
    if where != "load":
        bench.commit("faulty", 77)
        await bench.until(lambda: "faulty" in bench.answers)
        assert bench.commit_code("faulty") == ErrorCode.COORDINATOR_NOT_AVAILABLE
    await bench.until(lambda: next(faults, None) is None and bench.shard.state is ShardState.ACTIVE)
    assert len(bench.replies) == 0, "nobody is left without an answer"
    bench.fetch("after")
    assert bench.fetched("after") == [5]
    bench.commit("later", 8)
    await bench.until(lambda: "later" in bench.answers)
    assert bench.commit_code("later") == ErrorCode.NONE


async def test_a_record_too_large_for_the_log_is_refused_and_leaves_nothing_behind(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("protocol.record_batch.MAX_BATCH_BYTES", 1000)
    topics = (OffsetCommitTopic("orders", (OffsetCommitPartition(0, 1, -1, "m" * 2000),)),)
    bench.ask("large", OffsetCommitRequest("g", -1, "", None, topics))
    await bench.until(lambda: "large" in bench.answers)
    assert bench.commit_code("large") == ErrorCode.COORDINATOR_NOT_AVAILABLE
    await bench.until(lambda: bench.shard.state is ShardState.ACTIVE)
    bench.fetch("after")
    assert bench.fetched("after") == []


async def test_many_records_in_one_turn_become_several_batches_and_one_answer_each(bench: Bench) -> None:
    topics = (OffsetCommitTopic("orders", tuple(OffsetCommitPartition(index, index) for index in range(10_000))),)
    bench.ask("large", OffsetCommitRequest("g", -1, "", None, topics))
    bench.commit("small", 7)
    await bench.until(lambda: len(bench.answers) == 2)
    response = bench.answers["large"]
    assert isinstance(response, OffsetCommitResponse)
    assert {entry.error_code for entry in response.topics[0].partitions} == {ErrorCode.NONE}


async def test_the_log_replayed_is_the_state_that_was(bench: Bench) -> None:
    for number in range(50):
        bench.commit(str(number), number)
    await bench.until(lambda: len(bench.answers) == 50)
    before = bench.shard.core.durable_state()
    bench.shard.state = ShardState.LOADING
    bench.shard.start_loading()
    await bench.shard.loaded()
    assert bench.shard.core.durable_state() == before


async def test_damage_in_the_log_of_groups_is_told_with_its_file_in_one_line(bench: Bench, tmp_path: Path) -> None:
    bench.commit("commit", 5)
    await bench.until(lambda: "commit" in bench.answers)
    path = tmp_path / "offsets-0" / f"{0:020}.log"
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    with structlog.testing.capture_logs() as lines:
        bench.shard._drop("as after a fault")
        await bench.shard.loaded()
    assert bench.shard.state is ShardState.FAILED
    (line,) = lines
    assert "offsets-0/00000000000000000000.log, offset 0" in line["error"]
    assert "exc_info" not in line


async def encoding(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> str:
    """A member whose generation is settled and is being encoded, a member at a time; returns its id."""
    monkeypatch.setattr("coordinator.groups.records.MEMBERS_PER_STEP", 1)
    member = await ask_to_join(bench, "join")
    await bench.until(lambda: "join" in bench.answers)
    bench.ask("sync", SyncGroupRequest("w", 1, member, None, None, None, (SyncGroupAssignment(member, b"share"),)))
    while bench.shard._appending is None:
        await asyncio.sleep(0)
    return member


async def test_what_is_decided_while_a_large_record_is_encoded_is_stored_and_answered_after_it(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    member_id = await encoding(bench, monkeypatch)
    bench.commit("first", 5)
    bench.fetch("seen")
    assert bench.shard._appending is not None
    assert not {"sync", "first", "seen"} & bench.answers.keys()
    await bench.until(lambda: "seen" in bench.answers)
    told = list(bench.answers)
    assert told.index("sync") < told.index("first") < told.index("seen")
    settled = bench.answers["sync"]
    assert isinstance(settled, SyncGroupResponse)
    assert settled.assignment == b"share"
    core, _ = await bench.shard._replayed()
    assert core.durable_state() == bench.shard.core.durable_state()
    assert core.groups["w"].assignments == {member_id: b"share"}


async def test_a_shard_that_is_dropped_while_a_large_record_is_encoded_leaves_nobody_without_an_answer(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    await encoding(bench, monkeypatch)
    bench.commit("first", 5)
    bench.shard._on_fault(RuntimeError("a fault of ours"))
    await bench.until(lambda: bench.shard.state is ShardState.ACTIVE and not len(bench.replies))
    refused = bench.answers["sync"]
    assert isinstance(refused, SyncGroupResponse)
    assert refused.error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert bench.commit_code("first") == ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert bench.shard.core.groups["w"].assignments == {}
    bench.commit("later", 8)
    await bench.until(lambda: "later" in bench.answers)
    assert bench.commit_code("later") == ErrorCode.NONE


async def test_a_shard_that_stops_while_a_large_record_is_encoded_stores_it(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    member_id = await encoding(bench, monkeypatch)
    bench.commit("first", 5)
    await bench.shard.close()
    core, _ = await bench.shard._replayed()
    assert core.groups["w"].assignments == {member_id: b"share"}
    assert core.groups["g"].offsets["orders"][0][0] == 5


async def test_shards_take_turns_with_loads_and_with_what_they_erase(tmp_path: Path) -> None:
    """Fifty shards that did a slice each in the same turn of the loop would stop it fifty times as long as one."""
    topics = NamedTopics(orders="id-1")
    deleted = DeletedTopics(topics)
    disk = Disk(HookedStorage(tmp_path, Gate()), threads=2)
    replies = PendingReplies(GroupCore.request_is_about)
    timers = CoordinatorTimers(asyncio.get_running_loop())
    timers.serve(TOPIC, lambda *_: None, GroupCore.WAITS_FOR_OTHERS)
    services = Services(replies, timers, FairQueue(), Clocks(asyncio.get_running_loop(), lambda: 1_000_000))
    worked: list[tuple[int, str]] = []  # the turn of the loop, and what was done in it
    turn = 0

    class Watched(GroupCore):
        def apply(self, record: CoordinatorRecord) -> None:
            worked.append((turn, type(record).__name__))
            super().apply(record)

    shards: list[tuple[GroupShard, PartitionLog]] = []
    for index in range(5):
        made(disk.storage, f"offsets-{index}")
        log = await PartitionLog.open(disk, f"offsets-{index}", LogConfig(), leader_epoch=0, on_fatal=pytest.fail)
        new_core = lambda _: Watched(GroupConfig(), lambda client: client, topics)  # noqa: E731
        shards.append((CoordinatorShard(TOPIC, index, log, new_core, services, deleted.erase_all), log))

    async def watched(until: Callable[[], bool]) -> dict[str, int]:
        """How many records were applied in the busiest turn, by kind."""
        nonlocal turn
        worked.clear()
        async with asyncio.timeout(60):
            while not until():
                await asyncio.sleep(0)
                turn += 1
        count_of: dict[tuple[int, str], int] = {}
        for entry in worked:
            count_of[entry] = count_of.get(entry, 0) + 1
        return {kind: max(number for (_, of), number in count_of.items() if of == kind) for _, kind in worked}

    def active() -> bool:
        return all(shard.state is ShardState.ACTIVE for shard, _ in shards)

    for shard, _ in shards:
        shard.start_loading()
    await watched(active)
    answers: dict[str, Response] = {}
    for shard, _ in shards:
        partitions = tuple(OffsetCommitPartition(index, index) for index in range(3_000))
        request = OffsetCommitRequest("g", -1, "", None, (OffsetCommitTopic("orders", partitions),))
        token = replies.open(Question(request, str(shard.partition), answers))
        shard.submit(request, RequestContext(token, "client", "127.0.0.1"))
    await watched(lambda: len(answers) == 5)
    for shard, _ in shards:
        shard.state = ShardState.LOADING
        shard.start_loading()
    assert 0 < (await watched(active))["OffsetCommitRecord"] <= 2 * 512, (
        "a slice of one shard, or of two that end and begin"
    )
    topics["orders"] = "id-2"
    for shard, _ in shards:
        deleted.erase(shard, "orders")
    erased = await watched(lambda: not any("g" in shard.core.groups for shard, _ in shards))
    assert 0 < erased["OffsetCommitTombstone"] <= 2 * 1_000
    for shard, log in shards:
        await shard.close()
        await log.close()
    timers.close()
    disk.close()


def _in_slices(happened: list[str], count: int) -> Decision:
    """A decision about group "g" in so many slices; the last one answers."""

    def work(token: int, effects: Effects) -> Slices:
        for number in range(count):
            if number:
                effects = yield
            happened.append(f"slice {number}")
        effects.reply(token, OffsetFetchResponse(ErrorCode.NONE, ()))

    def decide(_: GroupCore, step: GroupStep) -> Effects:
        step.effects.begin("g", work(step.context.token, step.effects))
        return step.effects

    return decide


async def test_what_is_about_a_group_waits_for_the_slices_of_a_decision_about_it(bench: Bench) -> None:
    happened: list[str] = []
    bench.ask("in slices", OffsetFetchRequest("g", None), _in_slices(happened, 4))
    bench.commit("behind", 5)
    bench.ask("of another group", OffsetFetchRequest("other", None))
    assert happened == ["slice 0"]
    assert list(bench.answers) == ["of another group"]
    await bench.until(lambda: "behind" in bench.answers)
    assert happened == [f"slice {number}" for number in range(4)]
    assert list(bench.answers) == ["of another group", "in slices", "behind"]


async def test_a_join_whose_connection_closes_while_it_is_held_back_is_given_up_after_it(bench: Bench) -> None:
    request = JoinGroupRequest("g", 10_000, 10_000, "", None, "consumer", (JoinGroupProtocol("range", b""),))
    bench.ask("id", request)
    given = bench.answers["id"]
    assert isinstance(given, JoinGroupResponse)
    bench.ask("another id", request)  # the join that is given up waits for this one
    bench.ask("in slices", OffsetFetchRequest("g", None), _in_slices([], 2))
    request = replace(request, member_id=given.member_id)
    token = bench.ask("given up", request)
    bench.replies.forget(token)
    bench.shard.abandon(request, token)
    await bench.until(lambda: "in slices" in bench.answers)
    await bench.until(lambda: not bench.shard.core.groups["g"].pending.get(given.member_id))
    await asyncio.sleep(0)
    assert not bench.shard.core.groups["g"].members, "it was never told a generation, and nobody waits for it"


async def test_a_drop_ends_a_decision_in_slices_and_refuses_what_was_held_back(bench: Bench) -> None:
    happened: list[str] = []
    bench.ask("in slices", OffsetFetchRequest("g", None), _in_slices(happened, 1_000))
    bench.commit("held back", 5)
    bench.ask("faulty", OffsetFetchRequest("other", None), lambda *_: 1 / 0)  # type: ignore[arg-type]
    assert bench.refused("held back")
    seen = len(happened)
    await bench.until(lambda: bench.shard.state is ShardState.ACTIVE)
    assert len(happened) == seen < 1_000
    bench.commit("again", 6)
    await bench.until(lambda: "again" in bench.answers)
    assert bench.commit_code("again") == ErrorCode.NONE


async def test_a_fault_in_a_later_slice_drops_the_shard(bench: Bench) -> None:
    def work(effects: Effects) -> Slices:
        yield
        raise RuntimeError("a fault of ours")

    def decide(_: GroupCore, step: GroupStep) -> Effects:
        step.effects.begin("g", work(step.effects))
        return step.effects

    bench.ask("in slices", OffsetFetchRequest("g", None), decide)
    bench.commit("held back", 5)
    await bench.until(lambda: "held back" in bench.answers)
    assert bench.refused("held back")
    await bench.until(lambda: bench.shard.state is ShardState.ACTIVE)
