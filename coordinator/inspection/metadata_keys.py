"""The keys of the metadata in plain words, as ``coordinator/metadata/keys.py`` lists them: topics, partitions, nodes."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from typing import Final

from coordinator.inspection.output import counted, time_text
from coordinator.metadata import keys, producer_ids
from coordinator.metadata.authority import KeyValue
from coordinator.metadata.partitions import MAJORITY, NO_LEADER
from protocol.names import clipped

Names = Mapping[str, str]
"""Of topics by their ids, as far as they are known."""


def names_of(known: Iterable[KeyValue]) -> dict[str, str]:
    """The names of the topics among some keys, by their ids."""
    topics = (each for each in known if each.key.startswith(keys.topic_key("")) and isinstance(each.value, dict))
    return {str(each.value.get("id")): each.key.removeprefix(keys.topic_key("")) for each in topics}


def key_in_words(known: KeyValue, names: Names) -> str:
    """What a key says. One that this version does not know is shown as it stands."""
    kind, _, rest = known.key.partition("/")
    told = _TOLD.get(kind)
    try:
        if told is not None:
            return told(known, rest, names)
    except (ValueError, KeyError, TypeError, AttributeError):
        pass  # a newer version may have given it another form
    return f"{clipped(known.key)}: {json.dumps(known.value)}"


def removal_in_words(key: str, names: Names) -> str:
    """That a key is gone."""
    kind, _, rest = key.partition("/")
    topic_id, _, index = rest.partition("/")
    if index.isdecimal():
        return f"the key in {kind} of {_partition(topic_id, index, names)} is removed"
    return f"the key {clipped(key)} is removed"


def _partition(topic_id: str, index: str, names: Names) -> str:
    name = names.get(topic_id)
    return f"partition {int(index)} of the topic with the id {clipped(topic_id)}" if name is None else (
        f"{clipped(name)}-{int(index)}"
    )  # fmt: skip


def _topic(known: KeyValue, rest: str, names: Names) -> str:
    settings = ", ".join(f"{name}={clipped(str(value))}" for name, value in sorted(known.value["config"].items()))
    return f"topic {clipped(rest)} has the id {known.value['id']} and {settings or 'no settings of its own'}"


def _state(known: KeyValue, rest: str, names: Names) -> str:
    topic_id, _, index = rest.partition("/")
    state = keys.partition_state(known)
    leader = "has no leader" if state.leader == NO_LEADER else f"is led by node {state.leader}"
    parts = [
        f"{_partition(topic_id, index, names)} {leader} in leader epoch {state.leader_epoch}",
        f"replicas {_nodes(state.replicas)}",
        f"in sync {_nodes(state.isr)}",
    ]
    if state.min_isr != 1:
        least = "a majority" if state.min_isr == MAJORITY else str(state.min_isr)
        parts.append(f"acks=all needs {least} in sync")
    if state.adding:
        parts.append(f"being added {_nodes(state.adding)}")
    return ", ".join(parts)


def _created(known: KeyValue, rest: str, names: Names) -> str:
    topic_id, _, index = rest.partition("/")
    return f"{_partition(topic_id, index, names)} has a log in this directory"


def _creating(known: KeyValue, rest: str, names: Names) -> str:
    return f"topic {clipped(known.value['name'])}, with the id {rest}, is being made"


def _deleting(known: KeyValue, rest: str, names: Names) -> str:
    value = known.value
    nodes = f", and logs of it are left on the nodes {_nodes(value['nodes'])}" if "nodes" in value else ""
    partitions = counted(value["partitions"], "partition")
    return f"topic {clipped(value['name'])}, with the id {rest} and {partitions}, is deleted{nodes}"


def _reassignment(known: KeyValue, rest: str, names: Names) -> str:
    topic_id, _, index = rest.partition("/")
    return f"{_partition(topic_id, index, names)} is to have the replicas {_nodes(known.value['target'])}"


def _node(known: KeyValue, rest: str, names: Names) -> str:
    value = known.value
    rack = f", rack {clipped(value['rack'])}" if value["rack"] else ""
    return (
        f"node {int(rest)} has the data directory {value['directory']}, was started last as {value['start']}{rack}, and is "
        f"known since {time_text(value['first_seen_ms'])}"
    )


def _live(known: KeyValue, rest: str, names: Names) -> str:
    node = keys.node_info(known)
    address = f"{node.host or 'the address that it is reached by,'} port {node.port}"
    kafka = f", Kafka's clients on port {node.kafka_port}" if node.kafka_port else ""
    return (
        f"node {node.node_id} is registered with broker epoch {node.broker_epoch}, serves clients at {address}{kafka}, "
        f"other nodes at {node.peer_host}:{node.peer_port}, and has what was acknowledged since broker epoch "
        f"{node.clean_since}"
    )


def _controller(known: KeyValue, rest: str, names: Names) -> str:
    return f"node {known.value['node']} is the controller, registered with broker epoch {known.value['broker_epoch']}"


def _next_node_id(known: KeyValue, rest: str, names: Names) -> str:
    return f"the next node without a number gets {known.value['next']}"


def _cluster_format(known: KeyValue, rest: str, names: Names) -> str:
    return f"logs and metadata are of format {known.value['format']}, which every node has to read"


def _producer_ids(known: KeyValue, rest: str, names: Names) -> str:
    return f"producer ids from {known.value['next']} on are not given out yet"


def _imported(known: KeyValue, rest: str, names: Names) -> str:
    return f"the cluster began with the data directory of node {known.value['node']}"


def _nodes(nodes: Iterable[int]) -> str:
    return ",".join(map(str, nodes)) or "none"


_TOLD: Final[dict[str, Callable[[KeyValue, str, Names], str]]] = {
    "topics": _topic,
    "partitions": _state,
    "created": _created,
    "creating": _creating,
    "deleting": _deleting,
    "reassignments": _reassignment,
    "nodes": _node,
    "live": _live,
    keys.CONTROLLER: _controller,
    keys.NEXT_NODE_ID: _next_node_id,
    keys.CLUSTER_FORMAT: _cluster_format,
    keys.IMPORTED: _imported,
    producer_ids.KEY: _producer_ids,
}
"""By the first part of the key."""
