"""What a program says of a version is stored with its decision, and told with it."""

from __future__ import annotations

from typing import Any

from coordinator.transactions.config import TransactionConfig
from protocol.errors import ErrorCode
from protocol.messages.transactions import EndTxnRequest, EndTxnResponse
from tests.coordinator.transactions.steps import Coordinator


def commit(there: Coordinator, version: int, metadata: str, joined: Any = None) -> EndTxnResponse:
    if joined is None:
        joined = there.join(version)
    name = joined.transaction_producer_id, joined.producer_epoch
    request = EndTxnRequest("t", *name, True, version, "query", (joined.producer_id,), metadata)
    return there.answered(request, EndTxnResponse)


def test_it_is_told_to_who_comes_with_the_version_again_also_after_a_restart() -> None:
    there = Coordinator()
    rival = there.join(3)
    assert commit(there, 3, "up to 10").committed_metadata == "up to 10"
    for _ in range(2):
        assert there.join(3, "late").committed_metadata == "up to 10"
        answer = commit(there, 3, "up to 20", rival)
        assert (answer.error_code, answer.committed_metadata) == (ErrorCode.NONE, "up to 10")
        there.restart()
    assert commit(there, 4, "up to 30").committed_metadata == "up to 30"
    assert there.join(3, "late").committed_metadata == "up to 30", "that of the last version that is committed"
    assert commit(there, 5, "").committed_metadata == ""


def test_it_has_a_bound() -> None:
    there = Coordinator(TransactionConfig(max_transactional_id_bytes=10))
    answer = commit(there, 3, "x" * 11)
    assert answer.error_code == ErrorCode.INVALID_REQUEST
    assert "metadata of the version" in answer.error_message
    assert commit(there, 3, "x" * 10).error_code == ErrorCode.NONE
