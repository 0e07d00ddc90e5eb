"""The admin: topics, the cluster, and groups as an operator sees them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterable, Mapping, Sequence
from random import Random
from types import TracebackType
from typing import Final, Self, TypeVar

from client.cluster import Cluster
from client.deadline import Deadline
from client.descriptions import (
    ClusterDescription,
    GroupDescription,
    GroupListing,
    NodeDescription,
    PartitionDescription,
    PartitionLag,
    TopicDescription,
)
from client.errors import CohortError, error_for
from client.group_reports import committed_offsets, describe_group, group_lag, list_groups
from client.records import OffsetAndMetadata
from protocol.errors import ErrorCode
from protocol.messages.cluster import MetadataRequest, MetadataResponse, TopicMetadata
from protocol.messages.topics import (
    CreatableTopic,
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreateTopicsRequest,
    CreateTopicsResponse,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
    TopicConfig,
    TopicPartitionCount,
)
from protocol.subscription import TopicPartition

_DEFAULT_TIMEOUT_MS: Final = 30_000

ResultT = TypeVar("ResultT")


class Admin:
    """Administers a cluster. Use it inside ``async with``, or call ``start`` and ``stop``.

    Every method takes ``timeout_ms``, milliseconds for all it does (default 30,000), and raises ``RequestTimedOutError``
    beyond. A method that is given several items tries all of them; if some fail it raises the first one's error, whose
    text names all that failed.
    """

    def __init__(
        self,
        bootstrap_servers: str | Sequence[str] = "127.0.0.1:7337",
        client_id: str | None = None,
        *,
        random: Random | None = None,
    ) -> None:
        self._cluster = Cluster(
            bootstrap_servers,
            client_id=client_id or "cohort-admin",
            request_timeout_ms=_DEFAULT_TIMEOUT_MS,
            random=random,
        )

    async def start(self, timeout_ms: int | None = None) -> None:
        """Connects. Raises ``RequestTimedOutError`` when no daemon answers in time."""
        try:
            await self._cluster.start(_deadline(timeout_ms))
        except BaseException:
            await self._cluster.close()
            raise

    async def stop(self) -> None:
        """Closes the connections at once; calls under way get ``ConnectionLostError``."""
        await self._cluster.close()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.stop()

    async def create_topics(
        self, topics: Mapping[str, int], config: Mapping[str, object] | None = None, *, timeout_ms: int | None = None
    ) -> None:
        """Creates topics with a number of partitions each (-1: the daemon's default) and the same ``config``.

        Raises ``TopicAlreadyExistsError``, ``InvalidTopicError`` (name), ``InvalidPartitionsError``, ``InvalidConfigError``.
        The request is sent again when its answer is lost. ``TopicAlreadyExistsError`` may then mean that the first one did
        create the topic: the daemon cannot tell it from somebody else's, ``describe_topics`` shows what there is.
        """
        deadline = _deadline(timeout_ms)
        entries = tuple(TopicConfig(name, _config_text(value)) for name, value in (config or {}).items())
        wanted = tuple(
            CreatableTopic(name, _count(name, partitions), configs=entries) for name, partitions in topics.items()
        )
        request = CreateTopicsRequest(wanted, deadline.remaining_ms())
        response = await self._cluster.call(request, CreateTopicsResponse, deadline=deadline)
        _raise_failures((topic.name, topic.error_code, topic.error_message) for topic in response.topics)

    async def delete_topics(self, *names: str, timeout_ms: int | None = None) -> None:
        """Deletes topics with all their records.

        Raises ``UnknownTopicOrPartitionError``, and ``InvalidTopicError`` for internal topics. The request is sent again
        when its answer is lost; ``UnknownTopicOrPartitionError`` may then mean that the first one did delete the topic.
        """
        deadline = _deadline(timeout_ms)
        request = DeleteTopicsRequest(names, deadline.remaining_ms())
        response = await self._cluster.call(request, DeleteTopicsResponse, deadline=deadline)
        _raise_failures((topic.name, topic.error_code, topic.error_message) for topic in response.responses)

    async def create_partitions(self, totals: Mapping[str, int], *, timeout_ms: int | None = None) -> None:
        """Grows topics to a total number of partitions each. Keys map to other partitions afterwards.

        Raises ``InvalidPartitionsError`` when a topic has as many or more already, ``UnknownTopicOrPartitionError``. The
        request is sent again when its answer is lost; ``InvalidPartitionsError`` may then mean that the first one did it.
        """
        deadline = _deadline(timeout_ms)
        wanted = tuple(TopicPartitionCount(name, _count(name, total)) for name, total in totals.items())
        request = CreatePartitionsRequest(wanted, deadline.remaining_ms())
        response = await self._cluster.call(request, CreatePartitionsResponse, deadline=deadline)
        _raise_failures((topic.name, topic.error_code, topic.error_message) for topic in response.results)

    async def list_topics(self, *, include_internal: bool = False, timeout_ms: int | None = None) -> list[str]:
        """The names of all topics, sorted; those of the daemon itself only with ``include_internal``."""
        response = await self._metadata(None, _deadline(timeout_ms))
        return sorted(topic.name for topic in response.topics if include_internal or not topic.is_internal)

    async def describe_topics(self, *names: str, timeout_ms: int | None = None) -> dict[str, TopicDescription]:
        """Topics by name, in the order asked for; without names all but the internal ones.

        Raises ``UnknownTopicOrPartitionError`` naming those that do not exist.
        """
        response = await self._metadata(names or None, _deadline(timeout_ms))
        _raise_failures((topic.name, topic.error_code, f"topic {topic.name!r}") for topic in response.topics)
        known = {topic.name: topic for topic in response.topics}
        wanted = names or sorted(topic.name for topic in response.topics if not topic.is_internal)
        return {name: _topic_description(known[name]) for name in wanted}

    async def describe_cluster(self, *, timeout_ms: int | None = None) -> ClusterDescription:
        """The cluster's id, controller and nodes."""
        response = await self._metadata((), _deadline(timeout_ms))
        nodes = tuple(NodeDescription(node.node_id, node.host, node.port) for node in response.brokers)
        return ClusterDescription(response.cluster_id, response.controller_id, nodes)

    async def list_groups(
        self, states: Iterable[str] | None = None, *, timeout_ms: int | None = None
    ) -> list[GroupListing]:
        """The groups of all nodes, sorted by id; with ``states`` (any case) only those in one of them (KIP-518)."""
        wanted = (states,) if isinstance(states, str) else tuple(states or ())
        return await list_groups(self._cluster, wanted, _deadline(timeout_ms))

    async def describe_groups(self, *groups: str, timeout_ms: int | None = None) -> dict[str, GroupDescription]:
        """Groups by id, in the order asked for. One that nobody knows has the state "Dead", as in Kafka.

        Raises ``InvalidGroupIdError``.
        """
        deadline = _deadline(timeout_ms)
        described = await _all_or_first_error([describe_group(self._cluster, group, deadline) for group in groups])
        return dict(zip(groups, described, strict=True))

    async def list_offsets(
        self, group: str, *, timeout_ms: int | None = None
    ) -> dict[TopicPartition, OffsetAndMetadata]:
        """Everything a group has committed, sorted by topic and partition; empty for a group nobody knows."""
        return await committed_offsets(self._cluster, group, _deadline(timeout_ms))

    async def group_lag(self, group: str, *, timeout_ms: int | None = None) -> list[PartitionLag]:
        """How far a group is behind, in every partition it has committed or owns; sorted by topic and partition."""
        return await group_lag(self._cluster, group, _deadline(timeout_ms))

    async def _metadata(self, topics: tuple[str, ...] | None, deadline: Deadline) -> MetadataResponse:
        return await self._cluster.call(MetadataRequest(topics), MetadataResponse, deadline=deadline)


def _deadline(timeout_ms: int | None) -> Deadline:
    return Deadline(_DEFAULT_TIMEOUT_MS if timeout_ms is None else timeout_ms)


def _count(topic: str, partitions: object) -> int:
    if not isinstance(partitions, int) or isinstance(partitions, bool):
        raise TypeError(f"the number of partitions of topic {topic!r} must be a whole number, not {partitions!r}")
    return partitions


def _config_text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _topic_description(topic: TopicMetadata) -> TopicDescription:
    partitions = tuple(
        PartitionDescription(
            partition.partition_index,
            partition.leader_id,
            partition.leader_epoch,
            partition.replica_nodes,
            partition.isr_nodes,
        )
        for partition in topic.partitions
    )
    return TopicDescription(topic.name, topic.topic_id, topic.is_internal, partitions)


def _raise_failures(results: Iterable[tuple[str, int, str]]) -> None:
    """Raises the error of the first item that failed, with the texts of all that did."""
    failed = [(name, code, message) for name, code, message in results if code != ErrorCode.NONE]
    if failed:
        texts = (message or f"{name!r}: {error_for(code)}" for name, code, message in failed)
        raise error_for(failed[0][1], "; ".join(texts))


async def _all_or_first_error(calls: Sequence[Awaitable[ResultT]]) -> list[ResultT]:
    """The results in order. Raises the first error, with the texts of all, once every call has ended."""
    results = await asyncio.gather(*calls, return_exceptions=True)
    errors = [result for result in results if isinstance(result, BaseException)]
    if not errors:
        return [result for result in results if not isinstance(result, BaseException)]
    first = errors[0]
    if isinstance(first, CohortError) and len(errors) > 1:
        raise type(first)("; ".join(str(error) for error in errors)) from first
    raise first
