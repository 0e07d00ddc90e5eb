"""The keys of the metadata and the JSON of their values: one schema for a single node and for a cluster; pure.

A field that has its default is not written: a single node writes what it always wrote, and reads what older versions left.

- ``topics/NAME``: ``id``, and in ``config`` the settings of its own
- ``partitions/TOPIC ID/INDEX``: ``leader`` (-1: none), ``leader_epoch``, ``replicas``, ``isr``; ``joined`` (broker epochs
  beside ``isr``), ``broker_epoch`` (of the leader), ``min_isr``, ``adding``
- ``created/TOPIC ID/INDEX``: a single node has made the log of this partition of an internal topic
- ``creating/TOPIC ID``, under the lease of a node: it makes a topic of more partitions than one transaction takes; ``name``
- ``deleting/TOPIC ID``: ``name``, ``partitions``; in a cluster ``nodes`` that have not removed their logs yet
- ``reassignments/TOPIC ID/INDEX``: ``target``, the replicas that a partition is to have
- ``nodes/ID``: ``directory``, ``start``, ``rack``, ``first_seen_ms`` of every node that there was, until it is removed
- ``live/ID``, under the lease of a node: ``directory``, ``start``, ``host``, ``port``, ``peer_host``, ``peer_port``,
  ``rack``, ``format`` (the highest that it reads), ``room`` (logs of users' topics that it may open), ``clean_since`` (0:
  since this registration), ``kafka_host`` and ``kafka_port`` where it has a port for Kafka's clients. The revision that made
  it is the broker epoch; version 1 means that the node takes replicas, a later one that it hands over what it has
- ``controller``, under the lease of a node: ``node``, ``broker_epoch``
- ``next-node-id``: ``next``
- ``cluster.format``: ``format`` of the other keys, of logs and of what nodes tell each other, which every node has to read.
  A single node has none before its logs hold something newer than the first
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from coordinator.metadata.authority import KeyValue
from coordinator.metadata.partitions import NO_LEADER, PartitionState
from coordinator.replication.partition import LiveNode, PartitionRegistration

CONTROLLER: Final = "controller"
NEXT_NODE_ID: Final = "next-node-id"
IMPORTED: Final = "imported"
CLUSTER_FORMAT: Final = "cluster.format"
KAFKA_BATCHES: Final = 2
"""The format from which on logs may hold batches of Kafka's clients."""
PARTITIONS: Final = "partitions/"
NODES: Final = "nodes/"
LIVE: Final = "live/"
CREATING: Final = "creating/"


def topic_key(name: str) -> str:
    """Id and settings of a topic."""
    return f"topics/{name}"


def partitions_prefix(topic_id: str) -> str:
    """What the keys of a topic's partitions begin with."""
    return f"{PARTITIONS}{topic_id}/"


def partition_key(topic_id: str, index: int) -> str:
    """Leader and replicas of a partition."""
    return f"{PARTITIONS}{topic_id}/{index:07}"


def created_key(topic_id: str, index: int) -> str:
    """That a partition of an internal topic has a log, on a single node."""
    return f"created/{topic_id}/{index:07}"


def creating_key(topic_id: str) -> str:
    """That a topic is being made."""
    return f"{CREATING}{topic_id}"


def deleting_key(topic_id: str) -> str:
    """That a topic was deleted, and files of it may be left."""
    return f"deleting/{topic_id}"


def reassignments_prefix(topic_id: str) -> str:
    """What the keys of a topic's reassignments begin with."""
    return f"reassignments/{topic_id}/"


def reassignment_key(topic_id: str, index: int) -> str:
    """The replicas that a partition is to have."""
    return f"reassignments/{topic_id}/{index:07}"


def node_key(node: int) -> str:
    """A node that there is, or was."""
    return f"{NODES}{node}"


def live_key(node: int) -> str:
    """A node that lives."""
    return f"{LIVE}{node}"


def encode_partition(known: PartitionRegistration) -> dict[str, Any]:
    """The value of a partition's key."""
    isr = tuple(known.isr)
    leader, broker_epoch = (NO_LEADER, 0) if known.leader is None else known.leader
    joined = tuple(known.isr.values())
    return encode_state(
        PartitionState(
            leader, known.leader_epoch, known.replicas, isr, broker_epoch, joined, known.min_isr, known.adding
        )
    )


def encode_state(state: PartitionState) -> dict[str, Any]:
    """As ``encode_partition``, of the catalog's own form."""
    value: dict[str, Any] = {
        "leader": state.leader,
        "leader_epoch": state.leader_epoch,
        "replicas": list(state.replicas),
        "isr": list(state.isr),
    }
    if any(state.joined):
        value["joined"] = list(state.joined)
    if state.leader_broker_epoch:
        value["broker_epoch"] = state.leader_broker_epoch
    if state.min_isr != 1:
        value["min_isr"] = state.min_isr
    if state.adding:
        value["adding"] = list(state.adding)
    return value


def partition_state(known: KeyValue) -> PartitionState:
    """What a partition's key says."""
    value = known.value
    replicas, isr = tuple(value["replicas"]), tuple(value["isr"])
    return PartitionState(
        value["leader"],
        value["leader_epoch"],
        replicas,
        replicas if isr == replicas else isr,  # the same object: there may be ten thousand of them
        value.get("broker_epoch", 0),
        tuple(value.get("joined", ())),
        value.get("min_isr", 1),
        tuple(value.get("adding", ())),
        known.mod_revision,
    )


def registration_of(value: Mapping[str, Any]) -> PartitionRegistration:
    """What the value of a partition's key says, for those who decide about replicas."""
    return partition_state(KeyValue("", value, 0, 0, 0)).registration


class NodeInfo(NamedTuple):
    """A node that lives. ``host`` is "" where clients are told the address by which they have reached it."""

    node_id: int
    broker_epoch: int
    host: str
    port: int
    peer_host: str
    peer_port: int
    rack: str
    clean_since: int
    accepting: bool
    room: int = -1
    """Logs of users' topics that it may open in all; -1 where it does not say."""
    kafka_host: str = ""
    kafka_port: int = 0
    """Where Kafka's clients reach it; 0: nowhere."""

    @property
    def live_node(self) -> LiveNode:
        """The same for those who decide about replicas."""
        return LiveNode(self.broker_epoch, self.clean_since, self.accepting)


def node_info(known: KeyValue) -> NodeInfo:
    """What a live key says."""
    value, broker_epoch = known.value, known.create_revision
    return NodeInfo(
        int(known.key.removeprefix(LIVE)),
        broker_epoch,
        value["host"],
        value["port"],
        value["peer_host"],
        value["peer_port"],
        value["rack"],
        value["clean_since"] or broker_epoch,
        known.version == 1,
        value.get("room", -1),
        value.get("kafka_host", ""),
        value.get("kafka_port", 0),
    )
