"""A picture of the cluster at one revision: nodes, topics, leaders. Pure data, replaced as a whole."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, NamedTuple

from client.errors import UnknownTopicOrPartitionError
from protocol.errors import ErrorCode
from protocol.messages.cluster import BrokerMetadata, MetadataResponse, TopicMetadata
from protocol.messages.records import FetchResponse, ProduceResponse
from protocol.names import is_topic_name
from protocol.subscription import TopicPartition

Address = tuple[str, int]


class LeaderHint(NamedTuple):
    """The leader of a partition as a node that does not lead it has named it (KIP-951)."""

    leader_id: int
    epoch: int


DEFAULT_PORT: Final = 7337
"""Where a daemon listens unless it is told otherwise."""

_SHOWN: Final = 60
_SERVER: Final = re.compile(r"(?P<host>\[[0-9A-Fa-f:.%\w]+\]|[^\s:/\[\]]+)(?::(?P<port>[0-9]{1,5}))?", re.ASCII)
"""Host and perhaps port."""


@dataclass(frozen=True, slots=True)
class Topology:
    """Nodes by id, topics by name, as the daemon described them at ``revision``.

    ``asked`` holds the names that the daemon answered for, also those that do not exist; ``racks`` the racks of those nodes
    that say theirs. ``later`` has topics that are known as they were at a later revision, because they were asked for alone.
    ``whole`` says that the picture has all topics there are, so that a list of changes can go on from it. ``hinted`` has the
    partitions whose leader was told by another node, under a later leader epoch than ``revision`` has.
    """

    revision: int
    cluster_id: str
    nodes: Mapping[int, Address]
    topics: Mapping[str, TopicMetadata]
    asked: frozenset[str]
    racks: Mapping[int, str] = field(default_factory=dict)
    later: Mapping[str, int] = field(default_factory=dict)
    whole: bool = False
    hinted: frozenset[TopicPartition] = frozenset()

    @staticmethod
    def unknown() -> Topology:
        """Before the first answer."""
        return Topology(-1, "", {}, {}, frozenset())

    @staticmethod
    def of(response: MetadataResponse) -> Topology:
        """The picture in a Metadata answer."""
        return Topology(
            response.revision,
            response.cluster_id,
            {broker.node_id: (broker.host, broker.port) for broker in response.brokers},
            {topic.name: topic for topic in response.topics if topic.error_code == ErrorCode.NONE},
            frozenset(topic.name for topic in response.topics),
            {broker.node_id: broker.rack for broker in response.brokers if broker.rack is not None},
        )

    def with_more(self, other: Topology) -> Topology:
        """This picture, and what ``other`` has of the topics that it was asked for; ``other`` is as late or later."""
        later = {**self.later, **dict.fromkeys(other.asked, other.revision)} if other.revision > self.revision else {}
        topics = {name: topic for name, topic in self.topics.items() if name not in other.asked}
        more = replace(
            self,
            nodes={**self.nodes, **other.nodes},
            racks={**self.racks, **other.racks},
            topics={**topics, **other.topics},
            asked=self.asked | other.asked,
            later=later or self.later,
            hinted=frozenset(),
        )
        return self._with_hints_kept(more)

    def followed_by(self, response: MetadataResponse, asked: Iterable[str] | None) -> Topology | None:
        """The picture after an answer about the topics ``asked`` (None: all); None when the answer does not fit on this one.

        It never goes back: an older answer, overtaken on the way, changes nothing, and a topic that is known as it was later
        stays as it is known. A list of changes needs the picture that it goes on from.
        """
        if response.cluster_id != self.cluster_id:
            return None if response.since_revision >= 0 else replace(Topology.of(response), whole=asked is None)
        if response.revision < self.revision:
            return self
        if response.since_revision > self.revision:
            return None
        found = Topology.of(response)
        if response.since_revision >= 0:
            kept = {name: topic for name, topic in self.topics.items() if name not in found.asked}
            answered = self.asked | found.asked if asked is None else frozenset(asked)
            whole = self.whole and asked is None
            found = replace(found, topics={**kept, **found.topics}, asked=answered, whole=whole)
        elif asked is not None:
            found = replace(found, asked=found.asked | frozenset(asked))
        else:
            found = replace(found, whole=True)
        found = self._with_hints_kept(found)
        later = {name: revision for name, revision in self.later.items() if revision > response.revision}
        if not later:
            return found
        topics = {name: topic for name, topic in found.topics.items() if name not in later}
        topics |= {name: self.topics[name] for name in later if name in self.topics}
        return replace(found, topics=topics, asked=found.asked | later.keys(), later=later)

    def with_leaders(self, hints: Mapping[TopicPartition, LeaderHint], nodes: Iterable[BrokerMetadata]) -> Topology:
        """This picture with the leaders that a node has named, as far as their epochs are later than those known here."""
        news = {tp: hint for tp, hint in hints.items() if hint.epoch > self.leader_epoch(tp) and self.has(tp)}
        if not news:
            return self
        named = {node.node_id: (node.host, node.port) for node in nodes}
        topics = dict(self.topics)
        for tp, (leader_id, epoch) in news.items():
            topic = topics[tp.topic]
            partitions = list(topic.partitions)
            partitions[tp.partition] = replace(partitions[tp.partition], leader_id=leader_id, leader_epoch=epoch)
            topics[tp.topic] = replace(topic, partitions=tuple(partitions))
        return replace(self, nodes={**self.nodes, **named}, topics=topics, hinted=self.hinted | news.keys())

    def _with_hints_kept(self, found: Topology) -> Topology:
        """``found``, which is a later picture, with the leaders of this one that it does not have yet."""
        kept: dict[TopicPartition, LeaderHint] = {}
        for tp in self.hinted:
            mine, theirs = self.topics.get(tp.topic), found.topics.get(tp.topic)
            if mine is not None and theirs is not None and theirs.topic_id == mine.topic_id and found.has(tp):
                leader = mine.partitions[tp.partition]
                kept[tp] = LeaderHint(leader.leader_id, leader.leader_epoch)
        if not kept:
            return found
        found = found.with_leaders(kept, ())
        return replace(found, nodes={**self.nodes, **found.nodes}) if found.hinted else found

    def has(self, partition: TopicPartition) -> bool:
        """Whether a partition is in the picture."""
        topic = self.topics.get(partition.topic)
        return topic is not None and 0 <= partition.partition < len(topic.partitions)

    def with_topics_of(self, earlier: Topology, names: Iterable[str]) -> Topology:
        """This picture, and what an ``earlier`` one has of those of ``names`` that were not asked for this time."""
        left = {name: earlier.topics[name] for name in names if name not in self.asked and name in earlier.topics}
        return replace(self, topics={**left, **self.topics}) if left else self

    def addresses(self) -> list[Address]:
        """Where the nodes listen, by node id."""
        return [self.nodes[node_id] for node_id in sorted(self.nodes)]

    def partitions(self, topic: str) -> int:
        """How many partitions a topic has. Raises ``UnknownTopicOrPartitionError`` when it is not in the picture."""
        known = self.topics.get(topic)
        if known is None:
            raise UnknownTopicOrPartitionError(missing_topic(topic))
        return len(known.partitions)

    def replica_racks(self, topics: Iterable[str]) -> dict[TopicPartition, frozenset[str]]:
        """The racks in which partitions of ``topics`` have replicas (KIP-881); empty when no node has said its rack."""
        if not self.racks:
            return {}
        alike: dict[tuple[int, ...], frozenset[str]] = {}
        placed: dict[TopicPartition, frozenset[str]] = {}
        for name in topics:
            topic = self.topics.get(name)
            for partition in topic.partitions if topic is not None else ():
                nodes = partition.replica_nodes
                if nodes not in alike:
                    alike[nodes] = frozenset(self.racks[node] for node in nodes if node in self.racks)
                if alike[nodes]:
                    placed[TopicPartition(name, partition.partition_index)] = alike[nodes]
        return placed

    def leader(self, partition: TopicPartition) -> Address | None:
        """The address of a partition's leader, or None while there is none or the partition is unknown."""
        topic = self.topics.get(partition.topic)
        if topic is None or not 0 <= partition.partition < len(topic.partitions):
            return None
        return self.nodes.get(topic.partitions[partition.partition].leader_id)

    def replicas(self, partition: TopicPartition) -> int:
        """How many replicas a partition has, 0 while it is unknown."""
        if not self.has(partition):
            return 0
        return len(self.topics[partition.topic].partitions[partition.partition].replica_nodes)

    def leader_id(self, partition: TopicPartition) -> int:
        """The node that leads a partition, -1 while there is none or the partition is unknown."""
        return self.topics[partition.topic].partitions[partition.partition].leader_id if self.has(partition) else -1

    def leader_epoch(self, partition: TopicPartition) -> int:
        """The epoch of a partition's leader, -1 while it is unknown."""
        if not self.has(partition):
            return -1
        return self.topics[partition.topic].partitions[partition.partition].leader_epoch


