"""Transactions over the wire, with plain requests: what commits, aborts, fences, comes late, and what a SIGKILL leaves."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from itertools import count
from pathlib import Path
from random import Random

import pytest

from client import Admin
from client.transport.cluster import Cluster
from protocol.errors import ErrorCode
from protocol.messages.producers import OUTCOME_ABORTED, OUTCOME_COMMITTED
from tests.daemon_process import DaemonProcess
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
async def billing(cluster: Cluster) -> RawTransactions:
    """A producer that has its identity."""
    producer = RawTransactions(cluster, "billing")
    assert (await producer.init()).error_code == NONE
    return producer


async def test_what_is_committed_is_seen_in_all_partitions_and_what_is_aborted_in_none(
    daemon: DaemonProcess, billing: RawTransactions
) -> None:
    assert await billing.codes({0: [b"a", b"b"], 1: [b"c"]}) == [NONE, NONE]
    assert await billing.codes({1: [b"d"], 2: [b"e"]}) == [NONE, NONE]
    assert await committed(daemon.address) == {0: [], 1: [], 2: []}
    ended = await billing.end(True)
    assert (ended.error_code, ended.producer_id, ended.producer_epoch) == (NONE, billing.producer_id, 1)
    expected = {0: [b"a", b"b"], 1: [b"c", b"d"], 2: [b"e"]}
    assert await becomes_committed(daemon.address, expected) == expected
    assert await billing.codes({0: [b"never"], 2: [b"never"]}) == [NONE, NONE]
    assert (await billing.end(False)).error_code == NONE
    assert await billing.codes({0: [b"f"]}) == [NONE]
    assert (await billing.end(True)).error_code == NONE
    expected = {0: [b"a", b"b", b"f"], 1: [b"c", b"d"], 2: [b"e"]}
    assert await becomes_committed(daemon.address, expected) == expected
    assert (await values(daemon.address, "t"))[2] == [b"e", b"never"]


async def test_a_commit_that_names_its_writes_waits_for_them(daemon: DaemonProcess, billing: RawTransactions) -> None:
    assert await billing.codes({0: [b"a"]}) == [NONE]
    ending = asyncio.create_task(billing.end(True, unacknowledged={0: 0, 1: 2}))
    await asyncio.sleep(0.1)
    assert await billing.codes({1: [b"b", b"c"]}) == [NONE]
    await asyncio.sleep(0.1)
    assert not ending.done()
    assert await committed(daemon.address) == {0: [], 1: [], 2: []}
    assert await billing.codes({1: [b"d"]}) == [NONE]
    assert (await ending).error_code == NONE
    expected = {0: [b"a"], 1: [b"b", b"c", b"d"], 2: []}
    assert await becomes_committed(daemon.address, expected) == expected


async def test_a_commit_that_names_its_writes_is_told_again_without_them(billing: RawTransactions) -> None:
    assert await billing.codes({0: [b"a"]}) == [NONE]
    copy = billing.copy()
    assert (await billing.end(True, unacknowledged={0: 0})).error_code == NONE
    async with asyncio.timeout(4):
        again = await copy.end(True, unacknowledged={0: 0})
    assert (again.error_code, again.producer_epoch) == (NONE, billing.epoch)


@pytest.mark.parametrize("kind", ["refused", "too large", "elsewhere", "aborted"])
async def test_a_commit_whose_writes_are_not_stored_decides_nothing(
    daemon: DaemonProcess, billing: RawTransactions, kind: str
) -> None:
    assert await billing.codes({0: [b"a"]}) == [NONE]
    topic = "elsewhere" if kind == "elsewhere" else "t"
    copy = billing.copy()
    ending = asyncio.create_task(copy.end(True, unacknowledged={1: 0}, topic=topic))
    await asyncio.sleep(0.1)
    if kind == "refused":
        assert await billing.codes({1: [b"b"]}, sequence=5) == [ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER]
    elif kind == "too large":
        assert await billing.codes({1: [bytes(2_000_000)]}) == [ErrorCode.MESSAGE_TOO_LARGE]
    elif kind == "aborted":
        assert (await billing.end(False)).error_code == NONE
    async with asyncio.timeout(4):
        refused = await ending
    assert refused.error_code == ErrorCode.CONCURRENT_TRANSACTIONS
    assert "wait for them, then commit again" in refused.error_message
    expected: dict[int, list[bytes]] = {0: [], 1: [], 2: []}
    if kind != "aborted":
        assert await billing.codes({1: [b"b"]}) == [NONE]
        assert (await billing.end(True)).error_code == NONE
        expected = {0: [b"a"], 1: [b"b"], 2: []}
    assert await becomes_committed(daemon.address, expected) == expected


async def test_the_next_transaction_may_write_at_once_where_the_one_before_has_just_ended(
    daemon: DaemonProcess, billing: RawTransactions
) -> None:
    for number in range(30):
        found = await billing.produce({index: [b"%d" % number] for index in range(3)})
        assert not any(each.error_code for each in found.values()), found
        assert (await billing.end(number % 3 != 2)).error_code == NONE
    kept = [b"%d" % number for number in range(30) if number % 3 != 2]
    assert (await becomes_committed(daemon.address, dict.fromkeys(range(3), kept)))[1] == kept


async def test_a_producer_that_takes_the_id_over_ends_the_transaction_of_the_one_before(
    daemon: DaemonProcess, billing: RawTransactions
) -> None:
    assert await billing.codes({0: [b"old"]}) == [NONE]
    newer = RawTransactions(billing.cluster, "billing")
    assert (await newer.init()).error_code == NONE
    assert newer.producer_id == billing.producer_id
    assert newer.epoch > billing.epoch
    assert await newer.codes({0: [b"new"]}) == [NONE]
    fenced = (ErrorCode.PRODUCER_FENCED, ErrorCode.INVALID_PRODUCER_EPOCH)
    for partition in range(3):  # where its transaction was open, and where it never was
        assert (await billing.codes({partition: [b"late"]}))[0] in fenced
    assert (await billing.codes({1: [b"late"]}, sequence=0)) == [ErrorCode.PRODUCER_FENCED]
    assert (await billing.end(True)).error_code == ErrorCode.PRODUCER_FENCED
    assert (await billing.end(False)).error_code == ErrorCode.PRODUCER_FENCED
    assert (await billing.init(again=True)).error_code == ErrorCode.PRODUCER_FENCED
    assert (await newer.end(True)).error_code == NONE
    expected = {0: [b"new"], 1: [], 2: []}
    assert await becomes_committed(daemon.address, expected) == expected


async def test_two_producers_that_fence_each_other_commit_whole_transactions_or_nothing(
    daemon: DaemonProcess, cluster: Cluster
) -> None:
    random = Random(7)
    stored: set[bytes] = set()

    async def work(name: int) -> None:
        producer = RawTransactions(cluster, "shared")
        for number in range(25):
            if producer.producer_id < 0 or random.random() < 0.2:
                assert (await producer.init()).error_code == NONE
            value = b"%d-%d" % (name, number)
            for index in range(3):
                if await producer.codes({index: [value]}) != [NONE]:
                    producer.producer_id = -1
                    break
            else:
                code = (await producer.end(True)).error_code
                if code == NONE:
                    stored.add(value)
                else:
                    producer.producer_id = -1

    await asyncio.gather(work(0), work(1))
    last = RawTransactions(cluster, "shared")
    assert (await last.init()).error_code == NONE
    assert stored
    assert await last.codes({index: [b"last"] for index in range(3)}) == [NONE] * 3
    assert (await last.end(True)).error_code == NONE
    await until(lambda: _has_last(daemon.address))
    for found in (await committed(daemon.address)).values():
        assert {value for value in found if value is not None} == {*stored, b"last"}
        assert len(found) == len(stored) + 1


async def _has_last(address: str) -> bool:
    return all(b"last" in found for found in (await committed(address)).values())


async def test_what_comes_after_the_end_of_its_transaction_is_not_written(
    daemon: DaemonProcess, billing: RawTransactions
) -> None:
    assert await billing.codes({0: [b"a"]}) == [NONE]
    late = billing.copy()
    assert (await billing.end(True)).error_code == NONE
    assert await becomes_committed(daemon.address, {0: [b"a"], 1: [], 2: []}) == {0: [b"a"], 1: [], 2: []}
    for partition in range(3):
        assert await late.codes({partition: [b"late"]}, sequence=0) == [ErrorCode.PRODUCER_FENCED]
    assert await late.codes({0: [b"late"]}) == [ErrorCode.PRODUCER_FENCED]
    # Its own end again is a repetition; another verdict is not believed.
    repeated = await late.copy().end(True)
    assert (repeated.error_code, repeated.producer_epoch) == (NONE, billing.epoch)
    assert (await late.end(False)).error_code not in (NONE, ErrorCode.UNKNOWN_SERVER_ERROR)
    assert await values(daemon.address, "t") == {0: [b"a"], 1: [], 2: []}


async def test_a_transaction_that_takes_too_long_is_aborted_and_its_producer_told(
    daemon: DaemonProcess, cluster: Cluster
) -> None:
    slow = RawTransactions(cluster, "slow")
    assert (await slow.init(timeout_ms=300)).error_code == NONE
    assert await slow.codes({0: [b"never"], 1: [b"never"]}) == [NONE, NONE]
    await until(lambda: _is_told(slow))
    (told,) = (await slow.produce({2: [b"never"]})).values()
    assert told.error_code == ErrorCode.TRANSACTION_ABORTABLE
    assert "timeout" in told.error_message
    assert (await slow.end(True)).error_code == ErrorCode.TRANSACTION_ABORTABLE
    assert (await slow.end(False)).error_code == NONE
    assert await slow.codes({0: [b"now"]}) == [NONE]
    assert (await slow.end(True)).error_code == NONE
    expected = {0: [b"now"], 1: [], 2: []}
    assert await becomes_committed(daemon.address, expected) == expected


async def _is_told(producer: RawTransactions) -> bool:
    return await producer.codes({0: [b"never"]}) == [ErrorCode.TRANSACTION_ABORTABLE]


@pytest.mark.parametrize("fence", [False, True])
async def test_an_administrator_aborts_a_transaction_and_its_producer_is_told_what_it_may_do(
    daemon: DaemonProcess, billing: RawTransactions, fence: bool
) -> None:
    assert await billing.codes({0: [b"never"]}) == [NONE]
    answer = await billing.abort_as_administrator(fence=fence)
    assert (answer.error_code, answer.aborted) == (NONE, True)
    code = ErrorCode.PRODUCER_FENCED if fence else ErrorCode.TRANSACTION_ABORTABLE
    assert await billing.codes({1: [b"never"]}) == [code]
    assert (await billing.end(True)).error_code == code
    assert (await billing.end(False)).error_code == (code if fence else NONE)
    if not fence:
        assert await billing.codes({1: [b"now"]}) == [NONE]
        assert (await billing.end(True)).error_code == NONE
    expected = {0: [], 1: [] if fence else [b"now"], 2: []}
    assert await becomes_committed(daemon.address, expected) == expected


async def test_what_overtakes_the_first_batch_comes_again_behind_it(
    daemon: DaemonProcess, billing: RawTransactions
) -> None:
    """As when the first one was too large: what was sent behind it is refused, and not the end of the transaction."""
    assert await billing.codes({0: [b"a"]}) == [NONE]
    assert await billing.codes({1: [b"c"]}, sequence=1) == [ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER]
    assert await billing.codes({1: [b"x" * 2_000_000]}) == [ErrorCode.MESSAGE_TOO_LARGE]
    assert await billing.codes({1: [b"c"]}, sequence=1) == [ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER]
    assert await billing.codes({1: [b"b"]}) == [NONE]
    assert await billing.codes({1: [b"c"]}) == [NONE]
    assert (await billing.end(True)).error_code == NONE
    expected = {0: [b"a"], 1: [b"b", b"c"], 2: []}
    assert await becomes_committed(daemon.address, expected) == expected


async def test_an_id_that_has_no_producer_writes_nothing(daemon: DaemonProcess, cluster: Cluster) -> None:
    stranger = RawTransactions(cluster, "stranger")
    stranger.is_now(10**6, 0)
    assert await stranger.codes({0: [b"x"]}) == [ErrorCode.INVALID_PRODUCER_ID_MAPPING]
    assert await stranger.codes({0: [b"x"]}, sequence=4) == [ErrorCode.INVALID_PRODUCER_ID_MAPPING]
    assert await RawTransactions(cluster, "").codes({0: [b"x"]}) == [ErrorCode.INVALID_RECORD]
    for transactional_id in ("", "x" * 2000):
        nameless = RawTransactions(cluster, transactional_id)
        nameless.is_now(10**6, 0)
        assert await nameless.codes({0: [b"x"]}) == [ErrorCode.INVALID_REQUEST]
    assert (await values(daemon.address, "t"))[0] == []


async def test_an_open_transaction_goes_on_after_a_sigkill(daemon: DaemonProcess, billing: RawTransactions) -> None:
    assert await billing.codes({0: [b"a"], 1: [b"b"]}) == [NONE, NONE]
    daemon.kill()
    daemon.start()
    assert await committed(daemon.address) == {0: [], 1: [], 2: []}
    async with Admin(daemon.address) as admin:  # its answer waits until the coordinators have read their logs
        assert [listed.state for listed in await admin.list_transactions()] == ["Ongoing"]
    assert await billing.codes({0: [b"c"], 2: [b"d"]}) == [NONE, NONE]
    assert (await billing.end(True)).error_code == NONE
    expected = {0: [b"a", b"c"], 1: [b"b"], 2: [b"d"]}
    assert await becomes_committed(daemon.address, expected) == expected


@pytest.mark.parametrize("commits", [True, False])
async def test_what_was_decided_before_a_sigkill_stands_and_a_repetition_is_told_so(
    daemon: DaemonProcess, billing: RawTransactions, commits: bool
) -> None:
    expected: dict[int, list[bytes]] = {0: [], 1: [], 2: []}
    for number in range(4):
        value = b"%d" % number
        assert await billing.codes({index: [value] for index in range(3)}) == [NONE] * 3
        before = billing.copy()
        assert (await billing.end(commits)).error_code == NONE
        daemon.kill()  # markers may be written, or some of them, or none
        daemon.start()
        repeated = await before.copy().end(commits)
        assert (repeated.error_code, repeated.producer_epoch) == (NONE, billing.epoch)
        settled = await before.init(again=True)
        assert (settled.error_code, settled.producer_epoch) == (NONE, billing.epoch)
        assert settled.previous_outcome == (OUTCOME_COMMITTED if commits else OUTCOME_ABORTED)
        if commits:
            expected = {index: [*kept, value] for index, kept in expected.items()}
        assert await becomes_committed(daemon.address, expected) == expected


async def test_a_timeout_goes_on_through_a_sigkill(daemon: DaemonProcess, cluster: Cluster) -> None:
    slow = RawTransactions(cluster, "slow")
    assert (await slow.init(timeout_ms=1500)).error_code == NONE
    assert await slow.codes({0: [b"never"]}) == [NONE]
    daemon.kill()
    daemon.start()
    await until(lambda: _is_told(slow))
    assert (await slow.end(True)).error_code == ErrorCode.TRANSACTION_ABORTABLE
    other = RawTransactions(cluster, "other")
    assert (await other.init()).error_code == NONE
    assert await other.codes({0: [b"seen"]}) == [NONE]
    assert (await other.end(True)).error_code == NONE
    expected = {0: [b"seen"], 1: [], 2: []}
    assert await becomes_committed(daemon.address, expected) == expected


async def test_a_clean_stop_answers_and_keeps_open_transactions(
    daemon: DaemonProcess, billing: RawTransactions
) -> None:
    assert await billing.codes({0: [b"a"]}) == [NONE]
    assert daemon.terminate() == 0
    daemon.start()
    assert await billing.codes({0: [b"b"]}) == [NONE]
    assert (await billing.end(True, version=7)).error_code == NONE
    assert (await billing.end(True, version=7)).committed_version == 7
    expected = {0: [b"a", b"b"], 1: [], 2: []}
    assert await becomes_committed(daemon.address, expected) == expected


async def code_once_loaded(producer: RawTransactions, partition: int, value: bytes) -> int:
    """What a batch is answered by a daemon that may just have been started."""
    code: int = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    while code == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:
        (code,) = await producer.codes({partition: [value]})
    return code


async def test_programs_are_told_the_truth_while_the_daemon_is_killed_again_and_again(
    daemon: DaemonProcess, cluster: Cluster
) -> None:
    """Several ids, late requests of each beside it. What was told to be committed is in the log as a whole; nothing else."""
    stored: dict[int, list[bytes]] = {0: [], 1: [], 2: []}
    done = asyncio.Event()
    kills = ended = 0

    async def work(name: int) -> None:
        nonlocal ended
        random, producer = Random(name), RawTransactions(cluster, f"id-{name}")
        assert (await producer.init()).error_code == NONE
        for number in count():
            if number >= 80 and kills >= 2:
                return
            values_by_partition: dict[int, list[bytes]] = {}
            for piece in range(random.randrange(1, 4)):
                index = random.randrange(3)
                value = b"%d-%d-%d" % (name, number, piece)
                assert await code_once_loaded(producer, index, value) == NONE
                values_by_partition.setdefault(index, []).append(value)
            late, commits = producer.copy(), random.random() < 0.7
            assert (await producer.end(commits)).error_code == NONE
            ended += 1
            if commits:
                for index, wanted in values_by_partition.items():
                    stored[index] += wanted
            elsewhere = next((index for index in range(3) if index not in values_by_partition), None)
            if elsewhere is not None:  # its transaction never was there
                assert await code_once_loaded(late, elsewhere, b"late") == ErrorCode.PRODUCER_FENCED

    async def kill() -> None:
        nonlocal kills
        random, before = Random(0), 0
        while not done.is_set():
            await asyncio.sleep(random.uniform(0.3, 0.9))
            if ended < before + 8:
                continue  # a slow machine, which has hardly done anything since the last kill
            before = ended
            await asyncio.to_thread(daemon.kill)
            await asyncio.to_thread(daemon.start)
            kills += 1

    killing = asyncio.create_task(kill())
    try:
        await asyncio.gather(*(work(name) for name in range(4)))
    finally:
        done.set()
        await killing
    assert kills >= 2
    await until(lambda: _are_stored(daemon.address, stored))
    found = await committed(daemon.address)
    for index, wanted in stored.items():
        assert sorted(value for value in found[index] if value) == sorted(wanted)
    everything = await values(daemon.address, "t")
    assert not any(b"late" in each for each in everything.values())


async def _are_stored(address: str, stored: dict[int, list[bytes]]) -> bool:
    found = await committed(address)
    return all(len(found[index]) >= len(wanted) for index, wanted in stored.items())
