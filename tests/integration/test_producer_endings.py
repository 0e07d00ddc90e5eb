"""How a producer ends, and how calls to it end: once, in bounded time, and with every future resolved."""

from __future__ import annotations

import asyncio
import gc
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any

import pytest

from client.admin import Admin
from client.errors import ClosedError, CohortError, RequestTimedOutError, UnknownTopicOrPartitionError
from client.producer.producer import EXIT_ON_ERROR_MS, Producer
from protocol.messages import ApiKey
from tests.integration.answering_proxy import AnsweringProxy, address, answered
from tests.integration.fetched import values


@pytest.fixture
async def proxy() -> AsyncIterator[AnsweringProxy]:
    async with answered() as proxy:
        yield proxy


async def started(proxy: AnsweringProxy, **settings: Any) -> Producer:
    producer = Producer(address(proxy), **settings)
    await producer.start()
    await producer.send_and_wait("t", b"first", partition=0)
    return producer


def tasks_of(producer: Producer) -> list[str]:
    client_id = producer._cluster.client_id
    return [task.get_name() for task in asyncio.all_tasks() if task.get_name().endswith(client_id)]


async def test_a_second_stop_waits_for_the_first(proxy: AnsweringProxy) -> None:
    producer = await started(proxy, linger_ms=400)
    futures = [await producer.send("t", b"%d" % number) for number in range(10)]
    await asyncio.gather(producer.stop(), producer.stop(), producer.stop(timeout=30))
    assert all(future.result().offset >= 0 for future in futures)


async def test_the_least_patient_of_those_who_stop_it_counts(proxy: AnsweringProxy) -> None:
    producer = await started(proxy)
    proxy.unanswered = {ApiKey.PRODUCE}
    future = await producer.send("t", b"v")
    patient = asyncio.create_task(producer.stop())
    async with asyncio.timeout(20):
        await asyncio.sleep(0.05)
        await producer.stop(timeout=0.1)
        await patient
    assert isinstance(future.exception(), ClosedError)


async def test_a_stop_that_is_cancelled_ends_the_others(proxy: AnsweringProxy) -> None:
    producer = await started(proxy)
    proxy.unanswered = {ApiKey.PRODUCE}
    future = await producer.send("t", b"v")
    first, second = asyncio.create_task(producer.stop()), asyncio.create_task(producer.stop())
    await asyncio.sleep(0.05)
    first.cancel()
    async with asyncio.timeout(20):
        await second
        with pytest.raises(asyncio.CancelledError):
            await first
    assert isinstance(future.exception(), ClosedError)


async def test_a_stop_that_is_cancelled_at_any_turn_leaves_nothing_open(proxy: AnsweringProxy) -> None:
    for turns in range(14):
        producer = await started(proxy)
        await producer.send("t", b"v")
        connections = list(producer._cluster._connections.values())
        assert connections
        stopping = asyncio.create_task(producer.stop())
        for _ in range(turns):
            await asyncio.sleep(0)
        stopping.cancel()
        await asyncio.gather(stopping, return_exceptions=True)
        await producer.stop()  # finishes what is left
        assert all(connection.closed for connection in connections)
        assert tasks_of(producer) == []
        assert not producer._cluster._connections


