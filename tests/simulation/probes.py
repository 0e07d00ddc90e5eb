"""Eyes in the running system: production methods wrapped, from the test side, so that they also note what they did.

Nothing is changed or drawn. ``installed`` puts the wrappers in for one history; the running process
tells which history a call belongs to.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from contextlib import contextmanager
from typing import Any

import structlog

from client.consumer.rebalance import ConsumerParticipant
from client.producer.sender import Sender
from coordinator.groups.config import GroupStep
from coordinator.groups.core import GroupCore
from coordinator.groups.group import Group
from coordinator.groups.records import GenerationTombstone, OffsetCommitRecord, OffsetCommitTombstone
from coordinator.kafka.calls import Asked, KafkaCall
from coordinator.runtime.shard import CoordinatorShard
from coordinator.server.call import NO_ERRORS
from coordinator.server.dispatch import Dispatcher, WireCall
from protocol.errors import ErrorCode, ProtocolError
from protocol.messages import Request
from protocol.messages.groups import (
    DeleteGroupsResponse,
    JoinGroupRequest,
    JoinGroupResponse,
    LeaveGroupRequest,
    SyncGroupRequest,
    SyncGroupResponse,
)
from protocol.messages.offsets import OffsetCommitRequest, OffsetFetchRequest, OffsetFetchResponse
from protocol.messages.records import (
    LATEST_TIMESTAMP,
    FetchResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ProduceRequest,
    ProduceResponse,
)
from protocol.record_batch import iter_batches
from protocol.subscription import CONSUMER_PROTOCOL_TYPE, decode_assignment
from tests.simulation import cluster_probes, record_probes
from tests.simulation.group_probes import expire, held_by, join, leave, rename, tell
from tests.simulation.history import (
    Accepted,
    CallFact,
    Committed,
    Deleted,
    Ended,
    Erased,
    Gone,
    Partition,
    Served,
    Told,
)
from tests.simulation.transaction_probes import note_kept
from tests.simulation.world import HostProcess, World, here

ALARMS = ("unexpectedly", "durable_callback_failed", "progress_listener_failed")
"""What a log line contains that is never to be written."""


@contextmanager
def installed(*, verbose: bool = False) -> Iterator[None]:
    """The wrappers and the capture of log lines, for the time of a ``with``."""
    originals: list[tuple[Any, str, Any]] = []

    def wrap(owner: Any, name: str, wrapper: Callable[..., Any]) -> None:
        original = getattr(owner, name)
        originals.append((owner, name, original))

        @functools.wraps(original)
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            return wrapper(original, *args, **kwargs)

        setattr(owner, name, wrapped)

    before = structlog.get_config()
    level = logging.INFO if verbose else logging.ERROR
    structlog.configure(processors=[_capture], wrapper_class=structlog.make_filtering_bound_logger(level))
    try:
        wrap(Dispatcher, "handle", _handle)
        wrap(WireCall, "answer", _answer)
        wrap(WireCall, "answer_packed", _answer_packed)
        wrap(WireCall, "refuse", _refuse)
        wrap(WireCall, "finish_silently", _finish_silently)
        wrap(CoordinatorShard, "_perform", _perform)
        wrap(GroupCore, "decide", _decide)
        wrap(GroupCore, "on_timer", expire)
        wrap(Group, "remove", _remove)
        wrap(Group, "rename", rename)
        wrap(Sender, "retrying", _retrying)
        wrap(ConsumerParticipant, "_tell", tell)
        wrap(KafkaCall, "__init__", _kafka_call)
        wrap(KafkaCall, "ask", _kafka_ask)
        wrap(Asked, "answer", _kafka_answer)
        record_probes.install(wrap)
        cluster_probes.install(wrap)
        yield
    finally:
        for owner, name, original in reversed(originals):
            setattr(owner, name, original)
        structlog.configure(**before)


def _capture(_: Any, method: str, line: MutableMapping[str, Any]) -> Any:
    place = here()
    if place is not None:
        world, process = place
        event = str(line.pop("event", ""))
        detail = " ".join(f"{name}={value}" for name, value in line.items() if name != "exc_info")
        world.history.say(process.name, f"[{method}] {event} {detail}")
        if any(alarm in event or alarm in detail for alarm in ALARMS):
            import sys

            world.history.unexpected.append(f"{process.name} logged {event!r} {detail}: {sys.exc_info()[1]!r}")
    raise structlog.DropEvent


def _handle(original: Callable[..., Any], dispatcher: Dispatcher, call: WireCall) -> Any:
    place = here()
    if place is not None:
        world, process = place
        request = call.request
        fact = CallFact(type(request).__name__, process.life, world.loop.time(), connection=call.connection)
        fact.expects_answer = not (isinstance(request, ProduceRequest) and request.acks == 0)
        world.history.calls.append(fact)
        world.facts[call] = fact
        _note_request(world, request)
    return original(dispatcher, call)  # the steps that are left to do


def _note_request(world: World, request: Request) -> None:
    """The coordinator sees a member's ownership end."""
    if isinstance(request, JoinGroupRequest):
        world.history.ownership.append(
            Ended(world.loop.time(), request.group_id, request.member_id, "asked to join again", held_by(request))
        )
    elif isinstance(request, LeaveGroupRequest):
        for leaving in request.members:
            world.history.ownership.append(Ended(world.loop.time(), request.group_id, leaving.member_id, "left"))