def hints_of(response: ProduceResponse | FetchResponse) -> dict[TopicPartition, LeaderHint]:
    """The leaders that an answer names for partitions that its node does not lead."""
    if isinstance(response, ProduceResponse):
        entries = ((topic.name, each.index, each) for topic in response.responses for each in topic.partition_responses)
        return {
            TopicPartition(name, index): LeaderHint(each.current_leader_id, each.current_leader_epoch)
            for name, index, each in entries
            if each.current_leader_id >= 0
        }
    return {
        TopicPartition(topic.topic, each.partition_index): LeaderHint(each.current_leader_id, each.current_leader_epoch)
        for topic in response.responses
        for each in topic.partitions
        if each.current_leader_id >= 0
    }


def missing_topic(topic: str) -> str:
    """That a topic does not exist, and what to do."""
    if is_topic_name(topic):
        return f"topic {topic!r} does not exist; create it with: cohort topics create {topic}"
    shown = repr(topic) if len(topic) <= _SHOWN else f"{topic[:_SHOWN]!r}..."
    return f"topic {shown} does not exist and cannot: names have 1 to 249 ASCII letters, digits, '.', '_' or '-'"


def unmatched_pattern(pattern: str) -> str:
    """That no topic matches a pattern, and what to do."""
    return (
        f"no topic's whole name matches {pattern!r}; 'cohort topics list' shows the names there are. A topic that matches "
        "is read as soon as it is created"
    )


