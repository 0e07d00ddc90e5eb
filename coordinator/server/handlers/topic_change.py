"""What requests that change topics share: one change at a time, a deadline, an answer for each entry.

What a client waits for is bounded by its ``timeout_ms``: a change that has not begun by then is dropped, one that has begun
goes on, and both are answered with REQUEST_TIMED_OUT. A client that hangs up changes nothing about that: what it asked for
takes its memory of the budget until it is done or dropped (``Tasks.start_change``).
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from itertools import chain
from typing import Any, TypeVar

from coordinator.filesystem.storage import WriteInDoubtError
from coordinator.log.errors import LogError
from coordinator.log_output import get_logger
from coordinator.logs.log_manager import LogManager
from coordinator.metadata.catalog import Catalog, Topic, TopicError
from coordinator.metadata.store import MetadataUnavailableError
from coordinator.server.call import Call
from coordinator.server.dispatch import STEP, ErrorTexts, Tasks
from coordinator.server.node import Node
from protocol.errors import ErrorCode
from protocol.messages import Response
from protocol.messages.configs import AlteredTopicConfigs
from protocol.messages.records import DeletedRecords
from protocol.messages.topics import CreatedTopic, TopicResult

log = get_logger()

Wanted = TypeVar("Wanted")
Result = TypeVar("Result", CreatedTopic, TopicResult, AlteredTopicConfigs, DeletedRecords)


async def make_partitions(catalog: Catalog, logs: LogManager, fresh: Sequence[tuple[Topic, range]]) -> None:
    """Logs first, so that a partition that clients can see has one; without the metadata the logs go again."""
    if not fresh:
        return
    try:
        await logs.create_all(fresh)
        await catalog.commit(*(topic for topic, _ in fresh))
    except WriteInDoubtError:
        raise  # the topics may be on disk, and the next start wants their logs then
    except BaseException:
        for topic, indexes in fresh:
            if not catalog.has(topic.name, indexes[-1]):  # else cancelled, but only after the change was made
                await logs.delete(topic.name, indexes)
        raise


async def finish_deletion(node: Node, topic_id: str, name: str, partitions: int) -> None:
    """The directories of a topic go before its name is free again."""
    await node.logs.delete(name, range(partitions))
    # The note goes last: what fails before is done again when the name is wanted again, or at the next start.
    await node.catalog.end_deletion(topic_id)


def check_named_once(names: Counter[str], name: str) -> None:
    """Raises ``TopicError`` when a request asks for two changes of one topic."""
    if names[name] > 1:
        message = f"topic {name[:60]!r} is named {names[name]} times in one request"
        raise TopicError(ErrorCode.INVALID_REQUEST, message)


@asynccontextmanager
async def turn(catalog: Catalog, name: str, deadline: float) -> AsyncIterator[None]:
    """Waits until no other change is under way, or raises ``TopicError`` when the deadline comes first.

    In a cluster what other nodes have changed is known then: a name that was freed through one of them is free. Raises
    ``MetadataUnavailableError``.
    """
    try:
        async with asyncio.timeout_at(deadline):
            await catalog.lock.acquire()
    except TimeoutError:
        message = f"topic {name[:60]!r}: other changes took all the time; this one has not begun and will not"
        raise TopicError(ErrorCode.REQUEST_TIMED_OUT, message) from None
    try:
        if catalog.cluster:
            await catalog.catch_up()
        yield
    finally:
        catalog.lock.release()


async def answer_each(
    tasks: Tasks,
    call: Call,
    wanted: Sequence[Wanted],
    timeout_ms: int,
    change: Callable[[Wanted, float], Awaitable[Result]],
    refusal: Callable[[Any, ErrorCode, str], Result],
    response: Callable[[tuple[Result, ...]], Response],
) -> None:
    """Makes the changes one after the other and answers when all are done, or at the deadline with what is done."""

    async def alone(some: Sequence[Wanted], deadline: float) -> list[Result | Exception]:
        return [await change(some[0], deadline)]

    await answer_in_batches(
        tasks, call, ([entry] for entry in wanted), timeout_ms, alone, refusal, response
    )  # fmt: skip


async def answer_in_batches(
    tasks: Tasks,
    call: Call,
    batches: Iterable[Sequence[Wanted]],
    timeout_ms: int,
    change: Callable[[Sequence[Wanted], float], Awaitable[Sequence[Result | Exception]]],
    refusal: Callable[[Any, ErrorCode, str], Result],
    response: Callable[[tuple[Result, ...]], Response],
) -> None:
    """As ``answer_each``, some changes at a time. ``change`` returns for each its result or why it failed."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + max(timeout_ms, 0) / 1000
    late = f"not done after {timeout_ms} ms: a change that has begun goes on, look again later"
    queue = [list(some) for some in batches]
    wanted = list(chain.from_iterable(queue))
    results: list[Result] = []
    texts = ErrorTexts()

    def told(entry: Wanted, code: ErrorCode, text: str) -> Result:
        return refusal(entry, code, texts(text))

    def answer() -> None:
        if call.open:
            missing = [told(entry, ErrorCode.REQUEST_TIMED_OUT, late) for entry in wanted[len(results) :]]
            call.answer(response(tuple(results + missing)))

    timer = loop.call_at(deadline, answer)
    step_at = STEP - 1
    try:
        for some in queue:
            if results and loop.time() >= deadline:
                break  # no request waits any more; also a client that gives no time may have one thing done
            if len(results) >= step_at:
                step_at = len(results) + STEP
                await tasks.next_step(call)
            outcomes = await _outcomes(some, change(some, deadline))
            results.extend(
                told(entry, *explained(outcome)) if isinstance(outcome, Exception) else outcome
                for entry, outcome in zip(some, outcomes, strict=True)
            )
    finally:
        timer.cancel()
    answer()


async def _outcomes(
    wanted: Sequence[Wanted], change: Awaitable[Sequence[Result | Exception]]
) -> Sequence[Result | Exception]:
    """What became of each change, also when all failed: it must not hide what became of the others."""
    try:
        outcomes = await change
    except Exception as error:
        outcomes = [error] * len(wanted)
    for entry, outcome in zip(wanted, outcomes, strict=True):
        if isinstance(outcome, Exception) and not isinstance(
            outcome, (TopicError, OSError, LogError, MetadataUnavailableError)
        ):
            log.error("topic_change_failed", wanted=str(entry)[:200], exc_info=outcome)
        if isinstance(outcome, Exception):
            outcome.__traceback__ = None  # it knows the call of this function, which knows it: a circle
    return outcomes


def explained(error: Exception) -> tuple[ErrorCode, str]:
    """What a client is told of a change that failed."""
    if isinstance(error, TopicError):
        return error.code, str(error)
    if isinstance(error, MetadataUnavailableError):
        known = (
            "nothing was changed"
            if error.outcome == "none"
            else "the change may be made still: look before you try again"
        )
        return ErrorCode.REQUEST_TIMED_OUT, f"the metadata store does not answer ({error}); {known}"
    if isinstance(error, (OSError, LogError)):
        return ErrorCode.KAFKA_STORAGE_ERROR, f"the change is not complete: {error}"
    return ErrorCode.UNKNOWN_SERVER_ERROR, "the daemon failed unexpectedly; its log has the cause"
