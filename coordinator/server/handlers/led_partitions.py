"""The partitions that this node leads; and of others who does, as far as its metadata knows (KIP-951)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

from coordinator.log.partition import PartitionLog
from coordinator.logs.log_manager import LogManager
from coordinator.metadata.catalog import Catalog, Topic, TopicError
from coordinator.nodes.membership import Membership
from protocol.errors import ErrorCode
from protocol.messages.cluster import BrokerMetadata

_HINTED: Final = (ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.FENCED_LEADER_EPOCH)


class KnownLeader(NamedTuple):
    """The leader that the metadata names, -1 where it is this node or none."""

    node_id: int = -1
    leader_epoch: int = -1


class LedPartitions:
    """The partitions that this node leads, while it may answer for them."""

    def __init__(self, catalog: Catalog, logs: LogManager, membership: Membership) -> None:
        self._catalog = catalog
        self._membership = membership
        self.logs = logs

    def find(self, name: str, index: int, epoch_of_client: int, topic_id: str = "") -> tuple[PartitionLog, int]:
        """The log of a partition and its leader epoch.

        Raises ``TopicError``, also when the client means another epoch, or with a ``topic_id`` another topic.
        """
        topic = self._catalog.topic(name)
        if topic_id and topic_id != topic.topic_id:
            raise made_anew(name)
        self.check_valid(name, index)
        opened = self.logs.find(topic, index)
        epoch = topic.partitions[index].leader_epoch
        if epoch_of_client > epoch:
            raise TopicError(
                ErrorCode.UNKNOWN_LEADER_EPOCH, f"leader epoch {epoch_of_client} is not known yet; try again"
            )
        if 0 <= epoch_of_client < epoch:
            raise TopicError(
                ErrorCode.FENCED_LEADER_EPOCH, f"leader epoch {epoch_of_client} is over, it is {epoch}: ask again"
            )
        return opened, epoch

    def check_valid(self, name: str, index: int) -> None:
        """Raises ``TopicError`` while another node may have been elected in this one's place."""
        if not self._membership.valid():
            raise TopicError(
                ErrorCode.NOT_LEADER_OR_FOLLOWER,
                f"{name[:60]}-{index}: this node has not heard from the metadata store for too long to answer for it",
            )

    def hint(self, code: ErrorCode, name: str, index: int) -> KnownLeader:
        """What an answer with ``code`` says of the leader."""
        topic: Topic | None = self._catalog.topics.get(name) if code in _HINTED else None
        if topic is None or not 0 <= index < len(topic.partitions):
            return KnownLeader()
        state = topic.partitions[index]
        if state.leader in (-1, self._catalog.node_id):
            return KnownLeader()
        return KnownLeader(state.leader, state.leader_epoch)

    def endpoints(self, leaders: Iterable[int]) -> tuple[BrokerMetadata, ...]:
        """Where the nodes are that an answer names as leaders, as far as they live; -1 is none."""
        nodes = self._catalog.nodes
        found = (nodes[leader] for leader in sorted(set(leaders)) if leader in nodes)
        return tuple(BrokerMetadata(node.node_id, node.host, node.port, node.rack or None) for node in found)


def made_anew(name: str) -> TopicError:
    """The refusal of a request that means the topic by its id."""
    return TopicError(
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"topic {name!r} was deleted and made anew: its id is another"
    )