async def test_who_leaves_by_an_exception_does_not_wait_for_the_delivery_timeout(
    proxy: AnsweringProxy, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    assert EXIT_ON_ERROR_MS <= 5_000
    monkeypatch.setattr("client.producer.producer.EXIT_ON_ERROR_MS", 300)
    futures = []

    async def program() -> None:
        async with Producer(address(proxy), delivery_timeout_ms=100_000, linger_ms=1000) as producer:
            futures.append(await producer.send("t", b"delivered"))
            await producer.flush()
            proxy.unanswered = {ApiKey.PRODUCE}
            futures.append(await producer.send("t", b"v"))
            raise KeyError("a fault of the program")

    async with asyncio.timeout(30):
        with pytest.raises(KeyError):
            await program()
    assert futures[0].result().offset >= 0
    assert isinstance(futures[1].exception(), ClosedError)
    (line,) = [record.getMessage() for record in caplog.records if "producer_stopped_before" in record.getMessage()]
    assert "records=1 waited_s=0.3" in line


async def test_who_leaves_by_an_exception_sends_what_can_be_sent(proxy: AnsweringProxy) -> None:
    futures: list[asyncio.Future[Any]] = []

    async def program() -> None:
        async with Producer(address(proxy), linger_ms=60_000) as producer:
            futures.extend([await producer.send("t", b"%d" % number) for number in range(100)])
            raise KeyError("a fault of the program")

    with pytest.raises(KeyError):
        await program()
    assert len(futures) == 100
    assert all(future.result().offset >= 0 for future in futures)


async def test_leaving_with_a_daemon_that_is_gone_is_bounded_and_told(caplog: pytest.LogCaptureFixture) -> None:
    async with answered() as proxy:
        producer = await started(proxy, delivery_timeout_ms=800, request_timeout_ms=500)
    async with asyncio.timeout(30):
        for number in range(30):
            await producer.send("t", b"%d" % number)
        await producer.stop()
    (line,) = [record.getMessage() for record in caplog.records if "sends_failed_unnoticed" in record.getMessage()]
    assert "not acknowledged, and the program has not asked for the outcome" in line
    assert "records=30 " in line
    assert "delivery_timeout_ms=800" in line
    assert "not in the log" in line


async def test_failures_that_are_not_asked_for_are_one_line_and_those_that_are_awaited_raise(
    proxy: AnsweringProxy, caplog: pytest.LogCaptureFixture
) -> None:
    said: list[str] = []
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: said.append(context["message"]))
    producer = await started(proxy, delivery_timeout_ms=400, request_timeout_ms=400)
    proxy.unanswered = {ApiKey.PRODUCE}
    futures = [await producer.send("t", b"%d" % number) for number in range(500)]

    async def waits(future: asyncio.Future[Any]) -> Any:
        return await future

    waiting = [asyncio.create_task(waits(future)) for future in futures[:100]]
    outcomes = await asyncio.gather(*waiting, return_exceptions=True)
    assert all(isinstance(outcome, RequestTimedOutError) for outcome in outcomes)
    async with asyncio.timeout(20):
        while not (
            lines := [
                record.getMessage() for record in caplog.records if "sends_failed_unnoticed" in record.getMessage()
            ]
        ):
            await asyncio.sleep(0.05)
    assert len(lines) == 1
    assert "records=400 " in lines[0]
    with pytest.raises(RequestTimedOutError):
        await futures[-1]
    del futures, waiting, outcomes
    await producer.stop(timeout_ms=100)
    gc.collect()
    assert said == []


async def test_failures_that_the_program_looked_at_are_not_told_again(
    proxy: AnsweringProxy, caplog: pytest.LogCaptureFixture
) -> None:
    producer = await started(proxy)
    proxy.unanswered = {ApiKey.PRODUCE}
    futures = [await producer.send("t", b"%d" % number) for number in range(50)]
    waiting = asyncio.gather(*futures, return_exceptions=True)
    await producer.stop(timeout=0.05)
    assert all(isinstance(outcome, ClosedError) for outcome in await waiting)
    assert not [record for record in caplog.records if "sends_failed_unnoticed" in record.getMessage()]


async def test_a_start_of_one_that_runs_does_nothing(proxy: AnsweringProxy) -> None:
    producer = Producer(address(proxy))
    await asyncio.gather(producer.start(), producer.start())
    await producer.start()
    assert tasks_of(producer) == ["cohort-metadata-cohort-producer"]
    await producer.send_and_wait("t", b"v")
    await producer.stop()
    assert tasks_of(producer) == []
    with pytest.raises(ClosedError, match="make a new one"):
        await producer.start()


