"""What an administrator sees of transactions and does to them: through ``Admin`` and ``cohort transactions``."""

from __future__ import annotations

import asyncio
import json
import re
import shutil
import signal
import subprocess
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from client import Admin, TopicPartition
from client.errors import (
    InvalidRequestError,
    RequestTimedOutError,
    TransactionalIdNotFoundError,
    UnknownTopicOrPartitionError,
)
from client.transport.cluster import Cluster
from protocol.errors import ErrorCode
from protocol.hashing import partition_for_group, partition_for_transactional_id
from protocol.messages.offsets import (
    OffsetCommitPartition,
    OffsetCommitTopic,
    OffsetFetchRequest,
    OffsetFetchResponse,
    OffsetFetchTopic,
)
from protocol.messages.records import READ_COMMITTED, READ_UNCOMMITTED
from protocol.messages.transactions import TxnOffsetCommitRequest, TxnOffsetCommitResponse
from tests.daemon_process import DaemonProcess
from tests.integration.cohort_command import ROOT, arguments, cohort, environment
from tests.integration.consuming import create
from tests.integration.fetched import values
from tests.integration.raw_transactions import RawTransactions, becomes_committed, committed, connected, until

NONE = ErrorCode.NONE


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[DaemonProcess]:
    """A daemon with a topic ``t`` of three partitions."""
    with DaemonProcess(tmp_path) as running:
        asyncio.run(create(running.address, t=3))
        yield running


@pytest.fixture
async def cluster(daemon: DaemonProcess) -> AsyncIterator[Cluster]:
    async with connected(daemon.address) as made:
        yield made


@pytest.fixture
async def admin(daemon: DaemonProcess) -> AsyncIterator[Admin]:
    async with Admin(daemon.address) as made:
        yield made


async def producer(cluster: Cluster, transactional_id: str, *partitions: int) -> RawTransactions:
    """One that has its identity, and a transaction open in these partitions."""
    made = RawTransactions(cluster, transactional_id)
    assert (await made.init()).error_code == NONE
    if partitions:
        assert await made.codes({index: [b"v"] for index in partitions}) == [NONE] * len(partitions)
    return made


async def run(daemon: DaemonProcess, *words: str) -> subprocess.CompletedProcess[str]:
    """A command while this program goes on."""
    return await asyncio.to_thread(cohort, *words, address=daemon.address)


