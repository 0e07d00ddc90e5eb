"""Messages of idempotent and transactional producers: InitProducerId."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from protocol.codec import Int8, Int16, Int32, Int64
from protocol.messages.api import ApiKey, Request, Response, register

NO_OUTCOME: Final = 0
OUTCOME_COMMITTED: Final = 1
OUTCOME_ABORTED: Final = 2


@dataclass(frozen=True, slots=True)
class InitProducerIdResponse(Response):
    """The identity under which a producer numbers its records, partition by partition, from 0.

    With a transactional id, ``previous_outcome`` tells a producer that gave its identity how the transaction of that
    identity ended: 0 when there was none, 1 committed, 2 aborted; and ``committed_version`` is the highest version that the
    id has committed, -1 for none.
    """

    error_code: Int16
    producer_id: Int64 = -1
    producer_epoch: Int16 = -1
    error_message: str = ""
    previous_outcome: Int8 = NO_OUTCOME
    committed_version: Int64 = -1


@register
@dataclass(frozen=True, slots=True)
class InitProducerIdRequest(Request):
    """Asks for a producer id that no producer has had (KIP-98).

    With a ``transactional_id`` the producer takes the id over: it ends an open transaction of it, and fences the producer
    that had it before. A producer that gives its ``producer_id`` and ``producer_epoch`` gets the same id with the next epoch
    (KIP-360), or a new one after epoch 32,766. ``transaction_timeout_ms`` is the longest time that a transaction may be
    open.
    """

    api_key = ApiKey.INIT_PRODUCER_ID
    response = InitProducerIdResponse

    transactional_id: str | None = None
    transaction_timeout_ms: Int32 = 60_000
    producer_id: Int64 = -1
    producer_epoch: Int16 = -1
