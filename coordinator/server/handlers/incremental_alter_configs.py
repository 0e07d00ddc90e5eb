"""IncrementalAlterConfigs (44): settings of topics change; open logs have them when the answer leaves."""

from __future__ import annotations

from collections import Counter
from typing import cast

from coordinator.log_output import get_logger
from coordinator.metadata.catalog import TopicError, check_setting_name, parse_topic_config
from coordinator.metadata.topic_config import Value
from coordinator.server.call import Call, Handler
from coordinator.server.handlers.topic_change import answer_each, check_named_once, turn
from coordinator.server.node import Node
from protocol.errors import ErrorCode
from protocol.messages.configs import (
    DELETE,
    SET,
    AlterableTopicConfigs,
    AlteredTopicConfigs,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)

log = get_logger()


def handler(node: Node) -> Handler:
    """Changes one topic after the other."""
    return lambda call: node.tasks.start_change(call, _alter_all(node, call))


async def _alter_all(node: Node, call: Call) -> None:
    request = cast("IncrementalAlterConfigsRequest", call.request)
    names = Counter(resource.name for resource in request.resources)

    async def alter(wanted: AlterableTopicConfigs, deadline: float) -> AlteredTopicConfigs:
        check_named_once(names, wanted.name)
        changes = _parsed(wanted)
        async with turn(node.catalog, wanted.name, deadline):
            topic = node.catalog.topic(wanted.name)
            if topic.internal:
                raise TopicError(
                    ErrorCode.INVALID_TOPIC_EXCEPTION,
                    f"topic {wanted.name!r} is internal: its settings are the daemon's (offsets_segment_bytes, "
                    "transactions_segment_bytes)",
                )
            altered = node.catalog.draft_config(topic, changes)
            if not request.validate_only and altered != topic:
                if node.cluster_topics is not None:
                    altered = await node.cluster_topics.alter(
                        wanted.name, lambda known: node.catalog.draft_config(known, changes)
                    )
                else:
                    await node.catalog.commit(altered)
                log.info("topic_settings_changed", topic=wanted.name, settings=dict(altered.config))
        return AlteredTopicConfigs(wanted.name, ErrorCode.NONE)

    await answer_each(
        node.tasks, call, request.resources, request.timeout_ms, alter,
        lambda wanted, code, message: AlteredTopicConfigs(wanted.name, code, message), IncrementalAlterConfigsResponse,
    )  # fmt: skip


def _parsed(wanted: AlterableTopicConfigs) -> dict[str, Value | None]:
    """The changes by setting, None for one that goes back to the daemon's. Raises ``TopicError``."""
    changes: dict[str, Value | None] = {}
    for entry in wanted.configs:
        if entry.name in changes:
            raise TopicError(ErrorCode.INVALID_CONFIG, f"{entry.name[:60]} is named twice")
        if entry.config_operation not in (SET, DELETE):
            raise TopicError(
                ErrorCode.INVALID_CONFIG,
                f"operation {entry.config_operation} on {entry.name[:60]} is unknown: use 0 (set) or 1 (delete)",
            )
        if entry.config_operation == SET:
            if entry.value is None:
                text = f"{entry.name[:60]} has no value: to have the daemon's, the operation is 1 (delete)"
                raise TopicError(ErrorCode.INVALID_REQUEST, text)
            changes |= parse_topic_config({entry.name: entry.value})
        else:
            check_setting_name(entry.name)
            changes[entry.name] = None
    return changes