def _kafka_call(original: Callable[..., None], call: KafkaCall, *args: Any) -> None:
    """A request of a Kafka client came; it has one answer as any other."""
    original(call, *args)
    place = here()
    if place is not None:
        world, process = place
        kind = type(call.message).__name__
        fact = CallFact(kind, process.life, world.loop.time(), connection=call.connection)
        world.history.calls.append(fact)
        world.facts[call] = fact
        note_kept(world, call, fact)


def _kafka_ask(original: Callable[..., Any], call: KafkaCall, handler: Any, request: Request, told: Any) -> Any:
    """What a Kafka client asked is asked in Cohort's own terms: noted as if it had come so."""
    place = here()
    if place is None:
        return original(call, handler, request, told)
    world, process = place
    _note_request(world, request)

    def noted(asked: Asked) -> Any:
        world.facts[asked] = CallFact(type(request).__name__, process.life, world.loop.time())
        record_probes.note_fetch(world, process, asked)
        return handler(asked)

    return original(call, noted, request, told)


def _kafka_answer(original: Callable[..., None], asked: Asked, response: Any) -> None:
    place = here()
    if place is not None and asked.open:
        _note_answer(*place, asked, response)
        record_probes.note_fetched(*place, asked, response)
    original(asked, response)


def _answer(original: Callable[..., None], call: WireCall, response: Any) -> None:
    place = here()
    if place is not None:
        world, process = place
        _count(world, call)
        _note_answer(world, process, call, response)
    original(call, response)


def _answer_packed(
    original: Callable[..., None], call: WireCall, head: bytes, body: bytes, errors: Mapping[int, int] = NO_ERRORS
) -> None:
    place = here()
    if place is not None:
        _count(place[0], call)
    original(call, head, body, errors)


def _refuse(original: Callable[..., None], call: WireCall, code: ErrorCode, message: str) -> None:
    place = here()
    if place is not None:
        _count(place[0], call)
    original(call, code, message)


def _finish_silently(original: Callable[..., None], call: WireCall) -> None:
    place = here()
    if place is not None:
        world = place[0]
        fact = world.facts.get(call)
        if fact is not None:
            fact.expects_answer = False
    original(call)


def _count(world: World, call: WireCall) -> None:
    fact = world.facts.get(call)
    if fact is not None and call.open:  # what comes after the answer, such as a write behind its timeout, is not sent
        fact.answers += 1


