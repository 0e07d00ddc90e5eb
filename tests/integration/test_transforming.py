"""``process(handler, producer=...)``: each record counts once, whatever its handler, the group or a transaction meets."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
import structlog

from client import (
    Admin,
    ClosedError,
    Consumer,
    ConsumerRecord,
    CooperativeStickyAssignor,
    DeadLetter,
    HandlerError,
    IllegalStateError,
    MessageTooLargeError,
    Output,
    Producer,
    ProducerFencedError,
    RangeAssignor,
    Retry,
    TopicPartition,
)
from client.transactions.transaction import Transaction
from coordinator import Coordinator
from protocol.messages import ApiKey
from tests.integration.answering_proxy import address as proxy_address
from tests.integration.answering_proxy import answered
from tests.integration.consuming import create, fill, take, until
from tests.integration.transforming import (
    GROUP,
    SOURCE,
    TARGET,
    answers,
    committed,
    end,
    expected,
    member,
    producer,
    seen,
    until_done,
)

NUMBERS = range(400)
ALL = {0: 100, 1: 100, 2: 100, 3: 100}


@pytest.fixture
async def address() -> AsyncIterator[str]:
    """A daemon with the numbers from 0 to 399 in four partitions, and a topic of two partitions for what is made of them."""
    async with Coordinator() as c:
        await create(c.address, **{SOURCE: 4, TARGET: 2, "dead": 1})
        await fill(c.address, SOURCE, NUMBERS)
        yield c.address


async def test_outputs_and_offsets_are_committed_together(address: str) -> None:
    async with member(address, enable_auto_commit=False) as consumer, producer(address, "p") as sending:
        processing = asyncio.create_task(consumer.process(answers, producer=sending, commit_interval_ms=20))
        await until_done(address, ALL)
        assert await seen(address) == expected(NUMBERS)
        assert await consumer.lag() == dict.fromkeys(consumer.assignment(), 0)
        with pytest.raises(IllegalStateError, match="commits offsets together with its outputs"):
            await consumer.commit()
        with pytest.raises(IllegalStateError, match="end it first"):
            consumer.unsubscribe()
        await end(processing)
        async with sending.transaction() as transaction:  # nothing is left open
            await transaction.send(TARGET, b"by hand")
        await consumer.commit()


@pytest.mark.parametrize("kind", ["none", "one", "generator", "coroutine"])
async def test_what_a_handler_may_return(address: str, kind: str) -> None:
    def one(record: ConsumerRecord) -> Output:
        return Output(TARGET, record.value)

    def generator(record: ConsumerRecord) -> Iterator[Output]:
        yield from answers(record)

    async def coroutine(record: ConsumerRecord) -> tuple[Output, ...]:
        await asyncio.sleep(0)
        return tuple(answers(record))

    handlers: dict[str, Any] = {"none": lambda _: None, "one": one, "generator": generator, "coroutine": coroutine}
    async with member(address) as consumer, producer(address, "p") as sending:
        processing = asyncio.create_task(consumer.process(handlers[kind], producer=sending))
        await until_done(address, ALL)
        await end(processing)
    count = {"none": 0, "one": 400}.get(kind, 800)
    found = await seen(address)
    assert found.total() == count
    assert set(found.values()) <= {1}


@pytest.mark.parametrize("returned", [b"bytes", 7, [Output(TARGET, "text")], [Output(TARGET, b"x", partition=9)]])
async def test_what_cannot_be_sent_is_an_error_of_the_handler(address: str, returned: object) -> None:
    async with member(address) as consumer, producer(address, "p") as sending:
        with pytest.raises(HandlerError, match="offset 0 of numbers-"):
            await consumer.process(lambda _: returned, producer=sending)
    assert not await seen(address)


@pytest.mark.parametrize(
    ("returned", "named"),
    [(b"bytes", "returned b'bytes'"), ("text", "returned 'text'"), ((TARGET, b"x"), "returned a tuple with 'answers'")],
)
async def test_an_output_of_a_wrong_kind_is_named(address: str, returned: object, named: str) -> None:
    async with member(address) as consumer, producer(address, "p") as sending:
        with pytest.raises(HandlerError) as caught:
            await consumer.process(lambda _: returned, producer=sending)
    assert named in str(caught.value.__cause__)


async def test_a_handler_that_fails_leaves_nothing_behind(address: str) -> None:
    failing = True

    async def handler(record: ConsumerRecord) -> list[Output]:
        await asyncio.sleep(0.001)
        if failing and record.partition == 1 and record.offset == 20:
            raise ArithmeticError("no")
        return answers(record)

    async with member(address) as consumer, producer(address, "p") as sending:
        with pytest.raises(HandlerError, match="offset 20 of numbers-1"):
            await consumer.process(handler, producer=sending, commit_interval_ms=10)
        stored = await committed(address)
        assert stored[1] == 20
        done = [4 * offset + partition for partition, end in stored.items() for offset in range(end)]
        assert await seen(address) == expected(done)
        failing = False
        processing = asyncio.create_task(consumer.process(handler, producer=sending, commit_interval_ms=10))
        await until_done(address, ALL)
        await end(processing)
    assert await seen(address) == expected(NUMBERS)


async def test_dead_letters_and_skipped_records_are_part_of_the_transaction(address: str) -> None:
    def handler(record: ConsumerRecord) -> list[Output]:
        if int(record.value) % 10 == 3:
            raise ArithmeticError("no")
        if int(record.value) % 10 == 5:
            raise KeyError("not here")
        return answers(record)

    def on_error(record: ConsumerRecord, error: Exception) -> Any:
        return (
            Retry(attempts=2, initial_ms=1, then=DeadLetter("dead")) if isinstance(error, ArithmeticError) else "skip"
        )

    settings: dict[str, Any] = {"value_serializer": lambda value: value, "key_serializer": lambda key: key}
    async with member(address) as consumer, producer(address, "p", **settings) as sending:
        processing = asyncio.create_task(consumer.process(handler, producer=sending, on_error=on_error))
        await until_done(address, ALL)
        await end(processing)
    assert await seen(address) == expected(number for number in NUMBERS if number % 10 not in (3, 5))
    assert await seen(address, topic="dead") == {b"%d" % number: 1 for number in NUMBERS if number % 10 == 3}


async def test_cancelled_handlers_leave_nothing_behind_and_finished_ones_are_committed(address: str) -> None:
    begun: list[int] = []

    async def handler(record: ConsumerRecord) -> list[Output]:
        begun.append(int(record.value))
        if record.offset == 3:
            await asyncio.sleep(60)
        return answers(record)

    async with member(address, revoke_grace_ms=50) as consumer, producer(address, "p") as sending:
        processing = asyncio.create_task(consumer.process(handler, producer=sending, commit_interval_ms=2_000))
        await until(lambda: len(begun) == 16)
        await end(processing)
        assert await committed(address) == dict.fromkeys(range(4), 3)
        assert await seen(address) == expected(range(12))
    assert await seen(address, "read_uncommitted") == expected(range(12)), "nothing else was even sent"


@pytest.mark.parametrize("assignor", [RangeAssignor, CooperativeStickyAssignor])
async def test_members_come_and_go(address: str, assignor: type) -> None:
    """Ten members, two or three at a time; each leaves in the middle of its work."""

    async def handler(record: ConsumerRecord) -> list[Output]:
        await asyncio.sleep(0.002)
        return answers(record)

    async def work(name: str, seconds: float) -> None:
        consumer = member(address, assignors=[assignor], revoke_grace_ms=100)
        async with producer(address, name) as sending, consumer:
            processing = asyncio.create_task(consumer.process(handler, producer=sending, commit_interval_ms=30))
            await asyncio.wait([processing], timeout=seconds)
            await consumer.stop()
            await processing

    async with asyncio.TaskGroup() as members:
        for number in range(8):
            members.create_task(work(f"p{number}", 0.3 + 0.1 * (number % 3)))
            await asyncio.sleep(0.15)
    last = asyncio.create_task(work("last", 10))
    await until_done(address, ALL)
    await end(last)
    assert await seen(address) == expected(NUMBERS)


async def test_an_administrator_aborts_and_the_work_is_done_again(address: str) -> None:
    calls = 0

    async def handler(record: ConsumerRecord) -> list[Output]:
        nonlocal calls
        calls += 1
        await asyncio.sleep(0.005)
        return answers(record)

    async with member(address) as consumer, producer(address, "p") as sending, Admin(address) as admin:
        with structlog.testing.capture_logs() as logs:
            processing = asyncio.create_task(consumer.process(handler, producer=sending, commit_interval_ms=200))
            for _ in range(3):
                await until(lambda wanted=calls + 40: calls >= wanted)  # type: ignore[misc]
                await admin.abort_transaction("p")
            await until_done(address, ALL)
            await end(processing)
        assert any(line["event"] == "transaction_aborted" for line in logs)
        assert calls > len(NUMBERS)
    assert await seen(address) == expected(NUMBERS)
    assert (await seen(address, "read_uncommitted")).total() > 2 * len(NUMBERS)


async def test_a_fenced_producer_ends_its_process_and_its_successor_goes_on(address: str) -> None:
    async def handler(record: ConsumerRecord) -> list[Output]:
        await asyncio.sleep(0.002)
        return answers(record)

    async with member(address) as consumer, producer(address, "p") as first:
        processing = asyncio.create_task(consumer.process(handler, producer=first, commit_interval_ms=50))
        await asyncio.sleep(0.2)
        async with producer(address, "p") as second:
            with pytest.raises(ProducerFencedError):
                await processing
            processing = asyncio.create_task(consumer.process(handler, producer=second, commit_interval_ms=50))
            await until_done(address, ALL)
            await end(processing)
    assert await seen(address) == expected(NUMBERS)


async def test_an_output_that_the_daemon_refuses_for_good_is_raised(address: str) -> None:
    async with Admin(address) as admin:
        await admin.alter_topic_config(TARGET, {"max.message.bytes": 2_000})
    async with member(address) as consumer, producer(address, "p") as sending:

        def handler(record: ConsumerRecord) -> list[Output]:
            large = [Output(TARGET, bytes(3_000))] if (record.partition, record.offset) == (2, 17) else []
            return [*answers(record), *large]

        with pytest.raises(MessageTooLargeError, match="answers") as caught:
            await consumer.process(handler, producer=sending)
        assert "it is an output of the record at offset 17 of numbers-2" in caught.value.__notes__
        processing = asyncio.create_task(consumer.process(answers, producer=sending))
        await until_done(address, ALL)
        await end(processing)
    assert await seen(address) == expected(NUMBERS)


async def test_a_member_that_lost_its_partitions_commits_nothing_of_them(address: str) -> None:
    """The group takes the member for dead while its handlers go on; what they make does not count."""
    async with member(address) as first, producer(address, "p1") as sending, Admin(address) as admin:
        processing = asyncio.create_task(
            first.process(slowly(answers, 0.02), producer=sending, commit_interval_ms=2_000)
        )
        await until(lambda: sum(state.done for state in first._assignment.states.values()) > 20)
        await admin.remove_members(GROUP, first.group_metadata().member_id)
        async with member(address) as second, producer(address, "p2") as other:
            helping = asyncio.create_task(second.process(answers, producer=other))
            await until_done(address, ALL)
            await end(helping)
        await end(processing)
    assert await seen(address) == expected(NUMBERS)


def slowly(handler: Any, seconds: float) -> Any:
    async def slow(record: ConsumerRecord) -> Any:
        await asyncio.sleep(seconds)
        return handler(record)

    return slow


async def test_a_commit_halts_no_handler_and_holds_back_what_comes_meanwhile(
    address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[int] = []
    during: list[int] = []

    async def handler(record: ConsumerRecord) -> list[Output]:
        calls.append(int(record.value))
        await asyncio.sleep(0.001)
        return answers(record)

    async with member(address) as consumer, producer(address, "p") as sending:
        assert sending._transactions is not None
        commit = sending._transactions.commit

        async def slow_commit(transaction: Transaction) -> None:
            before, queued = len(calls), sending._queues.records()
            await asyncio.sleep(0.05)
            during.append(len(calls) - before)
            assert sending._queues.records() <= queued, "what comes later is held back"
            await commit(transaction)

        monkeypatch.setattr(sending._transactions, "commit", slow_commit)
        processing = asyncio.create_task(consumer.process(handler, producer=sending, commit_interval_ms=20))
        await until_done(address, ALL)
        await end(processing)
    assert max(during) > 8, "more than one record of each partition"
    assert await seen(address) == expected(NUMBERS)


async def test_a_small_buffer_makes_handlers_wait_and_loses_nothing(address: str) -> None:
    async with member(address) as consumer, producer(address, "p", buffer_bytes=2_000, batch_size=500) as sending:
        processing = asyncio.create_task(consumer.process(answers, producer=sending))
        await until_done(address, ALL)
        await end(processing)
        assert sending._pool.used == 0
    assert await seen(address) == expected(NUMBERS)


async def test_a_position_that_is_sought_is_what_is_committed(address: str) -> None:
    async with member(address) as consumer, producer(address, "p") as sending:

        def handler(record: ConsumerRecord) -> list[Output]:
            if record.offset == 10:
                consumer.seek(TopicPartition(SOURCE, record.partition), 90)
            return answers(record)

        processing = asyncio.create_task(consumer.process(handler, producer=sending))
        await until_done(address, ALL)
        await end(processing)
    assert await seen(address) == expected([*range(44), *range(360, 400)])


async def test_a_position_that_has_to_be_looked_up_is_waited_for(address: str) -> None:
    async with member(address) as consumer, producer(address, "p") as sending:

        async def handler(record: ConsumerRecord) -> list[Output]:
            if record.offset == 10:
                await consumer.seek_to_end(TopicPartition(SOURCE, record.partition))
            return answers(record)

        processing = asyncio.create_task(consumer.process(handler, producer=sending, commit_interval_ms=5))
        await until_done(address, ALL)
        await end(processing)
    assert await seen(address) == expected(range(44))


async def test_what_was_held_back_when_process_ends_is_not_done(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """No transaction can begin, and automatic commits follow: they must not pass records whose outputs were never sent."""
    handled: list[int] = []

    def handler(record: ConsumerRecord) -> list[Output]:
        handled.append(int(record.value))
        return answers(record)

    async def never(_: object) -> None:
        await asyncio.Event().wait()

    async with (
        member(address, auto_commit_interval_ms=20, request_timeout_ms=500) as consumer,
        producer(address, "p") as sending,
    ):
        with monkeypatch.context() as patch:
            patch.setattr(sending._transactions, "begin", never)
            processing = asyncio.create_task(consumer.process(handler, producer=sending))
            await until(lambda: len(handled) > 20)
            await end(processing)
        await asyncio.sleep(0.2)
        assert not any((await committed(address)).values())
        assert sending._pool.used == 0
        processing = asyncio.create_task(consumer.process(answers, producer=sending))
        await until_done(address, ALL)
        await end(processing)
    assert await seen(address) == expected(NUMBERS)


async def test_a_commit_that_took_effect_unheard_is_not_done_again(
    address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The producer is at its end, and does not know what became of its last commit: the group does."""
    async with member(address) as consumer, producer(address, "p") as sending, producer(address, "q") as other:
        assert sending._transactions is not None
        commit, commits = sending._transactions.commit, 0

        async def fatal(transaction: Transaction) -> None:
            nonlocal commits
            commits += 1
            await commit(transaction)
            if commits == 3:
                raise ProducerFencedError("another producer has taken the id over")

        monkeypatch.setattr(sending._transactions, "commit", fatal)
        with pytest.raises(ProducerFencedError):
            await consumer.process(slowly(answers, 0.001), producer=sending, commit_interval_ms=30)
        processing = asyncio.create_task(consumer.process(answers, producer=other))
        await until_done(address, ALL)
        await end(processing)
    assert await seen(address) == expected(NUMBERS)


