"""Producers with a transactional id against a daemon over sockets: what they are told, and what readers then get."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from random import Random

import pytest

from client import (
    Admin,
    AlreadyCommittedError,
    ClosedError,
    CohortError,
    IllegalStateError,
    InvalidProducerIdMappingError,
    InvalidTransactionTimeoutError,
    MessageTooLargeError,
    Producer,
    ProducerFencedError,
    RequestTimedOutError,
    TopicPartition,
    TransactionAbortedError,
    TransactionUncertainError,
)
from client.transactions.ending import Outcome
from client.transactions.transaction import RecordFuture, Transaction
from coordinator import Coordinator
from coordinator.transactions.config import TransactionConfig
from protocol.messages import ApiKey
from tests.daemon_process import DaemonProcess
from tests.integration.answering_proxy import address, answered
from tests.integration.hostile_proxy import HostileProxy, Malice
from tests.integration.raw_transactions import becomes_committed

PARTITIONS = 2


@asynccontextmanager
async def daemon() -> AsyncIterator[str]:
    """The address of a daemon with topic "t"."""
    async with Coordinator() as coordinator:
        async with Admin(coordinator.address) as admin:
            await admin.create_topics({"t": PARTITIONS})
        yield coordinator.address


async def send(transaction: Transaction, *values: bytes) -> None:
    """Sends each value to each partition."""
    for value in values:
        for partition in range(PARTITIONS):
            await transaction.send("t", value, partition=partition)


async def fail(*_: object) -> None:
    """What a program does that fails."""
    raise KeyError("the program's own")


async def transact(
    producer: Producer, value: bytes, then: Callable[[Transaction], Awaitable[None]] | None = None
) -> Transaction:
    """A transaction that sends a value and does something more before it commits."""
    async with producer.transaction() as transaction:
        await send(transaction, value)
        if then is not None:
            await then(transaction)
    return transaction


async def assert_committed(at: str, *values: bytes) -> None:
    """These are what readers get in each partition, in this order."""
    expected = {partition: list(values) for partition in range(PARTITIONS)}
    assert await becomes_committed(at, expected, "t") == expected


# --- commit and abort -----------------------------------------------------------------------------------------------


async def test_what_a_block_sends_is_readable_when_it_is_left_and_not_when_it_fails() -> None:
    async with daemon() as at, Producer(at, transactional_id="id") as producer:
        async with producer.transaction() as first:
            await send(first, b"a", b"b")
            (stored,) = await first.send_many("t", [b"c"], partition=0)
            await first.send_many("t", [b"c"], partition=1)
            assert stored.offset == 2
            assert (first.outcome, first.failure) == (None, None)
        assert first.outcome == "committed"
        futures: list[RecordFuture] = []

        async def fails(second: Transaction) -> None:
            await producer.send_and_wait("t", b"no", partition=0)
            futures.append(await producer.send("t", b"no", partition=1))
            await fail()

        with pytest.raises(KeyError):
            await transact(producer, b"no", fails)
        assert await producer.settle() == "aborted"
        with pytest.raises(TransactionAbortedError, match="the program aborted it by KeyError"):
            await futures[0]
        async with producer.transaction() as third:
            await send(third, b"d")
        await assert_committed(at, b"a", b"b", b"c", b"d")


async def test_the_names_of_aiokafka() -> None:
    async with daemon() as at, Producer(at, transactional_id="id") as producer:
        await producer.begin_transaction()
        for partition in range(PARTITIONS):
            await producer.send("t", b"a", partition=partition)
        await producer.commit_transaction()
        await producer.begin_transaction()
        await producer.send("t", b"no")
        await producer.abort_transaction()
        await producer.abort_transaction()  # it is aborted already
        with pytest.raises(IllegalStateError, match="this transaction is aborted already"):
            await producer.commit_transaction()
        await assert_committed(at, b"a")
        assert await producer.settle() == "aborted"


async def test_records_are_sent_in_a_transaction_only_and_one_is_open_at_a_time() -> None:
    async with daemon() as at, Producer(at, transactional_id="id") as producer:
        for sending in (producer.send("t", b"no"), producer.send_many("t", [b"no"])):
            with pytest.raises(IllegalStateError, match=r"inside 'async with producer.transaction\(\)'"):
                await sending
        async with producer.transaction() as first:
            await send(first, b"a")
            with pytest.raises(IllegalStateError, match="commit or abort it first"):
                await producer.begin_transaction()
        with pytest.raises(IllegalStateError, match="this transaction is not open"):
            await first.send("t", b"no")
        with pytest.raises(IllegalStateError, match="a transaction is begun once"):
            await first.__aenter__()
        with pytest.raises(IllegalStateError, match="inside"):
            await producer.send("t", b"no")
        await assert_committed(at, b"a")
    async with daemon() as at, Producer(at) as plain:
        with pytest.raises(IllegalStateError, match="give it a transactional_id"):
            plain.transaction()


async def test_an_empty_transaction_asks_nobody_and_one_that_the_program_ended_itself_is_left_alone() -> None:
    async with answered() as proxy, Producer(address(proxy), transactional_id="id") as producer:
        proxy.unanswered = {ApiKey.END_TXN}
        async with producer.transaction() as empty:
            pass
        assert empty.outcome == "committed"
        left = producer.transaction()
        with pytest.raises(KeyError):
            await _left_by_a_failure(left)
        assert left.outcome == "aborted"
        proxy.unanswered = set()
        async with producer.transaction() as ended:
            await ended.send("t", b"a")
            await producer.commit_transaction()
        assert ended.outcome == "committed"


async def _left_by_a_failure(transaction: Transaction) -> None:
    async with transaction:
        raise KeyError


async def test_a_program_that_commits_while_another_task_sends() -> None:
    async with daemon() as at, Producer(at, transactional_id="id", buffer_bytes=4096) as producer:
        transaction = await producer.begin_transaction()
        stored: list[bytes] = []

        async def sends() -> None:
            for number in range(10_000):
                await producer.send("t", b"%d" % number + bytes(500), partition=0)
                stored.append(b"%d" % number + bytes(500))

        sending = asyncio.create_task(sends())
        await asyncio.sleep(0.1)
        await producer.commit_transaction()
        with pytest.raises(IllegalStateError):
            await sending
        assert transaction.outcome == "committed"
        assert stored
        async with producer.transaction() as after:
            await after.send("t", b"after", partition=0)
        found = await becomes_committed(at, {0: [*stored, b"after"], 1: []}, "t")
        assert found[0] == [*stored, b"after"], "what was taken is in the transaction, and nothing of it in the next"


# --- versions -------------------------------------------------------------------------------------------------------


async def test_a_version_is_committed_once_whoever_repeats_it() -> None:
    async with daemon() as at:
        async with Producer(at, transactional_id="id") as producer:
            assert producer.committed_version == -1
            for version in range(3):
                async with producer.transaction(version=version) as transaction:
                    await send(transaction, b"%d" % version)
                assert producer.committed_version == version
        async with Producer(at, transactional_id="id") as producer:
            assert producer.committed_version == 2
            for version in range(3):
                with pytest.raises(AlreadyCommittedError) as caught:
                    producer.transaction(version=version)
                assert (caught.value.version, caught.value.committed_version) == (version, 2)
            async with producer.transaction(version=3) as transaction:
                await send(transaction, b"3")
            async with producer.transaction(version=9):
                """Work without an output."""
            assert producer.committed_version == 9
            with pytest.raises(ValueError, match="version is -3"):
                producer.transaction(version=-3)
        await assert_committed(at, b"0", b"1", b"2", b"3")


# --- aborted by others, fenced --------------------------------------------------------------------------------------


async def test_a_producer_that_is_replaced_is_told_and_does_nothing_more() -> None:
    async with daemon() as at, Producer(at, transactional_id="id") as old:
        transactions: list[Transaction] = []

        async def another_comes(transaction: Transaction) -> None:
            transactions.append(transaction)
            await old.flush()
            async with Producer(at, transactional_id="id") as new:
                await transact(new, b"a")

        with pytest.raises(ProducerFencedError):
            await transact(old, b"no", another_comes)
        assert transactions[0].outcome == "aborted"
        with pytest.raises(ProducerFencedError):
            await old.begin_transaction()
        with pytest.raises(ProducerFencedError):
            await old.send("t", b"no")
        await assert_committed(at, b"a")


async def test_a_producer_whose_id_is_forgotten_does_nothing_more(monkeypatch: pytest.MonkeyPatch) -> None:
    often = partial(TransactionConfig, transactional_id_expiration_check_interval_ms=100)
    monkeypatch.setattr("coordinator.daemon.TransactionConfig", often)
    async with Coordinator(transactional_id_expiration_ms=1) as coordinator, Admin(coordinator.address) as admin:
        await admin.create_topics({"t": PARTITIONS})
        async with Producer(coordinator.address, transactional_id="id") as producer:
            async with asyncio.timeout(60):
                while await admin.list_transactions():
                    await asyncio.sleep(0.05)
            transactions: list[Transaction] = []

            async def note(transaction: Transaction) -> None:
                transactions.append(transaction)

            with pytest.raises(InvalidProducerIdMappingError) as told:
                await transact(producer, b"no", note)
            assert not told.value.abortable
            assert not told.value.retriable
            assert transactions[0].outcome != "committed"
            with pytest.raises(InvalidProducerIdMappingError):
                await producer.begin_transaction()
            with pytest.raises(InvalidProducerIdMappingError):
                await producer.send("t", b"no")
            assert await admin.list_transactions() == [], "it has not taken the id anew"
        await assert_committed(coordinator.address)


async def test_a_transaction_that_takes_too_long_is_aborted_and_done_again() -> None:
    async with daemon() as at, Producer(at, transactional_id="id", transaction_timeout_ms=300) as producer:

        async def lingers(transaction: Transaction) -> None:
            await producer.flush()
            await asyncio.sleep(1.0)

        async def lingers_and_sends(transaction: Transaction) -> None:
            await lingers(transaction)
            await send(transaction, b"neither")

        async def lingers_and_waits(transaction: Transaction) -> None:
            await lingers(transaction)
            await (await transaction.send("t", b"no", partition=0))

        async def lingers_and_sends_offsets(transaction: Transaction) -> None:
            await lingers(transaction)
            await transaction.send_offsets({TopicPartition("t", 0): 1}, "g")

        for lateness in (lingers, lingers_and_sends, lingers_and_waits, lingers_and_sends_offsets):
            with pytest.raises(TransactionAbortedError, match="TRANSACTION_ABORTABLE") as caught:
                await transact(producer, b"no", lateness)
            assert caught.value.abortable
            assert await producer.settle() == "aborted"
        await transact(producer, b"a")
        await assert_committed(at, b"a")
        with pytest.raises(InvalidTransactionTimeoutError):
            await Producer(at, transactional_id="other", transaction_timeout_ms=2**31 - 1).start()


async def test_a_record_that_fails_aborts_the_transaction_and_says_why() -> None:
    async with Coordinator() as coordinator:
        at = coordinator.address
        async with Admin(at) as admin:
            await admin.create_topics({"t": PARTITIONS}, config={"max.message.bytes": 2000})
        async with Producer(at, transactional_id="id") as producer:
            heard: list[CohortError] = []

            async def sends_too_much(transaction: Transaction) -> None:
                transaction.on_failure = heard.append
                await producer.send_and_wait("t", b"no", partition=0)
                future = await transaction.send("t", bytes(5000), partition=1)
                with pytest.raises(MessageTooLargeError):
                    await future
                assert heard == [transaction.failure]
                with pytest.raises(TransactionAbortedError):
                    await transaction.send("t", b"no")

            with pytest.raises(TransactionAbortedError) as caught:
                await transact(producer, b"no", sends_too_much)
            assert isinstance(caught.value.__cause__, MessageTooLargeError)
            assert await producer.settle() == "aborted"

            async def sends_too_much_again(transaction: Transaction) -> None:
                transaction.on_failure = [].remove  # type: ignore[assignment]
                await transaction.send("t", bytes(5000), partition=1)

            with pytest.raises(TransactionAbortedError):  # and not what the program's own callback raised
                await transact(producer, b"no", sends_too_much_again)
            async with producer.transaction() as transaction:
                await send(transaction, b"a")
                for _ in range(30):  # batches that are too large, of records that are not
                    await transaction.send("t", bytes(200), partition=1)
        expected: dict[int, Sequence[bytes]] = {0: [b"a"], 1: [b"a", *[bytes(200)] * 30]}
        assert await becomes_committed(at, expected, "t") == expected


# --- answers that are lost ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [ApiKey.PRODUCE, ApiKey.END_TXN, ApiKey.INIT_PRODUCER_ID], ids=lambda kind: kind.name)
async def test_answers_that_are_lost_are_told_again(kind: ApiKey) -> None:
    async with answered() as proxy:
        proxy.unanswered = {kind}

        async def hear_again() -> None:
            while True:
                await asyncio.sleep(0.4)
                proxy.unanswered = set() if proxy.unanswered else {kind}

        hearing = asyncio.create_task(hear_again())
        async with Producer(address(proxy), transactional_id="id", request_timeout_ms=300) as producer:
            for number in range(3):
                await transact(producer, b"%d" % number)
                with pytest.raises(KeyError):
                    await transact(producer, b"no", fail)
                assert await producer.settle() == "aborted"
        hearing.cancel()
        await asyncio.gather(hearing, return_exceptions=True)
        proxy.unanswered = set()
        await assert_committed(address(proxy), b"0", b"1", b"2")


def outcome(transaction: Transaction) -> Outcome | None:
    return transaction.outcome


async def test_a_commit_without_an_answer_is_uncertain_until_it_is_settled() -> None:
    async with answered() as proxy:
        producer = Producer(address(proxy), transactional_id="id", request_timeout_ms=200, delivery_timeout_ms=600)
        async with producer:
            for way in ("settle", "again", "next"):
                proxy.unanswered = {ApiKey.END_TXN}
                transaction = await producer.begin_transaction()
                await send(transaction, way.encode())
                with pytest.raises(TransactionUncertainError, match=r"await producer.settle\(\)"):
                    await producer.commit_transaction()
                assert outcome(transaction) is None
                assert await producer.settle() is None
                with pytest.raises(TransactionUncertainError):
                    await producer.begin_transaction()
                with pytest.raises(IllegalStateError, match="not answered yet"):
                    await producer.abort_transaction()
                proxy.unanswered = set()
                if way == "settle":
                    assert await producer.settle() == "committed"
                elif way == "again":
                    await producer.commit_transaction()
                else:
                    async with producer.transaction():
                        """It finds out what became of the one before."""
                assert outcome(transaction) == "committed"
                assert await producer.settle() == "committed"
        await assert_committed(address(proxy), b"settle", b"again", b"next")


async def test_an_abort_without_an_answer_is_an_abort() -> None:
    async with answered() as proxy:
        producer = Producer(address(proxy), transactional_id="id", request_timeout_ms=200, delivery_timeout_ms=600)
        async with producer:
            transaction = await producer.begin_transaction()
            await send(transaction, b"no")
            await producer.flush()
            proxy.unanswered = {ApiKey.END_TXN}
            await producer.abort_transaction()
            assert transaction.outcome == "aborted"
            with pytest.raises(RequestTimedOutError, match="which is aborted"):
                await producer.begin_transaction()
            proxy.unanswered = set()
            async with producer.transaction() as transaction:
                await send(transaction, b"a")
        await assert_committed(address(proxy), b"a")


KINDS = {
    "answers are lost": Malice(answer_lost=0.15),
    "requests come twice": Malice(twice=0.5),
    "requests come late, behind others": Malice(late=0.3),
    "requests never come": Malice(never=0.1),
    "connections break": Malice(broken=0.02),
    "all of it": Malice(twice=0.2, late=0.1, never=0.05, answer_lost=0.05, broken=0.01),
}


async def transactions(producer: Producer, random: Random, count: int) -> tuple[list[bytes], list[Transaction]]:
    """Runs transactions that end in every way; what readers have to get of them, and those that were uncertain."""
    expected: list[bytes] = []
    ended: list[tuple[bytes, Transaction]] = []
    for number in range(count):
        value = b"%d" % number
        try:
            async with producer.transaction() as transaction:
                ended.append((value, transaction))
                await send(transaction, value)
                if random.random() < 0.3:
                    raise KeyError
                if random.random() < 0.3:
                    commit = asyncio.ensure_future(producer.commit_transaction())
                    await asyncio.sleep(random.choice((0.0, 0.001, 0.005)))
                    commit.cancel()
                    await asyncio.gather(commit, return_exceptions=True)
                    if random.random() < 0.5:
                        await producer.settle()
        except (KeyError, TransactionAbortedError, TransactionUncertainError):
            continue
    while await producer.settle() is None:
        await asyncio.sleep(0.1)
    for value, transaction in ended:
        assert transaction.outcome is not None
        if transaction.outcome == "committed":
            expected.append(value)
    return expected, [transaction for _, transaction in ended]


@pytest.mark.parametrize("kind", KINDS)
async def test_what_a_program_is_told_is_what_readers_get(kind: str) -> None:
    random = Random(kind)
    async with (
        HostileProxy(Malice(), random) as proxy,
        Coordinator(advertised_host="127.0.0.1", advertised_port=proxy.port) as coordinator,
    ):
        proxy.upstream_port = int(coordinator.address.rpartition(":")[2])
        async with Admin(coordinator.address) as admin:
            await admin.create_topics({"t": PARTITIONS})
        async with Producer(
            f"127.0.0.1:{proxy.port}", transactional_id="id", request_timeout_ms=300, random=random
        ) as producer:
            proxy.malice = Malice(
                **{name: getattr(KINDS[kind], name) for name in ("twice", "late", "never", "answer_lost", "broken")},
                kinds=frozenset({ApiKey.PRODUCE, ApiKey.END_TXN}),
            )
            expected, _ = await transactions(producer, random, 60)
        assert proxy.done, "the network did nothing wrong"
        proxy.malice = Malice()
        assert expected
        await assert_committed(coordinator.address, *expected)


async def test_also_when_the_daemon_is_killed_meanwhile(tmp_path: Path) -> None:
    random = Random("killed")
    with DaemonProcess(tmp_path) as process:
        async with Admin(process.address) as admin:
            await admin.create_topics({"t": PARTITIONS})
        async with Producer(process.address, transactional_id="id", request_timeout_ms=2_000) as producer:
            running = asyncio.create_task(transactions(producer, random, 400))
            kills = 0
            while not running.done() and kills < 4:
                await asyncio.wait([running], timeout=random.uniform(0.1, 0.4))
                await asyncio.to_thread(process.kill)
                await asyncio.to_thread(process.start)
                kills += 1
            expected, _ = await running
            assert kills
        await assert_committed(process.address, *expected)


@pytest.mark.parametrize("step", ["begun", "sent", "stored", "committing", "committed"])
async def test_a_sigkill_of_the_daemon_at_each_step(step: str, tmp_path: Path) -> None:
    with DaemonProcess(tmp_path) as process:
        async with Admin(process.address) as admin:
            await admin.create_topics({"t": PARTITIONS})
        async with Producer(process.address, transactional_id="id", request_timeout_ms=2_000) as producer:

            async def restart() -> None:
                await asyncio.to_thread(process.kill)
                await asyncio.to_thread(process.start)

            async with producer.transaction() as before:
                await send(before, b"before")
            transaction = await producer.begin_transaction()
            if step == "begun":
                await restart()
            await send(transaction, b"a")
            if step == "sent":
                await restart()
            await producer.flush()
            if step == "stored":
                await restart()
            commit = asyncio.create_task(producer.commit_transaction())
            if step == "committing":
                await asyncio.sleep(0.002)
                await restart()
            await commit
            if step == "committed":
                await restart()
            assert transaction.outcome == "committed"
            async with producer.transaction() as after:
                await send(after, b"after")
        await assert_committed(process.address, b"before", b"a", b"after")


# --- cancelled, stopped ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("after_ms", [0, 0.5, 1, 2, 4, 8, 16, 40])
async def test_a_commit_that_is_cancelled_is_found_out_by_what_comes_next(after_ms: float) -> None:
    async with daemon() as at, Producer(at, transactional_id="id") as producer:
        expected = []
        for number in range(6):
            transaction = await producer.begin_transaction()
            await send(transaction, b"%d" % number)
            commit = asyncio.create_task(producer.commit_transaction())
            await asyncio.sleep(after_ms / 1000)
            commit.cancel()
            await asyncio.gather(commit, return_exceptions=True)
            if number % 2 and producer._transactions is not None and not producer._transactions.is_open(transaction):
                await producer.settle()
                assert transaction.outcome is not None
            elif producer._transactions is not None and producer._transactions.is_open(transaction):
                await producer.abort_transaction()  # the commit was cancelled before it began
            await producer.begin_transaction()
            assert transaction.outcome is not None
            await producer.abort_transaction()
            if transaction.outcome == "committed":
                expected.append(b"%d" % number)
        await assert_committed(at, *expected)


async def test_a_block_that_is_cancelled_is_aborted_and_not_held_up() -> None:
    async with answered() as proxy:
        async with Producer(address(proxy), transactional_id="id", request_timeout_ms=500) as producer:
            transaction = producer.transaction()

            async def works() -> None:
                async with transaction:
                    await send(transaction, b"no")
                    await producer.flush()
                    proxy.unanswered = {ApiKey.END_TXN}
                    await asyncio.sleep(60)

            with pytest.raises(TimeoutError):
                await asyncio.wait_for(works(), 0.5)
            assert transaction.outcome == "aborted"
            proxy.unanswered = set()
            async with producer.transaction() as after:
                await send(after, b"a")
        await assert_committed(address(proxy), b"a")


async def test_stop_aborts_what_is_open() -> None:
    async with daemon() as at:
        producer = Producer(at, transactional_id="id")
        await producer.start()
        transaction = await producer.begin_transaction()
        future = await transaction.send("t", b"no")
        await producer.stop()
        assert transaction.outcome == "aborted"
        with pytest.raises(TransactionAbortedError):
            await future
        for call in (producer.begin_transaction(), producer.settle(), transaction.send("t", b"no")):
            with pytest.raises(ClosedError):
                await call
        async with Producer(at, transactional_id="id") as after, after.transaction() as transaction:
            await send(transaction, b"a")
        await assert_committed(at, b"a")


async def test_a_stop_that_has_no_time_leaves_the_rest_to_the_next_producer() -> None:
    async with answered() as proxy:
        producer = Producer(address(proxy), transactional_id="id")
        await producer.start()
        transaction = await producer.begin_transaction()
        await send(transaction, b"no")
        await producer.flush()
        proxy.unanswered = {ApiKey.END_TXN}
        async with asyncio.timeout(20):
            await producer.stop(timeout=0.2)
        assert transaction.outcome == "aborted"
        proxy.unanswered = set()
        async with Producer(address(proxy), transactional_id="id") as after, after.transaction() as transaction:
            await send(transaction, b"a")
        await assert_committed(address(proxy), b"a")


def test_a_transactional_id_needs_every_acknowledgement() -> None:
    for wrong in ({"acks": 1}, {"enable_idempotence": False}, {"transaction_timeout_ms": 0}):
        with pytest.raises(ValueError, match=r"acks='all'|transaction_timeout_ms"):
            Producer(transactional_id="id", **wrong)
    for name in ("", "x" * 1025, 7, "half a pair \ud800"):
        with pytest.raises(ValueError, match="transactional_id is"):
            Producer(transactional_id=name)  # type: ignore[arg-type]


async def test_a_stopped_producer_gives_no_transaction() -> None:
    async with daemon() as at, Producer(at, transactional_id="id") as producer:
        await producer.stop()
        with pytest.raises(ClosedError, match="make a new one"):
            producer.transaction()
