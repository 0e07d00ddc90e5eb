"""DeleteRecords (21): the log start offset of partitions moves; durably when the answer leaves.

The time that a client gives is for what others do, end markers and replicas: what can be deleted at once is, also for one
that gives none, as in Kafka.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from itertools import islice
from typing import Final, cast

from coordinator.log.acknowledged import Leadership
from coordinator.log.errors import LogError, NotLeaderError, OffsetNotInLogError
from coordinator.log.partition import PartitionLog
from coordinator.log_output import get_logger
from coordinator.metadata.catalog import TopicError
from coordinator.server.call import Call, Handler
from coordinator.server.handlers.topic_change import answer_each
from coordinator.server.node import Node
from protocol.errors import ErrorCode
from protocol.messages.records import (
    DeletedRecords,
    DeletedRecordsTopic,
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
)

log = get_logger()

_ALL_RECORDS: Final = -1
_MARKER_S: Final = 2.0
"""How long a request waits at most for end markers of transactions whose records are to go."""

_DISK_MS: Final = 1_000
"""What this node's disk may take at least, whatever time a client gives."""


def handler(node: Node) -> Handler:
    """Deletes from one partition after the other."""
    return lambda call: node.tasks.start_change(call, _delete_all(node, call))


async def _delete_all(node: Node, call: Call) -> None:
    request = cast("DeleteRecordsRequest", call.request)
    asked = [(topic.name, ask) for topic in request.topics for ask in topic.partitions]
    given_s = max(request.timeout_ms, 0) / 1000
    now = asyncio.get_running_loop().time()
    decided_by = now + min(_MARKER_S, given_s / 2)  # the other half is for what may be deleted all the same

    async def delete(wanted: tuple[str, DeleteRecordsPartition], deadline: float) -> DeletedRecords:
        return await _delete(node, *wanted, now + given_s, decided_by)

    def refusal(wanted: tuple[str, DeleteRecordsPartition], code: ErrorCode, text: str) -> DeletedRecords:
        return DeletedRecords(wanted[1].partition_index, -1, code, text)

    def response(results: tuple[DeletedRecords, ...]) -> DeleteRecordsResponse:
        left = iter(results)
        return DeleteRecordsResponse(
            tuple(
                DeletedRecordsTopic(topic.name, tuple(islice(left, len(topic.partitions)))) for topic in request.topics
            )
        )

    await answer_each(node.tasks, call, asked, max(request.timeout_ms, _DISK_MS), delete, refusal, response)


async def _delete(
    node: Node, name: str, ask: DeleteRecordsPartition, deadline: float, decided_by: float
) -> DeletedRecords:
    index = ask.partition_index
    try:
        topic = node.catalog.topic(name)
        if topic.internal:
            raise TopicError(ErrorCode.INVALID_TOPIC_EXCEPTION, f"topic {name!r} is internal and keeps its records")
        config = node.catalog.config(topic)
        if config.compact and not config.delete:
            raise TopicError(
                ErrorCode.POLICY_VIOLATION,
                f"topic {name!r} is compacted only (cleanup.policy): its records go when their keys are written again. "
                "Write tombstones, or set cleanup.policy=compact,delete",
            )
        opened = node.logs.find(topic, index)
        offset = opened.high_watermark if ask.offset == _ALL_RECORDS else ask.offset
        if offset < 0:
            raise TopicError(ErrorCode.OFFSET_OUT_OF_RANGE, f"offset {offset} is neither one nor -1 (all)")
        leadership = opened.leadership
        await _decided(opened, offset, decided_by)
        if node.logs.led.get((name, index)) is not opened or opened.leadership is not leadership:
            raise NotLeaderError("this node does not lead the partition any more")
        if ask.offset == _ALL_RECORDS:
            offset = min(offset, opened.last_stable_offset)
        start = await opened.delete_before(offset)
        if leadership is not None:  # also when it has ended since: then others have to be asked
            await _deleted_everywhere(leadership, start, deadline)
    except TopicError as error:
        raise TopicError(error.code, f"{name[:60]}-{index}: {error}") from error
    except OffsetNotInLogError as error:
        message = f"{name}-{index} ends at offset {error.end}, so nothing was deleted below {error.offset}"
        if open_here := opened.open_transactions():
            message = (
                f"producer {open_here[0].producer_id} has a transaction open in {name}-{index}, and records can be deleted "
                f"below offset {error.end} only; nothing was deleted below {error.offset}"
            )
        raise TopicError(ErrorCode.OFFSET_OUT_OF_RANGE, message) from error
    except NotLeaderError as error:
        raise TopicError(ErrorCode.NOT_LEADER_OR_FOLLOWER, f"{name}-{index}: {error}") from error
    except (LogError, OSError) as error:
        raise TopicError(ErrorCode.KAFKA_STORAGE_ERROR, f"{name}-{index}: {error}") from error
    log.info("records_deleted", topic=name, partition=index, log_start_offset=start)
    return DeletedRecords(index, start, ErrorCode.NONE)


async def _decided(opened: PartitionLog, offset: int, deadline: float) -> None:
    """Waits until ``deadline`` for the fate of what was acknowledged below ``offset``.

    A commit is told once it is decided, a moment before its marker is in the log (in a cluster it travels there), and who
    was told may delete what was committed. What is open for longer stays: who names an offset behind it is refused.
    """
    if not opened.last_stable_offset < offset <= opened.high_watermark:
        return
    decided = asyncio.Event()

    def look() -> None:
        if opened.last_stable_offset >= offset:
            decided.set()

    done_listening = opened.on_advance(look)
    try:
        with suppress(TimeoutError):
            async with asyncio.timeout_at(deadline):
                await decided.wait()
    finally:
        done_listening()


async def _deleted_everywhere(leadership: Leadership, start: int, deadline: float) -> None:
    """Until every replica in sync begins there too: another leader would bring the records back.

    Raises ``TopicError``, and ``NotLeaderError`` when the leadership is over.
    """
    try:
        async with asyncio.timeout_at(deadline):
            await leadership.wait_deleted(start)
    except TimeoutError as error:
        message = f"deleted here before offset {start}, and not yet by every replica in sync: ask again"
        raise TopicError(ErrorCode.REQUEST_TIMED_OUT, message) from error