async def test_a_consumer_without_membership_commits_for_its_group(address: str) -> None:
    consumer = Consumer(bootstrap_servers=address, group_id=GROUP, auto_offset_reset="earliest")
    consumer.assign([TopicPartition(SOURCE, number) for number in range(4)])
    async with producer(address, "p") as sending:
        async with consumer:
            processing = asyncio.create_task(
                consumer.process(slowly(answers, 0.001), producer=sending, commit_interval_ms=1_000)
            )
            await until(lambda: sum(state.done for state in consumer._assignment.states.values()) > 40)
            await consumer.stop()
            await processing
        stored = await committed(address)
    done = [4 * offset + partition for partition, end in stored.items() for offset in range(end)]
    assert len(done) > 40
    assert await seen(address) == expected(done)


async def test_offsets_of_what_was_handed_out_go_with_a_transaction_of_ones_own(address: str) -> None:
    async with member(address, enable_auto_commit=False) as consumer, producer(address, "p") as sending:
        numbers = await take(consumer, 50)
        await sending.begin_transaction()
        await sending.send(TARGET, b"lost")
        await sending.send_offsets_to_transaction(consumer.consumed_offsets(), consumer.group_metadata())
        await sending.abort_transaction()
        assert await committed(address) == {}
        async with sending.transaction() as transaction:
            for number in numbers:
                await transaction.send(TARGET, b"%d" % number)
            await transaction.send_offsets(consumer)
        assert sum((await committed(address)).values()) == 50
    assert await seen(address) == {b"%d" % number: 1 for number in numbers}


