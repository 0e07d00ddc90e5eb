"""Fetch (1): records of partitions; as a long poll, once there are enough.

A client that does not say that it reads batches of Kafka's clients gets their records as columns, converted for each answer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Final, cast

from coordinator.log.errors import LogDamagedError, LogError, OffsetNotInLogError
from coordinator.log.leader_epochs import EpochEnd
from coordinator.log.partition import PartitionLog
from coordinator.metadata.catalog import Catalog, TopicError
from coordinator.server.call import Call, Client, Handler
from coordinator.server.dispatch import STEP, ErrorTexts, Tasks
from coordinator.server.handlers.led_partitions import LedPartitions
from coordinator.server.node import Node
from protocol.errors import ErrorCode
from protocol.kafka.batch import KafkaBatchError
from protocol.kafka.conversion import has_kafka_batches, in_columns
from protocol.messages.records import (
    READ_COMMITTED,
    FetchedPartition,
    FetchedTopic,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
)
from protocol.record_batch import iter_batches

_REREAD_S: Final = 0.005
"""Pause before what turned out to be less than ``min_bytes`` is looked at again."""
_FOUND_PER_STEP: Final = 4 * STEP
"""Partitions that are looked up in one step of a fetch; to read one takes longer."""


@dataclass(slots=True)
class _Wanted:
    """One partition of a fetch: its log, or the answer that says why there is none."""

    topic: str
    ask: FetchPartition
    committed: bool
    """Whether it is read only up to the last stable offset, without what is aborted."""
    log: PartitionLog | None
    result: FetchedPartition | None


def handler(node: Node) -> Handler:
    """See ``FetchHandler``."""
    settings = node.settings
    return FetchHandler(
        node.catalog,
        LedPartitions(node.catalog, node.logs, node.membership),
        node.tasks,
        max_wait_ms=settings.max_fetch_wait_ms,
        max_bytes=settings.max_fetch_bytes,
    ).handle


class FetchHandler:
    """Reads records."""

    def __init__(self, catalog: Catalog, led: LedPartitions, tasks: Tasks, *, max_wait_ms: int, max_bytes: int) -> None:
        self._catalog = catalog
        self._led = led
        self._tasks = tasks
        self._max_wait_ms = max_wait_ms
        self._max_bytes = max_bytes

    def handle(self, call: Call) -> None:
        """Answers when there are enough records, or with what there is once the client has waited long enough."""
        self._tasks.start(call, self._fetch(call))

    async def _fetch(self, call: Call) -> None:
        request = cast("FetchRequest", call.request)
        loop = asyncio.get_running_loop()
        deadline = loop.time() + min(max(request.max_wait_ms, 0), self._max_wait_ms) / 1000
        patience = self._tasks.patience(call)
        while True:
            stops: list[Callable[[], None]] = []
            with self._tasks.long_poll() as changed, _stopped_after(stops):
                wanted = await self._find_all(call, request, changed, stops)
                if loop.time() >= deadline or not patience() or self._may_answer(wanted, request):
                    await call.until_its_turn()
                    async with call.connection.sending:
                        await call.connection.until_uncongested()
                        try:
                            enough = await self._read(call, wanted)
                            if enough or loop.time() >= deadline or not patience():
                                call.answer(self._response(wanted))
                                await call.until_sent()
                                return
                        finally:
                            call.connection.prepare(0)
                        _forget_records(wanted)
                    await asyncio.sleep(_REREAD_S)  # less than min_bytes: let some more come together
                with suppress(TimeoutError):  # then a last look
                    async with asyncio.timeout_at(deadline):
                        await changed.wait()

    async def _find_all(
        self, call: Call, request: FetchRequest, changed: asyncio.Event, stops: list[Callable[[], None]]
    ) -> list[_Wanted]:
        """All partitions that are asked for; ``changed`` is set when one of them has more."""
        wanted, texts = list[_Wanted](), ErrorTexts()
        committed = request.isolation_level == READ_COMMITTED
        for topic in request.topics:
            for ask in topic.partitions:
                if len(wanted) % _FOUND_PER_STEP == _FOUND_PER_STEP - 1:
                    await self._tasks.next_step(call)
                entry = self._find(topic, ask, committed, texts)
                wanted.append(entry)
                if entry.log is not None:
                    stops.append(entry.log.on_advance(changed.set))
        return wanted

    def _find(self, asked: FetchTopic, ask: FetchPartition, committed: bool, texts: ErrorTexts) -> _Wanted:
        topic, index = asked.topic, ask.partition
        try:
            opened, _ = self._led.find(topic, index, ask.current_leader_epoch, asked.topic_id)
        except TopicError as error:
            message, leader = texts(f"{topic[:60]}-{index}: {error}"), self._led.hint(error.code, topic, index)
            failed = FetchedPartition(
                index,
                error.code,
                error_message=message,
                current_leader_id=leader.node_id,
                current_leader_epoch=leader.leader_epoch,
            )
            return _Wanted(topic, ask, committed, None, failed)
        divergence = _divergence(opened, ask)
        if divergence is not None:
            diverging = replace(
                _empty(index, opened, ErrorCode.NONE, ""),
                diverging_epoch=divergence.epoch,
                diverging_end=divergence.end,
            )
            return _Wanted(topic, ask, committed, None, diverging)
        return _Wanted(topic, ask, committed, opened, None)

    def _may_answer(self, wanted: list[_Wanted], request: FetchRequest) -> bool:
        """Whether a look at the disk can be worth it: there are records enough, an error, or nothing is waited for."""
        least = min(request.min_bytes, request.max_bytes, self._max_bytes)
        if not wanted or least <= 0:
            return True
        there = 0
        for entry in wanted:
            opened, offset = entry.log, entry.ask.fetch_offset
            if opened is None or offset < 0:
                return True
            end = opened.readable_end(entry.committed)
            if not end <= offset <= opened.end_offset:  # between them it waits for what is committed, or decided
                if least == 1 or not opened.start_offset <= offset < end:
                    return True
                found, more_follows = opened.bytes_from(offset, entry.committed)
                there += found
                if there >= least or more_follows or found > entry.ask.partition_max_bytes:
                    return True  # what an answer has no place for will not find any by waiting
        return False

    async def _read(self, call: Call, wanted: list[_Wanted]) -> bool:
        """Reads what is there; returns whether that is an answer worth sending.

        The bytes are shared out evenly among the partitions that have records, in the order asked: what one leaves, the
        others may take, and none takes more than its share while others wait. Only the first may take more than there is,
        for a batch comes whole (KIP-74); it waits until there is room in memory. What is read counts as unread by its client
        from then on: many that ask at once shall not fill the memory before the first of them has its answer.
        """
        request, connection = cast("FetchRequest", call.request), call.connection
        texts = ErrorTexts()
        left = min(max(request.max_bytes, 0), self._max_bytes)
        enough = min(request.min_bytes, left)
        failed = any(entry.log is None for entry in wanted)
        full: list[_Wanted] = []
        for number, entry in enumerate(wanted, 1):
            if number % _FOUND_PER_STEP == 0:
                await self._tasks.next_step(call)
            if entry.log is None:
                continue
            if 0 <= entry.ask.fetch_offset < entry.log.readable_end(entry.committed):
                full.append(entry)
            else:
                failed |= _answer_without_records(entry, texts)
        total, cut_short = 0, False
        for index, entry in enumerate(full):
            if index % STEP == STEP - 1:
                await self._tasks.next_step(call)
            left = min(left, connection.unread.room())
            if left <= 0 < total:
                cut_short = True
                failed |= _answer_without_records(entry, texts)
                continue
            opened = cast("PartitionLog", entry.log)
            size = max(0, min(entry.ask.partition_max_bytes, left // (len(full) - index)))
            if not total:
                await self._make_room(connection, entry, size)
            end = opened.readable_end(entry.committed)
            entry.result = await _read_partition(entry, size, texts, request.kafka_batches)
            if len(entry.result.records) > left and total:
                # A batch larger than all comes alone, or the answer could exceed the largest frame that a client takes.
                cut_short = True
                failed |= _answer_without_records(entry, texts)
                continue
            total += len(entry.result.records)
            left -= len(entry.result.records)
            connection.prepare(total)
            failed |= entry.result.error_code != ErrorCode.NONE
            if total < enough and not cut_short:
                reached, has_empty = _end_of(entry.result.records, end)
                # Empty batches are news too: the next fetch need not read what they stand for.
                cut_short = reached < end or (entry.committed and has_empty)
        # What an answer has no place for will not find any by waiting, however little it is that came together.
        return failed or cut_short or not wanted or total >= enough

    async def _make_room(self, connection: Client, entry: _Wanted, size: int) -> None:
        """Waits until the first batch of an answer fits in memory, however large it may be, and takes the room for it."""
        opened = cast("PartitionLog", entry.log)
        topic = self._catalog.topics.get(entry.topic)
        largest = 0 if topic is None else self._catalog.config(topic).max_message_bytes
        size = min(opened.bytes_from(entry.ask.fetch_offset, entry.committed)[0], max(size, largest))
        await connection.unread.until_room(size)
        connection.prepare(size)

    def _response(self, wanted: list[_Wanted]) -> FetchResponse:
        topics: dict[str, list[FetchedPartition]] = {}
        leaders: set[int] = set()
        for entry in wanted:
            if entry.result is not None:
                topics.setdefault(entry.topic, []).append(entry.result)
                if entry.result.current_leader_id >= 0:
                    leaders.add(entry.result.current_leader_id)
        return FetchResponse(
            ErrorCode.NONE,
            tuple(FetchedTopic(topic, tuple(found)) for topic, found in topics.items()),
            self._led.endpoints(leaders) if leaders else (),
        )


class _stopped_after:  # noqa: N801 - read as a word, like ``suppress``
    """Calls all of these when the block ends."""

    __slots__ = ("_stops",)

    def __init__(self, stops: list[Callable[[], None]]) -> None:
        self._stops = stops

    def __enter__(self) -> None:
        """Nothing to do."""

    def __exit__(self, *error: object) -> None:
        for stop in self._stops:
            stop()


def _forget_records(wanted: list[_Wanted]) -> None:
    """What is not sent is read again: a request that waits holds nothing but itself."""
    for entry in wanted:
        if entry.log is not None:
            entry.result = None


def _end_of(records: bytes, otherwise: int) -> tuple[int, bool]:
    """The offset behind the last of these batches, ``otherwise`` when there is none; and whether one of them is empty."""
    end, has_empty = otherwise, False
    for _, header in iter_batches(records):
        end, has_empty = header.next_offset, has_empty or not header.record_count
    return end, has_empty


def _answer_without_records(entry: _Wanted, texts: ErrorTexts) -> bool:
    """For a partition at its end, or whose turn comes with the next fetch; returns whether that is an error."""
    opened, offset = cast("PartitionLog", entry.log), entry.ask.fetch_offset
    if opened.start_offset <= offset <= opened.end_offset:
        entry.result = _empty(entry.ask.partition, opened, ErrorCode.NONE, "")
        return False
    message = f"{entry.topic}-{entry.ask.partition} holds offsets {opened.start_offset} to {opened.high_watermark}"
    entry.result = _empty(entry.ask.partition, opened, ErrorCode.OFFSET_OUT_OF_RANGE, texts(f"{message}, not {offset}"))
    return True


async def _read_partition(entry: _Wanted, size: int, texts: ErrorTexts, kafka_batches: bool) -> FetchedPartition:
    opened, ask = cast("PartitionLog", entry.log), entry.ask
    try:
        records = await opened.read(ask.fetch_offset, size, entry.committed)
        if not kafka_batches and has_kafka_batches(records):
            convert = partial(in_columns, records, max_bytes=size)
            records = await asyncio.get_running_loop().run_in_executor(None, convert)
    except KafkaBatchError as error:
        code, message = error.code, f"{entry.topic}-{ask.partition}: {error}"
    except OffsetNotInLogError as error:
        code, message = ErrorCode.OFFSET_OUT_OF_RANGE, f"{entry.topic}-{ask.partition}: {error}"
    except LogDamagedError as error:
        code, message = ErrorCode.CORRUPT_MESSAGE, str(error)
    except (LogError, OSError) as error:
        code, message = ErrorCode.KAFKA_STORAGE_ERROR, f"{entry.topic}-{ask.partition} cannot be read: {error}"
    else:
        end, stable = opened.high_watermark, opened.last_stable_offset
        return FetchedPartition(ask.partition, ErrorCode.NONE, end, stable, opened.start_offset, records)
    return _empty(ask.partition, opened, code, texts(message))


def _empty(partition: int, opened: PartitionLog, code: ErrorCode, message: str) -> FetchedPartition:
    end, stable = opened.high_watermark, opened.last_stable_offset
    return FetchedPartition(partition, code, end, stable, opened.start_offset, b"", message)


def _divergence(opened: PartitionLog, ask: FetchPartition) -> EpochEnd | None:
    """Where the log has something else than the client read, before the offset it asks for (KIP-320).

    What compaction has been at is not judged: it may give a batch the offsets of later epochs.
    """
    epoch, offset = ask.last_fetched_epoch, ask.fetch_offset
    if epoch < 0 or offset <= max(opened.start_offset, opened.clean_until):
        return None
    found = opened.epochs.end_of(epoch, opened.end_offset)
    return None if found.epoch == epoch and found.end >= offset else found
