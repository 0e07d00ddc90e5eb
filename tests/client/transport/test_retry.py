"""Retrying: until a deadline that also bounds the attempt under way, and never over other people's errors."""

from __future__ import annotations

import asyncio
import socket
import time
from random import Random
from typing import NoReturn

import pytest

from client import Admin
from client.errors import ConnectionLostError, RequestTimedOutError
from client.transport.deadline import Deadline
from client.transport.retry import Backoff, retrying


async def attempts(*, timeout_ms: float, lost_before_stuck: int = 0) -> None:
    """An operation that fails some times and then never ends."""
    left = lost_before_stuck

    async def operation() -> None:
        nonlocal left
        if left:
            left -= 1
            raise ConnectionLostError("gone")
        await asyncio.Event().wait()

    await retrying(operation, deadline=Deadline(timeout_ms), backoff=Backoff(Random(1), 1), what="asking")


async def test_an_attempt_that_does_not_end_is_cut_off_at_the_deadline() -> None:
    with pytest.raises(
        RequestTimedOutError, match=r"^asking did not .* within 50 ms and 1 attempt; .* still under way$"
    ):
        await asyncio.wait_for(attempts(timeout_ms=50), 20)


async def test_the_error_before_the_attempt_that_did_not_end_is_told_too() -> None:
    with pytest.raises(RequestTimedOutError, match=r"2 attempts; .*; the last error was ConnectionLost") as raised:
        await asyncio.wait_for(attempts(timeout_ms=500, lost_before_stuck=1), 20)
    assert isinstance(raised.value.__cause__, ConnectionLostError)


async def test_what_was_told_before_an_answer_did_not_come_is_told_too() -> None:
    errors = [ConnectionLostError("the disk is full"), RequestTimedOutError("no answer within 5 ms")]

    async def operation() -> NoReturn:
        raise errors[0] if len(errors) == 1 else errors.pop(0)

    with pytest.raises(
        RequestTimedOutError, match=r"last error was RequestTimed.*; the error before .*the disk is full"
    ):
        await retrying(operation, deadline=Deadline(100), backoff=Backoff(Random(1), 1), what="asking")


async def test_a_timeout_of_the_operation_itself_goes_through() -> None:
    async def operation() -> NoReturn:
        raise TimeoutError("my own")

    with pytest.raises(TimeoutError, match="my own"):
        await retrying(operation, deadline=Deadline(10_000), backoff=Backoff(Random(1)), what="asking")


async def test_a_cancellation_stays_one() -> None:
    task = asyncio.create_task(attempts(timeout_ms=10_000))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_a_timeout_around_it_is_not_taken_for_its_own() -> None:
    with pytest.raises(TimeoutError) as raised:
        async with asyncio.timeout(0.01):
            await attempts(timeout_ms=10_000)
    assert not isinstance(raised.value, RequestTimedOutError)


async def test_servers_that_do_not_even_accept_cost_no_more_than_the_timeout() -> None:
    held: list[socket.socket] = []
    ports: list[int] = []
    for _ in range(2):
        listening = socket.create_server(("127.0.0.1", 0), backlog=0)
        held.append(listening)
        ports.append(listening.getsockname()[1])
        for _ in range(3):  # fills the backlog: a connection that comes now gets no answer at all
            waiting = socket.socket()
            waiting.setblocking(False)
            waiting.connect_ex(listening.getsockname())
            held.append(waiting)
    started_at = time.monotonic()
    with pytest.raises(RequestTimedOutError, match="MetadataRequest did not succeed within 500 ms"):
        await Admin([f"127.0.0.1:{port}" for port in ports]).start(timeout_ms=500)
    assert time.monotonic() < started_at + 20, "the operating system would try for minutes"
    for each in held:
        each.close()
