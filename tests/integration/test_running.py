"""``client.run``: a program that a signal ends leaves its group, commits what is done, and exits as a service does."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
from typing import Any

import pytest
from structlog.testing import capture_logs

from client import Admin, Producer, run
from coordinator import Coordinator
from tests.integration.consuming import create

READER = """
import asyncio, sys
from client import Consumer, Producer, run

async def main():
    async with Consumer("t", bootstrap_servers=sys.argv[1], group_id="g", auto_offset_reset="earliest") as consumer:
        async for record in consumer:
            print("read", record.offset, flush=True)

run(main())
print("not reached after a signal", flush=True)
"""

WORKER = """
import asyncio, sys
from client import Consumer, Producer, run

async def work(record):
    print("begin", record.offset, flush=True)
    await asyncio.sleep(1.5)
    print("done", record.offset, flush=True)

async def main():
    async with Consumer("t", bootstrap_servers=sys.argv[1], group_id="g", auto_offset_reset="earliest") as consumer:
        await consumer.process(work)

run(main())
"""

LONG_HANDLERS = """
import asyncio, sys
from client import Consumer, run

async def work(record):
    print("begin", record.partition, record.offset, flush=True)
    try:
        await asyncio.sleep(600 if record.partition else 1)
    except asyncio.CancelledError:
        print("cancelled", record.partition, flush=True)
        raise

async def main():
    async with Consumer(
        "t", bootstrap_servers=sys.argv[1], group_id="g", auto_offset_reset="earliest", revoke_grace_ms=2500
    ) as consumer:
        await consumer.process(work)

run(main())
"""

IN_A_THREAD = """
import asyncio, sys, time
from client import Consumer, run

def block():
    print("blocking", flush=True)
    time.sleep(600)

async def work(record):
    await asyncio.to_thread(block)

async def main():
    async with Consumer("t", bootstrap_servers=sys.argv[1], group_id="g", auto_offset_reset="earliest") as consumer:
        await consumer.process(work)

run(main())
"""

SENDER = """
import asyncio, sys
from client import Producer, run

async def main():
    async with Producer(bootstrap_servers=sys.argv[1], linger_ms=60_000) as producer:
        for number in range(100):
            await producer.send("t", b"%d" % number)
        print("queued", flush=True)
        await asyncio.Event().wait()

run(main())
"""

STUCK = """
import asyncio, sys
from client import run

async def main():
    try:
        print("ready", flush=True)
        await asyncio.Event().wait()
    finally:
        print("cleaning up", flush=True)
        await asyncio.sleep(600)