async def told(daemon: DaemonProcess, *words: str) -> Any:
    """What a command that succeeds prints for programs."""
    done = await run(daemon, *words, "--json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


async def test_transactional_ids_are_listed_by_state_age_and_producer(admin: Admin, cluster: Cluster) -> None:
    assert await admin.list_transactions() == []
    billing = await producer(cluster, "billing", 0, 2)
    await producer(cluster, "accounts")
    done = await producer(cluster, "done", 1)
    assert (await done.end(True)).error_code == NONE
    listed = await admin.list_transactions()
    assert [(each.transactional_id, each.state) for each in listed][:2] == [
        ("accounts", "Empty"),
        ("billing", "Ongoing"),
    ]
    assert listed[2].state in ("PrepareCommit", "CompleteCommit")
    assert (listed[1].producer_id, listed[1].producer_epoch) == (billing.producer_id, billing.epoch)
    assert listed[1].started_ms is not None
    assert listed[0].started_ms is listed[2].started_ms is None

    async def names(*arguments: Any, **options: Any) -> list[str]:
        return [each.transactional_id for each in await admin.list_transactions(*arguments, **options)]

    assert await names(["ongoing", "Empty"]) == ["accounts", "billing"]
    assert await names("ONGOING") == ["billing"]
    assert await names(older_than_ms=3_600_000) == []
    assert await names(older_than_ms=0) == ["billing"]
    assert await names(producer_ids=[done.producer_id, 10**6]) == ["done"]
    with pytest.raises(ValueError, match="'stable': no such state; there are Empty, Ongoing"):
        await admin.list_transactions(["stable"])
    for wrong in ({"states": 5}, {"states": [5]}, {"producer_ids": 7}):
        with pytest.raises(TypeError, match=r"states is 5; it must be one of|a state must be|producer_ids is 7"):
            await admin.list_transactions(**wrong)
    with pytest.raises(ValueError, match="older_than_ms"):
        await admin.list_transactions(older_than_ms=-1)


async def test_a_transaction_is_described_with_all_that_its_coordinator_knows(
    admin: Admin, cluster: Cluster, daemon: DaemonProcess
) -> None:
    billing = await producer(cluster, "billing", 2, 0)
    described = (await admin.describe_transactions("billing"))["billing"]
    assert (described.state, described.coordinator) == ("Ongoing", daemon.address)
    assert (described.producer_id, described.producer_epoch, described.timeout_ms) == (billing.producer_id, 0, 60_000)
    (member,) = described.members
    assert (member.producer_id, member.name) == (billing.producer_id, "")
    assert member.partitions == (TopicPartition("t", 0), TopicPartition("t", 2))
    assert member.started_ms == described.started_ms
    assert (described.committed_version, described.version, described.previous_outcome) == (None, None, "")
    assert (await billing.end(True, version=4)).error_code == NONE
    described = (await admin.describe_transactions("billing"))["billing"]
    assert (described.members, described.started_ms) == ((), None)
    assert (described.committed_version, described.previous_outcome, described.producer_epoch) == (4, "committed", 1)
    with pytest.raises(TransactionalIdNotFoundError, match=r"'nix' is not known.*'none' is not known") as failed:
        await admin.describe_transactions("nix", "billing", "none")
    assert set(failed.value.failures) == {"nix", "none"}
    with pytest.raises(InvalidRequestError):
        await admin.describe_transactions("")
    with pytest.raises(TypeError, match="takes names one by one"):
        await admin.describe_transactions(["billing"])  # type: ignore[arg-type]


async def test_a_partition_says_which_producers_it_remembers_and_what_readers_wait_for(
    admin: Admin, cluster: Cluster
) -> None:
    done = await producer(cluster, "done", 0)
    assert (await done.end(True)).error_code == NONE
    billing = await producer(cluster, "billing", 0, 1)
    assert await billing.codes({0: [b"a", b"b"]}) == [NONE]
    partition = TopicPartition("t", 0)
    found = (await admin.describe_producers(partition, transactions_only=True))[partition]
    (active,) = found.producers
    assert (active.producer_id, active.producer_epoch, active.last_sequence) == (billing.producer_id, 0, 2)
    assert found.last_stable_offset == active.transaction_start == 2
    assert found.high_watermark == 5
    all_three = [TopicPartition("t", index) for index in (2, 1, 0)]
    everywhere = await admin.describe_producers(*all_three)
    assert list(everywhere) == all_three
    assert [len(everywhere[each].producers) for each in all_three] == [0, 1, 1]
    with pytest.raises(UnknownTopicOrPartitionError, match=r"t-3 does not exist.*nix-0 does not exist"):
        await admin.describe_producers(TopicPartition("t", 3), TopicPartition("nix", 0), partition)


@pytest.mark.parametrize("fence", [False, True])
async def test_an_administrator_ends_a_transaction(
    admin: Admin, cluster: Cluster, daemon: DaemonProcess, fence: bool
) -> None:
    billing = await producer(cluster, "billing", 0)
    assert await admin.abort_transaction("billing", fence=fence) is True
    assert await admin.abort_transaction("billing", fence=fence) is False
    code = (await billing.end(True)).error_code
    assert code == (ErrorCode.PRODUCER_FENCED if fence else ErrorCode.TRANSACTION_ABORTABLE)
    with pytest.raises(TransactionalIdNotFoundError, match="'nix' is not known"):
        await admin.abort_transaction("nix")
    other = await producer(cluster, "other", 0)
    assert (await other.end(True)).error_code == NONE
    assert (await becomes_committed(daemon.address, {0: [b"v"], 1: [], 2: []}))[0] == [b"v"]


def removed(folder: Path) -> None:
    shutil.rmtree(folder)


def flipped(folder: Path) -> None:
    """A byte of the first record is another, in a log that was closed cleanly."""
    (log,) = sorted(folder.glob("*.log"))[:1]
    data = bytearray(log.read_bytes())
    data[len(data) // 4] ^= 0xFF
    log.write_bytes(data)


@pytest.mark.parametrize("damage", [removed, flipped])
async def test_what_a_damaged_coordinator_has_left_open_is_found_and_aborted_where_it_is(
    daemon: DaemonProcess, cluster: Cluster, damage: Callable[[Path], None], tmp_path: Path
) -> None:
    lost = await producer(cluster, "lost", 0, 2)
    kept = await producer(cluster, "kept", 0)
    assert partition_for_transactional_id("lost") != partition_for_transactional_id("kept")
    async with Admin(daemon.address) as admin:
        assert await admin.hanging_transactions() == []
    assert daemon.terminate() == 0
    damage(tmp_path / f"__transaction_state-{partition_for_transactional_id('lost')}")
    daemon.start()
    async with Admin(daemon.address) as admin:
        with pytest.raises(RequestTimedOutError, match=r"COORDINATOR_NOT_AVAILABLE: .*__transaction_state"):
            await admin.list_transactions(timeout_ms=300)
        hanging = await admin.hanging_transactions()
        assert [(each.topic, each.partition, each.producer_id) for each in hanging] == [
            ("t", 0, lost.producer_id),
            ("t", 2, lost.producer_id),
        ]
        assert {each["producer_id"] for each in await told(daemon, "transactions", "hanging")} == {lost.producer_id}
        shown = await run(daemon, "transactions", "hanging")
        assert "dry run, nothing was changed; add --execute to abort them" in shown.stderr
        assert await admin.abort_transaction(hanging[1]) is True
        with pytest.raises(ValueError, match="no producer that could be fenced"):
            await admin.abort_transaction(hanging[0], fence=True)
        (done,) = await told(daemon, "transactions", "hanging", "--execute")
        assert (done["partition"], done["start_offset"], done["aborted"]) == (0, 0, True)
        assert await admin.hanging_transactions() == []
        assert await admin.abort_transaction(hanging[0]) is True, "ended already: nothing is written"
    assert (await kept.end(True)).error_code == NONE
    assert await becomes_committed(daemon.address, {0: [b"v"], 1: [], 2: []}) == {0: [b"v"], 1: [], 2: []}


async def test_offsets_that_a_damaged_coordinator_has_left_undecided_are_found_and_aborted_in_their_group(
    daemon: DaemonProcess, cluster: Cluster, tmp_path: Path
) -> None:
    """Readers with require_stable, as every new owner of a partition is, would wait for them for ever."""
    lost = await producer(cluster, "lost", 0)
    offsets = (OffsetCommitTopic("t", (OffsetCommitPartition(1, 7),)),)
    request = TxnOffsetCommitRequest("g", "lost", lost.producer_id, lost.epoch, -1, "", None, offsets)
    answer = await cluster.call_coordinator("g", request, TxnOffsetCommitResponse)
    assert answer.topics[0].partitions[0].error_code == NONE
    assert daemon.terminate() == 0
    removed(tmp_path / f"__transaction_state-{partition_for_transactional_id('lost')}")
    daemon.start()
    group_partition = partition_for_group("g")

    async def fetched(again: Cluster) -> tuple[int, int]:
        fetch = OffsetFetchRequest("g", (OffsetFetchTopic("t", (1,)),), require_stable=True)
        response = await again.call_coordinator("g", fetch, OffsetFetchResponse)
        (found,) = response.topics[0].partitions
        return found.error_code, found.committed_offset

    async with connected(daemon.address) as again:
        assert await fetched(again) == (ErrorCode.UNSTABLE_OFFSET_COMMIT, -1)
        done = await told(daemon, "transactions", "hanging", "--execute")
        assert [(each["topic"], each["partition"], each["producer_id"], each["aborted"]) for each in done] == [
            ("__consumer_offsets", group_partition, lost.producer_id, True),
            ("t", 0, lost.producer_id, True),
        ]
        assert await fetched(again) == (NONE, -1)
    assert (await run(daemon, "transactions", "hanging")).stdout == "no transaction hangs\n"


async def test_commands_show_and_end_transactions(daemon: DaemonProcess, cluster: Cluster) -> None:
    assert (await run(daemon, "transactions", "list")).stdout == "there are no transactional ids\n"
    billing = await producer(cluster, "billing", 0, 2)
    other = await producer(cluster, "other", 0)
    assert [each["transactional_id"] for each in await told(daemon, "transactions", "list")] == ["billing", "other"]
    table = (await run(daemon, "transactions", "list", "--state", "ongoing")).stdout.splitlines()
    assert table[0].split() == ["TRANSACTIONAL", "ID", "STATE", "PRODUCER", "ID", "PRODUCER", "EPOCH", "OPEN", "FOR"]
    assert re.fullmatch(rf"billing +Ongoing +{billing.producer_id} +0 +\d+ s", table[1])
    assert await told(daemon, "transactions", "list", "--older-than", "1h") == []
    described = await told(daemon, "transactions", "describe", "billing")
    assert [each["partition"] for each in described["members"][0]["partitions"]] == [0, 2]
    assert "t 0 2" in (await run(daemon, "transactions", "describe", "billing")).stdout
    shown = (await run(daemon, "topics", "describe", "t")).stdout
    assert f"transactional id billing (producer id {billing.producer_id}, epoch 0); open are 2 transactions" in shown
    partitions = (await told(daemon, "topics", "describe", "t"))["partitions"]
    assert [each["last_stable_offset"] for each in partitions] == [0, 0, 0]
    assert [[held["transactional_id"] for held in each["transactions"]] for each in partitions] == [
        ["billing", "other"],
        [],
        ["billing"],
    ]
    assert (await run(daemon, "transactions", "abort", "billing")).stdout == "the transaction of billing is aborted\n"
    again = await told(daemon, "transactions", "abort", "billing", "--fence")
    assert again == {"transactional_id": "billing", "aborted": False, "fenced": True}
    unknown = await run(daemon, "transactions", "describe", "nix")
    assert (unknown.returncode, unknown.stdout) == (1, "")
    assert "'nix' is not known" in unknown.stderr
    assert (await other.end(True)).error_code == NONE
    assert (await run(daemon, "transactions", "hanging")).stdout == "no transaction hangs\n"
    assert (await committed(daemon.address))[2] == []


async def test_a_file_is_produced_in_one_transaction_or_not_at_all(daemon: DaemonProcess, cluster: Cluster) -> None:
    words = ("produce", "t", "--transactional-id", "nightly")

    async def produce(content: bytes, *more: str) -> subprocess.CompletedProcess[str]:
        return await asyncio.to_thread(cohort, *words, *more, address=daemon.address, stdin=content)

    done = await produce(b"a\nb\nc\n")
    assert (done.returncode, done.stdout) == (0, "3 records committed to topic t\n")
    failed = await produce(b"k:d\nno separator\n", "--key-separator", ":", "--json")
    assert failed.returncode == 1
    assert json.loads(failed.stdout) == {
        "topic": "t",
        "acknowledged": 0,
        "complete": False,
        "transaction": "aborted",
    }
    assert "line 2 has no separator" in failed.stderr
    assert (await produce(b"", "--json")).returncode == 0
    assert sorted(value for found in (await committed(daemon.address)).values() for value in found if value) == [
        b"a",
        b"b",
        b"c",
    ]
    (listed,) = await told(daemon, "transactions", "list")
    assert listed["transactional_id"] == "nightly"
    for wrong in (
        ["--transactional-id", ""],
        ["--transactional-id", "x" * 1025],
        ["--transaction-timeout", "0s"],
        ["--transaction-timeout", "30d"],
    ):
        assert (await produce(b"x\n", *wrong)).returncode == 2
    refused = await produce(b"x\n", "--transaction-timeout", "1d")
    assert refused.returncode == 1
    assert "transaction_max_timeout_ms" in refused.stderr


async def test_an_interrupted_producer_leaves_nothing_of_its_transaction(daemon: DaemonProcess) -> None:
    words = ("produce", "t", "--transactional-id", "nightly")
    process = await asyncio.create_subprocess_exec(
        *arguments(*words, address=daemon.address),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        cwd=ROOT,
        env=environment(),
    )
    assert process.stdin is not None
    process.stdin.write(b"never\n" * 1000)
    await process.stdin.drain()
    await until(lambda: _has(daemon.address, b"never"), 20)
    process.send_signal(signal.SIGINT)
    async with asyncio.timeout(20):
        out, _ = await process.communicate()
    assert out == b"the transaction is aborted: no record of it takes effect in topic t\n"
    assert process.returncode == 1
    other = await asyncio.to_thread(cohort, *words, address=daemon.address, stdin=b"seen\n")
    assert other.returncode == 0
    await until(lambda: _has(daemon.address, b"seen", READ_COMMITTED))
    assert [value for found in (await committed(daemon.address)).values() for value in found] == [b"seen"]


async def _has(address: str, value: bytes, isolation_level: int = READ_UNCOMMITTED) -> bool:
    return any(value in found for found in (await values(address, "t", isolation_level)).values())


async def test_transactions_that_come_and_go_are_not_taken_for_hanging_ones(
    daemon: DaemonProcess, admin: Admin, cluster: Cluster
) -> None:
    done = asyncio.Event()
    long = await producer(cluster, "long", 0, 1)
    ended = 0

    async def work(name: int) -> None:
        nonlocal ended
        busy = await producer(cluster, f"busy-{name}")
        while not done.is_set():
            assert await busy.codes({index: [b"v"] for index in range(3)}) == [NONE] * 3
            assert (await busy.end(ended % 2 == 0)).error_code == NONE
            ended += 1

    working = asyncio.gather(*(work(name) for name in range(3)))
    try:
        looks = 0
        async with asyncio.timeout(30):
            while looks < 4 or ended < 30:
                assert await admin.hanging_transactions() == []
                looks += 1
    finally:
        done.set()
        await working
    assert (await long.end(True)).error_code == NONE
