"""CreateTopics (19), DeleteTopics (20), CreatePartitions (37).

One change is under way at a time. Topics that one request creates, and those of requests that wait at the same time, are
made some at a time, with one write of the metadata (a group commit).
What a client waits for is bounded by its ``timeout_ms``: a change that has not begun by then is dropped, one that has begun
goes on, and both are answered with REQUEST_TIMED_OUT. So never more than one change is left without somebody who waits for
it.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from itertools import chain
from typing import Any, Final, TypeVar, cast

from coordinator.filesystem.storage import WriteInDoubtError
from coordinator.log.errors import LogError
from coordinator.log_output import get_logger
from coordinator.logs.log_manager import LogManager
from coordinator.metadata.catalog import Catalog, Topic, TopicError, parse_topic_config
from coordinator.server.call import Call
from coordinator.server.dispatch import STEP, ErrorTexts, Handler, Tasks
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

_PARTITIONS_AT_ONCE: Final = 256
"""Partitions of new topics that are made together: they share the syncs, and other changes wait no longer than for these."""


@dataclass(slots=True, eq=False)
class _Creation:
    """Topics of one request that are made together; ``results`` is set when it is known what became of them."""

    wanted: Sequence[CreatableTopic]
    names: Counter[str]
    validate_only: bool
    results: list[CreatedTopic | Exception] | None = None


Wanted = TypeVar("Wanted")
Result = TypeVar("Result", CreatedTopic, TopicResult, AlteredTopicConfigs, DeletedRecords)


class TopicHandlers:
    """Changes topics. A change once begun goes on when its client hangs up.

    ``on_deleted`` is awaited with the name of a deleted topic before its name is free again.
    """

    def __init__(
        self,
        catalog: Catalog,
        partitions: LogManager,
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
        self._waiting: list[_Creation] = []
        """Creations that have not begun, in order of arrival; as many as there are requests under way at most."""

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

        async def create(some: Sequence[CreatableTopic], deadline: float) -> list[CreatedTopic | Exception]:
            return await self._in_turn(_Creation(some, names, request.validate_only), deadline)

        await answer_in_batches(
            self._tasks, call, self._batches(request.topics), request.timeout_ms, create,
            lambda wanted, code, message: CreatedTopic(wanted.name, code, message), CreateTopicsResponse,
        )  # fmt: skip

    def _count(self, wanted: CreatableTopic) -> int:
        return self._default_partitions if wanted.num_partitions == -1 else wanted.num_partitions

    def _batches(self, wanted: Sequence[CreatableTopic]) -> Iterator[Sequence[CreatableTopic]]:
        """Cuts topics into as many as are made together."""
        some: list[CreatableTopic] = []
        partitions = 0
        for entry in wanted:
            partitions += max(1, self._count(entry))
            if some and (partitions > _PARTITIONS_AT_ONCE or len(some) == STEP):
                yield some
                some, partitions = [], max(1, self._count(entry))
            some.append(entry)
        if some:
            yield some

    async def _in_turn(self, creation: _Creation, deadline: float) -> list[CreatedTopic | Exception]:
        """Makes topics when no other change is under way, together with others that wait then; or is one of those."""
        self._waiting.append(creation)
        try:
            async with turn(self._catalog.lock, creation.wanted[0].name, deadline):
                while creation.results is None:
                    await self._create_together(self._taken())
            return creation.results
        finally:
            if creation in self._waiting:
                self._waiting.remove(creation)

    def _taken(self) -> list[_Creation]:
        """Takes the first creation that waits, and of those behind it as many as may be made together with it."""
        taken: list[_Creation] = []
        names: set[str] = set()
        partitions = 0
        for creation in self._waiting:
            partitions += sum(self._count(entry) for entry in creation.wanted)
            wanted = {entry.name for entry in creation.wanted}
            if taken and (creation.validate_only or partitions > _PARTITIONS_AT_ONCE or not names.isdisjoint(wanted)):
                break
            taken.append(creation)
            names |= wanted
            if creation.validate_only:
                break
        del self._waiting[: len(taken)]
        return taken

    async def _create_together(self, creations: Sequence[_Creation]) -> None:
        try:
            await self._create(creations)
        except Exception as error:
            for creation in creations:
                creation.results = [error] * len(creation.wanted)
        finally:
            self._waiting[:0] = [each for each in creations if each.results is None]  # cancelled: the next one's task

    async def _create(self, creations: Sequence[_Creation]) -> None:
        """Makes what can be made of these topics; for each that cannot, says why."""
        drafts: dict[str, Topic] = {}
        failed: dict[str, Exception] = {}
        beside = 0
        for creation in creations:
            for entry in creation.wanted:
                try:
                    check_named_once(creation.names, entry.name)
                    drafts[entry.name] = draft = await self._drafted(entry, beside, creation.validate_only)
                except (TopicError, OSError, LogError) as error:
                    failed[entry.name] = error
                else:
                    beside += 0 if creation.validate_only else len(draft.partitions)
        if not creations[0].validate_only:
            failed |= await self._make_each(tuple(drafts.values()))
        for creation in creations:
            creation.results = [
                failed.get(entry.name) or _created(drafts[entry.name], creation.validate_only)
                for entry in creation.wanted
            ]

    async def _drafted(self, wanted: CreatableTopic, beside: int, validate_only: bool) -> Topic:
        partitions = self._count(wanted)
        self._catalog.check_new(wanted.name, partitions, wanted.replication_factor, beside)
        config = parse_topic_config({entry.name: entry.value for entry in wanted.configs})
        self._catalog.check_config(config)
        if not validate_only:
            for topic_id, name, count in self._catalog.deletions():
                if name == wanted.name:  # directories go by name: nothing of the namesake may be left
                    await self._finish_deletion(topic_id, name, count)
        return self._catalog.draft(wanted.name, partitions, config)

    async def _make_each(self, drafts: Sequence[Topic]) -> dict[str, Exception]:
        """Makes topics all at once or, if that fails, one by one: what is wrong with one must not keep the others from
        being made. Tells by name what failed."""
        try:
            await self._make([(topic, range(len(topic.partitions))) for topic in drafts])
        except Exception as error:
            if len(drafts) == 1 or isinstance(error, WriteInDoubtError):
                return {topic.name: error for topic in drafts}
        else:
            return {}
        failed: dict[str, Exception] = {}
        for topic in drafts:
            failed |= await self._make_each([topic])
        return failed

    async def _make(self, fresh: Sequence[tuple[Topic, range]]) -> None:
        """Logs first, so that a partition that clients can see has one; without the metadata the logs go again."""
        if not fresh:
            return
        try:
            await self._partitions.create_all(fresh)
            await self._catalog.commit(*(topic for topic, _ in fresh))
        except WriteInDoubtError:
            raise  # the topics may be on disk, and the next start wants their logs then
        except BaseException:
            for topic, indexes in fresh:
                if not self._catalog.has(topic.name, indexes[-1]):  # else cancelled, but only after the change was made
                    await self._partitions.delete(topic.name, indexes)
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
                    await self._make([(grown, range(len(topic.partitions), wanted.count))])
                    log.info("partitions added", topic=wanted.name, partitions=wanted.count)
            return TopicResult(wanted.name, ErrorCode.NONE)

        await answer_each(
            self._tasks, call, request.topics, request.timeout_ms, grow,
            lambda wanted, code, message: TopicResult(wanted.name, code, message), CreatePartitionsResponse,
        )  # fmt: skip


def _created(topic: Topic, validate_only: bool) -> CreatedTopic:
    if not validate_only:
        log.info("topic created", topic=topic.name, partitions=len(topic.partitions))
    topic_id = "" if validate_only else topic.topic_id
    return CreatedTopic(topic.name, ErrorCode.NONE, "", topic_id, len(topic.partitions))


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
                told(entry, *_explained(outcome)) if isinstance(outcome, Exception) else outcome
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
        if isinstance(outcome, Exception) and not isinstance(outcome, (TopicError, OSError, LogError)):
            log.error("a change of topics failed unexpectedly", wanted=str(entry)[:200], exc_info=outcome)
    return outcomes


def _explained(error: Exception) -> tuple[ErrorCode, str]:
    """What a client is told of a change that failed."""
    if isinstance(error, TopicError):
        return error.code, str(error)
    if isinstance(error, (OSError, LogError)):
        return ErrorCode.KAFKA_STORAGE_ERROR, f"the change is not complete: {error}"
    return ErrorCode.UNKNOWN_SERVER_ERROR, "the daemon failed unexpectedly; its log has the cause"
