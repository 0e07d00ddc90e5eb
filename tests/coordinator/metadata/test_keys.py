"""The values of keys: what a single node writes has not changed, and what is written is read as it was."""

from __future__ import annotations

import pytest

from coordinator.metadata.authority import KeyValue
from coordinator.metadata.keys import (
    encode_partition,
    live_key,
    node_info,
    partition_key,
    partition_state,
    registration_of,
)
from coordinator.metadata.partitions import PartitionState
from coordinator.replication.partition import Incarnation, LiveNode, PartitionRegistration
from tests.coordinator.metadata.cluster_metadata import live


def test_a_single_node_writes_the_four_fields_that_it_always_wrote() -> None:
    single = PartitionRegistration((0,), Incarnation(0, 0), 0, {0: 0}, 1)
    assert encode_partition(single) == {"leader": 0, "leader_epoch": 0, "replicas": [0], "isr": [0]}
    assert partition_key("t", 12) == "partitions/t/0000012"


def test_what_older_versions_left_reads_with_defaults() -> None:
    value = {"leader": 0, "leader_epoch": 3, "replicas": [0], "isr": [0]}
    assert partition_state(KeyValue("", value, 5, 9, 2)) == PartitionState(0, 3, (0,), (0,), partition_epoch=9)
    assert registration_of(value) == PartitionRegistration((0,), Incarnation(0, 0), 3, {0: 0}, 1)


@pytest.mark.parametrize(
    "registration",
    [
        PartitionRegistration((1, 2, 3), Incarnation(2, 70), 5, {2: 70, 1: 60}, 2),
        PartitionRegistration((1, 2, 3), None, 6, {2: 70}, 2, adding=(4, 5)),
        PartitionRegistration((1,), Incarnation(1, 9), 1, {1: 9, 4: 0}, 1, adding=(4,)),
    ],
)
def test_a_registration_is_read_as_it_was_written(registration: PartitionRegistration) -> None:
    assert registration_of(encode_partition(registration)) == registration


def test_a_live_key_tells_the_broker_epoch_and_whether_the_node_takes_replicas() -> None:
    value = live(host="h", peer_host="peer", rack="r1")
    found = node_info(KeyValue(live_key(4), {**value, "of_a_later_version": 1}, 30, 30, 1))
    assert (found.node_id, found.broker_epoch, found.host, found.port, found.rack) == (4, 30, "h", 9092, "r1")
    assert (found.peer_host, found.peer_port) == ("peer", 9192)
    assert found.live_node == LiveNode(30, 30, accepting=True)
    stops = node_info(KeyValue(live_key(4), {**value, "clean_since": 12}, 30, 31, 2))
    assert stops.live_node == LiveNode(30, 12, accepting=False)
