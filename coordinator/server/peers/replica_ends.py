"""ReplicaEnd (1103): how far replicas are on disk, asked when one is to lead that is not in sync."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Final, cast

from coordinator.log_output import get_logger
from coordinator.logs.log_manager import LogManager
from coordinator.metadata.catalog import Catalog
from coordinator.server.call import Call, Handler
from coordinator.server.node import Node
from coordinator.server.peers.client import PeerLostError, Peers
from protocol.messages.replication import ReplicaEndRequest, ReplicaEndResponse

log = get_logger()

_PURPOSE: Final = "administration"
_TIMEOUT_S: Final = 5.0


def handler(node: Node) -> Handler:
    """Answers for this node's replicas, whatever part they have."""

    def handle(call: Call) -> None:
        request = cast("ReplicaEndRequest", call.request)
        end = _end_here(node.catalog, node.logs, request.topic_id, request.partition)
        call.answer(ReplicaEndResponse() if end is None else ReplicaEndResponse(*end))

    return handle


class ReplicaEnds:
    """Asks nodes for the ends of their replicas; see ``controller.administration.Ends``."""

    def __init__(self, catalog: Catalog, logs: LogManager, peers: Peers) -> None:
        self._catalog = catalog
        self._logs = logs
        self._peers = peers

    async def __call__(self, topic_id: str, index: int, nodes: Sequence[int]) -> Mapping[int, tuple[int, int]]:
        """Last leader epoch and end by node, of those that have a replica that can be read, and answer."""
        found = await asyncio.gather(*(self._end(topic_id, index, node) for node in nodes))
        return {node: end for node, end in zip(nodes, found, strict=True) if end is not None}

    async def _end(self, topic_id: str, index: int, node: int) -> tuple[int, int] | None:
        if node == self._catalog.node_id:
            return _end_here(self._catalog, self._logs, topic_id, index)
        try:
            connection = await self._peers.connect(node, _PURPOSE)
            answer = await connection.request(
                ReplicaEndRequest(topic_id, index), ReplicaEndResponse, timeout_s=_TIMEOUT_S
            )
        except PeerLostError as error:
            log.warning("replica_end_unknown", topic_id=topic_id, partition=index, node=node, error=str(error))
            return None
        return None if answer.end_offset < 0 else (answer.last_epoch, answer.end_offset)


def _end_here(catalog: Catalog, logs: LogManager, topic_id: str, index: int) -> tuple[int, int] | None:
    topic = catalog.with_id(topic_id)
    found = None if topic is None else logs.logs.get((topic.name, index))
    return None if found is None else (found.epochs.at(found.flushed_offset - 1), found.flushed_offset)