def parse_bootstrap_servers(servers: str | Sequence[str]) -> list[Address]:
    """Host and port of each server in ``"host:port,host:port"`` or a sequence of such; the port is 7337 where none is given.

    An IPv6 address stands in brackets: ``[::1]:7337``. Raises ``ValueError`` naming the part that is no server.
    """
    parts = servers.split(",") if isinstance(servers, str) else list(servers)
    addresses = [_address(part.strip()) for part in parts]
    if not addresses:
        raise ValueError(f"bootstrap_servers names no server; pass for example '127.0.0.1:{DEFAULT_PORT}'")
    return addresses


def _address(text: str) -> Address:
    match = _SERVER.fullmatch(text)
    port = int(match["port"] or DEFAULT_PORT) if match is not None else 0
    if match is None or not 0 < port < 65536:
        advice = f"; an IPv6 address stands in brackets: [{text}]:{DEFAULT_PORT}" if text.count(":") > 1 else ""
        raise ValueError(
            f"bootstrap server {text!r} is not of the form HOST:PORT, such as 127.0.0.1:{DEFAULT_PORT}{advice}"
        )
    host = match["host"].strip("[]")
    try:
        host.encode("idna")  # resolving it does the same
    except UnicodeError as error:
        raise ValueError(f"bootstrap server {text!r}: {host!r} cannot be the name of a host ({error})") from error
    return host, port
