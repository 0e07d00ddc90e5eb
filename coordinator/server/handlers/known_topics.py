"""Requests about committed offsets, decided with metadata that is as new as what their clients know of the topics.

In a cluster a client may have heard of a topic from another node. The picture of the coordinator may be older, in which a
namesake that was deleted since is still the topic. So before offsets are shown the metadata is read up to now, which also
proves that no other node coordinates the group meanwhile; and before offsets of a topic are taken that is not known here.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable
from functools import partial
from typing import Final, Protocol, cast

from coordinator.groups.refusals import error_response
from coordinator.log_output import get_logger
from coordinator.metadata.catalog import OFFSETS_TOPIC, Catalog
from coordinator.metadata.store import MetadataUnavailableError
from coordinator.server.call import Call, Handler
from coordinator.server.node import Node
from protocol.errors import ErrorCode

log = get_logger()

_SOON_S: Final = 1.0


class _Named(Protocol):
    """A topic of a request, with the id that its client knows, or ""."""

    @property
    def name(self) -> str: ...

    @property
    def topic_id(self) -> str: ...


class _OffsetRequest(Protocol):
    @property
    def group_id(self) -> str: ...

    @property
    def topics(self) -> Iterable[_Named]: ...


async def catch_up_soon(catalog: Catalog) -> None:
    """Has this node know what others have changed, before it answers a read that names no revision.

    A store that does not answer soon does not fail the read: what is known here has to do then.
    """
    try:
        async with asyncio.timeout(_SOON_S):
            await catalog.catch_up()
    except (MetadataUnavailableError, TimeoutError) as error:
        log.warning("metadata_not_caught_up", error=str(error) or f"no answer within {_SOON_S:g} s")


def once_topics_are_known(node: Node, handle: Handler) -> Handler:
    """Of a request that brings offsets of topics."""
    return handle if node.groups.proof is None else _KnownTopics(node, handle).if_need_be


def once_metadata_is_read(node: Node, handle: Handler) -> Handler:
    """Of a request that asks for offsets."""
    return handle if node.groups.proof is None else _KnownTopics(node, handle).always


class _KnownTopics:
    """See the module text. Requests about one group stay in their order."""

    def __init__(self, node: Node, handle: Handler) -> None:
        self._groups = node.groups
        self._catalog = node.catalog
        self._handle = handle
        self._waiting: Counter[str] = Counter()

    def if_need_be(self, call: Call) -> None:
        """Hands a request on, now if its topics are those that are known here."""
        request = cast("_OffsetRequest", call.request)
        if request.group_id in self._waiting or not all(map(self._is_known, request.topics)):
            self.always(call)
        else:
            self._handle(call)

    def always(self, call: Call) -> None:
        """Hands a request on when the metadata was read."""
        proof, group_id = self._groups.proof, cast("_OffsetRequest", call.request).group_id
        if proof is None or self._groups.shard(group_id) is None:
            self._handle(call)  # which says why it is not served here
            return
        self._waiting[group_id] += 1
        proof.confirm(OFFSETS_TOPIC, self._groups.partition_of(group_id), partial(self._told, call, group_id))

    def _told(self, call: Call, group_id: str, doubt: str) -> None:
        self._waiting[group_id] -= 1
        if not self._waiting[group_id]:
            del self._waiting[group_id]
        if doubt:
            call.answer(error_response(call.request, ErrorCode.COORDINATOR_NOT_AVAILABLE, doubt))
        else:
            self._handle(call)

    def _is_known(self, topic: _Named) -> bool:
        known = self._catalog.topics.get(topic.name)
        return known is not None and topic.topic_id in ("", known.topic_id)