async def test_limits_are_given_in_milliseconds_or_in_seconds(proxy: AnsweringProxy) -> None:
    producer = await started(proxy)
    proxy.unanswered = {ApiKey.PRODUCE}
    await producer.send("t", b"v")
    for call in (producer.flush, producer.stop):
        with pytest.raises(TypeError, match="not both"):
            await call(1, timeout_ms=1000)
        with pytest.raises(ValueError, match="timeout_ms is -1; it must be a number of milliseconds from 0"):
            await call(timeout_ms=-1)
    with pytest.raises(RequestTimedOutError, match=r"after 0\.05 s"):
        await producer.flush(timeout_ms=50)
    async with asyncio.timeout(30):
        await producer.stop(timeout_ms=50)


async def test_a_stop_that_is_thrown_away_where_it_waits_waits_no_more(proxy: AnsweringProxy) -> None:
    """As coroutines are that a loop leaves behind when it is closed."""
    producer = await started(proxy)
    future = await producer.send("t", b"v")
    stopping = producer.stop()
    stopping.send(None)
    stopping.close()
    async with asyncio.timeout(20):
        await producer.stop()
    assert isinstance(future.exception(), ClosedError | None)


async def test_a_stop_while_it_starts_ends_the_start_and_leaves_no_task(proxy: AnsweringProxy) -> None:
    before = asyncio.all_tasks()
    for turns in range(0, 40, 3):
        producer = Producer(address(proxy))
        starting = asyncio.create_task(producer.start())
        for _ in range(turns):
            await asyncio.sleep(0)
        await producer.stop()
        done = (await asyncio.gather(starting, return_exceptions=True))[0]
        assert done is None or isinstance(done, CohortError)
        with pytest.raises(ClosedError):
            await producer.send("t", b"v")
        with pytest.raises(ClosedError, match="make a new one"):
            await producer.start()
    await asyncio.sleep(0.1)
    left = {task.get_name() for task in asyncio.all_tasks() - before if task.get_name().startswith("cohort")}
    assert left == set()


async def test_a_start_that_failed_may_be_tried_again_until_it_is_stopped() -> None:
    producer = Producer("127.0.0.1:1", request_timeout_ms=50)
    for _ in range(2):
        with pytest.raises(RequestTimedOutError):
            await producer.start()
    await producer.stop()
    with pytest.raises(ClosedError):
        await producer.start()


async def test_a_callback_that_raises_harms_no_other_record(proxy: AnsweringProxy) -> None:
    said: list[str] = []
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: said.append(str(context["exception"])))

    def fail(future: object) -> None:
        raise RuntimeError("a fault of the program")

    async with Producer(address(proxy)) as producer:
        futures = [await producer.send("t", b"%d" % number, partition=0) for number in range(20)]
        for future in futures[::2]:
            future.add_done_callback(fail)
        await producer.flush()
        assert [future.result().offset for future in futures] == list(range(20))
        assert producer._pool.used == 0
    assert said == ["a fault of the program"] * 10


async def test_no_call_waits_for_room_longer_than_the_delivery_timeout(proxy: AnsweringProxy) -> None:
    """Each record before it may take as long, too."""
    producer = await started(proxy, buffer_bytes=4000, delivery_timeout_ms=1200, request_timeout_ms=1200)
    proxy.unanswered = {ApiKey.PRODUCE}
    loop = asyncio.get_running_loop()
    began = loop.time()
    sends = [asyncio.create_task(producer.send("t", b"x" * 3000)) for _ in range(6)]
    outcomes = await asyncio.gather(*sends, return_exceptions=True)
    assert loop.time() - began < 6, "in turn they would take 7.2 s"
    refused = [outcome for outcome in outcomes if isinstance(outcome, BaseException)]
    assert len(refused) >= 4
    for error in refused:
        assert isinstance(error, RequestTimedOutError)
        assert "the buffer had no room for 3273 bytes within 1200 ms (buffer_bytes=4000" in str(error)
    for outcome in outcomes:
        if isinstance(outcome, asyncio.Future):
            assert isinstance(outcome.exception(), RequestTimedOutError)
    proxy.unanswered = set()
    await producer.stop(timeout=5)
    assert producer._pool.used == 0


