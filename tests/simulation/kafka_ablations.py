"""Safeguards of the port for Kafka's clients, which only these can miss. See ``ablations``."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import coordinator.groups.pending_offsets
import coordinator.groups.rebalance
import coordinator.kafka.batches
from coordinator.kafka.codec import KafkaCodec
from coordinator.kafka.fetch_sessions import _Partition
from coordinator.kafka.refused_batches import RefusedBatches
from coordinator.runtime.kept_epochs import KeptEpochs
from protocol.errors import ErrorCode
from protocol.kafka.batch import only_batch
from protocol.messages.transactions import AddPartitionsToTxnResponse
from tests.simulation.safeguards import safeguard


@safeguard(
    "a batch of a Kafka producer is stored with its numbers",
    "numbered_records_are_there_once",
    workloads=("kafka_producing",),
    faults=("requests_go_astray", "connections_reset"),
)
def kafka_numbers() -> Iterator[None]:
    def without_numbers(records: bytes) -> Any:
        return only_batch(records)._replace(producer_id=-1)

    with patch.object(coordinator.kafka.batches, "only_batch", without_numbers):
        yield


@safeguard(
    "a batch behind one that was refused for now is refused for now",
    "numbered_records_fail_by_time_only",
    workloads=("kafka_producing",),
    faults=("write_errors",),
)
def kafka_refused_batches() -> Iterator[None]:
    with patch.object(RefusedBatches, "told", lambda refused, place, header, result: result):
        yield


@safeguard(
    "Kafka's clients are answered in the order of their requests",
    "nothing_fails_unexpectedly",
    workloads=("kafka_producing", "kafka_consuming"),
    faults=("connections_reset",),
)
def kafka_answers_in_order() -> Iterator[None]:
    with patch.object(KafkaCodec, "answers_in_order", False):
        yield


@safeguard(
    "an incremental answer has the records of a partition of which nothing else is new",
    "groups_settle_after_the_last_fault",
    workloads=("kafka_producing", "kafka_consuming"),
    faults=("connections_reset",),
)
def kafka_session_news() -> Iterator[None]:
    original = _Partition.has_news

    def by_ends_only(partition: _Partition, data: Any) -> bool:
        return original(partition, replace(data, records=b""))

    with patch.object(_Partition, "has_news", by_ends_only):
        yield


@safeguard(
    "a group of both kinds is led by a member of Cohort, which withholds what handlers work on",
    "ownership_never_overlaps",
    "no_two_clients_act_as_owner",
    workloads=("producing", "kafka_sharing"),
    faults=("client_stalls", "client_is_killed"),
    static=False,
    consumers=4,
    partitions=4,
)
def kafka_members_follow() -> Iterator[None]:
    with patch.object(coordinator.groups.rebalance, "_prefer_leader_of_cohort", lambda group: None):
        yield


@safeguard(
    "leaders ask which transaction a Kafka producer means that keeps its epoch",
    "open_in_a_log_is_known_to_its_coordinator",
    "no_transaction_hangs",
    workloads=("kafka_transacting",),
    faults=("requests_go_astray", "connections_reset"),
)
def kafka_kept_epochs() -> Iterator[None]:
    def ask(kept: KeptEpochs, question: Any) -> None:
        question.answer = AddPartitionsToTxnResponse(ErrorCode.NONE, "", *question.name[1:])
        kept._admit(question)

    with patch.object(KeptEpochs, "_ask", ask):
        yield


@safeguard(
    "offsets in a transaction are those of a member of the group's generation (KIP-447)",
    "each_input_is_answered_once",
    "offsets_go_with_their_outputs",
    workloads=("producing", "kafka_transforming"),
    faults=("client_stalls", "partition"),
)
def kafka_transactions_name_their_member() -> Iterator[None]:
    with patch.object(coordinator.groups.pending_offsets, "_fault", lambda group, request, step: None):
        yield