async def test_nothing_else_sends_with_the_producer_of_a_process(address: str) -> None:
    async def beside(record: ConsumerRecord) -> list[Output]:
        if record.offset == 50:
            await sending.send(TARGET, b"in a transaction, perhaps without its offset")
        return answers(record)

    async with (
        member(address) as consumer,
        Consumer(SOURCE, bootstrap_servers=address, group_id="others") as other,
        producer(address, "p") as sending,
    ):
        processing = asyncio.create_task(consumer.process(beside, producer=sending, commit_interval_ms=20))
        await asyncio.sleep(0)  # it has begun
        with pytest.raises(IllegalStateError, match="another process"):
            async with asyncio.timeout(20):
                await other.process(answers, producer=sending)
        with pytest.raises(HandlerError) as caught:
            await processing
        assert isinstance(caught.value.__cause__, IllegalStateError)
        assert "return Outputs from its handler" in str(caught.value.__cause__)
        async with sending.transaction() as transaction:  # it is the program's again
            await transaction.send(TARGET, b"by hand")
        assert transaction.outcome == "committed"
    found = await seen(address)
    found.pop(b"by hand", None)  # readers see it some ms after its commit
    assert found <= expected(NUMBERS)


async def test_its_transactions_are_process_s_own(address: str) -> None:
    async with member(address) as consumer, producer(address, "p") as sending:
        processing = asyncio.create_task(consumer.process(answers, producer=sending, commit_interval_ms=20))
        await until(lambda: sending._lent)
        with pytest.raises(IllegalStateError, match="begins and ends the transactions of 'p' itself: return Outputs"):
            sending.transaction()
        for call in (
            sending.begin_transaction,
            sending.commit_transaction,
            sending.abort_transaction,
            lambda: sending.send_offsets_to_transaction({}, GROUP),
        ):
            with pytest.raises(IllegalStateError, match="do anything else with another producer"):
                await call()
        await until_done(address, ALL)
        await end(processing)
    assert await seen(address) == expected(NUMBERS)


