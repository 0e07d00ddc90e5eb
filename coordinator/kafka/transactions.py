"""Transactions of Kafka's producers: AddPartitionsToTxn, AddOffsetsToTxn, EndTxn, TxnOffsetCommit.

Clients that know the second part of KIP-890 (transaction.version 2) get an epoch for each transaction, as Cohort's own do:
leaders make partitions part of a transaction, and EndTxn answers with the next epoch. Older clients keep the epoch that
InitProducerId gave them, and make partitions and groups part of a transaction by themselves; the coordinator counts their
transactions all the same (``coordinator.transactions``, ``coordinator.runtime.kept_epochs``). Which of the two a client is
shows in the versions of its requests.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Final

from coordinator.kafka.calls import KafkaCall, Translator
from coordinator.kafka.codes import KafkaCode
from coordinator.kafka.groups import group_handler
from coordinator.kafka.kafka_node import KafkaNode
from coordinator.metadata.catalog import INTERNAL_TOPICS, OFFSETS_TOPIC
from coordinator.server.call import StepsLeft
from protocol.errors import ErrorCode
from protocol.hashing import partition_for_group
from protocol.kafka.messages.add_offsets_to_txn_request import AddOffsetsToTxnRequest
from protocol.kafka.messages.add_offsets_to_txn_response import AddOffsetsToTxnResponse
from protocol.kafka.messages.add_partitions_to_txn_request import AddPartitionsToTxnRequest
from protocol.kafka.messages.add_partitions_to_txn_response import (
    AddPartitionsToTxnPartitionResult,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnTopicResult,
)
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
from protocol.messages.cluster import FindCoordinatorRequest, FindCoordinatorResponse

EPOCH_EACH_SINCE: Final = {0: 12, 26: 5, 28: 5}
"""By API key the first version that clients with an epoch for each transaction send: Produce, EndTxn, TxnOffsetCommit."""

_FENCED_SINCE: Final = {22: 4, 24: 2, 25: 2, 26: 2}
"""By API key the first version that knows PRODUCER_FENCED (KIP-588); others are told INVALID_PRODUCER_EPOCH."""

NOT_NOW: Final = frozenset(
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
    if key == 0 and code in NOT_NOW:
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
            request.transactional_id,
            request.producer_id,
            request.producer_epoch,
            request.committed,
            keeps_epoch=keeps_epoch(26, call.version),
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
            keeps_epoch=keeps_epoch(28, call.version),
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


def add_partitions_to_txn(node: KafkaNode) -> Translator:
    """A producer that keeps its epoch makes partitions part of its transaction, all that it names or none."""
    handler = node.handlers[native.AddPartitionsToTxnRequest]

    def handle(call: KafkaCall) -> StepsLeft:
        request: AddPartitionsToTxnRequest = call.message
        catalog = node.node.catalog
        topics = [(topic, catalog.topics.get(topic.name)) for topic in request.v3_and_below_topics]
        missing = {
            (topic.name, index)
            for topic, known in topics
            for index in topic.partitions
            if known is None or topic.name in INTERNAL_TOPICS or not 0 <= index < len(known.partitions)
        }
        if missing:
            call.reply(_added(request, KafkaCode.OPERATION_NOT_ATTEMPTED, missing))
            return None
        asked = native.AddPartitionsToTxnRequest(
            request.v3_and_below_transactional_id,
            request.v3_and_below_producer_id,
            request.v3_and_below_producer_epoch,
            tuple(
                native.TransactionTopic(topic.name, known.topic_id, tuple(topic.partitions))
                for topic, known in topics
                if known is not None
            ),
            keeps_epoch=True,
        )

        def told(response: native.AddPartitionsToTxnResponse) -> None:
            call.reply(_added(request, told_code(response.error_code, 24, call.version)))

        return call.ask(handler, asked, told)

    def refusal(
        request: AddPartitionsToTxnRequest, version: int, code: ErrorCode, text: str
    ) -> AddPartitionsToTxnResponse:
        return _added(request, told_code(code, 24, version))

    return Translator(AddPartitionsToTxnRequest, handle, refusal)


def _added(
    request: AddPartitionsToTxnRequest, code: int, missing: Collection[tuple[str, int]] = ()
) -> AddPartitionsToTxnResponse:
    """``missing`` are the partitions that there are not, on whose account the others are not added."""
    unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    return AddPartitionsToTxnResponse(
        results_by_topic_v3_and_below=[
            AddPartitionsToTxnTopicResult(
                topic.name,
                [
                    AddPartitionsToTxnPartitionResult(index, unknown if (topic.name, index) in missing else code)
                    for index in topic.partitions
                ],
            )
            for topic in request.v3_and_below_topics
        ]
    )


def add_offsets_to_txn(node: KafkaNode) -> Translator:
    """A producer that keeps its epoch makes a group part of its transaction."""
    find, add = node.handlers[FindCoordinatorRequest], node.handlers[native.AddPartitionsToTxnRequest]

    def handle(call: KafkaCall) -> StepsLeft:
        request: AddOffsetsToTxnRequest = call.message

        def told(response: native.AddPartitionsToTxnResponse) -> None:
            call.reply(AddOffsetsToTxnResponse(0, told_code(response.error_code, 25, call.version)))

        def found(response: FindCoordinatorResponse) -> None:
            """The partition of the group is there from now on."""
            offsets = node.node.catalog.topics.get(OFFSETS_TOPIC)
            if response.error_code or offsets is None:
                code = response.error_code or ErrorCode.COORDINATOR_NOT_AVAILABLE
                call.reply(AddOffsetsToTxnResponse(0, told_code(code, 25, call.version)))
                return
            partition = partition_for_group(request.group_id, len(offsets.partitions))
            topics = (native.TransactionTopic(OFFSETS_TOPIC, offsets.topic_id, (partition,)),)
            asked = native.AddPartitionsToTxnRequest(
                request.transactional_id, request.producer_id, request.producer_epoch, topics, keeps_epoch=True
            )
            call.ask(add, asked, told)

        return call.ask(find, FindCoordinatorRequest(request.group_id), found)

    def refusal(request: AddOffsetsToTxnRequest, version: int, code: ErrorCode, text: str) -> AddOffsetsToTxnResponse:
        return AddOffsetsToTxnResponse(0, told_code(code, 25, version))

    return Translator(AddOffsetsToTxnRequest, handle, refusal)