async def test_those_who_wait_for_room_get_it_in_their_turn_whatever_their_size(proxy: AnsweringProxy) -> None:
    producer = await started(proxy, buffer_bytes=4000)
    order: list[int] = []

    def value(number: int) -> bytes:
        return (b"%d" % number).ljust(300 if number % 3 else 3000)

    async def send(number: int) -> None:
        await producer.send("t", value(number), partition=1)
        order.append(number)

    sends = [asyncio.create_task(send(number)) for number in range(1, 31)]
    await asyncio.sleep(0)
    cancelled = set(range(7, 30, 5))
    for number in cancelled:
        sends[number - 1].cancel()
    await asyncio.gather(*sends, return_exceptions=True)
    await producer.stop()
    expected = [number for number in range(1, 31) if number not in cancelled]
    assert order == expected
    found = (await values(address(proxy), "t"))[1]
    assert found == [value(number) for number in expected]


async def test_a_flush_with_a_daemon_that_is_silent_ends_with_the_delivery_timeout(proxy: AnsweringProxy) -> None:
    producer = await started(proxy, delivery_timeout_ms=500)
    proxy.unanswered = {ApiKey.PRODUCE}
    future = await producer.send("t", b"v")
    with pytest.raises(RequestTimedOutError, match=r"flush: 1 record is not acknowledged after 0.1 s"):
        await producer.flush(timeout=0.1)
    async with asyncio.timeout(20):
        await producer.flush()
    assert isinstance(future.exception(), RequestTimedOutError)
    await producer.stop()


async def test_partitions_that_come_while_batches_queue_take_nothing_away(proxy: AnsweringProxy) -> None:
    producer = await started(proxy, batch_size=500)
    async with Admin(address(proxy)) as admin:
        sending = asyncio.create_task(producer.send_many("t", [b"%d" % number for number in range(20_000)]))
        await asyncio.sleep(0)
        await admin.create_partitions({"t": 5})
        entries = await sending
        async with asyncio.timeout(20):
            while len(await producer.partitions_for("t")) < 5:
                await asyncio.sleep(0.01)
        later = await producer.send_many("t", [b"later"] * 2000)
    assert {entry.partition for entry in later} == {0, 1, 2, 3, 4}
    await producer.stop()
    found = await values(address(proxy), "t")
    assert [found[entry.partition][entry.offset] for entry in entries] == [b"%d" % number for number in range(20_000)]


async def test_a_topic_that_is_deleted_and_made_again_amid_a_stream_fails_or_stores_each_record(
    proxy: AnsweringProxy,
) -> None:
    producer = await started(proxy, batch_size=500, delivery_timeout_ms=10_000)
    async with Admin(address(proxy)) as admin:
        futures = []
        for number in range(1500):
            with suppress(UnknownTopicOrPartitionError):
                futures.append((number, await producer.send("t", b"%d" % number)))
            if number % 10 == 0:
                await asyncio.sleep(0.001)
            if number in (400, 900):
                await admin.delete_topics("t")
                await admin.create_topics({"t": 1})
        await producer.stop(timeout=15)
    assert all(future.done() for _, future in futures)
    found = (await values(address(proxy), "t"))[0]
    assert len(set(found)) == len(found), "none is there twice"
    own = [int(value or b"") for value in found]
    assert own == sorted(own)
    for number, future in futures:
        if number > 1400:
            assert found[future.result().offset] == b"%d" % number
        assert isinstance(future.exception(), CohortError | None)


async def test_a_program_that_forgets_to_stop_it_ends_without_noise(proxy: AnsweringProxy) -> None:
    program = (
        "import asyncio\nfrom client import Producer\n"
        "async def main():\n"
        f"    producer = Producer({address(proxy)!r})\n"
        "    await producer.start()\n"
        "    for number in range(100):\n"
        "        await producer.send('t', b'x' * 100)\n"
        "    await asyncio.sleep(0.0)\n"
        "asyncio.run(main())\n"
    )
    done = await asyncio.to_thread(
        subprocess.run, [sys.executable, "-c", program], capture_output=True, timeout=30, check=True, text=True
    )
    assert "Traceback" not in done.stderr
    assert "was destroyed but it is pending" not in done.stderr