@pytest.mark.parametrize("idle", [True, False])
async def test_a_producer_that_is_stopped_ends_its_process_at_once(address: str, idle: bool) -> None:
    async with member(address) as consumer, producer(address, "p") as sending:
        handler = answers if idle else slowly(answers, 0.01)
        processing = asyncio.create_task(consumer.process(handler, producer=sending, commit_interval_ms=20))
        await until_done(address, ALL) if idle else await until(lambda: any(consumer.assignment()))
        began = asyncio.get_running_loop().time()
        await sending.stop()
        with pytest.raises(ClosedError, match="stopped"):
            await processing
        assert asyncio.get_running_loop().time() - began < 4
    assert await seen(address) <= expected(NUMBERS)


async def test_a_commit_in_doubt_at_the_end_skips_nothing(address: str) -> None:
    """Nothing was committed before, and "latest" would begin behind what an aborted transaction had taken."""
    async with answered() as proxy:
        at = proxy_address(proxy)
        await create(at, **{SOURCE: 4, TARGET: 2})
        async with (
            member(at, auto_offset_reset="latest", request_timeout_ms=500) as consumer,
            producer(at, "p", request_timeout_ms=200, delivery_timeout_ms=400) as sending,
            producer(at, "q") as other,
        ):
            await until(lambda: len(consumer.assignment()) == 4)
            assert await consumer.lag() == dict.fromkeys(consumer.assignment(), 0)
            proxy.unanswered = {ApiKey.END_TXN}
            proxy.unheard = {ApiKey.END_TXN}
            processing = asyncio.create_task(consumer.process(answers, producer=sending, commit_interval_ms=20))
            await asyncio.sleep(0.2)
            await fill(at, SOURCE, range(40))
            await until(lambda: sending._transactions is not None and sending._transactions.last is not None)
            await end(processing)
            proxy.unanswered = proxy.unheard = set()
            async with Admin(at) as admin:
                await admin.abort_transaction("p")
            processing = asyncio.create_task(consumer.process(answers, producer=other, commit_interval_ms=20))
            await until_done(at, dict.fromkeys(range(4), 10))
            await end(processing)
        assert await seen(at) == expected(range(40))


