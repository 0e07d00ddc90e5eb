"""Requests about nodes and replicas, to a node that is alone: all is where it is to be, and nothing can go elsewhere."""

from __future__ import annotations

from typing import Any

from coordinator import Coordinator
from protocol.codec import decode_message
from protocol.errors import ErrorCode
from protocol.messages import Request
from protocol.messages.cluster import (
    DescribeClusterRequest,
    UnregisterBrokerRequest,
)
from protocol.messages.reassignment import (
    PREFERRED_ELECTION,
    UNCLEAN_ELECTION,
    AlterPartitionReassignmentsRequest,
    ElectLeadersRequest,
    ElectTopic,
    ListPartitionReassignmentsRequest,
    ReassignablePartition,
    ReassignableTopic,
)
from tests.integration.test_bad_input import raw
from tests.integration.test_bounds import ask, create


async def test_a_node_that_is_alone_has_all_there_is() -> None:
    async with Coordinator(log_level="error") as running, raw(running.address) as client:
        await create(client, "t", 3)
        node = int(running.address.rpartition(":")[2])

        async def asked(request: Request) -> Any:
            return decode_message(request.response, await ask(client, request))

        described = await asked(DescribeClusterRequest(include_fenced_brokers=True))
        assert (described.error_code, described.controller_id, described.metadata_store) == (0, 0, "local")
        (broker,) = described.brokers
        assert (broker.broker_id, broker.host, broker.port) == (0, "127.0.0.1", node)
        assert not broker.is_fenced
        assert not broker.is_draining

        partitions = (ReassignablePartition(0, (0,)), ReassignablePartition(1, (1,)), ReassignablePartition(2))
        altered = await asked(AlterPartitionReassignmentsRequest((ReassignableTopic("t", partitions),)))
        assert [entry.error_code for entry in altered.responses[0].partitions] == [
            ErrorCode.NONE,
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            ErrorCode.NO_REASSIGNMENT_IN_PROGRESS,
        ]
        assert "the nodes that accept replicas are 0" in altered.responses[0].partitions[1].error_message
        twice = ReassignableTopic("t", (ReassignablePartition(1, (0,)), ReassignablePartition(1, (0,))))
        refused = await asked(AlterPartitionReassignmentsRequest((twice,)))
        assert (refused.error_code, refused.responses) == (ErrorCode.INVALID_REQUEST, ())
        assert "partition 1 of topic 't' is named 2 times" in refused.error_message

        assert (await asked(ListPartitionReassignmentsRequest())).topics == ()
        for kind in (PREFERRED_ELECTION, UNCLEAN_ELECTION):
            elected = await asked(ElectLeadersRequest((ElectTopic("t", (0, 1)),), kind))
            assert [entry.error_code for entry in elected.replica_election_results[0].partition_result] == [
                ErrorCode.ELECTION_NOT_NEEDED
            ] * 2
            assert (await asked(ElectLeadersRequest(None, kind))).replica_election_results == ()
        assert (await asked(ElectLeadersRequest(None, 7))).error_code == ErrorCode.INVALID_REQUEST

        alive = await asked(UnregisterBrokerRequest(0))
        assert (alive.error_code, alive.error_message) == (
            ErrorCode.INVALID_REQUEST,
            "node 0 is alive: stop it first",
        )
        assert (await asked(UnregisterBrokerRequest(5))).error_code == ErrorCode.BROKER_ID_NOT_REGISTERED
