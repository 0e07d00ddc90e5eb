"""What requests that change the cluster share: one answer for all, a deadline, and what is said of a failure."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from coordinator.log.errors import LogError
from coordinator.log_output import get_logger
from coordinator.metadata.catalog import TopicError
from coordinator.metadata.store import MetadataUnavailableError
from coordinator.server.call import Call, Handler
from coordinator.server.handlers.topic_change import explained
from coordinator.server.node import Node
from protocol.errors import ErrorCode
from protocol.messages import Response

log = get_logger()


def change_handler(
    node: Node,
    work: Callable[[Node, Any], Awaitable[Response]],
    failed: Callable[[ErrorCode, str], Response],
    timeout_ms: int | None = None,
) -> Handler:
    """Has ``work`` make the answer of a request, also when the client hangs up; ``failed`` makes one of an error.

    The deadline is the request's own, unless ``timeout_ms`` says it.
    """

    def handle(call: Call) -> None:
        request: Any = call.request
        deadline_ms = request.timeout_ms if timeout_ms is None else timeout_ms
        node.tasks.start_change(call, _answer_whole(call, deadline_ms, work(node, request), failed))

    return handle


async def _answer_whole(
    call: Call, timeout_ms: int, work: Awaitable[Response], failed: Callable[[ErrorCode, str], Response]
) -> None:
    """Answers with what ``work`` gives, or at the deadline that it is not known yet: what has begun goes on then."""
    loop = asyncio.get_running_loop()

    def late() -> None:
        call.answer(
            failed(ErrorCode.REQUEST_TIMED_OUT, f"not done after {timeout_ms} ms: it goes on, look again later")
        )

    timer = loop.call_later(max(timeout_ms, 0) / 1000, late)
    try:
        call.answer(await work)
    except Exception as error:
        if not isinstance(error, (TopicError, MetadataUnavailableError, OSError, LogError)):
            log.error("topic_change_failed", wanted=type(call.request).__name__, exc_info=error)
        call.answer(failed(*explained(error)))
    finally:
        timer.cancel()
