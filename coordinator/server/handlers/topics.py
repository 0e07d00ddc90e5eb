"""CreateTopics (19), DeleteTopics (20), CreatePartitions (37).

One change is under way at a time. What a client waits for is bounded by its ``timeout_ms``: a change that has not begun
by then is dropped, one that has begun goes on, and both are answered with REQUEST_TIMED_OUT. So never more than one change
is left without somebody who waits for it.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, TypeVar, cast

from coordinator.log.errors import LogError
from coordinator.log_output import get_logger
from coordinator.metadata.catalog import Catalog, Topic, TopicError, parse_topic_config
from coordinator.partitions import Partitions
from coordinator.server.connection import Call
from coordinator.server.dispatch import STEP, ErrorTexts, Handler, Tasks
from coordinator.storage import WriteInDoubtError
from protocol.errors import ErrorCode
from protocol.messages import Request, Response
from protocol.messages.configs import AlteredTopicConfigs
from protocol.messages.records import DeletedRecords
from protocol.messages.topics import (
    CreatableTopic,
    CreatedTopic,
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreateTopicsRequest,
    CreateTopicsResponse,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
    TopicPartitionCount,
    TopicResult,
)

log = get_logger()


Wanted = TypeVar("Wanted")
Result = TypeVar("Result", CreatedTopic, TopicResult, AlteredTopicConfigs, DeletedRecords)


class TopicHandlers:
    """Changes topics. A change once begun goes on when its client hangs up.

    ``on_deleted`` is awaited with the name of a deleted topic before its name is free again.
    """

    def __init__(
        self,
        catalog: Catalog,
        partitions: Partitions,
        tasks: Tasks,
        *,
        default_partitions: int,
        on_deleted: Callable[[str], Awaitable[None]],
    ) -> None:
        self._catalog = catalog
        self._partitions = partitions
        self._tasks = tasks
        self._default_partitions = default_partitions
        self._on_deleted = on_deleted

    def table(self) -> Mapping[type[Request], Handler]:
        """The handlers of this family."""
        return {
            CreateTopicsRequest: lambda call: self._tasks.start_change(call, self._create_all(call)),
            DeleteTopicsRequest: lambda call: self._tasks.start_change(call, self._delete_all(call)),
            CreatePartitionsRequest: lambda call: self._tasks.start_change(call, self._grow_all(call)),
        }

    async def _create_all(self, call: Call) -> None:
        request = cast("CreateTopicsRequest", call.request)
        names = Counter(topic.name for topic in request.topics)

        async def create(wanted: CreatableTopic, deadline: float) -> CreatedTopic:
            check_named_once(names, wanted.name)
            async with turn(self._catalog.lock, wanted.name, deadline):
                return await self._create(wanted, request.validate_only)

        await answer_each(
            self._tasks, call, request.topics, request.timeout_ms, create,
            lambda wanted, code, message: CreatedTopic(wanted.name, code, message), CreateTopicsResponse,
        )  # fmt: skip

    async def _create(self, wanted: CreatableTopic, validate_only: bool) -> CreatedTopic:
        partitions = self._default_partitions if wanted.num_partitions == -1 else wanted.num_partitions
        self._catalog.check_new(wanted.name, partitions, wanted.replication_factor)
        config = parse_topic_config({entry.name: entry.value for entry in wanted.configs})
        self._catalog.check_config(config)
        if validate_only:
            return CreatedTopic(wanted.name, ErrorCode.NONE, num_partitions=partitions)
        for topic_id, name, count in self._catalog.deletions():
            if name == wanted.name:  # directories go by name: nothing of the namesake may be left
                await self._finish_deletion(topic_id, name, count)
        topic = self._catalog.draft(wanted.name, partitions, config)
        await self._make(topic, range(partitions))
        log.info("topic created", topic=wanted.name, partitions=partitions)
        return CreatedTopic(wanted.name, ErrorCode.NONE, "", topic.topic_id, partitions)

    async def _make(self, topic: Topic, fresh: range) -> None:
        """Logs first, so that a partition that clients can see has one; without the metadata the logs go again."""
        try:
            await self._partitions.create(topic, fresh)
            await self._catalog.commit(topic)
        except WriteInDoubtError:
            raise  # the topic may be on disk, and the next start wants its logs then
        except BaseException:
            if not self._catalog.has(topic.name, fresh[-1]):  # else cancelled, but only after the change was made
                await self._partitions.delete(topic.name, fresh)
            raise

    async def _delete_all(self, call: Call) -> None:
        request = cast("DeleteTopicsRequest", call.request)

        async def delete(name: str, deadline: float) -> TopicResult:
            async with turn(self._catalog.lock, name, deadline):
                topic = self._catalog.topic(name)
                if topic.internal:
                    raise TopicError(ErrorCode.INVALID_TOPIC_EXCEPTION, f"topic {name!r} is internal and stays")
                await self._catalog.begin_deletion(topic)
                await self._finish_deletion(topic.topic_id, name, len(topic.partitions))
            log.info("topic deleted", topic=name)
            return TopicResult(name, ErrorCode.NONE)

        await answer_each(
            self._tasks, call, request.topic_names, request.timeout_ms, delete, TopicResult, DeleteTopicsResponse,
        )  # fmt: skip

    async def _finish_deletion(self, topic_id: str, name: str, partitions: int) -> None:
        await self._partitions.delete(name, range(partitions))
        # The note goes last: what fails before is done again when the name is wanted again, or at the next start.
        await self._on_deleted(name)
        await self._catalog.end_deletion(topic_id)

    async def _grow_all(self, call: Call) -> None:
        request = cast("CreatePartitionsRequest", call.request)

        async def grow(wanted: TopicPartitionCount, deadline: float) -> TopicResult:
            async with turn(self._catalog.lock, wanted.name, deadline):
                topic = self._catalog.check_growth(wanted.name, wanted.count)
                if not request.validate_only:
                    grown = self._catalog.draft_growth(topic, wanted.count)
                    await self._make(grown, range(len(topic.partitions), wanted.count))
                    log.info("partitions added", topic=wanted.name, partitions=wanted.count)
            return TopicResult(wanted.name, ErrorCode.NONE)

        await answer_each(
            self._tasks, call, request.topics, request.timeout_ms, grow,
            lambda wanted, code, message: TopicResult(wanted.name, code, message), CreatePartitionsResponse,
        )  # fmt: skip


def check_named_once(names: Counter[str], name: str) -> None:
    """Raises ``TopicError`` when a request asks for two changes of one topic."""
    if names[name] > 1:
        message = f"topic {name[:60]!r} is named {names[name]} times in one request"
        raise TopicError(ErrorCode.INVALID_REQUEST, message)


@asynccontextmanager
async def turn(lock: asyncio.Lock, name: str, deadline: float) -> AsyncIterator[None]:
    """Waits until no other change is under way, or raises ``TopicError`` when the deadline comes first."""
    try:
        async with asyncio.timeout_at(deadline):
            await lock.acquire()
    except TimeoutError:
        message = f"topic {name[:60]!r}: other changes took all the time; this one has not begun and will not"
        raise TopicError(ErrorCode.REQUEST_TIMED_OUT, message) from None
    try:
        yield
    finally:
        lock.release()


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
    loop = asyncio.get_running_loop()
    deadline = loop.time() + max(timeout_ms, 0) / 1000
    late = f"not done after {timeout_ms} ms: a change that has begun goes on, look again later"
    results: list[Result] = []
    texts = ErrorTexts()

    def told(entry: Wanted, code: ErrorCode, text: str) -> Result:
        return refusal(entry, code, texts(text))

    def answer() -> None:
        if call.open:
            missing = [told(entry, ErrorCode.REQUEST_TIMED_OUT, late) for entry in wanted[len(results) :]]
            call.answer(response(tuple(results + missing)))

    timer = loop.call_at(deadline, answer)
    try:
        for entry in wanted:
            if len(results) % STEP == STEP - 1:
                await tasks.next_step(call)
            results.append(await _refused(entry, change(entry, deadline), told))
    finally:
        timer.cancel()
    answer()


async def _refused(
    wanted: Wanted, change: Awaitable[Result], refusal: Callable[[Any, ErrorCode, str], Result]
) -> Result:
    """The result of a change, also of one that failed: it must not hide what became of the others."""
    try:
        return await change
    except TopicError as error:
        return refusal(wanted, error.code, str(error))
    except (OSError, LogError) as error:
        return refusal(wanted, ErrorCode.KAFKA_STORAGE_ERROR, f"the change is not complete: {error}")
    except Exception:
        log.exception("a change of topics failed unexpectedly", wanted=str(wanted)[:200])
        return refusal(wanted, ErrorCode.UNKNOWN_SERVER_ERROR, "the daemon failed unexpectedly; its log has the cause")
