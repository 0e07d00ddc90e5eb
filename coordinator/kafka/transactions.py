"""Transactions of Kafka's producers: EndTxn, TxnOffsetCommit.

Clients that know the second part of KIP-890 (transaction.version 2) get an epoch for each transaction, as Cohort's own do:
leaders make partitions part of a transaction, and EndTxn answers with the next epoch. Which of the two a client is shows in
the versions of its requests; those of older clients, which keep one epoch, are not served.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from coordinator.kafka.calls import KafkaCall, Translator
from coordinator.kafka.groups import group_handler
from coordinator.kafka.kafka_node import KafkaNode
from protocol.errors import ErrorCode
from protocol.kafka.messages.end_txn_request import EndTxnRequest
from protocol.kafka.messages.end_txn_response import EndTxnResponse
from protocol.kafka.messages.txn_offset_commit_request import TxnOffsetCommitRequest
from protocol.kafka.messages.txn_offset_commit_response import (
    TxnOffsetCommitResponse,
    TxnOffsetCommitResponsePartition,
    TxnOffsetCommitResponseTopic,
)
from protocol.messages import offsets as native_offsets
from protocol.messages import transactions as native

EPOCH_EACH_SINCE: Final = {0: 12, 26: 5, 28: 5}
"""By API key the first version that clients with an epoch for each transaction send: Produce, EndTxn, TxnOffsetCommit."""

_FENCED_SINCE: Final = {22: 4, 24: 2, 25: 2, 26: 2}
"""By API key the first version that knows PRODUCER_FENCED (KIP-588); others are told INVALID_PRODUCER_EPOCH."""

_NOT_NOW: Final = frozenset(
    {
        *(ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.NOT_COORDINATOR),
        *(ErrorCode.CONCURRENT_TRANSACTIONS, ErrorCode.TRANSACTION_COORDINATOR_FENCED),
    }
)
"""What the coordinator of its transaction may say to a leader, and Produce does not know: the request may pass again."""


def keeps_epoch(key: int, version: int) -> bool:
    """Whether a request, by its API key and version, is of a client that keeps one epoch from transaction to transaction."""
    return version < EPOCH_EACH_SINCE[key]


def told_code(code: int, key: int, version: int) -> int:
    """An error as a client of this version understands it; what is aborted behind its back ends one that keeps its epoch."""
    if key == 0 and code in _NOT_NOW:
        return ErrorCode.NOT_ENOUGH_REPLICAS
    if code == ErrorCode.TRANSACTION_ABORTABLE and (key not in EPOCH_EACH_SINCE or keeps_epoch(key, version)):
        code = ErrorCode.PRODUCER_FENCED
    if code == ErrorCode.PRODUCER_FENCED and version < _FENCED_SINCE.get(key, 1 << 15):
        return ErrorCode.INVALID_PRODUCER_EPOCH
    return code


def end_txn(node: KafkaNode) -> Translator:
    """A transaction commits or aborts."""
    handler = node.handlers[native.EndTxnRequest]

    def handle(call: KafkaCall) -> Iterator[None] | None:
        request: EndTxnRequest = call.message
        asked = native.EndTxnRequest(
            request.transactional_id, request.producer_id, request.producer_epoch, request.committed
        )
        return call.ask(handler, asked, lambda response: call.reply(_ended(response, call.version)))  # type: ignore[return-value]

    def refusal(request: EndTxnRequest, version: int, code: ErrorCode, text: str) -> EndTxnResponse:
        return EndTxnResponse(error_code=told_code(code, 26, version))

    return Translator(EndTxnRequest, handle, refusal)


def _ended(response: native.EndTxnResponse, version: int) -> EndTxnResponse:
    return EndTxnResponse(0, told_code(response.error_code, 26, version), response.producer_id, response.producer_epoch)


def txn_offset_commit(node: KafkaNode) -> Translator:
    """Offsets of a group take effect when the transaction commits."""
    handler = group_handler(node, native.TxnOffsetCommitRequest)

    def handle(call: KafkaCall) -> None:
        request: TxnOffsetCommitRequest = call.message
        asked = native.TxnOffsetCommitRequest(
            request.group_id,
            request.transactional_id,
            request.producer_id,
            request.producer_epoch,
            request.generation_id_or_member_epoch,
            request.member_id,
            request.group_instance_id,
            tuple(
                native_offsets.OffsetCommitTopic(
                    topic.name,
                    tuple(
                        native_offsets.OffsetCommitPartition(
                            each.partition_index,
                            each.committed_offset,
                            each.committed_leader_epoch,
                            each.committed_metadata,
                        )
                        for each in topic.partitions
                    ),
                )
                for topic in request.topics
            ),
        )
        call.ask(handler, asked, lambda response: call.reply(_committed(response, call.version)))

    return Translator(TxnOffsetCommitRequest, handle, _committed_not)


def _committed(response: native.TxnOffsetCommitResponse, version: int) -> TxnOffsetCommitResponse:
    return TxnOffsetCommitResponse(
        topics=[
            TxnOffsetCommitResponseTopic(
                name=topic.name,
                partitions=[
                    TxnOffsetCommitResponsePartition(each.partition_index, told_code(each.error_code, 28, version))
                    for each in topic.partitions
                ],
            )
            for topic in response.topics
        ]
    )


def _committed_not(
    request: TxnOffsetCommitRequest, version: int, code: ErrorCode, text: str
) -> TxnOffsetCommitResponse:
    told = told_code(code, 28, version)
    return TxnOffsetCommitResponse(
        topics=[
            TxnOffsetCommitResponseTopic(
                name=topic.name,
                partitions=[TxnOffsetCommitResponsePartition(each.partition_index, told) for each in topic.partitions],
            )
            for topic in request.topics
        ]
    )
