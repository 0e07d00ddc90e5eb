"""Messages of idempotent producers: InitProducerId."""

from __future__ import annotations

from dataclasses import dataclass

from protocol.codec import Int16, Int32, Int64
from protocol.messages.api import ApiKey, Request, Response, register


@dataclass(frozen=True, slots=True)
class InitProducerIdResponse(Response):
    """The identity under which a producer numbers its records, partition by partition, from 0."""

    error_code: Int16
    producer_id: Int64 = -1
    producer_epoch: Int16 = -1
    error_message: str = ""


@register
@dataclass(frozen=True, slots=True)
class InitProducerIdRequest(Request):
    """Asks for a producer id that no producer has had (KIP-98).

    ``transactional_id`` must be nil: there are no transactions yet. A producer that gives its ``producer_id`` and
    ``producer_epoch`` gets the same id with the next epoch (KIP-360), or a new one after epoch 32,766.
    """

    api_key = ApiKey.INIT_PRODUCER_ID
    response = InitProducerIdResponse

    transactional_id: str | None = None
    transaction_timeout_ms: Int32 = 60_000
    producer_id: Int64 = -1
    producer_epoch: Int16 = -1
