"""The cluster as the planner of a query sees it: one client on a thread of its own, every call bounded.

``starting_offsets`` and ``ending_offsets`` turn "earliest", a time or JSON into an offset for each partition.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from time import sleep
from typing import Any, Final, Literal, TypeVar

from client.errors import CohortError, RequestTimedOutError, UnknownTopicOrPartitionError, error_for
from client.log import get_logger
from client.spark.errors import OptionsError
from client.spark.options import EARLIEST, LATEST, SourceOptions, Start
from client.spark.ownership import Ownership
from client.transport.background_loop import BackgroundThread
from client.transport.cluster import Cluster
from client.transport.deadline import Deadline
from client.transport.group_offsets import fetch_committed
from client.transport.list_offsets import list_offsets
from client.transport.metadata import Topology
from client.transport.retry import retrying
from protocol.errors import ErrorCode
from protocol.messages.records import READ_UNCOMMITTED, FetchPartition, FetchRequest, FetchResponse, FetchTopic
from protocol.record_batch import iter_batches
from protocol.subscription import TopicPartition

log = get_logger()

T = TypeVar("T")
Offsets = dict[TopicPartition, int]

_GRACE_S: Final = 2.0
"""How much later than its deadline a call is given up from outside: the waits inside end first and say more."""
_SHOWN: Final = 10
_THREAD: Final = BackgroundThread()


class Driver:
    """Plain calls for the methods that Spark calls one after the other. Connects when first used."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self._cluster: Cluster | None = None
        self._ownership: Ownership | None = None
        self._pid = os.getpid()

    def topology(self, *, complete: bool = True) -> Topology:
        """The cluster as it is now, with every topic that the query may read.

        Raises ``UnknownTopicOrPartitionError`` when what was named is not there and must be ``complete``.
        """
        topology = self._asking(self._topology)
        if complete:
            for topic in sorted(self._options.subscribed.named or ()):
                topology.partitions(topic)
            for topic, index in self._options.subscribed.partitions:
                if index >= topology.partitions(topic):
                    raise UnknownTopicOrPartitionError(
                        f"topic {topic!r} has {topology.partitions(topic)} partitions; assign names partition {index}"
                    )
        return topology

    def partitions(self, topology: Topology) -> tuple[TopicPartition, ...]:
        """The partitions that the query reads, sorted, as far as they are there."""
        subscribed = self._options.subscribed
        if subscribed.partitions:
            return tuple(one for one in subscribed.partitions if topology.leader_epoch(one) >= 0)
        return tuple(
            TopicPartition(topic, index)
            for topic in sorted(topology.topics)
            if subscribed.takes(topic)
            for index in range(topology.partitions(topic))
        )

    def listed(self, asked: Mapping[TopicPartition, int], isolation: int | None = None) -> dict[TopicPartition, int]:
        """The first offset at or after a time in each partition, or an end of its log; -1 when there is none.

        With the ``isolation`` of the query unless another is given.
        """
        if not asked:
            return {}
        level = self._options.isolation if isolation is None else isolation

        async def work(cluster: Cluster, deadline: Deadline) -> dict[TopicPartition, int]:
            found = await list_offsets(cluster, asked, deadline, isolation_level=level)
            return {partition: listed.offset for partition, listed in found.items()}

        return self._asking(work)

    def ends(self, partitions: Iterable[TopicPartition]) -> tuple[Offsets, Offsets]:
        """Where the logs end for the query, and of those with replicas the epoch of the leader that said so."""
        asked = dict.fromkeys(partitions, LATEST)
        if not asked:
            return {}, {}

        async def work(cluster: Cluster, deadline: Deadline) -> tuple[Offsets, Offsets]:
            found = await list_offsets(cluster, asked, deadline, isolation_level=self._options.isolation)
            epochs = {one: listed.leader_epoch for one, listed in found.items() if cluster.topology.replicas(one) > 1}
            return {one: listed.offset for one, listed in found.items()}, epochs

        return self._asking(work)

    def committed(self, group_id: str) -> dict[TopicPartition, int]:
        """What a group has committed, once no open transaction can change it any more (KIP-447).

        Raises ``RequestTimedOutError`` when one is open for longer than ``request.timeout.ms``.
        """

        async def work(cluster: Cluster, deadline: Deadline) -> dict[TopicPartition, int]:
            async def once() -> dict[TopicPartition, int]:
                undecided: dict[TopicPartition, CohortError] = {}
                found = await fetch_committed(cluster, group_id, None, deadline, undecided)
                for error in undecided.values():
                    raise error
                return {partition: committed.offset for partition, committed in found.items()}

            what = (
                f"reading the offsets of group {group_id!r}, which an open transaction may change (cohort transactions list "
                f"shows it: that of a query that died ends by its timeout, or by cohort transactions abort),"
            )
            return await retrying(once, deadline=deadline, backoff=cluster.backoff, what=what)

        return self._run(work)

    def record_bytes(self, positions: Mapping[TopicPartition, int]) -> dict[TopicPartition, float]:
        """About how many bytes a record takes, judged by the batch at an offset of each partition."""

        async def work(cluster: Cluster, deadline: Deadline) -> dict[TopicPartition, float]:
            asked = [_record_bytes(cluster, partition, offset, deadline) for partition, offset in positions.items()]
            return dict(zip(positions, await asyncio.gather(*asked), strict=True))

        return self._asking(work)

    def own(self, group_id: str, partitions: Iterable[TopicPartition]) -> None:
        """Takes over the group of the query, or checks that it still owns it; see ``Ownership.acquire``."""

        async def work(cluster: Cluster, deadline: Deadline) -> None:
            if self._ownership is None:
                self._ownership = Ownership(
                    cluster, group_id, self._options.connection, self._options.session_timeout_ms
                )
            await self._ownership.acquire(tuple(partitions), deadline)

        self._run(work)

    @property
    def owns_group(self) -> bool:
        """Whether a group was taken over and not given up."""
        return self._ownership is not None

    @property
    def member(self) -> tuple[str, int, str] | None:
        """Group, generation and member id of the query while it owns a group."""
        return None if self._ownership is None else self._ownership.member

    def commit(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Stores where the query stands in the group that it owns; nothing to do without one."""
        ownership = self._ownership
        if ownership is None:
            return

        async def work(cluster: Cluster, deadline: Deadline) -> None:
            await ownership.commit(offsets, deadline)

        self._run(work)

    def stage(self, spans: Mapping[TopicPartition, tuple[int, int]], ids: Mapping[str, str]) -> None:
        """Says what the next batch reads in the name of the group that the query owns; nothing to do without one."""
        ownership = self._ownership
        if ownership is None:
            return

        async def work(cluster: Cluster, deadline: Deadline) -> None:
            await ownership.stage(spans, ids, deadline)

        self._run(work)

    def release(self) -> None:
        """Gives up the group; it is taken over again when needed."""
        ownership, self._ownership = self._ownership, None
        if ownership is None or self._pid != os.getpid():
            return

        async def work(cluster: Cluster, deadline: Deadline) -> None:
            await ownership.release(deadline)

        self._run(work, timeout_ms=min(5_000, self._options.connection.request_timeout_ms))

    def close(self) -> None:
        """Gives up the group and closes every connection."""
        try:
            self.release()
        finally:
            cluster, self._cluster = self._cluster, None
            if cluster is not None:
                try:
                    _THREAD.call(cluster.close(), _GRACE_S)
                except TimeoutError:
                    log.warning("spark_client_not_closed_in_time", client_id=cluster.client_id)

    async def _topology(self, cluster: Cluster, deadline: Deadline) -> Topology:
        cluster.track(self._options.subscribed.named)
        return await cluster.refresh(deadline)

    def _asking(self, work: Callable[[Cluster, Deadline], Coroutine[Any, Any, T]]) -> T:
        """Runs what only asks, again if it failed and ``fetchOffset.numRetries`` says so."""
        for _ in range(self._options.offset_retries):
            try:
                return self._run(work)
            except CohortError as error:
                if not error.retriable:
                    raise
                sleep(self._options.offset_retry_interval_s)
        return self._run(work)

    def _run(self, work: Callable[[Cluster, Deadline], Coroutine[Any, Any, T]], timeout_ms: int | None = None) -> T:
        connection = self._options.connection
        bound_ms = connection.request_timeout_ms if timeout_ms is None else timeout_ms

        async def whole() -> T:
            deadline = Deadline(bound_ms)
            if self._cluster is None:
                cluster = Cluster(
                    connection.bootstrap_servers,
                    client_id=connection.client_id,
                    request_timeout_ms=connection.request_timeout_ms,
                )
                try:
                    await cluster.start(deadline)
                except BaseException:
                    await cluster.close()
                    raise
                self._cluster = cluster
            return await work(self._cluster, deadline)

        try:
            return _THREAD.call(whole(), bound_ms / 1000 + _GRACE_S)
        except TimeoutError as error:
            raise RequestTimedOutError(
                f"{connection.bootstrap_servers} did not answer within {bound_ms} ms (request.timeout.ms)"
            ) from error


async def _record_bytes(cluster: Cluster, partition: TopicPartition, offset: int, deadline: Deadline) -> float:
    ask = FetchTopic(partition.topic, (FetchPartition(partition.partition, offset, 1),))
    request = FetchRequest(max_wait_ms=0, min_bytes=0, max_bytes=1, topics=(ask,), kafka_batches=True)

    async def once() -> FetchResponse:
        connection = await cluster.connection_to_leader(partition)
        answer = await connection.request(request, FetchResponse, timeout_s=max(0.001, deadline.remaining_s()))
        if answer.error_code != ErrorCode.NONE:
            raise error_for(answer.error_code, f"fetching {partition.topic}-{partition.partition}")
        return answer

    what = f"asking how large the records of {partition.topic}-{partition.partition} are"
    answer = await retrying(once, deadline=deadline, backoff=cluster.backoff, what=what)
    for topic in answer.responses:
        for fetched in topic.partitions:
            for _, header in iter_batches(fetched.records):
                return header.length / max(1, header.last_offset_delta + 1)
    return 1.0


def starting_offsets(driver: Driver, options: SourceOptions, partitions: Sequence[TopicPartition]) -> Offsets:
    """Where a query without a checkpoint begins."""
    if options.starting_timestamps is not None:
        name = "startingTimestamp" if isinstance(options.starting_timestamps, int) else "startingOffsetsByTimestamp"
        strategy = options.without_later_records
        return _by_timestamp(driver, options.starting_timestamps, partitions, name, strategy)
    return _resolved(driver, options, options.starting, partitions, "startingOffsets")


def ending_offsets(driver: Driver, options: SourceOptions, partitions: Sequence[TopicPartition]) -> Offsets:
    """Where a batch ends."""
    if options.ending_timestamps is not None:
        return _by_timestamp(driver, options.ending_timestamps, partitions, "endingOffsetsByTimestamp", "latest")
    return _resolved(driver, options, options.ending, partitions, "endingOffsets")


def _resolved(
    driver: Driver, options: SourceOptions, where: Start, partitions: Sequence[TopicPartition], name: str
) -> Offsets:
    if where == "committed":
        assert options.group_id is not None, "options are checked: committed needs a group"
        committed = driver.committed(options.group_id)
        rest = [partition for partition in partitions if partition not in committed]
        known = {partition: committed[partition] for partition in partitions if partition in committed}
        return known | driver.listed(dict.fromkeys(rest, EARLIEST))
    if isinstance(where, str):
        return driver.listed(dict.fromkeys(partitions, EARLIEST if where == "earliest" else LATEST))
    _check_complete(where, partitions, name)
    if name == "startingOffsets" and options.fail_on_data_loss:
        _check_there(driver, where)
    relative = {partition: offset for partition, offset in where.items() if offset < 0}
    return dict(where) | driver.listed(relative)


def _check_there(driver: Driver, starts: Mapping[TopicPartition, int]) -> None:
    ends = driver.listed(
        dict.fromkeys((one for one, offset in starts.items() if offset >= 0), LATEST), READ_UNCOMMITTED
    )
    beyond = [
        f"{starts[one]} of {one.topic}-{one.partition}, which ends at {ends[one]}"
        for one in sorted(ends)
        if starts[one] > ends[one]
    ]
    if beyond:
        shown = "; ".join(beyond[:_SHOWN]) + (f"; and {len(beyond) - _SHOWN} more" if len(beyond) > _SHOWN else "")
        raise OptionsError([f"startingOffsets has offset {shown}; -2 begins at the first record that is there"])


def _by_timestamp(
    driver: Driver,
    timestamps_ms: int | Mapping[TopicPartition, int],
    partitions: Sequence[TopicPartition],
    name: str,
    strategy: Literal["error", "latest"],
) -> Offsets:
    if isinstance(timestamps_ms, int):
        timestamps_ms = dict.fromkeys(partitions, timestamps_ms)
    _check_complete(timestamps_ms, partitions, name)
    found = driver.listed(timestamps_ms)
    without = sorted(partition for partition, offset in found.items() if offset < 0)
    if without and strategy == "error":
        raise OptionsError(
            [
                f"{name}: {_names(without)} have no record so late; startingOffsetsByTimestampStrategy=latest begins at "
                "their ends"
            ]
        )
    return found | driver.listed(dict.fromkeys(without, LATEST))


def _check_complete(given: Mapping[TopicPartition, int], partitions: Sequence[TopicPartition], name: str) -> None:
    faults = []
    missing = sorted(set(partitions) - set(given))
    if missing:
        faults.append(f"{name} leaves out {_names(missing)}; name every partition that is read")
    unknown = sorted(set(given) - set(partitions))
    if unknown:
        faults.append(f"{name} names {_names(unknown)}, which are not read or do not exist")
    if faults:
        raise OptionsError(faults)


def _names(partitions: Sequence[TopicPartition]) -> str:
    shown = ", ".join(f"{partition.topic}-{partition.partition}" for partition in partitions[:_SHOWN])
    return shown + (f" and {len(partitions) - _SHOWN} more" if len(partitions) > _SHOWN else "")