async def test_outputs_for_a_new_topic_wait_for_a_daemon_that_is_away(address: str) -> None:
    """Longer than a request may take: no handler has failed, so its record is neither given up nor handed out again."""
    async with answered() as proxy:
        at = proxy_address(proxy)
        await create(at, **{SOURCE: 4, TARGET: 2})
        await fill(at, SOURCE, range(40))
        handled = 0

        def counted(record: ConsumerRecord) -> list[Output]:
            nonlocal handled
            handled += 1
            return answers(record)

        async with member(at) as consumer, producer(at, "p", request_timeout_ms=200) as sending:
            await until(lambda: len(consumer.assignment()) == 4)
            proxy.unanswered = {ApiKey.METADATA}
            processing = asyncio.create_task(consumer.process(counted, producer=sending, commit_interval_ms=20))
            await until(lambda: handled > 0)
            await asyncio.sleep(0.8)
            assert not processing.done()
            proxy.unanswered = set()
            await until_done(at, dict.fromkeys(range(4), 10))
            await end(processing)
        assert handled == 40
        assert await seen(at) == expected(range(40))


async def test_what_process_with_a_producer_needs(address: str) -> None:
    async with (
        Consumer(SOURCE, bootstrap_servers=address) as alone,
        member(address) as consumer,
        Producer(address) as plain,
        producer(address, "p") as sending,
    ):
        with pytest.raises(ValueError, match="give the producer a transactional_id"):
            await consumer.process(answers, producer=plain)
        with pytest.raises(TypeError, match="must be a Producer"):
            await consumer.process(answers, producer="p")  # type: ignore[arg-type]
        with pytest.raises(IllegalStateError, match="pass group_id"):
            await alone.process(answers, producer=sending)
        for interval in (0, float("nan"), True):
            with pytest.raises(ValueError, match="above 0"):
                await consumer.process(answers, producer=sending, commit_interval_ms=interval)
        with pytest.raises(ClosedError, match="not started: use it inside 'async with'"):
            await consumer.process(answers, producer=producer(address, "not started"))
        with pytest.raises(ValueError, match="commit more often"):
            await consumer.process(answers, producer=sending, commit_interval_ms=3_000)
        async with sending.transaction():
            with pytest.raises(IllegalStateError, match="is open"):
                await consumer.process(answers, producer=sending)