run(main())
"""


class Program:
    """A script as a process of its own; ``says`` waits for a line that it prints."""

    def __init__(self, script: str, *arguments: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", script, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )

    async def says(self, wanted: str) -> None:
        assert self.process.stdout is not None
        async with asyncio.timeout(60):
            while line := await asyncio.to_thread(self.process.stdout.readline):
                if line.strip() == wanted:
                    return
        raise AssertionError(
            f"it ended with {self.process.wait()}: {self.process.stderr and self.process.stderr.read()}"
        )

    async def end(self) -> tuple[int, str, str]:
        out, error = await asyncio.to_thread(self.process.communicate, timeout=60)
        return self.process.returncode, out, error


@pytest.mark.parametrize(("number", "status"), [(signal.SIGTERM, 0), (signal.SIGINT, 130)])
async def test_a_signal_makes_a_consumer_leave_its_group_at_once(number: signal.Signals, status: int) -> None:
    async with Coordinator() as c:
        await create(c.address, t=1)
        async with Producer(c.address) as producer:
            await producer.send_and_wait("t", b"x")
        program = Program(READER, c.address)
        await program.says("read 0")
        program.process.send_signal(number)
        assert await program.end() == (status, "", "")
        async with Admin(c.address) as admin:
            described = (await admin.describe_groups("g"))["g"]
        assert (described.state, list(described.members)) == ("Empty", [])


async def test_handlers_finish_and_are_committed_before_the_end() -> None:
    async with Coordinator() as c:
        await create(c.address, t=1)
        async with Producer(c.address) as producer:
            await producer.send_many("t", [b"x"] * 3)
        program = Program(WORKER, c.address)
        await program.says("begin 0")
        program.process.send_signal(signal.SIGTERM)
        assert await program.end() == (0, "done 0\n", "")
        async with Admin(c.address) as admin:
            assert [stored.offset for stored in (await admin.list_offsets("g")).values()] == [1]


async def test_handlers_that_outlast_the_grace_are_cancelled_and_their_records_are_not_done() -> None:
    async with Coordinator() as c:
        await create(c.address, t=2)
        async with Producer(c.address) as producer:
            for partition in (0, 1):
                await producer.send_many("t", [b"x"] * 3, partition=partition)
        program = Program(LONG_HANDLERS, c.address)
        await program.says("begin 1 0")
        program.process.send_signal(signal.SIGTERM)
        status, out, _ = await program.end()
        assert (status, "cancelled 1" in out, "begin 1 1" in out) == (0, True, False)
        async with Admin(c.address) as admin:
            stored = {tp.partition: offset.offset for tp, offset in (await admin.list_offsets("g")).items()}
            members = (await admin.describe_groups("g"))["g"].members
        assert stored.get(1, 0) == 0
        assert stored[0] >= 1
        assert list(members) == []


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_second_signal_waits_for_no_thread(number: signal.Signals) -> None:
    async with Coordinator() as c:
        await create(c.address, t=1)
        async with Producer(c.address) as producer:
            await producer.send_and_wait("t", b"x")
        program = Program(IN_A_THREAD, c.address)
        await program.says("blocking")
        program.process.send_signal(signal.SIGTERM)
        await asyncio.sleep(0.5)  # the first one is heard: the handler's thread is waited for
        program.process.send_signal(number)
        assert (await program.end())[0] == -number


async def test_a_producer_sends_what_is_queued() -> None:
    async with Coordinator() as c:
        await create(c.address, t=1)
        program = Program(SENDER, c.address)
        await program.says("queued")
        program.process.send_signal(signal.SIGTERM)
        assert (await program.end())[0] == 0
        async with Producer(c.address) as producer:
            assert (await producer.send_and_wait("t", b"after")).offset == 100


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_second_signal_waits_for_no_cleaning_up(number: signal.Signals) -> None:
    program = Program(STUCK)
    await program.says("ready")
    program.process.send_signal(signal.SIGTERM)
    await program.says("cleaning up")
    program.process.send_signal(number)
    status, _, _ = await program.end()
    assert status in ((-signal.SIGTERM,) if number == signal.SIGTERM else (130, -signal.SIGINT))


def test_results_and_errors_are_passed_on() -> None:
    async def answer() -> int:
        await asyncio.sleep(0)
        return 42

    async def fail() -> None:
        raise KeyError("price")

    async def cancel_itself() -> None:
        raise asyncio.CancelledError

    assert run(answer()) == 42
    with pytest.raises(KeyError, match="price"):
        run(fail())
    with pytest.raises(asyncio.CancelledError):
        run(cancel_itself())
    before = signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)
    run(answer())
    assert before == (signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT))


def test_what_main_makes_of_the_cancellation_counts() -> None:
    async def heed() -> str:
        os.kill(os.getpid(), signal.SIGTERM)
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            return "in order"
        raise AssertionError("the signal was not heard")

    async def leave() -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        await asyncio.sleep(60)

    assert run(heed()) == "in order"
    with pytest.raises(SystemExit) as ended:
        run(leave())
    assert ended.value.code == 0


def test_it_runs_on_uvloop_where_there_is_one_and_outside_the_main_thread_too() -> None:
    import uvloop

    seen: list[Any] = []

    async def main() -> None:
        seen.append(type(asyncio.get_running_loop()))

    thread = threading.Thread(target=lambda: run(main()))
    with capture_logs() as logs:
        run(main())
        assert logs == []
        thread.start()
        thread.join(30)
    assert seen == [uvloop.Loop, uvloop.Loop]
    (event,) = logs
    assert (event["event"], event["log_level"]) == ("signals_not_heard", "warning")
    assert "main thread" in event["hint"]


def test_handlers_of_signals_that_were_set_before_are_set_again() -> None:
    heard: list[int] = []
    before = signal.signal(signal.SIGTERM, lambda number, _: heard.append(number))
    try:
        run(asyncio.sleep(0))
        os.kill(os.getpid(), signal.SIGTERM)
        assert heard == [signal.SIGTERM]
    finally:
        signal.signal(signal.SIGTERM, before)


def test_inside_a_running_loop_it_says_so() -> None:
    async def inner() -> None:
        """Never runs."""

    async def outer() -> None:
        with pytest.raises(RuntimeError, match="inside a running event loop"):
            run(inner())

    asyncio.run(outer())
