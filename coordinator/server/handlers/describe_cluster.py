"""DescribeCluster (60): the nodes of the cluster, as far as this one knows."""

from __future__ import annotations

from typing import cast

from coordinator.server.call import Call, Handler
from coordinator.server.handlers.metadata import AdvertisedAddress
from coordinator.server.node import Node
from protocol.errors import ErrorCode
from protocol.messages.cluster import DescribeClusterBroker, DescribeClusterRequest, DescribeClusterResponse


def handler(node: Node) -> Handler:
    """Answers at once."""
    settings, catalog = node.settings, node.catalog
    advertised = AdvertisedAddress(settings.advertised_host, settings.advertised_port)

    def handle(call: Call) -> None:
        reached = advertised.seen_by(call)
        brokers = {}
        if cast("DescribeClusterRequest", call.request).include_fenced_brokers:
            for number, rack in node.administration.known_nodes().items():
                brokers[number] = DescribeClusterBroker(number, "", -1, rack or None, is_fenced=True)
        room = node.administration.room_left()
        for number, info in catalog.nodes.items():
            host, port = (info.host, info.port) if info.host else reached
            brokers[number] = DescribeClusterBroker(
                number,
                host,
                port,
                info.rack or None,
                broker_epoch=info.broker_epoch,
                is_draining=not info.accepting,
                room=room.get(number, -1),
            )
        call.answer(
            DescribeClusterResponse(
                ErrorCode.NONE,
                catalog.cluster_id,
                catalog.controller,
                tuple(brokers[number] for number in sorted(brokers)),
                metadata_store=settings.metadata,
            )
        )

    return handle
