"""What translators have of their node: handlers, and nodes and topics as Kafka's clients know them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from coordinator.metadata.catalog import Topic
from coordinator.server.call import Call, Handler
from coordinator.server.node import Node
from protocol.messages import Request
from protocol.messages.cluster import BrokerMetadata

NO_TOPIC_ID: Final = bytes(16)


class Broker(NamedTuple):
    """A node that Kafka's clients can connect to."""

    node_id: int
    host: str
    port: int
    rack: str | None


@dataclass(frozen=True, slots=True)
class KafkaNode:
    """See the module text."""

    node: Node
    handlers: Mapping[type[Request], Handler]
    new_id: Callable[[], str]
    told_without_effect: set[str] = field(default_factory=set)
    """Settings of topics without effect here that the log has been told of."""

    def brokers(self, call: Call) -> dict[int, Broker]:
        """The nodes that live and have a port for Kafka's clients, by id, as the client of this call is told of them."""
        catalog, settings = self.node.catalog, self.node.settings
        if catalog.cluster:
            return {
                number: Broker(number, info.kafka_host, info.kafka_port, info.rack or None)
                for number, info in sorted(catalog.nodes.items())
                if info.kafka_port
            }
        host, port = settings.told_to_kafka(call.connection.local)
        return {settings.node_id: Broker(settings.node_id, host, port, settings.rack or None)}

    def closes_stranded(self, call: Call) -> bool:
        """Closes the connection of a client that asks who leads what while this node cannot know; returns whether it did."""
        if self.node.membership.valid():
            return False
        call.connection.close_with("this node has lost the metadata store: its clients are to ask another node")
        return True

    def named(self, call: Call, leaders: Iterable[BrokerMetadata]) -> list[Broker]:
        """Of nodes that an answer names as leaders (KIP-951) those that the client can connect to, and where."""
        brokers = self.brokers(call)
        return [brokers[each.node_id] for each in leaders if each.node_id in brokers]

    def topic_of(self, topic_id: bytes) -> Topic | None:
        """The topic that has an id of 16 bytes, if there is one."""
        return self.node.catalog.with_id(topic_id.hex())

    def controller(self, brokers: Mapping[int, Broker]) -> int:
        """The node that clients are told to ask for changes: all take them, so it is this one where the controller is not
        one that they can reach."""
        controller = self.node.catalog.controller
        return controller if controller in brokers else self.node.settings.node_id


def packed_topic_id(topic_id: str) -> bytes:
    """The id of a topic as 16 bytes; zeros for what is no uuid."""
    try:
        packed = bytes.fromhex(topic_id)
    except ValueError:
        return NO_TOPIC_ID
    return packed if len(packed) == len(NO_TOPIC_ID) else NO_TOPIC_ID