def _note_answer(world: World, process: HostProcess, call: WireCall | Asked, response: Any) -> None:
    history, now = world.history, world.loop.time()
    request = call.request
    asked_s = world.facts[call].at_s if call in world.facts else now
    if isinstance(response, JoinGroupResponse) and isinstance(request, JoinGroupRequest):
        if response.error_code == ErrorCode.NONE:
            history.ownership.append(
                Told(
                    now,
                    _core(world, process, request.group_id),
                    "join",
                    request.group_id,
                    response.member_id,
                    response.generation_id,
                    asked_s,
                    instance=request.group_instance_id,
                    reason=response.rebalance_reason,
                )
            )
    elif isinstance(response, SyncGroupResponse) and isinstance(request, SyncGroupRequest):
        if response.error_code == ErrorCode.NONE:
            share = _share(response)
            history.ownership.append(
                Told(
                    now,
                    _core(world, process, request.group_id),
                    "sync",
                    request.group_id,
                    request.member_id,
                    request.generation_id,
                    asked_s,
                    share,
                    request.group_instance_id,
                )
            )
    elif isinstance(response, DeleteGroupsResponse):
        history.deleted += [
            Deleted(now, asked_s, result.group_id) for result in response.results if result.error_code == ErrorCode.NONE
        ]
    elif isinstance(response, OffsetFetchResponse) and isinstance(request, OffsetFetchRequest):
        cluster_probes.note_commits(world, request, response, asked_s)
        for answered in response.topics:
            for offset in answered.partitions:
                if offset.error_code == ErrorCode.NONE and offset.committed_offset >= 0:
                    partition = (answered.name, offset.partition_index)
                    history.shown.append(Committed(now, 0, request.group_id, partition, offset.committed_offset))
    elif isinstance(response, ProduceResponse):
        cluster_probes.note_produced(world, process.name, response)
    elif isinstance(response, FetchResponse):
        for topic in response.responses:
            for found in topic.partitions:
                if found.error_code == ErrorCode.NONE:
                    partition = (topic.topic, found.partition_index)
                    # A leader that has not heard yet how far an earlier one was may have a batch that was joined below that.
                    known = max(found.high_watermark, history.records.committed.get(partition, 0))
                    history.served.append(Served(process.life, partition, known, _end(found.records)))
    elif isinstance(response, ListOffsetsResponse) and isinstance(request, ListOffsetsRequest):
        cluster_probes.note_ends(world, request, response, asked_s)
        asked = {
            (topic.name, ask.partition_index): ask.timestamp for topic in request.topics for ask in topic.partitions
        }
        for listed in response.topics:
            for entry in listed.partitions:
                partition = (listed.name, entry.partition_index)
                if entry.error_code == ErrorCode.NONE and asked.get(partition) == LATEST_TIMESTAMP:
                    history.served.append(Served(process.life, partition, entry.offset, -1))


def _core(world: World, process: HostProcess, group_id: str) -> int:
    """The life of the coordinator that answers: it ends with the daemon, and when the shard loads its log again."""
    daemon = process.daemon
    shard = daemon._groups.shard(group_id) if daemon is not None and daemon._groups is not None else None
    return world.serial_of(shard.core) if shard is not None else -process.life


def _share(response: SyncGroupResponse) -> tuple[Partition, ...]:
    if response.protocol_type == CONSUMER_PROTOCOL_TYPE:
        return tuple((tp.topic, tp.partition) for tp in decode_assignment(response.assignment))
    return tuple(("shard", int(number)) for number in response.assignment.decode().split())


def _end(records: bytes) -> int:
    end = -1
    try:
        for _, header in iter_batches(records):
            end = header.next_offset
    except ProtocolError:
        return end  # the last batch may be cut off; the consumer checks what it gets
    return end


def _perform(original: Callable[..., None], shard: CoordinatorShard[GroupCore], effects: Any, *args: Any) -> None:
    place = here()
    for record in effects.records if place is not None else ():
        world = place[0]  # type: ignore[index]
        now, life = world.loop.time(), world.serial_of(shard.core)
        if isinstance(record, OffsetCommitRecord):
            partition = (record.topic, record.partition)
            world.history.applied.append(Committed(now, life, record.group_id, partition, record.offset))
        elif isinstance(record, OffsetCommitTombstone):
            world.history.applied.append(Erased(now, life, record.group_id, (record.topic, record.partition)))
        elif isinstance(record, GenerationTombstone):
            world.history.ownership.append(Gone(now, record.group_id))
    original(shard, effects, *args)


def _decide(original: Callable[..., Any], core: GroupCore, request: Any, step: GroupStep) -> Any:
    match request:
        case OffsetCommitRequest():
            return _commit(original, core, request, step)
        case JoinGroupRequest():
            return join(original, core, request, step)
        case LeaveGroupRequest():
            return leave(original, core, request, step)
    return original(core, request, step)


def _commit(original: Callable[..., Any], core: GroupCore, request: OffsetCommitRequest, step: GroupStep) -> Any:
    effects = original(core, request, step)
    place = here()
    if place is not None and effects.records and request.generation_id >= 0:
        group = core.groups[request.group_id]
        place[0].history.accepted.append(
            Accepted(
                place[0].loop.time(),
                request.group_id,
                request.member_id,
                request.generation_id,
                group.generation,
                tuple(group.members),
            )
        )
    return effects


def _remove(original: Callable[..., None], group: Group, member: Any) -> None:
    place = here()
    if place is not None:
        history = place[0].history
        history.ownership.append(Ended(place[0].loop.time(), group.group_id, member.member_id, "was removed"))
    original(group, member)


def _retrying(original: Callable[..., None], sender: Sender, *args: Any) -> None:
    place = here()
    if place is not None:
        place[0].history.retried[place[1].name] = None
    original(sender, *args)
